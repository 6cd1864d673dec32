"""A parameter server and its workers: the delays that came about, replayed, give the same weights; what ends them."""

import re
import subprocess
import sys

import pytest
import torch
from ranks.served import RATE, SIZE, STRENGTH, data, network
from ranks.start import TESTS, begin, end, free_port, start, surroundings

from descend.runtime import newest_checkpoint, verify

# Only who hangs is waited for, and a busy host keeps a good rank from sending a heartbeat for seconds.
TIMEOUTS = {"sleeps": {"DESCEND_TIMEOUT_SECONDS": "10"}, "is suspended": {"DESCEND_TIMEOUT_SECONDS": "10"}}
STEPS = 7  # of an epoch


def replayed(updates, strength):
    """Weights after updates by late gradients: Algorithm 1 (strength 0) and 2 of Zheng et al. 2017."""
    module, (x, y) = network(), data()
    past = []
    for delay, number in updates:
        past.append([p.detach().clone() for p in module.parameters()])
        had, now = past[len(past) - 1 - delay], past[-1]
        with torch.no_grad():
            for p, w in zip(module.parameters(), had, strict=True):
                p.copy_(w)
        some = slice(SIZE * number, SIZE * (number + 1))
        gradients = torch.autograd.grad(nll(module, x[some], y[some]), list(module.parameters()))
        with torch.no_grad():
            for p, w, w_bak, g in zip(module.parameters(), now, had, gradients, strict=True):
                p.copy_(w - RATE * (g + strength * g * g * (w - w_bak)))
    return {name: p.detach() for name, p in module.named_parameters()}


def nll(module, x, y):
    return torch.nn.functional.cross_entropy(module(x), y)


def rows_of(ended):
    assert [rank.code for rank in ended] == [0] * len(ended), "\n".join(rank.err for rank in ended)
    assert all(rank.left == ended[0].left for rank in ended)
    return [row for row in ended[0].left["rows"] if "delay" in row]


def check(ended, epochs, strength):
    """Every mini-batch once an epoch, and the weights of the replay."""
    rows = rows_of(ended)
    numbers = [int(row["mini_batch"]) for row in rows]
    for epoch in range(epochs):
        assert sorted(numbers[epoch * STEPS : (epoch + 1) * STEPS]) == list(range(STEPS))
    expected = replayed([(int(row["delay"]), int(row["mini_batch"])) for row in rows], strength)
    for name, w in expected.items():
        found = torch.tensor(ended[0].left["weights"][name], dtype=torch.float64)
        torch.testing.assert_close(found, w, rtol=0, atol=1e-13)
    return rows


@pytest.mark.slow
def test_delays_come_about_and_are_compensated(tmp_path):
    ended = start(3, "served.py", tmp_path, "dcasgd", "3", "no", "9")
    rows = check(ended, 3, STRENGTH)
    assert {row["worker"] for row in rows} == {1, 2}
    assert max(row["delay"] for row in rows) >= 1
    assert "updates on average" in ended[0].out
    assert not ended[1].out
    whole = [row for row in ended[0].left["rows"] if "objective" in row and row["mode"] == "train"]
    assert [row["samples"] for row in whole] == [20, 20, 20]


@pytest.mark.slow
def test_late_gradients_of_three_workers(tmp_path):
    rows = check(start(4, "served.py", tmp_path, "sgd", "2", "no", "9"), 2, 0.0)
    assert {row["worker"] for row in rows} == {1, 2, 3}


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["sgd", "dcasgd"])
def test_one_worker_makes_the_updates_of_one_process(rule, tmp_path):
    """Batch norm, dropout and order of samples included; with one worker there is no delay."""
    two = start(2, "served.py", tmp_path / "two", rule, "2", "no", "9", LAYERS="1")
    assert {row["delay"] for row in rows_of(two)} == {0}
    one = start(1, "served.py", tmp_path / "one", "sgd", "2", "no", "9", LAYERS="1")
    assert two[0].left["weights"] == one[0].left["weights"]
    of_passes = [[row for row in ended[0].left["rows"] if "delay" not in row] for ended in (one, two)]
    assert of_passes[0] == of_passes[1]


@pytest.mark.slow
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_signal_ends_all_and_every_mini_batch_is_taken_once(rank, tmp_path):
    stopped = start(3, "served.py", tmp_path, "dcasgd", "2", "is asked to end", rank)
    assert [one.code for one in stopped] == [75] * 3, "\n".join(one.err for one in stopped)
    assert "stopped by SIGTERM" in stopped[0].err
    verify(newest_checkpoint(tmp_path / "run" / "checkpoints"))
    rows = rows_of(start(4, "served.py", tmp_path, "dcasgd", "2", "no", "9"))
    numbers = [int(row["mini_batch"]) for row in rows]
    assert sorted(numbers[:STEPS]) == sorted(numbers[STEPS:]) == list(range(STEPS))


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_is_refused_with_its_worker(tmp_path):
    ended = start(3, "served.py", tmp_path, "sgd", "2", "poisoned", "2")
    assert [rank.code for rank in ended] == [4] * 3, "\n".join(rank.err for rank in ended)
    assert "error: rank 2: epoch" in ended[0].err
    assert "the values of these samples are not finite" in ended[0].err
    assert not ended[1].err.strip()
    verify(newest_checkpoint(tmp_path / "run" / "checkpoints"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "rank", "codes", "words"),
    [
        ("raises", 2, [6, 6, 3], "rank 2 failed: sample"),
        ("raises", 0, [1, 6, 6], "rank 0 failed: ValueError: so it is"),
        ("is killed", 1, [6, -9, 6], "was killed or has crashed"),
        ("sleeps", 2, [6, 6, 6], "rank 2 hangs"),
        ("is suspended", 1, [6, -9, 6], "rank 1 has sent no heartbeat"),
    ],
)
def test_whatever_goes_wrong_ends_all(fault, rank, codes, words, tmp_path):
    more = TIMEOUTS.get(fault, {})
    ended = end(begin(3, "served.py", tmp_path, "sgd", "20", fault, str(rank), **more), tmp_path)
    assert [one.code for one in ended] == codes, "\n".join(one.err for one in ended)
    assert any(words in one.err for i, one in enumerate(ended) if i != rank), "\n".join(one.err for one in ended)


@pytest.mark.slow
def test_what_workers_cannot_do_is_refused_on_all_ranks(tmp_path):
    ended = start(2, "refused.py", tmp_path)
    assert [rank.code for rank in ended] == [2, 2], "\n".join(rank.err for rank in ended)
    for words in ("simulated delays on 2 ranks", "skip_bad", "callbacks that look at micro-batches"):
        assert words in ended[0].err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("about", "ranks", "said"),
    [("ParameterServer", 3, r"delays of \d+ gradients"), ("fully_shard", 2, "finished 2 of 2 epochs")],
)
def test_the_examples_of_the_page(about, ranks, said, tmp_path):
    page = (TESTS.parent / "docs" / "ranks.md").read_text()
    (script,) = [code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if about in code]
    (tmp_path / "script.py").write_text(script)
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, "script.py"],
            env=surroundings(rank, ranks, port, tmp_path),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    ended = end(processes, tmp_path)
    assert [rank.code for rank in ended] == [0] * ranks, "\n".join(rank.err for rank in ended)
    assert re.search(said, ended[0].out)
