"""Writes the tables of some pages from the code: python docs/make_tables.py

A table stands between the lines `<!-- table: NAME -->` and `<!-- end -->`; a test compares both.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import descend
import descend.graph as g
from descend.zoo import modules

if TYPE_CHECKING:
    from collections.abc import Mapping

DOCS = Path(__file__).parent


def summary(thing: object) -> str:
    """The first sentence or line of a docstring, as a cell."""
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return text.replace("|", "\\|")


def shown(value: object) -> str:
    """A default as a cell."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, (int, float)) else str(value) if value else "–"


def fields(kind: type) -> str:
    """Fields with what stands for them where they are not set."""
    types = kind.own_fields() if issubclass(kind, g.Layer) else g.fields.field_types(kind, g.ops.Operator)
    defaults = getattr(kind, "defaults", {})
    cells = []
    for name, type_ in types.items():
        value = defaults.get(name, getattr(kind, name))
        many = "[]" if type_.many else ""
        cells.append(f"{name}{many}" if value in ((), None, "") else f"{name} {shown(value)}")
    return ", ".join(cells) or "–"


def parents(kind: type[g.Layer]) -> str:
    """How many parents a kind takes."""
    return "1 or more" if kind.num_parents is None else str(kind.num_parents)


def layers() -> str:
    """All kinds of the format."""
    kinds = sorted((cls for name, cls in g.CLASSES.items() if name.startswith("Layer.")), key=lambda cls: cls.__name__)
    rows = [
        f"| {cls.__name__} | {parents(cls)} | {fields(cls)} | {summary(cls)}{' **Refused.**' if cls.refusal else ''} |"
        for cls in kinds
    ]
    return "\n".join(
        ["| kind | parents | fields and what holds without them | what it is |", "|---|---|---|---|", *rows]
    )


def operators() -> str:
    """All operators."""
    kinds = [getattr(g.ops, name) for name in sorted(g.ops.__all__) if name != "Operator"]
    rows = [f"| {cls.__name__} | {fields(cls)} | {summary(cls)} |" for cls in kinds]
    return "\n".join(["| operator | fields and what holds without them | what it is |", "|---|---|---|", *rows])


def initializers() -> str:
    """All initializers."""
    names = [name for name in g.__all__ if name.endswith("Initializer") and name != "Initializer"]
    rows = [f"| {name} | {summary(getattr(g, name))} |" for name in sorted(names)]
    return "\n".join(["| initializer | first values |", "|---|---|", *rows])


def arguments(thing: object) -> str:
    """The arguments of a call with their defaults."""
    given = inspect.signature(thing).parameters.values()
    cells = [str(_plain(one)) for one in given]
    return "`" + ", ".join(cells) + "`"


class _Name(str):
    """A text that is shown without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _plain(argument: inspect.Parameter) -> inspect.Parameter:
    """An argument whose default is shown as it would be written."""
    default = argument.default
    named = inspect.isclass(default) and default is not argument.empty
    return argument.replace(annotation=argument.empty, default=_Name(default.__name__) if named else default)


def call_list(things: Mapping[str, object]) -> str:
    """A list of calls with their arguments; a table would have lines too long to read."""
    items = (f"- **{name}** {arguments(thing)}: {summary(thing)}" for name, thing in things.items())
    lines = (textwrap.wrap(item, 100, subsequent_indent="  ", break_long_words=False) for item in items)
    return "\n".join(line for item in lines for line in item)


def module_table() -> str:
    """All modules."""
    return call_list({name: getattr(modules, name) for name in modules.__all__ if name != "Module"})


NETWORKS = [
    *(
        "LeNet",
        "AlexNet",
        "MLP",
        "ResNet18",
        "ResNet34",
        "ResNet50",
        "ResNet101",
        "ResNet152",
        "WideResNet50_2",
        "ResNet",
    ),
    *("Transformer", "TransformerEncoderLayer", "TransformerDecoderLayer", "BERT", "RoBERTa", "GPT"),
]


def network_table() -> str:
    """All networks."""
    return call_list({name: getattr(descend.zoo, name) for name in NETWORKS})


def onnx_table() -> str:
    """The operators that are imported, with their versions and what they do with integers."""
    from descend.onnx.graph_importer import importer, integers_of
    from descend.onnx.importers import ENTRYWISE
    from descend.onnx.versions import SINCE

    assert ENTRYWISE  # importing it fills the registry
    words = {"computed": "computed", "moved": "moved", "refused": "–"}
    rows = []
    for kind, versions in SINCE.items():
        there = importer("Resize" if kind == "Upsample" else kind) or kind in ("If", "Constant")
        integers = words[integers_of("Resize" if kind == "Upsample" else kind)] if there else "constants alone"
        rows.append(f"| {kind} | {', '.join(map(str, versions))} | {integers} |")
    return "\n".join(["| operator | since_version | integers |", "|---|---|---|", *rows])


def ways_table() -> str:
    """Which way updates go, by kind of rule."""
    from descend.optim.engine.ways import WAYS, kind_of
    from descend.optim.rules import ALL_RULES

    names = {kind: list[str]() for kind in WAYS}
    for rule in {type(rule): rule for rule in ALL_RULES}.values():
        names[kind_of(rule)].append(type(rule).__name__)
    most = max(names, key=lambda kind: len(names[kind]))
    rows = [
        f"| {kind} | {', then '.join(ways)} | {'all others' if kind == most else ', '.join(names[kind]) or '–'} |"
        for kind, ways in WAYS.items()
    ]
    return "\n".join(["| the rule is about | its tensors go | rules |", "|---|---|---|", *rows])


TABLES = {
    "ways": ways_table,
    "onnx": onnx_table,
    "layers": layers,
    "operators": operators,
    "initializers": initializers,
    "modules": module_table,
    "networks": network_table,
}


def written(text: str) -> str:
    """A page with its tables as the code has them now."""
    return re.sub(
        r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}",
        text,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    for page in (DOCS / name for name in ("layers.md", "zoo.md", "bridges.md", "optimizers.md")):
        page.write_text(written(page.read_text()))
