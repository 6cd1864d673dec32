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

ALL = {**{f"callback {name}": program for name, program in PROGRAMS.items()}, **OTHERS}


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """How the true and the spoilt form of each program ended, and their folders."""
    root, jobs = tmp_path_factory.mktemp("programs"), []
    for number, program in enumerate(ALL.values()):
        for form, text in (("true", program.text), ("spoilt", program.spoilt)):
            folder = root / f"{number}-{form}"
            folder.mkdir()
            (folder / FILE).write_text(text)
            for name, content in program.files.items():
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_bytes(content)
            jobs.append((folder, [f"--prototext={FILE}"]))
    found = list(zip(run_all(jobs), (folder for folder, _ in jobs), strict=True))
    return dict(zip(ALL, zip(found[::2], found[1::2], strict=True), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_the_true_form_holds_and_the_spoilt_one_does_not(name, ended):
    program = ALL[name]
    (true, true_folder), (spoilt, spoilt_folder) = ended[name]
    assert true.code == 0, true.err
    if program.holds is None:
        assert spoilt.code == 4, spoilt.err
        assert "CheckMetric: " in spoilt.err
    else:
        assert program.holds(true, true_folder), true.out
        assert not program.holds(spoilt, spoilt_folder)


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
