"""What an optimizer does to each of its weights, as a table, before anything is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from descend.errors import RuleError
from descend.optim.engine.settings import GroupSettings, number, resolve, rule_fields
from descend.optim.engine.step_inputs import LOW_PRECISION, named_entries, names_of, template
from descend.terminal import TextTable, aligned
from descend.terminal.display import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from descend.optim.optimizer import Optimizer
    from descend.optim.rules.base import Rule

__all__ = ["Explanation", "ExplanationRow", "explain", "plot", "points"]

COUNT_BYTES = 8  # a tensor's step count, in float64


@dataclass(frozen=True)
class ExplanationRow:
    """One line of the table: everything that holds for one tensor.

    Attributes:
        name: Of the weights.
        shape: Of the weights.
        dtype: Their precision.
        rule: The rule with those of its constants that are not its defaults.
        lr: Rate in force now, multiplier included.
        lr_mult: The multiplier.
        decay: Weight decay.
        decay_form: "coupled", "clipped" or "decoupled"; "rule" where the rule applies it itself.
        scaled: Whether layer-wise scaling applies; None for rules without any.
        state_bytes: What the engine keeps of the tensor: moments, master, step count. 0 for frozen weights.
        decided_by: Which rule of `groups.split` decided, or the group.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    rule: str
    lr: float
    lr_mult: float
    decay: float
    decay_form: str
    scaled: bool | None
    state_bytes: int
    decided_by: str


@dataclass(frozen=True)
class Explanation:
    """The rows, and as text a table with totals and the curve of each schedule.

    Attributes:
        title: Name of the optimizer.
        rows: One for each tensor.
        curves: For each rate that changes a line that names its parameters, and (step, rate) pairs.
        notes: Lines about what no table can say beforehand.
    """

    title: str
    rows: tuple[ExplanationRow, ...]
    curves: tuple[tuple[str, tuple[tuple[int, float], ...]], ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([*aligned(self.table), "", *self.remarks])

    @property
    def table(self) -> TextTable:
        """A row for each tensor."""
        head = ("parameter", "shape", "rule", "learning rate", "decay", "layer-wise", "state", "decided by")
        return TextTable([head, *(tuple(map(printable, _cells(row))) for row in self.rows)])

    @property
    def remarks(self) -> list[str]:
        """Lines of the totals, the curves and the notes."""
        return [*map(printable, (*self._totals(), *self._plots()))]

    def _totals(self) -> list[str]:
        elements = sum(math.prod(row.shape) for row in self.rows)
        frozen = sum(row.decided_by == "frozen" for row in self.rows)
        still = f", {frozen} of them frozen" if frozen else ""
        state = sum(row.state_bytes for row in self.rows)
        return [f"{self.title}: {len(self.rows)} tensors{still}, {elements:,} elements, {_bytes(state)} of state"]

    def _plots(self) -> list[str]:
        drawn = [line for title, curve in self.curves for line in ("", title, *plot(curve))]
        return [*drawn, *(line for note in self.notes for line in ("", note))]


def _cells(row: ExplanationRow) -> tuple[str, ...]:
    rate = f"{row.lr:.4g}" + (f" (x {row.lr_mult:g})" if row.lr_mult != 1.0 else "")
    decay = f"{row.decay:g} {row.decay_form}" if row.decay else "none"
    scaled = "-" if row.scaled is None else "yes" if row.scaled else "no"
    shape = "x".join(map(str, row.shape)) or "scalar"
    return row.name, f"{shape} {row.dtype}", row.rule, rate, decay, scaled, _bytes(row.state_bytes), row.decided_by


def _bytes(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= 10 * size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:,} B"


def explain(optimizer: Optimizer, steps: int | None = None) -> Explanation:
    """One row for each weights of an optimizer, totals, and the curve of its schedules.

    Args:
        optimizer: Any of ours; nothing about it changes.
        steps: Length of the curves in updates; by default the schedule's own length, or 1,000.

    Raises:
        RuleError: It is none of ours, a group holds a wrong value, or a schedule comes to one; steps is below 1.
    """
    if not hasattr(optimizer, "title"):
        raise RuleError(f"explain takes an optimizer of descend.optim and got {type(optimizer).__name__}")
    if steps is not None and (not isinstance(cast("object", steps), int) or steps < 1):
        raise RuleError(f"explain: curves are at least 1 update long, and steps is {steps!r}")
    rows: list[ExplanationRow] = []
    followers: dict[int, list[int]] = {}
    schedules: dict[int, Callable[[int], float]] = {}
    for i, (group, names) in enumerate(zip(optimizer.param_groups, names_of(optimizer.param_groups), strict=True)):
        settings = resolve(group, f"{optimizer.title}, group {i}")
        reasons = group.get("reasons") or [f"group {i}"] * len(names)
        for name, p, reason in zip(names, group["params"], reasons, strict=True):
            rows.append(_row(name, p, group, settings, reason))
        if group.get("schedule") is not None:
            schedules[id(group["schedule"])] = group["schedule"]
            followers.setdefault(id(group["schedule"]), []).append(i)
    curves = tuple(
        (
            f"rate of group {', '.join(map(str, groups))}",
            _curve(schedules[key], steps, f"{optimizer.title}, group {groups[0]}"),
        )
        for key, groups in followers.items()
    )
    return Explanation(optimizer.title, tuple(rows), curves)


def _row(name: str, p: Tensor, group: dict[str, Any], settings: GroupSettings, reason: str) -> ExplanationRow:
    rule = settings.rule
    return ExplanationRow(
        name=name,
        shape=tuple(p.shape),
        dtype=str(p.dtype).removeprefix("torch."),
        rule=_short(rule),
        lr=settings.lr,
        lr_mult=float(group["lr_mult"]),
        decay=settings.decay,
        decay_form="rule" if "decay" in rule.needs else settings.decay_form,
        scaled=settings.scaled if "scaled" in rule.needs else None,
        state_bytes=_state_bytes(settings, p) if p.requires_grad else 0,
        decided_by=reason if p.requires_grad else "frozen",
    )


def _short(rule: Rule) -> str:
    """A rule by its name and the constants that are not its defaults."""
    defaults = rule_fields(type(rule))
    said = [f"{name}={value!r}" for name, value in rule_fields(rule).items() if value != defaults[name]]
    return f"{type(rule).__name__}({', '.join(said)})"


def _state_bytes(settings: GroupSettings, p: Tensor) -> int:
    kept = named_entries(template(settings.rule, p)).values()
    master = 4 * p.numel() if p.dtype in LOW_PRECISION else 0
    return COUNT_BYTES + master + sum(x.numel() * x.element_size() for x in kept)


def _curve(schedule: Callable[[int], float], steps: int | None, where: str) -> tuple[tuple[int, float], ...]:
    own: int | None = getattr(schedule, "length", None)
    last = steps or own or 1000
    return tuple((step, number(schedule(step), "lr", f"{where}, schedule at update {step}")) for step in points(last))


def points(last: int, most: int = 5000) -> list[int]:
    """The steps from 0 to `last`, or so many + 1 of them, evenly."""
    parts = max(1, min(last, most))
    return [round(i * last / parts) for i in range(parts + 1)]


def plot(curve: Sequence[tuple[int, float]], height: int = 8, width: int = 64) -> list[str]:
    """A rate curve as lines of text: columns are steps, the highest filled cell is the rate.

    Args:
        curve: (step, rate) pairs in order.
        height: Lines of the plot.
        width: Most columns, less one.
    """
    at_most, top = max(curve, key=lambda point: point[1])
    (start, begin), (end, rest) = curve[0], curve[-1]
    summary = f"{begin:g} at update {start:,}, highest {top:g} at {at_most:,}, {rest:g} at {end:,}"
    curve, top = [curve[i] for i in points(len(curve) - 1, width)], top or 1.0
    levels = [round(rate / top * height * 8) for _, rate in curve]
    lines: list[str] = []
    for row in range(height - 1, -1, -1):
        cells = "".join(" ▁▂▃▄▅▆▇█"[min(8, max(0, level - 8 * row))] for level in levels)
        label = f"{top:9.3g}" if row == height - 1 else f"{0:9.3g}" if row == 0 else " " * 9
        lines.append(f"{label} |{cells}")
    first, last = curve[0][0], curve[-1][0]
    lines.append(" " * 10 + "+" + "-" * len(curve))
    lines.append(f"{' ' * 11}{first:<{max(1, len(curve) - len(str(last)))}}{last} updates")
    lines.append(f"{' ' * 11}{summary}")
    return lines
