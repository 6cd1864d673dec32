"""What tests of several rooms are given."""

import sys

import pytest
from hypothesis import HealthCheck, settings

from descend.__main__ import main
from descend.optim import named_optimizers

# How long an example takes depends on what else the machine does, and says nothing of the code.
settings.register_profile("descend", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("descend")


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
