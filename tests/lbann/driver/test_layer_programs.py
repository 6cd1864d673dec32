"""Every kind of layer with a closed form, through LBANN's driver: it ends well where the expectation is true."""

import re
from collections import defaultdict

import pytest

from tests.lbann.driver import layer_programs
from tests.lbann.driver.forked import run_all
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


def together():
    """Programs that can be one model: those of equally many samples, in training or in evaluation."""
    every = {f"op_{name}": of_operator(op, e, drawn(op, b)) for (op, e, b, _), name in zip(ALL, NAMES, strict=True)}
    every |= {kind: of_row(row) for kind, row in FIRST.items() if row.xs}
    groups = defaultdict(dict)
    for name, program in every.items():
        groups[len(program.xs[0]), program.training][name] = program
    return list(groups.values())


@pytest.mark.slow
def test_programs_of_their_own_tell_every_spoilt_operator_and_layer(tmp_path):
    """Many in one model: a true expectation each, and a spoilt one each, which the code tells, or warnings by name."""
    forms = {"true": (0.0, True), "spoilt": (20.0, True), "warned": (20.0, False)}
    jobs = []
    for number, programs in enumerate(groups := together()):
        for form, (shift, error) in forms.items():
            folder = tmp_path / f"{number}-{form}"
            folder.mkdir()
            layer_programs.write_together(programs, folder, shift, error)
            jobs.append((folder, [f"--prototext={FILE}"]))
    ended = iter(run_all(jobs))
    for programs, true, spoilt, warned in zip(groups, ended, ended, ended, strict=True):
        assert (true.code, spoilt.code, warned.code) == (0, 4, 0), true.err
        assert set(re.findall(r"CheckMetric: (?:train|test) (\w+) is", warned.err)) == programs.keys()
