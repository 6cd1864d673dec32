"""`descend launch --dry-run` finds what cannot be before anything is started."""

from pathlib import Path

import pytest

LENET = str(Path(__file__).parents[2] / "examples" / "lenet_digits.prototext")


@pytest.fixture
def launch(monkeypatch, command):
    """A function that gives what `descend launch --dry-run WORDS` prints; its exit code must be `code`."""

    def call(*words, code=0, **environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return command("launch", "--dry-run", *words, code=code)

    return call


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["--ranks", "3", LENET, "--procs-per-trainer", "2"], "procs_per_trainer=2 does not divide 3 ranks; 1, 3 do"),
        (["--ranks", "4", LENET, "--procs-per-trainer=2", "--trainers=3"], "3 trainers cannot be divided evenly"),
        (["--ranks", "3", "--procs-per-trainer", "2", LENET], "options of the run come after FILE"),
        (["--ranks", "2", "--restarts", "1", LENET], "add --run-dir"),
        (["--ranks", "2", "missing.prototext"], "there is no file"),
    ],
)
def test_what_cannot_be_is_refused(words, reported, launch):
    assert reported in launch(*words, code=2)


def test_a_timeout_that_is_none_is_refused(launch):
    assert "DESCEND_TIMEOUT_SECONDS must be a number of seconds > 0, got 'soon'" in launch(
        "--ranks", "2", LENET, code=2, DESCEND_TIMEOUT_SECONDS="soon"
    )


def test_variables_count_as_options_do(launch):
    assert "procs_per_trainer=3 does not divide 4" in launch("--ranks", "4", LENET, code=2, LBANN_PROCS_PER_TRAINER="3")


def test_options_with_an_equals_sign_are_understood(launch, tmp_path):
    text = launch("--ranks", "2", "--restarts", "1", LENET, f"--run-dir={tmp_path}/run")
    assert text.rstrip().endswith("--resume")
    (tmp_path / "file").write_text("")
    assert "cannot be written" in launch("--ranks", "2", LENET, f"--run-dir={tmp_path}/file/run", code=2)
