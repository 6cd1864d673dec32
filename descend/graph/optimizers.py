"""Update rules as an experiment describes them: plain values, without arithmetic.

In Python an option that is not given has its published default, the one that `descend.optim` has as well; SGD has no
published learning rate, and a learning rate of 0 is reported before training. In LBANN's text format a field that is
not set is 0, so a description read from a text has zeros there, and a warning names those that matter. Writing sets
every field, so a description survives `from_text(to_text(x)) == x`.

Options also answer to the names that `descend.optim` uses: `lr` for learn_rate, `betas` for (beta1, beta2), `rho` for
decay_rate.

w is the parameter, g the gradient of the mini-batch mean, t the number of updates.

    SGD                v = momentum v + g; w -= learn_rate v, or with nesterov w -= learn_rate (momentum v + g)
    Adam               m, v running means of g and g²;
                       w -= learn_rate (√(1−beta2ᵗ) / (1−beta1ᵗ) m / (√v + eps) + adamw_weight_decay w)
    AdaGrad            s += g²; w -= learn_rate g / (√s + eps)
    RMSprop            s = decay_rate s + (1 − decay_rate) g²; w -= learn_rate g / (√s + eps)
    HypergradientAdam  Adam whose learning rate changes by hyper_learning_rate ⟨g, last direction⟩
    NoOptimizer        w stays
"""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from descend.arguments import check_number
from descend.arguments.strict_keywords import canonical_names
from descend.errors import ConfigurationError, GraphError, warn
from descend.graph.enums import Exported
from descend.graph.fields import described, field_types

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SGD", "AdaGrad", "Adam", "HypergradientAdam", "NoOptimizer", "Optimizer", "RMSprop", "check_optimizer"]

_T = TypeVar("_T")
# At 1 or above the running mean never forgets, so it diverges or stalls.
_FRACTIONS = frozenset(("beta1", "beta2", "decay_rate", "momentum"))


def _also_called(**aliases: str | tuple[str, ...]) -> Callable[[type[_T]], type[_T]]:
    """Let a description's options be given under other names too; see `canonical_names`."""

    def extend(cls: type[_T]) -> type[_T]:
        made = cast("Any", cls)
        plain_init, names = made.__init__, [field.name for field in fields(made)]

        def __init__(self: Any, *values: Any, **named: Any) -> None:  # noqa: N807  # it becomes the class's own
            own = dict(zip(names, values, strict=False))
            twice = [alias for alias in named if aliases.get(alias) in own]
            if twice:
                raise ConfigurationError(
                    f"{cls.__name__} got '{aliases[twice[0]]}' twice, by position and as '{twice[0]}'"
                )
            plain_init(self, *values, **canonical_names(cls.__name__, named, aliases))

        __init__.__doc__ = plain_init.__doc__
        cast("Any", __init__).__signature__ = inspect.signature(plain_init)
        made.__init__ = __init__
        return cls

    return extend


class Optimizer(Exported):
    """What all update rules have in common."""

    message: ClassVar[str]
    envelope: ClassVar[str | None] = "Optimizer"
    rates: ClassVar[tuple[str, ...]] = ("learn_rate",)  # without any of these weights stay as they are
    where: str | None = None

    @classmethod
    def from_fields(cls, given: dict[str, Any]) -> Optimizer:
        """The description that a text of LBANN's format means: a field that is not set is 0.

        Warns:
            UserWarning: Fields are 0 or not set whose published default is another number; learning rates are left
                out, since a rate of 0 is reported by itself.
        """
        published = {
            field.name: field.default for field in fields(cast("Any", cls)) if field.default not in (MISSING, 0, False)
        }
        zero = [name for name in published if not given.get(name) and name not in cls.rates]
        if zero:
            place = f"{given['where']}: " if given.get("where") else ""
            usual = ", ".join(f"{name}: {published[name]!r}" for name in zero)
            warn(
                f"{place}{cls.__name__} without {', '.join(zero)}: a field that is not set is 0 in this format; the "
                f"published values are {usual}"
            )
        return cls(**dict.fromkeys(published, 0.0) | given)

    @property
    def stands_still(self) -> bool:
        """Whether the weights would stay as they are, because no rate is set."""
        return bool(self.rates) and not any(getattr(self, name) for name in self.rates)

    def problems(self) -> list[str]:
        """The sentences about numbers that no rule can use: negative or not finite, or a decay that is not below 1."""
        numbers = [name for name, kind in field_types(type(self), Optimizer).items() if kind.base is float]
        below = {name: 1 if name in _FRACTIONS else None for name in numbers}
        wrong = [check_number(name, getattr(self, name), at_least=0, below=below[name]) for name in numbers]
        return [f"{type(self).__name__}: {problem}" for problem in wrong if problem]


@_also_called(lr="learn_rate")
@described
class SGD(Optimizer):
    """Gradient descent with momentum."""

    message: ClassVar[str] = "Optimizer.SGD"

    learn_rate: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False

    if TYPE_CHECKING:

        def __init__(
            self,
            learn_rate: float = ...,
            momentum: float = ...,
            nesterov: bool = ...,
            *,
            lr: float = ...,
            where: str | None = None,
        ) -> None: ...


@_also_called(lr="learn_rate", betas=("beta1", "beta2"))
@described
class Adam(Optimizer):
    """Adam with ε beside the uncorrected root; its weight decay is decoupled. Defaults as Kingma and Ba have them."""

    message: ClassVar[str] = "Optimizer.Adam"

    learn_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    adamw_weight_decay: float = 0.0

    if TYPE_CHECKING:

        def __init__(
            self,
            learn_rate: float = ...,
            beta1: float = ...,
            beta2: float = ...,
            eps: float = ...,
            adamw_weight_decay: float = ...,
            *,
            lr: float = ...,
            betas: tuple[float, float] = ...,
            where: str | None = None,
        ) -> None: ...


@_also_called(lr="learn_rate")
@described
class AdaGrad(Optimizer):
    """Learning rates that shrink with the sum of squared gradients."""

    message: ClassVar[str] = "Optimizer.AdaGrad"

    learn_rate: float = 0.01
    eps: float = 1e-6

    if TYPE_CHECKING:

        def __init__(
            self, learn_rate: float = ..., eps: float = ..., *, lr: float = ..., where: str | None = None
        ) -> None: ...


@_also_called(lr="learn_rate", rho="decay_rate")
@described
class RMSprop(Optimizer):
    """Learning rates divided by the running root mean square of the gradient."""

    message: ClassVar[str] = "Optimizer.RMSprop"

    learn_rate: float = 1e-3
    decay_rate: float = 0.9
    eps: float = 1e-8

    if TYPE_CHECKING:

        def __init__(
            self,
            learn_rate: float = ...,
            decay_rate: float = ...,
            eps: float = ...,
            *,
            lr: float = ...,
            rho: float = ...,
            where: str | None = None,
        ) -> None: ...


@_also_called(lr="init_learning_rate", betas=("beta1", "beta2"))
@described
class HypergradientAdam(Optimizer):
    """Adam that descends on its own learning rate, one for each parameter."""

    message: ClassVar[str] = "Optimizer.HypergradientAdam"
    rates: ClassVar[tuple[str, ...]] = ("init_learning_rate", "hyper_learning_rate")

    init_learning_rate: float = 1e-3
    hyper_learning_rate: float = 1e-7
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-8

    if TYPE_CHECKING:

        def __init__(
            self,
            init_learning_rate: float = ...,
            hyper_learning_rate: float = ...,
            beta1: float = ...,
            beta2: float = ...,
            eps: float = ...,
            *,
            lr: float = ...,
            betas: tuple[float, float] = ...,
            where: str | None = None,
        ) -> None: ...


@described
class NoOptimizer(Optimizer):
    """The weights are not trained."""

    message: ClassVar[str] = "Optimizer.NoOptimizer"
    rates: ClassVar[tuple[str, ...]] = ()


def check_optimizer(optimizer: Optimizer, of: str) -> None:
    """Refuse numbers that no rule can use.

    Args:
        optimizer: The description.
        of: What has it, for the message, such as "the default optimizer".

    Raises:
        GraphError: every such number, with the place of the optimizer in its text.
    """
    place = f"{optimizer.where}: " if optimizer.where else ""
    problems = [f"{place}{of}: {problem}" for problem in optimizer.problems()]
    if problems:
        raise GraphError(problems)
