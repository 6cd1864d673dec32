"""The trainer's description and its text."""

import pytest

from descend import Trainer, train
from descend.errors import TextError
from descend.graph import text

CLASSES = {kind.message: kind for kind in (Trainer, train.DataCoordinator, train.TransformDataField)}


def read(source):
    return text.to_value(text.parse(source, "f.prototext", "Trainer"), CLASSES)


def test_a_data_coordinator_is_kept_and_changes_nothing():
    """Model files of LBANN have one in their trainer as a rule."""
    trainer = read('mini_batch_size: 4 data_coordinator { io_buffer: "partitioned" datatype: FLOAT }')
    assert trainer.data_coordinator == train.DataCoordinator(datatype=1, io_buffer="partitioned")
    again = text.to_value(text.parse(text.render(trainer), message="Trainer"), CLASSES)
    assert again == trainer


@pytest.mark.parametrize(
    ("inside", "problem"),
    [
        ("datatype: DOUBLE", "f.prototext:1:20: DataCoordinator: datatype must be FLOAT, got 2"),
        (
            'transforms { data_field: "samples" }',
            "f.prototext:1:39: transforms of a data coordinator are not supported",
        ),
    ],
)
def test_what_a_data_coordinator_cannot_do_is_refused(inside, problem):
    with pytest.raises(TextError) as caught:
        read(f"mini_batch_size: 4 data_coordinator {{ {inside} }}")
    (said,) = caught.value.problems
    assert said.startswith(problem)
