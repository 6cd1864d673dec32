"""Windows, padding and resized images against onnxruntime."""

import numpy as np
import pytest

import descend
from descend.errors import Unsupported
from tests.onnx.files import agree, agree_in_one_file, case, drawn, node, write

S = (3, 6, 4)
PLACES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
ROUNDINGS = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")


def test_windows(tmp_path):
    kernels = drawn(4, 3, 3, 2, seed=1), drawn(3, 2, 3, 3, seed=7)
    cases = [
        case("MaxPool", "x", kernel_shape=[2, 3], strides=[2, 1], pads=[1, 1, 1, 1]),
        case("AveragePool", "x", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        case("AveragePool", "x", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
        case("GlobalAveragePool", "x"),
        case("GlobalMaxPool", "x"),
        case("Conv", "x", kernels[0], drawn(4), strides=[2, 1], pads=[1, 0, 1, 0], dilations=[1, 2]),
        case("Conv", "x", kernels[0], auto_pad="VALID"),
        case("ConvTranspose", "x", kernels[1], strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 0]),
    ]
    model = agree_in_one_file(tmp_path / "m.onnx", cases, {"x": S}, drawn(2, *S))
    assert {one.name for one in model.weights} == {"c5_1", "c5_2", "c6_1", "c7_1"}  # as in the file


def test_largest_entries_over_ends_that_are_padded_differently(tmp_path):
    """All entries are below 0, so a padding with zeros would show."""
    cases = [
        case("MaxPool", "x", **options)
        for options in (
            {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1},
            {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER"},
            {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [0, 0, 2, 1]},
            {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
            {"kernel_shape": [2, 3], "strides": [3, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1},
            {"kernel_shape": [1, 1], "strides": [4, 3], "ceil_mode": 1},
            {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER"},
        )
    ]
    agree_in_one_file(tmp_path / "m.onnx", cases, {"x": S}, drawn(2, *S) - 5)


def test_means_over_ends_that_are_padded_differently(tmp_path):
    cases = [
        case("AveragePool", "x", count_include_pad=counted, **options)
        for counted in (0, 1)
        for options in (
            {"kernel_shape": [2, 2], "pads": [0, 0, 1, 1]},
            {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [2, 0, 1, 1]},
            {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
            {"kernel_shape": [3, 3], "strides": [2, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1},
            {"kernel_shape": [2, 3], "auto_pad": "SAME_UPPER"},
        )
    ]
    agree_in_one_file(tmp_path / "m.onnx", cases, {"x": S}, drawn(2, *S))


def test_convolutions_over_ends_that_are_padded_differently(tmp_path):
    kernels, bias = drawn(4, 3, 2, 2, seed=1), drawn(4, seed=2)
    cases = [
        case("Conv", "x", kernels, bias, pads=[1, 0, 0, 2]),
        case("Conv", "x", kernels, bias, auto_pad="SAME_UPPER", strides=[1, 2]),
    ]
    agree_in_one_file(tmp_path / "m.onnx", cases, {"x": S}, drawn(2, *S))


def test_transposed_convolutions_over_ends_that_are_padded_differently(tmp_path):
    cases = [
        case("ConvTranspose", "x", drawn(3, 2, 3, 3, seed=1), drawn(2 * options.get("group", 1), seed=2), **options)
        for options in (
            {"strides": [2, 2], "pads": [0, 1, 1, 0]},
            {"strides": [2, 3], "auto_pad": "SAME_UPPER"},
            {"strides": [2, 2], "auto_pad": "SAME_LOWER", "dilations": [1, 2]},
            {"strides": [2, 2], "output_shape": [12, 9]},
            {"strides": [2, 2], "output_padding": [1, 0], "pads": [1, 2, 0, 1], "group": 3},
            {"auto_pad": "VALID"},
        )
    ]
    agree_in_one_file(tmp_path / "m.onnx", cases, {"x": S}, drawn(2, *S))


def test_pads(tmp_path):
    cases = [
        case("Pad", "x", np.array(pads), *more, mode=mode)
        for pads, more, mode in (
            ([0, 0, 1, 2, 0, 0, 0, 3], (), "constant"),
            ([0, 1, 0, 0, 0, 0, 2, 0], (np.float32(1.5),), "constant"),
            ([0, -1, 2, 0, 0, 0, -3, 1], (), "constant"),
            ([0, 0, 2, 1, 0, 0, 3, 0], (), "reflect"),
            ([0, 2, 0, 3, 0, 1, 0, 1], (), "edge"),
            ([0, 0, 2, 1, 0, 0, 1, 2], (), "wrap"),
            ([1, 2, 0, 1], (np.float32(-1), np.array([-1, 2])), "constant"),
        )
    ]
    cases += [case("Pad", "row", np.array([0, 1, 100, 0, 0, 120]), mode=mode) for mode in ("reflect", "edge", "wrap")]
    agree_in_one_file(tmp_path / "m.onnx", cases, {"x": S, "row": (2, 150)}, drawn(2, *S), drawn(2, 2, 150))


def test_channels_become_space_and_space_becomes_channels(tmp_path):
    cases = [case("DepthToSpace", "deep", blocksize=2, mode=mode) for mode in ("DCR", "CRD")]
    cases.append(case("SpaceToDepth", "x", blocksize=2))
    agree_in_one_file(tmp_path / "m.onnx", cases, {"deep": (12, 3, 2), "x": S}, drawn(2, 12, 3, 2), drawn(2, *S))


@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
def test_images_of_any_size(tmp_path, mode):
    cases = [
        case("Resize", "x", "", "", np.array([2, 3, *size]), mode=mode, coordinate_transformation_mode=place)
        for place in PLACES
        for size in ((9, 5), (3, 8), (1, 4), (6, 13))
    ]
    agree_in_one_file(tmp_path / "m.onnx", cases, {"x": S}, drawn(2, *S))


def test_scales_count_and_not_the_sizes_they_lead_to(tmp_path):
    cases = [
        case("Resize", "x", "", np.array([1, 1, *scales], np.float32), mode=mode)
        for mode in ("linear", "cubic", "nearest")
        for scales in ((1.5, 0.6), (2.3, 1.0), (2.0, 3.0))
    ]
    agree_in_one_file(tmp_path / "m.onnx", cases, {"x": (2, 5, 7)}, drawn(2, 2, 5, 7))


def test_whole_factors_are_layers_of_their_own(tmp_path):
    scales = np.array([1, 1, 2, 3], np.float32)
    cases = [
        case("Resize", "x", "", scales, mode="linear", coordinate_transformation_mode="half_pixel"),
        case("Resize", "x", "", scales, coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    ]
    model = agree_in_one_file(tmp_path / "m.onnx", cases, {"x": S}, drawn(2, *S))
    assert {"BilinearResize", "Upsample"} & {type(layer).__name__ for layer in model.layers}


@pytest.mark.parametrize("given_as", ["scales", "sizes"])
def test_places_of_nearest_entries_are_those_of_float32(tmp_path, given_as):
    """At a scale of float32(1 / 3) place 1 is entry 3 in runtimes, where float64 is just below it."""
    sizes = [((4, 6), (7, 5)), ((6, 9), (2, 3)), ((5, 7), (3, 10)), ((10, 3), (9, 1)), ((12, 11), (5, 6))]
    inputs = {f"x{place}": (3, *before) for place, (before, _) in enumerate(sizes)}
    cases = []
    for name, (before, after) in zip(inputs, sizes, strict=True):
        scales = np.array([1, 1, *(np.float32(b) / np.float32(a) for a, b in zip(before, after, strict=True))])
        wanted = ("", scales.astype(np.float32)) if given_as == "scales" else ("", "", np.array([2, 3, *after]))
        for place in PLACES:
            for rounding in ROUNDINGS:
                options = {"coordinate_transformation_mode": place, "nearest_mode": rounding}
                cases.append(case("Resize", name, *wanted, mode="nearest", **options))
    agree_in_one_file(tmp_path / "m.onnx", cases, inputs, *(drawn(2, *shape) for shape in inputs.values()))


def test_a_size_is_reached_whose_scale_is_rounded_down(tmp_path):
    """float32(5 / 6) times 6 is just below 5 in float64."""
    scales, sizes = np.array([1, 1, 7 / 4, 5 / 6], np.float32), np.array([2, 3, 7, 5])
    cases = [
        case("Resize", "x", *wanted, mode=mode, coordinate_transformation_mode=place)
        for wanted in (("", scales), ("", "", sizes))
        for mode, place in (("linear", "align_corners"), ("cubic", "half_pixel"), ("cubic", "align_corners"))
    ]
    agree_in_one_file(tmp_path / "m.onnx", cases, {"x": (3, 4, 6)}, drawn(2, 3, 4, 6))


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


def test_a_part_of_an_image_is_refused(tmp_path):
    options = {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": "linear"}
    constants = {"roi": np.zeros(8, np.float32), "sizes": np.array([2, 3, 5, 5])}
    nodes = [node("Resize", "x", "roi", "", "sizes", **options)]
    with pytest.raises(Unsupported, match=r"node 'the_Resize' \(Resize\) has mode linear, tf_crop_and_resize"):
        descend.onnx.load(write(tmp_path / "m.onnx", nodes, {"x": S}, constants=constants))


def test_corners_are_aligned_by_the_whole_part_of_a_size(tmp_path):
    """As in ONNX Runtime; the reference of ONNX takes 4.5 entries for the size after, and not 4."""
    scales = np.array([1, 1, 1.5, 1.5], np.float32)
    cases = [
        case("Resize", "x", "", scales, mode=mode, coordinate_transformation_mode="align_corners")
        for mode in ("linear", "cubic", "nearest")
    ]
    agree_in_one_file(tmp_path / "m.onnx", cases, {"x": (1, 3, 5)}, drawn(2, 1, 3, 5))


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("has mode linear", {"keep_aspect_ratio_policy": "not_larger", "axes": [2, 3]}),
        ("with align_corners, and 5 times 0.5 is no size", {"coordinate_transformation_mode": "align_corners"}),
        ("down to one entry", {"coordinate_transformation_mode": "pytorch_half_pixel", "scales": [1, 1, 0.5, 0.25]}),
    ],
)
def test_what_programs_resize_in_ways_of_their_own_is_refused(tmp_path, words, options):
    scales = np.array(options.pop("scales", [1, 1, 0.5, 0.5]), np.float32)
    constants = {"scales": scales}
    nodes = [node("Resize", "x", "", "scales", mode="linear", antialias=1, **options)]
    if "axes" in options:
        constants = {"sizes": np.array([3, 4])}
        nodes = [node("Resize", "x", "", "", "sizes", mode="linear", **options)]
    with pytest.raises(Unsupported, match=words):
        descend.onnx.load(write(tmp_path / "m.onnx", nodes, {"x": (3, 6, 5)}, constants=constants))


def test_one_nearest_entry_of_integers_is_the_first(tmp_path):
    """That is what pytorch_half_pixel means of a size of 1."""
    nodes = [
        node("Cast", "x", out="whole", to=6),
        node("Resize", "whole", "", "", "sizes", out="small", coordinate_transformation_mode="pytorch_half_pixel"),
        node("Cast", "small", to=1),
    ]
    path = write(tmp_path / "m.onnx", nodes, {"x": S}, constants={"sizes": np.array([2, 3, 1, 1])})
    agree(path, drawn(2, *S) * 20)
