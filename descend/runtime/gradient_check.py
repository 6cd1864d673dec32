"""The finite check of the gradients of some parameters, prepared once for all steps of a run.

One sum for each, or one call for many, shows a NaN or an infinity; exact tests follow where that is not finite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from descend.torch_private import AllFinite, foreach_largest, sum_is_finite

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["GradientCheck", "nonfinite_parameters"]

# Elements, of one gradient on a CPU and of all on a GPU. To write more takes as long as the calls that are saved.
_SMALL = 524_288
_SMALL_ON_A_GPU = 8 * _SMALL


class GradientCheck:
    """A check of the gradients of some parameters, prepared once for all steps.

    Small gradients are checked in one call for all. On a CPU the sum of all elements of a large one shows a NaN or an
    infinity in a twentieth of the time of a norm, and writes nothing; a sum that overflows by itself is cleared by
    a test of each element. On a GPU the largest elements of large ones are found in few launches.

    Args:
        parameters: By name. What their gradients are may be another tensor in each step.

    Attributes:
        on_device: Whether all are on one device other than the CPU.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.parameters = parameters
        self._small: list[Tensor] = []
        self._large: list[Tensor] = []
        real = [p for p in parameters.values() if p.is_floating_point()]
        types = {(p.device, p.dtype) for p in real}
        device = next(iter(types))[0] if types else torch.device("cpu")
        on_gpu = len(types) == 1 and device.type == "cuda" and sum(p.numel() for p in real) < _SMALL_ON_A_GPU
        for p in parameters.values():
            is_small = p.is_floating_point() and (on_gpu or (p.numel() < _SMALL and p.is_cpu))
            (self._small if is_small else self._large).append(p)
        self._all_finite = AllFinite(device if on_gpu else torch.device("cpu"))
        self.on_device = (
            len({p.device for p in parameters.values()}) == 1 and not next(iter(parameters.values())).is_cpu
        )

    def nonfinite(self) -> list[str]:
        """Names of the parameters whose gradient is not finite. Waits for the device, once."""
        small = [g for p in self._small if (g := p.grad) is not None]
        large = [g for p in self._large if (g := p.grad) is not None]
        if self._are_finite(small) and (not large or sum_is_finite(large)):
            return []
        named = _gradients(self.parameters)
        return [name for name, gradient in named if not bool(torch.isfinite(gradient).all())]

    def flag(self) -> Tensor | None:
        """A 0-d tensor on the device, above 0 if an element of a gradient is not finite; None where a gradient is
        sparse, of which only a sum is checked. The host does not wait."""
        every = [g for p in self.parameters.values() if (g := p.grad) is not None and g.numel()]
        if not every or any(g.layout is not torch.strided for g in every):
            return None
        if not self._large:
            return self._all_finite.flag(every)
        return torch.stack(foreach_largest(every)).max().isfinite().logical_not().float()

    def _are_finite(self, small: Sequence[Tensor]) -> bool:
        """Whether small gradients are finite. Where one is sparse, its parameter counts as a large one from now on:
        to ask each gradient in each step would take longer than the check."""
        try:
            return not small or self._all_finite(small)
        except RuntimeError:
            sparse = {id(p) for p in self._small if p.grad is not None and p.grad.layout is not torch.strided}
            if not sparse:
                raise
            self._large += [p for p in self._small if id(p) in sparse]
            self._small = [p for p in self._small if id(p) not in sparse]
            return not self.nonfinite()


def nonfinite_parameters(parameters: Mapping[str, Tensor]) -> list[str]:
    """Names of the parameters whose gradient is not finite. Waits for the device, once."""
    return GradientCheck(parameters).nonfinite()


def _gradients(parameters: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The gradients that are there; of a sparse one, the values of the rows that it has."""
    for name, p in parameters.items():
        if p.grad is not None:
            yield name, p.grad.coalesce().values() if p.grad.is_sparse else p.grad
