"""Faults in data sets, samples and targets, read here or in other processes."""

import functools
import os
import signal
import sys
import time

import pytest
import torch
from faults.doors import X, Y, fault, fit, is_unchanged, net, snapshot
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import descend

WORKERS = [0, pytest.param(2, marks=pytest.mark.slow)]


class Samples(Dataset):
    """40 samples of which some are bad in one of several ways."""

    def __init__(self, bad=(), how="raises", count=40):
        self.bad, self.how, self.count = bad, how, count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if i in self.bad:
            if self.how == "raises":
                raise OSError(5, "Input/output error", f"/data/{i}.png")
            if self.how == "blocks":
                time.sleep(600)
            if self.how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "exits":
                sys.exit(7)
            return {"shape": (X[i, :3], 0), "type": (X[i].double(), 0), "nothing": None}[self.how]
        return X[i], int(Y[i])


class Seen(descend.Callback):
    def __init__(self):
        self.ids: list[int] = []

    def after_step(self, step):
        self.ids += step.batch.ids.tolist()


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raises", ("OSError", "/data/7.png")),
        ("shape", ("(3,) float32", "(5,) float32")),
        ("type", ("(5,) float64", "(5,) float32")),
        ("nothing", ("NoneType",)),
    ],
)
def test_a_sample_that_cannot_be_used(how, words, workers):
    """Exit 3 with its number, the data set and the reason; the weights are those of the last whole step."""
    module = net()
    fault(
        lambda: fit(module, data=Samples([7], how), workers=workers),
        3,
        "sample 7",
        "Samples for 'train'",
        "skip_bad=n",
        *words,
    )


@pytest.mark.parametrize(
    ("how", "workers"),
    [
        *((how, 0) for how in ("raises", "shape", "type", "nothing")),
        *(pytest.param(how, 2, marks=pytest.mark.slow) for how in ("raises", "shape")),  # read, and put together
    ],
)
def test_bad_samples_are_replaced(tmp_path, how, workers):
    """By the next number, each listed once with a count, and one more than allowed ends the run."""
    seen = Seen()
    with pytest.warns(
        UserWarning, match=r"sample 7 of Samples for 'train' is replaced .* \(\d of 2 allowed\)"
    ) as reported:
        fit(data=Samples([7, 39], how), workers=workers, skip_bad=2, callbacks=[seen], stop=descend.Epochs(2))
    assert sorted(seen.ids[:40]) == sorted([*(i for i in range(40) if i not in (7, 39)), 8, 0])
    assert len([w for w in reported if "is replaced" in str(w.message)]) == 2
    fault(
        lambda: fit(data=Samples([7, 39], how), workers=workers, skip_bad=1), 3, "sample 7", "sample 39", "skip_bad=1"
    )


@pytest.mark.filterwarnings("ignore:.*is replaced")
def test_replaced_samples_are_the_same_after_a_restart(tmp_path):
    whole = fit(data=Samples([7]), skip_bad=1)
    fit(data=Samples([7]), skip_bad=1, run_dir=tmp_path, stop=descend.Steps(3))
    parts = fit(data=Samples([7]), skip_bad=1, run_dir=tmp_path, resume=True)
    assert all(torch.equal(parts.weights[name], value) for name, value in whole.weights.items())


@pytest.mark.filterwarnings("ignore:.*is replaced")
def test_the_count_of_replaced_samples_goes_on_after_a_restart(tmp_path):
    """Two are allowed, and the third is one too many whatever process it is found in; one found again counts once."""
    fit(data=Samples([0, 1]), skip_bad=2, run_dir=tmp_path, stop=descend.Steps(4), batch_size=10)
    fit(data=Samples([0, 1]), skip_bad=2, run_dir=tmp_path, stop=descend.Steps(8), batch_size=10, resume=True)
    more = functools.partial(fit, run_dir=tmp_path, stop=descend.Steps(12), batch_size=10, resume=True)
    fault(lambda: more(data=Samples([30]), skip_bad=2), 3, "3 samples", "sample 0", "sample 1", "sample 30")


@pytest.mark.parametrize("workers", WORKERS)
def test_a_read_that_blocks(workers):
    """Ends after the time limit, which names the sample."""
    fault(
        lambda: fit(data=Samples([7], "blocks"), workers=workers, timeout_seconds=3),
        3,
        "sample 7 of Samples",
        "it hangs",
    )


@pytest.mark.slow
@pytest.mark.parametrize(("how", "words"), [("dies", "killed by SIGKILL"), ("exits", "ended with exit code 7")])
def test_a_process_that_ends(how, words):
    """Reported with its signal, or its code, and the sample that it was at."""
    fault(lambda: fit(data=Samples([7], how), workers=2), 3, "descend-loader", words, "sample 7")


# ---- sizes


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ((X[:0], Y[:0]), "0 samples"),
        (Samples(count=0), "0 samples"),
        (DataLoader(TensorDataset(X[:8], Y[:8]), batch_size=10, drop_last=True), "8 samples with batch_size=10"),
        ([], "0 batches"),
    ],
    ids=["tensors", "data set", "drop_last", "list"],
)
def test_no_step_in_an_epoch(data, words, tmp_path):
    """Exit 3 before training, with the numbers; no directory stays behind."""
    module = net()
    before = snapshot(module)
    fault(lambda: fit(module, data=data, run_dir=tmp_path / "run"), 3, words)
    assert is_unchanged(module, before)
    assert not (tmp_path / "run").exists()
    fault(lambda: fit(module, valid=data), 2 if isinstance(data, DataLoader) else 3)


def test_fewer_samples_than_a_batch():
    """One partial batch an epoch, weighted by its size, and said once."""
    with pytest.warns(UserWarning, match="mini-batch size 64 is more than the 40 samples") as reported:
        result = fit(batch_size=64, stop=descend.Epochs(3))
    assert len(reported) == 1
    assert (result.steps, result.history[0]["samples"]) == (3, 40)


@pytest.mark.parametrize(
    "settings", [{"batch_size": 13}, {"batch_size": 1}, {"batch_size": 10, "batch_norm_group_size": 3}]
)
@pytest.mark.filterwarnings("ignore:.*normalizes over")
def test_a_batch_of_one_into_batch_norm(settings):
    """Named before training where the sizes imply it."""
    module = net()
    before = snapshot(module)
    fault(lambda: fit(module, data=(X[:40], Y[:40]), **settings), 2, "of 1 sample", "'1' (BatchNorm1d)", "batch_size")
    assert is_unchanged(module, before)


# ---- targets


def of(values):
    return torch.as_tensor(values).expand(40).clone()


@pytest.mark.parametrize(
    ("loss", "targets", "words"),
    [
        ("cross_entropy", of(3), ("sample", ": 3", "class numbers from 0 to 2")),
        ("cross_entropy", of(-1), (": -1", "-100 to be ignored")),
        ("cross_entropy", of(0.5), ("are not class numbers, which are integers", "sample 0: 0.5")),
        ("nll", of(7), (": 7", "class numbers")),
        ("mse", torch.full((40, 3), torch.nan), (": nan", "finite numbers")),
        ("bce_with_logits", torch.full((40, 3), 5.0), (": 5.0", "probabilities in [0, 1]")),
        ("bce_with_logits", torch.full((40, 3), -0.1), ("probabilities in [0, 1]",)),
    ],
)
@pytest.mark.parametrize("where", ["first", "later", "validation", "workers", "micro"])
def test_targets_that_the_loss_cannot_take(loss, targets, words, where):
    """Exit 3 with sample, value and range, in the first batch and in later ones; nothing of that step is applied."""
    good = {"cross_entropy": Y, "nll": Y, "mse": torch.zeros(40, 3), "bce_with_logits": torch.zeros(40, 3)}[loss]
    settings = {"workers": 0, "shuffle": False}
    if where == "micro":
        settings["micro_batch_size"] = 5
    module, watched = nn.Linear(5, 3), []

    class Watch(descend.Callback):
        def after_step(self, step):
            watched.append(snapshot(step.module))

    later = torch.cat([good[:20].to(targets.dtype), targets[20:]])
    train = {"first": targets, "micro": targets, "workers": targets, "later": later, "validation": good}[where]
    if where == "validation":
        settings["valid"] = (X, targets)
    before = snapshot(module)
    if where == "later" and loss == "cross_entropy" and targets.is_floating_point():
        return  # all of one type
    fault(lambda: fit(module, loss, (X, train), callbacks=[Watch()], **settings), 3, "field '1'", *words)
    assert is_unchanged(module, watched[-1] if watched else before)
    assert len(watched) == {"later": 2, "validation": 4}.get(where, 0)


def test_labels_that_are_all_ignored():
    """Contribute 0 with weight 0: neither a NaN nor an update."""
    module = nn.Linear(5, 3)
    before = snapshot(module)
    result = fit(module, data=(X, of(-100)), optimizer=functools.partial(torch.optim.SGD, lr=0.1))
    assert is_unchanged(module, before)
    assert result.steps == 6
