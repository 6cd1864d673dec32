"""The queue of a parameter server: which mini-batches of an epoch are still to hand out, also after a restart."""

from types import SimpleNamespace

import pytest

from descend.errors import ConfigurationError
from descend.train.strategies.parameter_server import BatchQueue
from descend.train.strategies.worker_pool import PendingGradient

FEED = SimpleNamespace(batch_size=4)


def handed_out(queue, steps):
    found = []
    while (number := queue.pop(steps)) is not None:
        found.append(number)
    return found


def pending(number, epoch=1):
    return PendingGradient(1, epoch, number, 0, {}, 0.0)


def test_mini_batches_are_handed_out_in_order_once():
    queue = BatchQueue()
    queue.begin(FEED, 1, 0, 0)
    assert handed_out(queue, 3) == [0, 1, 2]
    assert queue.pop(3) is None


def test_what_was_pending_is_handed_out_again_after_a_restart():
    queue = BatchQueue()
    queue.begin(FEED, 1, 0, 0)
    taken = [queue.pop(6) for _ in range(4)]
    assert taken == [0, 1, 2, 3]
    state = queue.state([pending(3), pending(1), pending(2, epoch=0)])  # two of them have been applied
    assert state == {"epoch": 1, "next": 4, "again": [1, 3]}
    again = BatchQueue()
    again.load(state)
    again.begin(FEED, 1, 2, 8)
    assert handed_out(again, 6) == [1, 3, 4, 5]
    assert again.state([]) == {"epoch": 1, "next": 6, "again": []}


def test_the_state_of_another_epoch_is_left_alone():
    queue = BatchQueue()
    queue.load({"epoch": 0, "next": 4, "again": [1]})
    queue.begin(FEED, 1, 0, 0)
    assert handed_out(queue, 2) == [0, 1]


@pytest.mark.parametrize(("position", "taken"), [(2, 7), (2, 5), (2, 8)])
def test_a_partial_last_mini_batch_may_have_been_taken(position, taken):
    queue = BatchQueue()
    queue.begin(FEED, 1, position, taken)
    assert queue.pop(9) == position


@pytest.mark.parametrize("taken", [4, 9, 3])
def test_an_epoch_of_mini_batches_of_another_size_is_refused(taken):
    with pytest.raises(ConfigurationError, match="epoch 1 was begun with mini-batches of another size"):
        BatchQueue().begin(FEED, 1, 2, taken)
    queue = BatchQueue()
    queue.load({"epoch": 1, "next": 4, "again": [1]})
    with pytest.raises(ConfigurationError, match="another size"):
        queue.begin(FEED, 1, 2, 8)
