"""Compares the first mini-batch of an iterable between ranks, which cannot be read before the run as a sample can.

A list is compared before the run, with the settings. Of anything else ranks may draw different batches for a good
reason, as augmentation does, so a difference is a warning.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from descend.errors import warn

if TYPE_CHECKING:
    from collections.abc import Generator

    from descend.data import Batch
    from descend.data.loading.batch_iterable import BatchIterable
    from descend.runtime import Communicator

__all__ = ["compared"]


def compared(batches: Generator[Batch], feed: BatchIterable, world: Communicator) -> Generator[Batch]:
    """The same mini-batches; ranks whose first one differs are warned of.

    Args:
        batches: Those of an epoch.
        feed: Where they come from.
        world: All ranks that train.
    """
    with contextlib.closing(batches):
        for batch in batches:
            if world.world_size > 1 and not (feed.is_compared or feed.is_list):
                feed.is_compared = True
                if len(set(world.all_gather_object(feed.digest))) > 1:
                    warn(
                        "the first mini-batch differs between ranks. Each rank trains on its share of every mini-batch"
                        ", so all of them must yield the same ones: pass an iterable that does not choose samples by "
                        "rank, and seed alike what it draws at random"
                    )
            yield batch
