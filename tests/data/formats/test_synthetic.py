import numpy as np
import pytest
from scipy import stats

from descend.data import DataReader, Reader, open_readers
from descend.data.transforms import Pad, SampleNormalize, Scale
from descend.errors import ConfigurationError


def opened(seed=0, role="train", **fields):
    description = Reader(name="synthetic", role=role, num_samples=500, **fields)
    return open_readers(DataReader([description]), seed)[role]


def test_fields():
    reader = opened(synth_dimensions="3 4 5", num_labels=7, synth_response_dimensions="2")
    batch = reader.read(np.arange(500))
    assert len(reader) == 500
    assert {name: values.shape for name, values in batch.items()} == {
        "samples": (500, 3, 4, 5),
        "labels": (500, 7),
        "responses": (500, 2),
    }
    assert {name: (500, *field.shape) for name, field in reader.fields.items()} == {
        n: v.shape for n, v in batch.items()
    }
    assert stats.kstest(batch["samples"].ravel(), "norm").pvalue > 1e-3
    assert stats.kstest(batch["responses"].ravel(), "norm").pvalue > 1e-3
    assert stats.chisquare(batch["labels"].sum(0)).pvalue > 1e-3
    assert (batch["labels"].sum(1) == 1).all()


def test_a_sample_is_a_function_of_seed_role_and_number():
    some = np.array([4, 2])
    reader = opened(synth_dimensions="6")
    values = reader.read(some)["samples"]
    np.testing.assert_array_equal(values, reader.read(np.arange(5), epoch=3)["samples"][some])
    np.testing.assert_array_equal(values, opened(synth_dimensions="6").read(some)["samples"])
    assert (values != opened(seed=1, synth_dimensions="6").read(some)["samples"]).all()
    assert (values != opened(role="test", synth_dimensions="6").read(some)["samples"]).all()


@pytest.mark.parametrize("text", ["", "3 x 4", "0 4", "-1", "2.5"])
def test_shape_that_is_none(text):
    with pytest.raises(ConfigurationError, match=f"synth_dimensions must be sizes >= 1 .*, got '{text}'"):
        opened(synth_dimensions=text)


def test_opening_allocates_nothing_of_the_size_of_a_sample():
    """A check opens the readers: 100000 x 100000 numbers in float32 would take 37 GiB."""
    transforms = [Scale(0.5), Pad(1), SampleNormalize()]
    reader = opened(synth_dimensions="1 100000 100000", transforms=transforms)
    assert reader.fields["samples"].shape == (1, 100002, 100002)
