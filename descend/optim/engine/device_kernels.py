"""Launches compiled kernels on an arena of a GPU: one launch a stage for all parameters, and no wait for the device.

Addresses of gradients, rates and constants are sent when they change, from pinned memory; step counts stay on the
device. A gradient that is not finite raises a flag there, which every later launch reads: then nothing is written. The
host learns of it at the next step, see `late_check`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from descend.optim.compiler.codegen_cuda import SETTINGS
from descend.optim.compiler.cuda import THREADS, CudaLaunch
from descend.optim.compiler.layout import BLOCK
from descend.optim.engine.arena_gradients import ArenaGradients
from descend.optim.engine.device_flag import DeviceFlag, stream_of
from descend.optim.engine.device_tables import DeviceTables
from descend.optim.engine.noise import key_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from descend.optim.compiler.codegen_cuda import CudaPlan
    from descend.optim.compiler.cuda import CudaModule
    from descend.optim.compiler.trace import Trace
    from descend.optim.engine.arena_buffers import ArenaBuffers
    from descend.optim.engine.arena_layout import ArenaLayout
    from descend.optim.engine.gradient_scan import TensorList
    from descend.optim.engine.settings import GroupSettings
    from descend.optim.engine.step_counts import StepCounts

__all__ = ["DeviceKernels"]

UNIT = 2**12  # elements of a unit: sixteen a thread, and enough units for every multiprocessor in a small net


def _units(layout: ArenaLayout) -> dict[str, NDArray[np.int64]]:
    """The units of a layout, see `Work` in cuda_kernel.h."""
    sizes = np.array([slot.param.numel() for slot in layout.slots], dtype=np.int64)
    counts = -(-sizes // UNIT)
    border = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    tensor = np.repeat(np.arange(len(sizes), dtype=np.int64), counts)
    first = (np.arange(border[-1], dtype=np.int64) - border[tensor]) * UNIT
    place = {group: i for i, group in enumerate(layout.groups)}
    return {
        "unit_tensor": tensor,
        "unit_first": first,
        "unit_count": np.minimum(UNIT, sizes[tensor] - first),
        "border": border,
        "start": np.array([slot.start * BLOCK for slot in layout.slots], dtype=np.int64),
        "group": np.array([place[slot.group] for slot in layout.slots], dtype=np.int64),
    }


class DeviceKernels(ArenaGradients):
    """The tables of an arena on its device, for the launches of its compiled kernels.

    Attributes:
        flag: Raised where a gradient is not finite.
        tables: What kernels read, on the device.
        recorded: Whether a step was captured in a CUDA graph, so that the device's counts may be ahead.
    """

    def __init__(
        self,
        layout: ArenaLayout,
        buffers: ArenaBuffers,
        counts: StepCounts,
        params: TensorList,
        state: TensorList,
        compiled: tuple[CudaModule, CudaPlan],
    ) -> None:
        super().__init__(layout, params, state)
        self._counts = counts
        self._module, self._plan = compiled
        self.recorded = False
        self.tables = DeviceTables(layout.device)
        tensors, groups, units = len(layout.slots), len(layout.groups), _units(layout)
        made, device = self._plan, layout.device
        for name, values in units.items():
            self.tables.send(name, values)
        self.tables.send("weights", params.addresses)
        self.tables.send(
            "buffer", np.array([buffers.elements[n].data_ptr() for n in made.buffers] or [0], dtype=np.int64)
        )
        self.tables.send(
            "column", np.array([buffers.numbers[n].data_ptr() for n in made.columns] or [0], dtype=np.int64)
        )
        self.tables.send("key", np.zeros(tensors, dtype=np.int64))
        self.tables.send("gradient", np.zeros(tensors, dtype=np.int64))
        self.tables.send("count", counts.values.numpy())
        self.tables.send("input", np.zeros((made.inputs, groups)))
        count = len(units["unit_tensor"])
        self.tables.held["table"] = torch.zeros(max(1, len(made.rows)), tensors, dtype=torch.float64, device=device)
        self.tables.held["sums"] = torch.zeros(max(1, len(made.sums)), count, dtype=torch.float64, device=device)
        given = {name: x.data_ptr() for name, x in self.tables.held.items()}
        self._work = CudaLaunch(units=count, tensors=tensors, groups=groups, **given)
        self.flag = DeviceFlag(self._module, self._work, self.tables, self.gradient, device, layout.dtype)
        self._launches = [(name, self._blocks(name)) for name in made.launches]

    def _blocks(self, name: str) -> int:
        """How many blocks serve everything at once."""
        if name.startswith("stage"):
            return self._work.units
        return -(-self._work.tensors // THREADS) if name == "numbers0" else self._work.tensors

    @property
    def device(self) -> torch.device:
        """The device of all parameters."""
        return self._layout.device

    def name_of(self, i: int) -> str:
        """What the user calls parameter i."""
        return self._layout.slots[i].name

    def is_finite(self) -> bool:
        """Whether all gradients are; waits for the device."""
        return self.flag.is_finite()

    def update(self, settings: Sequence[GroupSettings], traces: Mapping[int, Trace], seed: int) -> None:
        """Update all parameters with a gradient and count them, unless the flag is raised.

        Args:
            settings: Of each group.
            traces: Of each group with a parameter here.
            seed: Start of the noise.
        """
        self.tables.send("gradient", self.gradient)
        groups = self._layout.groups
        inputs = [[float(getattr(settings[g], name)) for g in groups] for name in SETTINGS]
        inputs += map(list, zip(*(traces[g].literals for g in groups), strict=True))
        self.tables.send("input", np.array(inputs))
        if traces[groups[0]].draws:
            keys = [key_of(seed, slot.name) for slot in self._layout.slots]
            self.tables.send("key", np.array(keys, dtype=np.uint64).view(np.int64))
        if not self.recorded:
            self.tables.send("count", self._counts.values.numpy())
        self.flag.begin_update()
        self._module.launch(self._launches, self._work, stream_of(self.device))
        if self.tables.is_capturing():
            self.recorded = True
            return
        self._reserve()
        self._counts.advance(self.absent)
        self.tables.agree("count", self._counts.values.numpy())  # the device has counted, too

    def _reserve(self) -> None:
        """Make room for what a step within a graph sends; see `DeviceTables.reserve`."""
        self.tables.reserve("gradient", "input", "count", "key")

    def forget(self, absent: Sequence[int]) -> None:
        """Take back the host's count of the last update, which the flag kept from happening; these had no gradient."""
        self._counts.retreat(absent)
        self.tables.agree("count", self._counts.values.numpy())

    def catch_up(self) -> int:
        """Take over the device's counts after replays of a graph; waits for the device.

        Returns:
            By how much the largest count grew.
        """
        before = float(self._counts.values.max())
        self._counts.take(self.tables.held["count"])
        self.tables.agree("count", self._counts.values.numpy())
        self.recorded = False
        self._reserve()
        return int(float(self._counts.values.max()) - before)
