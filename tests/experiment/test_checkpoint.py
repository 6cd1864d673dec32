"""Checkpoints as the state of parts by name: what is saved comes back, and errors say what was changed."""

import copy
import dataclasses
import functools
import json
from pathlib import Path

import pytest
import torch
from toys import Regression, data, run_of

import descend
from descend.errors import StorageError
from descend.experiment import checkpoint as checkpoints
from descend.experiment.checkpoint import (
    LoadedCheckpoint,
    _parameter_of,
    capture,
    check_weights,
    load,
    restore,
    restore_weights,
)
from descend.runtime import save_checkpoint, unflatten
from descend.train import Mode
from descend.train.module_state import tensors_of
from descend.train.step import train_step

WHERE = Path("run/checkpoints/step-2")


def trained(steps=2, **settings):
    """A run with an optimizer that has momentum, after some steps."""
    run = run_of(Regression(), data(batch_size=4), **settings)
    for batch in list(run.data[Mode.TRAIN].epoch(0))[:steps]:
        train_step(run, batch)
    return run


def saved(run):
    found = capture(run)
    parts = copy.deepcopy(unflatten(found.state["parts"], found.optimizer))  # as if it had been on a disk
    weights = {name: w.detach().clone() for name, w in found.weights.items()}
    return LoadedCheckpoint(WHERE, weights, dict(found.state["settings"]), parts)


def same(a, b):
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def momenta(run):
    return {name: run.optimizer.state[p]["momentum_buffer"] for name, p in run.parameters.items()}


def test_a_snapshot_holds_every_part_by_its_name():
    run = trained()
    found = capture(run)
    assert set(found.state["parts"]) == set(run.stateful_parts())
    assert (found.step, found.state["random_seed"], found.trained) == (2, 0, {"weight", "bias"})
    run.parameters["bias"].requires_grad_(False)
    assert capture(run).trained == {"weight"}


def test_a_run_goes_on_where_the_checkpoint_was_taken():
    first, again = trained(), trained(0)
    restore(saved(first), again)
    same(tensors_of(again.task.module), tensors_of(first.task.module))
    same(momenta(again), momenta(first))
    assert again.state.step == 2
    for run in (first, again):
        train_step(run, list(run.data[Mode.TRAIN].epoch(0))[2])
    same(tensors_of(again.task.module), tensors_of(first.task.module))


def test_options_that_have_changed_stay_and_the_others_come_back():
    first, again = trained(), trained(0)
    first.optimizer.param_groups[0].update(lr=0.5, momentum=0.3)
    restore(saved(first), again, keep_options=("lr",))
    assert (again.optimizer.param_groups[0]["lr"], again.optimizer.param_groups[0]["momentum"]) == (0.1, 0.3)


def test_with_reset_optimizer_what_goes_with_it_starts_over():
    first, again = trained(), trained(0)
    first.state.samples_kept, first.state.algorithm = 8, {"kfac": {}}
    restore(saved(first), again, reset_optimizer=True)
    assert not again.optimizer.state
    assert again.state.algorithm == {}
    assert again.state.samples_kept == 0  # the gradients of these samples are gone
    assert again.state.step == 2
    same(tensors_of(again.task.module), tensors_of(first.task.module))


def test_without_reset_optimizer_samples_of_the_window_are_kept():
    first, again = trained(), trained(0)
    first.state.samples_kept = 8
    restore(saved(first), again)
    assert again.state.samples_kept == 8


def test_the_parts_say_which_of_them_start_over_with_the_optimizer():
    found = {name for name, part in trained(0).stateful_parts().items() if part.resets_with_optimizer}
    assert found == {"optimizer", "algorithm", "transforms"}


def test_a_part_that_the_checkpoint_does_not_have_is_named_before_anything_is_changed():
    first, again = trained(), trained(0)
    checkpoint, before = saved(first), {name: w.clone() for name, w in tensors_of(again.task.module).items()}
    del checkpoint.parts["callbacks"]
    with pytest.raises(StorageError, match=r"step-2 has no state of 'callbacks'.*nothing was changed"):
        restore(checkpoint, again)
    same(tensors_of(again.task.module), before)
    assert again.state.step == 0
    assert not again.optimizer.state


def test_a_part_that_starts_over_needs_no_state():
    first, again = trained(), trained(0)
    checkpoint = saved(first)
    del checkpoint.parts["optimizer"]
    restore(checkpoint, again, reset_optimizer=True)
    assert again.state.step == 2


def test_a_damaged_state_is_an_error_that_says_what_was_changed():
    first, again = trained(), trained(0)
    checkpoint = saved(first)
    del checkpoint.parts["stop"]["reason"]
    with pytest.raises(StorageError) as caught:
        restore(checkpoint, again)
    (text,) = caught.value.problems
    assert "a state of 'stop' that descend has not written (KeyError" in text
    assert "optimizer, train, algorithm had been loaded before it" in text
    assert "nothing was changed" not in text
    with pytest.raises(StorageError, match="no other part was loaded"):
        restore(saved_with(first, optimizer={"groups": [{}]}), trained(0))


def saved_with(run, **parts):
    checkpoint = saved(run)
    checkpoint.parts.update(parts)
    return checkpoint


def test_an_optimizer_state_without_groups_changes_nothing():
    with pytest.raises(StorageError, match="nothing was changed"):
        restore(saved_with(trained(), optimizer={}), trained(0))


def test_a_checkpoint_of_format_1_is_refused_with_the_remedies():
    checkpoint = saved(trained())
    checkpoint.parts.clear()
    with pytest.raises(StorageError, match=r"format 1.*nothing was changed.*descend 0\.1.*weights_only=True"):
        restore(checkpoint, trained(0))


def test_other_weights_are_refused_in_a_table():
    first, again = trained(), trained(0)
    checkpoint = saved(first)
    checkpoint.weights["more"] = torch.zeros(2)
    checkpoint.weights["weight"] = torch.zeros(4, 1, dtype=torch.float64)
    with pytest.raises(StorageError) as caught:
        check_weights(checkpoint, again)
    text = str(caught.value)
    assert "other weights than this model; nothing was changed" in text
    assert "(2,) float32" in text
    assert "nothing" in text.split("more", 1)[1]
    assert "bias" not in text
    with pytest.raises(StorageError, match="other weights"):
        restore(checkpoint, again)
    check_weights(saved(first), again)


def test_times_come_back_beside_the_state():
    first, again = trained(), trained(0)
    first.state.seconds = 7.0
    restore(saved(first), again, times={"seconds": 7.5})
    assert again.state.seconds == 7.5
    restore(saved(first), again)
    assert again.state.seconds == 0.0


def test_weights_alone_are_taken_where_they_fit():
    first, again = trained(), trained(0)
    checkpoint = saved(first)
    checkpoint.weights["bias"] = torch.zeros(3)
    bias = again.parameters["bias"].detach().clone()
    with pytest.warns(UserWarning, match="weights that are not taken over"):
        restore_weights(checkpoint, again)
    assert torch.equal(again.parameters["weight"], first.parameters["weight"])
    assert torch.equal(again.parameters["bias"], bias)
    assert again.state.step == 0
    checkpoint.weights["weight"] = checkpoint.weights["weight"].to(torch.complex128)
    with pytest.raises(StorageError, match="no weights that fit"):
        restore_weights(checkpoint, again)


def test_a_checkpoint_is_read_from_its_folder(tmp_path):
    first, again = trained(), trained(0)
    snapshot = capture(first)
    folder = save_checkpoint(tmp_path, snapshot.step, snapshot.weights, snapshot.optimizer, snapshot.state)
    found = load(folder)
    restore(found, again)
    same(tensors_of(again.task.module), tensors_of(first.task.module))
    same(momenta(again), momenta(first))


def written(run, folder):
    snapshot = capture(run)
    return save_checkpoint(folder, snapshot.step, snapshot.weights, snapshot.optimizer, snapshot.state)


@pytest.mark.parametrize("known", [False, True])
def test_a_damaged_file_is_found_before_anything_is_read(tmp_path, known):
    run = trained()
    folder = written(run, tmp_path)
    file = folder / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(StorageError, match=r"weights\.safetensors"):
        load(folder, run if known else None)


@pytest.fixture
def mesh(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        yield torch.distributed.init_device_mesh("cpu", (1,))
    finally:
        torch.distributed.destroy_process_group()


def test_what_is_sharded_in_the_run_is_read_as_shards(tmp_path, mesh, monkeypatch):
    """Those of its shape, and the optimizer's state with them; `verify` runs on rank zero alone."""
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    run = trained()
    folder = written(run, tmp_path / "run")
    sharded = torch.nn.Parameter(distribute_tensor(torch.zeros(1, 3, dtype=torch.float64), mesh, [Shard(1)]))
    run.task.module.weight = sharded
    verified_on_rank_zero = []

    def on_rank_zero(self, act):
        verified_on_rank_zero.append(act())

    monkeypatch.setattr(type(run.communicator), "on_rank_zero", on_rank_zero)
    found = load(folder, run)
    assert len(verified_on_rank_zero) == 1
    momentum = found.parts["optimizer"]["weights"]["weight"]["momentum_buffer"]
    for tensor in (found.weights["weight"], momentum):
        assert isinstance(tensor, DTensor)
        assert tensor.placements == (Shard(1),)
    whole = load(folder)
    assert torch.equal(found.weights["weight"].full_tensor(), whole.weights["weight"])
    assert not isinstance(found.weights["bias"], DTensor)
    run.task.module.weight = torch.nn.Parameter(distribute_tensor(torch.zeros(1, 7), mesh, [Shard(1)]))
    assert not isinstance(load(folder, run).weights["weight"], DTensor)
    (folder / "weights.safetensors").write_bytes(b"damaged")
    with pytest.raises(StorageError, match=r"weights\.safetensors"):
        load(folder, run)


@pytest.mark.parametrize(
    ("path", "parameter"),
    [
        ("optimizer/weights/a/momentum_buffer", "a"),
        ("optimizer/weights/a%2Fb/m/0", "a/b"),
        ("optimizer/weights/a", ""),
        ("optimizer/groups/a/m", ""),
        ("transforms/weights/a/m", ""),
        ("m", ""),
    ],
)
def test_an_entry_of_the_optimizer_is_known_by_its_parameter(path, parameter):
    assert _parameter_of(path) == parameter


@pytest.mark.parametrize("parts", [["optimizer"], {"optimizer": 3}, {"optimizer": {}, "train": [1]}])
def test_parts_of_another_form_are_an_error_of_the_checkpoint(tmp_path, monkeypatch, parts):
    folder = written(trained(), tmp_path)
    monkeypatch.setattr(checkpoints, "unflatten", lambda plain, tensors: parts)
    with pytest.raises(StorageError, match="parts must be states by name"):
        load(folder)


def test_a_strategy_is_notified_once_all_is_back():
    first, again = trained(), trained(0)
    seen = []
    again.strategy.restored = lambda: seen.append(again.parameters["weight"].detach().clone())
    restore(saved(first), again)
    (weight,) = seen
    assert torch.equal(weight, first.parameters["weight"])


ROW = {"mode": "train", "epoch": 1, "step": 2, "samples": 8, "objective": float("nan")}


def test_rows_of_an_older_checkpoint_have_their_length_back():
    first, again = trained(), trained(0)
    checkpoint = saved(first)
    checkpoint.parts["train"]["history"] = [ROW]  # they stood in it until format 3
    restore(checkpoint, again, row_seconds={("train", 1, 2): 2.5})
    assert again.state.history[-1]["seconds"] == 2.5


@pytest.mark.parametrize("place", ["of the run", "beside a copy"])
def test_rows_come_from_the_file_that_goes_with_a_checkpoint(tmp_path, place):
    first, again = trained(), trained(0)
    first.state.history.append({**ROW, "seconds": 1.5})
    at = dataclasses.replace(saved(first), checkpoint=tmp_path / "run" / "checkpoints" / "step-2")
    at.checkpoint.mkdir(parents=True)
    later = [{"mode": "restart", "epoch": 1, "step": 0}, first.state.history[0], {**ROW, "step": 3}]
    file = (at.checkpoint if place == "beside a copy" else tmp_path / "run") / "metrics.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in later))
    restore(at, again)
    assert [(row["step"], row["seconds"]) for row in again.state.history] == [(2, 1.5)]


@pytest.mark.parametrize("content", [None, "", "text\n", '{"mode": "train", "epoch": 1, "step": 2, "objective": 1}\n'])
def test_without_its_rows_a_run_goes_on_and_one_line_says_so(tmp_path, content):
    first, again = trained(), trained(0)
    first.state.history.append(dict(ROW))
    at = dataclasses.replace(saved(first), checkpoint=tmp_path / "run" / "checkpoints" / "step-2")
    (tmp_path / "run").mkdir()
    if content is not None:
        (tmp_path / "run" / "metrics.jsonl").write_text(content)
    with pytest.warns(UserWarning, match="no longer holds the 1 rows that belong to step-2") as said:
        restore(at, again)
    assert len(said) == 1
    assert again.state.step == 2
    assert len(again.state.history) == bool(content and "train" in content)


def test_weights_that_are_not_taken_are_in_a_table_and_those_that_are_taken_are_not():
    first, again = trained(), trained(0)
    checkpoint = saved(first)
    checkpoint.weights["bias"] = torch.zeros(3)
    with pytest.warns(UserWarning, match="weights that are not taken over") as warned:
        restore_weights(checkpoint, again)
    assert "bias" in str(warned[0].message)
    assert "weight " not in str(warned[0].message).split(":", 1)[1]


class _Growing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, output, target):
        self.calls += 1
        return self.calls * (output - target).square().mean()


@pytest.mark.parametrize("first", [_Growing, torch.nn.MSELoss])
def test_a_loss_with_buffers_continues_where_it_was_or_begins(tmp_path, first):
    """Steps weighted by 1, 2, 3, 4, also over a restart; after another loss the run goes on with 1."""

    def trained(loss, steps, **more):
        torch.manual_seed(0)
        module = torch.nn.Linear(3, 1).double()
        data = torch.ones(4, 3, dtype=torch.float64), torch.zeros(4, 1, dtype=torch.float64)
        optimizer = functools.partial(torch.optim.SGD, lr=0.01)
        stop = descend.Steps(steps)
        descend.fit(module, loss, data, optimizer=optimizer, batch_size=4, stop=stop, verbose=False, **more)
        return module.weight.detach()

    trained(first(), 2, run_dir=tmp_path / "run")
    loss = _Growing()
    found = trained(loss, 4, run_dir=tmp_path / "run", resume=True)
    assert float(loss.calls) == (4 if first is _Growing else 2)
    if first is _Growing:
        assert torch.equal(found, trained(_Growing(), 4))
