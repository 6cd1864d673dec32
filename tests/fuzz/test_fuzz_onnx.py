"""A few hundred mutated ONNX files, and files that ask for far more than they hold."""

import time
from itertools import pairwise

import numpy as np
import onnx
import pytest
from onnx import helper

import descend
from descend.errors import DescendError, Unsupported
from tests.fuzz.fuzz_onnx import CASES, attempt, file_of
from tests.fuzz.fuzz_onnx_values import attempt as attempt_values
from tests.fuzz.harness import run
from tests.onnx.files import node, write


def test_mutated_files_are_loaded_or_refused_with_an_error_of_ours():
    report = run(attempt, 90, seed=15)
    assert report.findings == {}
    assert report.accepted > 6  # so that mutations reach more than the parser
    assert report.refused > 6


REFUSED = {"TopK", "Reshape-MatMul"}  # valid, and among what the importer does not take


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(one.op_type for one in case[0]))
def test_files_are_taken_before_they_are_mutated(case, tmp_path):
    onnx.save(file_of(case), tmp_path / "m.onnx")
    if "-".join(one.op_type for one in case[0]) in REFUSED:
        with pytest.raises(Unsupported, match=r"samples joined|places of several entries"):
            descend.onnx.load(tmp_path / "m.onnx")
    else:
        assert descend.onnx.load(tmp_path / "m.onnx").layers


def chain(kind, count, **attributes):
    names = ["c", *(f"d{i}" for i in range(count))]
    return [node(kind, a, a, out=b, **attributes) for a, b in pairwise(names)], names[-1]


@pytest.mark.parametrize(
    ("kind", "attributes"), [("Concat", {"axis": 0}), ("Einsum", {"equation": "i...,j...->ij..."})]
)
def test_chains_that_double_constants_are_refused_by_node_and_operator(tmp_path, monkeypatch, kind, attributes):
    if kind == "Einsum":  # the bounds as they are take a second
        monkeypatch.setattr("descend.onnx.values._OPERATIONS", 10**8)
    nodes, last = chain(kind, 40, **attributes)
    path = write(tmp_path / "m.onnx", [*nodes, node("Add", "x", last)], {"x": (4,)}, constants={"c": np.ones(2)})
    began = time.process_time()
    with pytest.raises(Unsupported, match=rf"node 'the_{kind}_\d+' \({kind}\) .*(constant of more than|constants)"):
        descend.onnx.load(path)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("kind", ["Add", "MatMul", "Mul", "Where"])
def test_outer_products_of_constants_are_refused_before_they_are_computed(tmp_path, kind):
    inputs = ("t", "a", "b") if kind == "Where" else ("a", "b")
    constants = {"a": np.ones((40_000, 1), np.float32), "b": np.ones((1, 40_000), np.float32), "t": np.array([True])}
    path = write(
        tmp_path / "m.onnx", [node(kind, *inputs, out="c"), node("Add", "x", "c")], {"x": (4,)}, constants=constants
    )
    with pytest.raises(Unsupported, match=rf"node 'the_{kind}' \({kind}\) .* more than 100,000,000 entries"):
        descend.onnx.load(path)


@pytest.mark.parametrize(
    ("nodes", "shape"),
    [
        ([node("Trilu", "x")], (10**6, 10**6)),
        ([node("CumSum", "x", "one")], (10**7,)),
        ([node("Slice", "x", "zero", "large", "one", "two")], (10**12,)),
        ([node("Pad", "x", "pads", mode="reflect")], (10**12,)),
        ([node("OneHot", "x", "large", "two_numbers")], (3,)),
        ([helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="cubic", name="the_Resize")], (3, 10**6)),
        ([node("LayerNormalization", "x", "number")], (10**12,)),
        ([node("Conv", "x", "kernel", pads=[0, 2**62])], (1, 2**62)),
    ],
    ids=lambda value: value[0].op_type if isinstance(value, list) else None,
)
def test_sizes_of_inputs_make_no_arrays(tmp_path, nodes, shape):
    constants = {
        "zero": np.array([0]),
        "one": np.array([1]),
        "two": np.array([2]),
        "large": np.array([10**9]),
        "pads": np.array([0, 0, 0, 5]),
        "two_numbers": np.array([0, 1], np.float32),
        "sizes": np.array([1, 3, 10**6 + 1]),
        "number": np.ones(1, np.float32),
        "kernel": np.ones((1, 1, 3), np.float32),
    }
    path = write(tmp_path / "m.onnx", nodes, {"x": shape}, constants=constants)
    with pytest.raises(DescendError, match=rf"node 'the_{nodes[0].op_type}' \({nodes[0].op_type}\)"):
        descend.onnx.load(path)


def test_a_list_of_sizes_has_a_bound(tmp_path):
    nodes = [node("Shape", "x", out="c"), *chain("Concat", 40, axis=0)[0], node("Reshape", "x", "d39")]
    with pytest.raises(Unsupported, match=r"node 'the_Concat_\d+' \(Concat\) makes a list of [\d,]+ sizes"):
        descend.onnx.load(write(tmp_path / "m.onnx", nodes, {"x": (4,)}))


def test_what_no_importer_expects_is_named_as_malformed_and_keeps_its_cause(tmp_path, monkeypatch):
    monkeypatch.setattr("descend.onnx.file_importer.importer", lambda kind: lambda r, node: [][1])
    with pytest.raises(Unsupported, match=r"node 'the_Relu' \(Relu\) is malformed: IndexError: .*") as caught:
        descend.onnx.load(write(tmp_path / "m.onnx", [node("Relu", "x")], {"x": (4,)}))
    assert isinstance(caught.value.__cause__, IndexError)


def test_random_graphs_of_many_opsets_and_types_are_what_onnxruntime_computes():
    report = run(attempt_values, 60, seed=5)
    assert report.findings == {}
    assert report.accepted > 40


@pytest.mark.slow
def test_many_more_random_graphs_are_what_onnxruntime_computes():
    report = run(attempt_values, 1500, seed=6, seconds=20)
    assert report.findings == {}
