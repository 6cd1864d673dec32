"""The optimizer that is examined, and how a check builds and steps it.

A check never sees torch's global random numbers: each step of a trial has a seed of its own, its count, and the state
before is put back. An optimizer that draws from them repeats itself then, and the caller's numbers stay as they are.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import required

from descend.errors import RuleError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

__all__ = ["Candidate", "CandidateRun", "OptionRefused", "arguments", "classes", "draw", "first_line", "gap", "load"]

_NORMAL_SHAPES = ((4, 3), (3, 2, 2), (5,))
_ONLY_MATRICES = ((4, 3), (3, 4))
_RATE_WHERE_NONE_IS_STATED = 0.01
_LONGEST_REST = 30  # steps; AdaShift rests for 10

Build = Callable[..., torch.optim.Optimizer]


class OptionRefused(Exception):
    """The optimizer would not be built over these weights or with these arguments."""


def draw(shape: Sequence[int], seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers that depend on the seed alone."""
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def gap(moved: Sequence[Tensor], wanted: Sequence[Tensor], starts: Sequence[Tensor]) -> float:
    """The largest error in displacement of any tensor, relative to what was wanted; NaN counts as infinite."""
    errors = [0.0]
    for m, w, s in zip(moved, wanted, starts, strict=True):
        error, size = float((m.double() - w.double()).norm()), float((w.double() - s.double()).norm())
        relative = 0.0 if error == 0 else error / size if size > 0 else math.inf
        errors.append(math.inf if math.isnan(relative) else relative)
    return max(errors)


@dataclass(frozen=True)
class Candidate:
    """An optimizer class, or a function that builds one, with its arguments.

    Attributes:
        build: Called with weights and `args`.
        args: Arguments beside the weights.
        noisy_rule: The rule that it is to follow draws random numbers, wherever it takes them from.
    """

    build: Build
    args: Mapping[str, Any]
    noisy_rule: bool = False

    @property
    def title(self) -> str:
        """`Adam` or `Adam(lr=0.1)`."""
        said = ", ".join(f"{key}={value!r}" for key, value in self.args.items())
        return f"{self.name}({said})" if said else self.name

    @property
    def name(self) -> str:
        """Name of the class or function."""
        return getattr(self.build, "__name__", type(self.build).__name__)

    @cached_property
    def stated(self) -> dict[str, Any]:
        """Arguments that the signature names, with their defaults; without one, `inspect.Parameter.empty`."""
        try:
            parameters = inspect.signature(self.build).parameters
        except (TypeError, ValueError):
            return {}
        named = {name: p.default for name, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        return {name: inspect.Parameter.empty if value is required else value for name, value in named.items()}

    @property
    def takes_any(self) -> bool:
        """Whether its signature leaves open which arguments it takes."""
        try:
            return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(self.build).parameters.values())
        except (TypeError, ValueError):
            return True

    @property
    def needs_closure(self) -> bool:
        """Whether a step insists on a closure, since it evaluates the loss several times."""
        asked = inspect.signature(self.built.step).parameters.get("closure")
        return asked is not None and asked.default is inspect.Parameter.empty

    def over(self, params: Any, **more: Any) -> torch.optim.Optimizer:
        """An optimizer over these weights.

        Raises:
            Refused: Its constructor raised.
        """
        args = {**self.args, **more}
        if self.stated.get("lr") is inspect.Parameter.empty:
            args.setdefault("lr", _RATE_WHERE_NONE_IS_STATED)
        try:
            optimizer = self.build(params, **args)
        except Exception as problem:
            raise OptionRefused(f"{type(problem).__name__}: {first_line(problem)}") from problem
        begin = getattr(optimizer, "train", None)  # schedule-free optimizers need a call before training
        if callable(begin):
            begin()
        return optimizer

    @cached_property
    def options(self) -> dict[str, Any]:
        """All its options: defaults of the signature, our arguments, and what its first group holds."""
        known = {name: value for name, value in self.stated.items() if value is not inspect.Parameter.empty}
        group = self.built.param_groups[0]
        return {**known, **self.args, **{key: value for key, value in group.items() if key != "params"}}

    @property
    def class_name(self) -> str:
        """Name of the class of what is built."""
        return type(self.built).__name__

    @cached_property
    def built(self) -> torch.optim.Optimizer:
        """One over a single matrix."""
        return self.over([torch.nn.Parameter(draw((4, 3), 0))])

    @property
    def lr(self) -> float:
        """The rate of its groups."""
        return float(self.options.get("lr") or _RATE_WHERE_NONE_IS_STATED)

    @property
    def takes_decay(self) -> bool:
        """Whether weight decay can be asked for."""
        return "weight_decay" in self.stated or (self.takes_any and "weight_decay" in self.options)

    def without_decay(self) -> dict[str, Any]:
        """The argument that turns weight decay off, where there is one."""
        return {"weight_decay": 0.0} if self.takes_decay else {}

    def with_decay(self) -> dict[str, Any]:
        """The argument that turns weight decay on, where there is one."""
        return {"weight_decay": 0.01} if self.takes_decay else {}

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the weights that most checks use: several, or matrices where nothing else is taken.

        Raises:
            Refused: It cannot be built, or takes no step, even over matrices.
        """
        try:
            self._try(_NORMAL_SHAPES)
        except Exception:
            self._try(_ONLY_MATRICES)
            return _ONLY_MATRICES
        return _NORMAL_SHAPES

    def _try(self, shapes: Sequence[Sequence[int]]) -> None:
        trial = CandidateRun(self, [draw(shape, i) for i, shape in enumerate(shapes)])
        try:
            trial.step(*(draw(shape, 100 + i) for i, shape in enumerate(shapes)))
        except Exception as problem:
            raise OptionRefused(f"step() raised {type(problem).__name__}: {first_line(problem)}") from problem

    def weights(self, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        """Weights of `shapes`."""
        return [draw(shape, i, dtype) for i, shape in enumerate(self.shapes)]

    def gradients(self, step: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        """Gradients of `shapes` for a step."""
        return [draw(shape, 1000 * step + i, dtype) for i, shape in enumerate(self.shapes)]

    @cached_property
    def first_move(self) -> int | None:
        """The number of the step in which a matrix first moves; some rules rest at first. None if it never does."""
        trial = CandidateRun(self, [draw((4, 3), 0)])
        for t in range(1, _LONGEST_REST + 1):
            trial.step(draw((4, 3), t))
            if not torch.equal(trial.values[0], trial.starts[0]):
                return t
        return None

    @cached_property
    def noisy(self) -> bool:
        """Whether a step draws random numbers: its rule does, or two seeds of torch's give two results."""
        if self.noisy_rule:
            return True
        results: list[list[Tensor]] = []
        for seed in (1, 2):
            trial = CandidateRun(self, self.weights(), seed=seed)
            trial.step(*self.gradients(1))
            results.append(trial.values)
        return not all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def first_line(problem: BaseException) -> str:
    """The first line of a message, which is all that a table has room for."""
    return (str(problem).strip() or "no message").splitlines()[0][:160]


class CandidateRun:
    """Weights under a fresh optimizer.

    Args:
        subject: What builds the optimizer.
        weights: First values; they are copied, strides included.
        names: Names of the weights, where the optimizer is to know them.
        options: Options of the weights, where each parameter has a group with its own.
        seed: Start of the random numbers that it may draw.
        more: Further arguments for the optimizer.
    """

    def __init__(
        self,
        subject: Candidate,
        weights: Sequence[Tensor],
        *,
        names: Sequence[str] = (),
        options: Sequence[Mapping[str, Any]] = (),
        seed: int = 0,
        **more: Any,
    ) -> None:
        self.params = [torch.nn.Parameter(w.detach().clone()) for w in weights]
        self.starts = [p.detach().clone() for p in self.params]
        listed: list[Any] = [*self.params]
        if names:
            listed = list(zip(names, self.params, strict=True))
        if options:
            listed = [{"params": [p], **own} for p, own in zip(self.params, options, strict=True)]
        self.optimizer = subject.over(listed, **more)
        self.count = 0
        self._seed = seed

    @property
    def values(self) -> list[Tensor]:
        """The weights now, copied."""
        return [p.detach().clone() for p in self.params]

    @property
    def finite(self) -> bool:
        """Whether no weight is NaN or infinite."""
        return all(bool(p.detach().isfinite().all()) for p in self.params)

    def set_rate(self, lr: float) -> None:
        """Write the rate into every group, as torch's schedulers do."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def step(self, *gradients: Tensor | None) -> None:
        """One step with these gradients, one a tensor; None means that there is none."""
        for p, g in zip(self.params, gradients, strict=True):
            p.grad = None if g is None else g.detach().clone()
        self.apply()

    def apply(self, closure: Callable[[], Tensor] | None = None) -> Any:
        """One step with the gradients that are there."""
        self.count += 1
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed, which for CUDA formats the stack at each call, and takes longer than the step.
            torch.default_generator.manual_seed(1000 * self._seed + self.count)
            call: Any = self.optimizer.step  # torch's own signature wants a closure that returns a float
            return call() if closure is None else call(closure)


# ---- names on the command line: a module, a class in it, and arguments for the class


def load(target: str) -> Any:
    """Import the class or module that `module:Class`, or `module` alone, names. That runs the code of the module.

    Returns:
        A module, or any callable of that name.

    Raises:
        RuleError: There is no such module, or no such name in it.
    """
    module_name, _, name = target.partition(":")
    module = _imported(target, module_name)
    if not name:
        return module
    found = getattr(module, name, None)
    if not callable(found):
        close = nearest(name, [each.__name__ for each in classes(module)])
        raise RuleError(f"module '{module_name}' has no optimizer '{name}'{close}")
    return found


def _imported(target: str, name: str) -> ModuleType:
    """The module, whatever its import may raise."""
    try:
        return importlib.import_module(name)
    except (ImportError, ValueError) as problem:
        message = f"{target}: {problem}; write module:Class, or a module alone for all of its classes"
    except (Exception, SystemExit) as problem:
        message = f"{target}: importing '{name}' raised {type(problem).__name__}: {problem}"
    raise RuleError(message)


def classes(module: ModuleType) -> list[type[torch.optim.Optimizer]]:
    """Every optimizer class that a module offers, each once, in alphabetical order; not torch's own base."""
    found: dict[type[torch.optim.Optimizer], None] = {}
    for name, value in inspect.getmembers(module, inspect.isclass):
        if issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer and not name.startswith("_"):
            found.setdefault(value)
    return list(found)


def arguments(texts: Iterable[str]) -> dict[str, Any]:
    """`["lr=0.1", "betas=(0.9,0.99)", "mode=fast"]` as keyword arguments: Python's literals, or else plain text.

    Raises:
        RuleError: A text has no "=" in it.
    """
    said: dict[str, Any] = {}
    for text in texts:
        for pair in text.split():
            key, equals, value = pair.partition("=")
            if not equals or not key.isidentifier():
                raise RuleError(f"arguments are written name=value, without spaces, and this is {pair!r}")
            said[key] = _literal(value)
    return said


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
