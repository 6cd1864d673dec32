import subprocess
import sys

import pytest

from descend.errors import ConfigurationError
from descend.lbann.driver.command_line import parse
from descend.lbann.driver.main import files_of
from descend.lbann.driver.options import IMPORT_VARIABLE
from tests.lbann.driver.programs import MODEL, OPTIMIZER, READER, TRAINER, experiment, run, write


def test_without_arguments_it_prints_its_options_and_ends_well(capsys, monkeypatch, tmp_path):
    ended = run(capsys, monkeypatch, tmp_path)
    assert ended.code == 0
    assert "--prototext=TEXT" in ended.out


def test_lbanns_words_for_what_is_missing_are_on_stderr(capsys, monkeypatch, tmp_path):
    ended = run(capsys, monkeypatch, tmp_path, "--num_epochs=1")
    assert ended.code
    assert "Failed to load any prototext files" in ended.err
    ended = run(capsys, monkeypatch, tmp_path, "--model=m.prototext")
    assert ended.code
    for part in ("optimizer", "reader"):
        assert (
            f"you specified 1 model filenames, and 0 {part} filenames; you must specify 1 {part} filenames" in ended.err
        )
    ended = run(capsys, monkeypatch, tmp_path, "--no_such_flag")
    assert ended.code
    assert "Arguments could not be parsed." in ended.err


def test_three_files_are_the_same_as_one(capsys, monkeypatch, tmp_path):
    write(tmp_path, experiment())
    whole = run(capsys, monkeypatch, tmp_path, "--prototext=experiment.prototext")
    write(tmp_path, TRAINER + MODEL.replace("MORE", ""), "m.prototext")
    write(tmp_path, OPTIMIZER, "o.prototext")
    write(tmp_path, READER, "r.prototext")
    parts = run(
        capsys, monkeypatch, tmp_path, "--model=m.prototext", "--optimizer", "o.prototext", "--reader=r.prototext"
    )
    assert whole.code == parts.code == 0
    assert "m (instance 0) test objective function : " in whole.out
    assert parts.out == whole.out


def test_each_trainer_has_a_file_with_its_number(monkeypatch):
    line = parse(["--prototext=d/e.trainer.prototext", "--generate_multi_proto"], {})
    assert files_of(line) == ["d/e.trainer0.prototext"]
    line = parse(["--prototext=a", "--prototext=b", "--generate_multi_proto"], {})
    assert files_of(line) == ["a"]
    for name, value in {"RANK": "4", "WORLD_SIZE": "6", "LOCAL_RANK": "4", "LOCAL_WORLD_SIZE": "6"}.items():
        monkeypatch.setenv(name, value)
    line = parse(["--prototext=a", "--prototext=b", "--generate_multi_proto", "--procs_per_trainer=2"], {})
    with pytest.raises(ConfigurationError, match="trainer 2 has no file among a, b"):
        files_of(line)


def test_a_variable_lets_readers_import_lbann(capsys, monkeypatch, tmp_path):
    (tmp_path / "hook.py").write_text("import builtins\nbuiltins.switched_on = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv(IMPORT_VARIABLE, raising=False)  # which another test may have set
    monkeypatch.setattr("descend.lbann.driver.main._AS_LBANN", "hook")
    write(tmp_path, experiment())
    file = "--prototext=experiment.prototext"
    run(capsys, monkeypatch, tmp_path, file, "--exit_after_setup")
    assert "hook" not in sys.modules
    run(capsys, monkeypatch, tmp_path, file, "--exit_after_setup", environment={IMPORT_VARIABLE: "1"})
    assert "hook" in sys.modules


def test_the_help_imports_neither_torch_nor_numpy():
    code = """
import sys
from descend.lbann.driver.main import drive
drive(["--help"], {})
sys.exit(any(name in sys.modules for name in ("torch", "numpy", "google.protobuf", "typer")))
"""
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0


# Each takes a tenth of a second or more to import, some of them a second.
SLOW_TO_IMPORT = {
    "sympy",
    "scipy",
    "pandas",
    "pyarrow",
    "sklearn",
    "matplotlib",
    "onnx",
    "torch._dynamo",
    "torch._inductor",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "more", "code"),
    [
        ("sgd { learn_rate: 0.1 momentum: 0.9 }", "", 0),
        ("adam { learn_rate: 0.1 beta1: 0.9 }", "", 0),
        ("sgd { learn_rate: 0.1 }", 'callback { check_metric { metric: "size" error_on_failure: true } }', 4),
    ],
)
def test_a_program_ends_with_the_drivers_code_and_imports_little_beside_torch(rule, more, code, tmp_path):
    """Torch imports SymPy in a second, for shapes that it does not know, of which a run has none."""
    write(tmp_path, experiment(more).replace("sgd { learn_rate: 0.1 }", rule))
    command = [sys.executable, "-X", "importtime", "-m", "descend.lbann.driver", "--prototext=experiment.prototext"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stderr
    imported = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines() if line.startswith("import time")}
    assert "torch" in imported
    assert not imported & SLOW_TO_IMPORT
