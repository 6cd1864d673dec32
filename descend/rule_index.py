"""The optimizers as a list, read from the text of their rules, so that asking for it takes no torch.

Each file of `descend/optim/rules/` states equations, sources and deviations in its docstring, and each rule in it is a
dataclass whose fields are its options.
"""

from __future__ import annotations

import ast
import functools
import inspect
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from descend.errors import RuleError, nearest
from descend.terminal import TextTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["NO_RULES", "RuleInfo", "describe", "format_list", "reason_or_nearest", "rule_table", "rules"]

# Optimizers of torch that are no rules here, and why.
NO_RULES: Mapping[str, str] = MappingProxyType(
    {
        "LBFGS": "it needs several evaluations of the loss for one update; a rule here sees one gradient",
        "ASGD": "its average of the weights is not part of any rule here; ScheduleFreeSGD averages",
        "RAdam": "its rectification is not among the rules here; Adam with a warm-up does the same work",
    }
)

_RULES = Path(__file__).parent / "optim" / "rules"
_STATED = ("default_lr", "default_weight_decay", "default_decay")  # what a rule states for the engine around it


@dataclass(frozen=True)
class RuleInfo:
    """One rule.

    Attributes:
        name: Of the class; `descend.optim.create` takes it in any case.
        summary: What it is, in a line.
        doc: The rest: arguments and errors.
        equations: Docstring of its file: equations, units, source, deviations.
        options: Names and defaults as written, the engine's own first.
    """

    name: str
    summary: str
    doc: str
    equations: str
    options: tuple[tuple[str, str], ...]

    @property
    def defaults(self) -> str:
        """`lr=0.001, weight_decay=0.0, decay='coupled', beta1=0.9`."""
        return ", ".join(f"{name}={value}" for name, value in self.options)


@functools.cache
def rules() -> Mapping[str, RuleInfo]:
    """All rules by name in lower case, in alphabetical order; read once in a process."""
    base = _assigned(_classes(ast.parse((_RULES / "base.py").read_text(encoding="utf-8")))["Rule"])
    found: dict[str, RuleInfo] = {}
    for file in sorted(_RULES.glob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        equations = inspect.cleandoc(ast.get_docstring(tree) or "")
        for name, node in _classes(tree).items():
            if any(isinstance(parent, ast.Name) and parent.id == "Rule" for parent in node.bases):
                found[name.lower()] = _entry(node, base, equations)
    return MappingProxyType(dict(sorted(found.items())))


def _classes(tree: ast.Module) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _assigned(node: ast.ClassDef) -> dict[str, tuple[str, bool]]:
    """Attributes with their values as written, and whether each is a class variable."""
    return {
        item.target.id: (ast.unparse(item.value), "ClassVar" in ast.unparse(item.annotation))
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value is not None
    }


def _entry(node: ast.ClassDef, base: dict[str, tuple[str, bool]], equations: str) -> RuleInfo:
    own = _assigned(node)
    stated = [(name.removeprefix("default_"), own.get(name, base[name])[0]) for name in _STATED]
    fields = [(name, value) for name, (value, of_class) in own.items() if not of_class]
    summary, _, doc = (ast.get_docstring(node) or "").partition("\n")
    of_file, _, said = equations.partition("\n")[0].partition(": ")
    if of_file == node.name:  # a file of one rule says more in its own first line
        summary = said[0].upper() + said[1:]
    return RuleInfo(node.name, summary, doc.strip(), equations, (*stated, *fields))


def format_list() -> str:
    """Every optimizer with what it is and its defaults, two lines each."""
    return "\n".join(f"{entry.name:<18} {entry.summary}\n{'':<18} {entry.defaults}" for entry in rules().values())


def rule_table() -> TextTable:
    """The same as a table of two columns."""
    rows = [(entry.name, f"{entry.summary}\n{entry.defaults}") for entry in rules().values()]
    return TextTable([("optimizer", "what it does, and its defaults"), *rows])


def reason_or_nearest(name: str, known: Iterable[str]) -> str:
    """What follows an unknown name in an error, up to the list: why it is not a rule, or the nearest that is."""
    reasons = {title.lower(): reason for title, reason in NO_RULES.items()}
    return f": {reasons[name.lower()]};" if name.lower() in reasons else nearest(name, known) or ";"


def describe(name: str) -> str:
    """One optimizer: equations, options, sources and the table of deviations.

    Raises:
        RuleError: There is none of this name.
    """
    known = rules()
    entry = known.get(name.lower())
    if entry is None:
        names = [each.name for each in known.values()]
        raise RuleError(f"no optimizer '{name}'{reason_or_nearest(name, names)} known are {', '.join(names)}")
    return "\n\n".join([f"{entry.name}({entry.defaults})", entry.summary, entry.doc, entry.equations]).strip()
