"""The studies that ship: their files are what ran, their designs lint as promised, their records give their reports."""

import hashlib
import importlib
import json
from pathlib import Path

import pytest

from descend.study import lint, read_directory, read_study

STUDIES = Path(__file__).parents[2] / "examples" / "studies"
NAMES = [
    "nesterov_lars/round1",
    "nesterov_lars/round2",
    "nesterov_lars/confirmatory",
    "table4/matrix",
    "table4/fragility",
    "batch_size/scaling",
    "bias_correction/transformer",
    "table3/pretraining",
    "table3/mixed",
]


@pytest.mark.parametrize("name", NAMES)
def test_what_ran_is_what_the_file_says(name):
    kept = json.loads((STUDIES / name / "study.json").read_text())
    assert read_study(STUDIES / f"{name}.toml").plain() == kept["study"]
    workload = (STUDIES / name).parent / kept["study"]["workload"].rpartition(":")[0]
    assert hashlib.sha256(workload.read_bytes()).hexdigest()[:16] == kept["hashes"]["code"]


def test_the_first_round_is_unequal_in_freedom_and_the_confirmatory_design_is_matched():
    (first,) = lint(read_study(STUDIES / "nesterov_lars/round1.toml"))
    assert (first.kind, first.arm) == ("freedom", "nesterov")
    assert "roles.vectors.lr_mult" in first.text
    assert lint(read_study(STUDIES / "nesterov_lars/round2.toml")) == []
    assert lint(read_study(STUDIES / "nesterov_lars/confirmatory.toml")) == []
    (variant,) = lint(read_study(STUDIES / "table4/matrix.toml"))
    assert variant.kind == "variant"
    assert lint(read_study(STUDIES / "batch_size/scaling.toml")) == []
    (switch,) = lint(read_study(STUDIES / "bias_correction/transformer.toml"))
    assert "bias_correction" in switch.text


def test_nesterov_matches_lars_and_the_first_round_does_not_say_so():
    first = read_directory(STUDIES / "nesterov_lars/round1")
    assert {(remark.kind, remark.arm) for remark in first.remarks} == {
        ("freedom", "nesterov"),
        ("edge", "nesterov"),
        ("edge", "lars"),
    }
    assert "nothing is called matched" in first.verdict
    last = read_directory(STUDIES / "nesterov_lars/confirmatory")
    assert last.remarks == []
    assert "matched: nesterov, lars all meet the target" in last.verdict
    assert last.verdict.startswith("cannot rank")
    assert not last.unfinished


def test_fits_are_refused_where_the_target_was_missed():
    found = {one.arm: one for one in read_directory(STUDIES / "batch_size/scaling").scaling}
    assert {name for name, one in found.items() if one.fit is None} == {"sgd", "lars", "lamb"}
    for name in ("sgd", "lars", "lamb"):
        assert "the target was not reached at batch size 32" in found[name].refused[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_records_give_the_report_that_ships(name, tmp_path):
    page = read_directory(STUDIES / name).report(tmp_path)
    shipped = sorted(path for path in (STUDIES / name).glob("report.*") if path.is_file())
    assert {file.name for file in shipped} >= {"report.md", "report.csv", "report.tables.csv"}
    for file in shipped:
        assert page.with_name(file.name).read_bytes() == file.read_bytes(), file.name


def test_the_papers_tables_and_figures_are_printed_from_the_records(monkeypatch):
    monkeypatch.syspath_prepend(STUDIES)
    forms = importlib.import_module("paper").FORMS
    assert forms["table3"]()[2] == "| 64 | 100 | 72.20 % | 71.15 % |"
    table = forms["table4"]()
    assert table[7] == "| lamb | 86.98 % | paper 27.3 % |"
    assert len(table) == 2 + 8
    schedule = [line.split(",") for line in forms["figure1"]()[1:]]
    winner = read_directory(STUDIES / "nesterov_lars/confirmatory").groups[0].of("nesterov")[0].winner
    assert max(float(row[1]) for row in schedule) == pytest.approx(winner["lr"], rel=1e-5)  # at its true height
    assert len(schedule) == 100
    fractions = [float(line.split(",")[2]) for line in forms["figure2"]()[1:]]
    assert fractions == sorted(fractions, reverse=True)
    assert [line for line in forms["table1"]() if line.endswith("| yes |")] == ["| lr | 0.1271 | 23.87 | yes |"]
    assert sum("nesterov | lars" in line or "lars | nesterov" in line for line in forms["table2"]()) == 2
