import numpy as np
import pytest

from descend.errors import ConfigurationError, DataError
from descend.lbann.util.data import DataReader, Dataset, Sample, SampleDims


class Numbers(Dataset):
    """Sample i is i six times, with its square as response."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index == 9:
            raise KeyError("no such sample")
        return Sample(sample=np.full((2, 3), index), response=index**2)

    def get_sample_dims(self):
        return SampleDims(sample=[2, 3], response=1)


@pytest.mark.slow
def test_samples_come_in_the_order_in_which_they_were_asked_for():
    with DataReader(Numbers(), num_procs=2, prefetch_factor=1, dtype="float64") as reader:
        reader.queue_samples([4, 0, 7])
        reader.queue_samples([2])
        first, rest = reader.get_batch(3), reader.get_batch(1)
        assert first.keys() == {"sample", "response"}
        assert (first["sample"].shape, first["sample"].dtype) == ((3, 2, 3), np.float64)
        assert first["sample"][:, 1, 2].tolist() == [4, 0, 7]
        assert first["response"].tolist() == [[16], [0], [49]]
        assert rest["sample"][0, 0, 0] == 2
        with pytest.raises(DataError, match="0 samples are queued"):
            reader.get_batch(1)
        reader.queue_samples([9])
        with pytest.raises(KeyError, match="no such sample"):
            reader.get_batch(1)


def test_a_pool_has_processes():
    with pytest.raises(ConfigurationError, match="num_procs must be an integer >= 1, got 0"):
        DataReader(Numbers(), num_procs=0)
