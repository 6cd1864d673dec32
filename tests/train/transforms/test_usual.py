"""Clipping against torch's own functions, on whole and sparse gradients and on shards."""

import pytest
import torch
from toys import Regression, data, run_of

from descend.errors import ConfigurationError
from descend.train.strategies.base import Strategy, joint_norm
from descend.train.transforms.usual import Clip


def clipped(clip, gradients, strategy=None):
    run = run_of(Regression(), data())
    run.strategy = strategy or Strategy()
    run.strategy.parameters = {
        str(i): torch.nn.Parameter(torch.zeros_like(g.to_dense())) for i, g in enumerate(gradients)
    }
    for p, g in zip(run.strategy.parameters.values(), gradients, strict=True):
        p.grad = g.clone()
    clip.setup(run)
    clip(None)
    return [p.grad.to_dense() for p in run.strategy.parameters.values()]


G = [torch.tensor([3.0, -4.0]), torch.tensor([[0.1, 0.2]])]


def test_no_bound_changes_no_bit():
    assert all(torch.equal(a, b) for a, b in zip(clipped(Clip(), G), G, strict=True))


def test_bounds_on_elements_on_each_gradient_and_on_all():
    assert torch.equal(clipped(Clip(value=1.0), G)[0], torch.tensor([1.0, -1.0]))
    one = clipped(Clip(norm=1.0), G)
    torch.testing.assert_close(one[0], G[0] / 5, rtol=1e-5, atol=0)
    assert torch.equal(one[1], G[1])
    total = torch.linalg.vector_norm(torch.cat([g.reshape(-1) for g in G]))
    for found, g in zip(clipped(Clip(global_norm=0.5), G), G, strict=True):
        torch.testing.assert_close(found, g * 0.5 / total, rtol=1e-5, atol=0)


def test_rows_that_are_given_twice_are_one_row():
    twice = torch.sparse_coo_tensor([[0, 0]], torch.tensor([[3.0, 4.0], [3.0, 4.0]]), (3, 2))
    (found,) = clipped(Clip(norm=1.0), [twice])
    torch.testing.assert_close(found[0], torch.tensor([0.6, 0.8]), rtol=1e-5, atol=0)


def test_norms_of_shards_come_from_the_strategy():
    class Sharded(Strategy):
        is_sharded = True

        def gradient_norms(self, parameters):
            return [torch.tensor(10.0) for _ in parameters], torch.tensor(20.0)  # as though other ranks had the rest

    found = clipped(Clip(norm=1.0), G, Sharded())
    torch.testing.assert_close(found[0], G[0] / 10, rtol=1e-5, atol=0)


@pytest.mark.parametrize("bound", [0, -1.0, float("nan"), "1"])
def test_what_is_no_bound_is_refused(bound):
    with pytest.raises(ConfigurationError, match="clip_global_norm must be a number above 0"):
        Clip(global_norm=bound)


class Shards(Strategy):
    """As though another rank had shards of the same norms."""

    is_sharded = True

    def gradient_norms(self, parameters):
        norms = [p.grad.norm() * 2**0.5 for p in parameters.values()]
        return norms, joint_norm(norms)


def test_the_norm_of_all_shards_is_over_all_ranks():
    total = 2**0.5 * torch.linalg.vector_norm(torch.cat([g.reshape(-1) for g in G]))
    for found, g in zip(clipped(Clip(global_norm=0.5), G, Shards()), G, strict=True):
        torch.testing.assert_close(found, g * 0.5 / total, rtol=1e-5, atol=0)
    assert all(torch.equal(a, b) for a, b in zip(clipped(Clip(global_norm=100.0), G, Shards()), G, strict=True))


def test_dense_gradients_beside_a_sparse_one_are_bounded_too():
    rows = torch.sparse_coo_tensor([[1]], torch.tensor([[6.0, 8.0]]), (3, 2))
    sparse, dense = clipped(Clip(norm=1.0), [rows, G[0]])
    torch.testing.assert_close(sparse[1], torch.tensor([0.6, 0.8]), rtol=1e-5, atol=0)
    torch.testing.assert_close(dense, G[0] / 5, rtol=1e-5, atol=0)


def test_parameters_without_a_gradient_take_no_part():
    run = run_of(Regression(), data())
    run.strategy = Shards()
    run.strategy.parameters = {"unused": torch.nn.Parameter(torch.ones(2))}
    clip = Clip(value=1.0, norm=1.0, global_norm=1.0)
    clip.setup(run)
    assert clip(None) is None
    assert run.strategy.parameters["unused"].grad is None
