import os
import signal

import pytest

from descend.runtime import SignalHandler


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM"), (signal.SIGUSR1, "SIGUSR1")]
)
def test_a_signal_is_noted_and_the_handlers_come_back(number, name):
    before = signal.getsignal(number)
    with SignalHandler() as requests:
        assert requests.requested() is None
        os.kill(os.getpid(), number)
        assert requests.requested() == name
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_interrupts_at_once():
    with SignalHandler() as requests:
        os.kill(os.getpid(), signal.SIGINT)
        assert requests.requested() == "Ctrl-C"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("within", [False, True])
def test_a_request_is_one_to_contexts_within_and_around(within):
    with SignalHandler() as outer:
        if not within:
            os.kill(os.getpid(), signal.SIGTERM)
        with SignalHandler() as middle, SignalHandler() as inner:
            if within:
                os.kill(os.getpid(), signal.SIGTERM)
            assert inner.requested() == "SIGTERM"
            assert middle.requested() == (None if within else "SIGTERM")
        assert middle.requested() == "SIGTERM"
        assert outer.requested() == "SIGTERM"
    with SignalHandler() as later:
        assert later.requested() is None
