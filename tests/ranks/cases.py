"""Small runs in float64 that have to come out the same on any number of ranks. As a script: run those named."""

from __future__ import annotations

import functools
import os
import random
import sys
import warnings
from dataclasses import replace

import torch
from torch import nn

import descend


def network(*more: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), *more, nn.Tanh(), nn.Linear(4, 3)).double()


def data(samples=10, ignored=(1, 2, 3, 7), seed=0):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 3, generator=draw, dtype=torch.float64)
    y = torch.randint(0, 3, (samples,), generator=draw)
    y[list(ignored)] = -100
    return x, y


SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
# Inverses enlarge the rounding of sums by 1 / damping for each of both factors.
KFAC = descend.KFAC(damping_act="0.1", damping_err="0.1")
THREE = descend.GradientAccumulation(3)
ADAM = descend.Adam(learn_rate=0.01, beta1=0.9, beta2=0.99, eps=1e-8, adamw_weight_decay=0.1)


def wrapped():
    """A module in DistributedDataParallel, whose group the user has made; without ranks it stands alone.

    A forward pass that was made before leaves its hooks waiting for a backward pass.
    """
    if "WORLD_SIZE" not in os.environ:
        return fit(batch_size=7, micro_batch_size=2)
    torch.distributed.init_process_group("gloo")
    try:
        module = nn.parallel.DistributedDataParallel(network())
        module(data()[0])
        return fit(module, batch_size=7, micro_batch_size=2)
    finally:
        torch.distributed.destroy_process_group()


def fit(module=None, some=None, **settings):
    given = {"optimizer": SGD, "batch_size": 10, "stop": descend.Epochs(3), "seed": 3, **settings}
    return descend.fit(module or network(), given.pop("loss", nn.CrossEntropyLoss()), some or data(), **given)


class Branches(nn.Module):
    """One branch is used where a sample asks for it, one never."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.always, self.some, self.never = (nn.Linear(3, 3) for _ in range(3))
        self.double()

    def forward(self, x):
        out = self.always(x)
        chosen = (x[:, 0] > 1.0).nonzero().flatten()
        return out.index_add(0, chosen, self.some(x[chosen])) if len(chosen) else out


class NotEmpty(nn.Module):
    """Does not take an empty mini-batch."""

    def __init__(self):
        super().__init__()
        self.inside = network()

    def forward(self, x):
        assert len(x)
        return self.inside(x)


class Counting(nn.Module):
    """A buffer that is not a running statistic, and is changed by what a rank sees."""

    def __init__(self):
        super().__init__()
        self.inside = network()
        self.register_buffer("newest", torch.zeros(3, dtype=torch.float64))

    def forward(self, x):
        if self.training:
            self.newest.copy_(x[-1])
        return self.inside(x)


class Tight(nn.Module):
    """One rank has no memory for more than two samples at once."""

    def __init__(self, rank):
        super().__init__()
        self.inside, self.rank = network(nn.Dropout(0.4)), rank

    def forward(self, x):
        if descend.distributed.rank() == self.rank and len(x) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.inside(x)


def images(samples=24):
    draw = torch.Generator().manual_seed(7)
    x = torch.randn(samples, 2, 5, 5, generator=draw, dtype=torch.float64)
    return x, torch.randint(0, 3, (samples,), generator=draw)


def convolutions(momentum=0.3, affine=True):
    torch.manual_seed(1)
    layers = (nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, momentum=momentum, affine=affine), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(27, 6), nn.BatchNorm1d(6, momentum=momentum), nn.Linear(6, 3)).double()


class Uneven(nn.Module):
    """The last rank evaluates in smaller parts, and trains on in these."""

    def __init__(self):
        super().__init__()
        self.inside = network()

    def forward(self, x):
        last = descend.distributed.rank() == descend.distributed.ranks() - 1 > 0
        if last and not self.training and len(x) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.inside(x)


def inference():
    images, labels = descend.Input(data_field="samples"), descend.Input(data_field="labels")
    scores = descend.FullyConnected(images, num_neurons=10, has_bias=True, name="scores")
    loss = descend.CrossEntropy(descend.Softmax(scores, name="softmax"), labels, name="loss")
    model = descend.Model(
        0, layers=descend.traverse_layer_graph([images, labels]), metrics=[descend.Metric(loss, name="loss")]
    )
    algorithm = descend.BatchedInference(modes="test", layers="softmax")
    trainer = descend.Trainer(mini_batch_size=100, random_seed=3, training_algo=algorithm)
    return descend.run(trainer, model, descend.zoo.digits(), descend.SGD(learn_rate=0.05), "inference")


WEIGHTS = torch.tensor([0.2, 1.7, 3.1], dtype=torch.float64)  # of classes


class Words(nn.Module):
    """Scores for each position of a sequence."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.inside, self.outside = nn.Embedding(7, 4), nn.Linear(4, 7)
        self.double()

    def forward(self, x):
        return self.outside(torch.tanh(self.inside(x))).transpose(1, 2)


def words(seed):
    return torch.randint(0, 7, (17, 6), generator=torch.Generator().manual_seed(seed))


def masked(output, y, mask):
    return ((output - y).square() * mask).sum(), mask.sum()


def numbers(seed, columns=3):
    return torch.randn(17, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Noisy(torch.utils.data.Dataset):
    """Each sample is changed by chance, by the generators of torch and of Python."""

    def __len__(self):
        return 17

    def __getitem__(self, i):
        x, y = data(17)
        return x[i] + 0.1 * torch.randn(3, dtype=torch.float64) + 0.1 * random.random(), y[i]


class Thawing(descend.Callback):
    """Two weights are trained in some steps and not in others."""

    def after_step(self, step):
        for p in list(step.module.parameters())[:2]:
            p.requires_grad_(step.step % 3 != 1)


class Rows(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        torch.manual_seed(5)
        self.table = nn.Embedding(6, 3, sparse=sparse).double()

    def forward(self, x):
        return self.table((x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long())


def run():
    images, labels = descend.Input(data_field="samples"), descend.Input(data_field="labels")
    hidden = descend.FullyConnected(images, num_neurons=8, has_bias=True, name="hidden")
    kept = descend.Dropout(descend.Relu(descend.BatchNormalization(hidden, name="normed")), keep_prob=0.8, name="kept")
    scores = descend.FullyConnected(kept, num_neurons=10, has_bias=True, name="scores")
    loss = descend.CrossEntropy(descend.Softmax(scores), labels, name="loss")
    model = descend.Model(
        1,
        layers=descend.traverse_layer_graph([images, labels]),
        objective_function=descend.ObjectiveFunction([loss, descend.L2WeightRegularization(scale=0.01)]),
        metrics=[descend.Metric(loss, name="loss")],
        batch_norm_group_size=16,
    )
    trainer = descend.Trainer(mini_batch_size=500, random_seed=3)
    return descend.run(trainer, model, descend.zoo.digits(), descend.SGD(learn_rate=0.05, momentum=0.9), "run")


def entropy(module, x, y):
    """The loss of a phase: ignored labels are left out of numerator and denominator."""
    return nn.functional.cross_entropy(module(x), y, reduction="sum"), (y != -100).sum()


def decay(module, x, y):
    """That of another."""
    return (module(x) ** 2).sum(), len(x)


def in_phases(**settings):
    """Two phases, each of one layer; at 11 samples by 2 the last mini-batch has no sample for the second rank."""
    phases = [descend.Phase("one", entropy, ["0.*"], updates=2), descend.Phase("two", decay, ["2.*"])]
    return fit(loss=phases, some=data(11), batch_size=2, valid=data(5, (), 4), **settings)


class Shards(descend.Callback):
    """Fails where a rank has other gradients than it should have by the last step."""

    def __init__(self, expected: bool) -> None:
        self.expected = expected

    def after_step(self, step):
        if step.step == 4:
            absent = [p.grad is None for p in step.module.parameters()]
            assert any(absent) == (self.expected and descend.distributed.ranks() > 1)
            assert not all(absent)


def large(shard_optimizer: bool) -> object:
    """Enough gradients that ranks of one host share memory."""
    torch.manual_seed(0)
    layers = [nn.Linear(3, 190), nn.Tanh(), nn.Linear(190, 190), nn.Tanh(), nn.Linear(190, 3)]
    return fit(
        nn.Sequential(*layers).double(),
        batch_size=7,
        optimizer=ADAM,
        clip_global_norm=0.1,
        shard_optimizer=shard_optimizer,
        stop=descend.Steps(4),
        callbacks=[Shards(shard_optimizer)],
    )


CASES = {
    "phases": in_phases,
    "phases with a metric and accumulation": lambda: in_phases(
        metrics={"size": decay}, strategy=descend.GradientAccumulation(every=2)
    ),
    "one batch": fit,
    "ignored on one rank": lambda: fit(some=data(ignored=(0, 1, 2, 3, 4)), shuffle=False),
    "partial batch": lambda: fit(batch_size=4, metrics=["accuracy"]),
    "fewer samples than ranks": lambda: fit(batch_size=1, metrics=["accuracy"], stop=descend.Epochs(1)),
    "clipping, Adam and decay": lambda: fit(batch_size=7, clip_global_norm=0.1, optimizer=ADAM),
    "the same, sharded": lambda: fit(batch_size=7, clip_global_norm=0.1, optimizer=ADAM, shard_optimizer=True),
    "clipping each": lambda: fit(clip_value=0.01, clip_norm=0.02, batch_size=7),
    "LAMB": lambda: fit(optimizer=functools.partial(descend.optim.LAMB, lr=0.01, weight_decay=0.1), batch_size=7),
    "micro-batches": lambda: fit(micro_batch_size=2, batch_size=7),
    "averaged weights": lambda: fit(valid=data(21, seed=4), callbacks=[descend.SWA(1), descend.EMA(0.6)], batch_size=7),
    "drawn by weight": lambda: fit(
        batch_size=7, sampler=lambda seed, epoch, positions: (seed + epoch + positions * positions) % 10
    ),
    "weights of classes, smoothed, some ignored": lambda: fit(
        loss=nn.CrossEntropyLoss(weight=WEIGHTS, ignore_index=2, label_smoothing=0.1), some=data(17, ()), batch_size=7
    ),
    "classes that weigh nothing": lambda: fit(
        loss=nn.CrossEntropyLoss(weight=WEIGHTS * torch.tensor([0, 1, 1])), some=data(17, ()), batch_size=3
    ),
    "words": lambda: fit(
        Words(), loss=nn.CrossEntropyLoss(ignore_index=0), some=(words(0), words(1)), batch_size=5, micro_batch_size=1
    ),
    "squares": lambda: fit(loss=nn.MSELoss(), some=(numbers(0), numbers(1)), batch_size=5, metrics=["l1"]),
    "divergence": lambda: fit(
        network(nn.LogSoftmax(1)),
        loss=nn.KLDivLoss(reduction="batchmean"),
        some=(numbers(0), numbers(1).softmax(1)),
        batch_size=7,
    ),
    "a function of two targets": lambda: fit(
        loss=masked, some=(numbers(0), numbers(1), (numbers(2) > 0.5).double()), targets=2, batch_size=7
    ),
    "samples that are drawn again": lambda: fit(some=Noisy(), batch_size=5),
    "weights that are frozen and thawed, sharded": lambda: fit(
        callbacks=[Thawing()], batch_size=3, optimizer=ADAM, shard_optimizer=True
    ),
    "K-FAC with weights of classes": lambda: fit(
        loss=nn.CrossEntropyLoss(weight=WEIGHTS), some=data(17, ()), batch_size=7, algorithm=KFAC
    ),
    "validation": lambda: fit(
        some=data(12), batch_size=5, valid=data(21, ignored=(2, 20), seed=4), test=data(3, (), 5), metrics=["accuracy"]
    ),
    "dropout": lambda: fit(network(nn.Dropout(0.4)), batch_size=7),
    "batch norm": lambda: fit(
        network(nn.BatchNorm1d(4)), data(22), batch_size=11, batch_norm_group_size=3, micro_batch_size=3
    ),
    "batch norm by means": lambda: fit(
        network(nn.BatchNorm1d(4, momentum=None)), data(22), batch_size=8, batch_norm_group_size=4
    ),
    "batch norm over the whole mini-batch": lambda: fit(convolutions(), images(), batch_size=14, valid=images(9)),
    "batch norm in few groups": lambda: fit(
        convolutions(momentum=None, affine=False), images(27), batch_size=15, batch_norm_group_size=9
    ),
    "batch norm with fewer samples than ranks": lambda: fit(
        convolutions(), images(6), batch_size=3, on_nonfinite="skip", metrics=["accuracy"]
    ),
    "other buffers": lambda: fit(Counting(), shuffle=False, batch_size=4),
    "unused weights": lambda: fit(Branches(), batch_size=5, optimizer=functools.partial(SGD, weight_decay=0.1)),
    "sparse gradients": lambda: fit(Rows(True), optimizer=functools.partial(torch.optim.SGD, lr=0.1), batch_size=3),
    "K-FAC": lambda: fit(batch_size=5, algorithm=KFAC),
    "K-FAC with fewer samples than ranks": lambda: fit(
        NotEmpty(), batch_size=1, algorithm=KFAC, stop=descend.Epochs(1)
    ),
    "K-FAC where ranks come through other layers": lambda: fit(Branches(), batch_size=5, algorithm=KFAC),
    "K-FAC, inverses shared out": lambda: fit(
        convolutions(), images(), batch_size=14, algorithm=replace(KFAC, inverse_strategy="each", use_pi=True)
    ),
    "K-FAC, inverses of the first rank": lambda: fit(batch_size=5, algorithm=replace(KFAC, inverse_strategy="root")),
    "sharded LAMB": lambda: fit(
        optimizer=functools.partial(descend.optim.LAMB, lr=0.01, weight_decay=0.1), batch_size=7, shard_optimizer=True
    ),
    "sharded schedule-free": lambda: fit(
        optimizer=functools.partial(descend.optim.ScheduleFreeAdamW, lr=0.01), shard_optimizer=True, valid=data(5, ())
    ),
    "sharded SGLD": lambda: fit(optimizer=functools.partial(descend.optim.SGLD, lr=0.01), shard_optimizer=True),
    "sharded torch": lambda: fit(shard_optimizer=True, batch_size=7, clip_global_norm=0.1),
    "several mini-batches of an update": lambda: fit(batch_size=5, optimizer=ADAM, clip_norm=0.05, strategy=THREE),
    "the same, shared out": lambda: fit(
        batch_size=5, optimizer=ADAM, clip_norm=0.05, strategy=THREE, shard_optimizer=True
    ),
    "skipped, shared out": lambda: fit(
        some=(data()[0].index_fill(0, torch.tensor([4]), float("nan")), data()[1]),
        batch_size=3,
        on_nonfinite="skip",
        optimizer=ADAM,
        clip_global_norm=0.1,
        shard_optimizer=True,
    ),
    "large": lambda: large(shard_optimizer=False),
    "large, shared out": lambda: large(shard_optimizer=True),
    "unused weights, shared out": lambda: fit(
        Branches(), batch_size=5, optimizer=ADAM, clip_global_norm=0.2, shard_optimizer=True
    ),
    "memory runs out on the first rank": lambda: fit(Tight(0), batch_size=10),
    "memory runs out on the second rank": lambda: fit(Tight(1), batch_size=7),
    "micro-batches of other sizes": lambda: fit(Uneven(), batch_size=7, valid=data(9, ())),
    "DistributedDataParallel": wrapped,
    "steps": lambda: fit(batch_size=4, stop=descend.Steps(5)),
    "skipped": lambda: fit(
        some=(data()[0].index_fill(0, torch.tensor([4]), float("nan")), data()[1]), batch_size=3, on_nonfinite="skip"
    ),
}


SINGLE = {"a graph": run, "inference": inference}  # in single precision


def outcome(name: str) -> dict[str, object]:
    """What a test compares."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = {**CASES, **SINGLE}[name]()
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in result.history]
    weights = {key: value.tolist() for key, value in result.weights.items()}
    found = {"weights": weights, "history": rows, "reason": result.reason, "steps": result.steps}
    return found | {"outputs": {key: value.tolist() for key, value in result.outputs.items()}}


if __name__ == "__main__":
    from ranks.start import leave

    def everything():
        leave({name: outcome(name) for name in sys.argv[1:]})

    descend.main(everything)
