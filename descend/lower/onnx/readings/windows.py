"""Convolutions, pooling, and what they go over: padding and resized images."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.graph import BilinearResize, Concatenation, Convolution, Deconvolution, Pooling, TensorPermute, Upsample
from descend.lower.onnx.reader import Fixed, Node, Reader, Refused, Tensor, Value, reads
from descend.lower.onnx.readings.steps import FEW, cut, padded, reduced, text

if TYPE_CHECKING:
    from descend.graph import Layer


Shape = tuple[int, ...]


def _window(r: Reader, node: Node, x: Tensor, size: Shape, fill: float | None) -> tuple[Tensor, dict[str, Any]]:
    """What a window goes over, and its stride, padding and dilation.

    Where the ends of a dimension are padded differently, x is padded before it: with `fill`, if there is one.
    """
    space = x.shape[1:]
    dims = len(size)
    strides, dilations = tuple(node.get("strides", [1] * dims)), tuple(node.get("dilations", [1] * dims))
    auto = node.get("auto_pad", b"NOTSET")
    auto = auto.decode() if isinstance(auto, bytes) else auto
    pads = list(node.get("pads", [0] * 2 * dims))
    if auto.startswith("SAME"):
        spans = [(k - 1) * d + 1 for k, d in zip(size, dilations, strict=True)]
        needed = [max((-(-n // s) - 1) * s + k - n, 0) for n, s, k in zip(space, strides, spans, strict=True)]
        small, large = [n // 2 for n in needed], [n - n // 2 for n in needed]
        pads = [*small, *large] if auto == "SAME_UPPER" else [*large, *small]
    if node.get("ceil_mode", 0):
        spans = [(k - 1) * d + 1 for k, d in zip(size, dilations, strict=True)]
        ends = zip(space, spans, strides, pads[:dims], pads[dims:], strict=True)
        pads[dims:] = [end + _over(n + begin, end, k, s) for n, k, s, begin, end in ends]
    if pads[:dims] == pads[dims:]:
        return x, {"stride": strides, "padding": tuple(pads[:dims]), "dilation": dilations}
    if fill is None:
        raise Refused(f"pads the two ends of a dimension differently ({pads}) and leaves padding out of its means")
    sides = [(0, 0), *zip(pads[:dims], pads[dims:], strict=True)]
    return padded(r, node, x, sides, fill), {"stride": strides, "padding": (0,) * dims, "dilation": dilations}


def _over(begun: int, end: int, span: int, stride: int) -> int:
    """How far the last window hangs over the end, where it begins before the padding there."""
    count = -(-(begun + end - span) // stride) + 1
    count -= (count - 1) * stride >= begun
    return (count - 1) * stride + span - begun - end


@reads("Pad")
def pad(r: Reader, node: Node) -> Value:
    """Constants before and behind; mirrored or repeated entries a few at a time."""
    x, mode = node.tensor(), text(node.get("mode", "constant"))
    how: Any = mode  # numpy's names for them are the same
    pads, dims = node.ints(1, "pads") or (), len(x.shape) + 1
    axes = node.ints(3, "axes") or tuple(range(len(pads) // 2))
    sides = [(0, 0)] * dims
    for axis, before, behind in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        sides[axis % dims] = (before, behind)
    if sides[0] != (0, 0):
        raise Refused("adds samples")
    if mode == "constant":
        return padded(r, node, x, sides[1:], node.float(2, "value", 0.0))
    for axis, (before, behind) in enumerate(sides[1:]):
        if (before, behind) != (0, 0):
            x = _extended(r, node, x, axis, np.pad(np.arange(x.shape[axis]), _counts(node, before, behind), how))
    return x


def _counts(node: Node, before: int, behind: int) -> tuple[int, int]:
    if min(before, behind) < 0 or max(before, behind) > FEW:
        raise Refused(f"repeats {before} and {behind} entries, and 0 to {FEW} are put together here")
    return before, behind


def _extended(r: Reader, node: Node, x: Tensor, axis: int, places: np.ndarray[Any, Any]) -> Tensor:
    """Entries at places along an axis, of which the middle ones are all of x in their order."""
    own = np.arange(x.shape[axis])
    begin = next(i for i in range(len(places)) if (places[i : i + len(own)] == own).all())
    parts: list[Tensor] = []
    for i, place in enumerate([*places[:begin], None, *places[begin + len(own) :]]):
        name = f"{node.name}/{axis}_{i}"
        parts.append(x if place is None else cut(r, name, x, axis, int(place), int(place) + 1))
    return r.layer(Concatenation, f"{node.name}/padded{axis}", *parts, axis=axis)


@reads("Conv", "ConvTranspose")
def convolution(r: Reader, node: Node) -> Value:
    """Convolution or Deconvolution."""
    kernel, bias = node.fixed(1), node.given(2)
    dims = kernel.array.ndim - 2
    x = node.tensor(0, dims + 1)
    group = node.get("group", 1)
    transposed = node.kind == "ConvTranspose"
    x, fields = _window(r, node, x, kernel.array.shape[2:], None if transposed else 0.0)
    kind: type[Layer] = Convolution
    channels = kernel.array.shape[0]
    if transposed:
        kind, channels = Deconvolution, kernel.array.shape[1] * group
        fields["output_padding"] = tuple(node.get("output_padding", [0] * dims))
        if "output_shape" in node.attributes:
            raise Refused("has output_shape in place of pads")
    weights = [r.weights(kernel, f"{node.name}/kernel")]
    if bias is not None:
        weights.append(r.weights(node.fixed(2), f"{node.name}/bias"))
    size = kernel.array.shape[2:]
    own: dict[str, Any] = {"num_dims": dims, "out_channels": channels, "kernel_size": size, "groups": group}
    return r.layer(kind, node, x, weights=weights, has_bias=bias is not None, **own, **fields)


@reads("MaxPool", "AveragePool")
def pooling(r: Reader, node: Node) -> Value:
    """Pooling."""
    size = tuple(node.get("kernel_shape", ()))
    mode = "max" if node.kind == "MaxPool" else "average" if node.get("count_include_pad", 0) else "average_no_pad"
    counted = 0.0 if mode == "average" and not node.get("ceil_mode", 0) else None
    x, window = _window(r, node, node.tensor(), size, -math.inf if mode == "max" else counted)
    if node.outputs > 1 or any(one != 1 for one in window["dilation"]):
        raise Refused("hands out places, or has dilations")
    own: dict[str, Any] = {"pool_mode": mode, "num_dims": len(size), "has_vectors": True, "pool_dims": size}
    return r.layer(Pooling, node, x, pool_strides=window["stride"], pool_pads=window["padding"], **own)


@reads("GlobalAveragePool", "GlobalMaxPool")
def global_pooling(r: Reader, node: Node) -> Value:
    """A reduction over space."""
    x = node.tensor()
    axes = tuple(range(2, len(x.shape) + 1))
    return reduced(r, node, x, "mean" if node.kind == "GlobalAveragePool" else "max", axes, True)


@reads("DepthToSpace", "SpaceToDepth")
def space_and_depth(r: Reader, node: Node) -> Value:
    """Blocks of an image as channels, or the other way."""
    x, b = node.tensor(0, 3), node.get("blocksize", 1)
    channels, height, width = x.shape
    if node.kind == "SpaceToDepth":
        split, axes = (channels, height // b, b, width // b, b), (2, 4, 0, 1, 3)
        shape = (channels * b * b, height // b, width // b)
    else:
        shape = (channels // (b * b), height * b, width * b)
        columns_first = text(node.get("mode", "DCR")) == "CRD"
        split = (shape[0], b, b, height, width) if columns_first else (b, b, shape[0], height, width)
        axes = (0, 3, 1, 4, 2) if columns_first else (2, 3, 0, 4, 1)
    apart = r.reshaped(x, split, f"{node.name}/apart")
    return r.reshaped(r.layer(TensorPermute, f"{node.name}/turned", apart, axes=axes), shape, node.name)


@reads("Resize")
def resize(r: Reader, node: Node) -> Value:
    """Upsample by whole factors, or BilinearResize of images."""
    x = node.tensor()
    scales, sizes = node.given(2), node.given(3)
    if isinstance(sizes, Fixed):
        after = tuple(int(size) for size in sizes.array[1:])
    elif isinstance(scales, Fixed):
        after = tuple(math.floor(size * scale) for size, scale in zip(x.shape, scales.array[1:].tolist(), strict=True))
    else:
        raise Refused("computes its size from the data")
    mode, place, rounding = (
        text(node.get(name, unset))
        for name, unset in (
            ("mode", "nearest"),
            ("coordinate_transformation_mode", "half_pixel"),
            ("nearest_mode", "round_prefer_floor"),
        )
    )
    channels_stay = after[0] == x.shape[0]
    whole = all(a % b == 0 for a, b in zip(after, x.shape, strict=True))
    # Of these pairs each gives entry ⌊i / factor⌋ for place i.
    repeats = (place, rounding) in (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"))
    if channels_stay and mode == "nearest" and whole and repeats:
        factors = tuple(a // b for a, b in zip(after[1:], x.shape[1:], strict=True))
        own: dict[str, Any] = {"num_dims": len(factors), "has_vectors": True, "scale_factors": factors}
        return r.layer(Upsample, node, x, upsample_mode="nearest", **own)
    if channels_stay and len(after) == 3 and mode == "linear" and place in ("half_pixel", "pytorch_half_pixel"):
        return r.layer(BilinearResize, node, x, height=after[1], width=after[2])
    raise Refused(f"has mode {mode}, {place}, from {x.shape} to {after}")
