"""Callbacks: one class for each message, such as CallbackPrint, and the strategies of CallbackSummarizeImages."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar

from descend.graph.text.schema import message_info
from descend.lbann.core.messages import FromMessage, message_class

if TYPE_CHECKING:
    from collections.abc import Mapping


class Callback(FromMessage):
    """What watches a run or changes it."""

    envelope = "Callback"


class ImageSelectionStrategy(FromMessage):
    """Which images CallbackSummarizeImages takes."""

    envelope = "Callback.CallbackSummarizeImages.SelectionStrategy"


class CategoricalAccuracyStrategy(ImageSelectionStrategy):
    """Images that were classified rightly, wrongly, or both.

    Args:
        accuracy_layer_name: Name of the CategoricalAccuracy layer.
        match_type: NOMATCH, MATCH or ALL.
        num_images_per_epoch: How many.
    """

    message: ClassVar[str] = "Callback.CallbackSummarizeImages.SelectionStrategy.CategoricalAccuracyStrategy"

    class MatchType(IntEnum):
        """Wrongly, rightly, both."""

        NOMATCH = 0
        MATCH = 1
        ALL = 2

    def __init__(
        self,
        accuracy_layer_name: str | None = None,
        match_type: MatchType | int | str = MatchType.NOMATCH,
        num_images_per_epoch: int = 10,
    ) -> None:
        super().__init__(
            accuracy_layer_name=accuracy_layer_name, match_type=match_type, num_images_per_epoch=num_images_per_epoch
        )


class TrackSampleIDsStrategy(ImageSelectionStrategy):
    """The same images each time. LBANN reads and refuses it, and so does a run here.

    Args:
        input_layer_name: Name of the Input layer.
        num_tracked_images: How many.
    """

    message: ClassVar[str] = "Callback.CallbackSummarizeImages.SelectionStrategy.TrackSampleIDsStrategy"

    def __init__(self, input_layer_name: str | None = None, num_tracked_images: int = 10) -> None:
        super().__init__(input_layer_name=input_layer_name, num_tracked_images=num_tracked_images)


class CallbackSummarizeImages(Callback):
    """Images chosen by a strategy for TensorBoard.

    Args:
        selection_strategy: Which images.
        image_source_layer_name: Name of the layer that has them.
        epoch_interval: From one writing to the next.
    """

    message: ClassVar[str] = "Callback.CallbackSummarizeImages"

    def __init__(
        self,
        selection_strategy: ImageSelectionStrategy | None = None,
        image_source_layer_name: str | None = None,
        epoch_interval: int = 1,
    ) -> None:
        super().__init__(
            selection_strategy=selection_strategy,
            image_source_layer_name=image_source_layer_name,
            epoch_interval=epoch_interval,
        )


def _classes() -> Mapping[str, type[FromMessage]]:
    envelope = message_info("Callback")
    assert envelope is not None
    names = (field.message.name for field in envelope.fields.values())
    made = {name.rpartition(".")[2]: message_class(name, Callback) for name in names}
    return made | {"CallbackSummarizeImages": CallbackSummarizeImages}


CALLBACKS = _classes()
__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]  # the names of messages come from the schema
    "Callback",
    "CallbackImComm",
    "CategoricalAccuracyStrategy",
    "ImageSelectionStrategy",
    "MinibatchScheduleStep",
    "TrackSampleIDsStrategy",
    *sorted(CALLBACKS),
]
MinibatchScheduleStep = message_class("Callback.MinibatchScheduleStep")
CallbackImComm = message_class("Callback.CallbackImComm", Callback)  # of older files; a Callback has no place for it


def __getattr__(name: str) -> Any:
    """A callback by the name of its message."""
    if name in CALLBACKS:
        return CALLBACKS[name]
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
