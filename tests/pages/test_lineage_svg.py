"""The picture of a tournament says what its rows say: who took whose model, scores and rates."""

import json
import xml.etree.ElementTree as ElementTree

import pytest
from typer.testing import CliRunner

from descend.__main__ import app
from descend.errors import ConfigurationError, StorageError
from descend.pages.lineage_svg import ancestors, read, save, svg

SVG = "{http://www.w3.org/2000/svg}"


def row(number, trainer, took=None, score=1.0, changed=None, rates=(0.1,), partner=None):
    scores = {"objective": score}
    fixed = {"round": number, "step": 5 * (number + 1), "trainer": trainer, "partner": partner, "scores": scores}
    return {**fixed, "partner_scores": {}, "took": took, "changed": changed or {}, "rates": list(rates)}


ROWS = [
    row(0, 0, took=2, score=0.9, changed={"lr": [0.1, 0.12]}, rates=[0.12], partner=2),
    row(0, 1),
    row(0, 2, score=0.5),
    row(1, 0, score=0.4),
    row(1, 1, took=0, score=float("nan"), partner=0),
    row(1, 2, took=1, partner=1),
]


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "tournament.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


def test_models_descend_from_who_gave_them(run_dir):
    assert ancestors(read(run_dir)) == [{0: 0, 1: 1, 2: 2}, {0: 2, 1: 1, 2: 2}, {0: 2, 1: 2, 2: 1}]


def test_the_picture_has_a_box_for_each_model_and_an_arrow_for_each_move(run_dir):
    root = ElementTree.fromstring(svg(read(run_dir)))
    boxes, arrows = root.findall(f"{SVG}g"), root.findall(f"{SVG}path")
    assert len(boxes) == 3 * 3
    assert len(arrows) == 3
    assert len(root.findall(f"{SVG}line")) == 3
    words = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert {"trainer 0", "exchange 1", "objective 0.9", "objective nan", "rate 0.12", "final model"} <= set(words)
    reported = [arrow.find(f"{SVG}title").text for arrow in arrows]
    assert "copies the model of trainer 2\nlr: 0.1 → 0.12" in reported[0]
    rectangle = f"{SVG}rect"
    colours = [box.find(rectangle).get("fill") for box in boxes]
    assert colours[6] == colours[7] == colours[2] != colours[8] == colours[1]


def test_the_command_draws_what_a_run_has_left(tmp_path, monkeypatch):
    from ranks.tournament import play

    monkeypatch.chdir(tmp_path)
    play(rounds=2, trainers=3)
    for name in ("lineage.svg", "lineage.html"):
        done = CliRunner().invoke(app, ["lineage", "run", "-o", name])
        assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in (tmp_path / "run" / "tournament.jsonl").read_text().splitlines()]
    root = ElementTree.parse(tmp_path / "lineage.svg").getroot()
    assert len(root.findall(f"{SVG}path")) == sum(row["took"] is not None for row in rows)
    assert (tmp_path / "lineage.svg").read_text() in (tmp_path / "lineage.html").read_text()
    for one in rows:
        assert one["rates"] == ([one["changed"]["lr"][1]] if "lr" in one["changed"] else one["rates"])


@pytest.mark.parametrize("text", ["", "{", '{"round": 3}', '{"round": 0, "trainer": 0, "took": 7}', "[1]"])
def test_what_is_no_tournament_is_refused(text, tmp_path):
    (tmp_path / "tournament.jsonl").write_text(text)
    with pytest.raises(StorageError, match=r"tournament\.jsonl"):
        read(tmp_path)


def test_names_of_files_are_looked_at_first(tmp_path):
    with pytest.raises(ConfigurationError, match=r"\.svg or \.html"):
        save(tmp_path, tmp_path / "lineage.png")
    with pytest.raises(StorageError, match="several trainers"):
        save(tmp_path, tmp_path / "lineage.svg")


def test_names_of_scores_hold_no_character_that_xml_forbids():
    tree = ElementTree.fromstring(
        svg([{0: {**row(0, 0, changed={"l\x00r": [1, 2]}), "scores": {"a\x1b\n\u202eb": 1.0}}}])
    )
    words = "\n".join(one.text or "" for one in tree.iter())
    assert r"a\x1b\n\u202eb 1" in words
    assert r"l\x00r: 1" in words
