"""Trials on the machines of a Ray cluster: the only file that knows Ray.

    cluster         RayCluster()                      Ray is started on this machine, and ended with the study
                    RayCluster("auto")                the cluster that this machine belongs to
                    RayCluster("HOST:PORT")           the cluster of that head node, which this machine belongs to

Each trial is a Ray task with the resources that the study says it needs. What goes to a worker and comes back is JSON;
the workload is opened by its name there, so all nodes have descend and see the same files. Ray itself retries nothing.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

from descend.errors import ConfigurationError, DescendError, LostPeer, MissingExtra, Stopped, missing_library, warn
from descend.runtime import SignalHandler
from descend.study.running.plan import pending
from descend.study.running.trial import Record, Trial, TrialSetup, require_names
from descend.study.running.trial_ranks import DescribedTrial

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from types import TracebackType

    from descend.study.design.study import Study
    from descend.study.running.scheduler import RecordKeeper
    from descend.study.running.trial import Trial
    from descend.study.running.trial_store import Ledger
    from descend.study.task import StudyTask

__all__ = ["Ended", "RayCluster", "RayPool", "TrialPool", "conduct_in_pool", "run_described"]

_QUEUED = 2  # trials submitted for each that fits, so that no worker waits for the driver
_SHARED = "a Ray cluster"


@dataclass(frozen=True)
class RayCluster:
    """Where Ray is found.

    Args:
        address: "auto" or "HOST:PORT" of a cluster that is up; None starts Ray on this machine.

    Raises:
        ConfigurationError: the address is neither.
    """

    address: str | None = None

    def __post_init__(self) -> None:
        if self.address is not None and not re.fullmatch(r"auto|[\w.-]+:\d+|\[[\da-fA-F:]+\]:\d+", self.address):
            raise ConfigurationError(
                f"the address of a Ray cluster must be 'auto' or HOST:PORT, as `ray start --head` prints it, got "
                f"'{self.address}'"
            )

    def pool(self, study: Study, setup: TrialSetup, task: StudyTask | None) -> RayPool:
        """The workers for a study.

        Args:
            study: The study.
            setup: Of its trials.
            task: The opened workload, with whose data those of the workers are compared; None compares nothing.

        Raises:
            ConfigurationError: the workload or an optimizer has no name.
            MissingExtra: Ray is not installed.
        """
        require_names(study, f"trials on {_SHARED}")
        return RayPool(self, setup, "" if task is None else task.fingerprint())


class RayPool:
    """The workers of a Ray cluster, a `TrialPool`.

    Args:
        cluster: Where Ray is found.
        setup: Of the trials.
        data: The fingerprint of the workload's data; "" compares nothing.

    Raises:
        MissingExtra: Ray is not installed.
    """

    def __init__(self, cluster: RayCluster, setup: TrialSetup, data: str) -> None:
        self._ray = _library()
        self._cluster, self._setup, self._data = cluster, setup, data
        self._under_way: dict[Any, Trial] = {}
        self._own = False  # whether Ray was started here
        needs = setup.needs
        memory = {} if needs.memory_bytes is None else {"memory": needs.memory_bytes}
        remote = self._ray.remote(num_cpus=needs.all_cores, num_gpus=needs.all_gpus, max_retries=0, **memory)
        self._run = remote(run_described)

    def __enter__(self) -> Self:
        """Connect to the cluster, unless this process is connected.

        Raises:
            ConfigurationError: there is no such cluster.
        """
        if not self._ray.is_initialized():
            with _own_signals():
                self._connect()
            self._own = True
        if not any(self._fitting()):
            warn(
                f"a trial needs {self._setup.needs}, and no node of the Ray cluster has as much; it waits for one that "
                "has"
            )
        return self

    def _connect(self) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
        if self._cluster.address is None:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it tells its makers of each start otherwise
            self._ray.init(address="local", include_dashboard=False, **quiet)
            return
        try:
            self._ray.init(address=self._cluster.address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ConfigurationError(
                f"there is no Ray cluster at '{self._cluster.address}' that this machine belongs to "
                f"({str(error).strip().partition(chr(10))[0]}): start its head with `ray start --head` and the other "
                "nodes with `ray start --address HOST:PORT`, this machine among them"
            ) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the trials under way, and the Ray that was started here."""
        for reference in self._under_way:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.cancel(reference, force=True)
        self._under_way.clear()
        if self._own:
            with _own_signals():
                self._ray.shutdown()

    def room(self) -> int:
        """See `TrialPool.room`.

        Raises:
            LostPeer: no node of the cluster is up.
        """
        return max(1, _QUEUED * sum(self._fitting())) - len(self._under_way)

    def _fitting(self) -> list[int]:
        """How many trials fit on each node."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not nodes:
            raise LostPeer("no node of the Ray cluster is up any more; start it, and run the study again to go on")
        return [self._trials_on(resources) for resources in nodes]

    def _trials_on(self, resources: dict[str, float]) -> int:
        memory = resources.get("memory", math.inf)
        return self._setup.needs.trials_on(resources.get("CPU", 0), memory, resources.get("GPU", 0))

    def submit(self, trial: Trial) -> None:
        """See `TrialPool.submit`."""
        described = DescribedTrial.of(self._setup, trial, self._data).text()
        self._under_way[self._run.options(name=trial.id).remote(described)] = trial

    def ended(self, seconds: float) -> list[Ended]:
        """See `TrialPool.ended`.

        Raises:
            DescendError: what the workload raised when it was opened on a node.
        """
        ready, _ = self._ray.wait(list(self._under_way), timeout=seconds)
        return [self._end(reference, self._under_way.pop(reference)) for reference in ready]

    def _end(self, reference: Any, trial: Trial) -> Ended:
        errors = self._ray.exceptions
        try:
            return Ended(trial, Record.read(self._ray.get(reference)))
        except errors.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, Stopped):  # as the worker of a machine that has to leave
                return Ended(trial, None, "its worker was asked to stop", machine_lost=True)
            if isinstance(cause, DescendError):
                raise cause from None
            if isinstance(cause, ImportError):
                raise ConfigurationError(
                    f"a node of the Ray cluster cannot import what a trial needs: {cause}; install the same packages "
                    "on all nodes"
                ) from error
            raise DescendError(f"{trial.id}: a worker of Ray raised {type(cause).__name__}: {cause}") from error
        except errors.OutOfMemoryError as error:
            return Ended(trial, Record(trial, "out of memory", message=_first_line(error)))
        except errors.WorkerCrashedError:
            return Ended(trial, None, "its worker was killed or crashed")
        except errors.TaskUnschedulableError as error:
            raise ConfigurationError(f"no node of the Ray cluster can run a trial: {_first_line(error)}") from error
        except errors.RayError as error:  # of the nodes, of which Ray has many
            return Ended(trial, None, f"its node was lost ({type(error).__name__})", machine_lost=True)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _library() -> Any:
    try:
        import ray  # pyright: ignore[reportMissingImports]  # an extra
    except ImportError as error:
        raise MissingExtra(missing_library("--executor ray", "ray")) from error
    return ray


@contextlib.contextmanager
def _own_signals() -> Generator[None]:
    """Within this block a library may set a handler of SIGTERM, which is undone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_described(text: str) -> str:
    """What a worker does: run a trial, by the executor that runs trials one by one on one machine.

    Args:
        text: Of a `DescribedTrial`.

    Returns:
        The record, as a line.
    """
    import torch

    from descend.study.running.executor_choice import choose

    asked = DescribedTrial.read(text)
    study, setup = asked.study(), asked.setup()
    torch.set_num_threads(setup.needs.cores)
    task = asked.task()
    way = choose(task, [asked.trial], study.evaluations, "one", {}, setup=setup)
    return next(way.run(task, [asked.trial], study.evaluations, {})).line()


_POLL_SECONDS = 0.5  # for which an end is waited for, between two checks for a request to stop
_MOST_CRASHES = 3  # of the worker of one trial, after which the trial is held to be the cause


@dataclass(frozen=True)
class Ended:
    """The end of a trial in a pool.

    Attributes:
        trial: What was run.
        record: What came of it; None if it was lost with its worker.
        lost: What happened to the worker, a phrase.
        machine_lost: Whether its machine was lost, which says nothing about the trial.
    """

    trial: Trial
    record: Record | None
    lost: str = ""
    machine_lost: bool = False


class TrialPool(Protocol):
    """Workers that run trials. As a context it is up."""

    def __enter__(self) -> Self:
        """Connect to the workers, or start them."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the trials under way."""
        ...

    def room(self) -> int:
        """How many more trials are worth handing in now; at least 1 where none is under way."""
        ...

    def submit(self, trial: Trial) -> None:
        """Hand a trial in."""
        ...

    def ended(self, seconds: float) -> list[Ended]:
        """Trials that ended, as soon as there is one, and after so many seconds at the latest."""
        ...


def conduct_in_pool(study: Study, ledger: Ledger, pool: TrialPool, keeper: RecordKeeper) -> dict[str, Record]:
    """Run what is left of a study in a pool. Other processes may work on the same study.

    Returns:
        All records, by the id of the trial.

    Raises:
        DescendError: a trial ended in an error that repeating did not mend, or what a worker raised.
        Stopped: a signal asked it to stop; trials under way run again.
    """
    under_way: dict[str, Trial] = {}
    again: list[Trial] = []  # lost with their workers, and still claimed
    crashes: Counter[str] = Counter()
    with pool, SignalHandler() as stop:
        while True:
            settled = keeper.settled()
            left = pending(study, settled)
            if not left:
                return settled
            if name := stop.requested():
                raise Stopped(f"{name} stopped it with {len(left)} or more trials left; run again to continue")
            for trial in _next(ledger, left, under_way, again, pool.room()):
                under_way[trial.id] = trial
                pool.submit(trial)
            if not under_way:  # others hold all of them
                time.sleep(_POLL_SECONDS)
            for ended in pool.ended(_POLL_SECONDS) if under_way else ():
                del under_way[ended.trial.id]
                crashes[ended.trial.id] += ended.record is None and not ended.machine_lost
                if ended.record is not None:
                    keeper.keep([ended.record])
                elif crashes[ended.trial.id] >= _MOST_CRASHES:
                    crashes[ended.trial.id] = 0
                    message = f"its worker was lost {_MOST_CRASHES} times: {ended.lost}"
                    keeper.keep([Record(ended.trial, "error", message=message)])
                else:
                    warn(f"{ended.trial.id}: {ended.lost}; it runs again")
                    again.append(ended.trial)


def _next(
    ledger: Ledger, left: Sequence[Trial], under_way: dict[str, Trial], again: list[Trial], room: int
) -> list[Trial]:
    """The trials to submit: those that were lost, and newly claimed ones."""
    first = again[:room]
    del again[:room]
    waiting = {trial.id for trial in again} | {trial.id for trial in first}
    new = [trial for trial in left if trial.id not in under_way and trial.id not in waiting]
    return [*first, *ledger.claim(new, room - len(first))]
