"""A flag on a device that stands for a gradient that is not finite; every launch of an update reads it.

Where it is raised, nothing is written. The host learns of it at the next step, see `late_check`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from descend.optim.compiler.cuda import CudaLaunch, CudaModule
    from descend.optim.engine.device_tables import DeviceTables

__all__ = ["DeviceFlag", "stream_of"]


def stream_of(device: torch.device) -> int:
    """Address of the stream in which work is launched now."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


class DeviceFlag:
    """The flag of some tensors, and the look at their gradients.

    Args:
        module: Any compiled kernels: all have those of the look.
        work: What they are given: has the units of the tensors and the address of the table, and gets the flag's.
        tables: Has a table `gradient`.
        gradient: Addresses of the gradients, 0 for none; read at each look.
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
        self._kernel = f"look_{str(dtype).removeprefix('torch.')}"
        self.bad = torch.zeros(1 + len(gradient), dtype=torch.int32, device=device)
        work.bad, work.bad_tensor = self.bad.data_ptr(), self.bad.data_ptr() + self.bad.element_size()
        self._set = False  # since the last update

    def set(self, found_inf: Tensor | None, grad_scale: Tensor | None, *, looks: bool) -> None:
        """Raise it where a gradient of this step is not finite; from here on, until the next call, it holds.

        Args:
            found_inf: What torch's GradScaler has found; then nothing is looked at.
            grad_scale: The factor that it left in the gradients.
            looks: Whether gradients are looked at; if not, none counts as bad.
        """
        self._set = True
        self._tables.send("gradient", self._gradient)
        self.bad.zero_()
        self._work.found_inf = None if found_inf is None else found_inf.data_ptr()
        self._work.grad_scale = None if grad_scale is None else grad_scale.data_ptr()
        if found_inf is not None:
            self._module.launch([("adopt_found", 1)], self._work, stream_of(self._device))
        elif looks:
            self._module.launch([(self._kernel, self._work.units)], self._work, stream_of(self._device))

    def share(self, others: Sequence[DeviceFlag]) -> None:
        """Raise it where another one of the step is raised: all tensors are updated, or none."""
        for other in others:
            torch.maximum(self.bad[:1], other.bad[:1], out=self.bad[:1])

    def is_finite(self) -> bool:
        """Whether all gradients are; waits for the device. Leaves the flag as `set` does without a look."""
        self.set(None, None, looks=True)
        finite = not self.bad[0].item()
        self.bad.zero_()
        return finite

    def begin_update(self) -> None:
        """Lower it, unless it was set for the update that is launched now."""
        if not self._set:
            self.set(None, None, looks=False)
        self._set = False
