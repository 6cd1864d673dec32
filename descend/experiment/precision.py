"""PrecisionSettings of a run: the dtype of the weights, or autocast to half precision with a loss scale for float16."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from descend.arguments import shown
from descend.errors import ConfigurationError, nearest, warn
from descend.lazy import instance_check

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import TypeIs

    from descend.graph import AutomaticMixedPrecision

__all__ = ["PrecisionSettings", "precision_of", "require_castable"]

_NAMES = ("float32", "bfloat16", "float16")
_is_description: Callable[[object], TypeIs[AutomaticMixedPrecision]] = instance_check(
    "descend.graph.model", "AutomaticMixedPrecision"
)


class PrecisionSettings(NamedTuple):
    """The precision of a run.

    Attributes:
        autocast: The dtype of torch's autocast; None computes in the dtype of the weights.
        scaler: The loss scaler of float16; None otherwise.
    """

    autocast: torch.dtype | None
    scaler: torch.amp.GradScaler | None


def precision_of(given: Any, device: torch.device) -> PrecisionSettings:
    """The precision of a name, of a description, or of None, which is float32.

    Raises:
        ConfigurationError: it is none of these.
    """
    if (
        given is None
        or (isinstance(given, str) and given == "float32")
        or (_is_description(given) and not given.enabled)
    ):
        return PrecisionSettings(None, None)
    if isinstance(given, str) and given in _NAMES:
        from descend.graph import AutomaticMixedPrecision

        given = AutomaticMixedPrecision(enabled=True, format=given)
    if not _is_description(given):
        options = ", ".join(f"'{name}'" for name in _NAMES)
        raise ConfigurationError(
            f"precision must be one of {options}, or a descend.AutomaticMixedPrecision, got {shown(given)}"
            f"{nearest(given, _NAMES) if isinstance(given, str) else ''}"
        )
    if given.format == "bfloat16":
        return PrecisionSettings(torch.bfloat16, None)
    scaler = torch.amp.GradScaler(
        device.type,
        init_scale=given.init_scale or 65536.0,
        growth_factor=given.growth_factor or 2.0,
        backoff_factor=given.backoff_factor or 0.5,
        growth_interval=given.growth_interval or 2000,
    )
    return PrecisionSettings(torch.float16, scaler)


def require_castable(module: torch.nn.Module, autocast: torch.dtype | None, *, scaled: bool) -> None:
    """See that the weights of a module are of a type that the precision of a run is for.

    Args:
        module: What is trained.
        autocast: The dtype of torch's autocast; None for no autocast.
        scaled: Whether the loss is scaled.

    Warns:
        UserWarning: weights are float64, which torch's autocast leaves as they are.

    Raises:
        ConfigurationError: the loss is scaled and weights in training are float16 already.
    """
    if autocast is None:
        return
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if scaled and (half := [name for name, p in trained if p.dtype == torch.float16]):
        raise ConfigurationError(
            f"precision='float16' computes in half precision with weights of float32, and '{half[0]}' is float16, so "
            "that its gradient cannot be scaled: call module.float() before the run"
        )
    if double := [name for name, p in trained if p.dtype == torch.float64]:
        every = "" if len(double) == len(trained) else " where such weights are used"
        word = str(autocast).removeprefix("torch.")
        warn(
            f"precision='{word}' has no effect{every}: '{double[0]}' is float64, which torch's autocast leaves alone: "
            "call module.float() before the run, or leave precision out"
        )
