"""The look at gradients on a GPU without a wait: a flag on the device, read by the host when the next step begins.

step n       gradients are looked at on the device, and every launch of the update reads the flag
             the flag is copied to page-locked memory
step n + 1   the host reads what was copied; where it was raised, step n has changed nothing, and is taken back
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from descend.errors import ConfigurationError
from descend.machine import page_locked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from descend.optim.engine.arena_manager import ArenaManager
    from descend.optim.engine.device_flag import DeviceFlag
    from descend.optim.engine.device_tables import DeviceTables
    from descend.optim.engine.settings import GroupSettings
    from descend.optim.engine.state_proxy import State

_UNKNOWN = -1  # of a flag that has not arrived

__all__ = ["FlagReport", "FlaggedTensors", "launch", "update_on_device"]


class FlaggedTensors(Protocol):
    """Parameters whose launches read a flag: `DeviceKernels` of an arena, or a `DeviceMatrixArena`."""

    flag: DeviceFlag
    tables: DeviceTables

    @property
    def absent(self) -> tuple[int, ...]:
        """Numbers of the parameters without a gradient."""
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
    """What a step's look at its gradients will have found, on its way to the host.

    Attributes:
        kernels: Parameters of the step.
        absent: Of each the numbers of the parameters without a gradient.
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
        absent = [held.absent for held in kernels]
        if kernels[0].device.type != "cuda":
            return FlagReport(list(kernels), absent, [held.flag.bad.clone() for held in kernels], None, scaled)
        flags = [page_locked(held.flag.bad.shape, held.flag.bad.dtype).fill_(_UNKNOWN) for held in kernels]
        for room, held in zip(flags, kernels, strict=True):
            room.copy_(held.flag.bad, non_blocking=True)
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
        for held, absent in zip(self.kernels, self.absent, strict=True):
            held.forget(absent)
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
        """Names of the parameters whose gradients were not finite, as far as it was looked at each."""
        return [
            held.name_of(i)
            for held, flags in zip(self.kernels, self.flags, strict=True)
            for i in flags[1:].nonzero().flatten().tolist()
        ]


def launch(
    kernels: Sequence[FlaggedTensors], found_inf: Tensor | None, grad_scale: Tensor | None, *, looks: bool
) -> FlagReport | None:
    """Look at the gradients of a step of all arenas, before any is updated. The host does not wait.

    Args:
        kernels: Of the arenas, all of one device.
        found_inf: See `DeviceFlag.set`.
        grad_scale: See `DeviceFlag.set`.
        looks: See `DeviceFlag.set`.

    Returns:
        What will have been found; None where nothing is looked at, and within a CUDA graph, of which the device alone
        knows.
    """
    for held in kernels:
        held.flag.set(found_inf, grad_scale, looks=looks)
    if not looks and found_inf is None:
        return None
    first, *rest = kernels
    first.flag.share([held.flag for held in rest])
    for held in rest:
        held.flag.share([first.flag])
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
    found, scale = getattr(optimizer, "found_inf", None), getattr(optimizer, "grad_scale", None)
    kernels = arenas.device_kernels(sum(len(group["params"]) for group in optimizer.param_groups))
    given = [x for x in (found, scale) if x is not None]
    recorded = bool(kernels) and kernels[0].tables.is_capturing()
    if not kernels or meshes or (recorded and arenas.matrices) or any(x.device != kernels[0].device for x in given):
        return False
    active = arenas.begin_step(settings, state)
    if not arenas.residents:  # parameters moved, so there is no arena any more
        return False
    arenas.report = launch(kernels, found, scale, looks=optimizer.on_nonfinite != "allow")
    arenas.update_matrices(settings)
    arenas.step(active, settings, optimizer.seed)
    return True
