"""How a process ends."""

import pytest

import descend
from descend.errors import NumericalError


def fails():
    raise NumericalError("the gradient of 'w' holds a NaN")


@pytest.mark.parametrize("wanted", [None, "1"])
def test_a_traceback_that_is_wanted_comes_with_the_code_of_the_run(monkeypatch, capsys, wanted):
    if wanted:
        monkeypatch.setenv("DESCEND_TRACEBACK", wanted)
    with pytest.raises(SystemExit) as ended:
        descend.main(fails)
    assert ended.value.code == 4
    said = capsys.readouterr().err
    assert ("in fails" in said) is bool(wanted)
    assert said.rstrip().endswith("the gradient of 'w' holds a NaN")
