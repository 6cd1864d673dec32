"""The page on the files of a run directory names what a run writes."""

import json
import re
from pathlib import Path

import pytest

import descend

PAGE = (Path(__file__).parent.parent / "docs" / "reference" / "run_directory.md").read_text()


def keys(heading):
    """The names in the first cells of the table below a heading."""
    section = PAGE.partition(f"{heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page") / "run"
    images, labels = descend.Input(data_field="samples"), descend.Input(data_field="labels")
    outputs = descend.FullyConnected(images, num_neurons=10)
    loss = descend.MeanSquaredError(outputs, labels)
    model = descend.Model(1, objective_function=loss)
    descend.run(
        descend.Trainer(mini_batch_size=400, random_seed=1),
        model,
        descend.zoo.digits(),
        descend.SGD(learn_rate=1e-6),
        folder,
    )
    return folder


def test_files(run):
    named = keys("# Files of a run directory")
    assert {path.name if path.is_file() else f"{path.name}/" for path in run.iterdir()} - {"checkpoints/"} <= named
    (checkpoint,) = (run / "checkpoints").iterdir()
    written = {str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*") if path.is_file()}
    assert written == keys("## A checkpoint")


def test_run_json(run):
    assert set(json.loads((run / "run.json").read_text())) == keys("## run.json")
    end = re.search(r"^\| `end` \|(.*)\|$", PAGE, re.MULTILINE)[1]
    assert set(json.loads((run / "run.json").read_text())["end"]) | {"errors"} == set(re.findall(r"`(\w+)`", end))


def test_rows(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {row["mode"] for row in rows} == {"train", "validation", "test"}
    assert {key for row in rows for key in row} <= keys("## metrics.jsonl")
