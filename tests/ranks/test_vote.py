"""Ranks that vote on signs do what the paper's rule does with the gradients of their own samples, uncompressed."""

import pytest
import torch
from ranks.cases import network
from ranks.start import start
from ranks.vote import MOMENTUM, RATE


def by_the_paper(samples):
    """Algorithm 3 of Bernstein et al. 2018; samples: for each rank and step, (x, y)."""
    module = network()
    momenta = [{name: torch.zeros_like(p) for name, p in module.named_parameters()} for _ in samples]
    for step in range(len(samples[0])):
        votes = {name: torch.zeros_like(p) for name, p in module.named_parameters()}
        for rank, momentum in enumerate(momenta):
            x = torch.tensor(samples[rank][step][0], dtype=torch.float64).view(-1, 3)
            y = torch.tensor(samples[rank][step][1])
            module.zero_grad()
            if (y != -100).any():
                torch.nn.functional.cross_entropy(module(x), y).backward()
            for name, p in module.named_parameters():
                gradient = torch.zeros_like(p) if p.grad is None else p.grad
                momentum[name] = MOMENTUM * momentum[name] + (1 - MOMENTUM) * gradient
                votes[name] += momentum[name].sign()
        with torch.no_grad():
            for name, p in module.named_parameters():
                p -= RATE * votes[name].sign()
    return dict(module.named_parameters())


def check_votes(ranks):
    """All ranks have the parameters that the paper's rule gives."""
    expected = by_the_paper([left["samples"] for left in ranks])
    for left in ranks:
        assert left["weights"] == ranks[0]["weights"]
        for name, p in expected.items():
            w = torch.tensor(left["weights"][name], dtype=torch.float64)
            torch.testing.assert_close(w, p.detach(), rtol=0, atol=1e-12)


def check(ended):
    assert [rank.code for rank in ended] == [0] * len(ended), "\n".join(rank.err for rank in ended)
    for rank in ended:
        assert rank.left["weights"] == ended[0].left["weights"]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [3, 4])
def test_the_majority_decides(ranks, tmp_path):
    ended = start(ranks, "vote.py", tmp_path, "0")
    check(ended)
    check_votes([rank.left for rank in ended])


@pytest.mark.slow
def test_momenta_of_all_ranks_are_saved(tmp_path):
    whole = start(3, "vote.py", tmp_path / "whole", "0")
    stopped = start(3, "vote.py", tmp_path / "stopped", "3")
    assert [rank.code for rank in stopped] == [75] * 3, "\n".join(rank.err for rank in stopped)
    went_on = start(3, "vote.py", tmp_path / "stopped", "0")
    check(went_on)
    assert went_on[0].left["weights"] == whole[0].left["weights"]
    check(start(2, "vote.py", tmp_path / "stopped", "0"))  # of other ranks the mean continues
