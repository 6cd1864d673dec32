"""Fully sharded data parallelism on one process.

In most tests the group has one rank, so that each shard is a whole parameter; in some two ranks are threads. Ranks that
are processes are in tests/ranks/test_wrapped.py.
"""

import copy
import functools
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from thread_ranks import on_torch_ranks
from torch import nn
from torch.distributed import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from toys import Regression, run_of

from descend.data import ArrayReader, Batch, Batches
from descend.errors import Unsupported
from descend.runtime import Communicator
from descend.runtime.dtensor import fsdp_modules, is_sharded
from descend.train.strategies.fsdp import FSDP, require_fsdp, reshard

DRAW = np.random.default_rng(0)
X, Y = DRAW.normal(size=(6, 3)), DRAW.normal(size=(6, 1))


@pytest.fixture
def mesh(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        torch.distributed.destroy_process_group()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def sharded(mesh):
    module = network()
    fully_shard(module[0], mesh=mesh)
    return fully_shard(module, mesh=mesh)


def test_submodules_that_were_sharded_are_found_and_no_others(mesh):
    module = sharded(mesh)
    assert fsdp_modules(module) == [module, module[0]]
    assert fsdp_modules(network()) == []


def test_gathered_parameters_are_freed(mesh):
    module = sharded(mesh)
    module[0].unshard()
    assert not is_sharded(module[0].weight)
    reshard(module)
    assert is_sharded(module[0].weight)


def test_parameters_of_fully_shard_and_plain_ones_are_accepted(mesh):
    require_fsdp(sharded(mesh))
    require_fsdp(network())


def test_a_mesh_of_replicas_and_shards_is_accepted_in_this_order_alone(mesh):
    module = network()
    fully_shard(module, mesh=init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard")))
    require_fsdp(module)
    p = module[2].weight
    two = init_device_mesh("cpu", (1, 1), mesh_dim_names=("shard", "replicate"))
    module[2].weight = nn.Parameter(distribute_tensor(p.full_tensor().detach(), two, [Shard(0), Replicate()]))
    with pytest.raises(Unsupported, match=r"'2\.weight' .* on a mesh of \(1, 1\) ranks"):
        require_fsdp(module)


@pytest.mark.parametrize("placement", [Shard(0), Replicate()])
def test_other_dtensors_are_refused_by_name(mesh, placement):
    module = network()
    module[2].weight = nn.Parameter(distribute_tensor(module[2].weight.detach(), mesh, [placement]))
    with pytest.raises(Unsupported, match=r"'2\.weight' of Sequential is a DTensor .* on a mesh of \(1,\) ranks"):
        require_fsdp(module)


class Sharded(Regression):
    def __init__(self, module):
        super().__init__()
        self.module = module


@pytest.fixture
def made(mesh):
    task = Sharded(sharded(mesh))
    optimizer = torch.optim.SGD(task.module.parameters(), lr=0.1)
    reader = ArrayReader({"x": X, "y": Y})
    return run_of(task, Batches(reader, 6, seed=0, shuffle=False), optimizer=optimizer, micro_batch_size=6)


def plain_gradients():
    module = network()
    nn.functional.mse_loss(module(torch.from_numpy(X)), torch.from_numpy(Y), reduction="sum").backward()
    return {name: p.grad for name, p in module.named_parameters()}


def test_a_sharded_module_chooses_this_strategy_and_steps_are_not_repeated(made):
    assert type(made.strategy) is FSDP
    assert not made.strategy.can_repeat_step
    assert not made.micro_batch_size.adaptive


def backward(run):
    """The gradients of the sum over all samples, this rank's shards of them."""
    error = run.task.module(torch.from_numpy(X)) - torch.from_numpy(Y)
    with run.strategy.communicating_backward():
        assert run.communicator.status.waiting == "gradients of a sharded module"
        assert run.communicator.status.begun() >= 0
        error.square().sum().backward()


def test_gradients_are_sums_in_local_memory(made):
    with made.strategy.running():
        backward(made)
        shards = made.strategy.local_parameters()
        for name, grad in plain_gradients().items():
            assert not is_sharded(shards[name])
            torch.testing.assert_close(shards[name].grad, grad)
            shards[name].grad.mul_(2.0)
        for name, p in made.task.module.named_parameters():
            torch.testing.assert_close(p.grad.full_tensor(), 2 * plain_gradients()[name])
    assert (made.communicator.status.waiting, made.communicator.status.begun) == (None, None)


def test_a_parameter_that_is_not_sharded_stands_for_itself(mesh):
    module = network()
    fully_shard(module[0], mesh=mesh)
    run = run_of(Sharded(module), Batches(ArrayReader({"x": X, "y": Y}), 6, seed=0, shuffle=False))
    shards = run.strategy.local_parameters()  # before there are gradients
    assert shards["2.weight"] is module[2].weight
    assert shards["0.weight"].grad is None
    with run.strategy.running():
        backward(run)
        found = run.strategy.local_parameters()
        assert found["2.weight"].grad is module[2].weight.grad
        torch.testing.assert_close(found["0.weight"].grad, plain_gradients()["0.weight"])


def test_norms_are_those_of_whole_gradients(made):
    with made.strategy.running():
        backward(made)
        found, total = made.strategy.gradient_norms(made.strategy.local_parameters())
    for norm, grad in zip(found, plain_gradients().values(), strict=True):
        assert float(norm) == pytest.approx(float(np.linalg.norm(grad.numpy())))
    assert float(total) == pytest.approx(sum(float(grad.square().sum()) for grad in plain_gradients().values()) ** 0.5)


def test_norms_are_sums_over_the_ranks_that_hold_shards(made, monkeypatch):
    """As on two ranks with equal shards; the second one of each pair holds the same elements."""
    monkeypatch.setattr(made.strategy, "_communicator", SimpleNamespace(all_reduce=lambda sums: 2 * sums))
    monkeypatch.setattr(made.strategy, "_copies", {"0.weight": 1, "0.bias": 2, "2.weight": 1})
    gradients = {"0.weight": [3.0, 4.0], "0.bias": [6.0, 8.0], "2.weight": [2.0], "2.bias": [7.0], "unused": None}
    stand_ins = {name: torch.zeros(len(grad or [])) for name, grad in gradients.items()}
    for name, grad in gradients.items():
        stand_ins[name].grad = None if grad is None else torch.tensor(grad)
    norms = [float(norm) for norm in made.strategy.gradient_norms(stand_ins)[0]]
    assert norms == pytest.approx([50**0.5, 10.0, 8**0.5, 7.0])  # the last is whole on each rank


@pytest.mark.parametrize("names", [("shard",), ("replicate", "shard")])
def test_what_was_set_on_the_module_does_not_change_sums(mesh, names):
    """Each backward pass of a step reduces gradients, and divides them by nothing."""
    module = network()
    fully_shard(module, mesh=init_device_mesh("cpu", (1,) * len(names), mesh_dim_names=names))
    run = run_of(Sharded(module), Batches(ArrayReader({"x": X, "y": Y}), 6, seed=0, shuffle=False))
    module.set_requires_gradient_sync(False)
    module.set_requires_all_reduce(False)
    module.set_gradient_divide_factor(4.0)
    with run.strategy.running():
        backward(run)
        for name, p in module.named_parameters():
            torch.testing.assert_close(p.grad.full_tensor(), plain_gradients()[name])


def test_a_wait_is_noted_before_parameters_are_gathered_and_ends_after(made):
    status, seen = made.communicator.status, []
    first, begin = made.task.module[0], status.begin_wait

    def begins(what):
        seen.append(is_sharded(first.weight))
        begin(what)

    status.begin_wait = begins
    first.register_forward_pre_hook(lambda part, given: seen.append((is_sharded(first.weight), status.waiting)))
    with made.strategy.running():
        made.task.module(torch.from_numpy(X))
    assert seen == [True, True, (False, "weights of a sharded module")]
    assert status.waiting is None


def test_forward_passes_say_that_they_wait_and_hooks_are_removed(made):
    status, waits = made.communicator.status, []
    status.begin_wait = functools.partial(waits.append)
    with made.strategy.running():
        made.task.module(torch.from_numpy(X))
    assert waits == ["weights of a sharded module"] * 2
    assert status.waiting is None
    made.task.module(torch.from_numpy(X))
    assert len(waits) == 2


def test_after_an_evaluation_parameters_are_shards_again(made):
    with made.strategy.evaluating(), torch.no_grad():
        made.task.module[0].unshard()
    assert is_sharded(made.task.module[0].weight)


def failing_backward(run):
    with run.strategy.running():
        run.task.module[0].unshard()
        with run.strategy.communicating_backward():
            raise ZeroDivisionError


def test_an_error_ends_the_wait_and_frees_parameters(made):
    with pytest.raises(ZeroDivisionError):
        failing_backward(made)
    assert made.communicator.status.waiting is None
    assert is_sharded(made.task.module[0].weight)


def test_the_rank_of_a_gradient_that_is_not_finite_is_unknown(made):
    batch = Batch({"x": X, "y": Y}, np.arange(6), 0, 0, 6, True)
    assert made.strategy.diagnose(batch) == [
        "the samples of all ranks are finite; FSDP2 sums gradients, so the rank of origin is unknown"
    ]
    wrong = copy.deepcopy(batch)
    wrong.fields["x"][2, 0] = np.nan
    [line] = made.strategy.diagnose(wrong)
    assert line.startswith("rank 0: ")
    assert "sample 2 (field 'x')" in line


def test_names_of_one_rank_stay_as_they_are(made):
    assert made.strategy.union(["b", "a", "b"]) == ["b", "a"]
    assert made.communicator.world_size == Communicator().world_size == 1


BUILDING = threading.Lock()  # torch's generator belongs to all threads


def rank_of_two(rank, names=("shard",), **settings):
    """A run of rank `rank` of two."""
    mesh = init_device_mesh("cpu", (2,) if len(names) == 1 else (2, 1), mesh_dim_names=names)
    with BUILDING:
        module = network()
    fully_shard(module[0], mesh=mesh)
    batches = Batches(ArrayReader({"x": X, "y": Y}), 6, seed=0, shuffle=False)
    return run_of(Sharded(fully_shard(module, mesh=mesh)), batches, communicator=Communicator(rank, 2), **settings)


def half_backward(run, rank):
    """The gradients of the sum over one half of the samples."""
    mine = slice(3 * rank, 3 * rank + 3)
    error = run.task.module(torch.from_numpy(X[mine])) - torch.from_numpy(Y[mine])
    with run.strategy.communicating_backward():
        error.square().sum().backward()


@pytest.mark.parametrize("names", [("shard",), ("replicate", "shard")])
@pytest.mark.parametrize("left", [None, 4.0])
def test_gradients_of_two_ranks_are_sums_within_a_run_and_means_after_it(names, left):
    """Whatever the module was set to before."""

    def act(rank):
        run = rank_of_two(rank, names)
        module = run.task.module
        if left is not None:
            module.set_gradient_divide_factor(left)
            module.set_requires_gradient_sync(False)
            module.set_requires_all_reduce(False)
        with run.strategy.running():
            half_backward(run, rank)
            sums = {name: p.grad.full_tensor() for name, p in module.named_parameters()}
            norms, total = run.strategy.gradient_norms(run.strategy.local_parameters())
        module.zero_grad()
        half_backward(run, rank)
        return sums, norms, total, {name: p.grad.full_tensor() for name, p in module.named_parameters()}

    for sums, norms, total, means in on_torch_ranks(2, act):
        assert float(total) == pytest.approx(sum(float(p.square().sum()) for p in plain_gradients().values()) ** 0.5)
        for norm, (name, whole) in zip(norms, plain_gradients().items(), strict=True):
            torch.testing.assert_close(sums[name], whole)
            torch.testing.assert_close(means[name], whole / 2)
            assert float(norm) == pytest.approx(float(whole.norm()))


def test_names_of_two_ranks_are_joined():
    found = on_torch_ranks(2, lambda rank: rank_of_two(rank).strategy.union([["b", "a"], ["c", "a"]][rank]))
    assert found == [["b", "a", "c"]] * 2


def test_each_of_two_ranks_says_whether_its_samples_are_finite():
    """All know of all; the second rank has a sample that is not."""

    def act(rank):
        x = X.copy()
        x[4, 1] = [0.0, np.inf][rank]
        return rank_of_two(rank).strategy.diagnose(Batch({"x": x, "y": Y}, np.arange(6), 0, 0, 6, True))

    for [line] in on_torch_ranks(2, act):
        assert line.startswith("rank 1: ")
        assert "sample 4 (field 'x')" in line


@pytest.mark.parametrize("training", [True, False])
def test_a_rank_with_fewer_samples_gathers_parameters_as_often_and_adds_nothing(training):
    """The first rank has three samples, the second one; in a backward pass too they would wait for each other."""

    def act(rank):
        run = rank_of_two(rank, micro_batch_size=1)
        module, passes = run.task.module, []
        module.register_forward_pre_hook(lambda *_: passes.append(module.training))
        ids = np.arange(3) if rank == 0 else np.arange(3, 4)
        batch = Batch({"x": X[ids], "y": Y[ids]}, ids, 0, 0, 4, True)
        with run.strategy.running():
            for part in run.strategy.micro_batches(batch, training):
                objective = run.task.losses(part).objective.numerator
                if training:
                    with run.strategy.communicating_backward():
                        objective.backward()
            return len(passes), [p.grad.full_tensor() for p in module.parameters() if p.grad is not None]

    whole = network()
    error = whole(torch.from_numpy(X[:4])) - torch.from_numpy(Y[:4])
    error.square().sum().backward()
    for passes, grads in on_torch_ranks(2, act):
        assert passes == 3
        assert len(grads) == (4 if training else 0)
        for found, p in zip(grads, whole.parameters(), strict=False):
            torch.testing.assert_close(found, p.grad)
