"""What is viewed: directories that hold runs and studies, and the page that compares runs."""

import json
import re
import tempfile
import threading
import time
from pathlib import Path

import pytest
from other_users import VICTIM, as_user, needs_root, status_of
from system_needs import library

from descend.errors import ConfigurationError
from descend.pages.html import Live
from descend.pages.run.read import RunReader
from descend.view import subjects as module
from descend.view.server import ViewServer
from descend.view.subjects import home_page, home_stamp, subjects

LIVE = Live("1", "stamp")


def run(folder, objective=1.0, steps=(10, 20)):
    folder.mkdir(parents=True)
    facts = {"end": {"exit_code": 0}, "settings": {"batch_size": 8, "optimizer.rule": "SGD(momentum=0.9)"}}
    (folder / "run.json").write_text(json.dumps(facts))
    rows = [{"mode": "train", "epoch": 1, "step": step, "objective": objective} for step in steps]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


def test_a_folder_stands_for_the_runs_and_studies_in_it(tmp_path):
    run(tmp_path / "b")
    run(tmp_path / "a")
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "study.json").write_text("{}")
    (tmp_path / "neither").mkdir()
    found = subjects([tmp_path])
    assert [(one.name, one.is_study) for one in found] == [("a", False), ("b", False), ("study", True)]
    assert [one.name for one in subjects([tmp_path / "a", tmp_path / "a"])] == ["a"]


@needs_root
def test_what_this_user_may_not_read_takes_nothing_else_down():
    with tempfile.TemporaryDirectory() as place:  # under which others may look, unlike pytest's
        Path(place).chmod(0o755)
        home_page([], LIVE)  # which reads what the other user may not
        for name in ("a", "hidden"):
            run(Path(place, name))
        Path(place, "hidden").chmod(0o700)

        def look():
            found = subjects([Path(place)])
            assert [one.name for one in found] == ["a"]
            assert "a: run, finished" in home_page(found, LIVE)
            with pytest.raises(ConfigurationError, match="it cannot be read: Permission denied"):
                subjects([Path(place, "hidden")])

        assert status_of(as_user(VICTIM, look)) == 0


def test_runs_of_one_name_are_named_with_their_folders(tmp_path):
    run(tmp_path / "x" / "run")
    run(tmp_path / "y" / "run")
    assert [one.name for one in subjects([tmp_path / "x", tmp_path / "y" / "run"])] == ["x/run", "y/run"]


def test_everything_that_is_wrong_is_said_at_once(tmp_path, monkeypatch):
    with pytest.raises(ConfigurationError) as error:
        subjects([tmp_path, tmp_path / "none"])
    assert len(error.value.problems) == 2
    assert "no run and no study is in it" in error.value.problems[0]
    assert "there is no such directory" in error.value.problems[1]
    monkeypatch.setattr(module, "_MAX_SUBJECTS", 1)
    run(tmp_path / "a")
    run(tmp_path / "b")
    with pytest.raises(ConfigurationError, match="at most 1 are shown at once"):
        subjects([tmp_path])


def test_runs_are_compared_in_one_table_and_one_figure_a_quantity(tmp_path):
    library("vl_convert", "vl-convert-python")
    run(tmp_path / "fast<b>", 0.25)
    run(tmp_path / "slow", 0.75)
    text = home_page(subjects([tmp_path]), LIVE)
    assert text.count("<figure") == 1
    assert "fast&lt;b&gt;" in text
    assert "fast<b>" not in text
    assert '<a href="item/1/">slow: run, finished, 20 updates</a>' in text
    for cell in ("0.25", "0.75", "SGD", "8"):
        assert f"<td>{cell}</td>" in text


def test_a_study_that_cannot_be_read_is_a_page_with_the_reason(tmp_path):
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "study.json").write_text("{")
    (one,) = subjects([tmp_path / "study"])
    assert "cannot be shown" in one.page(LIVE)
    before = one.stamp
    (tmp_path / "study" / "records").mkdir()
    (tmp_path / "study" / "records" / "a.jsonl").write_text("x")
    assert one.stamp != before


def served(tmp_path):
    return ViewServer(subjects([tmp_path]))


def sources(text):
    return re.findall(r'data-source="figure/([^"]+)"', text)


@pytest.fixture
def undrawn(monkeypatch):
    """Figures that are drawn are counted, by their titles."""
    titles = []

    def drawn(specs, labels, seconds=0):
        titles.extend(labels)
        return ["<svg></svg>"] * len(labels), ""

    monkeypatch.setattr("descend.pages.html.drawn_or_nothing", drawn)
    monkeypatch.setattr("descend.pages.html.is_installed", lambda: True)
    return titles


def append(folder, **row):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"mode": "train", "epoch": 1, **row}) + "\n")


def test_figures_are_drawn_when_they_are_asked_for_and_once(tmp_path, undrawn):
    for name in ("a", "b"):
        append(run(tmp_path / name), step=30, objective=0.5, accuracy=0.5, loss=3.0)
    with served(tmp_path) as server:
        text = server.answer("")[1]
        assert undrawn == []
        first, *_ = sources(text)
        for _ in range(2):
            assert "<svg>" in server.answer(f"figure/{first}")[1]
        assert undrawn == ["Objective function"]
        assert server.answer(f"figure/{first.partition('/')[0]}/7")[1]  # the number is that on a page
        assert server.drawn == 1


def test_one_new_row_changes_one_chart_and_parses_one_row(tmp_path, undrawn):
    folders = [run(tmp_path / f"run{number}") for number in range(5)]
    for folder in folders:
        append(folder, step=30, objective=0.5, accuracy=0.5, loss=3.0)
    with served(tmp_path) as server:
        before = sources(server.answer("")[1])
        for source in before:
            server.answer(f"figure/{source}")
        assert server.drawn == 3
        parsed = sum(one.reader.parsed_bytes for one in server.shown)
        assert parsed == sum((folder / "metrics.jsonl").stat().st_size for folder in folders)
        size = (folders[2] / "metrics.jsonl").stat().st_size
        append(folders[2], step=40, accuracy=0.75)
        row = (folders[2] / "metrics.jsonl").stat().st_size - size
        after = sources(server.answer("")[1])
        assert sum(one.reader.parsed_bytes for one in server.shown) == parsed + row
        assert len(set(after) - set(before)) == 1
        for source in after:
            assert server.answer(f"figure/{source}") is not None
        assert server.drawn == 4
        assert undrawn[3:] == ["Accuracy"]
        assert server.answer(f"figure/{(set(before) - set(after)).pop()}") is None


def test_a_page_of_one_run_redraws_what_its_new_row_has(tmp_path, undrawn):
    folder = run(tmp_path / "a")
    run(tmp_path / "b")
    append(folder, step=30, objective=0.5, accuracy=0.5)
    with served(tmp_path) as server:
        before = sources(server.answer("item/0/")[1])
        append(folder, step=40, accuracy=0.75)
        after = sources(server.answer("item/0/")[1])
        assert len(before) == len(after) == 2
        assert len(set(after) - set(before)) == 1
        assert all("<svg>" in server.answer(f"item/0/figure/{source}")[1] for source in after)


def test_no_page_waits_for_a_drawing(tmp_path, undrawn, monkeypatch):
    for name in ("a", "b"):
        run(tmp_path / name)
    begun, go_on = threading.Event(), threading.Event()

    def slow(make, seconds=0):
        begun.set()
        assert go_on.wait(30)
        return lambda number: "drawn"

    monkeypatch.setattr("descend.view.server.figure_body", slow)
    with served(tmp_path) as server:
        (source,) = sources(server.answer("")[1])
        answers = []
        drawing = threading.Thread(target=lambda: answers.append(server.answer(f"figure/{source}")))
        drawing.start()
        assert begun.wait(30)
        append(tmp_path / "a", step=30, objective=0.1)
        for path in ("", "stamp", "item/0/", "item/1/stamp"):
            assert server.answer(path) is not None
        go_on.set()
        drawing.join(30)
        assert answers == [("text/html; charset=utf-8", "drawn")]


def test_the_list_does_not_wait_for_long_runs(tmp_path, undrawn, monkeypatch):
    """It has their last rows at once, and their charts once a thread has read the others."""
    late = []
    monkeypatch.setattr(module, "_AT_ONCE", 10_000)
    monkeypatch.setattr(module._BACKGROUND, "read", late.extend)
    for name in ("a", "b"):
        run(tmp_path / name, steps=range(1, 5_001))
    run(tmp_path / "short")
    shown = subjects([tmp_path])
    text = home_page(shown, LIVE)
    assert "a: run, finished, 5,000 updates" in text
    assert "1 of 3 runs are read so far" in text
    assert "2 of 3 runs are still being read" in text
    assert "<figure" not in text
    assert sum(one.reader.parsed_bytes for one in shown) < 1_000
    stamp = home_stamp(shown)
    assert {one.folder.name for one in late} == {"a", "b"}
    for one in late:
        while not one.advance():
            pass
    assert home_stamp(shown) != stamp
    assert "<figure" in home_page(shown, LIVE)


def test_the_thread_reads_all_that_it_is_given(tmp_path):
    readers = []
    for name in ("a", "b"):
        readers.append(RunReader(run(tmp_path / name, steps=range(1, 5_001))))
    for _ in range(2):
        module._BACKGROUND.read(readers)
    ended = time.monotonic() + 60
    while not all(one.is_whole for one in readers) and time.monotonic() < ended:
        time.sleep(0.01)
    assert [one.parsed_bytes for one in readers] == [(one.folder / "metrics.jsonl").stat().st_size for one in readers]


DAMAGE = [
    (
        "run.json",
        '{"settings": [], "end": {"exit_code": [1]}}',
        "run.json: settings must be an object, got [] (and 1 more)",
    ),
    ("run.json", "{", "run.json is damaged"),
    ("run.json", '{"trainers": 100000000}', "trainers is 100,000,000"),
    ("metrics.jsonl", "[1]\n", "1 of 1 lines are left out"),
    ("metrics.jsonl", '{"mode": "train", "epoch": 1, "step": 1, "objective": "x"}\n', "1 values are left out"),
]


@pytest.mark.parametrize(("name", "text", "said"), DAMAGE)
def test_a_damaged_run_stands_in_the_list_with_the_reason(tmp_path, undrawn, name, text, said):
    run(tmp_path / "good")
    (run(tmp_path / "damaged") / name).write_text(text)
    made = home_page(subjects([tmp_path]), LIVE)
    assert "good: run, finished, 20 updates</a>" in made
    (line,) = [line for line in made.splitlines() if "damaged: run" in line]
    assert "damaged, and in part left out: " in line
    assert said in line


def test_extreme_values_are_drawn_or_left_out_and_said(tmp_path, undrawn):
    folder = run(tmp_path / "a")
    for step, value in ((30, 1e308), (40, -1e308), (50, float("nan"))):
        append(folder, step=step, objective=value)
    (one,) = subjects([tmp_path])
    assert "3 values that are not finite, or too large, are not drawn" in one.page(LIVE)
    home_page([one, one], LIVE)


def test_a_damaged_study_is_said_in_the_list(tmp_path):
    run(tmp_path / "a")
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "study.json").write_text("{")
    assert "study: study; damaged: " in home_page(subjects([tmp_path]), LIVE)
