"""What a description says is the same from Python and from a text, to the last bit."""

from dataclasses import fields

import numpy as np
import pytest

from descend import zoo
from descend.data import MESSAGES, DataReader, PythonDataReader, Reader, open_readers
from descend.data.transforms import TRANSFORMS, ColorJitter, Normalize, Scale
from descend.graph import text

EVERYTHING = DataReader(
    [
        Reader(
            name="mnist",
            role="train",
            shuffle=True,
            data_filedir="a folder/é",
            validation_fraction=1 / 12,
            scaling_factor_int16=0.1,
            absolute_sample_count=10**12,
            python=PythonDataReader(module="m"),
            transforms=[*(kind() for kind in TRANSFORMS), ColorJitter(0.1, 1 / 3), Normalize("0.5", "0.25")],
        ),
        Reader(name="digits", role="test", transforms=[Scale(1 / 255)]),
    ]
)


@pytest.mark.parametrize("description", [EVERYTHING, zoo.digits()], ids=["everything", "digits"])
def test_round_trip(description):
    written = text.render(description)
    back = text.to_value(text.parse(written, "data.prototext", "DataReader"), MESSAGES)
    assert back == description
    assert text.render(back) == written


def test_every_field_of_the_schema_has_its_place():
    """A field that the classes lack would be refused when a text sets it."""
    for name, kind in MESSAGES.items():
        known = {field.name for field in fields(kind) if field.name != "where"}
        assert set(text.schema.message_info(name).fields) == known, name


def test_samples_have_the_same_bits_from_python_and_from_a_text():
    python = DataReader([Reader(name="digits", role="test", transforms=[Scale(1 / 255)])])
    back = text.to_value(text.parse(text.render(python), "data.prototext", "DataReader"), MESSAGES)
    a, b = (open_readers(description)["test"].read(np.arange(296))["samples"] for description in (python, back))
    assert a.tobytes() == b.tobytes()
