"""The strategy of a single device, and what a description may leave out."""

import pytest
import torch
from toys import Regression, data, run_of

from descend.train.objective import Ratio
from descend.train.strategies.base import Strategy, StrategyDescription, divide, divisor_of, summed


@pytest.mark.parametrize(
    ("given", "expected"), [(0.0, 1.0), (3.0, 3.0), (torch.tensor(0.0), 1.0), (torch.tensor(2), 2)]
)
def test_nothing_that_counts_divides_by_one(given, expected):
    assert divisor_of(given) == expected


def test_ratios_are_summed_in_float64_and_gradients_divided_in_place():
    assert summed([Ratio(torch.tensor(0.1), 2.0), Ratio(torch.tensor(0.2), torch.tensor(3))]).tolist() == pytest.approx(
        [0.3, 5.0], rel=1e-7
    )
    p, frozen = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    p.grad = gradient = torch.tensor([2.0, 4.0])
    divide({"p": p, "frozen": frozen}, 2.0)
    assert gradient.tolist() == [1.0, 2.0]


def test_the_state_of_another_strategy_is_left_alone():
    class Kept(Strategy):
        def own_state(self):
            return {"a": 1}

        def load_own_state(self, state):
            self.loaded = state

    kept = Kept()
    kept.load_state_dict(Strategy().state_dict())
    kept.load_state_dict({"strategy": "Other", "state": {"a": 2}})
    assert not hasattr(kept, "loaded")
    kept.load_state_dict(kept.state_dict())
    assert kept.loaded == {"a": 1}


def test_a_description_without_a_strategy_of_its_own_has_the_usual_one():
    assert type(run_of(Regression(), data(), strategy=StrategyDescription()).strategy) is Strategy
