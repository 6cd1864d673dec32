"""A real Slurm on this machine, for as long as it is entered: munged, slurmctld and a slurmd for each node.

Everything lies in one folder and listens on 127.0.0.1; nothing of the system is touched. It needs Debian's packages
slurmctld, slurmd, slurm-client and munge, and a host name that is an address of 127.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
_PORTS = 16900  # and those after it


def why_not() -> str | None:
    """What is missing for a Slurm of one's own; None where nothing is."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    if missing := [name for name in PROGRAMS if not shutil.which(name, path=path)]:
        return f"{', '.join(missing)} not installed"
    try:
        address = socket.gethostbyname(_host())
    except OSError:
        return f"the name {_host()} of this machine has no address"
    return None if address.startswith("127.") else f"the name {_host()} of this machine is {address}, not of 127"


def _host() -> str:
    return socket.gethostname().partition(".")[0]


class Cluster:
    """Nodes n1, n2, ... in the partition "debug", and "urgent", whose jobs put those of "debug" back into the queue."""

    def __init__(self, folder: Path, nodes: int = 2, cores: int = 2) -> None:
        self.folder, self.nodes, self.cores = folder, nodes, cores
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))},
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"]),
        }

    def __enter__(self) -> Cluster:
        for name in ("state", "log", "run", "munge"):
            (self.folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.folder / "slurm.conf").write_text(self._configuration())
        try:
            self._authenticate()
            self._call("slurmctld", "-c")
            for number in range(1, self.nodes + 1):
                (self.folder / "state" / f"slurmd-n{number}").mkdir(exist_ok=True)
                self._call("slurmd", "-N", f"n{number}")
            self._wait_until_idle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for file in [*sorted((self.folder / "run").glob("*.pid"), reverse=True)]:
            try:
                os.kill(int(file.read_text()), signal.SIGTERM)
            except (ValueError, OSError):
                continue

    def call(self, *command: str) -> str:
        """What a command of Slurm prints."""
        return self._call(*command).stdout

    def job(self, number: str) -> dict[str, str]:
        """The facts of a job."""
        words = self.call("scontrol", "show", "job", "-o", number).split()
        return dict(word.partition("=")[::2] for word in words if "=" in word)

    def wait_for(self, number: str, *states: str, seconds: float = 240.0) -> dict[str, str]:
        """The facts of a job once it is in one of some states."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            facts = self.job(number)
            if facts["JobState"] in states:
                return facts
            time.sleep(0.2)
        raise AssertionError(f"job {number} is {self.job(number)['JobState']} and not {states}")

    def _call(self, *command: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done

    def _authenticate(self) -> None:
        munge = self.folder / "munge"
        (munge / "key").write_bytes(secrets.token_bytes(1024))
        (munge / "key").chmod(0o600)
        own = {"key-file": "key", "socket": "socket", "log-file": "log", "seed-file": "seed"}
        files = [f"--{option}={munge / name}" for option, name in own.items()]
        self._call("munged", "--force", *files, f"--pid-file={self.folder / 'run' / 'munged.pid'}", "--num-threads=2")
        munge.chmod(0o711)  # its clients have to reach the socket

    def _wait_until_idle(self) -> None:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            states = self.call("sinfo", "-h", "-p", "debug", "-o", "%T").split()
            if states == ["idle"]:
                return
            time.sleep(0.1)
        raise RuntimeError(f"the nodes are {states} and not idle")

    def _configuration(self) -> str:
        folder, host, user = self.folder, _host(), getpass.getuser()
        settings = {
            "ClusterName": "here",
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmUser": user,
            "SlurmdUser": user,
            "SlurmctldPort": _PORTS,
            "AuthType": "auth/munge",
            # Without an early end of credentials a job that is put back waits for two minutes.
            "AuthInfo": f"socket={folder / 'munge' / 'socket'},cred_expire=5",
            "CredType": "cred/munge",
            "CommunicationParameters": "NoInAddrAny,NoCtldInAddrAny",
            "MpiDefault": "none",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "JobAcctGatherType": "jobacct_gather/none",
            "AccountingStorageType": "accounting_storage/none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_CPU",
            "SchedulerType": "sched/backfill",
            "SchedulerParameters": "sched_min_interval=0,sched_interval=1,bf_interval=1,batch_sched_delay=0",
            "PreemptType": "preempt/partition_prio",
            "PreemptMode": "REQUEUE",
            "ReturnToService": 2,
            "MinJobAge": 600,
            "KillWait": 30,
            "SlurmctldTimeout": 30,
            "SlurmdTimeout": 30,
            "SlurmctldPidFile": folder / "run" / "slurmctld.pid",
            "SlurmdPidFile": folder / "run" / "slurmd-%n.pid",
            "SlurmdSpoolDir": folder / "state" / "slurmd-%n",
            "StateSaveLocation": folder / "state",
            "SlurmctldLogFile": folder / "log" / "slurmctld.log",
            "SlurmdLogFile": folder / "log" / "slurmd-%n.log",
        }
        ports = f"[{_PORTS + 1}-{_PORTS + self.nodes}]"
        nodes = f"NodeName=n[1-{self.nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port={ports} CPUs={self.cores}"
        partition = "Nodes=ALL MaxTime=INFINITE State=UP"
        return "\n".join(
            [
                *(f"{name}={value}" for name, value in settings.items()),
                f"{nodes} RealMemory=1000 State=UNKNOWN",
                f"PartitionName=debug {partition} Default=YES OverSubscribe=NO PriorityTier=1 GraceTime=60",
                f"PartitionName=urgent {partition} PriorityTier=10",
                "",
            ]
        )
