"""Layers that bring numbers to a common size, by statistics of the mini-batch, of the sample, or of neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from descend.arguments.leniency import Deviation
from descend.errors import GraphError
from descend.graph.kinds.base import Entrywise
from descend.graph.layer import WeightSlot, refuses, shown
from descend.graph.weights import ConstantInitializer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.graph.layer import Incoming, Shape

__all__ = [
    "BatchNormalization",
    "Dropout",
    "EntrywiseBatchNormalization",
    "InstanceNorm",
    "LayerNorm",
    "LocalResponseNormalization",
    "SeluDropout",
]

_ONE, _ZERO = ConstantInitializer(1.0), ConstantInitializer(0.0)


def _check_decay(decay: float, epsilon: float) -> None:
    if not 0 <= decay <= 1:
        raise GraphError(f"has decay {decay!r}; expected 0 to 1 (0.9 is usual)")
    if not epsilon >= 0:
        raise GraphError(f"has epsilon {epsilon!r}; expected at least 0 (1e-5 is usual)")


class BatchNormalization(Entrywise):
    """y = scale (x − μ) / √(σ² + ε) + bias for each channel, over mini-batch and space.

        σ² = max(Σ (x − μ)² / (n − 1), ε)        n = samples of the group · entries of a channel

    So ε counts twice where the variance is small. In training μ and σ² are those of the group, and
    running ← decay · running + (1 − decay) · (μ, σ²); in evaluation they are the running ones. With n = 1 the variance
    is 1 and the running values stay. With `no_bessel_correction` σ² is divided by n. Unset: decay 0.9, ε 1e-5.

    The group is the model's `batch_norm_group_size` samples in the order of the mini-batch; what is left over is a
    group of its own, and the running values take one group after the other. Then a mini-batch may be cut into parts of
    whole groups. Without it the group is the whole mini-batch, whatever statistics_group_size says (on one process its
    values 0 or 1 (a process), n (n processes) and −1 (all) are all that), and one in several parts is refused.

    Shapes: x (C, ...); four weights of (C,): scale (1), bias (0), running_mean (0), running_variance (1), of which the
    last two are never trained.
    Source: Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167, with LBANN's variance and ε.
    """

    message: ClassVar[str] = "Layer.BatchNormalization"
    normalizes: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = {"decay": 0.9, "epsilon": 1e-5}

    decay: float = 0.0
    epsilon: float = 0.0
    statistics_group_size: int = 0
    no_bessel_correction: bool = False
    scale_init: float = 0.0
    bias_init: float = 0.0
    stats_aggregation: str = ""

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of the input."""
        _check_decay(self.setting("decay"), self.setting("epsilon"))
        problem = "has scale_init or bias_init, which LBANN reads and does not use"
        if (self.scale_init not in (0.0, 1.0) or self.bias_init != 0.0) and refuses(
            self, Deviation.SETTING_WITHOUT_EFFECT, problem
        ):
            raise GraphError(
                f"{problem}: give it weights instead, weights=[Weights(ConstantInitializer(value=...)), ...]"
            )
        return inputs[0].shape

    def weight_slots(self, inputs: tuple[Incoming, ...]) -> tuple[WeightSlot, ...]:
        """Scale, bias, running mean and running variance."""
        shape = inputs[0].shape[:1]
        return (
            WeightSlot("scale", shape, _ONE),
            WeightSlot("bias", shape, _ZERO),
            WeightSlot("running_mean", shape, _ZERO, trainable=False),
            WeightSlot("running_variance", shape, _ONE, trainable=False),
        )


class EntrywiseBatchNormalization(Entrywise):
    """y = (x − μ) / √(σ² + ε) for each entry of the sample, over the group. There is no scale and no bias.

    The group is that of `BatchNormalization`.

    σ² = Σ (x − μ)² / n in training; the running variance takes it times n / (n − 1), and
    running ← decay · running + (1 − decay) · batch. In evaluation the running values are used. With n = 1 the variance
    is 1 and the running values stay. **decay and epsilon have no defaults**: unset they are 0.

    Shapes: x any; two weights of its shape, running_mean (0) and running_variance (1), which are never trained.
    """

    message: ClassVar[str] = "Layer.EntrywiseBatchNormalization"
    normalizes: ClassVar[bool] = True

    decay: float = 0.0
    epsilon: float = 0.0

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of the input."""
        _check_decay(self.decay, self.epsilon)
        return inputs[0].shape

    def weight_slots(self, inputs: tuple[Incoming, ...]) -> tuple[WeightSlot, ...]:
        """Running mean and running variance."""
        shape = inputs[0].shape
        return (
            WeightSlot("running_mean", shape, _ZERO, trainable=False),
            WeightSlot("running_variance", shape, _ONE, trainable=False),
        )


class LayerNorm(Entrywise):
    """y = (x − μ) / √(σ² + ε) over the dimensions of the sample from `start_dim` on, then scale and bias if asked for.

    σ² is divided by n. ε is 1e-5 unless set; start_dim is 0 unless set and may be negative.

    Shapes: x any; scale (1) and bias (0), each if asked for and in this order, have the normalized dimensions.
    Source: Ba, Kiros and Hinton 2016, https://arxiv.org/abs/1607.06450
    """

    message: ClassVar[str] = "Layer.LayerNorm"
    normalizes: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = {"epsilon": 1e-5}

    epsilon: float | None = None
    scale: bool = False
    bias: bool = False
    start_dim: int = 0

    def normalized(self, shape: Shape) -> Shape:
        """The dimensions that statistics are taken over."""
        return shape[self.start_dim :]

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of the input."""
        (incoming,) = inputs
        dims = len(incoming.shape)
        if not -dims <= self.start_dim < dims:
            raise GraphError(f"has start_dim {self.start_dim}, and {incoming}: expected {-dims} to {dims - 1}")
        _check_decay(0.0, self.setting("epsilon"))
        return incoming.shape

    def weight_slots(self, inputs: tuple[Incoming, ...]) -> tuple[WeightSlot, ...]:
        """Scale and bias, each if asked for."""
        shape = self.normalized(inputs[0].shape)
        scale = (WeightSlot("scale", shape, _ONE),) if self.scale else ()
        return (*scale, WeightSlot("bias", shape, _ZERO)) if self.bias else scale


class InstanceNorm(Entrywise):
    """y = (x − μ) / √(σ² + ε) over each channel of each sample; σ² is divided by n, ε is 1e-5 unless set.

    Shapes: x (C, ...). A channel of one entry gives 0.
    Source: Ulyanov, Vedaldi and Lempitsky 2016, https://arxiv.org/abs/1607.08022
    """

    message: ClassVar[str] = "Layer.InstanceNorm"
    defaults: ClassVar[Mapping[str, Any]] = {"epsilon": 1e-5}

    epsilon: float | None = None

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of the input."""
        _check_decay(0.0, self.setting("epsilon"))
        return inputs[0].shape


class LocalResponseNormalization(Entrywise):
    """y = x / (k + α Σ x²)^β, the sum over the channels from c − ⌊window / 2⌋ to c + ⌊window / 2⌋.

    α is not divided by the width of the window. **Nothing is filled in**: unset fields are 0.

    Shapes: x (C, ...).
    Source: Krizhevsky, Sutskever and Hinton 2012, section 3.3; their values are window 5, α 1e-4, β 0.75, k 2.
    """

    message: ClassVar[str] = "Layer.LocalResponseNormalization"

    window_width: int = 0
    lrn_alpha: float = 0.0
    lrn_beta: float = 0.0
    lrn_k: float = 0.0

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of the input."""
        if self.window_width < 1:
            raise GraphError(f"has window_width {self.window_width}; it must be at least 1 (5 is usual)")
        if not self.lrn_k and not self.lrn_alpha:
            raise GraphError(
                f"has lrn_k 0 and lrn_alpha 0, so it would divide {shown(inputs[0].shape)} by 0: set them (2 and 1e-4)"
            )
        return inputs[0].shape


# ---- layers that drop entries in training

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def _check_keep_prob(keep_prob: float) -> None:
    if not (keep_prob < 0 or 0 < keep_prob <= 1):
        raise GraphError(
            f"has keep_prob {keep_prob!r}; expected above 0 and up to 1 (0.5 is usual), or negative for off"
        )


class Dropout(Entrywise):
    """In training keeps each entry with probability keep_prob and divides it by keep_prob; in evaluation y = x.

    LBANN gives keep_prob no default, so an unset one (0) is refused rather than dropping everything; a negative one
    turns the layer off.

    Source: Srivastava et al. 2014, Dropout: A Simple Way to Prevent Neural Networks from Overfitting.
    """

    message: ClassVar[str] = "Layer.Dropout"

    keep_prob: float = 0.0

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of the input."""
        _check_keep_prob(self.keep_prob)
        return inputs[0].shape


class SeluDropout(Entrywise):
    """Dropout that keeps mean and variance behind a Selu; in evaluation y = x.

        y = a x + b      where an entry is kept, with probability q = keep_prob
        y = a α' + b     elsewhere
        α' = −scale alpha,   a = (q + α'² q (1 − q))^−½,   b = −a (1 − q) α'

    alpha and scale are those of Selu unless both are set. keep_prob is as in Dropout.

    Source: Klambauer et al. 2017, Self-Normalizing Neural Networks, https://arxiv.org/abs/1706.02515
    """

    message: ClassVar[str] = "Layer.SeluDropout"

    keep_prob: float = 0.0
    alpha: float = 0.0
    scale: float = 0.0

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of the input."""
        _check_keep_prob(self.keep_prob)
        return inputs[0].shape

    def dropped_value(self) -> float:
        """α', what stands for a dropped entry."""
        alpha, scale = (self.alpha, self.scale) if self.alpha and self.scale else (_SELU_ALPHA, _SELU_SCALE)
        return -scale * alpha
