"""Imports between rooms go one way, and no room reaches torch on the way to `--help` or a check."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import descend  # noqa: F401  # says what annexes offer
from descend import lazy

PACKAGE = Path(__file__).parent.parent / "descend"

# A room may import itself, the rooms of earlier lines, and nothing else. Rooms of one line never import each other.
ORDER = [
    {"lazy", "old_paths", "terminal"},
    {"errors"},
    {"files", "machine", "torch_private"},
    {"arguments"},
    {"rule_index"},
    {"graph", "optim", "data", "launch"},
    {"lower", "runtime"},
    {"train"},
    {"callbacks"},
    {"experiment"},
    {"compat", "conformance", "pages", "onnx"},
    {"zoo"},
    {"study"},
    {"lbann", "view"},
    {"__main__", "__init__"},
]
ANNEXES = {"compat", "conformance", "lbann", "onnx", "pages", "study", "view", "zoo"}
OFFERS = {(name, module) for names in lazy._OFFERED.values() for name, module in names.items()}
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}


def room_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported_rooms(path: Path) -> list[tuple[int, str]]:
    """Every `descend.ROOM` that a file imports, with its line; but for names that an annex offers in a room."""
    tree = ast.parse(path.read_text())
    offers = {id(node) for block in offer_blocks(tree) for node in block.body}
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if id(node) in offers:
            continue
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write the whole name, not a relative import"
            names = (
                [node.module or ""] if node.module != "descend" else [f"descend.{alias.name}" for alias in node.names]
            )
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, (ast.Call, ast.Subscript)):
            names = named_by_string(node)
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "descend":
                found.append((node.lineno, parts[1] if len(parts) > 1 and parts[1] in LEVEL else "__init__"))
    return found


def offer_blocks(tree: ast.Module) -> list[ast.If]:
    """Imports for type checkers alone of the names that `descend/__init__.py` lets a package have from an annex."""
    return [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and offers_alone(node)
    ]


def offers_alone(block: ast.If) -> bool:
    names = [
        (node.module, alias.name) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    return all((name, module) in OFFERS for module, name in names)


def named_by_string(node: ast.Call | ast.Subscript) -> list[str]:
    """The module of `import_module("descend.x")`, `__import__(f"descend.{x}")`, `sys.modules["descend.x"]` and such."""
    called = node.func if isinstance(node, ast.Call) else node.value
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    if name not in ("import_module", "__import__", "find_spec", "instance_check", "modules"):
        return []
    given = node.args[:1] if isinstance(node, ast.Call) else [node.slice]
    parts = [one.values[0] if isinstance(one, ast.JoinedStr) and one.values else one for one in given]
    return [one.value for one in parts if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def wrong_imports(path: Path) -> list[str]:
    """What is wrong with the imports of a file, a sentence each."""
    room = room_of(path)
    if room not in LEVEL:
        return [f"{path}: room '{room}' has no place in the order"]
    return [
        f"{path}:{line}: {room} imports {other}, which stands beside or after it"
        for line, other in imported_rooms(path)
        if other != room and LEVEL[other] >= LEVEL[room]
    ]


def test_imports_go_one_way():
    wrong = [sentence for path in sorted(PACKAGE.rglob("*.py")) for sentence in wrong_imports(path)]
    assert not wrong, "\n" + "\n".join(wrong)


def test_the_core_imports_no_annex():
    core = [path for path in sorted(PACKAGE.rglob("*.py")) if room_of(path) not in {*ANNEXES, "__init__", "__main__"}]
    wrong = [f"{path}:{line} imports {room}" for path in core for line, room in imported_rooms(path) if room in ANNEXES]
    assert not wrong, "\n" + "\n".join(wrong)


NOT_LISTED = {
    "descend.errors": {"DAMAGED_FILE", "DirectoryLost", "exit_code", "main", "library", "missing_library", "warn"}
}
INTERNAL = ("descend.optim.engine", "descend.optim.compiler", "descend.train.patches")
# What annexes still take from the inside of the core's rooms. Names leave this list, and none join it.
LOANS = {
    "compat": {"parameter_checks", "number", "open_entry"},
    "study": {
        "plain",
        "OPTIONS",
        "GroupSettings",
        "rule_fields",
        "unknown_option",
        "ReproducibleDropout",
        "philox_words",
    },
}


def test_an_annex_takes_public_names_of_the_core():
    """Names that a module lists as public, and those of the rooms' insides that are on loan."""
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if (room := room_of(path)) not in ANNEXES:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if not module.startswith("descend.") or module.split(".")[1] in ANNEXES:
                continue
            names = {alias.name for alias in node.names} - {"*"}
            if module.startswith(INTERNAL):
                names -= LOANS.get(room, set())
                wrong += [f"{path}:{node.lineno}: {name} is internal to {module}" for name in names]
            place = PACKAGE.joinpath(*module.split(".")[1:])
            modules = {file.stem for file in place.glob("*")}
            listed = {*importlib.import_module(module).__all__, *modules, *NOT_LISTED.get(module, ())}
            wrong += [f"{path}:{node.lineno}: {module} does not list {name}" for name in names - listed]
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    "line",
    [
        "from descend.experiment import load",
        "import descend.experiment.run",
        'importlib.import_module("descend.experiment.text")',
        'import_module(f"descend.experiment.{name}")',
        '__import__("descend.experiment")',
        'instance_check("descend.experiment.fit", "Name")',
        'sys.modules["descend.experiment"]',
    ],
)
def test_an_import_upwards_is_found_however_it_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str):
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    (tmp_path / "graph").mkdir()
    file = tmp_path / "graph" / "file.py"
    file.write_text(f"import sys, importlib\n{line}\n")
    assert wrong_imports(file) == [f"{file}:2: graph imports experiment, which stands beside or after it"]


@pytest.mark.parametrize("room", ["graph", "launch"])
def test_rooms_without_torch_never_name_it(room: str):
    for path in sorted((PACKAGE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] == "torch"], f"{path}:{node.lineno} imports torch"


def test_the_package_and_its_help_do_not_import_torch():
    code = "import sys, descend, descend.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_check_from_the_command_line_does_not_import_torch():
    code = """
import sys
from descend.__main__ import app
app(["run", "examples/lenet_digits.prototext", "--check"], standalone_mode=False)
sys.exit("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "conv2" in done.stdout
