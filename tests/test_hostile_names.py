"""Escape sequences, control characters, newlines and marks of direction in names reach no output as they are.

Tables of layers, pictures of graphs and of lineages, errors, printed lines and pages of data have tests of their own,
beside those of what makes them; here are the others.
"""

import functools
import subprocess
import unicodedata

import pytest
import torch
from study_tasks import fabricated

import descend
from descend.errors import ConfigurationError
from descend.launch import Job, flux, local, lsf, mpi, slurm
from descend.study.design import Arm, Study, log
from descend.study.results import compare_records

HOSTILE = "a\x1b]0;x\x07\u202eb\u2028c\x9bd"
DATA = torch.randn(20, 4), torch.arange(20) % 3


def obeyed(text):
    """Characters of a text that a terminal or a page obeys, but for newlines and tabs."""
    return {repr(one) for one in text if unicodedata.category(one) in ("Cc", "Cf", "Zl", "Zp") and one not in "\n\t"}


def fit(folder, **more):
    sgd = functools.partial(torch.optim.SGD, lr=0.1)
    return descend.fit(
        torch.nn.Linear(4, 3), "cross_entropy", DATA, optimizer=sgd, batch_size=10, stop=descend.Epochs(1),
        run_dir=folder / "run", **more,
    )  # fmt: skip


@pytest.mark.parametrize("name", [HOSTILE, "a\nb", "", 3])
def test_metrics_with_such_names_are_refused(tmp_path, name):
    with pytest.raises(ConfigurationError, match="the name of a metric must be a text that can be printed") as error:
        fit(tmp_path, metrics={name: lambda output, target: output.sum() * 0})
    assert not obeyed(str(error.value))


def test_names_that_a_callback_records_are_escaped_in_tables_and_results(tmp_path, capsys):
    class Records(descend.Callback):
        def after_epoch(self, epoch):
            epoch.run.control.record({HOSTILE: 1.0}, epoch.step)

    result = fit(tmp_path, callbacks=[Records(), descend.CSVLogger()])
    printed = capsys.readouterr().out
    table = (tmp_path / "run" / "metrics.csv").read_text()
    assert "\\x1b]0;x" in table
    for text in (str(result), printed, table, (tmp_path / "run" / "log.txt").read_text()):
        assert not obeyed(text)


def test_reports_of_studies_escape_names(tmp_path):
    arms = {HOSTILE: Arm("SGD", {"lr": log(0.1, 1)}), "=1+1": Arm("Adam", {"lr": log(0.1, 1)})}
    study = Study(name=HOSTILE, workload="t.py:t", batch_sizes=(8,), steps=(10,), arms=arms, trials=3, shortlist=1,
                  searches=2, confirmation_seeds=6)  # fmt: skip
    comparison = compare_records(study, fabricated(study, lambda trial: 0.5 + trial.index / 10))
    page = comparison.report(tmp_path)
    for path in (page, *(page.with_suffix(ending) for ending in (".md", ".csv", ".tables.csv"))):
        text = path.read_text()
        assert "\\x1b]0;x" in text
        assert not obeyed(text), path
    assert ",=1+1" not in page.with_suffix(".csv").read_text()
    assert not obeyed(str(comparison.table) + str(comparison.verdict))


@pytest.mark.parametrize("scheduler", [flux, local, lsf, mpi, slurm], ids=lambda module: module.__name__)
@pytest.mark.parametrize("field", ["job_name", "work_dir", "command"])
def test_job_scripts_quote_or_refuse_names(tmp_path, scheduler, field):
    given = {"command": ["python", "x.py"], "work_dir": tmp_path, field: HOSTILE}
    if field == "command":
        given["command"] = ["python", HOSTILE]
    if field == "work_dir":
        given["work_dir"] = tmp_path / HOSTILE
    try:
        text = scheduler.script(Job(**given))
    except ConfigurationError as error:
        text = str(error)
    assert not obeyed(text)


def test_words_of_a_job_script_come_back_as_they_were(tmp_path):
    """Characters by which bash ends or begins something are among them."""
    word = f"{HOSTILE}'\"\\$(x)`y`é\n"
    script = local.script(Job(["python", word], tmp_path))
    line = next(line for line in script.splitlines() if "x1b" in line)
    word_there = line[line.index("$'") :]
    done = subprocess.run(["bash", "-c", f"printf %s {word_there}"], capture_output=True, check=True)
    assert done.stdout.decode() == word
