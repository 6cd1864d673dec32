"""Windows and resized images against onnxruntime."""

import numpy as np
import pytest

import descend
from descend.errors import Unsupported
from tests.lower.onnx.files import agree, drawn, node, write

S = (3, 6, 4)


@pytest.mark.parametrize("counted", [0, 1])
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_shape": [2, 2], "pads": [0, 0, 1, 1]},
        {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [2, 0, 1, 1]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [3, 3], "strides": [2, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1},
        {"kernel_shape": [2, 3], "auto_pad": "SAME_UPPER"},
    ],
)
def test_means_over_ends_that_are_padded_differently(tmp_path, options, counted):
    nodes = [node("AveragePool", "x", count_include_pad=counted, **options)]
    agree(write(tmp_path / "m.onnx", nodes, {"x": S}), drawn(2, *S))


@pytest.mark.parametrize(
    "options",
    [
        {"strides": [2, 2], "pads": [0, 1, 1, 0]},
        {"strides": [2, 3], "auto_pad": "SAME_UPPER"},
        {"strides": [2, 2], "auto_pad": "SAME_LOWER", "dilations": [1, 2]},
        {"strides": [2, 2], "output_shape": [12, 9]},
        {"strides": [2, 2], "output_padding": [1, 0], "pads": [1, 2, 0, 1], "group": 3},
        {"auto_pad": "VALID"},
    ],
)
def test_transposed_convolutions_over_ends_that_are_padded_differently(tmp_path, options):
    constants = {"w": drawn(3, 2, 3, 3, seed=1), "b": drawn(2 * options.get("group", 1), seed=2)}
    path = write(tmp_path / "m.onnx", [node("ConvTranspose", "x", "w", "b", **options)], {"x": S}, constants=constants)
    agree(path, drawn(2, *S))


PLACES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
@pytest.mark.parametrize("size", [(9, 5), (3, 8), (1, 4), (6, 13)])
def test_images_of_any_size(tmp_path, mode, place, size):
    options = {"mode": mode, "coordinate_transformation_mode": place}
    path = write(
        tmp_path / "m.onnx",
        [node("Resize", "x", "", "", "sizes", **options)],
        {"x": S},
        constants={"sizes": np.array([2, 3, *size])},
    )
    agree(path, drawn(2, *S), tolerance=1e-5)


@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
@pytest.mark.parametrize("scales", [(1.5, 0.6), (2.3, 1.0), (2.0, 3.0)])
def test_scales_count_and_not_the_sizes_they_lead_to(tmp_path, mode, scales):
    constants = {"scales": np.array([1, 1, *scales], np.float32)}
    path = write(
        tmp_path / "m.onnx", [node("Resize", "x", "", "scales", mode=mode)], {"x": (2, 5, 7)}, constants=constants
    )
    agree(path, drawn(2, 2, 5, 7))


def test_a_size_of_the_images_of_another_input(tmp_path):
    """As a network writes it that brings what it made to the size of what it was given."""
    nodes = [
        node("Shape", "z", out="whole"),
        node("Slice", "whole", "two", "four", out="size"),
        node("Shape", "x", out="own"),
        node("Slice", "own", "zero", "two", out="first"),
        node("Concat", "first", "size", out="wanted", axis=0),
        node("Resize", "x", "", "", "wanted", mode="linear"),
        node("Relu", "z", out="r"),
    ]
    constants = {"zero": np.array([0]), "two": np.array([2]), "four": np.array([4])}
    path = write(tmp_path / "m.onnx", nodes, {"x": S, "z": (1, 9, 8)}, ("y", "r"), constants)
    agree(path, drawn(2, *S), drawn(2, 1, 9, 8))


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_mirrored_ends_of_any_length(tmp_path, mode):
    path = write(
        tmp_path / "m.onnx",
        [node("Pad", "x", "pads", mode=mode)],
        {"x": (2, 150)},
        constants={"pads": np.array([0, 1, 100, 0, 0, 120])},
    )
    agree(path, drawn(2, 2, 150))


def test_a_part_of_an_image_is_refused(tmp_path):
    options = {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": "linear"}
    constants = {"roi": np.zeros(8, np.float32), "sizes": np.array([2, 3, 5, 5])}
    nodes = [node("Resize", "x", "roi", "", "sizes", **options)]
    with pytest.raises(Unsupported, match=r"node 'the_Resize' \(Resize\) has mode linear, tf_crop_and_resize"):
        descend.onnx.load(write(tmp_path / "m.onnx", nodes, {"x": S}, constants=constants))


@pytest.mark.parametrize("place", ["asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners"])
@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("given_as", ["scales", "sizes"])
def test_places_of_nearest_entries_are_those_of_float32(tmp_path, place, rounding, given_as):
    """At a scale of float32(1 / 3) place 1 is entry 3 in runtimes, where float64 is just below it."""
    for before, after in [((4, 6), (7, 5)), ((6, 9), (2, 3)), ((5, 7), (3, 10)), ((10, 3), (9, 1)), ((12, 11), (5, 6))]:
        scales = np.array([1, 1, *(np.float32(b) / np.float32(a) for a, b in zip(before, after, strict=True))])
        constants = {"scales": scales.astype(np.float32), "sizes": np.array([2, 3, *after])}
        inputs = ["x", "", "scales"] if given_as == "scales" else ["x", "", "", "sizes"]
        options = {"coordinate_transformation_mode": place, "nearest_mode": rounding}
        nodes = [node("Resize", *inputs, mode="nearest", **options)]
        path = write(tmp_path / "m.onnx", nodes, {"x": (3, *before)}, constants={given_as: constants[given_as]})
        agree(path, drawn(2, 3, *before))


@pytest.mark.parametrize("given_as", ["scales", "sizes"])
@pytest.mark.parametrize(
    ("mode", "place"), [("linear", "align_corners"), ("cubic", "half_pixel"), ("cubic", "align_corners")]
)
def test_a_size_is_reached_whose_scale_is_rounded_down(tmp_path, given_as, mode, place):
    """float32(5 / 6) times 6 is just below 5 in float64."""
    constants = {"scales": np.array([1, 1, 7 / 4, 5 / 6], np.float32), "sizes": np.array([2, 3, 7, 5])}
    inputs = ["x", "", "scales"] if given_as == "scales" else ["x", "", "", "sizes"]
    nodes = [node("Resize", *inputs, mode=mode, coordinate_transformation_mode=place)]
    path = write(tmp_path / "m.onnx", nodes, {"x": (3, 4, 6)}, constants={given_as: constants[given_as]})
    agree(path, drawn(2, 3, 4, 6))
