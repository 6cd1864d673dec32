"""What is read from a run directory, whole or damaged."""

import html
import json
import os
import subprocess
import sys
import time

import pytest
from system_needs import library

from descend.errors import ConfigurationError, StorageError
from descend.pages.parts import Figure
from descend.pages.run.read import RunReader, is_run_directory, read_run, stamp
from descend.pages.run.sections import sections
from descend.pages.run.write import run_page

ROWS = [
    {"mode": "train", "epoch": 1, "step": 10, "objective": 2.0, "learning_rate": 0.1, "samples": 100, "seconds": 2.0},
    {"mode": "validation", "epoch": 1, "step": 10, "objective": 1.5, "samples": 50, "seconds": 0.5},
    {"mode": "restart", "epoch": 1, "step": 10, "time": "2026-01-01"},
    {"mode": "train", "epoch": 2, "step": 20, "objective": float("nan"), "learning_rate": 0.1, "samples": 9},
]  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"end": {"exit_code": 0, "reason": "finished"}, "torch": "2"}))
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS) + '{"mode": "tra')
    (tmp_path / "log.txt").write_text("begins\nwarning: a\nwarning: b\nwarning: a\n")
    for step in (9, 10, 100):
        (tmp_path / "checkpoints" / f"step-{step}").mkdir(parents=True)
    return tmp_path


def test_a_run_is_read_without_its_restarts_and_half_a_line(folder):
    run = read_run(folder)
    assert run.metrics[0].last["train"]["step"] == 20
    assert run.restarts == (10,)
    assert run.warnings == {"a": 2, "b": 1}
    assert run.checkpoints == ("step-9", "step-10", "step-100")
    assert run.modes == ["train", "validation"]
    assert run.quantities == ["objective", "learning_rate"]
    assert run.series("objective", "validation") == [(10.0, 1.5)]
    assert (run.step, run.status) == (20, "finished")


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ({"exit_code": 75}, "stopped on request"),
        ({"exit_code": 130}, "interrupted"),
        ({"exit_code": 4}, "ended with exit code 4"),
        (None, "ended without saying how, as after a kill"),
    ],
)
def test_how_it_ended_in_words(folder, end, status):
    (folder / "run.json").write_text(json.dumps({"end": end}))
    assert read_run(folder).status == status


def test_a_run_that_a_process_owns_is_under_way_and_a_stale_owner_is_none(folder):
    (folder / "run.json").write_text(json.dumps({"end": None}))
    (folder / "owner.json").write_text("{}")
    assert read_run(folder).status == "under way"
    long_ago = time.time() - 600
    os.utime(folder / "owner.json", (long_ago, long_ago))
    assert not read_run(folder).is_active


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00", '{"end": 3, "trainers": "x", "monitored": 1}'])
def test_a_damaged_description_leaves_the_rows(folder, text):
    (folder / "run.json").write_text(text)
    run = read_run(folder)
    assert run.metrics[0].last["validation"]["objective"] == 1.5
    assert not run.has_several
    assert run.facts.exit_code is None
    assert any("run.json" in problem for problem in run.problems)


def test_several_trainers_have_their_rows_together(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"trainers": 2, "end": {}}))
    for number in range(2):
        (tmp_path / f"trainer{number}").mkdir()
        row = {"mode": "train", "epoch": 1, "step": 5, "objective": float(number)}
        (tmp_path / f"trainer{number}" / "metrics.jsonl").write_text(json.dumps(row))
    run = read_run(tmp_path)
    assert run.trainers == [0, 1]
    assert run.series("objective", "train", 1) == [(5.0, 1.0)]


def test_weights_are_named_from_the_header_of_the_newest_checkpoint(folder):
    torch = library("safetensors.torch", "safetensors")
    import torch as tensors

    file = folder / "checkpoints" / "step-100" / "weights.safetensors"
    torch.save_file({"w": tensors.zeros(2, 3), "b": tensors.zeros(())}, file)
    assert sorted(read_run(folder).weights) == [("b", (), "F32"), ("w", (2, 3), "F32")]
    file.write_bytes(b"\xff" * 20)
    with pytest.raises(StorageError, match=r"step-100/weights.safetensors cannot be read: its header has"):
        _ = read_run(folder).weights


def test_the_stamp_changes_with_every_row(folder):
    before = stamp(folder)
    assert stamp(folder) == before
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("\n")
    assert stamp(folder) != before


def test_another_directory_is_refused(tmp_path):
    assert not is_run_directory(tmp_path)
    with pytest.raises(ConfigurationError, match=r"has no run\.json and no metrics\.jsonl"):
        read_run(tmp_path)
    with pytest.raises(ConfigurationError, match="is not a directory"):
        read_run(tmp_path / "none")


WHOLE = {"settings": {"batch_size": 10}, "end": {"exit_code": 0}, "restarts": [], "random_seed": 0}


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"settings": []}, "run.json: settings must be an object, got []"),
        ({"end": {"exit_code": [1]}}, "run.json: end: exit_code must be an integer, got [1]"),
        ({"end": {"exit_code": True}}, "run.json: end: exit_code must be an integer, got True"),
        ({"end": {"exit_code": {}}}, "run.json: end: exit_code must be an integer, got {}"),
        ({"end": 3}, "run.json: end must be an object, got 3"),
        ({"end": {"error": [1]}}, "run.json: end: error must be a text or a list of texts, got [1]"),
        ({"end": {"reason": {}}}, "run.json: end: reason must be a text, got {}"),
        ({"end": {"save_seconds": float("nan")}}, "run.json: end: save_seconds must be a number >= 0, got nan"),
        ({"end": {"failed_saves": "x"}}, "run.json: end: failed_saves must be an integer >= 0, got 'x'"),
        ({"monitored": [2]}, "run.json: monitored must be an object, got [2]"),
        ({"monitored": {"metric": 3}}, "run.json: monitored: metric must be a text, got 3"),
        ({"command": 3}, "run.json: command must be a list of texts, got 3"),
        ({"command": ["a", None]}, "run.json: command must be a list of texts"),
        ({"platform": {}}, "run.json: platform must be a text, got {}"),
        ({"random_seed": "x"}, "run.json: random_seed must be an integer >= 0, got 'x'"),
        ({"trainers": "x"}, "run.json: trainers must be an integer >= 1, got 'x'"),
        ({"trainers": 10**8}, "run.json: trainers is 100,000,000, and 0 of their folders are there"),
    ],
)
def test_a_fact_of_another_kind_is_left_out_and_the_page_says_so(folder, facts, said):
    (folder / "run.json").write_text(json.dumps({**WHOLE, **facts}))
    run = read_run(folder)
    assert any(said in problem for problem in run.problems), run.problems
    text = run_page(run, charts=False)
    assert "Left out" in text
    assert html.escape(said)[:60] in text
    assert run.metrics[0].last["train"]["step"] == 20


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b"\x00", b'{"a": 1, "a": 2}', b"[" * 100_000, b'{"end": ' + b"[" * 500 + b"]" * 500 + b"}"],
)
def test_a_description_that_cannot_be_read_is_said(folder, content):
    (folder / "run.json").write_bytes(content)
    (problem,) = [one for one in read_run(folder).problems if "run.json" in one]
    assert str(folder) not in problem


def test_a_whole_run_leaves_nothing_out(folder):
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    assert read_run(folder).problems == ()
    assert "Left out" not in run_page(read_run(folder), charts=False)


def test_half_a_line_is_said_of_a_run_that_has_ended(folder):
    assert [one.partition(",")[0] for one in read_run(folder).problems] == [
        "metrics.jsonl: the last line has no end and is left out: it was cut off by a kill"
    ]


def test_trainers_are_those_that_have_folders(tmp_path):
    """A number in a file, however large, makes no work."""
    (tmp_path / "run.json").write_text(json.dumps({"trainers": 10**8, "end": {}}))
    row = {"mode": "train", "epoch": 1, "step": 5, "objective": 1.0}
    for name in ("trainer0", "trainer7", "trainer99999999999999999999", "trainerx", "trainer07"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps(row))
    run = read_run(tmp_path)
    assert run.trainers == [0, 7]
    assert any("100,000,000, and 2 of their folders" in one for one in run.problems)
    assert "trainer 7" in json.dumps([line.name for line in _lines(run)])


def _lines(run):
    every = [part for section in sections(run) for part in section.parts if isinstance(part, Figure)]
    return [line for figure in every for line in figure.chart.lines]


@pytest.mark.parametrize("name", ["metrics.jsonl", "log.txt", "run.json"])
@pytest.mark.parametrize("kind", ["directory", "pipe"])
def test_what_is_no_file_is_said_and_the_rest_is_shown(folder, name, kind):
    (folder / name).unlink()
    (folder / name).mkdir() if kind == "directory" else os.mkfifo(folder / name)
    run = read_run(folder)
    assert any(name in problem for problem in run.problems)
    run_page(run, charts=False)


@pytest.mark.parametrize(
    "header",
    [
        {"w": {"shape": [10**9] * 9, "dtype": "F32"}},
        {"w": {"shape": [-1], "dtype": "F32"}},
        {"w": {"shape": 3, "dtype": "F32"}},
        {"w": {"shape": [1] * 100, "dtype": "F32"}},
        {"w": []},
        {"w": {}},
        [],
    ],
)
def test_a_damaged_header_of_weights_is_said(folder, header):
    text = json.dumps(header).encode()
    file = folder / "checkpoints" / "step-100" / "weights.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    text = run_page(read_run(folder), charts=False)
    assert "step-100/weights.safetensors cannot be read" in text


def test_a_reader_reads_what_is_new(folder):
    reader = RunReader(folder)
    first = reader.read()
    size = reader.parsed_bytes
    more = json.dumps({"mode": "train", "epoch": 3, "step": 30, "objective": 0.5}) + "\n"
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(f"in\n{more}")
    second = reader.read()
    assert reader.parsed_bytes == size + len(more) + 3
    assert (first.step, second.step) == (20, 30)  # the first one has not changed
    (folder / "run.json").write_text(json.dumps({**WHOLE, "end": {"exit_code": 75}}))
    assert reader.read().status == "stopped on request"


@pytest.mark.slow
def test_a_million_rows_take_little_memory(tmp_path):
    """The growth of a process that reads them, over one that reads ten."""
    row = {"mode": "train", "epoch": 1, "objective": 1.0, "accuracy": 0.5, "samples": 10, "seconds": 0.1}
    program = (
        "import pathlib, resource, sys; from descend.pages.run.read import read_run;"
        "run = read_run(pathlib.Path(sys.argv[1]));"
        "print(run.step, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    peaks = []
    for count in (10, 1_000_000):
        with (tmp_path / "metrics.jsonl").open("w") as file:
            file.writelines(f"{json.dumps({**row, 'step': step})}\n" for step in range(1, count + 1))
        done = subprocess.run(
            [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True, timeout=300
        )
        step, peak = map(int, done.stdout.split())
        assert step == count
        peaks.append(peak)
    assert peaks[1] - peaks[0] < 30_000  # kB, of a file of 120 MB
