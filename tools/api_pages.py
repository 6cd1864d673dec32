"""The pages of the reference that hold the public names, each of which stands once.

A public name is one in `dir(descend)` or in `__all__` of a public module. An object that has several is documented
under the first of them, in the order of `MODULES`; the others are listed as aliases. The pages are reStructuredText
with a directive of autodoc for each name, and the site's build rewrites them.
"""

from __future__ import annotations

import enum
import importlib
import inspect
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from descend.graph import Layer
from descend.graph.fields import field_types
from descend.graph.kinds.operators import Operator
from tools.docstrings import inline

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = ["MODULES", "PublicName", "pages", "public_names", "write"]

# Public modules, in the order in which they may claim an object.
MODULES = (
    "descend",
    "descend.optim",
    "descend.optim.schedules",
    "descend.optim.groups",
    "descend.optim.rules",
    "descend.graph",
    "descend.ops",
    "descend.train",
    "descend.callbacks",
    "descend.data",
    "descend.experiment",
    "descend.modules",
    "descend.zoo",
    "descend.models",
    "descend.study",
    "descend.study.analysis",
    "descend.study.simulate",
    "descend.lower",
    "descend.onnx",
    "descend.runtime",
    "descend.distributed",
    "descend.launch",
    "descend.launch.flux",
    "descend.launch.local",
    "descend.launch.lsf",
    "descend.launch.mpi",
    "descend.launch.pjm",
    "descend.launch.slurm",
    "descend.launcher",
    "descend.errors",
)

# Page of what is defined in a module whose name begins so; the longest beginning counts.
_PAGES = {
    "descend.optim": ("optimizers", "Optimizers"),
    "descend.optim.rules": ("rules", "Update rules"),
    "descend.optim.schedules": ("schedules", "Learning rate schedules"),
    "descend.optim.groups": ("parameter_groups", "Parameter groups"),
    "descend.graph": ("graph", "Models, weights, objective and metrics"),
    "descend.graph.kinds": ("layers", "Layers"),
    "descend.graph.kinds.operator_layers": ("operator_layers", "Layers of one operator"),
    "descend.graph.kinds.operators": ("operators", "Operators"),
    "descend.train": ("training", "Training algorithms, stopping, strategies"),
    "descend.callbacks": ("callbacks", "Callbacks"),
    "descend.lbann.callbacks": ("callbacks", "Callbacks"),
    "descend.onnx.callback": ("callbacks", "Callbacks"),
    "descend.data": ("data", "Data"),
    "descend.experiment": ("experiments", "Fitting, running, predicting"),
    "descend.zoo.modules": ("modules", "Modules"),
    "descend.zoo": ("zoo", "Networks and data sets"),
    "descend.study": ("studies", "Studies"),
    "descend.study.report": ("studies", "Studies"),
    "descend.study.analysis": ("analysis", "Statistics of studies"),
    "descend.study.simulate": ("simulation", "The noisy quadratic"),
    "descend.lower": ("lowering", "Graphs as modules"),
    "descend.onnx": ("onnx", "ONNX"),
    "descend.runtime": ("runtime", "Runtime: device, seeds, run directory, checkpoints"),
    "descend.runtime.distributed": ("ranks", "Ranks and launchers"),
    "descend.launch": ("ranks", "Ranks and launchers"),
    "descend.experiment.launcher": ("ranks", "Ranks and launchers"),
    "descend.errors": ("errors", "Errors"),
    "descend.lazy": ("other", "Other names"),
}


# Page of the site that says how the names of a page are used.
_SUBJECTS = {
    "optimizers": "/optimizers",
    "rules": "/how-to/custom_rule",
    "schedules": "/how-to/schedule_with_warmup",
    "parameter_groups": "/how-to/exclude_from_decay",
    "graph": "/tutorials/digits_to_ranks",
    "layers": "/layers",
    "operator_layers": "/layers",
    "operators": "/layers",
    "training": "/training",
    "callbacks": "/callbacks",
    "data": "/data",
    "experiments": "/fit",
    "modules": "/zoo",
    "zoo": "/zoo",
    "studies": "/studies",
    "analysis": "/studies",
    "simulation": "/studies",
    "lowering": "/bridges",
    "onnx": "/bridges",
    "runtime": "/reference/run_directory",
    "ranks": "/ranks",
    "errors": "/checkpoints",
}


@dataclass(frozen=True)
class PublicName:
    """A public object.

    Attributes:
        name: Under which it is documented.
        aliases: Its other public names.
        home: The module that defines it, or the public module that lists it where that is not known.
        kind: "class", "function" or "data".
    """

    name: str
    aliases: tuple[str, ...]
    home: str
    kind: str

    @property
    def page(self) -> tuple[str, str]:
        """File name and title of its page."""
        public = self.name.rpartition(".")[0]
        # What a public module below a room lists belongs to that module's page, wherever it is defined.
        where = public if public.count(".") > 1 or public == "descend.ops" else self.home
        where = {"descend.ops": "descend.graph.kinds.operators"}.get(where, where)
        while where not in _PAGES and "." in where:
            where = where.rpartition(".")[0]
        return _PAGES.get(where, _PAGES["descend.lazy"])


def _names(module: str) -> Iterable[str]:
    found = importlib.import_module(module) if module != "descend.ops" else importlib.import_module("descend").ops
    return dir(found) if module == "descend" else found.__all__


def fetched(name: str) -> Any:
    """The object of a public name."""
    module, _, last = name.rpartition(".")
    holder = importlib.import_module("descend").ops if module == "descend.ops" else importlib.import_module(module)
    return getattr(holder, last)


def public_names(modules: Iterable[str] = MODULES) -> list[PublicName]:
    """Every public object but modules, in the order of their first names."""
    found: dict[object, list[str]] = {}
    objects: dict[object, Any] = {}
    for module in modules:
        for last in _names(module):
            name = f"{module}.{last}"
            thing = fetched(name)
            if inspect.ismodule(thing):
                continue
            # Numbers and texts may be equal by accident; everything else is known by its identity.
            key = name if isinstance(thing, str | int | float | tuple) else id(thing)
            found.setdefault(key, []).append(name)
            objects[key] = thing
    return [_public(names, objects[key]) for key, names in found.items()]


def _public(names: list[str], thing: Any) -> PublicName:
    own = getattr(thing, "__name__", None)
    first = next((name for name in names if name.rpartition(".")[2] == own), names[0])
    kind = "class" if inspect.isclass(thing) else "function" if inspect.isroutine(thing) else "data"
    home = getattr(thing, "__module__", None) if kind != "data" else None
    if not (isinstance(home, str) and home.startswith("descend")):
        home = names[-1].rpartition(".")[0]  # the room, where `descend` itself has the name too
    return PublicName(first, tuple(name for name in names if name != first), home, kind)


def directive(public: PublicName) -> list[str]:
    """What autodoc is asked to write for a name."""
    kind = {"class": "autoclass", "function": "autofunction", "data": "autodata"}[public.kind]
    lines = [f".. {kind}:: {public.name}{signature(public)}"]
    if public.kind == "data":
        lines.append("   :no-value:")
    elif public.kind == "class" and not _without_members(public):
        lines.append("   :members:")
    return [*lines, ""]


def signature(public: PublicName) -> str:
    """Of a value of the graph its fields with what holds where they are not set; of others what autodoc finds."""
    thing = fetched(public.name)
    if public.kind != "class":
        return ""
    if issubclass(thing, Layer | Operator):
        types = thing.own_fields() if issubclass(thing, Layer) else field_types(thing, Operator)
        defaults = getattr(thing, "defaults", {})
        first = ["*parents"] if issubclass(thing, Layer) else ["*"] if types else []
        values = {name: defaults.get(name, getattr(thing, name)) for name in types}
        return f"({', '.join([*first, *(f'{name}={_written(value)}' for name, value in values.items())])})"
    try:
        parameters = inspect.signature(thing).parameters
    except (TypeError, ValueError):
        return ""
    if "where" not in parameters:  # by which errors find the line of a text; no setting
        return ""
    shown = [
        one.replace(annotation=one.empty, default=one.empty if one.default is one.empty else _Written(one.default))
        for one in parameters.values()
        if one.name != "where"
    ]
    return str(inspect.Signature(shown))


class _Written:
    """A default that is shown as one writes it."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        return _written(self.value)


def _written(value: object) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, enum.Enum) else repr(value)


def _without_members(public: PublicName) -> bool:
    """Layers, operators, rules and optimizers: what their fields mean stands in their text, and methods are alike."""
    return public.home.startswith(("descend.graph.kinds", "descend.optim.rules", "descend.optim.named_optimizers"))


def pages() -> dict[str, str]:
    """The pages by file name, without the ending."""
    of_page: dict[str, list[PublicName]] = defaultdict(list)
    titles: dict[str, str] = {}
    for public in public_names():
        name, title = public.page
        of_page[name].append(public)
        titles[name] = title
    return {name: _page(titles[name], of_page[name], _SUBJECTS.get(name)) for name in sorted(of_page)}


def _page(title: str, names: list[PublicName], subject: str | None) -> str:
    lines = [title, "=" * len(title), ""]
    if subject is not None:
        lines += [f"Names and arguments. How they are used, with examples: :doc:`{subject}`.", ""]
    homes: dict[str, list[PublicName]] = defaultdict(list)
    for public in names:
        homes[public.home].append(public)
    for home, members in sorted(homes.items(), key=lambda item: -len(item[1])):
        if len(homes) > 1:
            heading = home.rpartition(".")[2].replace("_", " ").capitalize()
            lines += [heading, "-" * len(heading), "", *_about(home)]
        for public in sorted(members, key=lambda one: one.name.casefold()):
            lines += directive(public)
    return "\n".join([*lines, *_aliases(names)])


def _about(home: str) -> list[str]:
    """The first sentence of a module's docstring."""
    first = " ".join((importlib.import_module(home).__doc__ or "").split("\n\n")[0].split())
    return [inline(first), ""] if home.count(".") > 1 and not home.startswith("descend.optim.rules.") else []


def _aliases(names: Iterable[PublicName]) -> list[str]:
    rows = [(alias, public.name) for public in names for alias in public.aliases]
    if not rows:
        return []
    lines = ["Other names of the same", "-----------------------", "", ".. list-table::", ""]
    for alias, name in sorted(rows):
        lines += [f"   * - ``{alias}``", f"     - :py:obj:`{name}`"]
    return [*lines, ""]


INDEX = """All names
=========

Every public name once, with its docstring; every command; the exit codes.

.. toctree::
   :maxdepth: 1
   :glob:

   commands
   *
"""


def write(folder: Path, pages: Mapping[str, str]) -> None:
    """Write the pages that differ into `folder`, with an index; others that were written there before are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {**pages, "index": INDEX}
    for name, text in made.items():
        path = folder / f"{name}.rst"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    for path in folder.glob("*.rst"):
        if path.stem not in made:
            path.unlink()
