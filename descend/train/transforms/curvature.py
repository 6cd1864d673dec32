"""K-FAC: estimates the Kronecker factors of each layer and multiplies gradients by their inverses.

`kfac.py` has the equations. Layers are found by the use of their weights: during the forward pass of a micro-batch,
every call of torch's linear or convolution functions with a trainable weight is recorded, wherever it is made. A hook
on its output gets the error signal g̃ in the backward pass, where the layer's sums are computed:

    Σ a₊ a₊ᵀ,   Σ g̃ g̃ᵀ,   n samples and r positions that count

They are summed over micro-batches and ranks. The backward pass starts from a numerator, D is the denominator of the
whole mini-batch, so the gradient of one sample is g = n/D g̃; hence A = Σ a₊ a₊ᵀ / n and G = n² / (D² r) Σ g̃ g̃ᵀ.
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from descend.errors import ConfigurationError, nearest
from descend.torch_private import view_base
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
    from descend.train.transforms.kfac import FactorSettings

__all__ = ["Curvature", "patches"]

_KEY = "kfac"  # in the state of the algorithms


class _Use(NamedTuple):
    """One use of a layer's weights in the forward pass of a micro-batch."""

    weight: str
    bias: str | None
    transposed: bool  # the weight is stored (in, out)
    convolution: bool
    given: Mapping[str, Any]  # the arguments of the call
    dtype: torch.dtype
    samples: int
    first: bool  # the first use in this micro-batch


@dataclass
class _Sums:
    """Sums of a layer over a step; see the module docstring."""

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
        """What `empty` needs to make sums that are 0, as plain values."""
        return [self.bias, self.transposed, len(self.inputs), len(self.errors), str(self.inputs.dtype)]

    @classmethod
    def empty(cls, form: Sequence[Any], device: torch.device) -> _Sums:
        bias, transposed, of_inputs, of_errors, kind = form
        dtype = getattr(torch, kind.removeprefix("torch."))
        inputs, errors = (torch.zeros(size, size, dtype=dtype, device=device) for size in (of_inputs, of_errors))
        samples, positions = (torch.zeros((), dtype=torch.float64, device=device) for _ in range(2))
        return cls(bias, transposed, inputs, errors, samples, positions)


class Curvature(GradientTransform):
    """The preconditioner of `KFAC`. Its averages and inverses are in the state of the run and saved with it.

    Args:
        settings: Of the factors; `KFAC` is one.
        run: The run.

    Raises:
        ConfigurationError: a layer of `disable_layers` does not exist.
    """

    needs_all_gradients: ClassVar[bool] = True

    def __init__(self, settings: FactorSettings, run: Run) -> None:
        self._settings, self._interval = settings, settings.interval()
        self._damping_act, self._damping_err = settings.dampings()
        self._run, self._check = run, run.transforms.one(CheckFinite)
        left_out = set(settings.disable_layers.split())
        layers = _layer_of_each_weight(run.task.module)
        if unknown := sorted(left_out.difference(layers.values())):
            raise ConfigurationError(
                [f"KFAC: disable_layers: there is no layer '{x}'{nearest(x, layers.values())}" for x in unknown]
            )
        self._left_out, self._watched = left_out, dict[str, torch.nn.Parameter]()
        self._names: dict[int, str] = {}
        self._sums: dict[str, _Sums] = {}
        self._denominator: Tensor | float = 1.0
        self._gathers = False
        self._announced = False

    # Gathering

    def begin(self) -> None:
        """See `GradientTransform.begin`."""
        self._sums = {}
        if self._watched is not self._run.parameters:  # the module has other parameters than before
            self._watched, layers = self._run.parameters, _layer_of_each_weight(self._run.task.module)
            self._names = {id(p): name for name, p in self._watched.items() if layers.get(name) not in self._left_out}
        step = self._step
        self._gathers = not self._blocks or (step - 1) % self._interval.at(step) == 0

    def observing(self, micro_batch: MicroBatch) -> AbstractContextManager[Any]:
        """See `GradientTransform.observing`."""
        return _Uses(self._names, micro_batch.count, self._add_sums) if self._gathers else contextlib.nullcontext()

    @property
    def _step(self) -> int:
        """Number of the update under way, from 1."""
        return self._run.state.step + 1

    @property
    def _blocks(self) -> dict[str, dict[str, Any]]:
        blocks, weights = self._run.state.algorithm.get(_KEY, {}), self._run.parameters
        return {name: block for name, block in blocks.items() if name in weights and _fits(block, weights[name])}

    @torch.no_grad()
    def _add_sums(self, use: _Use, error: Tensor) -> None:
        """Add the sums of one use of a layer; called with its error signal in the backward pass."""
        rows = (_rows_of_convolution if use.convolution else _rows_of_linear)(use.given, use.samples).to(use.dtype)
        error = error.flatten(2).transpose(1, 2) if use.convolution else error.reshape(*rows.shape[:2], -1)
        counts = (error != 0).any(2)
        if use.convolution:
            counts = counts.any(1, keepdim=True).expand_as(counts)  # all positions of an image count, or none
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
        withheld = self._check.check_again(gradients, weights)
        if withheld is None:
            self._run.state.algorithm = {**self._run.state.algorithm, _KEY: blocks}
            self._log(blocks, time.monotonic() - began)
        return withheld

    def _average(self, blocks: dict[str, dict[str, Any]]) -> None:
        """Update the averages with the factors of this step; a layer in which no sample counted keeps its own."""
        self._sums = _over_ranks(self._sums, self._run.communicator)
        if not blocks and not self._sums:
            raise ConfigurationError(
                "KFAC: the module has no trainable fully connected or convolution layer; use BatchedIterativeOptimizer"
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
        of_a, of_g = self._damping_act.at(self._step), self._damping_err.at(self._step)
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
            return  # frozen since, or not used by this objective
        matrix = (weight.grad.t() if block["transposed"] else weight.grad.flatten(1)).to(block["A"].dtype)
        if bias_grad is not None:
            matrix = torch.cat([matrix, bias_grad.to(matrix.dtype).unsqueeze(1)], 1)
        found = block["G_inverse"] @ matrix @ block["A_inverse"] * self._settings.learning_rate_factor
        if bias_grad is not None:
            bias_grad.copy_(self._clip(found[:, -1], rates.get(id(bias), 0.0)))
            found = found[:, :-1]
        found = self._clip(found, rates.get(id(weight), 0.0))
        weight.grad.copy_(found.t() if block["transposed"] else found.reshape(weight.shape))

    def _clip(self, gradient: Tensor, rate: float) -> Tensor:
        """g · min(1, √(κ / (‖g‖² lr²)))."""
        bound = self._settings.gradient_bound
        if bound == math.inf:
            return gradient
        return gradient * (bound / (gradient.square().sum() * rate**2)).sqrt().clamp(max=1.0)

    # Logging

    def _log(self, blocks: Mapping[str, Mapping[str, Any]], seconds: float) -> None:
        say, settings = self._run.say, self._settings
        if not self._announced:
            self._announced = True
            covered = {*blocks, *(block["bias"] for block in blocks.values())}
            others = [name for name, p in self._run.parameters.items() if p.requires_grad and name not in covered]
            say(
                f"K-FAC: factors for {', '.join(blocks)}"
                + (f"; not preconditioned: {', '.join(others)}" * bool(others))
            )
        if settings.print_time:
            say(f"K-FAC: step {self._step}: {seconds:.4f} seconds for factors, inverses and products")
        if self._gathers and (settings.print_matrix or settings.print_matrix_summary):
            for name, block in blocks.items():
                for factor in ("A", "G"):
                    say(f"K-FAC: step {self._step}: {factor} of {name}: {_shown(block[factor], settings.print_matrix)}")


def _over_ranks(own: Mapping[str, _Sums], process: Communicator) -> dict[str, _Sums]:
    """The sums over all ranks, of which some may not have used all layers."""
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
    """Records each linear map and convolution whose weight has a name.

    Args:
        names: Of the weights, by `id`.
        count: Samples of the micro-batch.
        on_error_signal: Called in the backward pass with each use and its error signal.
    """

    def __init__(self, names: Mapping[int, str], count: int, on_error_signal: Callable[[_Use, Tensor], None]) -> None:
        super().__init__()
        self._names = names
        self._count = count
        self._on_error_signal = on_error_signal
        self._met: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make the call and record it."""
        result = func(*args, **(kwargs or {}))
        if func in _ARGUMENTS and result.requires_grad:
            self._record(func, dict(zip(_ARGUMENTS[func], args, strict=False)) | (kwargs or {}), result)
        return result

    def _record(self, func: Any, given: Mapping[str, Any], result: Tensor) -> None:
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
        result.register_hook(partial(self._on_error_signal, use))


_CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_ARGUMENTS: dict[Any, tuple[str, ...]] = {
    functional.linear: ("input", "weight", "bias"),
    functional.conv1d: _CONVOLUTION,
    functional.conv2d: _CONVOLUTION,
    functional.conv3d: _CONVOLUTION,
}


def _owner(weight: Tensor) -> tuple[Tensor, bool]:
    """The parameter that a weight is, or whose transpose it is; and which of the two."""
    base = view_base(weight)
    if base is not None and base.dim() == 2 and (weight.shape, weight.stride()) == (base.t().shape, base.t().stride()):
        return base, True
    return weight, False


def _of_samples(rows: Tensor, count: int) -> Tensor:
    """(samples,) whether any row of a sample counts; if rows is not a multiple of samples, each row is a sample."""
    return rows.view(count, -1).any(1) if count and len(rows) % count == 0 else rows


def _rows_of_linear(given: Mapping[str, Any], count: int) -> Tensor:
    """(samples, positions, in); if rows is not a multiple of samples, each row is a sample."""
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
    """Padding before and after, for each dimension."""
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
    """The windows of a convolution.

    Args:
        x: (samples, channels, *space) with one to three spatial dimensions.
        kernel: Size of the kernel, by dimension.
        stride: Steps between windows.
        padding: Zeros before and after.
        dilation: Steps between entries of a window.

    Returns:
        (samples, positions, channels · kernel entries), in the order of a flattened kernel.
    """
    dims = len(kernel)
    x = functional.pad(x, [side for pair in reversed(padding) for side in pair])
    for i, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True)):
        x = x.unfold(2 + i, d * (k - 1) + 1, s)[..., ::d]
    return x.movedim(1, 1 + dims).flatten(1 + dims).flatten(1, dims)


def _layer_of_each_weight(module: torch.nn.Module) -> dict[str, str]:
    """The layer of each parameter: of the graph, or the submodule that holds it."""
    plan = plan_of(module)
    if plan is not None:
        return {name: planned.name for planned in reversed(plan.layers) for name in planned.weights}
    return {name: name.rpartition(".")[0] for name, _ in module.named_parameters()}


def _placed(block: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """A copy of a block with its tensors on a device; those of a checkpoint are on the CPU."""
    return {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in block.items()}


def _fits(block: Mapping[str, Any], weight: Tensor) -> bool:
    """Whether factors are of weights of this shape, which may have been replaced by others."""
    matrix = weight.t() if block["transposed"] else weight.flatten(1)
    return (len(block["G"]), len(block["A"])) == (matrix.shape[0], matrix.shape[1] + bool(block["bias"]))


def _balance(a: Tensor, g: Tensor) -> Tensor:
    """π, or 1 if one of the factors is zero."""
    pi = ((a.trace() / len(a)) / (g.trace() / len(g))).sqrt()
    return torch.where(torch.isfinite(pi) & (pi > 0), pi, 1.0)


def _by_cholesky(matrix: Tensor, damping: Tensor | float) -> Tensor:
    """(M + λ I)⁻¹ computed in float64, in the dtype of M; NaN if M is not finite."""
    damped = matrix.double()
    damped = damped + torch.eye(len(damped), dtype=damped.dtype, device=damped.device) * damping
    factor, failed = torch.linalg.cholesky_ex(damped)
    inverse = torch.cholesky_inverse(factor)
    return torch.where(failed == 0, inverse, math.nan).to(matrix.dtype).contiguous()  # as a checkpoint restores it


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
