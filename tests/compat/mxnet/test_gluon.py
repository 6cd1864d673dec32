"""The gluon.Trainer form."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from descend.compat.mxnet.gluon import TwoBit
from descend.errors import RuleError, StorageError, Unsupported
from descend.optim import SGD, GluonTrainer


def model() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2).double()


def backward(net: torch.nn.Module, seed: int) -> None:
    net.zero_grad()
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    net(x).square().sum().backward()


def test_a_step_divides_by_the_batch_size():
    net = model()
    before = net.weight.detach().clone()
    trainer = GluonTrainer(net.parameters(), "sgd", {"learning_rate": 0.1, "rescale_grad": 0.5})
    backward(net, 0)
    g = net.weight.grad.clone()
    trainer.step(4)
    torch.testing.assert_close(net.weight.detach(), before - 0.1 * 0.5 / 4 * g)
    before = net.weight.detach().clone()
    trainer.step(2)
    torch.testing.assert_close(net.weight.detach(), before - 0.1 * 0.5 / 2 * g)


def test_clipping_between_reduction_and_update():
    net = model()
    before = net.weight.detach().clone()
    trainer = GluonTrainer(net.parameters(), "sgd", {"learning_rate": 1.0})
    backward(net, 0)
    trainer.allreduce_grads()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    g = net.weight.grad.clone()
    trainer.update(1)
    torch.testing.assert_close(net.weight.detach(), before - g)


def test_the_rate_is_shown_and_set():
    trainer = GluonTrainer(model().parameters(), "adam", {"learning_rate": 1e-3})
    assert trainer.learning_rate == 1e-3
    trainer.set_learning_rate(0.5)
    assert trainer.learning_rate == 0.5
    scheduler = ("MultiFactorScheduler", {"step": [1], "factor": 0.1, "base_lr": 1.0, "warmup_steps": 0})
    scheduled = GluonTrainer(model().parameters(), "adam", {"learning_rate": 1.0, "lr_scheduler": scheduler})
    with pytest.raises(RuleError, match="schedule decides"):
        scheduled.set_learning_rate(0.1)


def test_copies_are_summed():
    net = model()
    before = net.weight.detach().clone()
    trainer = GluonTrainer(net.parameters(), "sgd", {"learning_rate": 1.0})
    copies = []
    for seed in (0, 1):
        backward(net, seed)
        copies.append([p.grad.clone() for p in net.parameters()])
    trainer.reduce(copies)
    trainer.update(8)
    torch.testing.assert_close(net.weight.detach(), before - (copies[0][0] + copies[1][0]) / 8)


def test_two_bits_keep_what_they_do_not_send():
    sender = TwoBit(0.5)
    g = torch.tensor([0.3, 0.5, -2.0, 0.0])
    sent = [sender.send(0, g).tolist() for _ in range(3)]
    # by hand: 0.3 → 0, 0.6 − 0.5, 0.4 → 0; 0.5 each time; −0.5 each time with a growing debt
    assert sent == [[0.0, 0.5, -0.5, 0.0], [0.5, 0.5, -0.5, 0.0], [0.0, 0.5, -0.5, 0.0]]
    assert sender.kept[0].tolist() == pytest.approx([0.4, 0.0, -4.5, 0.0])


def test_one_sender_is_not_compressed():
    """MXNet makes no store for one context, so nothing is compressed there."""
    net = model()
    trainer = GluonTrainer(net.parameters(), "sgd", compression_params={"type": "2bit", "threshold": 100.0})
    before = net.weight.detach().clone()
    backward(net, 0)
    trainer.reduce([[p.grad for p in net.parameters()]])
    trainer.update(1)
    assert not torch.equal(net.weight.detach(), before)


def test_a_run_continues_with_the_same_bits(tmp_path):
    whole, half = model(), model()
    arguments = {"learning_rate": 0.01, "wd": 0.1}
    straight = GluonTrainer(whole.named_parameters(), "nadam", arguments)
    stopped = GluonTrainer(half.named_parameters(), "nadam", arguments)
    for seed in range(6):
        if seed == 3:
            stopped.save_states(tmp_path / "states")
            stopped = GluonTrainer(half.named_parameters(), "nadam", {"learning_rate": 9.0})
            stopped.load_states(tmp_path / "states")
            assert stopped.learning_rate == 0.01
        for net, trainer in ((whole, straight), (half, stopped)):
            backward(net, seed)
            trainer.step(4)
    assert torch.equal(whole.weight, half.weight)
    assert torch.equal(whole.bias, half.bias)


def test_states_are_safetensors_and_json(tmp_path):
    net = model()
    trainer = GluonTrainer(net.named_parameters(), "adam", {"learning_rate": 0.01})
    backward(net, 0)
    trainer.step(1)
    trainer.save_states(tmp_path / "states")
    with safe_open(str(tmp_path / "states"), framework="pt") as held:
        assert json.loads(held.metadata()["groups"])[0]["param_names"] == ["weight", "bias"]
        assert set(held.keys()) == {"0.m", "0.v", "0.step", "1.m", "1.v", "1.step"}


def test_what_is_no_state_is_refused(tmp_path):
    trainer = GluonTrainer(model().parameters(), "adam", {"learning_rate": 0.01})
    (tmp_path / "junk").write_bytes(b"\x80\x04junk")
    for file in ("junk", "absent"):
        with pytest.raises(StorageError, match=file):
            trainer.load_states(tmp_path / file)
    other = GluonTrainer(model().parameters(), "sgd", {"momentum": 0.9})
    other.save_states(tmp_path / "sgd")
    with pytest.raises(RuleError, match="nothing was changed"):
        trainer.load_states(tmp_path / "sgd")


def test_weights_without_a_gradient():
    net = model()
    trainer = GluonTrainer(net.parameters(), "sgd")
    backward(net, 0)
    net.bias.grad = None
    with pytest.raises(RuleError, match="weights 1 have no gradient"):
        trainer.step(1)
    bias = net.bias.detach().clone()
    trainer.step(1, ignore_stale_grad=True)
    assert torch.equal(net.bias, bias)


def test_a_dict_is_taken_in_the_order_of_its_keys_and_shared_weights_once():
    net = model()
    trainer = GluonTrainer({"z": net.weight, "a": net.bias}, "sgd", lr_mult=[0.0, 1.0])
    assert [g["param_names"] for g in trainer.optimizer.param_groups] == [["a"], ["z"]]
    shared = GluonTrainer([net.weight, net.bias, net.weight], "sgd")
    assert len(shared.optimizer.param_groups[0]["params"]) == 2
    shared = GluonTrainer({"b": net.weight, "a": net.bias, "c": net.weight}, "sgd")
    assert shared.optimizer.param_groups[0]["param_names"] == ["a", "b"]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (torch.ones(2), "is one tensor"),
        ([{"params": [torch.ones(2)]}], "weights 0: expected a tensor"),
        ({"a": 3}, "weights 0: expected a tensor"),
        ({torch.ones(2)}, "is a set"),
    ],
)
def test_what_is_no_list_of_weights_is_refused(params, words):
    with pytest.raises(RuleError, match=f"gluon.Trainer: .*{words}"):
        GluonTrainer(params, "sgd")


def test_an_optimizer_of_ours():
    net = model()
    with pytest.raises(RuleError, match="belong to an optimizer given by name"):
        GluonTrainer(net.parameters(), SGD(net.parameters()), {"learning_rate": 0.1})
    with pytest.raises(RuleError, match="lr_mult and wd_mult belong to an optimizer given by name"):
        GluonTrainer(net.parameters(), SGD(net.parameters()), lr_mult=[0.0, 1.0])
    with pytest.raises(RuleError, match="over other weights than params"):
        GluonTrainer([net.weight], SGD(net.parameters()))
    before = net.weight.detach().clone()
    trainer = GluonTrainer(net.parameters(), SGD(net.parameters(), lr=1.0))
    backward(net, 0)
    trainer.step(4)
    torch.testing.assert_close(net.weight.detach(), before - net.weight.grad / 4)


def test_what_cannot_be():
    with pytest.raises(Unsupported, match="only MXNet's '2bit'"):
        GluonTrainer(model().parameters(), "sgd", compression_params={"type": "1bit"})
    with pytest.raises(RuleError, match=r"'mxnet-2.0' or 'mxnet-1.9'"):
        GluonTrainer(model().parameters(), "SGD", library="torch")
    trainer = GluonTrainer(model().parameters(), "sgd")
    with pytest.raises(RuleError, match="batch_size must be a number > 0"):
        trainer.step(0)


@pytest.mark.parametrize("batch_size", [0, -1, float("nan"), float("inf"), "4", None, True])
def test_a_batch_has_a_size(batch_size):
    net = model()
    trainer = GluonTrainer(net.named_parameters(), "sgd", {"learning_rate": 0.1})
    backward(net, 0)
    before = net.weight.detach().clone()
    with pytest.raises(RuleError, match="batch_size must be"):
        trainer.step(batch_size)
    assert torch.equal(net.weight, before)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"optimizer": 3}, "optimizer must be MXNet's name of one, or an optimizer of descend.optim, got 3"),
        ({"optimizer_params": [0.1]}, "optimizer_params must be a dict"),
        ({"optimizer_params": {"batch_size": 3}}, "give it to step"),
        ({"optimizer_params": {"lr_mult": [1.0, 2.0]}}, "give it to GluonTrainer itself"),
        ({"library": None}, "library must be 'mxnet-2.0' or 'mxnet-1.9', got None"),
        ({"compression_params": "2bit"}, "compression_params must be a dict"),
        ({"compression_params": {"type": "2bit", "treshold": 1.0}}, "compression_params must be a dict"),
        ({"compression_params": {"type": "2bit", "threshold": "a"}}, "threshold must be a number"),
        ({"lr_mult": {"wieght": 0.1}}, "no tensor is called 'wieght'; did you mean 'weight'"),
    ],
)
def test_what_makes_no_trainer(given, words):
    with pytest.raises(RuleError, match=words):
        GluonTrainer(model().named_parameters(), **{"optimizer": "sgd", **given})


@pytest.mark.parametrize(
    ("copies", "words"),
    [
        ([], "at least one copy"),
        ([[torch.ones(2, 3)]], "copy 0 holds 1 gradients"),
        ([[torch.ones(2, 3), torch.ones(2), torch.ones(2)]], "copy 0 holds 3 gradients"),
        ([[torch.ones(2, 3), torch.ones(2)], [torch.ones(2, 3), torch.ones(3)]], r"copy 1 .* \(3,\)\]"),
        ([[torch.ones(2, 3), "b"]], "copy 0 .* 'str'"),
    ],
)
def test_copies_have_the_gradients_of_the_weights(copies, words):
    net = model()
    trainer = GluonTrainer(net.named_parameters(), "sgd")
    with pytest.raises(RuleError, match=f"reduce: .*{words}"):
        trainer.reduce(copies)
    assert net.weight.grad is None


def test_ignoring_stale_gradients_is_a_flag():
    trainer = GluonTrainer(model().named_parameters(), "sgd")
    with pytest.raises(RuleError, match="ignore_stale_grad must be True or False, got 'no'"):
        trainer.step(1, ignore_stale_grad="no")


@pytest.mark.parametrize("rate", [-1.0, float("nan"), "a", None])
def test_a_rate_that_is_none_is_refused_at_once(rate):
    trainer = GluonTrainer(model().named_parameters(), "sgd", {"learning_rate": 0.1})
    with pytest.raises(RuleError, match="set_learning_rate: learning rate must be"):
        trainer.set_learning_rate(rate)
    assert trainer.learning_rate == 0.1


def test_factors_by_name():
    net = model()
    trainer = GluonTrainer(net.named_parameters(), "sgd", {"learning_rate": 0.1}, lr_mult={"weight": 0.0})
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    backward(net, 0)
    trainer.step(1)
    assert torch.equal(net.weight, before["weight"])
    assert not torch.equal(net.bias, before["bias"])


@pytest.mark.parametrize(("key", "groups"), [("a.b", "[]"), ("0.b", "{"), ("0.b", None), ("0.b", "[3]")])
def test_a_broken_file_is_named(tmp_path, key, groups):
    header = {"format": "descend-gluon-states-1", **({} if groups is None else {"groups": groups})}
    save_file({key: torch.ones(1)}, tmp_path / "states", metadata=header)
    trainer = GluonTrainer(model().named_parameters(), "adam")
    with pytest.raises(StorageError, match="is broken"):
        trainer.load_states(tmp_path / "states")
    with pytest.raises(StorageError, match="cannot be written"):
        trainer.save_states(tmp_path / "nowhere" / "states")
