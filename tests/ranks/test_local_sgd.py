"""Two ranks of DiLoCo do what the paper's algorithm does with their own samples, and go on with the same bits."""

import pytest
import torch
from ranks.cases import network
from ranks.local import INNER, RULE
from ranks.start import start


def by_the_paper(samples):
    """Algorithm 1 of Douillard et al. 2023; samples: for each rank and step, (x, y)."""
    modules = [network() for _ in samples]
    inner = [INNER(module.parameters()) for module in modules]
    outer = {name: p.detach().clone() for name, p in modules[0].named_parameters()}
    speed = {name: torch.zeros_like(x) for name, x in outer.items()}
    for step in range(len(samples[0])):
        for module, optimizer, own in zip(modules, inner, samples, strict=True):
            optimizer.zero_grad()
            x, y = torch.tensor(own[step][0], dtype=torch.float64).view(-1, 3), torch.tensor(own[step][1])
            torch.nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
        if (step + 1) % RULE["steps"]:
            continue
        now = [dict(module.named_parameters()) for module in modules]
        for name, x in outer.items():
            delta = x - sum(own[name].detach() for own in now) / len(now)
            speed[name] = RULE["outer_momentum"] * speed[name] + delta
            x -= RULE["outer_lr"] * (delta + RULE["outer_momentum"] * speed[name])
            for own in now:
                own[name].data.copy_(x)
    return {name: sum(dict(m.named_parameters())[name].detach() for m in modules) / len(modules) for name in outer}


def check(ended):
    assert [rank.code for rank in ended] == [0] * len(ended), "\n".join(rank.err for rank in ended)
    for rank in ended:
        assert rank.left["weights"] == ended[0].left["weights"]


@pytest.mark.slow
def test_two_ranks_make_the_updates_of_the_paper_and_go_on_with_the_same_bits(tmp_path):
    whole = start(2, "local.py", tmp_path / "whole", "0")
    check(whole)
    for name, expected in by_the_paper([rank.left["samples"] for rank in whole]).items():
        found = torch.tensor(whole[0].left["weights"][name], dtype=torch.float64)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    stopped = start(2, "local.py", tmp_path / "stopped", "5")
    assert [rank.code for rank in stopped] == [75] * 2, "\n".join(rank.err for rank in stopped)
    went_on = start(2, "local.py", tmp_path / "stopped", "0")
    check(went_on)
    assert went_on[0].left["weights"] == whole[0].left["weights"]
    rows = [row for row in went_on[0].left["rows"] if row["mode"] != "restart"]
    assert rows == whole[0].left["rows"]
