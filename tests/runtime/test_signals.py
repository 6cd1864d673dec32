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
