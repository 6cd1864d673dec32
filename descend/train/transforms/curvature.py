"""Kronecker factors of the layers that a forward pass goes through, and gradients multiplied by their inverses.

`kfac.py` has the equations. What a layer is, is seen where its weights are used: while the forward pass of a part
lasts, every call of torch's linear map or convolution with a trained weight is noted, whoever makes it. In the backward
pass its output tells the error signal g̃, and the layer's sums are made at once:

    Σ a₊ a₊ᵀ,   Σ g̃ g̃ᵀ,   n samples and r positions that count

They are added over parts and ranks. The backward pass began with a numerator, and D is what the whole of it is divided
by, so a sample's own gradient is g = n/D g̃; hence A = Σ a₊ a₊ᵀ / n and G = n² / (D² r) Σ g̃ g̃ᵀ.
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from descend.errors import ConfigurationError, nearest
from descend.train.layers import plan_of
from descend.train.param_groups import current_learning_rates
from descend.train.transforms.base import GradientTransform
from descend.train.transforms.check_finite import CheckFinite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor

    from descend.runtime import Communicator
    from descend.train.micro_batch import MicroBatch
    from descend.train.run import Run
    from descend.train.transforms.base import Gradients, Withheld
    from descend.train.transforms.kfac import KFAC

__all__ = ["Curvature", "patches"]

_KEY = "kfac"  # in the run's state of algorithms


class _Use(NamedTuple):
    """One use of a layer's weights in the forward pass of a part."""

    weight: str
    bias: str | None
    transposed: bool  # the weight is stored (in, out)
    convolution: bool
    given: Mapping[str, Any]  # the arguments of the call
    dtype: torch.dtype
    samples: int
    first: bool  # the first use in this part


@dataclass
class _Sums:
    """What a layer has gathered in a step; see the module."""

    bias: str | None
    transposed: bool
    inputs: Tensor
    errors: Tensor
    samples: Tensor
    positions: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.inputs, self.errors, self.samples, self.positions

    def add(self, other: _Sums) -> None:
        for own, more in zip(self.tensors, other.tensors, strict=True):
            own += more

    @property
    def form(self) -> list[Any]:
        """What `empty` makes sums of nothing of."""
        return [self.bias, self.transposed, len(self.inputs), len(self.errors), str(self.inputs.dtype)]

    @classmethod
    def empty(cls, form: Sequence[Any], device: torch.device) -> _Sums:
        bias, transposed, of_inputs, of_errors, kind = form
        dtype = getattr(torch, kind.removeprefix("torch."))
        inputs, errors = (torch.zeros(size, size, dtype=dtype, device=device) for size in (of_inputs, of_errors))
        samples, positions = (torch.zeros((), dtype=torch.float64, device=device) for _ in range(2))
        return cls(bias, transposed, inputs, errors, samples, positions)


class Curvature(GradientTransform):
    """The preconditioner of `KFAC`. Its averages and inverses stand in the run's state and are saved with it.

    Args:
        settings: The algorithm.
        run: What it works on.

    Raises:
        ConfigurationError: a layer to be left out does not exist.
    """

    def __init__(self, settings: KFAC, run: Run) -> None:
        self._settings = settings
        self._run, self._check = run, run.transforms.one(CheckFinite)
        left_out = set(settings.disable_layers.split())
        layers = _layer_of_each_weight(run.task.module)
        if unknown := sorted(left_out.difference(layers.values())):
            raise ConfigurationError(
                [f"KFAC: disable_layers: there is no layer '{x}'{nearest(x, layers.values())}" for x in unknown]
            )
        self._names = {id(p): name for name, p in run.parameters.items() if layers.get(name) not in left_out}
        self._sums: dict[str, _Sums] = {}
        self._denominator: Tensor | float = 1.0
        self._gathers = False
        self._told = False

    # Gathering

    def begin(self) -> None:
        """See `GradientTransform.begin`."""
        self._sums = {}
        step = self._step
        self._gathers = not self._blocks or (step - 1) % self._settings.interval(step) == 0

    def observing(self, micro_batch: MicroBatch) -> AbstractContextManager[Any]:
        """See `GradientTransform.observing`."""
        return _Uses(self._names, micro_batch.count, self._heard) if self._gathers else contextlib.nullcontext()

    @property
    def _step(self) -> int:
        """Number of the update under way, from 1."""
        return self._run.state.step + 1

    @property
    def _blocks(self) -> dict[str, dict[str, Any]]:
        return self._run.state.algorithm.get(_KEY, {})

    @torch.no_grad()
    def _heard(self, use: _Use, error: Tensor) -> None:
        """Add the sums of one use of a layer, now that its error signal is there."""
        rows = (_rows_of_convolution if use.convolution else _rows_of_linear)(use.given, use.samples).to(use.dtype)
        error = error.flatten(2).transpose(1, 2) if use.convolution else error.reshape(*rows.shape[:2], -1)
        counts = (error != 0).any(2)
        if use.convolution:
            counts = counts.any(1, keepdim=True).expand_as(counts)  # an image counts as a whole
        mask = counts.to(rows.dtype).unsqueeze(2)
        inputs = rows * mask if use.bias is None else torch.cat([rows * mask, mask], 2)
        inputs, error = inputs.flatten(0, 1), error.flatten(0, 1).to(rows.dtype)
        samples = _of_samples(counts.any(1), use.samples).sum().double() * use.first
        sums = _Sums(use.bias, use.transposed, inputs.t() @ inputs, error.t() @ error, samples, counts.sum().double())
        if use.weight in self._sums:
            self._sums[use.weight].add(sums)
        else:
            self._sums[use.weight] = sums

    # Preconditioning

    @torch.no_grad()
    def __call__(self, gradients: Gradients) -> Withheld | None:
        """Precondition the gradients; where one is not finite then, nothing is kept of the step."""
        began = time.monotonic()
        self._denominator = gradients.divisor * self._run.precision.loss_scale
        weights = self._run.parameters
        blocks = {name: _placed(block, weights[name].device) for name, block in self._blocks.items()}
        if self._gathers:
            self._average(blocks)
            self._invert(blocks)
        rates = current_learning_rates(self._run.optimizer)
        for name, block in blocks.items():
            self._precondition(name, block, rates)
        withheld = self._check.look_again(gradients, weights)
        if withheld is None:
            self._run.state.algorithm = {**self._run.state.algorithm, _KEY: blocks}
            self._tell(blocks, time.monotonic() - began)
        return withheld

    def _average(self, blocks: dict[str, dict[str, Any]]) -> None:
        """Take this step's factors into the averages; layers in which nothing counted keep theirs."""
        self._sums = _over_ranks(self._sums, self._run.communicator)
        if not blocks and not self._sums:
            raise ConfigurationError(
                "KFAC: the module has no fully connected or convolution layer that is trained; use "
                "BatchedIterativeOptimizer"
            )
        share = 1 - self._settings.kronecker_decay
        counts = [float(sums.samples) for sums in self._sums.values()]
        for (name, sums), samples in zip(self._sums.items(), counts, strict=True):
            if not samples:
                continue
            denominator = torch.as_tensor(self._denominator, dtype=torch.float64).to(sums.positions.device)
            scale = samples**2 / (denominator**2 * sums.positions)
            a, g = sums.inputs / samples, sums.errors * scale.to(sums.errors.dtype)
            if name in blocks:
                a, g = (old.lerp(new, share) for old, new in ((blocks[name]["A"], a), (blocks[name]["G"], g)))
            inverses = {key: blocks[name][key] for key in ("A_inverse", "G_inverse") if name in blocks}
            blocks[name] = {"bias": sums.bias, "transposed": sums.transposed, "A": a, "G": g, **inverses}

    def _invert(self, blocks: dict[str, dict[str, Any]]) -> None:
        of_a, of_g = self._settings.dampings(self._step)
        due = (self._step - 1) % self._settings.compute_interval == 0
        invert = _by_eigenvalues if self._settings.use_eigen_decomposition else _by_cholesky
        process = self._run.communicator
        for i, block in enumerate(blocks.values()):
            if not due and "A_inverse" in block:
                continue
            owner = {"root": 0, "each": i % process.world_size}.get(self._settings.inverse_strategy)
            if owner in (None, process.rank):
                pi = _balance(block["A"], block["G"]) if self._settings.use_pi else 1.0
                block["A_inverse"] = invert(block["A"], of_a * pi)
                block["G_inverse"] = invert(block["G"], of_g / pi)
            else:
                block["A_inverse"], block["G_inverse"] = torch.empty_like(block["A"]), torch.empty_like(block["G"])
            if owner is not None:
                process.broadcast(owner, [block["A_inverse"], block["G_inverse"]])

    def _precondition(self, name: str, block: Mapping[str, Any], rates: Mapping[int, float]) -> None:
        weight = self._run.parameters[name]
        bias = self._run.parameters[block["bias"]] if block["bias"] else None
        bias_grad = None if bias is None else bias.grad
        if weight.grad is None or (bias is not None and bias_grad is None):
            return  # frozen since, or without a part in this objective
        matrix = (weight.grad.t() if block["transposed"] else weight.grad.flatten(1)).to(block["A"].dtype)
        if bias_grad is not None:
            matrix = torch.cat([matrix, bias_grad.to(matrix.dtype).unsqueeze(1)], 1)
        found = block["G_inverse"] @ matrix @ block["A_inverse"] * self._settings.learning_rate_factor
        if bias_grad is not None:
            bias_grad.copy_(self._bounded(found[:, -1], rates.get(id(bias), 0.0)))
            found = found[:, :-1]
        found = self._bounded(found, rates.get(id(weight), 0.0))
        weight.grad.copy_(found.t() if block["transposed"] else found.reshape(weight.shape))

    def _bounded(self, gradient: Tensor, rate: float) -> Tensor:
        """g · min(1, √(κ / (‖g‖² lr²)))."""
        bound = self._settings.gradient_bound
        if bound == math.inf:
            return gradient
        return gradient * (bound / (gradient.square().sum() * rate**2)).sqrt().clamp(max=1.0)

    # Telling

    def _tell(self, blocks: Mapping[str, Mapping[str, Any]], seconds: float) -> None:
        say, settings = self._run.say, self._settings
        if not self._told:
            self._told = True
            taken = {*blocks, *(block["bias"] for block in blocks.values())}
            others = [name for name, p in self._run.parameters.items() if p.requires_grad and name not in taken]
            say(
                f"K-FAC: factors for {', '.join(blocks)}"
                + (f"; by their rule alone: {', '.join(others)}" * bool(others))
            )
        if settings.print_time:
            say(f"K-FAC: step {self._step}: {seconds:.4f} seconds for factors, inverses and products")
        if self._gathers and (settings.print_matrix or settings.print_matrix_summary):
            for name, block in blocks.items():
                for factor in ("A", "G"):
                    say(f"K-FAC: step {self._step}: {factor} of {name}: {_shown(block[factor], settings.print_matrix)}")


def _over_ranks(own: Mapping[str, _Sums], process: Communicator) -> dict[str, _Sums]:
    """The sums of all ranks, of which some may not have come through all layers."""
    if process.world_size == 1:
        return dict(own)
    forms: dict[str, list[Any]] = {}
    for some in process.all_gather_object({name: sums.form for name, sums in own.items()}):
        forms = forms | {name: form for name, form in some.items() if name not in forms}
    found = {name: own[name] if name in own else _Sums.empty(form, process.device) for name, form in forms.items()}
    everything = [tensor for sums in found.values() for tensor in sums.tensors]
    for dtype in dict.fromkeys(tensor.dtype for tensor in everything):
        some = [tensor for tensor in everything if tensor.dtype == dtype]
        flat = process.all_reduce(torch.cat([tensor.reshape(-1) for tensor in some]))
        for tensor, values in zip(some, flat.split([tensor.numel() for tensor in some]), strict=True):
            tensor.copy_(values.view(tensor.shape))
    return found


class _Uses(TorchFunctionMode):
    """Notes each linear map and convolution whose weight has a name, and calls `seen` with its error signal."""

    def __init__(self, names: Mapping[int, str], count: int, heard: Callable[[_Use, Tensor], None]) -> None:
        super().__init__()
        self._names = names
        self._count = count
        self._heard = heard
        self._met: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make the call, and note it."""
        result = func(*args, **(kwargs or {}))
        if func in _ARGUMENTS and result.requires_grad:
            self._note(func, dict(zip(_ARGUMENTS[func], args, strict=False)) | (kwargs or {}), result)
        return result

    def _note(self, func: Any, given: Mapping[str, Any], result: Tensor) -> None:
        weight, transposed = _owner(given["weight"])
        name, bias = self._names.get(id(weight)), given.get("bias")
        bias_name = None if bias is None else self._names.get(id(bias))
        convolution = func is not functional.linear
        batched = not convolution or given["input"].dim() == given["weight"].dim()
        plain = given.get("groups", 1) == 1 and (bias_name is None) == (bias is None) and batched
        if name is None or not weight.requires_grad or not plain:
            return
        dtype = weight.dtype if weight.dtype.itemsize >= 4 else torch.float32
        use = _Use(name, bias_name, transposed, convolution, given, dtype, self._count, name not in self._met)
        self._met.add(name)
        result.register_hook(partial(self._heard, use))


_CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_ARGUMENTS: dict[Any, tuple[str, ...]] = {
    functional.linear: ("input", "weight", "bias"),
    functional.conv1d: _CONVOLUTION,
    functional.conv2d: _CONVOLUTION,
    functional.conv3d: _CONVOLUTION,
}


def _owner(weight: Tensor) -> tuple[Tensor, bool]:
    """The tensor that a weight is, or whose transpose it is."""
    base = weight._base  # the one way to ask a view for what it is a view of
    if base is not None and base.dim() == 2 and (weight.shape, weight.stride()) == (base.t().shape, base.t().stride()):
        return base, True
    return weight, False


def _of_samples(rows: Tensor, count: int) -> Tensor:
    """(samples,) whether any of a sample's rows counts; where rows do not divide by samples, each row is one."""
    return rows.view(count, -1).any(1) if count and len(rows) % count == 0 else rows


def _rows_of_linear(given: Mapping[str, Any], count: int) -> Tensor:
    """(samples, positions, in); where rows do not divide by samples, each row is a sample."""
    x: Tensor = given["input"].detach()
    rows = x.numel() // x.shape[-1]
    samples = count if count and rows % count == 0 else rows
    return x.reshape(samples, rows // max(samples, 1), x.shape[-1])


def _rows_of_convolution(given: Mapping[str, Any], count: int) -> Tensor:
    """(images, positions, channels · kernel): each output position's window."""
    x: Tensor = given["input"].detach()
    kernel = given["weight"].shape[2:]
    dims = len(kernel)
    dilation = _each(given.get("dilation", 1), dims)
    padding = _padding(given.get("padding", 0), kernel, dilation)
    return patches(x, kernel, _each(given.get("stride", 1), dims), padding, dilation)


def _each(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values


def _padding(value: Any, kernel: Sequence[int], dilation: Sequence[int]) -> list[tuple[int, int]]:
    """Entries before and after each dimension."""
    if value == "same":
        totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    return [(p, p) for p in _each(0 if value == "valid" else value, len(kernel))]


def patches(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
) -> Tensor:
    """The windows that a convolution looks at.

    Args:
        x: (samples, channels, *space) with one to three dimensions of space.
        kernel: Entries of the kernel in each.
        stride: Steps between windows.
        padding: Zeros before and after.
        dilation: Steps between entries of a window.

    Returns:
        (samples, positions, channels · entries of the kernel), in the order of a flattened kernel.
    """
    dims = len(kernel)
    x = functional.pad(x, [side for pair in reversed(padding) for side in pair])
    for i, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True)):
        x = x.unfold(2 + i, d * (k - 1) + 1, s)[..., ::d]
    return x.movedim(1, 1 + dims).flatten(1 + dims).flatten(1, dims)


def _layer_of_each_weight(module: torch.nn.Module) -> dict[str, str]:
    """The layer that each weights object belongs to: of the graph, or the submodule that holds it."""
    plan = plan_of(module)
    if plan is not None:
        return {name: planned.name for planned in reversed(plan.layers) for name in planned.weights}
    return {name: name.rpartition(".")[0] for name, _ in module.named_parameters()}


def _placed(block: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """A copy of a block, its tensors on a device; those of a checkpoint are on the CPU."""
    return {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in block.items()}


def _balance(a: Tensor, g: Tensor) -> Tensor:
    """π, or 1 where one of the factors is zero."""
    pi = ((a.trace() / len(a)) / (g.trace() / len(g))).sqrt()
    return torch.where(torch.isfinite(pi) & (pi > 0), pi, 1.0)


def _by_cholesky(matrix: Tensor, damping: Tensor | float) -> Tensor:
    """(M + λ I)⁻¹ in float64, in the format of M; NaN where M is not finite."""
    damped = matrix.double()
    damped = damped + torch.eye(len(damped), dtype=damped.dtype, device=damped.device) * damping
    factor, failed = torch.linalg.cholesky_ex(damped)
    inverse = torch.cholesky_inverse(factor)
    return torch.where(failed == 0, inverse, math.nan).to(matrix.dtype).contiguous()  # as a checkpoint gives it back


def _by_eigenvalues(matrix: Tensor, damping: Tensor | float) -> Tensor:
    """The same by M = Q Λ Qᵀ."""
    if not bool(torch.isfinite(matrix).all()):
        return torch.full_like(matrix, math.nan)
    values, vectors = torch.linalg.eigh(matrix.double())
    return ((vectors / (values.clamp(min=0) + damping)) @ vectors.t()).to(matrix.dtype).contiguous()


def _shown(matrix: Tensor, whole: bool) -> str:
    if whole:
        return str(matrix.tolist())
    low, high, norm = (float(value) for value in (matrix.min(), matrix.max(), matrix.norm()))
    return f"{len(matrix)} x {len(matrix)}, from {low:.4g} to {high:.4g}, norm {norm:.4g}"
