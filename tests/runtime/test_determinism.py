"""Torch's deterministic algorithms within a run, and its settings as they were before afterwards."""

import json
import os

import pytest
import torch

import descend
from descend.runtime.seeds import arithmetic_settings, deterministic_algorithms

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def settings():
    cudnn = torch.backends.cudnn
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        cudnn.deterministic,
        cudnn.benchmark,
        os.environ.get(WORKSPACE),
    )


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", torch.backends.cudnn.deterministic)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("workspace", [None, ":16:8", ":0:0"])
@pytest.mark.parametrize("enabled", [False, True])
def test_settings_are_set_and_set_back_also_after_an_error(enabled, workspace, monkeypatch):
    monkeypatch.delenv(WORKSPACE, raising=False)
    if workspace:
        monkeypatch.setenv(WORKSPACE, workspace)
    torch.use_deterministic_algorithms(enabled, warn_only=enabled)
    torch.backends.cudnn.benchmark = True
    before = settings()
    within = []

    def fail():
        with deterministic_algorithms(True):
            within.append(settings())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    # Two sizes give one order of summation; a user's own choice among them stays.
    assert within == [(True, False, True, False, ":16:8" if workspace == ":16:8" else ":4096:8")]
    assert settings() == before


def test_nothing_is_set_where_it_is_not_asked_for():
    torch.backends.cudnn.benchmark = True
    before = settings()
    with deterministic_algorithms(False):
        assert settings() == before


class Asking(torch.nn.Linear):
    def forward(self, x):
        self.seen = torch.are_deterministic_algorithms_enabled()
        return super().forward(x)


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_run_has_them_while_it_lasts(deterministic, tmp_path):
    module, x = Asking(3, 1), torch.randn(8, 3)
    result = descend.fit(
        module,
        "mse",
        (x, x[:, :1]),
        optimizer=descend.SGD(learn_rate=0.1),
        batch_size=4,
        stop=descend.Epochs(1),
        deterministic=deterministic,
        run_dir=tmp_path / "run",
        verbose=False,
    )
    assert module.seen is deterministic
    assert not torch.are_deterministic_algorithms_enabled()
    noted = json.loads((result.run_dir / "run.json").read_text())["arithmetic"]
    assert noted["deterministic_algorithms"] is deterministic
    assert noted["cudnn_deterministic"] is deterministic
    assert noted.keys() == arithmetic_settings().keys()


def test_what_is_no_answer_is_refused():
    x = torch.randn(8, 3)
    with pytest.raises(descend.errors.ConfigurationError, match="deterministic must be True or False"):
        descend.fit(
            torch.nn.Linear(3, 1),
            "mse",
            (x, x[:, :1]),
            optimizer=descend.SGD(learn_rate=0.1),
            batch_size=4,
            stop=descend.Epochs(1),
            deterministic="yes",
        )
