"""The optimizer under examination."""

import math

import pytest
import torch
from faulty_optimizers import MatricesAlone, RestsAtFirst, Toy

from descend.conformance.candidate import Candidate, CandidateRun, OptionRefused, draw, first_line, gap


class Noisy(Toy):
    def move(self, p, g, group, i):
        p.sub_(group["lr"] * (g + torch.randn_like(p)))


def test_draws_depend_on_the_seed_alone():
    assert torch.equal(draw((2, 3), 5), draw((2, 3), 5))
    assert not torch.equal(draw((2, 3), 5), draw((2, 3), 6))
    assert torch.equal(draw((4,), 1, torch.float32), draw((4,), 1).float())


def test_the_gap_is_relative_to_the_wanted_displacement():
    start, wanted = [torch.zeros(2)], [torch.tensor([3.0, 4.0])]
    assert gap([torch.tensor([3.0, 4.5])], wanted, start) == pytest.approx(0.1)
    assert gap(wanted, wanted, start) == 0
    assert gap(wanted, start, start) == math.inf
    assert gap([torch.tensor([math.nan, 0.0])], wanted, start) == math.inf


def test_options_are_defaults_arguments_and_the_group():
    candidate = Candidate(torch.optim.Adam, {"lr": 0.5})
    assert candidate.lr == 0.5
    assert candidate.options["betas"] == (0.9, 0.999)
    assert candidate.title == "Adam(lr=0.5)"
    assert candidate.takes_decay
    assert candidate.with_decay() == {"weight_decay": 0.01}
    assert Candidate(torch.optim.Rprop, {}).with_decay() == {}


def test_a_refused_option_keeps_its_first_line():
    with pytest.raises(OptionRefused, match=r"ValueError: Invalid learning rate: -1\.0"):
        Candidate(torch.optim.Adam, {"lr": -1.0}).over([torch.nn.Parameter(torch.ones(2))])
    assert first_line(ValueError("one\ntwo")) == "one"
    assert first_line(ValueError()) == "no message"


def test_shapes_are_matrices_where_nothing_else_is_taken():
    assert Candidate(Toy, {}).shapes == ((4, 3), (3, 2, 2), (5,))
    assert Candidate(MatricesAlone, {}).shapes == ((4, 3), (3, 4))


def test_noise_is_found_and_leaves_the_callers_generator_alone():
    before = torch.random.get_rng_state()
    assert Candidate(Noisy, {}).noisy
    assert not Candidate(Toy, {}).noisy
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_run_repeats_its_noise():
    ends = []
    for _ in range(2):
        run = CandidateRun(Candidate(Noisy, {}), [torch.zeros(3)])
        run.step(torch.ones(3))
        run.step(torch.ones(3))
        ends.append(run.values[0])
    assert torch.equal(*ends)


def test_a_rule_that_rests_moves_first_in_its_eleventh_step():
    assert Candidate(RestsAtFirst, {}).first_move == 11
    assert Candidate(Toy, {}).first_move == 1
    assert Candidate(Toy, {"lr": 0.0}).first_move is None


def test_a_run_copies_its_weights_and_sets_rates():
    start = torch.ones(2)
    run = CandidateRun(Candidate(Toy, {}), [start])
    run.set_rate(0.5)
    run.step(torch.tensor([1.0, 2.0]))
    assert run.values[0].tolist() == [0.5, 0.0]
    assert start.tolist() == [1.0, 1.0]
    run.step(None)
    assert run.values[0].tolist() == [0.5, 0.0]
    assert run.finite
