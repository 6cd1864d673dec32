"""Exit codes and what is printed at the end of a process."""

import pytest

import descend
from descend.errors import LostPeer, NumericalError, without_native_frames

NATIVE = """Connection closed by peer [127.0.0.1]:29500
Exception raised from readBytes at ../torch/csrc/distributed/c10d/Utils.hpp:694 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x88 (0x7f in /lib/libc10.so)
frame #1: <unknown function> + 0x5ffc5b1 (0x7f in /lib/libtorch_cpu.so)
frame #2: clone + 0x44 (0x7f in /lib/libc.so.6)
"""


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


def loses_a_peer():
    raise LostPeer(f"rank 1 died: {NATIVE}")


def crashes():
    raise RuntimeError(NATIVE)


@pytest.mark.parametrize(("function", "code"), [(loses_a_peer, 6), (crashes, 1)])
def test_frames_of_torchs_native_code_are_not_printed(capsys, function, code):
    with pytest.raises(SystemExit) as ended:
        descend.main(function)
    assert ended.value.code == code
    printed = capsys.readouterr().err
    assert "Connection closed by peer" in printed
    assert "frame #" not in printed
    assert "Exception raised from" not in printed
    assert ("in crashes" in printed) is (code == 1)


def test_other_lines_of_a_message_stay():
    assert without_native_frames("a\n  frame #2: x\nb #3 c") == "a\nb #3 c"
