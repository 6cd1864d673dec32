"""Data as users hand them in become rows of tensors: inputs as the module takes them, the target last."""

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import descend
from descend.errors import ConfigurationError
from descend.study import Arm, StudyTask, log

X = torch.arange(36.0).reshape(12, 3)
Y = torch.arange(12) % 2


class Two(nn.Module):
    """Takes a and b, and not in the order of the data."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, a, b):
        return self.first(a) - self.second(b)


class Named(Dataset):
    """Samples with names, the target first."""

    def __len__(self):
        return len(X)

    def __getitem__(self, place):
        return {"label": int(Y[place]), "b": X[place], "a": -X[place]}


def prepared(train, model=Two, validation=None):
    return StudyTask(model, nn.CrossEntropyLoss(), train, validation if validation is not None else train).prepared()


@pytest.mark.parametrize(
    "train",
    [
        TensorDataset(X, Y),
        DataLoader(TensorDataset(X, Y), batch_size=5, shuffle=True),
        DataLoader(TensorDataset(X, Y), batch_size=5, drop_last=True),
        [X, Y],
        (X.numpy(), Y.numpy()),
        {"x": X, "y": Y},
        {"y": Y, "x": X},
    ],
    ids=["dataset", "shuffled loader", "loader", "list", "arrays", "named", "target first"],
)
def test_all_samples_in_their_order(train):
    rows = prepared(train, lambda: nn.Linear(3, 2)).train
    assert torch.equal(rows[0], X)
    assert torch.equal(rows[1], Y)


@pytest.mark.parametrize("train", [Named(), DataLoader(Named(), batch_size=5)], ids=["dataset", "loader"])
def test_fields_go_to_the_arguments_of_their_names(train):
    rows = prepared(train).train
    assert [torch.equal(one, other) for one, other in zip(rows, (-X, X, Y), strict=True)] == [True] * 3


def test_a_loader_over_some_samples_gives_those():
    chosen = [7, 2, 9]
    loader = DataLoader(TensorDataset(X, Y), batch_size=2, sampler=SubsetRandomSampler(chosen))
    assert torch.equal(prepared(loader, lambda: nn.Linear(3, 2)).train[0], X[[2, 7, 9]])


def test_a_collate_function_is_used():
    loader = DataLoader(
        TensorDataset(X, Y),
        batch_size=5,
        collate_fn=lambda samples: (2 * torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])),
    )
    assert torch.equal(prepared(loader, lambda: nn.Linear(3, 2)).train[0], 2 * X)


def test_one_tensor_is_its_own_target():
    rows = StudyTask(lambda: nn.Linear(3, 3), nn.MSELoss(), (X,), metrics={}).prepared().train
    assert torch.equal(rows[0], rows[1])


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(X, Y, strict=True)


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ((X, Y[:5]), "different numbers of samples: 0 12, 1 5"),
        ((X[:0], Y[:0]), "no samples"),
        ({"x": X, "z": Y}, "which field is the target"),
        ({"a": X, "c": X, "y": Y}, "field 'c' and the module's forward takes a, b"),
        (DataLoader(TensorDataset(X, Y), sampler=WeightedRandomSampler([1.0] * 12, 12)), "WeightedRandomSampler"),
        (
            DataLoader(TensorDataset(X, Y), batch_sampler=BatchSampler(RandomSampler(range(12)), 2, False)),
            "pass its dataset",
        ),
        (DataLoader(Stream(), batch_size=2), "pass its dataset"),
    ],
)
def test_what_cannot_be_read_is_named(train, said):
    with pytest.raises(ConfigurationError, match=said):
        prepared(train)


def test_one_sample_is_too_few():
    with pytest.raises(ConfigurationError, match="there is one sample"):
        StudyTask(lambda: nn.Linear(3, 2), nn.CrossEntropyLoss(), (X[:1], Y[:1])).prepared()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.inner, self.head = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.layer(self.inner(x[..., None])[0]).mean(1))


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        out = self.layer(x)
        return out, out.exp()


class Steepest(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p -= group["lr"] * p.grad


def summed(output, target):
    return nn.functional.cross_entropy(output[0], target, reduction="sum"), len(target)


@pytest.mark.parametrize(
    ("model", "loss", "arms"),
    [
        (Attention, "cross_entropy", ["Muon"]),
        (Pair, summed, {"mine": Steepest, "ours": Arm("SGD", {"lr": log(0.01, 0.1)}, {}, "cosine")}),
        (lambda: nn.Linear(3, 2), nn.CrossEntropyLoss(ignore_index=1), ["ScheduleFreeAdamW", "SGLD"]),
    ],
    ids=["draws of its own", "a pair and a sum", "ignored labels"],
)
def test_a_comparison_of_what_is_unusual_comes_to_its_end(model, loss, arms):
    data = {"train": (X / 36, Y), "validation": (X / 36, Y)}
    sizes = {"batch_size": [4, 12], "steps": {4: 6, 12: 3}, "trials": 2, "seeds": 2, "shortlist": 1, "searches": 1}
    result = descend.compare(model, loss, data, arms, **sizes, evaluations=2)
    statuses = {status for cost in result.costs.values() for status in cost.statuses}
    assert statuses <= {"done", "collapsed"}
    assert sum(sum(cost.statuses.values()) for cost in result.costs.values()) == 2 * len(arms) * 4


# ---- files


def table(path, kinds=("up", "down")):
    """Twelve rows: columns a and b, a number as a target, and a class as text."""
    lines = ["a,b,price,kind"] + [f"{i},{-i},{2 * i}.5,{kinds[i % 2]}" for i in range(12)]
    path.write_text("\n".join(lines))
    return path


def of_file(train, loss=nn.MSELoss, **options):
    return StudyTask(lambda: nn.Linear(2, 1), loss(), train, metrics={}, **options).prepared()


def test_columns_of_a_file_are_one_input_and_the_target_is_named_or_the_readers(tmp_path):
    """As for `fit`: columns that hold a number each are one input of a module that takes one."""
    price = torch.arange(12.0) * 2 + 0.5
    columns = torch.stack([torch.arange(12.0), -torch.arange(12.0)], dim=1)
    fields = ["a", "b", "price"]
    named = descend.data.read(table(tmp_path / "t.csv"), fields=fields)
    chosen = descend.data.read(tmp_path / "t.csv", fields=fields, target="price")
    for task in (
        of_file(named, targets=["price"], validation=named),
        of_file(named, targets="price", validation=named),
        of_file(chosen, validation=chosen),
    ):
        assert torch.equal(task.train[0], columns)
        assert task.train[0].dtype == torch.float32  # the file has integers, the weights are float32
        assert torch.equal(task.train[1], price)


def test_classes_of_a_path_have_the_same_numbers_in_all_roles(tmp_path):
    for name, kinds in (("train.csv", ("up", "down")), ("validate.csv", ("up", "up"))):
        table(tmp_path / name, kinds)

    class Four(nn.Module):
        def forward(self, a, b, price):
            return torch.stack([a, b + price], dim=1)

    train, held = str(tmp_path / "train.csv"), str(tmp_path / "validate.csv")
    task = StudyTask(Four, nn.CrossEntropyLoss(), train, held, targets=["kind"]).prepared()
    assert task.train[-1].tolist() == [1, 0] * 6  # in the order of the alphabet
    assert task.validation[-1].tolist() == [1] * 12


def test_targets_that_are_not_one_field_are_errors(tmp_path):
    path = table(tmp_path / "t.csv")
    reader = descend.data.read(path, fields=["a", "b", "price"])
    for targets, words in ((["a", "b"], "name of one field"), (1, "name of one field"), (["pric"], "mean 'price'")):
        with pytest.raises(ConfigurationError, match=words):
            of_file(reader, targets=targets)
    with pytest.raises(ConfigurationError, match=r"pass targets=\['...'\]"):
        of_file(reader)


def test_a_stack_has_its_samples_where_its_modules_are():
    """As on a GPU, whose place the device "meta" takes here, and traces are kept for the next stack."""
    rows = torch.randn(6, 3), torch.zeros(6, dtype=torch.long)
    here = StudyTask(lambda: nn.Linear(3, 2), "cross_entropy", rows, rows, rows).prepared()
    assert here.beside(here.module(0)) is here
    task = here.on_device("meta")
    there = task.beside(task.module(0))
    assert {part.device.type for split in (there.train, there.validation, there.test) for part in split} == {"meta"}
    assert here.train[0].device.type == "cpu"
    assert there.traces is task.traces
    untested = StudyTask(lambda: nn.Linear(3, 2), "cross_entropy", rows, rows).prepared().on_device("meta")
    assert untested.beside(untested.module(0)).test is None


def test_fewer_samples_are_some_of_each_role():
    x = torch.arange(10.0)
    task = StudyTask(lambda: nn.Linear(1, 1), nn.MSELoss(), (x[:, None], x), (x[:, None] + 100, x + 100)).prepared()
    few = task.with_fewer(4, 50)
    assert few.train[1].tolist() == [0.0, 2.0, 4.0, 6.0]
    assert torch.equal(few.train[0][:, 0], few.train[1])
    assert torch.equal(few.validation[1], task.validation[1])
