"""The base of all modules: a name, weights that all calls share, and an index for each call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from descend.errors import ConfigurationError
from descend.graph import ConstantInitializer, HeNormalInitializer, Layer, NoOptimizer, ValueInitializer, Weights

if TYPE_CHECKING:
    from descend.graph import Initializer

__all__ = ["Activation", "Module", "activated", "fill_weights", "fixed"]

Activation = Callable[..., Layer]
"""A kind of layer, or a function of a layer and `name`, such as `modules.Silu`."""


class Module:
    """Layers that are created again in each call, with weights that all calls share.

    Args:
        name: `<prefix><N>` without one, N counting up from 1 for each prefix: a subclass without a prefix of its own
            counts on with its base, so that no two modules get one name.

    Attributes:
        instance: How often it has been called. The layers of the first call bear the module's name, those of later
            calls `<name>_instance<instance>`.
    """

    prefix: ClassVar[str] = "module"
    global_count: ClassVar[int] = 0

    def __init_subclass__(cls) -> None:
        if "prefix" in vars(cls):
            cls.global_count = 0

    def __init__(self, name: str | None = None) -> None:
        if name is None:
            counted = next(cls for cls in type(self).__mro__ if issubclass(cls, Module) and "prefix" in vars(cls))
            counted.global_count += 1
            name = f"{self.prefix}{counted.global_count}"
        self.name = name
        self.instance = 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Make the layers of one more call; see `forward`."""
        self.instance += 1
        return self.forward(*args, **options)

    def forward(self, *args: Any, **options: Any) -> Any:
        """Make the layers of one call."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward()")

    def label(self, part: str = "") -> str:
        """The name of a layer of this call."""
        call = self.name if self.instance <= 1 else f"{self.name}_instance{self.instance}"
        return f"{call}_{part}" if part else call


def fill_weights(
    module: Module,
    given: Weights | Iterable[Weights],
    parts: Iterable[str],
    starts: Iterable[Initializer] | None = None,
) -> list[Weights]:
    """The weights that were given, and new ones for the parts that are missing.

    The first part starts as He's normal distribution and the others at zero, unless `starts` says otherwise.

    Raises:
        ConfigurationError: more are given than there are parts.
    """
    names = list(parts)
    weights = [given] if isinstance(given, Weights) else list(given)
    if len(weights) > len(names):
        raise ConfigurationError(
            f"{type(module).__name__} '{module.name}' is given {len(weights)} weights and takes {len(names)}: "
            f"{', '.join(names)}"
        )
    start = list(starts or [HeNormalInitializer(), *(ConstantInitializer() for _ in names)])
    missing = range(len(weights), len(names))
    return weights + [Weights(start[i], name=f"{module.name}_{names[i]}") for i in missing]


def fixed(values: Iterable[float], name: str) -> Weights:
    """Listed numbers that are never trained."""
    return Weights(ValueInitializer(values_d=tuple(values)), optimizer=NoOptimizer(), name=name)


def activated(module: Module, x: Layer, activation: Activation | Layer | None) -> Layer:
    """x behind an activation, if there is one. Of a layer its kind counts, as in LBANN."""
    if activation is None:
        return x
    kind = type(activation) if isinstance(activation, Layer) else activation
    return kind(x, name=module.label("activation"))
