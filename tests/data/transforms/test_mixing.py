import numpy as np
import pytest
import torch
from data.transforms.samples import draws, images
from scipy import stats

from descend.data import DataReader, Reader, open_readers
from descend.data.order import Draws
from descend.data.transforms import CutMix, Mixup, Scale
from descend.data.transforms.mixing import symmetric_beta


@pytest.mark.parametrize("alpha", [0.1, 0.4, 1.0, 3.5])
def test_beta(alpha):
    u = np.random.default_rng(0).uniform(size=(4000, 2))
    shares = symmetric_beta(u, alpha)
    assert ((shares >= 0) & (shares <= 1)).all()
    assert stats.kstest(shares, stats.beta(alpha, alpha).cdf).pvalue > 1e-3


def test_numbers_at_the_ends():
    assert np.isfinite(symmetric_beta(np.array([[0.0, 0.0], [1 - 1e-16, 0.25], [0.5, 0.5]]), 0.001)).all()


def pairs(n=200):
    x, y = images(n), images(n)[::-1]
    labels = np.eye(4, dtype=np.float32)[np.arange(n) % 4]
    return {"samples": x, "labels": labels}, {"samples": y, "labels": labels[::-1]}


def test_mixup_mixes_samples_and_labels_by_one_weight():
    own, others = pairs()
    found = Mixup(1.0).mix(own, others, draws(200))
    x, y = own["samples"].astype(float), others["samples"].astype(float)
    differs = x != y
    weight = ((found["samples"] - y)[differs] / (x - y)[differs]).astype(float)
    rows = np.nonzero(differs)[0]
    share = np.array([np.median(weight[rows == i]) for i in range(200)])
    wanted = share[:, None] * own["labels"] + (1 - share)[:, None] * others["labels"]
    np.testing.assert_allclose(found["labels"], wanted, atol=1e-3)
    assert stats.kstest(share, "uniform").pvalue > 1e-3


def test_cutmix_mixes_labels_by_area():
    own, others = pairs()
    own["samples"][:], others["samples"] = 1, np.zeros_like(others["samples"])
    own["labels"][:] = [1, 0, 0, 0]
    others["labels"] = np.tile(np.array([0, 1, 0, 0], np.float32), (200, 1))
    found = CutMix(1.0).mix(own, others, draws(200))
    kept = found["samples"].mean(axis=(1, 2, 3))
    np.testing.assert_allclose(found["labels"][:, 0], kept, atol=1e-6)
    np.testing.assert_allclose(found["labels"][:, 1], 1 - kept, atol=1e-6)
    assert kept.min() < 0.4
    for sample in found["samples"][:20, 0]:
        rows, columns = (sample == 0).any(axis=1), (sample == 0).any(axis=0)
        np.testing.assert_array_equal(sample == 0, np.outer(rows, columns))  # a rectangle


@pytest.mark.parametrize("mixing", [Mixup(0.5), CutMix(0.5)])
def test_tensors(mixing):
    for dtype in (np.uint8, np.float32):
        own, others = ({name: value.astype(dtype) for name, value in one.items()} for one in pairs(8))
        found = mixing.mix(own, others, draws(8))
        tensors = [{name: torch.from_numpy(value.copy()) for name, value in one.items()} for one in (own, others)]
        for name, tensor in mixing.mix(*tensors, draws(8)).items():
            np.testing.assert_allclose(tensor.numpy(), found[name], atol=1e-4)


def readers(transforms, **fields):
    return open_readers(DataReader([Reader(name="digits", role="train", transforms=transforms, **fields)]), seed=3)


@pytest.mark.parametrize("mixing", [Mixup(1.0), CutMix(1.0)])
def test_a_sample_is_a_function_of_seed_epoch_and_number(mixing):
    reader = readers([mixing, Scale(0.5)])["train"]
    some = np.array([5, 900, 17])
    found = reader.read(some, epoch=2)
    for place, number in enumerate(some):
        alone = reader.read(np.array([number]), epoch=2)
        for name in ("samples", "labels"):
            np.testing.assert_array_equal(alone[name][0], found[name][place])
    assert (found["samples"] != reader.read(some, epoch=3)["samples"]).any()
    np.testing.assert_allclose(found["labels"].sum(1), 1, rtol=1e-6)


def test_partners_are_of_the_same_part():
    """No sample that is held out is mixed into the training, and what is held out is not mixed."""
    parts = readers([Mixup(1.0)], validation_fraction=0.5)
    plain = readers([], validation_fraction=0.5)
    ids = np.arange(len(parts["validate"]))
    np.testing.assert_array_equal(parts["validate"].read(ids)["samples"], plain["validate"].read(ids)["samples"])
    mixed, own = parts["train"].read(np.arange(300)), plain["train"].read(np.arange(len(plain["train"])))
    share = mixed["labels"][np.arange(300), own["labels"][:300].argmax(1)]
    rest = mixed["samples"].reshape(300, -1) - share[:, None] * own["samples"][:300].reshape(300, -1)
    partner = mixed["labels"].argmax(1) != own["labels"][:300].argmax(1)
    candidates = own["samples"].reshape(len(own["samples"]), -1)
    checked = np.flatnonzero(partner & (share < 0.5))[:5]
    assert len(checked) == 5
    for row in checked:
        wanted = rest[row] / (1 - share[row])
        assert np.abs(candidates - wanted).max(axis=1).min() < 3  # pixels are rounded once


def test_draws_of_one_row():
    together = Draws(np.uint64(7), np.arange(5))
    together.uniform(3)
    alone = together.of_rows(slice(2, 3))
    taken = alone.uniform(2)
    np.testing.assert_array_equal(together.uniform(2)[2:3], taken)
