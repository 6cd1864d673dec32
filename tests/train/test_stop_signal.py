"""What asks for the end of a run: signals, checks before them, callbacks; and what makes a signal wait."""

from descend.train.stop_signal import DIRECTORY_LOST, StopSignal


def test_a_signal_is_known_unless_it_is_deferred():
    stop = StopSignal(lambda: "SIGTERM")
    assert stop.requested() == "SIGTERM"
    with stop.deferred(), stop.deferred():
        assert stop.requested() is None
    assert stop.requested() == "SIGTERM"


def test_waiting_is_passed_on_unless_it_is_deferred():
    heard = []
    stop = StopSignal(set_waiting=heard.append)
    stop.waiting(True)
    with stop.deferred():
        stop.waiting(True)
    stop.waiting(False)
    assert heard == [True, False]


def test_the_loss_of_the_directory_comes_before_a_signal_and_has_a_name_of_its_own():
    stop, why = StopSignal(), []
    stop.listen(lambda: "SIGINT", lambda waiting: None)
    stop.watch(lambda: why[0] if why else None)
    assert stop.requested() == "SIGINT"
    why.append("/a is gone")
    assert stop.requested() == DIRECTORY_LOST
    with stop.deferred():
        assert stop.requested() is None


def test_the_first_reason_of_a_callback_counts_and_is_saved():
    stop, again = StopSignal(), StopSignal()
    stop.stop("enough")
    stop.stop("more than enough")
    again.load_state_dict(stop.state_dict())
    assert again.reason == "enough"
