"""The studies that ship: their files are what ran, their designs lint as promised, their records give their reports."""

import hashlib
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
    shipped = sorted((STUDIES / name).glob("report.*"))
    assert {file.name for file in shipped} >= {"report.md", "report.csv", "report.tables.csv"}
    for file in shipped:
        assert page.with_name(file.name).read_bytes() == file.read_bytes(), file.name
