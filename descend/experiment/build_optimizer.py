"""Builds the torch optimizer of a run, from a description such as `descend.SGD(learn_rate=0.1)` or a function."""

from __future__ import annotations

import inspect
import math
import re
import warnings
from collections import Counter
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from descend.arguments import shown
from descend.arguments.leniency import Deviation, refused
from descend.errors import ConfigurationError, DescendError, Unsupported, nearest, warn
from descend.lazy import instance_check
from descend.rule_index import rules

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from typing_extensions import TypeIs

    from descend.graph import NoOptimizer, Plan
    from descend.graph import Optimizer as Description
    from descend.lower import LoweredModel
    from descend.optim import Optimizer

    Named = Sequence[tuple[str, torch.nn.Parameter]]

__all__ = ["build_graph_optimizer", "build_optimizer", "optimizer_settings"]

_is_no_optimizer: Callable[[object], TypeIs[NoOptimizer]] = instance_check("descend.graph.optimizers", "NoOptimizer")


def build_optimizer(optimizer: Any, module: torch.nn.Module | Named) -> torch.optim.Optimizer:
    """The optimizer of all trainable parameters of a user's module, or of some.

    Args:
        optimizer: A description such as `descend.SGD(learn_rate=0.1)`, or anything that takes named parameters and
            returns a torch optimizer.
        module: The module; a parameter with two names counts once. Or those of its parameters that are meant, by name.

    Raises:
        ConfigurationError: nothing is trainable, a parameter would be updated twice or never, or an option is wrong.
    """
    named = _trained(module) if isinstance(module, torch.nn.Module) else module
    made = _described(optimizer, named) if _is_description(optimizer) else _called(optimizer, named)
    _check_owners(made, named)
    _check_options(made)
    return made


def build_graph_optimizer(module: LoweredModel, plan: Plan, default: Description) -> Optimizer:
    """One optimizer of all trainable weights of a graph, with LBANN's arithmetic.

    Args:
        module: The lowered graph; weights with NoOptimizer are frozen in it.
        plan: The checked graph, which has the weights' own optimizers.
        default: The optimizer of all other weights.

    Returns:
        An optimizer with one group per distinct description.

    Raises:
        ConfigurationError: no weights are trainable.
    """
    from descend.graph import SGD
    from descend.optim import Optimizer

    groups: dict[Description, list[tuple[str, torch.nn.Parameter]]] = {}
    for name, parameter in module.named_parameters():
        description = plan.weights[name].optimizer or default
        if _is_no_optimizer(description):
            parameter.requires_grad_(False)
        else:
            groups.setdefault(description, []).append((name, parameter))
    if not groups:
        problem = "there is nothing to train: the model has no weights, or all have a NoOptimizer"
        if refused(Deviation.NOTHING_TO_LEARN, problem):
            raise ConfigurationError(problem)
        with warnings.catch_warnings():  # every run has an optimizer, and this one has a group without parameters
            warnings.simplefilter("ignore")
            return Optimizer([{**_options_of(SGD()), "params": []}], _options_of(SGD())["rule"], lr=0.0, runner="plain")
    made: list[dict[str, Any]] = [{**_options_of(each), "params": members} for each, members in groups.items()]
    runner = _runner_for({parameter.device.type for parameter in module.parameters()})
    return Optimizer(made, made[0]["rule"], lr=made[0]["lr"], runner=runner, on_nonfinite="allow")


def _runner_for(devices: Collection[str]) -> str:
    """The runner with which a run on devices of these types repeats.

    With "auto" compiled kernels replace eager ones at a time that no seed determines. On a CPU both give the same bits,
    which is tested; on a GPU that is not known, so the first step waits for the kernels, about a second where none are
    in the cache.
    """
    if all(device == "cpu" for device in devices):
        return "auto"
    from descend.optim.compiler.cache import obstacle

    return "compiled" if set(devices) == {"cuda"} and obstacle("cuda") is None else "blocks"


def _options_of(description: Any) -> dict[str, Any]:
    """The options of a group for a description of LBANN's."""
    from descend.optim.descriptions import group_options

    return group_options(
        type(description).__name__, {field.name: getattr(description, field.name) for field in fields(description)}
    )


def _trained(module: torch.nn.Module) -> Named:
    everything = list(module.named_parameters())
    if lazy := [name for name, p in everything if isinstance(p, torch.nn.parameter.UninitializedParameter)]:
        raise ConfigurationError(f"{', '.join(lazy)}: lazy layers have no weights yet; call the module once before fit")
    named = [(name, p) for name, p in everything if p.requires_grad]
    if not named:
        what = (
            "all its weights are frozen: unfreeze some with requires_grad_(True)" if everything else "it has no weights"
        )
        raise ConfigurationError(f"nothing to train in {type(module).__name__}: {what}")
    if expanded := [name for name, p in named if _is_expanded(p)]:
        raise ConfigurationError(
            f"several elements of {', '.join(map(repr, expanded))} share memory (expanded) and would be updated "
            "several times: copy them with .clone()"
        )
    return named


def _is_expanded(p: torch.Tensor) -> bool:
    return any(stride == 0 and size > 1 for stride, size in zip(p.stride(), p.shape, strict=True))


def _is_description(optimizer: Any) -> bool:
    return is_dataclass(optimizer) and not isinstance(optimizer, type) and hasattr(optimizer, "message")


def _described(description: Any, named: Named) -> torch.optim.Optimizer:
    """The optimizer of a description, with LBANN's arithmetic."""
    from descend.optim import Optimizer

    if _is_no_optimizer(description):
        raise ConfigurationError("NoOptimizer trains nothing: pass an optimizer such as descend.SGD(learn_rate=0.1)")
    if description.stands_still:
        rates = " and ".join(description.rates)
        warn(
            f"{type(description).__name__} has a learning rate of 0, so nothing is trained until a callback sets one: "
            f"give it {rates}"
        )
    options = _options_of(description)
    groups = [{"params": list(named), **options}]
    # The loop checks gradients itself, by the policy of the run, and can name the samples.
    return Optimizer(groups, rule=options["rule"], lr=options["lr"], on_nonfinite="allow")


def _called(optimizer: Any, named: Named) -> torch.optim.Optimizer:
    if isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigurationError(
            f"optimizer is a {type(optimizer).__name__} that is already constructed: pass a function that constructs "
            f"it, for example functools.partial(torch.optim.{type(optimizer).__name__}, lr=0.1)"
        )
    if isinstance(optimizer, type) and is_dataclass(optimizer) and hasattr(optimizer, "message"):
        raise ConfigurationError(
            f"optimizer is the class {optimizer.__name__}: construct it with its settings, such as "
            f"descend.{optimizer.__name__}(learn_rate=0.1)"
        )
    if isinstance(optimizer, (list, tuple, dict)):
        raise ConfigurationError(
            f"optimizer must be one optimizer, got a {type(optimizer).__name__}: several, each with a loss and weights "
            "of its own, are a list of descend.Phase in place of the loss; rates for parts of a module are parameter "
            "groups, as of descend.optim.groups"
        )
    if not callable(optimizer):
        named_here = rules().get(optimizer.lower()) if isinstance(optimizer, str) else None
        ours = "torch.optim.SGD" if named_here is None else f"descend.optim.{named_here.name}"
        raise ConfigurationError(
            "optimizer must be a description such as descend.SGD(learn_rate=0.1), or a function such as "
            f"functools.partial({ours}, lr=0.1), got {shown(optimizer)}"
        )
    made = _made(optimizer, named)
    if not isinstance(made, torch.optim.Optimizer):
        raise ConfigurationError(f"optimizer must return a torch.optim.Optimizer, got a {type(made).__name__}")
    closure = inspect.signature(made.step).parameters.get("closure")
    if closure and closure.default is closure.empty:
        raise Unsupported(
            f"{type(made).__name__} needs a closure that evaluates the loss several times per step, and the loop "
            "computes each gradient once: choose a first-order optimizer"
        )
    if hasattr(made, "on_nonfinite"):
        vars(made)["on_nonfinite"] = "allow"  # as above, for every optimizer of ours
    return made


def _made(optimizer: Any, named: Named) -> Any:
    """Call the user's function; errors of a torch class about its arguments are raised as ConfigurationError."""
    try:
        return optimizer(list(named))
    except DescendError:
        raise
    except (TypeError, ValueError) as error:
        called = getattr(optimizer, "func", optimizer)
        unknown = re.match(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
        kind = getattr(torch.optim, unknown.group(1), called) if unknown else called
        hint = nearest(unknown.group(2), inspect.signature(kind).parameters) if unknown else ""
        name = getattr(called, "__qualname__", type(called).__qualname__)
        given: dict[str, Any] = getattr(optimizer, "keywords", {})
        texts = [f"{key}={value!r}" for key, value in given.items() if isinstance(value, str)]
        hint = hint or (f"; is a text where a number is expected: {', '.join(texts)}?" if texts else "")
        raise ConfigurationError(f"optimizer {name} cannot be constructed: {error}{hint}") from error


_NOT_NEGATIVE = ("lr", "weight_decay", "momentum", "eps", "rho", "alpha", "lr_decay", "initial_accumulator_value")


def _check_options(made: torch.optim.Optimizer) -> None:
    """Check the options of every group, since torch does not.

    Raises:
        ConfigurationError: an option is unknown, no number, not finite or negative; all are named with their groups.
    """
    problems: list[str] = []
    known = {*made.defaults, "params", "param_names", "initial_lr", "name", "reasons"}
    for i, group in enumerate(made.param_groups):
        if type(made).__module__.startswith("torch.optim"):
            problems += [
                f"group {i} has the option '{key}', which {type(made).__name__} does not use{nearest(key, known)}"
                for key in group
                if key not in known
            ]
        for key in _NOT_NEGATIVE:
            if key in group and not (_is_good(group[key]) or (group[key] is None and key != "lr")):
                problems.append(f"group {i}: {key} must be a finite number >= 0, got {group[key]!r}")
        betas = group.get("betas", ())
        if isinstance(betas, (tuple, list)) and not all(_is_good(beta) and float(beta) < 1 for beta in betas):
            problems.append(f"group {i}: betas must be numbers in [0, 1), got {betas!r}")
    if problems:
        raise ConfigurationError([f"{type(made).__name__}: {problem}" for problem in problems])


def _is_good(value: Any) -> bool:
    """Whether an option is a finite number >= 0, or of a type that only the optimizer can check."""
    if callable(value) or (isinstance(value, torch.Tensor) and value.numel() > 1):
        return True
    if isinstance(value, tuple):  # Adafactor's two eps, of which one may be None
        return all(part is None or _is_good(part) for part in cast("tuple[Any, ...]", value))
    number = isinstance(value, (int, float, torch.Tensor)) and not isinstance(value, bool)
    return number and bool(math.isfinite(value) and value >= 0)


def _check_owners(made: torch.optim.Optimizer, named: Named) -> None:
    owned = Counter(p for group in made.param_groups for p in group["params"])
    names = {p: name for name, p in named}
    problems = [f"parameter '{name}' is trainable and missing in the optimizer" for name, p in named if not owned[p]]
    problems += [f"parameter '{names.get(p, '?')}' is twice in the optimizer" for p in owned if owned[p] > 1]
    if any(p not in names for p in owned):
        problems.append("the optimizer has parameters that are not trainable parameters of the module")
    if problems:
        raise ConfigurationError([*problems, "freeze parameters that should not be trained with requires_grad_(False)"])


def optimizer_settings(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimizer's class and the options of its groups as plain values, compared when a run is resumed."""
    kind = type(optimizer)
    options = {key for group in optimizer.param_groups for key in group} - {"params", "param_names", *_SAYS_ONLY}
    return {
        "optimizer": f"{kind.__module__}.{kind.__qualname__}",
        **{
            f"optimizer.{key}": _shared([_plain(group.get(key)) for group in optimizer.param_groups])
            for key in sorted(options)
        },
    }


_SAYS_ONLY = ("foreach", "fused", "capturable", "differentiable", "runner", "name", "reasons")  # change no result


def _shared(values: list[Any]) -> Any:
    """One value if all groups have the same."""
    return values[0] if all(value == values[0] for value in values) else values


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return repr(value) if is_dataclass(value) else getattr(value, "__qualname__", type(value).__qualname__)
