"""Several workloads in one file: what is read, run and scored."""

import dataclasses
import math

import pytest
from study_tasks import fabricated
from typer.testing import CliRunner

from descend.errors import ConfigurationError, Refused
from descend.study.commands import app
from descend.study.results import compare_records
from descend.study.suite import is_suite, read_suite, score_suite, studies_in

TEXT = """
name = "small"
workload = "study_tasks:mlp"
trials = 1
searches = 2
shortlist = 1
confirmation_seeds = 2
evaluations = 4

[workloads.narrow]
workload_options = { width = 4 }
batch_sizes = [64]
steps = [8]
target = { value = 0.2 }

[workloads.wide]
batch_sizes = [32]
steps = [12]
target = { value = 0.3 }

[arms.quick]
optimizer = "SGD"
fixed = { lr = 0.5 }

[arms.slow]
optimizer = "SGD"
fixed = { lr = 0.01 }
"""


def written(tmp_path, text=TEXT):
    file = tmp_path / "suite.toml"
    file.write_text(text)
    return file


def test_each_workload_is_a_study_with_what_all_share(tmp_path):
    file = written(tmp_path)
    assert is_suite(file)
    found = read_suite(file)
    assert [*found] == ["narrow", "wide"]
    assert (found["narrow"].batch_sizes, found["wide"].steps, found["wide"].trials) == ((64,), (12,), 1)
    assert found["narrow"].name == "small: narrow"
    assert found["narrow"].arms == found["wide"].arms


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("target = { value = 0.3 }", "", "workloads.wide: a target is missing"),
        ("steps = [12]", "steps = [12]\narms = {}", "workloads.wide: arms are the same on all workloads"),
        ("workloads.wide", 'workloads."../up"', "must be of letters, digits, - and _"),
        ("steps = [12]", "stepps = [12]", "workloads.wide: there is no 'stepps'"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path, old, new, said):
    with pytest.raises(ConfigurationError, match=said):
        read_suite(written(tmp_path, TEXT.replace(old, new)))


def made(tmp_path, reached):
    """Studies whose re-runs meet their target after a part of their run: `reached[workload][arm]`, None for never.

    Fabricated scores rise on a straight line from 0 to the last one, so that the target is met at target / last.
    """
    return {
        name: compare_records(
            study, fabricated(study, lambda one, own=reached[name], t=study.target.value: t / own[one.arm])
        )
        for name, study in read_suite(written(tmp_path)).items()
    }


def test_steps_to_the_target_are_those_of_the_records(tmp_path):
    studies = made(tmp_path, {"narrow": {"quick": 0.5, "slow": 1.0}, "wide": {"quick": 1.0, "slow": 0.25}})
    found = score_suite(studies)
    assert found.profiles["quick"].times == {"narrow": 4, "wide": 12}
    assert found.profiles["slow"].times == {"narrow": 8, "wide": 3}
    assert found.profiles["quick"].score == pytest.approx((1 + 0) / 2)
    assert found.profiles["slow"].score == pytest.approx((2 / 3 + 1) / 2)
    assert found.by_search["slow"] == (found.profiles["slow"].score,) * 2
    assert "| slow | 0.833 | 0.833 to 0.833 |" in found.text


def test_seconds_are_refused_where_they_were_not_recorded_or_are_of_several_machines(tmp_path):
    studies = made(tmp_path, {"narrow": {"quick": 0.5, "slow": 1.0}, "wide": {"quick": 1.0, "slow": 0.25}})
    with pytest.raises(Refused, match="were not recorded"):
        score_suite(studies, "seconds")

    def timed(comparison, machine, rate):
        records = {
            name: dataclasses.replace(one, train_seconds=tuple(rate * step for step in one.steps), machine=machine)
            for name, one in comparison.records.items()
        }
        return dataclasses.replace(comparison, records=records)

    with pytest.raises(Refused, match="2 machines"):
        score_suite({"narrow": timed(studies["narrow"], "a", 1), "wide": timed(studies["wide"], "b", 1)}, "seconds")
    found = score_suite({name: timed(one, "a", 0.5) for name, one in studies.items()}, "seconds")
    assert found.profiles["slow"].times == {"narrow": 4.0, "wide": 1.5}


def test_a_target_missed_is_infinite_and_an_unfinished_study_is_no_evidence(tmp_path):
    studies = made(tmp_path, {"narrow": {"quick": 0.5, "slow": 2.0}, "wide": {"quick": 2.0, "slow": 2.0}})
    found = score_suite(studies)
    assert found.profiles["slow"].times == {"narrow": math.inf, "wide": math.inf}
    assert found.unmet == ("wide",)
    left = dataclasses.replace(studies["wide"], unfinished=3)
    with pytest.raises(Refused, match="wide is unfinished: 3 trials"):
        score_suite({**studies, "wide": left})


def test_a_suite_is_run_and_scored_by_its_commands(tmp_path):
    file, directory = written(tmp_path), tmp_path / "runs"
    ended = CliRunner().invoke(app, ["run", str(file), str(directory), "--executor", "one"])
    assert ended.exit_code == 0, ended.output
    assert {*studies_in([directory])} == {"narrow", "wide"}
    ended = CliRunner().invoke(app, ["score", str(directory), "--axis", "seconds"])
    assert ended.exit_code == 0, ended.output
    assert (directory / "score-seconds.csv").read_text().startswith("arm,score,")
    with pytest.raises(ConfigurationError, match="holds no study"):
        studies_in([tmp_path / "nothing"])
