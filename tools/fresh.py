"""Runs the README's commands on a system that has Python, make, git and nothing else that a package manager brought.

    python tools/fresh.py                   in a clone of this commit, in a temporary folder
    python tools/fresh.py --no-compiler     where there is no C++ compiler either
    python tools/fresh.py --here            in this folder, whose .venv is kept

That system is this one, seen from a mount namespace: the folders of programs hold those of Debian's required packages
and of the few that are listed below; data sets, fonts and what an administrator installed are empty folders; the home
folder and the temporary one are new; of the environment pip's settings remain. Libraries in C stay. It ends with the
exit code of the first command that fails, and tests that are skipped without saying what they need fail.

TORCH_OPTIONS and TESTS are passed on to make.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("make", "git", "ca-certificates", "python3", "python3-venv")  # beside those that Debian requires
PROGRAMS = ("/bin", "/sbin", "/usr/sbin", "/usr/bin")  # the last one has `mount`
HIDDEN = ("/usr/local/bin", "/usr/local/sbin", "/usr/games", "/usr/share/datasets", "/usr/share/fonts", "/snap")
KEPT = re.compile(r"PIP_.*|.*_proxy|SSL_CERT_.*|REQUESTS_CA_BUNDLE|LANG|LC_.*|TERM|TORCH_OPTIONS|TESTS", re.IGNORECASE)
REFUSED = 77  # the exit code where nothing was run; make's is 2


def main(words: list[str] | None = None) -> int:
    """Run the commands and return an exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-compiler", action="store_true", help="hide C++ compilers, too")
    parser.add_argument("--here", action="store_true", help="run in this folder and keep its .venv")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)  # the namespace, with a folder for its files
    given = parser.parse_args(words)
    if given.inside:
        return inside(given.inside, compiler=not given.no_compiler, here=given.here)
    unshare, why_not = namespace()
    if why_not:
        return refused(why_not)
    own = [word for word, on in (("--no-compiler", given.no_compiler), ("--here", given.here)) if on]
    with tempfile.TemporaryDirectory(prefix="fresh-", ignore_cleanup_errors=True) as work:
        Path(work).chmod(0o755)  # tests play other users, who look into folders for temporary files
        return subprocess.run([*unshare, sys.executable, __file__, *own, "--inside", work], check=False).returncode


def refused(why: str) -> int:
    """Say why nothing was run."""
    sys.stderr.write(f"make fresh: {why}\n")
    return REFUSED


def namespace() -> tuple[list[str], str]:
    """The command that runs another one in a mount namespace, and why there is none."""
    if not shutil.which("unshare"):
        return [], "needs Linux and util-linux's program `unshare`"
    if not shutil.which("dpkg-query"):
        return [], "needs Debian's dpkg-query, which says what programs belong to the system"
    for options in (["--mount"], ["--user", "--map-root-user", "--mount"]):
        command = ["unshare", *options, "--propagation", "private"]
        if (
            subprocess.run([*command, "mount", "--bind", "/tmp", "/tmp"], capture_output=True, check=False).returncode
            == 0
        ):
            return command, ""
    return [], "may make no mount namespace: run it as root, or allow user namespaces to users"


def inside(work: Path, *, compiler: bool, here: bool) -> int:
    """Hide what the system has, and run the README's commands."""
    if compiler and not shutil.which("g++"):
        return refused("there is no g++ on this machine that could be shown; make fresh COMPILER=no needs none")
    hide(work, programs_of(packages(compiler)))
    folder = ROOT if here else cloned(work / "descend")
    return run(commands(), folder, environment(work))


def packages(compiler: bool) -> set[str]:
    """Names of the installed packages that stay, with all that they depend on."""
    form = "${db:Status-Abbrev}\t${Package}\t${Priority} ${Essential}\t${Pre-Depends}, ${Depends}\t${Provides}\n"
    table = [line.split("\t") for line in output("dpkg-query", "--show", f"--showformat={form}").splitlines()]
    rows = [row[1:] for row in table if row[0].startswith("ii")]
    makers: dict[str, set[str]] = {}
    for name, _, _, provides in rows:
        for provided in {name, *names(provides)}:
            makers.setdefault(provided, set()).add(name)
    needs = {name: names(depends) for name, _, depends, _ in rows}
    required = [name for name, rank, _, _ in rows if "required" in rank or "yes" in rank]
    wanted = [*required, *PACKAGES, *(["g++"] if compiler else [])]
    kept: set[str] = set()
    while wanted:
        for name in makers.get(wanted.pop(), set()) - kept:
            kept.add(name)
            wanted += needs[name]
    return kept


def names(relations: str) -> set[str]:
    """The packages of a line such as "libc6 (>= 2.36), perl:any | awk"; an alternative that is installed stays, too."""
    return set(re.findall(r"[a-z0-9][a-z0-9+.-]+", re.sub(r"\(.*?\)|:\w+", "", relations)))


def programs_of(kept: set[str]) -> set[str]:
    """The programs of these packages, and this interpreter."""
    paths = output("dpkg-query", "--listfiles", *sorted(kept)).splitlines()
    inside = tuple(f"{folder}/" for folder in PROGRAMS)
    own = Path(getattr(sys, "_base_executable", sys.executable))
    return {os.path.realpath(path) for path in [*paths, str(own)] if path.startswith(inside)}


def hide(work: Path, programs: set[str]) -> None:
    """Put folders with these programs alone in the place of the system's, and empty ones over the others."""
    (work / "empty").mkdir()
    for folder in filter(os.path.isdir, HIDDEN):
        mount(work / "empty", folder)
    for folder in dict.fromkeys(map(os.path.realpath, PROGRAMS)):
        copy = work / folder.strip("/").replace("/", "-")
        copy.mkdir()
        for entry in os.scandir(folder):
            if os.path.realpath(entry.path) in programs:
                shutil.copy2(entry.path, copy / entry.name, follow_symlinks=False)
        mount(copy, folder)


def mount(source: Path, target: str) -> None:
    """Show a folder in another place."""
    subprocess.run(["mount", "--bind", str(source), target], check=True)


def cloned(folder: Path) -> Path:
    """A clone of the commit that is checked out here."""
    trusted = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    command = ["git", "clone", "--quiet", str(ROOT), str(folder)]
    subprocess.run(command, check=True, env={**os.environ, **trusted})
    return folder


def environment(work: Path) -> dict[str, str]:
    """What a login has, pip's settings, and new folders for what programs leave behind."""
    for name in ("home", "tmp"):
        (work / name).mkdir()
    kept = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)}
    settings = Path(os.environ.get("XDG_CONFIG_HOME", Path.home() / ".config")) / "pip" / "pip.conf"
    if settings.is_file():
        kept.setdefault("PIP_CONFIG_FILE", str(settings))
    kept.setdefault("PIP_CACHE_DIR", str(Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pip"))
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    own = {
        "PATH": ":".join(reversed(PROGRAMS)),
        "PYTHON": python,
        "HOME": str(work / "home"),
        "TMPDIR": str(work / "tmp"),
    }
    return {**kept, **own}


def commands() -> list[str]:
    """The first block of commands of the README."""
    block = re.search(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None, "README.md has no block of commands"
    return [line.split("#")[0].strip() for line in block[1].splitlines()]


def run(lines: list[str], folder: Path, environment: dict[str, str]) -> int:
    """Run commands up to one that fails, and return its exit code."""
    for line in lines:
        sys.stdout.write(f"$ {line}\n")
        sys.stdout.flush()
        code = subprocess.run(line, shell=True, cwd=folder, env=environment, check=False).returncode
        if code:
            sys.stderr.write(f"make fresh: `{line}` ended with exit code {code}\n")
            return code
    return 0


def output(*command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
