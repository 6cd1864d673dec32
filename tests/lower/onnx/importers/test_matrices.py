"""Products against onnxruntime."""

import numpy as np
import pytest

import descend
from descend.errors import Unsupported
from tests.lower.onnx.files import agree, drawn, node, write


@pytest.mark.parametrize(
    ("equation", "a", "b"),
    [
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
        ("bij,bjk", (4, 5), (5, 3)),  # the result is b, i, k: no, see below
        ("b...i,b...i->b...", (4, 5), (4, 5)),
        ("...ij,...jk->...ik", (2, 4, 5), (2, 5, 3)),
        ("aij,aij->aij", (4, 5), (4, 5)),
    ],
)
def test_products_of_two_tensors(tmp_path, equation, a, b):
    path = write(tmp_path / "m.onnx", [node("Einsum", "x", "z", equation=equation)], {"x": a, "z": b})
    if "->" not in equation:  # a letter that both have is summed, and the samples are one
        with pytest.raises(Unsupported, match="has the samples elsewhere"):
            descend.onnx.load(path)
        return
    agree(path, drawn(2, *a), drawn(2, *b, seed=1))


@pytest.mark.parametrize("equation", ["bij->bji", "bij->bi", "bij->b", "b...->b...", "bij->bj"])
def test_of_one_tensor(tmp_path, equation):
    path = write(tmp_path / "m.onnx", [node("Einsum", "x", equation=equation)], {"x": (4, 5)})
    agree(path, drawn(2, 4, 5))


@pytest.mark.parametrize("equation", ["bij,jk->bik", "bij,kj->bki", "bij,i->bj", "bij,ij->bij", "bij,jk->bi"])
@pytest.mark.parametrize("first", [False, True])
def test_products_with_weights(tmp_path, equation, first):
    terms, result = equation.split("->")
    sizes = {"i": 4, "j": 5, "k": 3}
    w = drawn(*(sizes[one] for one in terms.split(",")[1]), seed=1)
    if first:
        equation = ",".join(terms.split(",")[::-1]) + "->" + result
    names = ("w", "x") if first else ("x", "w")
    path = write(tmp_path / "m.onnx", [node("Einsum", *names, equation=equation)], {"x": (4, 5)}, constants={"w": w})
    model = agree(path, drawn(2, 4, 5))
    assert [one.name for one in model.weights] == ["w"]


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bii->bi", [(4, 4)]),
        ("bii->b", [(4, 4)]),
        ("bijij->bji", [(2, 3, 2, 3)]),
        ("biji->bj", [(3, 4, 3)]),
        ("biii->bi", [(3, 3, 3)]),
        ("bii,bij->bj", [(3, 3), (3, 4)]),
        ("bik,bjk,bk->bij", [(3, 4), (5, 4), (4,)]),
        ("bi,bj,bk->bkij", [(2,), (3,), (4,)]),
        ("bij,bjk,bkl->bil", [(2, 3), (3, 4), (4, 5)]),
        ("bi,bi,bi,bi->b", [(3,)] * 4),
    ],
)
def test_diagonals_and_products_of_any_number_of_tensors(tmp_path, equation, shapes):
    names = [f"x{i}" for i in range(len(shapes))]
    path = write(
        tmp_path / "m.onnx", [node("Einsum", *names, equation=equation)], dict(zip(names, shapes, strict=True))
    )
    agree(path, *(drawn(2, *shape, seed=i) for i, shape in enumerate(shapes)))


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
def test_a_product_with_one_vector(tmp_path, shape):
    path = write(tmp_path / "m.onnx", [node("MatMul", "x", "v")], {"x": shape}, constants={"v": drawn(4, seed=1)})
    model = agree(path, drawn(2, *shape))
    assert [one.name for one in model.weights] == ["v"]


@pytest.mark.parametrize("equation", ["bbi->bi", "bij->ijb", "bij->ij", "bij->bijk"])
def test_diagonals_and_sums_over_samples_are_refused(tmp_path, equation):
    path = write(tmp_path / "m.onnx", [node("Einsum", "x", equation=equation)], {"x": (4, 4)})
    with pytest.raises(Unsupported, match=r"node 'the_Einsum' \(Einsum\)"):
        descend.onnx.load(path)


@pytest.mark.parametrize("axis", [1, 2, -1, -2])
@pytest.mark.parametrize("options", [{}, {"reverse": 1}, {"exclusive": 1}, {"reverse": 1, "exclusive": 1}])
def test_cumulative_sums(tmp_path, axis, options):
    nodes = [node("CumSum", "x", "axis", **options)]
    path = write(tmp_path / "m.onnx", nodes, {"x": (3, 6, 4)}, constants={"axis": np.array(axis)})
    model = agree(path, drawn(2, 3, 6, 4))
    assert all(isinstance(one.optimizer, descend.NoOptimizer) for one in model.weights)
