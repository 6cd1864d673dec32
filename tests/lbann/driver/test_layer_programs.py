"""Every kind of layer with a closed form, through LBANN's driver: it ends well where the expectation is true."""

import subprocess
import sys

import pytest

from tests.lbann.driver import layer_programs
from tests.lbann.driver.layer_programs import FILE, of_operator, of_row
from tests.lbann.driver.programs import run
from tests.lower.test_every_kind import TABLE
from tests.lower.test_operators import ALL, NAMES, drawn

# Without those that nothing may stand behind, and one that hashes the bytes of a number, which are others in float32.
FIRST = {row.kind: row for row in reversed(TABLE) if row.kind not in ("Dummy", "Evaluation", "UniformHash")}


@pytest.mark.parametrize("kind", FIRST)
def test_a_true_expectation_ends_well_and_a_spoilt_one_does_not(kind, capsys, monkeypatch, tmp_path):
    program = of_row(FIRST[kind])
    layer_programs.write(program, tmp_path)
    ended = run(capsys, monkeypatch, tmp_path, f"--prototext={FILE}")
    assert ended.code == 0, ended.err
    assert "checking gradients on a train mini-batch" in ended.out
    assert "checking gradients on a test mini-batch" in ended.out
    layer_programs.write(program, tmp_path, shift=20.0)
    ended = run(capsys, monkeypatch, tmp_path, f"--prototext={FILE}")
    assert ended.code == 4
    assert "CheckMetric: " in ended.err


@pytest.mark.parametrize(("op", "expression", "bounds", "_"), ALL, ids=NAMES)
def test_every_operator_is_its_expression(op, expression, bounds, _, capsys, monkeypatch, tmp_path):
    layer_programs.write(of_operator(op, expression, drawn(op, bounds)), tmp_path)
    ended = run(capsys, monkeypatch, tmp_path, f"--prototext={FILE}")
    assert ended.code == 0, ended.err


@pytest.mark.slow
@pytest.mark.parametrize(("shift", "code"), [(0.0, 0), (20.0, 4)])
def test_the_same_as_a_program_of_its_own(shift, code, tmp_path):
    layer_programs.write(of_row(FIRST["FullyConnected"]), tmp_path, shift)
    command = [sys.executable, "-m", "descend.lbann.driver", f"--prototext={FILE}"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stderr
