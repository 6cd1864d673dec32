"""Parameters on a GPU, their gradients, and steps of optimizers, for the checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from descend.optim.optimizer import Optimizer
from descend.optim.rules import ALL_RULES, SOAP, Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ONE_OF_EACH = list({type(rule): rule for rule in ALL_RULES if not rule.whole_tensor}.values())
# Of whole tensors; SOAP's bases are arbitrary where g gᵀ is singular.
OF_WHOLE_TENSORS = list(
    {type(rule): rule for rule in ALL_RULES if rule.whole_tensor and type(rule) is not SOAP}.values()
)
SIZES = [(), (1,), (4, 3), (5000,), (64, 64), (3, 7, 11)]
# Rows and columns of one and of several parts, and many small matrices.
MATRICES = [(130, 200), (1, 9000), (9000, 1), (3, 5, 70, 130), (512, 64, 3, 3), (700, 300, 1, 1), (40, 4, 7, 7)]


def parameters(
    dtype: torch.dtype = torch.float32, device: str = "cuda", sizes: Sequence[tuple[int, ...]] = SIZES
) -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(size, generator=random).to(device, dtype)) for size in sizes]


def give_gradients(params: list[nn.Parameter], step: int, *, absent: bool = False) -> None:
    """Gradients of a step: one transposed in memory, and with `absent` a third of them missing."""
    random = torch.Generator().manual_seed(step)
    for i, p in enumerate(params):
        g = torch.randn(p.shape, generator=random).to(p.device, p.dtype)
        p.grad = None if absent and (i + step) % 3 == 0 else g.t().contiguous().t() if g.ndim == 2 else g


def trained(
    rule: Rule,
    runner: str,
    dtype: torch.dtype,
    device: str = "cuda",
    steps: int = 5,
    copies: int = 1,
    sizes: Sequence[tuple[int, ...]] = SIZES,
) -> list[Tensor]:
    params = [p for _ in range(copies) for p in parameters(dtype, device, sizes)]
    ours = Optimizer(params, rule, lr=1e-2, weight_decay=0.01, runner=runner, seed=1)
    for step in range(steps):
        give_gradients(params, step, absent=True)
        ours.step()
    ours.settle()
    return [p.detach().to("cpu", torch.float64) for p in params]


def resnet50_like(device: str = "cuda") -> list[nn.Parameter]:
    """161 tensors with 25.6 M elements, as many and as unequal as those of ResNet-50."""
    sizes = [2048 * 1000, *[512 * 512 * 9] * 3, *[256 * 256 * 9] * 6, *[2048 * 512] * 6, *[1024 * 256] * 12]
    sizes += [128 * 128 * 9] * 4 + [512 * 128] * 8 + [64 * 64 * 9] * 3
    sizes += [64, 256, 512, 1024] * 29 + [1000, 2048]
    return [nn.Parameter(torch.randn(n, device=device) * 0.01) for n in sizes]


def milliseconds(call: Callable[[], Any], count: int = 50) -> float:
    """Of one call of many in a row, on the device."""
    for _ in range(5):
        call()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / count


def with_gradients(params: list[nn.Parameter]) -> list[nn.Parameter]:
    for p in params:
        p.grad = torch.randn_like(p)
    return params
