"""The figures of the code's structure are counted right; `make figures` holds them to their bounds and ratchets."""

import ast
import tomllib

import pytest

from tools import figures


def house(folder, files):
    """A package with these modules (`a/b` is `descend/a/b.py`) and other files by path with suffix."""
    for name, text in files.items():
        path = folder / name if "." in name else folder / "descend" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return figures.House(folder)


def test_each_bound_and_ratchet_is_one_of_a_figure():
    kept = tomllib.loads(figures.BOUNDS.read_text())
    assert {*kept["bounds"], *kept["ratchets"]} <= {*figures.FIGURES, *figures.PATHS}


def test_members_are_fields_attributes_and_methods():
    cls = ast.parse(
        """
class A:
    __slots__ = ("x",)
    number: int
    first, second = 1, 2
    def __init__(self, y):
        self.x, self.z[0] = y, 1
        other.w = 2
        with y as self.v:
            pass
    async def go(this):
        this.u += 1
    @staticmethod
    def at(): ...
"""
    ).body[0]
    assert figures.members(cls) == {"number", "first", "second", "__init__", "x", "v", "go", "u", "at"}


@pytest.mark.parametrize(("extra", "count"), [(0, 0), (1, 1)])
def test_a_class_may_have_30_members(tmp_path, extra, count):
    fields = "".join(f"    x{i}: int\n" for i in range(30 + extra))
    made = house(tmp_path, {"a": f"class A:\n{fields}", "b": f"class Reader:\n{fields}"})
    assert figures.large_classes(made).count == count


@pytest.mark.parametrize(("extra", "count"), [(0, 0), (1, 1)])
def test_a_function_may_have_80_lines(tmp_path, extra, count):
    body = "    x = 1\n" * (79 + extra)
    made = house(tmp_path, {"a": f"def f():\n{body}", "b": "def g():\n    return 1\n" * 50})
    assert figures.long_functions(made).count == count


def test_homonyms_are_classes_of_one_name_in_two_files(tmp_path):
    nested = "def f():\n    class X: ...\n"
    made = house(tmp_path, {"a": "class X: ...\nclass Y: ...\n", "b/c": nested, "d": "class Adam: ...\n"})
    found = figures.homonyms(made)
    assert (found.count, found.offenders) == (1, ["X: descend/a.py, descend/b/c.py"])


RUN = """
class Run:
    vote: "Vote | None" = None
    name: str = ""
    def __init__(self):
        self.cut = cut() if many else None
        p.grad = None
    @property
    def sharding(self) -> Optional[Sharding]: ...
    def find(self) -> str | None: ...
"""


def test_optional_attributes_are_those_that_may_be_none(tmp_path):
    made = house(tmp_path, {"train/run": RUN})
    assert figures.optional_attributes(made, ("descend.train.",)) == {"vote", "cut", "sharding"}
    assert not figures.optional_attributes(made, ("descend.data.",))


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("if run.vote: f()", 1),
        ("if run.vote is not None and not run.cut: f()", 2),
        ("x = 1 if run.vote else 2", 1),
        ("x = run.cut or 1", 1),
        ("x = run.cut\nif x is None: f()", 1),
        ("x = [p for p in ps if run.vote]", 1),
        ("if run.state.vote: f()", 1),
        ("while not run.vote: f()", 1),
        ("run.vote.cast(1)", 0),
        ("if run.name: f()", 0),
        ("if p.grad is None: f()", 0),
        ("if reason := transform(run.vote): f()", 0),
        ("x = 1\nif x: f()", 0),
    ],
)
def test_branches_on_optional_parts(code, count):
    assert len(figures.optional_branches(ast.parse(code), {"vote", "cut", "sharding"})) == count


def test_the_figure_of_the_step_reads_the_step(tmp_path):
    made = house(tmp_path, {"train/run": RUN, "train/step": "def step(run):\n    if run.vote:\n        f()\n"})
    found = figures.branches_in_step(made)
    assert (found.count, found.offenders) == (1, ["descend/train/step.py:2 if run.vote:"])


@pytest.mark.parametrize(("text", "count"), [("x {} y", 1), ("X {} Y", 1), ("def _{}_now", 1), ("re{}ing", 0)])
@pytest.mark.parametrize("word", ["to" + "ld", "TO" + "LD"])
def test_a_banned_word_counts_in_any_case_and_in_names(tmp_path, text, word, count):
    assert figures.banned_phrases(house(tmp_path, {"a": f"# {text.format(word)}\n"})).count == count


@pytest.mark.parametrize("gap", [" ", "\n", "\n    # ", '"\n    "', "' \n f'", "  "])
def test_a_banned_phrase_counts_across_lines(tmp_path, gap):
    text = gap.join(("is", "to", "be"))
    found = figures.banned_phrases(house(tmp_path, {"docs/page.md": f"one\nIt {text} so, list to be\n"}))
    assert found.count == 1
    assert found.offenders[0].startswith("docs/page.md:2 ")


def test_long_markdown_is_prose_over_100_columns(tmp_path):
    long = "word " * 20
    page = f"{long}w\n{long.strip()}\n| {long}w |\n```\n{long}w\n```\n{'x' * 120}\n"
    found = figures.long_markdown(house(tmp_path, {"README.md": page}))
    assert (found.count, found.offenders) == (1, ["README.md:1 101 columns"])


def test_the_share_of_modules_with_a_twin(tmp_path):
    text = "x = 1\n" * 61
    modules = dict.fromkeys(("a/b", "a/__init__", "a/_c", "d", "e"), text)
    tests = dict.fromkeys(("tests/a/test_b.py", "tests/test_a.py", "tests/a/test_c.py", "tests/x/test_d.py"), "")
    made = house(tmp_path, {**modules, **tests, "short": "x = 1\n" * 60})
    found = figures.without_twin(made)
    assert (found.count, found.offenders) == (60.0, ["descend/d.py: 61 lines", "descend/e.py: 61 lines"])


def test_summaries_that_are_no_sentence_are_found_wherever_they_stand(tmp_path):
    made = house(
        tmp_path,
        {"a": '"""What it is."""\ndef f():\n    """Of all."""\n\nclass C:\n    """Whatever, a class."""\n'},
    )
    assert figures.odd_summaries(made).offenders == ["descend/a.py:1 What it is.", "descend/a.py:2 Of all."]


def test_a_name_is_bare_in_locals_arguments_and_functions_and_not_within_another(tmp_path):
    made = house(tmp_path, {"a": "def _found(given):\n    for one in given:\n        found_rows = one\n"})
    assert [place.split()[1] for place in figures.bare_names(made).offenders] == ["_found", "given", "one"]


def test_messages_that_end_in_is_and_a_value_are_found_across_lines(tmp_path):
    made = house(
        tmp_path, {"a": "x = f'lr must be >= 0 and is {y}'\nz = (f'it must '\n f'be and is {y!r}.')\nw = f'got {y}'\n"}
    )
    assert figures.odd_errors(made).count == 2


def test_private_nouns_count_in_the_engine_alone(tmp_path):
    text = "def look_of(x):\n    return x  # a text\n\ncontext = 1\n"
    made = house(tmp_path, {"optim/engine/a": text, "data/a": text})
    assert figures.private_nouns(made).count == 2


def test_size_and_spread(tmp_path):
    made = house(
        tmp_path, {"__init__": "", "a": "from descend.b import c\n", "b/c": "x = 1\n", "d": "import descend.a\n"}
    )
    assert figures.package_files(made).count == 4
    assert figures.package_lines(made).count == 3
    assert figures.top_modules(made).count == 3
    assert figures.with_one_importer(made).offenders == [
        "descend/a.py <- descend.d",
        "descend/b/c.py <- descend.a",
    ]


IMPORTS = {
    "a/x": "from descend.a.y import f\nimport torch\n",
    "a/y": "def f():\n    from descend.a import z\n",
    "a/z": "import importlib\n_X = 'descend.a.x'\n\ndef f():\n    importlib.import_module(_X)\n",
    "a/__init__": "",
    "b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from descend.c import C\n",
    "c": "import importlib\nimportlib.import_module('descend.b')\n",
    "d": "import descend.d\n",
}


def test_imports_in_functions_and_by_string_count_and_those_for_types_apart(tmp_path):
    made = house(tmp_path, IMPORTS)
    graph = figures.imports(made)
    assert graph["descend.a.x"] == {"descend.a.y"}
    assert graph["descend.a.y"] == {"descend.a.z"}
    assert graph["descend.a.z"] == {"descend.a.x"}
    assert (graph["descend.b"], graph["descend.c"]) == (set(), {"descend.b"})
    assert figures.circles(graph) == [["descend.a.x", "descend.a.y", "descend.a.z"]]
    assert figures.runtime_circles(made).offenders == [
        "3 files, such as descend.a.x -> descend.a.y -> descend.a.z -> descend.a.x"
    ]
    assert figures.files_in_circles(made).count == 3
    assert figures.typing_circles(made).count == 2


def test_module_names_in_two_rooms(tmp_path):
    made = house(tmp_path, dict.fromkeys(("a/x", "b/x", "a/y", "a/__init__", "b/__init__"), ""))
    assert figures.module_names(made).offenders == ["x: descend/a/x.py, descend/b/x.py"]


def line(name, count, bound, ratchet):
    return figures.Line(name, "about", figures.Figure(count, ["place"]), bound, ratchet)


@pytest.mark.parametrize(
    ("name", "count", "bound", "ratchet", "state"),
    [
        ("homonyms", 0, 0, None, "ok"),
        ("homonyms", 1, 0, None, "OVER"),
        ("homonyms", 3, 0, 3, "ratchet"),
        ("homonyms", 4, 0, 3, "OVER"),
        ("homonyms", 4, None, None, "-"),
        ("twin_tests", 90, 90, None, "ok"),
        ("twin_tests", 80, 90, 75, "ratchet"),
        ("twin_tests", 70, 90, 75, "OVER"),
    ],
)
def test_the_state_of_a_figure(name, count, bound, ratchet, state):
    made = line(name, count, bound, ratchet)
    assert made.state == state
    assert ("    place" in figures.table([made], verbose=True)) == (state != "ok")


def test_ratchets_only_fall_and_leave_with_their_need(tmp_path):
    kept = tmp_path / "figures.toml"
    head = "# head\n\n[bounds]\na = 0\ntwin_tests = 90\nb = 0\nc = 0\n\n[ratchets]\n"
    kept.write_text(f"{head}a = 5\ntwin_tests = 60.5\nb = 2\nc = 2\n")
    figures.lower(
        [line("a", 3, 0, 5), line("twin_tests", 70.5, 90, 60.5), line("b", 0, 0, 2), line("c", 4, 0, 2)], kept
    )
    assert kept.read_text() == f"{head}a = 3\ntwin_tests = 70.5\nc = 2\n"


def test_a_ratchet_that_was_not_measured_stays(tmp_path):
    kept = tmp_path / "figures.toml"
    kept.write_text("[bounds]\na = 0\n\n[ratchets]\na = 5\nfiles_of_fit = 9\n")
    figures.lower([line("a", 3, 0, 5)], kept)
    assert tomllib.loads(kept.read_text())["ratchets"] == {"a": 3, "files_of_fit": 9}


def test_the_command_ends_with_1_where_a_figure_is_over(tmp_path, monkeypatch, capsys):
    kept = tmp_path / "figures.toml"
    monkeypatch.setattr(figures, "measured", lambda house, paths: [line("homonyms", 3, 0, 3)])
    monkeypatch.setattr(figures, "BOUNDS", kept)
    assert figures.main([]) == 0
    assert figures.main(["--strict"]) == 1
    monkeypatch.setattr(figures, "measured", lambda house, paths: [line("homonyms", 4, 0, 3)])
    assert figures.main([]) == 1
    assert "OVER" in capsys.readouterr().out


@pytest.mark.slow  # reads the whole repository
def test_no_exception_stands_for_what_is_gone():
    """Each class that the tables of exceptions name is still there, and still an exception."""
    repository = figures.House()
    places: dict[str, int] = {}
    for _, cls in figures._classes(repository):
        places[cls.name] = places.get(cls.name, 0) + 1
    assert all(places.get(name, 0) > 1 for name in figures.HOMONYMS)
    large = {cls.name for _, cls in figures._classes(repository) if len(figures.members(cls)) > figures.MEMBERS}
    assert set(figures.LARGE_CLASSES) <= large
