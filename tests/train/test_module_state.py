"""What a checkpoint keeps of modules and data beside parameters: taken, through JSON and tensors, and given back."""

import pytest
import torch
from thread_ranks import on_ranks
from torch import nn
from toys import data

from descend.data import Loading, open_data
from descend.runtime import Communicator, flatten, unflatten
from descend.train import Mode
from descend.train.module_state import LossBuffers, ModuleExtraState, ReplacedSamples


class Counter(nn.Module):
    def __init__(self, extra=None):
        super().__init__()
        self.extra = extra

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state


def stored(state):
    tensors, plain = flatten(state)
    return unflatten(plain, tensors)


def test_extra_state_of_all_modules_comes_back_by_name():
    given = {"calls": 3, "scale": torch.tensor([1.0, 2.0]), "names": ["a", None]}
    module = nn.ModuleDict({"first": Counter(given), "plain": nn.Linear(1, 1), "second": nn.Sequential(Counter(7))})
    state = ModuleExtraState(module).state_dict()
    assert list(state) == ["first", "second.0"]
    fresh = nn.ModuleDict({"first": Counter(), "plain": nn.Linear(1, 1), "second": nn.Sequential(Counter())})
    ModuleExtraState(fresh).load_state_dict(stored(state))
    assert fresh["second"][0].extra == 7
    found = fresh["first"].extra
    assert (found["calls"], found["scale"].tolist(), found["names"]) == (3, [1.0, 2.0], ["a", None])


def test_modules_that_only_one_side_has_are_left_alone():
    fresh = nn.ModuleDict({"new": Counter("as it was")})
    ModuleExtraState(fresh).load_state_dict({"gone": 3})
    assert fresh["new"].extra == "as it was"


def test_what_no_checkpoint_can_hold_is_left_out_with_a_warning():
    module = nn.ModuleDict({"bad": Counter({"file": object()}), "good": Counter(1)})
    with pytest.warns(UserWarning, match=r"extra state of 'bad' \(Counter\) is not saved.*starts over"):
        state = ModuleExtraState(module).state_dict()
    assert list(state) == ["good"]


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.zeros(1), index


def feeds():
    opened = open_data(Rows(), Loading(batch_size=2, seed=1, skip_bad=4))
    return {Mode.TRAIN: opened, Mode.VALIDATION: data()}


def test_replaced_samples_of_all_ranks_come_back_on_each():
    bad = [{3: "too long", 1: "torn"}, {2: "empty", 1: "torn"}]

    def act(communicator):
        made = feeds()
        made[Mode.TRAIN].reader.bad.update(bad[communicator.rank])
        return ReplacedSamples(made, communicator).state_dict()

    first, second = on_ranks(2, act)
    assert first == second == {"train": [[1, "torn"], [2, "empty"], [3, "too long"]]}
    made = feeds()
    ReplacedSamples(made, Communicator()).load_state_dict(stored(first))
    assert made[Mode.TRAIN].reader.bad == {1: "torn", 2: "empty", 3: "too long"}


def test_samples_replaced_since_then_are_forgotten():
    made = feeds()
    made[Mode.TRAIN].reader.bad[0] = "since"
    ReplacedSamples(made, Communicator()).load_state_dict({})
    assert made[Mode.TRAIN].reader.bad == {}


class _Centred(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.register_buffer("weight", torch.tensor(weight))
        self.register_buffer("center", torch.zeros(2))


def test_buffers_of_a_loss_that_have_changed_come_back_and_its_settings_do_not():
    loss = _Centred(1.0)
    buffers = LossBuffers(loss)
    assert buffers
    assert buffers.state_dict() == {}
    loss.center += 3
    found = buffers.state_dict()
    assert list(found) == ["center"]
    other = _Centred(2.0)
    LossBuffers(other).load_state_dict(stored(found))
    assert float(other.weight) == 2
    assert other.center.tolist() == [3, 3]
    other.center = torch.zeros(3)
    with pytest.warns(UserWarning, match=r"'center', a buffer of the loss, starts over: it is \(2,\)"):
        LossBuffers(other).load_state_dict(found)
    assert not LossBuffers(nn.CrossEntropyLoss())
    assert not LossBuffers(None)
