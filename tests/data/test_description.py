from dataclasses import fields

import pytest

from descend.data import MESSAGES, DataReader, Reader
from descend.data.transforms import Scale


def test_lists_become_part_of_a_value():
    scale = Scale(0.5)
    assert Reader(transforms=[scale]) == Reader(transforms=(scale,))
    assert DataReader([Reader(name="mnist")]) == DataReader(reader=(Reader(name="mnist"),))
    assert hash(DataReader([Reader(transforms=[scale])])) == hash(DataReader((Reader(transforms=(scale,)),)))


def test_the_place_in_a_text_is_not_compared():
    assert Reader(name="mnist", where="a.prototext:3:5") == Reader(name="mnist")
    assert str(Reader(name="mnist", role="train", where="a.prototext:3:5")) == "a.prototext:3:5: reader 'mnist' (train)"


def test_repr_shows_what_is_set():
    assert repr(Reader(name="mnist", shuffle=True)) == "Reader(name='mnist', shuffle=True)"
    assert eval(repr(Reader(first_n=3, transforms=[Scale(0.5)]))) == Reader(first_n=3, transforms=[Scale(0.5)])


def test_float_that_the_text_form_holds_in_32_bits():
    assert Reader(scaling_factor_int16=0.1).scaling_factor_int16 == 0.10000000149011612
    assert Reader(validation_fraction=0.1).validation_fraction == 0.1


@pytest.mark.parametrize("kind", MESSAGES.values(), ids=MESSAGES.keys())
def test_every_message_can_be_made_empty(kind):
    """A text may name a message without any field; all fields are then zero."""
    for field in fields(kind()):
        assert getattr(kind(), field.name) in (0, "", None, ())
