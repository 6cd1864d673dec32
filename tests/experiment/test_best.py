"""The best epoch of a run, and weights out of a run directory, against what a plain read of the files gives."""

import json

import pytest
import safetensors.torch
import torch
from torch import nn

import descend
from descend.errors import ConfigurationError, StorageError
from descend.experiment import checkpoint
from descend.experiment.best import Best, best_epoch, monitored_metric
from descend.train.callback import Monitored

ROWS = [
    {"mode": "train", "epoch": 1, "step": 3, "objective": 0.5},
    {"mode": "validation", "epoch": 1, "step": 3, "objective": 0.9, "accuracy": 0.2},
    {"mode": "train", "epoch": 2, "step": 6, "objective": 0.4},
    {"mode": "validation", "epoch": 2, "step": 6, "objective": 0.7, "accuracy": float("nan")},
    {"mode": "train", "epoch": 3, "step": 9, "objective": 0.3},
    {"mode": "validation", "epoch": 3, "step": 9, "objective": 0.7, "accuracy": 0.1},
]
X = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def net(width=3):
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 2))


def trained(run_dir, *callbacks, module=None, epochs=4, rate=0.3, **options):
    return descend.fit(
        module or net(),
        "cross_entropy",
        (X, Y),
        valid=(X[:7], 1 - Y[:7]),  # the wrong labels: validation gets worse with every epoch
        optimizer=descend.SGD(learn_rate=rate),
        batch_size=10,
        stop=descend.Epochs(epochs),
        callbacks=list(callbacks),
        run_dir=run_dir,
        metrics=["accuracy"],
        **options,
    )


def test_the_first_of_equal_rows_is_the_best_and_nan_is_none():
    assert best_epoch(ROWS, Monitored("validation/objective", "min"), None) == Best(
        "validation/objective", 0.7, 2, 6, None
    )
    assert best_epoch(ROWS, Monitored("validation/accuracy", "max"), None).step == 3
    assert best_epoch(ROWS, Monitored("train/objective", "min"), None).step == 9
    assert best_epoch(ROWS, Monitored("validation/f1", "max"), None) is None


def test_what_is_monitored_comes_from_a_callback_or_from_what_was_measured():
    stop = descend.EarlyStopping(monitor="validation/accuracy", restore_best=True)
    keep = descend.Checkpoint(keep_best="validation/accuracy", best="lowest")
    assert monitored_metric([descend.Print(), stop, keep], ROWS) == ("validation/accuracy", "max", True)
    assert monitored_metric([keep, stop], ROWS) == ("validation/accuracy", "min", False)
    assert monitored_metric([], ROWS) == ("validation/objective", "min", False)
    assert monitored_metric([], ROWS[:1]) == ("train/objective", "min", False)


def test_the_best_of_a_run_and_its_weights(tmp_path):
    result = trained(tmp_path / "run", descend.Checkpoint(keep_best="validation/objective", keep=1))
    rows = [row for row in result.history if row["mode"] == "validation"]
    assert rows[0]["objective"] < rows[1]["objective"]
    path = tmp_path / "run" / "checkpoints" / "step-3"
    assert result.best == Best("validation/objective", rows[0]["objective"], 1, 3, path)
    expected = safetensors.torch.load_file(path / "weights.safetensors")
    module = net().double()
    assert descend.load_weights(module, tmp_path / "run") == path
    assert all(torch.equal(tensor, expected[name].to(tensor.dtype)) for name, tensor in module.state_dict().items())
    for which in ("last", 12):
        assert descend.load_weights(module, tmp_path / "run", which).name == "step-12"
        assert torch.equal(module.state_dict()["0.weight"], result.weights["0.weight"].double())
    assert descend.load_weights(module, path) == path
    (tmp_path / "run" / "run.json").unlink()  # the metric is then the usual one
    assert descend.load_weights(module, tmp_path / "run") == path


def test_weights_that_were_restored_are_in_the_last_checkpoint(tmp_path):
    stop = descend.EarlyStopping(patience=1, restore_best=True)
    result = trained(tmp_path / "run", stop)
    assert (result.best.step, result.best.path.name, result.steps) == (3, "step-9", 9)
    module = net()
    descend.load_weights(module, tmp_path / "run")
    values = descend.evaluate(module, "cross_entropy", (X[:7], 1 - Y[:7]))
    assert values["objective"] == pytest.approx(result.best.value, rel=1e-6)


def test_what_cannot_be_loaded_is_said_with_what_is_there(tmp_path):
    trained(tmp_path / "run")
    with pytest.raises(ConfigurationError, match=r"step 3 .*keep_best='validation/objective'.*of steps 12"):
        descend.load_weights(net(), tmp_path / "run")
    with pytest.raises(ConfigurationError, match="no checkpoint of step 5; there are checkpoints of steps 12"):
        descend.load_weights(net(), tmp_path / "run", 5)
    with pytest.raises(ConfigurationError, match="there is no directory"):
        descend.load_weights(net(), tmp_path / "walk")
    with pytest.raises(ConfigurationError, match="'best', 'last' or the number of a step, got 'newest'"):
        descend.load_weights(net(), tmp_path / "run", "newest")
    with pytest.raises(ConfigurationError, match="has no checkpoints"):
        descend.load_weights(net(), tmp_path, "last")
    with pytest.raises(ConfigurationError, match=r"must be a torch\.nn\.Module, got a str"):
        descend.load_weights("net", tmp_path, "last")
    other = net(width=5)
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(StorageError, match=r"0\.weight"):
        descend.load_weights(other, tmp_path / "run", "last")
    assert all(torch.equal(before[name], tensor) for name, tensor in other.state_dict().items())


def test_a_damaged_record_of_the_metric_counts_as_none(tmp_path):
    trained(tmp_path / "run", descend.Checkpoint(every_epochs=1, keep_best="validation/accuracy", best="highest"))
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["monitored"] == {"metric": "validation/accuracy", "direction": "max", "restored": False}
    for wrong in (None, 3, [], {"metric": 5, "direction": "max", "restored": False}, {"metric": "a/b"}):
        (tmp_path / "run" / "run.json").write_text(json.dumps({**facts, "monitored": wrong}))
        assert descend.load_weights(net(), tmp_path / "run").name == "step-3"


def test_a_result_prints_a_few_lines(tmp_path):
    result = trained(tmp_path / "run", epochs=1)
    lines = repr(result).splitlines()
    assert lines[0].startswith("Result: finished 1 of 1 epochs; 3 steps")
    assert any(line.startswith("  validation objective ") and "accuracy" in line for line in lines)
    assert lines[-1] == f"  run_dir {tmp_path / 'run'}"
    assert len(lines) == 5


def free(rule):
    return lambda params: descend.optim.create(rule, params, lr=0.05)


@pytest.mark.parametrize("rule", ["ScheduleFreeSGD", "ScheduleFreeAdamW"])
def test_a_schedule_free_rule_leaves_and_loads_the_average_that_was_evaluated(tmp_path, rule):
    """The average is x = y + (1 − 1/β)(z − y) of the saved training point y and its z."""
    result = descend.fit(
        net(), "cross_entropy", (X, Y), valid=(X[:7], Y[:7]), optimizer=free(rule), batch_size=10,
        stop=descend.Epochs(3), run_dir=tmp_path / "run", verbose=False,
    )  # fmt: skip
    checkpoint = tmp_path / "run" / "checkpoints" / "step-9"
    trained_at = safetensors.torch.load_file(checkpoint / "weights.safetensors")
    state = safetensors.torch.load_file(checkpoint / "training" / "optimizer.safetensors")
    names = ("0.weight", "2.bias")
    z = {name: next(x for key, x in state.items() if name in key and key.endswith("z")) for name in names}
    again, training = net(), net()
    descend.load_weights(again, tmp_path / "run", "last")
    descend.load_weights(training, tmp_path / "run", "last", averaged=False)
    for name, zs in z.items():
        y = trained_at[name]
        torch.testing.assert_close(again.state_dict()[name], y + (1 - 1 / 0.9) * (zs - y))
        assert not torch.equal(again.state_dict()[name], y)
        torch.testing.assert_close(training.state_dict()[name], y, rtol=0, atol=0)
    torch.testing.assert_close(result.module.state_dict(), again.state_dict(), rtol=0, atol=0)
    (last,) = [row for row in result.history if row["mode"] == "validation" and row["step"] == 9]
    found = descend.evaluate(result.module, "cross_entropy", (X[:7], Y[:7]), batch_size=7)["objective"]
    assert found == pytest.approx(last["objective"])


def test_phases_are_evaluated_at_the_averages_of_their_rules():
    phase = descend.Phase("a", lambda module, x, y: nn.functional.cross_entropy(module(x), y), weights=["*"])
    result = descend.fit(
        net(), [phase], (X, Y), valid=(X[:7], Y[:7]), optimizer=free("ScheduleFreeSGD"), batch_size=10,
        stop=descend.Epochs(3), verbose=False,
    )  # fmt: skip
    (last,) = [row for row in result.history if row["mode"] == "validation" and row["step"] == 9]
    found = descend.evaluate(result.module, "cross_entropy", (X[:7], Y[:7]), batch_size=7)["objective"]
    assert found == pytest.approx(last["objective"])


DAMAGED = [3.5, {"optimizer": [1]}, {"callbacks": [1]}, {"optimizer": {"groups": 3}}, {"callbacks": {"EMA": 1}}]


@pytest.mark.parametrize("parts", DAMAGED, ids=str)
def test_a_state_that_was_not_written_here_is_a_damaged_checkpoint(tmp_path, monkeypatch, parts):
    """Who can write a file can write its checksum too."""
    trained(tmp_path / "run")
    monkeypatch.setattr(checkpoint, "read_plain_state", lambda path: {"parts": parts, "settings": {}})
    with pytest.raises(StorageError, match="step-12 holds a state that descend has not written"):
        descend.load_weights(net(), tmp_path / "run", "last")


@pytest.mark.parametrize("compiled", [(True, False), (False, True), (True, True)])
def test_weights_go_from_and_into_compiled_modules(tmp_path, compiled):
    made, other = net(), net()
    first, second = (
        torch.compile(m, backend="eager") if c else m for m, c in zip((made, other), compiled, strict=True)
    )
    trained(tmp_path / "run", module=first, epochs=1)
    with torch.no_grad():
        other[0].weight.zero_()
    descend.load_weights(second, tmp_path / "run", which="last")
    assert torch.equal(other[0].weight, made[0].weight)
    assert torch.equal(other[1].running_mean, made[1].running_mean)
