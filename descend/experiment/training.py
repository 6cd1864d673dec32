"""A user's module while it is trained: what holds for `fit` and for `run` of a model made of a torch module."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from descend.errors import Unsupported
from descend.experiment.batch_norm import BatchNormWatch
from descend.train.masks import Masks

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from descend.data import Feed
    from descend.experiment.module_task import ModuleTask
    from descend.train.loop import Part

__all__ = ["device_of", "in_training"]


def device_of(module: torch.nn.Module) -> torch.device:
    """Where the module is.

    Raises:
        Unsupported: its weights are on several devices.
    """
    devices = {p.device for p in module.parameters()}
    if len(devices) > 1:
        places = ", ".join(sorted(map(str, devices)))
        raise Unsupported(f"the weights of {type(module).__name__} are on several devices ({places}); move them to one")
    return devices.pop() if devices else torch.device("cpu")


@contextmanager
def in_training(
    task: ModuleTask, seed: int, feed: Feed, micro_batch_size: int | str | None = None
) -> Generator[Callable[[Part], None]]:
    """Let random layers draw by sample, watch batch norm, and leave every part of the module in the mode it was in.

    Args:
        task: The module and its losses.
        seed: Of the run.
        feed: The training data.
        micro_batch_size: Samples that go through the module at once.

    Yields:
        What is to be called with each part of a mini-batch before it goes through the module.
    """
    module = task.module
    before = [(part, part.training) for part in module.modules()]
    with Masks(module, seed) as masks:
        norms = BatchNormWatch(module, feed, micro_batch_size)

        def begin(part: Part) -> None:
            masks.begin(part.step, part.count, part.position)
            norms.begin(part)
            task.begin(part)

        try:
            yield begin
        finally:
            norms.close()
            for part, training in before:
                part.training = training
