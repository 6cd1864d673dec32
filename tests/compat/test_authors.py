"""Options of authors' code that are not supported are refused by name, and the others mean what they mean there."""

from typing import Any

import pytest
import torch

from descend.compat import from_library
from descend.errors import RuleError, Unsupported


def params() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.ones(2))]


@pytest.mark.parametrize(
    ("source", "name", "options", "message"),
    [
        ("sail-sg/Adan", "Adan", {"max_grad_norm": 1.0}, r"max_grad_norm=1\.0 changes all gradients"),
        ("iShohei220/adopt", "ADOPT", {"clip_lambda": lambda step: 1.0}, "clip_lambda must be None or step"),
        ("AGI-Arena/MARS", "MARS", {"is_approx": False}, "is_approx=False needs the gradient of the next samples"),
        ("AGI-Arena/MARS", "MARS", {"mars_type": "mars-shampoo"}, "mars_type must be .* got 'mars-shampoo'"),
        ("AGI-Arena/MARS", "MARS_M", {}, "it is Muon on MARS's gradient"),
        ("lucidrains/lion-pytorch", "Lion", {"lr": 1e-4}, "two classes Lion"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(source: str, name: str, options: dict[str, Any], message: str):
    with pytest.raises(Unsupported, match=message):
        from_library(source, name, params(), **options)


def test_the_authors_bound__is_theirs():
    made: Any = from_library("iShohei220/adopt", "ADOPT", params(), clip_lambda=lambda step: step**0.25)
    assert made.param_groups[0]["clip"] is True


def test_an_unknown_option_is_an_error():
    with pytest.raises(RuleError, match=r"AdEMAMix has no argument 'beta4'"):
        from_library("apple/ml-ademamix", "AdEMAMix", params(), beta4=0.9)


def test_vectors_go_under_adamw_with_a_rate_of_their_own_in_mars():
    made: Any = from_library("AGI-Arena/MARS", "MARS", params(), lr=0.01, lr_1d=0.002, weight_decay=0.1)
    matrix, vector = made.param_groups
    assert (type(matrix["rule"]).__name__, type(vector["rule"]).__name__) == ("MARS", "AdamW")
    assert (matrix["weight_decay"], vector["weight_decay"], vector["lr_mult"]) == (0.1, 0.1, pytest.approx(0.2))
