"""The base class of all callbacks, and the list of callbacks of a run.

A callback overrides the hooks that it needs. Each hook is called with one read-only record. A method named like a hook
that no event calls is an error when the class is defined, so a misspelt hook is never silently ignored.
"""

from __future__ import annotations

import difflib
import inspect
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, cast

from descend.arguments import shown
from descend.arguments.strict_keywords import StrictKeywords
from descend.errors import ConfigurationError, nearest
from descend.train.events import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from descend.train.events import EpochView, EvaluationView, PartView, RunView, StepView
    from descend.train.metric_direction import Direction

__all__ = ["Beginning", "Callback", "Callbacks", "Monitored", "given_back", "kept"]

_HOOKS = tuple(event.value for event in Event)


OF_AN_AVERAGE = (
    ": a value of an average behind the first one is not monitored, since the weights that are kept or put back are "
    "those of the first; put that average first among the callbacks"
)


class Monitored(NamedTuple):
    """The metric by which the best epoch of a run is chosen.

    Attributes:
        metric: "train/NAME" or "validation/NAME".
        direction: "min" if lower is better, "max" if higher is.
        restored: The weights of the best epoch are put back at the end of training.
    """

    metric: str
    direction: Direction
    restored: bool = False


class Beginning(NamedTuple):
    """When a callback acts for the first time, where a setting says so.

    Attributes:
        setting: The setting as the user wrote it, such as "start_epoch=99".
        unit: What is counted.
        after: So many of them.
    """

    setting: str
    unit: Literal["epochs", "updates"]
    after: int


class Callback(metaclass=StrictKeywords):
    """Base class of callbacks. Override the hooks that you need; `docs/callbacks.md` shows one in ten lines.

    Attributes:
        remembers: Names of the attributes saved in a checkpoint: numbers, strings, tensors, None, and lists, tuples and
            dictionaries of these.
        records: Names of the quantities that it adds to the history, so that stopping criteria can refer to them.
        saves: Whether it saves checkpoints. Its `after_*` hooks are then called after those of all other callbacks, so
            that a checkpoint holds their state of the same moment.
        replaces_weights: Whether evaluations see other weights because of it. Its `after_*` hooks are then called after
            those of all others but those that save, which may keep the weights that were evaluated, and of several such
            callbacks the last one's first, so that each finds what it left. Where an evaluation ends in an error, the
            run puts back the weights from before its `before_evaluation`.
        saved_as: By what its state is called in a checkpoint beside its class; empty counts those of a class.
        looks_at: Modes of which at least one must have samples for the callback to do anything.
        reads_weights: Whether it looks at weights, gradients or the optimizer's state. False lets each rank hold a part
            of those of layers with a model-parallel layout. It holds for the hooks that a class inherits: a subclass
            with hooks of its own says it again, or reads them.
        keeps_weights: Whether it keeps tensors of the shapes of weights by their names, so that these must stay.

    Raises:
        ConfigurationError: when a subclass defines a public method that is named like a hook but is none, or a hook
            that does not take one record.
    """

    remembers: ClassVar[tuple[str, ...]] = ()
    records: ClassVar[tuple[str, ...]] = ()
    saves: ClassVar[bool] = False
    replaces_weights: ClassVar[bool] = False
    saved_as = ""
    looks_at: ClassVar[tuple[str, ...]] = ()
    reads_weights = True
    keeps_weights = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "reads_weights" not in vars(cls) and any(name in _HOOKS for name in vars(cls)):
            cls.reads_weights = True
        for name, member in vars(cls).items():
            if inspect.isroutine(member) and _looks_like_a_hook(name):
                raise ConfigurationError(
                    f"callback {cls.__name__} defines {name}(), which no event calls{nearest(name, _HOOKS) or '.'} "
                    f"The hooks are {', '.join(_HOOKS)}"
                )
            if name in _HOOKS and not _takes_one_record(cls, name):
                raise ConfigurationError(
                    f"callback {cls.__name__}: {name}{inspect.signature(member)} is called with one record and not "
                    f"awaited: write def {name}(self, record)"
                )

    @property
    def monitored(self) -> Monitored | None:
        """The metric by which this callback chooses the best epoch; None if it chooses none."""

    @property
    def beginning(self) -> Beginning | None:
        """When it acts for the first time; None where it does from the start, or where that is not known."""

    @property
    def rate_of_step(self) -> Callable[[int], float] | None:
        """The learning rate that it sets as a function of the updates so far; None where it sets none so."""

    def missing_extra(self) -> str | None:
        """What to install for this callback if an optional library is missing; None if nothing is."""

    def state(self) -> dict[str, Any]:
        """The state saved in a checkpoint; a resumed run with it equals one that was not interrupted."""
        return {name: kept(getattr(self, name)) for name in self.remembers}

    def load_state(self, state: dict[str, Any]) -> None:
        """Load what `state` returned; called between `after_setup` and `before_run`."""
        for name in self.remembers:
            if name in state:
                setattr(self, name, given_back(state[name]))

    def after_setup(self, run: RunView) -> None:
        """Everything is initialized; a checkpoint may be restored next. Reset the callback's own state here."""

    def before_run(self, run: RunView) -> None:
        """Before anything else, also in a run that trains no epoch."""

    def before_epoch(self, epoch: EpochView) -> None:
        """Before an epoch of training."""

    def before_step(self, step: StepView) -> None:
        """Before the forward pass of a mini-batch."""

    def after_part(self, part: PartView) -> None:
        """After the backward pass of one micro-batch; gradients are sums so far."""

    def after_backward(self, step: StepView) -> None:
        """Gradients are complete; before clipping and before the update."""

    def after_step(self, step: StepView) -> None:
        """After the update of the weights."""

    def before_evaluation(self, evaluation: EvaluationView) -> None:
        """Before an evaluation of the validation, test or tournament samples."""

    def before_evaluation_step(self, step: StepView) -> None:
        """Before the forward pass of a mini-batch of an evaluation."""

    def after_evaluation_step(self, step: StepView) -> None:
        """After the forward pass of a mini-batch of an evaluation."""

    def after_evaluation(self, evaluation: EvaluationView) -> None:
        """After an evaluation, with its values."""

    def after_epoch(self, epoch: EpochView) -> None:
        """After an epoch of training and the validation that follows it."""

    def after_training(self, run: RunView) -> None:
        """After the last update, before the test samples are evaluated."""

    def after_run(self, run: RunView) -> None:
        """At the end of the run, also if it ends in an error."""


_PAIRS, _TUPLE = "pairs of a dictionary", "entries of a tuple"


def kept(value: Any) -> Any:
    """A value in the form of a checkpoint, whose dictionaries have strings as keys and which has no tuples."""
    if isinstance(value, dict):
        entries = {key: kept(entry) for key, entry in cast("dict[Any, Any]", value).items()}
        plain = all(isinstance(key, str) for key in entries) and not entries.keys() & {_PAIRS, _TUPLE}
        return entries if plain else {_PAIRS: [[kept(key), entry] for key, entry in entries.items()]}
    if isinstance(value, tuple):
        return {_TUPLE: [kept(entry) for entry in cast("tuple[Any, ...]", value)]}
    return [kept(entry) for entry in cast("list[Any]", value)] if isinstance(value, list) else value


def given_back(value: Any) -> Any:
    """The inverse of `kept`."""
    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value)
        if entries.keys() == {_PAIRS}:
            return {given_back(key): given_back(entry) for key, entry in entries[_PAIRS]}
        if entries.keys() == {_TUPLE}:
            return tuple(given_back(entry) for entry in entries[_TUPLE])
        return {key: given_back(entry) for key, entry in entries.items()}
    return [given_back(entry) for entry in cast("list[Any]", value)] if isinstance(value, list) else value


def _looks_like_a_hook(name: str) -> bool:
    """Whether a name is not a hook and was meant as one."""
    if name in _HOOKS or name.startswith("_"):
        return False
    return name.startswith(("before_", "after_", "on_")) or bool(difflib.get_close_matches(name, _HOOKS, cutoff=0.85))


def _takes_one_record(cls: type[Callback], name: str) -> bool:
    hook = vars(cls)[name]
    if not inspect.isfunction(hook):
        return True  # what was made in another way is called as it is
    try:
        inspect.signature(hook).bind(None, None)
    except TypeError:
        return False
    return not inspect.iscoroutinefunction(hook)


def _overrides(callback: Callback, hook: str) -> bool:
    """Whether a callback has a hook of its own, in its class or set on the object."""
    return hook in vars(callback) or getattr(type(callback), hook) is not getattr(Callback, hook)


def _own(callback: Callback, name: str) -> Any:
    """A method of its class; what a user has called by the same name, and is no method, is no concern of ours."""
    found = getattr(type(callback), name)
    return found if inspect.isroutine(found) else getattr(Callback, name)


def _in_order(callbacks: Sequence[Callback], event: Event) -> Sequence[Callback]:
    """The callbacks in the order in which the hook of an event is called.

    What one puts in before, the next one may cover: so those that replace weights are called in the reverse order.
    """
    if not event.startswith("after_"):
        return callbacks
    sign = 1 if event is Event.AFTER_SETUP else -1
    places = {id(callback): sign * i if callback.replaces_weights else i for i, callback in enumerate(callbacks)}
    late = {id(callback): 2 if callback.saves else int(callback.replaces_weights) for callback in callbacks}
    return sorted(callbacks, key=lambda callback: (late[id(callback)], places[id(callback)]))


class Callbacks:
    """The callbacks of a run, called in order, those that save checkpoints last. A hook that no callback overrides
    costs nothing."""

    resets_with_optimizer: ClassVar[bool] = False

    def __init__(self, callbacks: tuple[Callback, ...] = ()) -> None:
        for callback in callbacks:
            if not isinstance(callback, Callback):  # pyright: ignore[reportUnnecessaryIsInstance]  # users pass anything
                given: Any = callback
                called = f": construct it, {given.__name__}(...)" if isinstance(given, type) else ""
                raise ConfigurationError(
                    f"callbacks must be instances of descend.Callback, got {shown(callback)}{called}"
                )
        self.all = tuple(callbacks)
        self._listeners = {
            event: tuple(getattr(c, event) for c in _in_order(self.all, event) if _overrides(c, event))
            for event in Event
        }

    def state_dict(self) -> dict[str, Any]:
        """The state of every callback that has one, by class name and number within the class, such as "Timer 1".

        Of several that have a name of their own it is the class and that name, whatever their order.
        """
        states = {names[0]: _own(callback, "state")(callback) for callback, names in self._named()}
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of each callback; one that has none in the checkpoint keeps its initial state."""
        for callback, names in self._named():
            if name := next((name for name in names if name in state_dict), None):
                _own(callback, "load_state")(callback, state_dict[name])

    def _named(self) -> Generator[tuple[Callback, list[str]]]:
        """Each callback with the names that its state may have, the one that it is saved by first."""
        kinds = Counter(type(callback).__name__ for callback in self.all)
        seen: Counter[str] = Counter()
        for callback in self.all:
            kind, called = type(callback).__name__, callback.saved_as
            seen[kind] += 1
            names, own = [f"{kind} {seen[kind]}"], [f"{kind} {called}"] if called else []
            yield callback, own + names if kinds[kind] > 1 else names + own

    def unsubscribe(self, callback: Callback, event: Event) -> None:
        """Call the hook of `event` of `callback` no more in this run."""
        hook = getattr(callback, event)
        self._listeners[event] = tuple(listener for listener in self._listeners[event] if listener != hook)

    def wants(self, event: Event) -> bool:
        """Whether any callback overrides the hook of `event`."""
        return bool(self._listeners[event])

    def listening(self, event: Event) -> list[tuple[Callback, Callable[[Any], None]]]:
        """The callbacks whose hook of `event` is called, in that order, each with the hook."""
        own = [(one, getattr(one, event)) for one in _in_order(self.all, event) if _overrides(one, event)]
        return [(callback, hook) for callback, hook in own if hook in self._listeners[event]]

    def fire(self, event: Event, view: object) -> None:
        """Call the hook of `event` of every callback with `view`, in order."""
        for listener in self._listeners[event]:
            listener(view)

    def fire_all(self, event: Event, view: object) -> list[BaseException]:
        """Call every hook of `event`, also after one that raised; returns the errors in order."""
        raised: list[BaseException] = []
        for listener in self._listeners[event]:
            try:
                listener(view)
            except BaseException as error:
                raised.append(error)
        return raised
