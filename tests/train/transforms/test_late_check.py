"""A bad gradient that the host learns of one step later ends a run as one that it has waited for."""

import functools
import json
import math

import pytest
import torch
import toys
from torch import nn
from toys import Regression, run_of

import descend
from descend.errors import NumericalError, Stopped
from descend.runtime.gpu_copies import HostNumber
from descend.train.objective import Ratio, Totals
from descend.train.transforms.base import Gradients
from descend.train.transforms.check_finite import FiniteLook, LateCheck

SAMPLES, SIZE = 60, 4
STATE = "training/optimizer.safetensors"


class Net(nn.Module):
    """Its output is not finite for samples of at least 1e30; a buffer counts its passes and batch norm the samples."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop, self.last = (
            nn.Linear(3, 5),
            nn.BatchNorm1d(5),
            nn.Dropout(0.3),
            nn.Linear(5, 2),
        )
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.passes = self.passes + 1
        bad = torch.where(x.abs().amax() > 1e30, math.nan, 1.0)
        return self.last(self.drop(torch.relu(self.norm(self.first(x.clamp(-9, 9)))))) * bad


def data(bad_step=None):
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(SAMPLES, 3, generator=draw), torch.randint(0, 2, (SAMPLES,), generator=draw)
    if bad_step is not None:
        x[SIZE * bad_step + 1, 1] = 1e32
    return x, y


OPTIMIZERS = {
    "descend": functools.partial(descend.optim.AdamW, lr=0.01),
    "descend's matrices": functools.partial(descend.optim.Muon, lr=0.01),
    "torch's fused": functools.partial(torch.optim.AdamW, lr=0.01, fused=True),
    "torch's": functools.partial(torch.optim.SGD, lr=0.01),
}


@pytest.fixture
def launched(monkeypatch):
    """Lets all parameters count as those of a device; how often a flag was computed is kept."""
    flags = []
    init, flag = FiniteLook.__init__, FiniteLook.flag

    def on_device(self, parameters):
        init(self, parameters)
        self.on_device = bool(parameters)

    monkeypatch.setattr(FiniteLook, "__init__", on_device)
    monkeypatch.setattr(FiniteLook, "flag", lambda self: flags.append(1) or flag(self))
    return flags


def run(folder, bad_step=None, optimizer="descend", **options):
    torch.manual_seed(0)
    module = Net()
    error = None
    given = {"stop": descend.Epochs(2), **options}
    try:
        descend.fit(module, "cross_entropy", data(bad_step), optimizer=OPTIMIZERS[optimizer], batch_size=SIZE,
                    shuffle=False, seed=5, run_dir=folder, verbose=False, **given)  # fmt: skip
    except NumericalError as raised:
        error = str(raised).replace(str(folder), "FOLDER")
    return error, module.state_dict(), saved(folder)


def saved(folder):
    """All that the newest checkpoint and the history say, without times."""
    newest = max((folder / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
    files = {
        str(path.relative_to(newest)): path.read_bytes()
        for path in sorted(newest.rglob("*"))
        if path.is_file() and path.suffix != ".json"
    }
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return newest.name, files, [{k: v for k, v in row.items() if k not in ("seconds", "time")} for row in rows]


@pytest.mark.parametrize("bad_step", [0, 1, 7, 14])  # the first, the next, one within and the last of an epoch
@pytest.mark.parametrize("optimizer", ["descend", "torch's fused"])
def test_error_weights_buffers_and_checkpoint_are_those_of_a_run_that_waits(bad_step, optimizer, tmp_path, request):
    expected = run(tmp_path / "waits", bad_step, optimizer)
    assert f"step {bad_step + 1}" in expected[0]
    flags = request.getfixturevalue("launched")
    found = run(tmp_path / "late", bad_step, optimizer)
    assert len(flags) == bad_step + 1
    assert found[0] == expected[0]
    if (bad_step, optimizer) == (0, "torch's fused"):  # has made zeros of its state, which it would have made next
        del found[2][1][STATE], expected[2][1][STATE]
    assert found[2] == expected[2]
    assert all(torch.equal(found[1][name], x) for name, x in expected[1].items())


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_a_run_without_a_bad_gradient_is_the_same(optimizer, tmp_path, request):
    expected = run(tmp_path / "waits", None, optimizer)
    flags = request.getfixturevalue("launched")
    found = run(tmp_path / "late", None, optimizer)
    assert len(flags) == (0 if optimizer == "torch's" else 30)  # which cannot leave an update out by itself
    assert found[0] is expected[0] is None
    assert found[2] == expected[2]
    assert all(torch.equal(found[1][name], x) for name, x in expected[1].items())


class Seen(descend.Callback):
    """Looks at each step."""

    def after_step(self, step):
        assert step.loss > 0


@pytest.mark.parametrize(
    "options",
    [
        {"callbacks": [Seen()]},
        {"on_nonfinite": "skip"},
        {"on_nonfinite": "allow"},
        {"transforms": [descend.GradientTransform()]},
        {"strategy": descend.GradientAccumulation(2)},
    ],
    ids=["callback", "skip", "allow", "transform", "accumulation"],
)
def test_where_anything_sees_a_step_it_waits(options, tmp_path, launched):
    run(tmp_path / "run", None, **options)
    assert not launched


class Cleaned(descend.GradientTransform):
    """Hides what is not finite from the check after it."""

    is_stateless = True

    def __call__(self, gradients):
        for p in gradients.run.parameters.values():
            p.grad.nan_to_num_(0.0)


@pytest.mark.parametrize("optimizer", ["descend", "torch's fused"])
def test_of_two_checks_each_leaves_the_update_out(optimizer, tmp_path, request):
    expected = run(tmp_path / "waits", 3, optimizer, transforms=[Cleaned()])
    flags = request.getfixturevalue("launched")
    found = run(tmp_path / "late", 3, optimizer, transforms=[Cleaned()])
    assert len(flags) == 8
    assert found[0] == expected[0]
    assert found[2] == expected[2]


def test_a_look_without_a_flag_is_not_late():
    run = run_of(Regression(), toys.data())
    late, batch = LateCheck(run), next(iter(run.data["train"].epoch(0)))
    run.parameters["weight"].grad = torch.ones_like(run.parameters["weight"]).to_sparse()
    gradients = Gradients(run, batch, Ratio(torch.tensor(2.0), 1.0), Totals(), 1.0)
    assert not late.launch(gradients, FiniteLook(run.parameters))
    assert run.precision.found_inf is None
    assert late.found() is None


def test_clipping_does_not_make_it_wait(tmp_path, launched):
    error, _, _ = run(tmp_path / "run", 3, clip_global_norm=1.0)
    assert "step 4" in error
    assert launched


@pytest.mark.usefixtures("launched")
def test_a_signal_right_after_a_bad_step_says_that_it_was_bad(tmp_path, monkeypatch):
    def stop(run):
        if run.state.step == 4:
            raise Stopped("stopped by SIGTERM after step 4")

    monkeypatch.setattr("descend.train.loop.raise_if_stop_requested", stop)
    error, _, (name, _, _) = run(tmp_path / "run", 3)
    assert "step 4" in error
    assert name == "step-3"


@pytest.mark.usefixtures("launched")
def test_a_gradient_that_is_finite_the_second_time_is_no_update(tmp_path, monkeypatch):
    monkeypatch.setattr(HostNumber, "read", lambda self: 1.0)
    error, module, (name, _, _) = run(tmp_path / "run")
    assert "step 1: a gradient was not finite, and all are when the step is computed once more" in error
    assert name == "step-0"
    assert float(module["passes"]) == 0
