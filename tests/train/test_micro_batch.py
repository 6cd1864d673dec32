"""A mini-batch is split into micro-batches of whole units, every sample once and in order."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from descend.data import Batch
from descend.runtime import Communicator
from descend.train.micro_batch import split_into_micro_batches


def batch(count, position=0):
    ids = np.arange(count)
    return Batch({"x": ids[:, None].astype(np.float32)}, ids, 0, 1, count + position, True, position)


@given(count=st.integers(0, 40), size=st.one_of(st.none(), st.integers(1, 50)), unit=st.sampled_from([None, 1, 3, 8]))
def test_every_sample_is_in_one_micro_batch_in_order(count, size, unit):
    found = split_into_micro_batches(batch(count, 5), Communicator(), size, unit, step=7, kept=2)
    samples = [int(x) for part in found for x in part.fields["x"][:, 0]]
    assert samples == list(range(count))
    assert [part.index for part in found] == list(range(len(found)))
    for part in found:
        assert part.of == len(found)
        assert (part.step, part.position, part.draw_position) == (7, 5 + part.start, 7 + part.start)
        assert part.count == len(part.fields["x"])
        if unit is None:
            assert len(found) == 1
        elif part.index < len(found) - 1:
            assert part.count % unit == 0
