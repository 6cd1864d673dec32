"""The finite check: a step whose gradient holds a NaN or an infinity changes nothing.

    all_finite    gradients as tensors, one sum each, then exact tests; all ranks agree
    KernelCheck   gradients of a compiled kernel on a CPU, by their addresses
    DeviceFlag    gradients on a GPU, into a flag that every launch of the update reads

The host does not wait for a GPU:

    step n       gradients are checked on the device; the flag is copied to page-locked memory
    step n + 1   the host reads what was copied; where it was raised, step n has changed nothing, and is taken back

The kernels of the check are in compiler/kernel.h and compiler/cuda_kernel.h; where an update sums its gradient anyway,
compiler/codegen_cpp.py has the check make these sums, too.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from descend.errors import ConfigurationError, NumericalError
from descend.machine import page_locked
from descend.optim.compiler.native import KernelLaunch
from descend.optim.engine.step_inputs import is_sparse, local
from descend.torch_private import sum_is_finite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from descend.optim.compiler.cuda import CudaLaunch, CudaModule
    from descend.optim.engine.arena_layout import ArenaLayout
    from descend.optim.engine.arena_manager import ArenaManager
    from descend.optim.engine.launch import DeviceTables
    from descend.optim.engine.settings import GroupSettings
    from descend.optim.engine.state import State
    from descend.optim.engine.step_inputs import TensorUpdate

__all__ = [
    "POLICIES",
    "DeviceFlag",
    "FlagReport",
    "FlaggedTensors",
    "HoldsGradients",
    "KernelCheck",
    "all_finite",
    "are_finite",
    "launch_check",
    "nonfinite_gradients",
    "offenders",
    "update_on_device",
]

POLICIES = ("raise", "skip", "allow")


# ---- gradients as tensors


def are_finite(gradients: Sequence[Tensor]) -> bool:
    """Whether all elements of dense tensors are finite; waits for each device once."""
    return sum_is_finite(gradients) or all(bool(torch.isfinite(x).all()) for x in gradients)


class HoldsGradients(Protocol):
    """Parameters whose gradients are checked together: `ActiveSlots` of an arena, or a `MatrixArena`."""

    def is_finite(self) -> bool:
        """Whether all gradients are finite."""
        ...


def all_finite(tasks: Sequence[TensorUpdate], arenas: Sequence[HoldsGradients], meshes: Sequence[Any] = ()) -> bool:
    """Whether every gradient is finite; waits for each device once.

    Args:
        tasks: Parameters outside the arenas.
        arenas: What holds the others.
        meshes: Device meshes of distributed parameters, in the same order on all ranks; all ranks get one answer.
    """
    here = all(holder.is_finite() for holder in arenas) and (not tasks or _are_finite_here(tasks))
    return _agreed(here, meshes) if meshes else here


def offenders(
    outside: Sequence[TensorUpdate],
    active: Sequence[HoldsGradients],
    meshes: Sequence[Any],
    updates: Callable[[], Sequence[TensorUpdate]],
) -> list[str]:
    """Names of the parameters whose gradients are not finite, the same on all ranks that share a tensor.

    Args:
        outside: Parameters outside the arenas.
        active: What holds the others.
        meshes: As for `all_finite`.
        updates: Lists all of them; called only where some gradient is not finite.
    """
    if all_finite(outside, active, meshes):
        return []
    with torch.no_grad():
        return [task.name for task in updates() if not _is_finite_everywhere(task.gradient)]


def nonfinite_gradients(where: str, names: Sequence[str], most: int = 5) -> NumericalError:
    """The error about gradients that are not finite.

    Args:
        where: The step and the optimizer.
        names: The names of the parameters.
        most: How many of them it names.
    """
    text = ", ".join(f"'{name}'" for name in names[:most])
    if len(names) > most:
        text += f" and {len(names) - most} more"
    return NumericalError(
        f"{where}: the gradient of {text} is not finite; nothing was changed. "
        'on_nonfinite="skip" leaves such steps out and counts them'
    )


@torch.no_grad()
def _are_finite_here(tasks: Sequence[TensorUpdate]) -> bool:
    return are_finite([_values(task.gradient) for task in tasks])


def _is_finite_everywhere(g: Tensor) -> bool:
    mesh = getattr(g, "device_mesh", None)
    here = are_finite([_values(g)])
    return here if mesh is None else _agreed(here, [mesh])


def _values(g: Tensor) -> Tensor:
    """The elements on this rank."""
    return g.coalesce().values() if is_sparse(g) else local(g)


def _agreed(here: bool, meshes: Sequence[Any]) -> bool:
    """Whether all ranks of these meshes say so. Each has its own shard, and all must take the same branch."""
    worst = torch.tensor(float(here), device=meshes[0].device_type)
    # The result of the last mesh has to reach ranks that are in the first mesh only.
    for mesh in list(meshes) * len(meshes):
        for dim in range(mesh.ndim):
            torch.distributed.all_reduce(worst, op=torch.distributed.ReduceOp.MIN, group=mesh.get_group(dim))
    return bool(worst.item())


# ---- gradients of compiled kernels


class KernelCheck:
    """A check of gradients on a CPU by their addresses, which every compiled kernel has a function for.

    Args:
        library: The library of any kernel.
        layout: The tensors.
        gradient: Addresses of their gradients, 0 for none; read at each check.
    """

    def __init__(self, library: ctypes.CDLL, layout: ArenaLayout, gradient: NDArray[np.int64]) -> None:
        self._layout, self._work = layout, KernelLaunch()
        self._arrays = (*layout.units, layout.starts, gradient)  # as their addresses are read
        self._work.begin, self._work.end = 0, len(self._arrays[0])
        for name, x in zip(("tensor", "first", "count", "border", "start", "gradient"), self._arrays, strict=True):
            setattr(self._work, name, x.ctypes.data)
        self._nonfinite = getattr(library, f"nonfinite_{str(layout.dtype).removeprefix('torch.')}")
        self._nonfinite.restype = ctypes.c_int64

    def is_finite(self) -> bool:
        """Whether all gradients are."""
        self._work.threads = self._layout.threads
        return not self._nonfinite(ctypes.byref(self._work))


class DeviceFlag:
    """A flag on a device: whether a gradient of some tensors is not finite. Every launch of their update reads it.

    Args:
        module: Any compiled kernels: all have those of the check.
        work: What they are given: has the units of the tensors and the address of the table, and gets the flag's.
        tables: Has a table `gradient`.
        gradient: Addresses of the gradients, 0 for none; read at each check.
        device: Of the tensors.
        dtype: Of the gradients.

    Attributes:
        bad: Whether a gradient is not finite: of any tensor, then of each; int32 on the device.
    """

    def __init__(
        self,
        module: CudaModule,
        work: CudaLaunch,
        tables: DeviceTables,
        gradient: NDArray[np.int64],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._module, self._work, self._tables, self._gradient, self._device = module, work, tables, gradient, device
        self._kernel = f"check_{str(dtype).removeprefix('torch.')}"
        self.bad = torch.zeros(1 + len(gradient), dtype=torch.int32, device=device)
        work.bad, work.bad_tensor = self.bad.data_ptr(), self.bad.data_ptr() + self.bad.element_size()
        self._set = False  # since the last update

    def set(self, found_inf: Tensor | None, grad_scale: Tensor | None, *, checks: bool) -> None:
        """Raise it where a gradient of this step is not finite; from here on, until the next call, it holds.

        Args:
            found_inf: What torch's GradScaler has found; then nothing is checked.
            grad_scale: The factor that it left in the gradients.
            checks: Whether gradients are checked; if not, none counts as bad.
        """
        self._set = True
        self._tables.send("gradient", self._gradient)
        self.bad.zero_()
        self._work.found_inf = None if found_inf is None else found_inf.data_ptr()
        self._work.grad_scale = None if grad_scale is None else grad_scale.data_ptr()
        if found_inf is not None:
            self._module.launch([("adopt_found", 1)], self._work, self._tables.stream)
        elif checks:
            self._module.launch([(self._kernel, self._work.units)], self._work, self._tables.stream)

    def share(self, others: Sequence[DeviceFlag]) -> None:
        """Raise it where another one of the step is raised: all tensors are updated, or none."""
        for other in others:
            torch.maximum(self.bad[:1], other.bad[:1], out=self.bad[:1])

    def is_finite(self) -> bool:
        """Whether all gradients are; waits for the device. Leaves the flag as `set` does without a check."""
        self.set(None, None, checks=True)
        finite = not self.bad[0].item()
        self.bad.zero_()
        return finite

    def begin_update(self) -> None:
        """Lower it, unless it was set for the update that is launched now."""
        if not self._set:
            self.set(None, None, checks=False)
        self._set = False


_UNKNOWN = -1  # of a flag that has not arrived


class FlaggedTensors(Protocol):
    """Parameters whose launches read a flag: `DeviceKernels` of an arena, or a `DeviceMatrixArena`."""

    flag: DeviceFlag
    tables: DeviceTables

    @property
    def absent(self) -> tuple[int, ...]:
        """Indices of the parameters without a gradient."""
        ...

    @property
    def device(self) -> torch.device:
        """The device of all of them."""
        ...

    def name_of(self, i: int) -> str:
        """What the user calls parameter i."""
        ...

    def forget(self, absent: Sequence[int]) -> None:
        """Take back the count of the last update, which the flag kept from happening; these had no gradient."""
        ...


@dataclass
class FlagReport:
    """The pending result of a step's check, on its way to the host.

    Attributes:
        kernels: Parameters of the step.
        absent: Of each the indices of the parameters without a gradient.
        flags: Of each `DeviceFlag.bad`, in pinned memory on a GPU.
        arrived: The event after which they are there; None where they are already.
        scaled: Whether a GradScaler had found out, for which such steps are ordinary.
    """

    kernels: list[FlaggedTensors]
    absent: list[tuple[int, ...]]
    flags: list[Tensor]
    arrived: torch.cuda.Event | None
    scaled: bool

    @staticmethod
    def begin(kernels: Sequence[FlaggedTensors], *, scaled: bool) -> FlagReport:
        """Start copying the flags of the step that was launched last. The host does not wait."""
        absent = [tensors.absent for tensors in kernels]
        if kernels[0].device.type != "cuda":
            return FlagReport(list(kernels), absent, [tensors.flag.bad.clone() for tensors in kernels], None, scaled)
        flags = [page_locked(tensors.flag.bad.shape, tensors.flag.bad.dtype).fill_(_UNKNOWN) for tensors in kernels]
        for room, tensors in zip(flags, kernels, strict=True):
            room.copy_(tensors.flag.bad, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(kernels[0].device))
        return FlagReport(list(kernels), absent, flags, arrived, scaled)

    def applied(self) -> bool:
        """Whether the step was applied; if not, its counts are taken back.

        Waits only for a device that is more than a step behind, which still has the step after this to do.
        """
        if self.arrived is not None:
            self._wait(self.arrived)
        if not any(int(flags[0]) for flags in self.flags):
            return True
        for tensors, absent in zip(self.kernels, self.absent, strict=True):
            tensors.forget(absent)
        return False

    def _wait(self, arrived: torch.cuda.Event) -> None:
        """Wait for the flags. While a CUDA graph is captured nothing may wait, and `torch.cuda.graph` has waited."""
        if not torch.cuda.is_current_stream_capturing():
            arrived.synchronize()
        elif any(int(flags[0]) == _UNKNOWN for flags in self.flags):
            raise ConfigurationError(
                "the step before this one is under way on the GPU, and nothing can wait for it while a CUDA graph is "
                "captured; call torch.cuda.synchronize() before the capture, as torch.cuda.graph() does"
            )

    def offenders(self) -> list[str]:
        """Names of the parameters whose gradients were not finite, as far as each was checked."""
        return [
            tensors.name_of(i)
            for tensors, flags in zip(self.kernels, self.flags, strict=True)
            for i in flags[1:].nonzero().flatten().tolist()
        ]


def launch_check(
    kernels: Sequence[FlaggedTensors], found_inf: Tensor | None, grad_scale: Tensor | None, *, checks: bool
) -> FlagReport | None:
    """Check the gradients of a step of all arenas, before any is updated. The host does not wait.

    Args:
        kernels: Of the arenas, all of one device.
        found_inf: See `DeviceFlag.set`.
        grad_scale: See `DeviceFlag.set`.
        checks: See `DeviceFlag.set`.

    Returns:
        The pending result; None where nothing is checked, and within a CUDA graph, of which the device alone knows.
    """
    for tensors in kernels:
        tensors.flag.set(found_inf, grad_scale, checks=checks)
    if not checks and found_inf is None:
        return None
    first, *rest = kernels
    first.flag.share([tensors.flag for tensors in rest])
    for tensors in rest:
        tensors.flag.share([first.flag])
    return None if first.tables.is_capturing() else FlagReport.begin(kernels, scaled=found_inf is not None)


def update_on_device(
    optimizer: Any, arenas: ArenaManager, settings: list[GroupSettings], state: State, meshes: Sequence[Any]
) -> bool:
    """Make an update without waiting for a GPU, if compiled kernels there update all parameters.

    Args:
        optimizer: Whose parameters; with what torch's GradScaler has left there, `found_inf` and `grad_scale`.
        arenas: Of its parameters.
        settings: Of each group, without that factor.
        state: Of the optimizer.
        meshes: Device meshes of distributed parameters; with any the ranks have to agree first.

    Returns:
        Whether the update was launched.
    """
    found_inf, scale = getattr(optimizer, "found_inf", None), getattr(optimizer, "grad_scale", None)
    kernels = arenas.device_kernels(sum(len(group["params"]) for group in optimizer.param_groups))
    scaler = [x for x in (found_inf, scale) if x is not None]
    recorded = bool(kernels) and kernels[0].tables.is_capturing()
    if not kernels or meshes or (recorded and arenas.matrices) or any(x.device != kernels[0].device for x in scaler):
        return False
    active = arenas.begin_step(settings, state)
    if not arenas.residents:  # parameters moved, so there is no arena any more
        return False
    arenas.report = launch_check(kernels, found_inf, scale, checks=optimizer.on_nonfinite != "allow")
    arenas.update_matrices(settings)
    arenas.step(active, settings, optimizer.seed)
    return True
