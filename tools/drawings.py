"""Draws the rooms of the package and the training step from the code: python tools/drawings.py [--check]

Two drawings, each as SVG in `docs/drawings/` and as text in CONTRIBUTING.md between `<!-- drawing: NAME -->` and
`<!-- end -->`. The rooms come from the imports of all files, the step from the calls of `descend/train/step.py`. With
`--check` nothing is written, and the exit code is 1 where a drawing does not show the code as it is.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":  # run as a file, its folder is on the path and not the root
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.figures import House, Module, imports

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PAGE = Path("CONTRIBUTING.md")
FOLDER = Path("docs", "drawings")

_OF_CONTAINERS = {*dir(dict), *dir(list), *dir(str)}  # methods of these say nothing about the step

_FONT = "font-family='ui-sans-serif, system-ui, sans-serif' font-size='13'"
_HEAD = (
    "<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0 {width} {height}' {font}>"
)
_PAPER = "<rect width='100%' height='100%' fill='#ffffff'/>"
_ARROW = (
    "<defs><marker id='arrow' viewBox='0 0 8 8' refX='8' refY='4' markerWidth='7' markerHeight='7' orient='auto'>"
    "<path d='M0 0 L8 4 L0 8 z' fill='#555'/></marker></defs>"
)


# Rooms


ANNEXES = {"compat", "conformance", "lbann", "onnx", "pages", "study", "view", "zoo"}


def room_imports(house: House) -> dict[str, set[str]]:
    """Folders of the package and the command line, each with the others that its files import, for types too.

    A room of the core names annexes for type checkers alone, where they offer names in it; that is no import.
    """
    rooms = {m.path.parts[1] for m in house.modules.values() if len(m.path.parts) > 2} | {"__main__"}
    graph: dict[str, set[str]] = {room: set() for room in rooms}
    for name, others in imports(house, typing=True, by_string=False).items():
        room = _room(name)
        if room in rooms:
            other_rooms = {_room(other) for other in others} & rooms - {room}
            graph[room] |= other_rooms if room in {*ANNEXES, "__main__"} else other_rooms - ANNEXES
    return graph


def _room(name: str) -> str:
    return [*name.split("."), ""][1]


def reduced(graph: Mapping[str, set[str]]) -> dict[str, list[str]]:
    """The imports that do not follow from others: a room is left out where another import leads to it."""
    reach = {room: _reach(graph, room) for room in graph}
    return {
        room: sorted(other for other in others if not any(other in reach[via] for via in others - {other}))
        for room, others in graph.items()
    }


def _reach(graph: Mapping[str, set[str]], room: str) -> set[str]:
    found: set[str] = set()
    ahead = list(graph[room])
    while ahead:
        other = ahead.pop()
        if other not in found:
            found.add(other)
            ahead += graph[other]
    return found


def levels(graph: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Rooms in rows, each below all that it imports.

    Raises:
        ValueError: Rooms import each other in a circle, so there is no order to draw.
    """
    height: dict[str, int] = {}
    while len(height) < len(graph):
        ready = [room for room in graph if room not in height and all(other in height for other in graph[room])]
        if not ready:
            raise ValueError(f"these rooms import each other: {', '.join(sorted(set(graph) - set(height)))}")
        for room in ready:
            height[room] = 1 + max((height[other] for other in graph[room]), default=-1)
    return [sorted(room for room in graph if height[room] == i) for i in range(max(height.values()) + 1)]


def rooms_text(house: House) -> str:
    """The rooms as lines, in the order in which imports go."""
    graph = reduced(room_imports(house))
    width = max(map(len, graph))
    return "\n".join(
        f"{room:{width}}  <-  {', '.join(graph[room])}" if graph[room] else room
        for row in levels(graph)
        for room in row
    )


def rooms_svg(house: House) -> str:
    """The rooms as boxes; an arrow goes from what is imported to what imports it."""
    graph = reduced(room_imports(house))
    rows = levels(graph)
    columns, step_x, step_y, box_x, box_y = max(map(len, rows)), 150, 80, 110, 32
    width, height = columns * step_x + 20, len(rows) * step_y
    at = {
        room: (width / 2 + (i - (len(row) - 1) / 2) * step_x, 24 + y * step_y)
        for y, row in enumerate(rows)
        for i, room in enumerate(row)
    }
    lines = [_HEAD.format(width=width, height=height, font=_FONT), _PAPER, _ARROW]
    for room, others in sorted(graph.items()):
        x, y = at[room]
        for other in others:
            x0, y0 = at[other][0], at[other][1] + box_y / 2
            y1 = y - box_y / 2
            bend = f"C{x0:g} {y0 + 30:g} {x:g} {y1 - 30:g} {x:g} {y1:g}"
            lines.append(f"<path d='M{x0:g} {y0:g} {bend}' fill='none' stroke='#555' marker-end='url(#arrow)'/>")
    for room, (x, y) in sorted(at.items()):
        corner = f"x='{x - box_x / 2:g}' y='{y - box_y / 2:g}'"
        lines.append(f"<rect {corner} width='{box_x}' height='{box_y}' rx='5' fill='#eef3fa' stroke='#335'/>")
        lines.append(f"<text x='{x:g}' y='{y + 5:g}' text-anchor='middle'>{escape(room)}</text>")
    return "\n".join([*lines, "</svg>", ""])


# The step


@dataclass(frozen=True)
class Call:
    """One call of the step: how deep it stands in loops and branches, what is called, and the file that defines it."""

    depth: int
    text: str
    place: str


def step_calls(house: House) -> list[Call]:
    """What the first public function of train/step.py calls, in the order of evaluation.

    Functions of that file are opened once. What stands in a `with` block, or in a function that is handed on, is one
    deeper than the call around it. A loop over functions is shown by what it goes through.
    """
    step = house.modules["descend.train.step"]
    functions = {node.name: node for node in step.tree.body if isinstance(node, ast.FunctionDef)}
    entry = next(node for name, node in functions.items() if not name.startswith("_"))
    places, parts = _imported_places(step, house), _parts_of_run(house)
    seen = {entry.name}

    def place_of(name: str) -> str:
        root, *rest = name.split(".")
        if root in places:
            return places[root]
        if root == "run" and len(rest) > 1 and rest[0] in parts:
            return parts[rest[0]]
        return _method_place(house, rest[-1]) if rest and rest[-1] not in _OF_CONTAINERS else ""

    def shown(node: ast.expr, depth: int, text: str = "{}") -> Iterator[Call]:
        name = ast.unparse(node)
        if not re.fullmatch(r"[\w.]+", name):
            return
        if name in functions and name not in seen:
            seen.add(name)
            yield from opened(functions[name], depth)
        elif name not in functions and (place := place_of(name)):
            yield Call(depth, text.format(name), place)

    def opened(function: ast.FunctionDef, depth: int) -> Iterator[Call]:
        yield Call(depth, function.name, "")
        calls = [call for statement in function.body for call in within(statement, depth + 1)]
        yield from (call for i, call in enumerate(calls) if i == 0 or call != calls[i - 1])

    def within(node: ast.AST, depth: int) -> Iterator[Call]:
        if isinstance(node, ast.Call):
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            for part in (node.func, *(one for one in arguments if not isinstance(one, ast.Lambda))):
                yield from within(part, depth)
            yield from shown(node.func, depth)
            for handed_on in arguments:
                if isinstance(handed_on, ast.Lambda):
                    yield from within(handed_on.body, depth + 1)
            return
        if isinstance(node, ast.For):
            yield from shown(node.iter, depth, "each of {}")
        inner = node.body if isinstance(node, ast.With) else []
        for child in ast.iter_child_nodes(node):
            yield from within(child, depth + (child in inner))

    return list(opened(entry, 0))


def _parts_of_run(house: House) -> dict[str, str]:
    """The file of the class of each attribute of `Run`."""
    module = house.modules.get("descend.train.run")
    classes = [] if module is None else [node for node in module.tree.body if isinstance(node, ast.ClassDef)]
    found: dict[str, str] = {}
    for node in (part for cls in classes if cls.name == "Run" for part in ast.walk(cls)):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = _class_place(house, ast.unparse(node.annotation))
        elif isinstance(node, ast.Assign):
            targets, values = [
                each.elts if isinstance(each, ast.Tuple) else [each] for each in (node.targets[0], node.value)
            ]
            for target, value in zip(targets, values, strict=False):
                if isinstance(target, ast.Attribute) and isinstance(value, ast.Call):
                    found[target.attr] = _class_place(house, ast.unparse(value.func))
    return {name: place for name, place in found.items() if place}


def _class_place(house: House, name: str) -> str:
    """The file of the package that defines a class, by the last part of its name."""
    last = name.split(".")[-1]
    files = [
        str(module.path)
        for module in house.modules.values()
        if any(isinstance(node, ast.ClassDef) and node.name == last for node in module.tree.body)
    ]
    return files[0] if len(files) == 1 else ""


def _imported_places(module: Module, house: House) -> dict[str, str]:
    """The file of the package behind each name that a module imports from it, through re-exports of packages."""
    found: dict[str, str] = {}
    for name, (source, original) in _imported(module).items():
        while source in house.modules and original in (passed_on := _imported(house.modules[source])):
            source, original = passed_on[original]
        whole = f"{source}.{original}"
        found[name] = str(house.modules[whole if whole in house.modules else source].path)
    return {name: place for name, place in found.items() if not place.endswith(("errors.py", "arguments.py"))}


def _imported(module: Module) -> dict[str, tuple[str, str]]:
    """Module and name there of each name that a module imports from the package."""
    return {
        alias.asname or alias.name: (str(node.module), alias.name)
        for node in module.tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("descend")
        for alias in node.names
    }


def _method_place(house: House, method: str) -> str:
    """The file of the training room that defines a method: its interface in a `base.py`, or the only one."""
    files = [
        str(module.path)
        for module in house.modules.values()
        if module.name.startswith("descend.train.")
        and any(isinstance(node, ast.FunctionDef) and node.name == method for node in _methods(module))
    ]
    bases = [path for path in files if Path(path).name in ("base.py", "strategy.py", "transform.py")]
    return bases[0] if bases else files[0] if len(files) == 1 else ""


def _methods(module: Module) -> Iterator[ast.stmt]:
    for node in module.nodes:
        if isinstance(node, ast.ClassDef):
            yield from node.body


def step_text(house: House) -> str:
    """The step as indented lines, with the file of each call."""
    calls = step_calls(house)
    width = max(2 * call.depth + len(call.text) for call in calls)
    return "\n".join(f"{'  ' * call.depth + call.text:{width}}  {call.place}".rstrip() for call in calls)


def step_svg(house: House) -> str:
    """The step as boxes from top to bottom; functions of step.py are dark, what they call is light."""
    calls = step_calls(house)
    line, indent, box = 30, 26, 300
    width = 40 + max(call.depth for call in calls) * indent + box + 330
    lines = [_HEAD.format(width=width, height=line * len(calls) + 20, font=_FONT), _PAPER]
    for i, call in enumerate(calls):
        x, y = 14 + call.depth * indent, 10 + i * line
        fill = "#eef3fa" if call.place else "#cfdcf0"
        lines.append(f"<rect x='{x}' y='{y}' width='{box}' height='24' rx='4' fill='{fill}' stroke='#335'/>")
        lines.append(f"<text x='{x + 10}' y='{y + 17}'>{escape(call.text)}</text>")
        lines.append(f"<text x='{x + box + 12}' y='{y + 17}' fill='#555'>{escape(call.place)}</text>")
    return "\n".join([*lines, "</svg>", ""])


# Files


def drawn(house: House) -> dict[Path, str]:
    """Every file that holds a drawing, relative to the root, as the code has it now."""
    texts = {"rooms": rooms_text(house), "step": step_text(house)}
    page = re.sub(
        r"(<!-- drawing: (\w+) -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}```\n{texts[found[2]]}\n```\n{found[3]}",
        (house.root / PAGE).read_text(),
        flags=re.DOTALL,
    )
    return {PAGE: page, FOLDER / "rooms.svg": rooms_svg(house), FOLDER / "step.svg": step_svg(house)}


def stale(house: House) -> list[str]:
    """The files whose drawing is not that of the code."""
    return [
        str(path)
        for path, text in drawn(house).items()
        if not (house.root / path).is_file() or (house.root / path).read_text() != text
    ]


def main(words: Sequence[str] | None = None) -> int:
    """Write the drawings, or check them."""
    parser = argparse.ArgumentParser(description="Draws the rooms and the training step from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a drawing is stale")
    given, house = parser.parse_args(words), House()
    wrong = stale(house)
    if given.check:
        sys.stdout.write("".join(f"{path} is stale: run make drawings\n" for path in wrong))
        return int(bool(wrong))
    for path, text in drawn(house).items():
        (house.root / path).parent.mkdir(parents=True, exist_ok=True)
        (house.root / path).write_text(text)
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
