"""The class of each message that this room knows."""

from __future__ import annotations

from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Final

from descend.graph import kinds, layer, metrics, model, objective, optimizers, weights
from descend.graph.kinds import operators

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CLASSES", "classes_of"]


def classes_of(module: ModuleType) -> dict[str, type]:
    """The public classes of a module by the names of their messages. Base classes name none of their own."""
    public: list[str] = module.__all__
    found = [thing for name in public if isinstance(thing := getattr(module, name), type)]
    return {cls.__dict__["message"]: cls for cls in found if isinstance(cls.__dict__.get("message"), str)}


_MODULES = (kinds, layer, metrics, model, objective, operators, optimizers, weights)

CLASSES: Final[Mapping[str, type]] = MappingProxyType(
    {message: cls for module in _MODULES for message, cls in classes_of(module).items()}
)
