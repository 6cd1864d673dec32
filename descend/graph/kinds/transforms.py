"""Layers without weights that move, join, pool or pass on tensors."""

from __future__ import annotations

import copy
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING, ClassVar

from descend.arguments.leniency import Deviation
from descend.errors import GraphError
from descend.graph.kinds.base import Entrywise, SameShape, per_dimension, window_shape
from descend.graph.kinds.linear_and_convolution import Window, check_channels_first
from descend.graph.layer import Incoming, Layer, Shape, refuses, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.graph.layer import Incoming, Shape

__all__ = [
    "BilinearResize",
    "CompositeImageTransformation",
    "Concatenation",
    "Cross_Grid_Sum",
    "Cross_Grid_Sum_Slice",
    "Cutout",
    "Dummy",
    "Evaluation",
    "Hadamard",
    "IdentityZero",
    "Pooling",
    "Reshape",
    "Rotation",
    "Slice",
    "Split",
    "StopGradient",
    "Sum",
    "WeightedSum",
]


class Concatenation(Layer):
    """The parents one after the other along `axis`, which is 0 unless set and not negative.

    Shapes: all parents alike but for the axis; the output has the sum of their sizes there.
    """

    message: ClassVar[str] = "Layer.Concatenation"
    num_parents: ClassVar[int | None] = None

    axis: int = 0

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The parents' shape with the sum of their sizes along the axis."""
        first, axis = inputs[0], self.axis
        if not 0 <= axis < len(first.shape):
            raise GraphError(f"has axis {axis}, and {first}: expected 0 to {len(first.shape) - 1}")
        for other in inputs:
            if (
                len(other.shape) != len(first.shape)
                or other.shape[:axis] + other.shape[axis + 1 :] != first.shape[:axis] + first.shape[axis + 1 :]
            ):
                raise GraphError(f"joins along axis {axis}, so its parents may differ there alone; {first} and {other}")
        return (*first.shape[:axis], sum(one.shape[axis] for one in inputs), *first.shape[axis + 1 :])


class Dummy(Entrywise):
    """Consumes an output that has no other child. Inserted where it is missing."""

    message: ClassVar[str] = "Layer.Dummy"
    num_children: ClassVar[int | None] = 0


class Evaluation(Entrywise):
    """Hands the mean over the mini-batch to the objective or a metric. Needs one entry a sample."""

    message: ClassVar[str] = "Layer.Evaluation"
    num_children: ClassVar[int | None] = 0

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """One entry."""
        if inputs[0].size != 1:
            raise GraphError(
                f"needs one number a sample, and {inputs[0]}: put a loss such as CrossEntropy or a Reduction behind it"
            )
        return inputs[0].shape


class Pooling(Layer):
    """The largest or mean entry of each window; `pool_mode` is max, average (padding counts as 0) or average_no_pad.

    The mode max_deterministic of LBANN is taken for max, which on a CPU adds up its gradient in one order.

    Shapes: x (C, *space) with `num_dims` spatial dimensions; y (C, *places), places floor((in + 2 pad − window) /
    stride) + 1. With `has_vectors` the windows are pool_dims, pool_pads and pool_strides; without it the single
    numbers pool_dims_i, pool_pads_i and pool_strides_i hold for all dimensions. LBANN fills nothing in.
    """

    message: ClassVar[str] = "Layer.Pooling"

    pool_mode: str = ""
    num_dims: int = 0
    has_vectors: bool = False
    pool_dims: tuple[int, ...] = ()
    pool_pads: tuple[int, ...] = ()
    pool_strides: tuple[int, ...] = ()
    pool_dims_i: int = 0
    pool_pads_i: int = 0
    pool_strides_i: int = 0

    @property
    def takes_largest(self) -> bool:
        """Whether it gives the largest entry, and else the mean."""
        return self.pool_mode in ("max", "max_deterministic")

    def window(self) -> Window:
        """Size, stride and padding of the windows for each dimension.

        Raises:
            GraphError: one of them has the wrong length or a number out of range.
        """
        dims = self.num_dims
        if not 1 <= dims <= 3:
            raise GraphError(f"has num_dims {dims}; it must be 1 to 3 (2 for images)")
        if not self.has_vectors and (self.pool_dims or self.pool_pads or self.pool_strides):
            raise GraphError(
                "has pool_dims, pool_pads or pool_strides, which count with has_vectors alone: set has_vectors"
            )
        if self.has_vectors and (self.pool_dims_i or self.pool_pads_i or self.pool_strides_i):
            raise GraphError(
                "has pool_dims_i, pool_pads_i or pool_strides_i, which count without has_vectors alone: "
                "write pool_dims, pool_pads and pool_strides"
            )
        single = not self.has_vectors
        end = "_i" if single else ""
        return Window(
            per_dimension(f"pool_dims{end}", (self.pool_dims_i,) if single else self.pool_dims, dims, None, 1),
            per_dimension(f"pool_strides{end}", (self.pool_strides_i,) if single else self.pool_strides, dims, None, 1),
            per_dimension(f"pool_pads{end}", (self.pool_pads_i,) if single else self.pool_pads, dims, 0, 0),
            (1,) * dims,
        )

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """(C, *places)."""
        (incoming,) = inputs
        if not self.takes_largest and self.pool_mode not in ("average", "average_no_pad"):
            raise GraphError(f"has pool_mode '{self.pool_mode}'; expected max, average or average_no_pad")
        window = self.window()
        if any(pad >= size for pad, size in zip(window.padding, window.size, strict=True)):
            raise GraphError(
                f"has windows of {shown(window.size)} and padding {shown(window.padding)}, so a window would be in "
                "the padding alone; the padding must be smaller"
            )
        check_channels_first(incoming, self.num_dims)
        return (incoming.shape[0], *window_shape(incoming, window.size, window.stride, window.padding, window.dilation))


class Reshape(Layer):
    """The same entries, row by row, in other dimensions `dims`, of which one may be −1 and is then worked out."""

    message: ClassVar[str] = "Layer.Reshape"
    sized_by: ClassVar[str] = "dims"

    dims: tuple[int, ...] = ()

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """`dims` with −1 worked out."""
        (incoming,) = inputs
        if not self.dims and incoming.size == 1 and not refuses(self, Deviation.RESHAPE_TO_SCALAR, "has no dims"):
            return (1,)
        known = prod(size for size in self.dims if size != -1)
        if not self.dims or self.dims.count(-1) > 1 or any(size < 1 and size != -1 for size in self.dims):
            raise GraphError(f"has dims {shown(self.dims)}; expected sizes of at least 1, one of which may be -1")
        dims = tuple(incoming.size // known if size == -1 else size for size in self.dims)
        if prod(dims) != incoming.size:
            raise GraphError(f"has dims {shown(self.dims)}, and {incoming}, which has {incoming.size} entries")
        return dims


class Split(Layer):
    """The input for each child; in the backward pass the gradients are added. Inserted where it is missing."""

    message: ClassVar[str] = "Layer.Split"
    num_children: ClassVar[int | None] = None

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of the input."""
        return inputs[0].shape

    def output_shapes(self, inputs: tuple[Incoming, ...], children: int) -> tuple[Shape, ...]:
        """The shape of the input, for each child."""
        return (self.output_shape(inputs),) * max(children, 1)


class Sum(SameShape):
    """y = Σ xᵢ over all parents, which have one shape."""

    message: ClassVar[str] = "Layer.Sum"


class Cross_Grid_Sum(SameShape):  # noqa: N801  # the format's own spelling
    """y = Σ xᵢ over all parents, for each child. LBANN's parents come from sub-grids of processes."""

    message: ClassVar[str] = "Layer.Cross_Grid_Sum"
    num_children: ClassVar[int | None] = None

    def output_shapes(self, inputs: tuple[Incoming, ...], children: int) -> tuple[Shape, ...]:
        """The shape of every input, for each child."""
        return (self.output_shape(inputs),) * max(children, 1)


class Cross_Grid_Sum_Slice(SameShape):  # noqa: N801  # the format's own spelling
    """Σ xᵢ over all parents, cut along the first dimension in equal pieces, one a child in their order.

    LBANN's parents come from sub-grids of processes, and its children go to them.
    """

    message: ClassVar[str] = "Layer.Cross_Grid_Sum_Slice"
    num_children: ClassVar[int | None] = None

    def output_shapes(self, inputs: tuple[Incoming, ...], children: int) -> tuple[Shape, ...]:
        """An equal piece for each child."""
        shape, pieces = self.output_shape(inputs), max(children, 1)
        if shape[0] % pieces:
            raise GraphError(
                f"cuts in {pieces} equal pieces, one a child, and {inputs[0]}: {shape[0]} is not a multiple"
            )
        return ((shape[0] // pieces, *shape[1:]),) * pieces


class Hadamard(SameShape):
    """y = Π xᵢ, entry by entry, over all parents, which have one shape."""

    message: ClassVar[str] = "Layer.Hadamard"


class IdentityZero(Entrywise):
    """y = x; while the layer is frozen zeros, and no gradient."""

    message: ClassVar[str] = "Layer.IdentityZero"


class Slice(Layer):
    """Cut along `axis` into pieces, one a child in the order of the children.

    Piece i goes from slice_points[i] up to, without, slice_points[i + 1]. The points rise; they need not begin at 0
    nor reach the end, and the gradient of what is left out is 0.

    With get_slice_points_from_reader the points are those where a reader has joined arrays to one field: the field of
    this name, or "samples" for independent and "responses" for dependent, LBANN's words.
    """

    message: ClassVar[str] = "Layer.Slice"
    num_children: ClassVar[int | None] = None

    axis: int = 0
    slice_points: tuple[int, ...] = ()
    get_slice_points_from_reader: str = ""

    def cut_like(self, pieces: Mapping[str, Shape]) -> Slice:
        """The same layer with the points at which a field was joined; as it is where no such field is joined.

        Args:
            pieces: Sizes of the joined arrays by field.
        """
        asked = self.get_slice_points_from_reader
        sizes = pieces.get({"independent": "samples", "dependent": "responses"}.get(asked, asked))
        if sizes is None or self.slice_points:
            return self
        cut = copy.copy(self)
        cut.slice_points, cut.get_slice_points_from_reader = tuple(accumulate(sizes, initial=0)), ""
        return cut

    def output_shapes(self, inputs: tuple[Incoming, ...], children: int) -> tuple[Shape, ...]:
        """The shape of each piece."""
        (incoming,) = inputs
        shape, axis, points = incoming.shape, self.axis, self.slice_points
        if self.get_slice_points_from_reader:
            asked = self.get_slice_points_from_reader
            why = (
                "slice_points as well: leave one out" if points else "no reader joins such a field: write slice_points"
            )
            raise GraphError(f"has get_slice_points_from_reader '{asked}', and {why}")
        if not 0 <= axis < len(shape):
            raise GraphError(f"has axis {axis}, and {incoming}: expected 0 to {len(shape) - 1}")
        if len(points) < 2 or list(points) != sorted(set(points)) or points[0] < 0 or points[-1] > shape[axis]:
            raise GraphError(
                f"has slice_points {list(points)}, and {incoming}: "
                f"expected two or more rising numbers from 0 to {shape[axis]}"
            )
        pieces, taken = len(points) - 1, max(children, 1)
        problem = f"has slice_points for {pieces} pieces and {children} children"
        if pieces < taken or (pieces > taken and refuses(self, Deviation.SPARE_SLICE_POINTS, problem)):
            raise GraphError(f"{problem}; give each piece a child (a Dummy for one that is not wanted)")
        sizes = [end - begin for begin, end in pairwise(points)][:taken]
        return tuple((*shape[:axis], size, *shape[axis + 1 :]) for size in sizes)


class StopGradient(Entrywise):
    """y = x, and no gradient goes back."""

    message: ClassVar[str] = "Layer.StopGradient"


class WeightedSum(SameShape):
    """y = Σ scaling_factors[i] xᵢ over all parents, which have one shape; as many factors as parents."""

    message: ClassVar[str] = "Layer.WeightedSum"

    scaling_factors: tuple[float, ...] = ()

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of every input."""
        if len(self.scaling_factors) != len(inputs):
            raise GraphError(
                f"has {len(self.scaling_factors)} scaling_factors and {len(inputs)} parents; expected equally many"
            )
        return super().output_shape(inputs)


# ---- layers that change images (channels, height, width). No gradient flows through them


def _check_image(incoming: Incoming) -> None:
    if len(incoming.shape) != 3:
        raise GraphError(f"needs an image (channels, height, width), and {incoming}: put a Reshape between them")


class BilinearResize(Layer):
    """Images of `height` x `width`, each pixel a mean of the four around its place, weighted by nearness.

    Pixel centres lie at one half, so output pixel i stands at (i + ½) · in / out − ½ of the input; edges go on outside.
    """

    message: ClassVar[str] = "Layer.BilinearResize"

    height: int = 0
    width: int = 0

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """(C, height, width)."""
        _check_image(inputs[0])
        if self.height < 1 or self.width < 1:
            raise GraphError(f"has height {self.height} and width {self.width}; both must be at least 1")
        return (inputs[0].shape[0], self.height, self.width)


class _WithNumbers(Layer):
    """An image and a few numbers that say what becomes of it."""

    counts: ClassVar[dict[str, int]]

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of the image."""
        image, *numbers = inputs
        _check_image(image)
        for (what, count), given in zip(self.counts.items(), numbers, strict=True):
            if given.size != count:
                raise GraphError(f"needs {what} of {count} number{'' if count == 1 else 's'}, and {given}")
        return image.shape


class Rotation(_WithNumbers):
    """The image turned against the clock by an angle in degrees, the second parent; bilinear, and zero outside.

    Output pixel (x, y) is taken from (c + R (p − c)) of the input, with p = (x, y), y downwards,
    c = (⌊W / 2⌋, ⌊H / 2⌋) and R = [[cos, −sin], [sin, cos]].
    """

    message: ClassVar[str] = "Layer.Rotation"
    num_parents: ClassVar[int | None] = 2
    counts: ClassVar[dict[str, int]] = {"an angle": 1}


class CompositeImageTransformation(_WithNumbers):
    """The image turned, sheared and moved. Parents: image, angle in degrees, shear (x, y), translation (x, y).

    Output pixel p is taken from c + S R (p − c) + t of the input: c and R as in Rotation, S = [[1, shear x],
    [shear y, 1]], t the translation in pixels. Bilinear, and zero outside.
    """

    message: ClassVar[str] = "Layer.CompositeImageTransformation"
    num_parents: ClassVar[int | None] = 4
    counts: ClassVar[dict[str, int]] = {"an angle": 1, "a shear": 2, "a translation": 2}


class Cutout(_WithNumbers):
    """The image with a square of zeros; the second parent is its side s in pixels, rounded down.

    The centre (row, column) is a random pixel, one for the whole mini-batch; the square goes from centre − ⌊s / 2⌋
    over s pixels, as far as the image does. It is cut in training and in evaluation.

    Source: DeVries and Taylor 2017, https://arxiv.org/abs/1708.04552
    """

    message: ClassVar[str] = "Layer.Cutout"
    num_parents: ClassVar[int | None] = 2
    counts: ClassVar[dict[str, int]] = {"a side": 1}
