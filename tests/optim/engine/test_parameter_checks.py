"""Which parameters may be trained, and that each is trained once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from descend.errors import RuleError
from descend.optim.engine.parameter_checks import check, is_dense, unpack


def refused(*params: Any) -> str:
    names = [f"w{i}" for i in range(len(params))]
    with pytest.raises(RuleError) as caught:
        check([{"params": list(params), "param_names": names}], [names], "Adam")
    return str(caught.value)


def test_groups_are_unpacked_with_their_names() -> None:
    p, q = torch.zeros(1), torch.zeros(1)
    assert unpack({"params": p, "lr": 1}, "g") == {"params": [p], "lr": 1}
    named = unpack({"params": (pair for pair in [("a", p), ("b", q)])}, "g")
    assert named["param_names"] == ["a", "b"]
    assert all(x is y for x, y in zip(named["params"], [p, q], strict=True))


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ({"param": []}, "needs the key 'params' and has 'param'"),
        (torch.zeros(2), "must be a dict as the groups before it are, got a tensor"),
        ({"params": {"a": torch.zeros(1)}}, "params is a dict; give its items"),
        ({"params": "ab"}, "params must be a list of weights"),
        ({"params": [("a", torch.zeros(1), 3)]}, "weights 0 must be a tensor, or its name and the tensor"),
        ({"params": [(torch.zeros(1), "a")]}, "weights 0 must be a tensor, or its name and the tensor"),
        ({"params": {torch.zeros(1)}}, "params is a set, whose order changes"),
        ({"params": [("a", torch.zeros(1)), torch.zeros(1)]}, "weights 1 has no name"),
    ],
)
def test_groups_that_cannot_be_read(group: Any, words: str) -> None:
    with pytest.raises(RuleError, match=words):
        unpack(group, "Adam, group 0")


@pytest.mark.parametrize(
    ("p", "words"),
    [
        ("x", "must be a tensor, got str"),
        (torch.zeros(2, dtype=torch.int64), "only floating-point weights"),
        (torch.zeros(2, dtype=torch.complex64), "train torch.view_as_real"),
        (torch.zeros(2, requires_grad=True) * 2, "not a leaf"),
        (torch.zeros(1).expand(3), "is expanded"),
        (torch.eye(3).to_sparse(), "is stored as torch.sparse_coo; gradients alone may be sparse"),
        (torch.nn.LazyLinear(3).weight, "has no shape yet: run the lazy module once"),
    ],
)
def test_what_cannot_be_trained(p: Any, words: str) -> None:
    assert words in refused(torch.zeros(2), p)


def test_all_problems_come_at_once() -> None:
    text = refused("x", torch.zeros(1, dtype=torch.int32))
    assert "must be a tensor" in text
    assert "only floating-point" in text


def test_no_parameter_appears_twice() -> None:
    p, whole = torch.zeros(3), torch.zeros(10)
    assert "the same weights appear twice, 'w0' (group 0) and 'w2' (group 0)" in refused(p, whole, p)
    assert "share memory" in refused(whole[:6], whole[5:])
    with pytest.raises(RuleError, match="two tensors are called 'a'"):
        check([{"params": [p, whole], "param_names": ["a", "a"]}], [["a", "a"]], "Adam")


def test_neighbours_and_interleaved_tensors_are_fine() -> None:
    whole = torch.zeros(10, 2)
    check([{"params": [whole[:5], whole[5:]]}], [["a", "b"]], "Adam")
    check([{"params": [whole[:, 0], whole[:, 1]]}], [["a", "b"]], "Adam")


def test_dense_means_without_gaps_in_any_order() -> None:
    whole = torch.zeros(2, 3, 4)
    assert is_dense(whole)
    assert is_dense(whole.permute(2, 0, 1))
    assert not is_dense(whole[:, :2])
    assert not is_dense(whole[..., ::2])
