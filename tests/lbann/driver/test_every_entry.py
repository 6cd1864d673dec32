"""A program for every entry of LBANN's format, run by the real driver in a process of its own, true and spoilt.

Layers and operators with a closed form are in `test_layer_programs.py`, optimizers in `test_update_rules.py`,
initializers and metrics in `test_initializers_and_metrics.py`. `python -m tests.lbann.driver.coverage` counts them all.
"""

import pytest

from tests.lbann.driver import coverage
from tests.lbann.driver.callback_programs import FILE, PROGRAMS
from tests.lbann.driver.forked import run_all
from tests.lbann.driver.other_programs import OTHERS
from tests.lbann.driver.programs import experiment, run, write

PARTS = {"callbacks": {f"callback {name}": program for name, program in PROGRAMS.items()}, "others": OTHERS}


def ended(programs, root):
    """How the true and the spoilt form of each program ended, and their folders, by its name."""
    jobs = []
    for number, program in enumerate(programs.values()):
        for form, text in (("true", program.text), ("spoilt", program.spoilt)):
            folder = root / f"{number}-{form}"
            folder.mkdir()
            (folder / FILE).write_text(text)
            for name, content in program.files.items():
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_bytes(content)
            jobs.append((folder, [f"--prototext={FILE}"]))
    found = list(zip(run_all(jobs), (folder for folder, _ in jobs), strict=True))
    return dict(zip(programs, zip(found[::2], found[1::2], strict=True), strict=True))


def check(program, true, true_folder, spoilt, spoilt_folder):
    assert true.code == 0, true.err
    if program.holds is None:
        assert spoilt.code == 4, spoilt.err
        assert "CheckMetric: " in spoilt.err
    else:
        assert program.holds(true, true_folder), true.out
        assert not program.holds(spoilt, spoilt_folder)


@pytest.mark.slow(seconds=20)
@pytest.mark.parametrize("part", PARTS)
def test_the_true_form_of_each_holds_and_the_spoilt_one_does_not(part, tmp_path):
    """One test for many programs, which one process is prepared for."""
    wrong = {}
    for name, (true, spoilt) in ended(PARTS[part], tmp_path).items():
        try:
            check(PARTS[part][name], *true, *spoilt)
        except Exception as error:  # whatever a program lets a condition stumble over
            wrong[name] = error
    assert not wrong


def test_every_entry_has_a_program_or_a_reason():
    found = coverage.entries()
    assert [entry for entry, how in found.items() if how == coverage.NOT_COVERED] == []
    reasons = {entry for entry, how in found.items() if how not in (coverage.COVERED, coverage.NOT_COVERED)}
    assert reasons == coverage.REASONS.keys()
    assert sum(how == coverage.COVERED for how in found.values()) >= 282


@pytest.mark.parametrize("entry", coverage.REFUSED)
def test_what_is_refused_says_why(entry, capsys, monkeypatch, tmp_path):
    more, words = coverage.REFUSED[entry]
    ended = run(capsys, monkeypatch, tmp_path, f"--prototext={write(tmp_path, experiment(more))}")
    assert ended.code == 2
    assert words in ended.err
