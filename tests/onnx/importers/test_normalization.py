"""Normalization against onnxruntime."""

import numpy as np
import pytest

import descend
from descend.errors import Unsupported
from tests.onnx.files import agree_in_one_file, case, drawn, node, write

S = (3, 6, 4)
SCALE, BIAS, MEAN = (drawn(3, seed=seed) for seed in (3, 4, 5))
VARIANCE = np.abs(drawn(3, seed=6)) + 0.5
ROW, ROW_BIAS = drawn(4, seed=8), drawn(4, seed=9)


def test_normalizations_are_onnxs(tmp_path):
    cases = [
        case("BatchNormalization", "x", SCALE, BIAS, MEAN, VARIANCE, epsilon=1e-3),
        case("BatchNormalization", "x", SCALE, BIAS, MEAN, VARIANCE),
        case("InstanceNormalization", "x", SCALE, BIAS),
        case("InstanceNormalization", "x", SCALE, BIAS, epsilon=0.5),
        case("LayerNormalization", "x", ROW, ROW_BIAS, axis=-1, epsilon=1e-3),
        case("LayerNormalization", "x", ROW, axis=3),
        case("LayerNormalization", "x", ROW, ROW_BIAS, axis=2),  # one scale for each column, broadcast over rows
        case("LRN", "x", size=3, alpha=0.5, beta=0.6, bias=1.5),
    ]
    model = agree_in_one_file(tmp_path / "m.onnx", cases, {"x": S}, drawn(2, *S))
    names = {one.name for one in model.weights}
    assert {"c0_1", "c0_2", "c0_3", "c0_4", "c2_1_and_bias", "c4_1", "c4_2"} <= names  # as in the file


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (node("BatchNormalization", "x", "s", "s", "s", "s", training_mode=1), "is written for training"),
        (node("LayerNormalization", "x", "s", axis=0), "normalizes over samples"),
        (node("LayerNormalization", "x", "s"), r"has a scale of \(3,\) for entries of \(4,\)|brings together shapes"),
        (node("InstanceNormalization", "x", "row", "s"), r"has a scale of \(4,\) and a bias of \(3,\) for 3 channels"),
        (node("LRN", "x", size=0), "has size 0; expected at least 1"),
    ],
    ids=["training", "samples", "scale", "channels", "size"],
)
def test_what_no_layer_normalizes_is_refused_by_name(tmp_path, one, message):
    constants = {name: array for name, array in (("s", SCALE), ("row", ROW)) if name in one.input}
    path = write(tmp_path / "m.onnx", [one], {"x": S}, constants=constants)
    with pytest.raises(Unsupported, match=rf"node 'the_{one.op_type}' \({one.op_type}\) ({message})"):
        descend.onnx.load(path)


def test_what_is_normalized_by_running_values_keeps_its_momentum(tmp_path):
    """In ONNX momentum multiplies the old value, as decay does here."""
    nodes = [node("BatchNormalization", "x", "s", "b", "m", "v", momentum=0.75)]
    constants = {"s": SCALE, "b": BIAS, "m": MEAN, "v": VARIANCE}
    (_, layer) = descend.onnx.load(write(tmp_path / "m.onnx", nodes, {"x": S}, constants=constants)).layers
    assert layer.decay == 0.75
