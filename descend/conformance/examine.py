"""Runs the checks on one optimizer, or on every optimizer of a module."""

from __future__ import annotations

import contextlib
import inspect
import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch

from descend.conformance import gradient_checks as gradients
from descend.conformance import group_checks as groups
from descend.conformance import rule_checks as rules
from descend.conformance.candidate import Candidate, OptionRefused, classes, draw, first_line
from descend.conformance.published import Published, find, guess
from descend.conformance.report import CheckFinding, CheckOutcome, Report, Verdict, fail, not_applicable, ok
from descend.errors import RuleError, nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from types import ModuleType

__all__ = ["examine", "survey"]

Build = Callable[..., torch.optim.Optimizer]


@dataclass(frozen=True)
class Check:
    """One check: its name, what is expected, and the function that makes it."""

    name: str
    expected: str
    look: Callable[[Candidate], CheckOutcome]


CHECKS = (
    Check("float32", "float32 weights follow the path of float64 ones", rules.single_precision),
    Check("order of the weights", "the same for the list turned round", gradients.order),
    Check("0-d tensor", "as the same number in a vector of one", gradients.scalar),
    Check("empty tensor", "no error, and no effect on others", gradients.empty),
    Check("non-contiguous tensor", "as the contiguous one", gradients.non_contiguous),
    Check("overlapping tensor", "refused, with the weights as before", gradients.overlapping),
    Check("zero weights", "finite, and they move", gradients.zero_weights),
    Check("NaN in a gradient", "weights finite two clean steps later", gradients.nan),
    Check("infinity in a gradient", "weights finite two clean steps later", gradients.infinity),
    Check("fp16 zero gradients", "weights unchanged", gradients.half_zeros),
    Check("fp16 large gradients", "weights move as in double precision", gradients.half_large),
    Check("bf16 small updates", "within 1 % of the way in float32", gradients.bfloat16_moves),
    Check("no gradient", "weight, decay and state untouched", gradients.absent_untouched),
    Check("count without gradient", "the step is not counted for that tensor", gradients.absent_count),
    Check("frozen", "unchanged, no state", gradients.frozen),
    Check("frozen later", "unchanged in spite of a gradient left over", gradients.frozen_later),
    Check("caller's gradients", "unchanged by the step", gradients.gradients_kept),
    Check("state round trip", "the same bits after save and load", groups.round_trip),
    Check("state file", "readable with weights_only", groups.safe_file),
    Check("state by name", "after reordering it follows the name, or is refused", groups.by_name),
    Check("deepcopy", "the same bits, apart from each other", groups.deep_copy),
    Check("closure", "step(closure) returns the loss", groups.closure),
    Check("add_param_group", "the new group moves like new", groups.added_group),
    Check("zero_grad", "zeros or none, as asked", groups.zero_grad),
    Check("options of a group", "each group follows its own", groups.own_options),
    Check("misspelt group key", "refused", groups.misspelt_key),
    Check("rate of a group", "-1, NaN and infinity refused", groups.rate_of_group),
    Check("decay of a group", "-1, NaN and infinity refused", groups.decay_of_group),
    Check("same weight twice", "refused, in one group or two", groups.twice),
)


def _takes_a_step(subject: Candidate) -> CheckOutcome:
    if subject.needs_closure:
        return not_applicable("not examined: a step of it evaluates the loss several times")
    try:
        shapes = subject.shapes
    except OptionRefused as problem:
        other = requirements_of(subject)
        return fail(str(problem)) if other is None else not_applicable(f"not examined: a step of it needs {other}")
    return ok("over weights of shape " + ", ".join(str(shape) for shape in shapes))


_BEGINS = Check("takes a step", "built, and stepped with dense gradients", _takes_a_step)


def examine(build: Build, *, rule: str | None = None, checks: Collection[str] | None = None, **args: Any) -> Report:
    """Examine an optimizer: does it follow the rule it is named after, and does it handle parameters, state and misuse?

    Args:
        build: An optimizer class, ours or not, or a function that builds one; it is called with parameters and `args`.
        rule: Name of the published rule that it should follow; by default the name of the class is looked up.
        checks: Names of the checks to make, those of the report; None for all. The first step is always checked.
        args: Arguments for `build` beside the parameters.

    Returns:
        The table. All checks of an optimizer take about a second.

    Raises:
        RuleError: No published rule has the name `rule`; a check or an argument is unknown, an argument is missing, or
            no optimizer can be built with them over one matrix.
    """
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # its output and warnings do not belong to the table
        return _examined(build, rule, checks, args)


def _examined(build: Build, rule: str | None, names: Collection[str] | None, args: Mapping[str, Any]) -> Report:
    plain = Candidate(build, args)
    _check_names(plain)
    _check_built(plain)
    published = find(rule) if rule is not None else _promised(plain)
    subject = Candidate(build, args, noisy_rule=published is not None and published.noisy)
    first = _finding(_BEGINS, subject)
    if first.verdict is not Verdict.OK:
        return Report(subject.title, (first,))
    others = _selected([*_rule_checks(subject, published), *CHECKS], names)
    return Report(subject.title, (first, *(_finding(check, subject) for check in others)))


def _selected(checks: list[Check], names: Collection[str] | None) -> list[Check]:
    """The checks with these names, in the order of the report."""
    if names is None:
        return checks
    known = [_BEGINS.name, *(check.name for check in checks), *RULE_CHECKS]
    for name in names:
        if name not in known:
            raise RuleError(
                f"no check '{name}'{nearest(name, known) or ';'} known are {', '.join(dict.fromkeys(known))}"
            )
    return [check for check in checks if check.name in names]


def _promised(subject: Candidate) -> Published | None:
    """The rule that the optimizer is named after: by its class, or by the class of what a function builds."""
    try:
        return guess(subject.name) or guess(subject.class_name)
    except OptionRefused:
        return None


def _check_names(subject: Candidate) -> None:
    """Raise RuleError for an argument that the signature does not have, unless it accepts any keyword."""
    if subject.takes_any:
        return
    wrong = [name for name in subject.args if name not in subject.stated]
    if wrong:
        known = ", ".join(list(subject.stated)[1:])
        raise RuleError(
            [
                f"{subject.name} has no argument '{name}'{nearest(name, subject.stated) or ';'} it has {known}"
                for name in wrong
            ]
        )


def _check_built(subject: Candidate) -> None:
    """Raise RuleError where the arguments build no optimizer over parameters."""
    if missing := _missing(subject):
        raise RuleError(
            f"{subject.name} cannot be built without {', '.join(missing)}: give what is missing as an argument, "
            f"{missing[0]}=... (after --args on the command line), or examine a function that builds it"
        )
    try:
        built = cast("object", subject.built)
    except OptionRefused as problem:
        raise RuleError(
            f"{subject.title} cannot be built over a list of one matrix: {problem}; give other arguments, or examine a "
            "function that builds it"
        ) from None
    if not isinstance(built, torch.optim.Optimizer):
        raise RuleError(f"{subject.name} builds a {type(built).__name__}, which is not a torch.optim.Optimizer")


RULE_CHECKS = ("published rule", "published rule with decay", "length of the first step")


def _rule_checks(subject: Candidate, rule: Published | None) -> Iterator[Check]:
    """The checks that need the rule; with weight decay too where the arguments leave it off."""
    expected = "no expectation" if rule is None else f"{rule.name}: {rule.source}"
    plain, with_decay, first_length = RULE_CHECKS
    yield Check(plain, expected, lambda s: rules.follows_rule(s, rule, {}))
    undecayed = subject.takes_decay and not subject.options["weight_decay"] and "weight_decay" not in subject.args
    if rule is not None and undecayed:
        more = subject.with_decay()
        yield Check(with_decay, expected, partial(rules.follows_rule, rule=rule, more=more))
    length = "lr ‖w‖ (LAMB), lr trust ‖w‖ (LARS)"
    yield Check(first_length, length, lambda s: rules.first_length(s, rule))


def _finding(check: Check, subject: Candidate) -> CheckFinding:
    """The outcome of a check. An optimizer may refuse parameters when it is built; any other error is a failure."""
    try:
        outcome = check.look(subject)
    except OptionRefused as problem:
        outcome = not_applicable(f"refused when built: {problem}")
    except Exception as problem:
        outcome = fail(f"raised {type(problem).__name__}: {first_line(problem)}")
    return CheckFinding(check.name, check.expected, outcome.seen, outcome.verdict)


def survey(module: ModuleType) -> Iterator[Report]:
    """A report for each optimizer class of a module, in alphabetical order, each with its defaults.

    Raises:
        RuleError: There is no optimizer in the module.
    """
    found = classes(module)
    if not found:
        raise RuleError(f"module '{module.__name__}' offers no torch.optim.Optimizer")
    for each in found:
        try:
            yield examine(each)
        except RuleError as problem:
            needs = not_applicable(f"not examined: {problem}")
            yield Report(each.__name__, (CheckFinding(_BEGINS.name, _BEGINS.expected, needs.seen, needs.verdict),))


def _missing(subject: Candidate) -> list[str]:
    """Required arguments without a value."""
    _weights, *others = [name for name, default in subject.stated.items() if default is inspect.Parameter.empty] or [""]
    return [name for name in others if name != "lr" and name not in subject.args]


# ---- the form of gradients that a step asks for where dense gradients in the weights are not enough for it


def _with_closure(optimizer: Any, p: torch.nn.Parameter) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)


def _with_loss(optimizer: Any, p: torch.nn.Parameter) -> None:
    p.grad = draw(p.shape, 1)
    optimizer.step(lambda: 1.0)


def _with_graph(optimizer: Any, p: torch.nn.Parameter) -> None:
    p.pow(3).sum().backward(create_graph=True)
    optimizer.step()


def _with_rows(optimizer: Any, p: torch.nn.Parameter) -> None:
    p.grad = draw(p.shape, 1).to_sparse(1)
    optimizer.step()


_ATTEMPTS: tuple[tuple[str, Callable[[Any, torch.nn.Parameter], None]], ...] = (
    ("a closure", _with_closure),
    ("a closure", _with_loss),
    ("gradients that can be differentiated once more", _with_graph),
    ("sparse gradients", _with_rows),
)


def requirements_of(subject: Candidate) -> str | None:
    """Which of these lets an optimizer step that raises without them; None where none does."""
    for words, attempt in _ATTEMPTS:
        p = torch.nn.Parameter(draw((4, 3), 0))
        try:
            attempt(subject.over([p]), p)
        except Exception:  # whatever it raises, this is not what it asks for
            continue
        return words
    return None
