"""What tests of several rooms are given, and in which order they run."""

import collections
import gc
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from system_needs import FORM

from descend.__main__ import main
from descend.optim import named_optimizers

# How long an example takes depends on what else the machine does, and says nothing of the code.
settings.register_profile("descend", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("descend")


def pytest_configure(config):
    """Tests are of the CPU, also where there is a GPU; those of `tests/cuda` alone see it."""
    if not any("tests/cuda" in str(argument) for argument in config.args):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_addoption(parser):
    parser.addoption("--skips-to", metavar="FILE", help="write which tests were skipped for want of a Debian package")


def pytest_ignore_collect(collection_path, config):
    """A run of slow tests alone imports no file without the mark: collecting all costs each worker 20 seconds."""
    if config.option.markexpr == "slow" and collection_path.suffix == ".py":
        return "mark.slow" not in collection_path.read_text() or None
    return None


@pytest.hookimpl(trylast=True)  # after others have been deselected
def pytest_collection_modifyitems(items):
    """Each worker begins with long tests, by the seconds that their mark says, so that none is left for the end.

    Of n workers each first gets an n-th of the list, in one piece.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    seconds = {
        item: max((mark.kwargs.get("seconds", 0) for mark in item.iter_markers("slow")), default=0) for item in items
    }
    long = sorted((item for item in items if seconds[item]), key=seconds.__getitem__, reverse=True)
    short = [item for item in items if not seconds[item]]
    ordered = []
    for worker in range(workers if long else 0):
        own = long[worker::workers]
        size = (len(items) - len(ordered)) // (workers - worker) - len(own)
        ordered += own + short[: max(size, 0)]
        del short[: max(size, 0)]
    items[:] = [*ordered, *short]


def pytest_collection_finish():
    """What was collected stays; the garbage collector need not look at it in each test."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def command(monkeypatch, capsys):
    """A function that gives what `descend WORDS` prints on both streams; its exit code must be `code`."""

    def call(*words, code=0):
        monkeypatch.setattr(sys, "argv", ["descend", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        printed = "".join(capsys.readouterr())
        assert (end.value.code or 0) == code, printed
        return printed

    return call


@pytest.fixture(autouse=True)
def rules_of_one_test(monkeypatch):
    """What a test registers is gone after it: `descend.optim.register` is for a whole process."""
    monkeypatch.setattr(named_optimizers, "_CLASSES", dict(named_optimizers._CLASSES))


def skips(config):
    """The name and the reason of each test, or file of tests, that was skipped."""
    reports = config.pluginmanager.get_plugin("terminalreporter").stats.get("skipped", [])
    return [(report.nodeid, report.longrepr[2].removeprefix("Skipped: ")) for report in reports]


def pytest_sessionfinish(session, exitstatus):
    """A test that is skipped without saying what it needs has failed."""
    config = session.config
    if hasattr(config, "workerinput"):
        return
    if config.option.skips_to:
        names = [name for name, reason in skips(config) if "(Debian: " in reason]
        Path(config.option.skips_to).write_text("".join(f"{name}\n" for name in names))
    if exitstatus == pytest.ExitCode.OK and any(not reason.startswith(FORM) for _, reason in skips(config)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    """Skips by reason."""
    counts = collections.Counter(reason for _, reason in skips(config))
    if counts:
        terminalreporter.section("skipped")
    for reason, count in sorted(counts.items()):
        terminalreporter.line(f"{count:5} {reason}")
    for name, reason in skips(config):
        if not reason.startswith(FORM):
            terminalreporter.line(f"{name} does not say what it needs, see tests/system_needs.py: {reason}", red=True)
