"""Map-style data sets, sample by sample: random numbers of each sample, samples that are replaced, and errors."""

import pickle  # as readers are sent to worker processes
import random

import numpy as np
import pytest
import torch
from data.torch_sets import Augmented, Failing, Sometimes

from descend.data import Loading, open_data
from descend.data.loading.batches import RankSlice
from descend.data.loading.map_dataset import SamplePipeline, SampleReader
from descend.errors import DataError


def epoch(data, **how):
    return list(open_data(data, Loading(batch_size=4, seed=5, **how)).epoch(0))


def pipeline(dataset, collate=None, **more):
    return SamplePipeline(dataset, collate, seed=5, role="train", **more)


def read(made, ids, number=0):
    return SampleReader(made).read(np.array(ids, dtype=np.int64), number)


def state():
    return random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()


def test_what_a_sample_draws_is_a_function_of_epoch_and_sample():
    first = read(pipeline(Augmented()), range(13))["0"]
    made = pipeline(Augmented())
    torch.rand(7)
    np.random.rand(3)
    parts = torch.cat([read(made, ids)["0"] for ids in ([3, 2], [1, 0], range(4, 13))])
    assert torch.equal(parts, first[[3, 2, 1, 0, *range(4, 13)]])
    assert not torch.equal(read(made, range(13), 1)["0"], first)
    assert len({tuple(row) for row in (first - torch.arange(13.0)[:, None]).tolist()}) == 13


@pytest.mark.parametrize("generator", ["torch", "numpy", "python"])
def test_a_draw_from_any_generator_is_seen_and_repeated(generator):
    whole = read(pipeline(Sometimes(generator)), range(13))["0"]
    alone = read(pipeline(Sometimes(generator)), [5])["0"]
    assert torch.equal(alone[0], whole[5])


def test_the_global_generators_are_left_as_they_were():
    before = state()
    read(pipeline(Augmented()), range(5))
    assert state() == before


def test_data_sets_that_draw_nothing_are_read_once_and_stay_unseeded():
    begun, made = [], pipeline(Failing({}))
    made.read(np.array([2, 1]), 0, begun.append)
    assert (begun, made.draws) == ([2, 1], False)
    made = pipeline(Augmented())
    made.read(np.array([2, 1]), 0, begun.append)
    assert (begun[2:], made.draws) == ([2, 1, 2, 1], True)


def test_no_samples_have_the_fields_of_one():
    found = pipeline(Failing({})).read(np.zeros(0, dtype=np.int64), 0, lambda i: None)
    assert [(name, tuple(t.shape), t.dtype) for name, t in found.fields.items()] == [
        ("0", (0, 2), torch.float32),
        ("1", (0,), torch.int64),
    ]
    assert found.ids.tolist() == []


@pytest.mark.parametrize("fault", ["raises", "shape", "text"])
def test_bad_samples_are_replaced_by_the_next_good_one(fault):
    made = pipeline(Failing({3: fault, 4: fault, 9: fault}), replace_bad=True)
    found = made.read(np.array([2, 3, 9, 7, 6, 5, 1]), 0, lambda i: None)
    assert found.ids.tolist() == [2, 5, 0, 7, 6, 5, 1]
    assert found.fields["0"][:, 0].tolist() == [2, 5, 0, 7, 6, 5, 1]
    assert sorted(sample.id for sample in found.bad) == [3, 4, 9]


def test_where_no_sample_can_be_used_the_search_ends():
    with pytest.raises(DataError, match=r"sample . of Failing for 'train' cannot be used"):
        pipeline(Failing(dict.fromkeys(range(10), "raises")), replace_bad=True).read(np.array([3]), 0, lambda i: None)


class Listed:
    """Samples as given."""

    def __init__(self, *samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


@pytest.mark.parametrize(
    ("odd", "usual", "reason"),
    [
        ({"x": 1.0}, {"x": 1.0, "y": 2}, "field 'y' is missing and a number in other samples"),
        ({"x": 1.0, "y": 2, "z": 3}, {"x": 1.0, "y": 2}, "field 'z' is a number and missing in other samples"),
        ((torch.zeros(2, dtype=torch.int64),), (torch.zeros(2),), r"field '0' is \(2,\) int64 and \(2,\) float32"),
    ],
)
def test_fields_and_types_that_torch_would_silently_change_are_refused(odd, usual, reason):
    with pytest.raises(DataError, match=f"sample 0 of Listed for 'train' cannot be used: {reason}"):
        read(pipeline(Listed(odd, usual, usual)), [0, 1, 2])


def test_a_collate_function_gets_the_samples_and_its_errors_name_them():
    doubled = read(pipeline(Failing({}), lambda some: {"x": torch.stack([x for x, _ in some]) * 2}), [3, 1])
    assert doubled["x"][:, 0].tolist() == [6.0, 2.0]

    def broken(samples):
        raise KeyError("mask")

    with pytest.raises(DataError, match=r"samples \[3, 1\] of Failing for 'train' cannot be collated: 'mask'"):
        read(pipeline(Failing({}), broken), [3, 1])
    with pytest.raises(DataError, match=r"samples 3, … of Failing for 'train': the fields must be of length 2"):
        read(pipeline(Failing({}), lambda some: {"x": torch.zeros(3)}), [3, 1])


def test_a_pipeline_goes_to_another_process_whole():
    made = pickle.loads(pickle.dumps(pipeline(Augmented())))
    assert torch.equal(read(made, [4])["0"], read(pipeline(Augmented()), [4])["0"])


def test_shares_are_read_in_order_and_the_generators_restored_at_the_end():
    reader, before = SampleReader(pipeline(Augmented())), state()
    shares = [RankSlice(np.array(ids), 0, step, 2, False) for step, ids in enumerate(([5, 1], [0]))]
    assert [ids.tolist() for _, ids in reader.stream(iter(shares))] == [[5, 1], [0]]
    assert state() == before


def test_a_sample_is_counted_once_however_often_it_is_replaced():
    reader = SampleReader(pipeline(Failing({4: "raises"}), replace_bad=True), skip_bad=1)
    with pytest.warns(UserWarning, match=r"sample 4 of Failing for 'train' is replaced .*\(1 of 1 allowed\): OSError"):
        reader.read(np.array([4, 0]))
    reader.read(np.array([4, 1]), 1)
    assert list(reader.bad) == [4]


@pytest.mark.parametrize(
    ("failing", "message"),
    [
        ({6: "raises"}, r"sample 6 of Failing for 'train' cannot be used: OSError: disk on fire.*skip_bad=n"),
        ({6: "shape"}, r"sample 6 .*field '0' is \(3,\) float32 and \(2,\) float32 in other samples"),
        ({6: "text"}, r"sample 6 .*field '1' is str and a number in other samples"),
        (dict.fromkeys(range(10), "text"), "field '1/0' must be a tensor or an array .*, got a str"),
    ],
)
def test_a_bad_sample_is_named_with_its_data_set(failing, message):
    with pytest.raises(DataError, match=message):
        epoch(Failing(failing), shuffle=False)


def test_one_bad_sample_too_many_lists_them():
    with pytest.warns(UserWarning, match="is replaced"), pytest.raises(DataError) as caught:
        epoch(Failing({1: "raises", 4: "shape", 7: "raises"}), shuffle=False, skip_bad=2)
    assert "3 samples of Failing for 'train' cannot be used and skip_bad=2" in caught.value.problems[0]
    assert [line.split(":")[0].strip() for line in caught.value.problems[1:]] == ["sample 1", "sample 4", "sample 7"]


def test_a_read_that_blocks_here_is_named_too():
    with pytest.raises(DataError, match=r"sample 5 of Failing for 'train' is not read after 0.3 seconds"):
        epoch(Failing({5: "hangs"}), shuffle=False, timeout_seconds=0.3)
