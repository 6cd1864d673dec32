"""The drawings show the code as it is, and are drawn right from small packages."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tools import drawings, figures

ROOT = Path(__file__).parent.parent


@pytest.mark.slow  # reads the whole package
def test_the_drawings_of_this_repository_are_those_of_the_code():
    assert not drawings.stale(figures.House()), "run make drawings"


def test_every_file_that_the_guide_names_is_there():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:descend|tests|tools|docs)/[\w./]+)`", text) + re.findall(r"\]\(([\w./]+)\)", text)
    missing = [path for path in named if not (ROOT / path).exists() and "NAME" not in path]
    assert len(named) > 30
    assert not missing


STEP = '''
from descend.train import retry
from descend.errors import Problem

def train_step(run, batch):
    """One update."""
    with run.kept():
        prepare(run)
        retry(lambda: run.strategy.reduce(batch))
    for x in run.parts.values():
        run.only(x)
    for change in run.changes:
        change(run.state.advance(batch))
    finish(run.only(run.wipe()))
    run.only()
    if wrong:
        raise Problem("wrong")

def prepare(run):
    retry(run)
    prepare(run)

def finish(run):
    run.only()

def not_called(run):
    retry(run)
'''
RUN = """
class Run:
    state: TrainState
    changes: Chain

    def __post_init__(self):
        self.x, self.state = 1, TrainState()

    def wipe(self): ...
"""
FILES = {
    "train/step.py": STEP,
    "train/__init__.py": "from descend.train.micro_batch import retry\n",
    "train/run.py": RUN,
    "train/state.py": "class TrainState:\n    def advance(self): ...\nclass Other:\n    def advance(self): ...\n",
    "train/other.py": "class Chain:\n    def advance(self): ...\n    def changes(self): ...\n",
    "train/micro_batch.py": "from descend.optim.sgd import SGD\ndef retry(act): ...\n",
    "train/strategies/base.py": "class Strategy:\n    def reduce(self): ...\n",
    "train/strategies/data_parallel.py": "class DataParallel:\n    def reduce(self): ...\n    def only(self): ...\n",
    "optim/sgd.py": "from descend.graph.text import read\nfrom descend.errors import Problem\nclass SGD: ...\n",
    "graph/text.py": "import torch\nimport importlib\nimportlib.import_module('descend.train.step')\n",
    "zoo/nets.py": "import descend.graph.text\nif TYPE_CHECKING:\n    import descend.train.step\n",
    "__main__.py": "def main():\n    from descend.zoo import nets\n",
    "errors.py": "",
}


@pytest.fixture
def small(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / "descend" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "CONTRIBUTING.md").write_text(
        "a\n<!-- drawing: rooms -->\n<!-- end -->\nb\n<!-- drawing: step -->\nold\n<!-- end -->\nc\n"
    )
    return figures.House(tmp_path)


def test_rooms_are_listed_after_all_they_import_and_without_what_follows(small):
    assert drawings.room_imports(small) == {
        "graph": set(),
        "optim": {"graph"},
        "train": {"optim"},
        "zoo": {"graph", "train"},
        "__main__": {"zoo"},
    }
    assert [line.split() for line in drawings.rooms_text(small).splitlines()] == [
        ["graph"],
        ["optim", "<-", "graph"],
        ["train", "<-", "optim"],
        ["zoo", "<-", "train"],
        ["__main__", "<-", "zoo"],
    ]


def test_rooms_that_import_each_other_have_no_order():
    with pytest.raises(ValueError, match="these rooms import each other: a, b"):
        drawings.levels({"a": ["b"], "b": ["a"], "c": []})


def test_the_step_is_drawn_in_order_with_the_file_of_each_call(small):
    assert [line.split() for line in drawings.step_text(small).splitlines()] == [
        ["train_step"],
        ["prepare"],
        ["retry", "descend/train/micro_batch.py"],
        ["retry", "descend/train/micro_batch.py"],
        ["run.strategy.reduce", "descend/train/strategies/base.py"],
        ["run.only", "descend/train/strategies/data_parallel.py"],
        ["each", "of", "run.changes", "descend/train/other.py"],
        ["run.state.advance", "descend/train/state.py"],
        ["run.wipe", "descend/train/run.py"],
        ["run.only", "descend/train/strategies/data_parallel.py"],
        ["finish"],
        ["run.only", "descend/train/strategies/data_parallel.py"],
        ["run.only", "descend/train/strategies/data_parallel.py"],
    ]
    depths = [call.depth for call in drawings.step_calls(small)]
    assert depths == [0, 2, 3, 2, 3, 1, 1, 1, 1, 1, 1, 2, 1]


@pytest.mark.parametrize("draw", [drawings.rooms_svg, drawings.step_svg])
def test_pictures_are_well_formed_and_name_everything(small, draw):
    root = ElementTree.fromstring(draw(small))
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert set(words) >= ({"graph", "zoo", "__main__"} if draw is drawings.rooms_svg else {"train_step", "run.only"})
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) == (5 if draw is drawings.rooms_svg else 0)


def test_drawings_are_written_between_their_marks_and_found_stale(small, monkeypatch, capsys):
    monkeypatch.setattr(drawings, "House", lambda: small)
    assert drawings.main(["--check"]) == 1
    assert "CONTRIBUTING.md is stale: run make drawings" in capsys.readouterr().out
    assert drawings.main([]) == 0
    assert drawings.main(["--check"]) == 0
    page = (small.root / "CONTRIBUTING.md").read_text()
    assert page.startswith("a\n<!-- drawing: rooms -->\n```\ngraph\n")
    assert "old" not in page
    assert page.endswith("```\n<!-- end -->\nc\n")
