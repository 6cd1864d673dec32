"""Residual networks of 18 to 152 layers, in version 1.5, and wide ones.

    block      y = relu(f(x) + g(x))      f: two 3 x 3 convolutions, or 1 x 1, 3 x 3 and 1 x 1 ("bottleneck")
                                          g: the identity, or a 1 x 1 convolution where shapes differ

Each convolution has no bias and batch normalization behind it. Version 1.5 has the step of a bottleneck at its 3 x 3
convolution.

Source: He et al. 2015, https://arxiv.org/abs/1512.03385, table 1; Goyal et al. 2017, https://arxiv.org/abs/1706.02677,
section 5.1, for the scale that begins at 0 and the last layer that starts as N(0, 0.01²).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from descend.arguments.strict_keywords import also_takes
from descend.errors import ConfigurationError
from descend.graph import (
    Add,
    BatchNormalization,
    ChannelwiseMean,
    ConstantInitializer,
    NormalInitializer,
    Pooling,
    Relu,
    Weights,
)
from descend.zoo.modules import ConvolutionModule, FullyConnectedModule, Module

if TYPE_CHECKING:
    from descend.graph import Layer

__all__ = ["ResNet", "ResNet18", "ResNet34", "ResNet50", "ResNet101", "ResNet152", "WideResNet50_2"]


class _ConvBN(Module):
    """Convolution, batch normalization and, if asked for, Relu."""

    def __init__(
        self, channels: int, kernel_size: int, stride: int, name: str, group: int, relu: bool, scale: float = 1.0
    ) -> None:
        super().__init__(name)
        self.convolution = ConvolutionModule(
            2, channels, kernel_size, stride, kernel_size // 2, bias=False, name=f"{name}_conv"
        )
        self.group, self.relu = group, relu
        self.weights = [
            Weights(ConstantInitializer(scale), name=f"{name}_bn_scale"),
            Weights(ConstantInitializer(), name=f"{name}_bn_bias"),
            Weights(ConstantInitializer(), name=f"{name}_bn_running_mean"),
            Weights(ConstantInitializer(1.0), name=f"{name}_bn_running_variance"),
        ]

    def forward(self, x: Layer) -> Layer:
        x = BatchNormalization(
            self.convolution(x), weights=self.weights, statistics_group_size=self.group, name=self.label("bn")
        )
        return Relu(x, name=self.label("relu")) if self.relu else x


class _Block(Module):
    """One residual block; `inner` is the width of its first convolution, `outer` that of its output."""

    def __init__(
        self,
        inner: int,
        outer: int,
        stride: int,
        name: str,
        *,
        bottleneck: bool,
        new_shape: bool,
        gamma_0: float,
        group: int,
    ) -> None:
        super().__init__(name)
        kernels = [1, 3, 1] if bottleneck else [3, 3]
        strides = [1, stride, 1] if bottleneck else [stride, 1]
        last = len(kernels) - 1
        self.branch = [
            _ConvBN(
                outer if i == last else inner,
                kernel,
                strides[i],
                f"{name}_branch{i + 1}",
                group,
                relu=i < last,
                scale=gamma_0 if i == last else 1.0,
            )
            for i, kernel in enumerate(kernels)
        ]
        self.short = _ConvBN(outer, 1, stride, f"{name}_short", group, relu=False) if new_shape else None

    def forward(self, x: Layer) -> Layer:
        y = x
        for part in self.branch:
            y = part(y)
        x = self.short(x) if self.short else x
        return Relu(Add(y, x, name=self.label("sum")), name=self.label("relu"))


class ResNet(Module):
    """A residual network from images to logits.

    Args:
        output_size: Number of classes.
        blocks: Number of blocks in each of the four stages.
        bottleneck: Whether blocks have three convolutions and four times the width behind the last.
        zero_init_residual: Whether the last scale of each block starts at 0, so that each block starts as its shortcut.
        bn_statistics_group_size: As in BatchNormalization.
        name: `<prefix><N>` without one.
        width: Factor on the width of all stages, and with `bottleneck` on that of the inner convolutions alone.
        gamma_0: Where the last scale of each block starts, whatever zero_init_residual says.
        small_images: Whether the stem is one 3 x 3 convolution without a step, for images of about 32 x 32.
    """

    prefix: ClassVar[str] = "resnet"

    def __init__(
        self,
        output_size: int,
        blocks: tuple[int, int, int, int],
        bottleneck: bool,
        zero_init_residual: bool = True,
        bn_statistics_group_size: int = 1,
        name: str | None = None,
        width: int = 1,
        gamma_0: float | None = None,
        small_images: bool = False,
    ) -> None:
        super().__init__(name)
        if output_size < 1 or width < 1:
            raise ConfigurationError(
                f"{type(self).__name__} '{self.name}' has output_size {output_size} and width {width}; "
                "both must be at least 1"
            )
        group = bn_statistics_group_size
        scale = gamma_0 if gamma_0 is not None else (0.0 if zero_init_residual else 1.0)
        kernel, stride = (3, 1) if small_images else (7, 2)
        self.small_images = small_images
        self.stem = _ConvBN(64, kernel, stride, f"{self.name}_stem", group, relu=True)
        self.blocks: list[_Block] = []
        before = 64
        for stage, count in enumerate(blocks):
            inner = 64 * 2**stage * width
            outer = 256 * 2**stage if bottleneck else inner
            for i in range(count):
                step = 2 if i == 0 and stage > 0 else 1
                self.blocks.append(
                    _Block(
                        inner,
                        outer,
                        step,
                        f"{self.name}_stage{stage + 1}_block{i + 1}",
                        bottleneck=bottleneck,
                        new_shape=step != 1 or before != outer,
                        gamma_0=scale,
                        group=group,
                    )
                )
                before = outer
        start = Weights(NormalInitializer(standard_deviation=0.01), name=f"{self.name}_fc_matrix")
        self.fc = FullyConnectedModule(output_size, weights=[start], name=f"{self.name}_fc")

    def forward(self, images: Layer) -> Layer:
        """Shapes: images (channels, height, width); result (output_size,) logits."""
        x = self.stem(images)
        if not self.small_images:
            window: dict[str, Any] = {"pool_dims_i": 3, "pool_strides_i": 2, "pool_pads_i": 1}
            x = Pooling(x, name=self.label("pool"), num_dims=2, pool_mode="max", **window)
        for block in self.blocks:
            x = block(x)
        return self.fc(ChannelwiseMean(x, name=self.label("mean")))


class ResNet18(ResNet):
    """ResNet of 18 layers; further options are those of ResNet."""

    @also_takes(ResNet.__init__, "blocks", "bottleneck")
    def __init__(self, output_size: int, **options: Any) -> None:
        super().__init__(output_size, (2, 2, 2, 2), False, **options)


class ResNet34(ResNet):
    """ResNet of 34 layers; further options are those of ResNet."""

    @also_takes(ResNet.__init__, "blocks", "bottleneck")
    def __init__(self, output_size: int, **options: Any) -> None:
        super().__init__(output_size, (3, 4, 6, 3), False, **options)


class ResNet50(ResNet):
    """ResNet of 50 layers; further options are those of ResNet."""

    @also_takes(ResNet.__init__, "blocks", "bottleneck")
    def __init__(self, output_size: int, **options: Any) -> None:
        super().__init__(output_size, (3, 4, 6, 3), True, **options)


class ResNet101(ResNet):
    """ResNet of 101 layers; further options are those of ResNet."""

    @also_takes(ResNet.__init__, "blocks", "bottleneck")
    def __init__(self, output_size: int, **options: Any) -> None:
        super().__init__(output_size, (3, 4, 23, 3), True, **options)


class ResNet152(ResNet):
    """ResNet of 152 layers; further options are those of ResNet."""

    @also_takes(ResNet.__init__, "blocks", "bottleneck")
    def __init__(self, output_size: int, **options: Any) -> None:
        super().__init__(output_size, (3, 8, 36, 3), True, **options)


class WideResNet50_2(ResNet):  # noqa: N801  # the name that papers and LBANN use
    """ResNet50 with inner convolutions of twice the width. Zagoruyko and Komodakis 2016, arXiv 1605.07146."""

    @also_takes(ResNet.__init__, "blocks", "bottleneck", "width")
    def __init__(self, output_size: int, **options: Any) -> None:
        super().__init__(output_size, (3, 4, 6, 3), True, width=2, **options)
