"""A file of rows is followed: what was appended is read, and a file that is another one is read again."""

import json
import os

import pytest

from descend.pages.run.metrics_file import MetricsFile


def row(step, value=1.0):
    return json.dumps({"mode": "train", "epoch": 1, "step": step, "objective": value, "seconds": 0.5}) + "\n"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(row(step) for step in range(1, 101)))
    return path


def points(file):
    series = file.metrics.series.get(("train", "objective"))
    return [] if series is None else series.points()


def test_only_what_was_appended_is_parsed(path):
    file = MetricsFile(path)
    assert file.advance()
    assert file.parsed_bytes == path.stat().st_size
    assert file.advance()
    before = file.parsed_bytes
    with path.open("a") as more:
        more.write(row(101, 7.0))
    assert file.advance()
    assert file.parsed_bytes == before + len(row(101, 7.0)) == path.stat().st_size
    assert points(file)[-1] == (101.0, 7.0)
    assert file.metrics.series["train", "objective"].count == 101


def test_a_bounded_step_reads_no_more(path):
    file = MetricsFile(path)
    while not file.advance(1_000):
        assert file.parsed_bytes % 1_000 == 0
    assert file.metrics.series["train", "objective"].count == 100
    assert file.parsed_bytes == path.stat().st_size


@pytest.mark.parametrize("cut", range(1, len(row(101))))
def test_a_line_that_is_being_written_is_waited_for(path, cut):
    file = MetricsFile(path)
    file.advance()
    with path.open("a") as more:
        more.write(row(101)[:cut])
        more.flush()
        file.advance()
        whole = cut >= len(row(101)) - 1  # but for the end of the line it is whole
        assert file.metrics.series["train", "objective"].count == (101 if whole else 100)
        assert file.is_cut_off is not whole
        more.write(row(101)[cut:] + row(102))
        more.flush()
    file.advance()
    assert file.metrics.series["train", "objective"].count == 102
    assert (file.problems, file.is_cut_off, file.metrics.lines) == ([], False, 102)


def test_what_follows_a_whole_row_on_its_line_is_said(path):
    file = MetricsFile(path)
    with path.open("a") as more:
        more.write(row(101)[:-1])
    file.advance()
    with path.open("a") as more:
        more.write("rubbish\n")
    file.advance()
    assert file.metrics.series["train", "objective"].count == 101
    assert "1 of" in file.problems[0]


def truncated_and_longer(path):
    """As a resumed run: cut off at a checkpoint, then other rows, more than before."""
    lines = path.read_text().splitlines(keepends=True)[:50]
    path.write_text("".join([*lines, *(row(step, 2.0) for step in range(51, 151))]))


def cut_in_place(path):
    with path.open("r+") as file:
        file.truncate(50 * len(row(10)))


def replaced(path):
    other = path.with_name("other")
    other.write_text("".join(row(step, 3.0) for step in range(1, 301)))
    other.replace(path)


def rewritten_in_place(path):
    with path.open("r+") as file:
        file.write("".join(row(step, 4.0) for step in range(1, 101)))
    os.utime(path, (1, 1))


@pytest.mark.parametrize("change", [truncated_and_longer, cut_in_place, replaced, rewritten_in_place])
def test_a_file_that_is_another_one_is_read_again(path, change):
    file = MetricsFile(path)
    file.advance()
    change(path)
    file.advance()
    fresh = MetricsFile(path)
    fresh.advance()
    assert points(file) == points(fresh)
    assert file.metrics.lines == fresh.metrics.lines


def test_a_file_that_goes_away_and_comes_back(path):
    file = MetricsFile(path)
    file.advance()
    content = path.read_text()
    path.unlink()
    assert file.advance()
    assert points(file) == []
    assert file.problems == []
    path.write_text(content)
    file.advance()
    assert len(points(file)) == 100


@pytest.mark.parametrize("kind", ["directory", "pipe"])
def test_what_is_no_file_is_said(tmp_path, kind):
    path = tmp_path / "metrics.jsonl"
    path.mkdir() if kind == "directory" else os.mkfifo(path)
    file = MetricsFile(path)
    assert file.advance()
    assert "cannot be read" in file.problems[0]


def test_a_line_without_end_fills_no_memory(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with path.open("wb") as file:
        file.write(row(1).encode())
        file.truncate(20_000_000)  # zeros, no end of a line
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + row(2).encode())
    found = MetricsFile(path)
    found.advance()
    assert points(found) == [(1.0, 1.0), (2.0, 1.0)]
    assert "line 2: it has more than 4,000,000 bytes" in found.problems[0]


def test_a_glance_reads_the_ends_of_a_long_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(row(step, step) for step in range(1, 20_001)))
    file = MetricsFile(path)
    metrics, whole = file.glance()
    assert not whole
    assert metrics.step == 20_000
    assert metrics.series["train", "objective"].last == 20_000
    assert metrics.lines < 200
    assert file.parsed_bytes == 0
    file.advance()
    assert file.glance() == (file.metrics, True)
    with path.open("a") as more:
        more.write(row(20_001))
    assert not file.glance()[1]


def test_a_glance_of_rows_that_are_longer_than_its_ends(tmp_path):
    path = tmp_path / "metrics.jsonl"
    many = {f"metric{number}": 1.0 for number in range(400)}
    rows = [{"mode": "train", "epoch": 1, "step": step, "objective": 1.0, **many} for step in range(100)]
    path.write_text("".join(f"{json.dumps(one)}\n" for one in rows))
    assert MetricsFile(path).glance()[0].step == 99
