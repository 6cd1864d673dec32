"""Convolutions, pooling, and what they go over: padding and resized images."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper
from onnx.reference import ReferenceEvaluator

from descend.graph import BilinearResize, Convolution, Deconvolution, Multiply, Pooling, TensorPermute, Upsample
from descend.onnx.graph_importer import imports
from descend.onnx.importers.matrices import along
from descend.onnx.importers.steps import known_sizes, padded, picked, reduced
from descend.onnx.values import INTEGERS, ConstantValue, Node, ShapeValue, Tensor, UnsupportedNode, Value, text

if TYPE_CHECKING:
    from descend.onnx.graph_importer import GraphImporter

Shape = tuple[int, ...]


def _window(r: GraphImporter, node: Node, x: Tensor, size: Shape, fill: float) -> tuple[Tensor, dict[str, Any]]:
    """What a window goes over, and its stride, padding and dilation.

    Where the ends of a dimension are padded differently, x is padded before it, with `fill`.
    """
    strides, dilations, pads, over = _placed(node, x.shape[1:], size)
    sides = [(begin, end + more) for (begin, end), more in zip(pads, over, strict=True)]
    if all(begin == end for begin, end in sides):
        return x, {"stride": strides, "padding": tuple(begin for begin, _ in sides), "dilation": dilations}
    y = padded(r, node, x, [(0, 0), *sides], fill)
    return y, {"stride": strides, "padding": (0,) * len(size), "dilation": dilations}


def _placed(node: Node, space: Shape, size: Shape) -> tuple[Shape, Shape, list[tuple[int, int]], list[int]]:
    """Strides, dilations, the padding of both ends of each dimension, and how far the last window hangs over it."""
    dims = len(size)
    if len(space) != dims:
        raise UnsupportedNode(f"slides a window of {dims} dimensions over {len(space)}")
    strides, dilations = (node.int_list(name, [1] * dims, 1) for name in ("strides", "dilations"))
    spans = [(k - 1) * d + 1 for k, d in zip(size, dilations, strict=True)]
    auto, pads = text(node.get("auto_pad", "NOTSET")), node.int_list("pads", [0] * 2 * dims)
    sides = list(zip(pads[:dims], pads[dims:], strict=True))
    if auto.startswith("SAME"):
        needed = [max((-(-n // s) - 1) * s + k - n, 0) for n, s, k in zip(space, strides, spans, strict=True)]
        sides = [_halves(n, auto == "SAME_UPPER") for n in needed]
    if not node.get("ceil_mode", 0):
        return strides, dilations, sides, [0] * dims
    ends = zip(space, spans, strides, sides, strict=True)
    return strides, dilations, sides, [_over(n + begin, end, k, s) for n, k, s, (begin, end) in ends]


def _halves(whole: int, more_behind: bool) -> tuple[int, int]:
    small, large = whole // 2, whole - whole // 2
    return (small, large) if more_behind else (large, small)


def _over(begun: int, end: int, span: int, stride: int) -> int:
    """How far the last window hangs over the end, where it begins before the padding there."""
    count = -(-(begun + end - span) // stride) + 1
    count -= (count - 1) * stride >= begun
    return (count - 1) * stride + span - begun - end


@imports("Pad", integers="computed")
def pad(r: GraphImporter, node: Node) -> Value:
    """Constants before and behind; or entries that are mirrored, repeated or wrapped."""
    x, mode = node.tensor(), text(node.get("mode", "constant"))
    how: Any = mode  # numpy's names for them are the same
    pads, dims = node.ints(1, "pads") or (), len(x.shape) + 1
    axes = node.axes(3, dims) or tuple(range(dims))
    if len(pads) != 2 * len(axes):
        raise UnsupportedNode(f"has {len(pads)} pads for both ends of {len(axes)} axes")
    sides = [(0, 0)] * dims
    for axis, before, behind in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        sides[axis] = (before, behind)
    if sides[0] != (0, 0):
        raise UnsupportedNode("adds samples")
    if mode == "constant":
        return padded(r, node, x, sides[1:], node.number(2, "value", 0.0))
    for axis, (before, behind) in enumerate(sides[1:]):
        if min(before, behind) < 0:
            raise UnsupportedNode("cuts entries off while it repeats others")
        r.budget.array(x.shape[axis] + before + behind)
        x = picked(
            r,
            replace(node, name=f"{node.name}/{axis}"),
            x,
            axis,
            np.pad(np.arange(x.shape[axis]), (before, behind), how),
        )
    return x


@imports("Conv")
def convolution(r: GraphImporter, node: Node) -> Value:
    """Convolution."""
    count, _, *size = _kernel_shape(node)
    x, fields = _window(r, node, node.tensor(0, len(size) + 1), tuple(size), 0.0)
    return r.layer(Convolution, node, x, out_channels=count, **_kernel(r, node), **fields)


@imports("ConvTranspose")
def deconvolution(r: GraphImporter, node: Node) -> Value:
    """Deconvolution; what padding takes off the two ends differently is cut off behind it."""
    _, channels, *size = _kernel_shape(node)
    x, dims = node.tensor(0, len(size) + 1), len(size)
    more = node.int_list("output_padding", [0] * dims)
    dilation, stride = (node.int_list(name, [1] * dims, 1) for name in ("dilations", "strides"))
    ends = zip(x.shape[1:], size, stride, dilation, more, strict=True)
    whole = [(n - 1) * s + (k - 1) * d + 1 + extra for n, k, s, d, extra in ends]
    sides = _taken_off(node, x.shape[1:], stride, whole)
    # A wanted size beyond what the windows cover is reached behind them, where there is the bias alone.
    if "output_shape" in node.attributes:
        more = tuple(extra + max(-begin - end, 0) for extra, (begin, end) in zip(more, sides, strict=True))
    sides = [(begin, end) if begin + end > 0 else (0, 0) for begin, end in sides]
    even = all(begin == end for begin, end in sides)
    own = {"stride": stride, "dilation": dilation, "output_padding": more, **_kernel(r, node)}
    padding = tuple(begin if even else 0 for begin, _ in sides)
    y = r.layer(Deconvolution, node, x, out_channels=channels * node.get("group", 1), padding=padding, **own)
    return y if even else padded(r, node, y, [(0, 0), *((-begin, -end) for begin, end in sides)], 0.0)


def _taken_off(node: Node, space: Shape, stride: Shape, whole: list[int]) -> list[tuple[int, int]]:
    """What the padding of a transposed convolution takes off the ends of each dimension."""
    auto, pads = text(node.get("auto_pad", "NOTSET")), node.int_list("pads", [0] * 2 * len(space))
    wanted = node.get("output_shape", [n * s for n, s in zip(space, stride, strict=True)])[-len(space) :]
    if len(wanted) != len(space):
        raise UnsupportedNode(f"has output_shape {list(wanted)} for {len(space)} dimensions")
    if not _has_pads(node):
        return [_halves(size - left, auto == "SAME_UPPER") for size, left in zip(whole, wanted, strict=True)]
    return list(zip(pads[: len(space)], pads[len(space) :], strict=True))


def _has_pads(node: Node) -> bool:
    """Whether the padding of a transposed convolution is given, and not worked out from the size of its result."""
    return not (text(node.get("auto_pad", "NOTSET")).startswith("SAME") or "output_shape" in node.attributes)


def _kernel_shape(node: Node) -> Shape:
    shape = node.fixed(1).array.shape
    if len(shape) < 3 or 0 in shape:
        raise UnsupportedNode(f"has a kernel of shape {shape}; expected (channels, channels, size, ...)")
    return shape


def _kernel(r: GraphImporter, node: Node) -> dict[str, Any]:
    """The fields of a convolution that come from its kernel and bias."""
    kernel, bias = node.fixed(1), node.given(2)
    weights = [r.weights(kernel, f"{node.name}/kernel")]
    if bias is not None:
        weights.append(r.weights(node.fixed(2), f"{node.name}/bias"))
    size = kernel.array.shape[2:]
    own = {"num_dims": len(size), "kernel_size": size, "groups": node.get("group", 1)}
    return {**own, "weights": weights, "has_bias": bias is not None}


@imports("MaxPool", "AveragePool")
def pooling(r: GraphImporter, node: Node) -> Value:
    """Pooling."""
    size = tuple(node.get("kernel_shape", ()))
    if not size or not all(isinstance(one, int) and one > 0 for one in size):
        raise UnsupportedNode(f"has kernel_shape {list(size)}; expected sizes of at least 1")
    if node.outputs > 1 or any(one != 1 for one in node.get("dilations", [])):
        raise UnsupportedNode("hands out places, or has dilations")
    if node.kind == "MaxPool":
        return _pooled(r, node, *_window(r, node, node.tensor(), size, -math.inf), size, "max")
    x, counted = node.tensor(), bool(node.get("count_include_pad", 0))
    strides, _, sides, over = _placed(node, x.shape[1:], size)
    y, window = _window(r, node, x, size, 0.0)
    if y is x and (counted or not any(over)):
        return _pooled(r, node, x, window, size, "average" if counted else "average_no_pad")
    # Beside a mean of all entries of a window there is none here: it is brought to the number that counts.
    mean = _pooled(r, replace(node, name=f"{node.name}/mean"), y, window, size, "average")
    r.budget.array(*mean.shape[1:])
    factors = np.ones(mean.shape[1:])
    for axis, (n, k, s, (begin, end)) in enumerate(zip(x.shape[1:], size, strides, sides, strict=True)):
        first = np.arange(mean.shape[axis + 1]) * s - begin
        low, high = (-begin, n + end) if counted else (0, n)
        count = np.minimum(first + k, high) - np.maximum(first, low)
        factors = factors * (k / count).reshape(-1, *(1,) * (len(size) - axis - 1))
    return r.layer(Multiply, node, *r.broadcast(node, mean, ConstantValue(factors)))


def _pooled(r: GraphImporter, node: Node, x: Tensor, window: dict[str, Any], size: Shape, mode: str) -> Tensor:
    own: dict[str, Any] = {"pool_mode": mode, "num_dims": len(size), "has_vectors": True, "pool_dims": size}
    return r.layer(Pooling, node, x, pool_strides=window["stride"], pool_pads=window["padding"], **own)


@imports("GlobalAveragePool", "GlobalMaxPool")
def global_pooling(r: GraphImporter, node: Node) -> Value:
    """A reduction over space."""
    x = node.tensor()
    axes = tuple(range(2, len(x.shape) + 1))
    return reduced(r, node, x, "mean" if node.kind == "GlobalAveragePool" else "max", axes, True)


@imports("DepthToSpace", "SpaceToDepth", integers="moved")
def space_and_depth(r: GraphImporter, node: Node) -> Value:
    """Blocks of an image as channels, or the other way."""
    x, b = node.tensor(0, 3), node.get("blocksize", 1)
    channels, height, width = x.shape
    if b < 1:
        raise UnsupportedNode(f"has blocksize {b}; expected at least 1")
    if node.kind == "SpaceToDepth":
        if text(node.get("mode", "DCR")) != "DCR":
            raise UnsupportedNode("puts the columns of blocks first (mode CRD)")
        split, axes = (channels, height // b, b, width // b, b), (2, 4, 0, 1, 3)
        shape = (channels * b * b, height // b, width // b)
    else:
        shape = (channels // (b * b), height * b, width * b)
        columns_first = text(node.get("mode", "DCR")) == "CRD"
        split = (shape[0], b, b, height, width) if columns_first else (b, b, shape[0], height, width)
        axes = (0, 3, 1, 4, 2) if columns_first else (2, 3, 0, 4, 1)
    apart = r.reshaped(x, split, f"{node.name}/apart")
    return r.reshaped(r.layer(TensorPermute, f"{node.name}/turned", apart, axes=axes), shape, node.name)


@imports("Resize", integers="moved")
def resize(r: GraphImporter, node: Node) -> Value:
    """Upsample by whole factors, BilinearResize of images, and otherwise a product with a matrix for each dimension."""
    x = node.tensor()
    after, scales = _resized(node, x.shape)
    mode, place, rounding = (
        text(node.get(name, unset))
        for name, unset in (
            ("mode", "nearest"),
            ("coordinate_transformation_mode", "half_pixel"),
            ("nearest_mode", "round_prefer_floor"),
        )
    )
    if place == "tf_crop_and_resize" or text(node.get("keep_aspect_ratio_policy", "stretch")) != "stretch":
        raise UnsupportedNode(f"has mode {mode}, {place}, from {x.shape} to {after}")
    exact = all(size * scale == new for size, scale, new in zip(x.shape, scales, after, strict=True))
    whole = exact and all(a % b == 0 for a, b in zip(after, x.shape, strict=True))
    # Of these pairs each gives entry ⌊i / factor⌋ for place i.
    repeats = (place, rounding) in (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"))
    if after[0] == x.shape[0] and mode == "nearest" and whole and repeats:
        factors = tuple(a // b for a, b in zip(after[1:], x.shape[1:], strict=True))
        own: dict[str, Any] = {"num_dims": len(factors), "has_vectors": True, "scale_factors": factors}
        return r.layer(Upsample, node, x, upsample_mode="nearest", **own)
    plain = (mode, place) == ("linear", "half_pixel") and not node.get("antialias", 0) and x.type not in INTEGERS
    if len(after) == 3 and after[0] == x.shape[0] and plain and exact:
        return r.layer(BilinearResize, node, x, height=after[1], width=after[2])
    for axis, (new, scale) in enumerate(zip(after, scales, strict=True)):
        if (new, scale) != (x.shape[axis], 1):
            places = _nearest(node, x.shape[axis], new, scale) if mode == "nearest" else None
            if x.type in INTEGERS and places is None:
                raise UnsupportedNode(f"makes fractions of {INTEGERS[x.type]} (mode {mode})")
            if x.type in INTEGERS and places is not None:
                y = picked(r, replace(node, name=f"{node.name}/{axis}"), x, axis, places)
                x = replace(y, type=x.type)
                continue
            # The reference takes some 20 microseconds for each column, and 200 ns for each entry.
            before = x.shape[axis]
            r.budget.array(before, max(before, new), operations=new * (20_000 + 200 * before))
            x = along(r, node, x, axis, _weights_of_places(node, before, new, scale))
    return x


def _resized(node: Node, before: Shape) -> tuple[Shape, list[float]]:
    """The size of a sample after a Resize, and its scales."""
    scales, sizes = node.given(2), node.given(3)
    axes = node.axes(len(node.inputs), len(before) + 1) or tuple(range(len(before) + 1))
    wanted: list[Any] = [None, *before]
    if isinstance(sizes, (ConstantValue, ShapeValue)) and len(known_sizes(sizes)) == len(axes):
        for axis, size in zip(axes, known_sizes(sizes), strict=True):
            wanted[axis] = size
        after = tuple(wanted[1:])
        if None not in after and min(after) > 0:
            return after, [new / old for new, old in zip(after, before, strict=True)]
    elif isinstance(scales, ConstantValue) and scales.array.size == len(axes):
        factors = dict(zip(axes, scales.array.tolist(), strict=True))
        each = [factors.get(axis, 1.0) for axis in range(1, len(before) + 1)]
        if factors.get(0, 1.0) == 1:
            return tuple(_scaled(size, scale) for size, scale in zip(before, each, strict=True)), each
    raise UnsupportedNode("computes its size from the data, or changes the number of samples")


def _scaled(size: int, scale: float) -> int:
    """A size times a scale, which is rounded as by those who run files: 6 times float32(5 / 6) is 5."""
    return math.floor(np.float32(size) * np.float32(scale))


def _nearest(node: Node, before: int, after: int, scale: float) -> np.ndarray[Any, Any] | None:
    """Which entry before each entry after is; None for other ways of placing them.

    In float32, as by those who run files: entry 1 at a scale of float32(1 / 3) is 3, and not just below it.
    """
    place, one = np.arange(after, dtype=np.float32), np.float32(1)
    match text(node.get("coordinate_transformation_mode", "half_pixel")):
        case "pytorch_half_pixel" if after == 1:
            place = place * 0  # the first entry, says the standard, and its reference does otherwise
        case "half_pixel" | "pytorch_half_pixel":
            place = (place + one / 2) / np.float32(scale) - one / 2
        case "asymmetric":
            place = place / np.float32(scale)
        case "tf_half_pixel_for_nn":
            place = (place + one / 2) / np.float32(scale)
        case "align_corners":
            place = place * np.float32(before - 1) / np.float32(max(after - 1, 1))
        case _:
            return None
    match text(node.get("nearest_mode", "round_prefer_floor")):
        case "floor":
            place = np.floor(place)
        case "ceil":
            place = np.ceil(place)
        case "round_prefer_ceil":
            place = np.floor(place + one / 2)
        case _:
            place = np.ceil(place - one / 2)
    return place.clip(0, before - 1).astype(np.int64)


def _weights_of_places(node: Node, before: int, after: int, scale: float) -> np.ndarray[Any, Any]:
    """What each entry before gives to each after, (before, after): what a Resize makes of the unit vectors."""
    way, smooth = text(node.get("coordinate_transformation_mode", "")), node.get("antialias", 0)
    if after == 1 and way == "pytorch_half_pixel":
        if smooth:
            raise UnsupportedNode("smooths (antialias) down to one entry, for which pytorch_half_pixel has no place")
        return np.eye(before, 1)
    by_scale = math.floor(before * float(np.float32(scale))) == after
    if way == "align_corners" and before * scale != after:
        # The reference takes before * scale for the size after, and those who run files its whole part.
        if smooth:
            raise UnsupportedNode(f"smooths (antialias) with align_corners, and {before} times {scale:.4g} is no size")
        by_scale = False
    places = _nearest(node, before, after, scale) if text(node.get("mode", "nearest")) == "nearest" else None
    if places is not None:
        return np.eye(before, dtype=np.float32)[:, places]
    wanted = ("mode", "coordinate_transformation_mode", "nearest_mode", "cubic_coeff_a", "exclude_outside", "antialias")
    own = {name: value for name, value in node.attributes.items() if name in wanted}
    given = {"x": np.eye(before, dtype=np.float32)}
    if by_scale:
        given["scales"] = np.array([1, scale], np.float32)
        proto = helper.make_node("Resize", ["x", "", "scales"], ["y"], **own)
    else:
        given["sizes"] = np.array([before, after])
        proto = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **own)
    (matrix,) = ReferenceEvaluator(proto).run(None, given)  # pyright: ignore[reportGeneralTypeIssues]
    return np.asarray(matrix)
