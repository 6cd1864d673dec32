"""Every version of every operator means what onnxruntime says it means, or is refused by name."""

import re

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from system_needs import require

import descend
from descend.errors import StorageError, Unsupported
from descend.onnx import file_importer, graph_importer
from descend.onnx.folding import _SIZES, foldable
from descend.onnx.versions import _OLDER, NEWEST, SINCE
from tests.onnx.files import drawn, node, write
from tests.onnx.operator_cases import (
    IMAGE,
    TWO,
    Case,
    X,
    by_descend,
    cases_of,
    expected,
    folded_by_descend,
    ints,
    last_opset,
    number,
    same,
)

BY_HAND = {"Constant", "If"}  # have no form as one node of a tensor
# The reference of ONNX computes none of these, so constants are refused.
NOT_FOLDED = {
    "LpNormalization": "sums of absolute values",
    "Gelu": "No implementation",
    "Pad": "index can't contain negative values",
}
SCHEMAS = [one for one in onnx.defs.get_all_schemas_with_history() if one.domain == ""]
HISTORY = {kind: {one.since_version for one in SCHEMAS if one.name == kind} for kind in SINCE}
# Versions that are left out, and why.
LEFT_OUT = {
    ("GRU", 1): "output_sequence",
    ("GRU", 3): "output_sequence",
    ("LSTM", 1): "output_sequence",
    ("RNN", 1): "output_sequence",
    ("Split", 1): "an axis without a default",
    ("Upsample", 10): "deprecated",
}


def test_the_table_has_all_operators_that_are_imported_or_computed():
    assert file_importer.importer is graph_importer.importer  # importing it registers all
    assert {*graph_importer._IMPORTERS, *_SIZES, *BY_HAND, "Upsample"} == SINCE.keys()
    assert _OLDER.keys() <= SINCE.keys()


def test_the_table_has_the_versions_of_onnx_but_for_those_that_are_left_out():
    newest = onnx.defs.onnx_opset_version()
    for kind, versions in HISTORY.items():
        known = {one for one in versions if one <= min(newest, NEWEST)}
        assert known - {*SINCE[kind]} == {since for name, since in LEFT_OUT if name == kind}, kind
        assert {one for one in SINCE[kind] if one <= newest} <= versions


def check(case, opset):
    want = expected(case, opset)
    shapes = [None if one is None else one.shape for one in case.inputs]
    what = f"{case.kind} of opset {opset} {case.attributes} {shapes}"
    if not case.constant:
        got = by_descend(case, opset)
        assert all(same(a, b, case.tolerance) for a, b in zip(got, want, strict=True)), f"{what}: {got} for {want}"
    if foldable(case.kind) or case.kind == "Upsample":
        row = np.concatenate([one.astype(np.float32).ravel() for one in want])
        try:
            assert same(folded_by_descend(case, opset), row, case.tolerance), f"{what} of constants"
        except Unsupported as error:
            if not re.search(NOT_FOLDED.get(case.kind, "^$"), str(error)):
                raise


KINDS = sorted(SINCE.keys() - BY_HAND)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_node_of_each_version_is_onnxruntimes(kind):
    for since in SINCE[kind]:
        check(cases_of(kind, since)[0], since)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_all_nodes_of_all_versions_are_onnxruntimes(kind):
    for since in SINCE[kind]:
        assert cases_of(kind, since), since
        for case in cases_of(kind, since):
            for opset in {since, last_opset(kind, since)}:
                check(case, opset)


@pytest.mark.parametrize("opset", [1, 7, 9, 11, 12, 13, 18, 22])
def test_the_default_axis_of_a_softmax_is_that_of_its_opset(opset):
    (y,) = by_descend(Case("Softmax", (X,)), opset)
    axes = (1, 2) if opset < 13 else (2,)
    e = np.exp(X)
    np.testing.assert_allclose(y, e / e.sum(axes, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "Div", "Pow"])
def test_before_opset_7_the_second_is_laid_over_the_first_from_an_axis_on(kind):
    function = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power}[kind]
    square, row = np.abs(drawn(2, 3, 3)) + 1, np.abs(drawn(3)) + 1  # of one size, so that both ends fit
    for axis, b in ((1, row[:, None]), (2, row)):
        (y,) = by_descend(Case(kind, (square, row), {"broadcast": 1, "axis": axis}), 6)
        np.testing.assert_allclose(y, function(square, b), rtol=1e-5)


def test_before_opset_7_shapes_that_differ_need_broadcast():
    with pytest.raises(Unsupported, match=r"'node' \(Add\) brings together different shapes without broadcast=1"):
        by_descend(Case("Add", (X, X[0, 0])), 6)
    with pytest.raises(Unsupported, match=r"'node' \(Sum\) brings together different shapes"):
        by_descend(Case("Sum", (X, X[0, 0])), 6)
    with pytest.raises(Unsupported, match="widens its first input"):
        by_descend(Case("Add", (X[:, :, :1], X[0, 0]), {"broadcast": 1}), 6)


def test_slopes_of_channels_and_slopes_that_are_repeated():
    slopes = drawn(4)
    below, above = np.minimum(IMAGE, 0), np.maximum(IMAGE, 0)
    (old,) = by_descend(Case("PRelu", (IMAGE, slopes)), 6)
    np.testing.assert_allclose(old, above + slopes[:, None, None] * below, rtol=1e-5)
    square = drawn(2, 4, 4, 4)
    (new,) = by_descend(Case("PRelu", (square, slopes)), 9)
    np.testing.assert_allclose(new, np.maximum(square, 0) + slopes * np.minimum(square, 0), rtol=1e-5)
    with pytest.raises(Unsupported, match="widens its first input"):
        by_descend(Case("PRelu", (X[:, :, :1], X[0, 0])), 16)


@pytest.mark.parametrize(
    ("case", "opset", "message"),
    [
        (
            Case("GRU", (X, X, X), {"hidden_size": 3}),
            6,
            r"\(GRU\) of opset 6 \(since_version 3\) is not supported",
        ),
        (Case("Split", (X,), {"axis": 1}), 1, r"\(Split\) of opset 1 \(since_version 1\) is not supported"),
        (Case("Upsample", (IMAGE, number(1))), 12, r"\(Upsample\) is no operator of opset 12"),
        (Case("Gelu", (X,)), 19, r"\(Gelu\) is no operator of opset 19"),
        (Case("Fancy", (X,)), 19, r"\(Fancy\) is no operator of opset 19"),
        (Case("RandomNormalLike", (X,)), 19, r"\(RandomNormalLike\) has no layer here: the operator is not known"),
        (Case("ReduceMean", (X,), {"axes": [1]}), 18, r"has the attribute axes, which ReduceMean of since_version 18"),
        (Case("ReduceMean", (X, ints(1))), 13, r"has 2 inputs, and ReduceMean of since_version 13 has 1 to 1"),
        (Case("Add", (X, X[0]), {"broadcast": 1}), 7, r"has the attribute broadcast, which Add of since_version 7"),
        (Case("Softmax", (X,), {"alpha": 1.0}), 13, r"has the attribute alpha, which Softmax of since_version 13"),
        (Case("Concat", (X, X), data=(0, 1)), 4, r"has no axis, which Concat of since_version 4 needs"),
        (Case("LRN", (IMAGE,)), 13, r"has no size, which LRN of since_version 13 needs"),
        (Case("BatchNormalization", (TWO, *[TWO[0]] * 4)), 6, r"is written for training \(is_test 0\)"),
        (
            Case("BatchNormalization", (TWO, *[TWO[0]] * 4), {"spatial": 0}),
            7,
            r"has statistics for each entry \(spatial 0\)",
        ),
        (Case("Resize", (IMAGE, np.array([1, 1, 0.6, 1], np.float32))), 10, r"which this version leaves open"),
        (Case("Split", (X,), {"axis": 1}, outputs=2), 13, r"splits 3 entries into 2 equal pieces"),
        (Case("Cast", (X,), {"to": "DUBIOUS"}), 1, r"casts to 'DUBIOUS', which is no type"),
        (Case("SpaceToDepth", (IMAGE,), {"blocksize": 1, "mode": "CRD"}), 28, r"puts the columns of blocks first"),
    ],
    ids=lambda value: f"{value.kind}" if isinstance(value, Case) else None,
)
def test_what_a_version_does_not_have_is_refused_by_name(case, opset, message):
    require(f"onnx with opset {opset}", opset <= onnx.defs.onnx_opset_version(), "pip install --upgrade onnx")
    with pytest.raises(Unsupported, match=f"node 'node' .*{message}"):
        by_descend(case, opset)


def test_a_file_that_is_newer_than_the_table_is_refused(tmp_path):
    path = write(tmp_path / "m.onnx", [node("Relu", "x")], {"x": (4,)}, opset=NEWEST + 1)
    with pytest.raises(Unsupported, match=rf"opset must be at most \d+, got {NEWEST + 1}: convert the file"):
        descend.onnx.load(path)


def test_a_file_that_names_no_opset_or_two_is_refused(tmp_path):
    path = write(tmp_path / "m.onnx", [node("Relu", "x")], {"x": (4,)})
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid("ai.onnx", 11))
    onnx.save(model, path)
    with pytest.raises(StorageError, match=r"must name one opset of ONNX's own operators, got \[11, 20\]"):
        descend.onnx.load(path)
    del model.opset_import[:]
    onnx.save(model, path)
    with pytest.raises(StorageError, match="got none"):
        descend.onnx.load(path)


@pytest.mark.parametrize("opset", [1, 9, 13, 21])
def test_constants_and_conditions_of_any_version(tmp_path, opset):
    value = onnx.numpy_helper.from_array(np.array([2.0], np.float32))
    truth = onnx.numpy_helper.from_array(np.array(True))
    branch = {
        name: helper.make_graph([helper.make_node(kind, ["x"], [name])], name, [], [onnx.ValueInfoProto(name=name)])
        for name, kind in (("yes", "Neg"), ("no", "Relu"))
    }
    own = {"broadcast": 1} if opset < 7 else {}
    nodes = [
        helper.make_node("Constant", [], ["c"], value=value),
        helper.make_node("Constant", [], ["t"], value=truth),
        helper.make_node("If", ["t"], ["d"], then_branch=branch["yes"], else_branch=branch["no"]),
        helper.make_node("Mul", ["d", "c"], ["y"], **own),
    ]
    x = drawn(3, 4)
    model = descend.onnx.load(write(tmp_path / "m.onnx", nodes, {"x": (4,)}, opset=opset))
    got = model.to_torch().eval()(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(got, -2 * x)


def test_a_piece_that_nothing_takes_is_cut_off_too(tmp_path):
    """Before, pieces were counted up to the last that was taken."""
    for opset in (11, 13, 18):
        own = {"num_outputs": 3} if opset >= 18 else {}
        case = Case("Split", (drawn(2, 6),), {"axis": 1, **own}, outputs=3, taken=(0,))
        (y,) = by_descend(case, opset)
        np.testing.assert_array_equal(y, drawn(2, 6)[:, :2])
