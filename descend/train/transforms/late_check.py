"""The finite check on a GPU without a wait: the host learns of a bad gradient when the next update is due.

    step n       a flag is computed on the device; where it is raised, the optimizer leaves the update out there
                 the flag is copied to page-locked memory
    step n + 1   forward and backward passes are launched, then the host reads the flag, which has long arrived
                 where it was raised: the run goes back to before step n, computes its gradient once more and looks at
                 that as it does without a GPU, so the error, the weights and what is saved are the same

Whatever looks at the run between two steps (a callback, an evaluation, a checkpoint) settles this first; see
`TransformChain.settle`. The flag is handed to the optimizer as torch's `GradScaler` does it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from descend.runtime.gpu_copies import HostNumber
from descend.torch_private import skips_flagged_updates
from descend.train.events import Event
from descend.train.state import Bookmark
from descend.train.step import compute_gradients
from descend.train.strategies.base import Strategy

if TYPE_CHECKING:
    from descend.data import Batch
    from descend.train.run import Run
    from descend.train.transforms.base import Gradients
    from descend.train.transforms.check_finite import FiniteLook

__all__ = ["LateCheck"]

_SEEN_BY_CALLBACKS = (Event.BEFORE_STEP, Event.AFTER_PART, Event.AFTER_BACKWARD, Event.AFTER_STEP)


@dataclass(frozen=True)
class _Pending:
    """An update that may have been left out.

    Attributes:
        flag: Above 0 if it was.
        batch: Its mini-batch.
        before: Where the run stood.
    """

    flag: HostNumber
    batch: Batch
    before: Bookmark


class LateCheck:
    """The flags of a run.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._pending: _Pending | None = None

    def can_be_late(self) -> bool:
        """Whether the host may learn of a bad gradient a step later: one process trains on a device, its optimizer
        leaves out the updates of a flag there, and nothing else sees the step meanwhile."""
        run = self._run
        return (
            type(run.strategy) is Strategy
            and not run.precision.checks_for_overflow
            and run.transforms.is_stateless
            and skips_flagged_updates(run.optimizer)
            and not any(map(run.callbacks.wants, _SEEN_BY_CALLBACKS))
        )

    def launch(self, gradients: Gradients, look: FiniteLook) -> bool:
        """Look at the gradients of a step whose update follows. The host does not wait.

        Returns:
            Whether that is possible; if not, nothing was done.
        """
        flag = look.flag()
        if flag is None:
            return False
        run = self._run
        if run.precision.found_inf is not None:  # of a check before this one: either leaves the update out
            flag = torch.maximum(flag, run.precision.found_inf)
        run.precision.found_inf = flag
        run.buffer_snapshot.keeps_two = True
        self._pending = _Pending(HostNumber(flag), gradients.batch, Bookmark.of(run.state))
        return True

    def found(self) -> Gradients | None:
        """The gradients, computed once more, of an update that was left out, with the run as it was before that; None
        where the newest update was made, or all is known of it.

        While the gradients of the next step are there, its buffers are those that `restored_on_error` gives back.
        """
        pending, self._pending = self._pending, None
        if pending is None or not pending.flag.read():
            return None
        run = self._run
        pending.before.restore(run.state)
        run.buffer_snapshot.step_back()
        return compute_gradients(run, pending.batch)
