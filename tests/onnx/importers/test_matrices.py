"""Products against onnxruntime."""

import numpy as np
import pytest

import descend
from descend.errors import Unsupported
from tests.onnx.files import agree_in_one_file, case, drawn, node, write


def einsum(path, *rows):
    """Each equation with inputs of its own, which it does not share with others; shapes are those of a sample."""
    inputs, cases = {}, []
    for place, (equation, *shapes) in enumerate(rows):
        names = [f"x{place}_{i}" for i in range(len(shapes))]
        inputs |= dict(zip(names, shapes, strict=True))
        cases.append(case("Einsum", *names, equation=equation))
    agree_in_one_file(path, cases, inputs, *(drawn(2, *shape, seed=i) for i, shape in enumerate(inputs.values())))


def test_products_of_two_tensors(tmp_path):
    einsum(
        tmp_path / "m.onnx",
        ("bij,bjk->bik", (4, 5), (5, 3)),
        ("bhid,bhjd->bhij", (2, 4, 5), (2, 3, 5)),
        ("bhij,bhjd->bihd", (2, 4, 5), (2, 5, 3)),
        ("bi,bi->b", (5,), (5,)),
        ("bi,bj->bij", (5,), (4,)),
        ("bi,bj->bji", (5,), (4,)),
        ("bij,bj->bi", (4, 5), (5,)),
        ("bchw,bc->bchw", (4, 2, 3), (4,)),
        ("bijk,bjl->bl", (4, 5, 2), (5, 3)),  # i and k are summed first
        ("b i j, b j k -> b k i", (4, 5), (5, 3)),
        ("b...i,b...i->b...", (4, 5), (4, 5)),
        ("...ij,...jk->...ik", (2, 4, 5), (2, 5, 3)),
        ("aij,aij->aij", (4, 5), (4, 5)),
    )


def test_of_one_tensor(tmp_path):
    shape = (4, 5)
    equations = ("bij->bji", "bij->bi", "bij->b", "b...->b...", "bij->bj")
    einsum(tmp_path / "m.onnx", *((equation, shape) for equation in equations))


def test_diagonals_and_products_of_any_number_of_tensors(tmp_path):
    einsum(
        tmp_path / "m.onnx",
        ("bii->bi", (4, 4)),
        ("bii->b", (4, 4)),
        ("bijij->bji", (2, 3, 2, 3)),
        ("biji->bj", (3, 4, 3)),
        ("biii->bi", (3, 3, 3)),
        ("bii,bij->bj", (3, 3), (3, 4)),
        ("bik,bjk,bk->bij", (3, 4), (5, 4), (4,)),
        ("bi,bj,bk->bkij", (2,), (3,), (4,)),
        ("bij,bjk,bkl->bil", (2, 3), (3, 4), (4, 5)),
        ("bi,bi,bi,bi->b", *[(3,)] * 4),
    )


def test_products_with_weights(tmp_path):
    cases, sizes = [], {"i": 4, "j": 5, "k": 3}
    for equation in ("bij,jk->bik", "bij,kj->bki", "bij,i->bj", "bij,ij->bij", "bij,jk->bi"):
        terms, result = equation.split("->")
        one, other = terms.split(",")
        w = drawn(*(sizes[letter] for letter in other), seed=1)
        cases.append(case("Einsum", "x", w, equation=equation))
        cases.append(case("Einsum", w, "x", equation=f"{other},{one}->{result}"))
    model = agree_in_one_file(tmp_path / "m.onnx", cases, {"x": (4, 5)}, drawn(2, 4, 5))
    assert len(model.weights) == len(cases)


def test_matrices(tmp_path):
    cases = [
        case("Gemm", "x", drawn(5, 4), drawn(4, seed=1)),
        case("Gemm", "x", drawn(4, 5), drawn(4, seed=1), transB=1),
        case("Gemm", "x", drawn(4, 5), transB=1),
        case("Gemm", "x", drawn(5, 4), np.ones((1, 1), np.float32)),
    ]
    agree_in_one_file(tmp_path / "m.onnx", cases, {"x": (5,)}, drawn(3, 5))


def test_matmul_of_any_rank(tmp_path):
    vector = drawn(5, seed=1)
    inputs = {"a2": (6, 5), "b2": (5, 4), "a3": (3, 6, 5), "b3": (3, 5, 4), "a4": (2, 3, 6, 5), "b4": (2, 3, 5, 4)}
    cases = [case("MatMul", f"a{rank}", f"b{rank}") for rank in (2, 3, 4)]
    cases += [case("MatMul", name, vector) for name in ("row", "a2", "a3")]
    inputs["row"] = (5,)
    model = agree_in_one_file(
        tmp_path / "m.onnx", cases, inputs, *(drawn(2, *shape, seed=i) for i, shape in enumerate(inputs.values()))
    )
    assert [one.name for one in model.weights] == ["c3_1", "c4_1", "c5_1"]


@pytest.mark.parametrize("equation", ["bbi->bi", "bij->ijb", "bij->ij", "bij->bijk", "bij,bjk"])
def test_diagonals_and_sums_over_samples_are_refused(tmp_path, equation):
    """Without an arrow, the letter of the samples stands in two terms and is summed."""
    inputs = {"x": (4, 4), "z": (4, 4)} if "," in equation else {"x": (4, 4)}
    path = write(tmp_path / "m.onnx", [node("Einsum", *inputs, equation=equation)], inputs)
    message = "has the samples elsewhere" if "," in equation else ""
    with pytest.raises(Unsupported, match=rf"node 'the_Einsum' \(Einsum\) .*{message}"):
        descend.onnx.load(path)


def test_cumulative_sums(tmp_path):
    cases = [
        case("CumSum", "x", np.array(axis), **options)
        for axis in (1, 2, -1, -2)
        for options in ({}, {"reverse": 1}, {"exclusive": 1}, {"reverse": 1, "exclusive": 1})
    ]
    model = agree_in_one_file(tmp_path / "m.onnx", cases, {"x": (3, 6, 4)}, drawn(2, 3, 6, 4))
    assert all(isinstance(one.optimizer, descend.NoOptimizer) for one in model.weights)
