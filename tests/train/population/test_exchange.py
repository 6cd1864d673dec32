"""Models that go from trainer to trainer: what is captured and restored, and each way of sending them."""

import copy
import threading

import pytest
import torch
from thread_ranks import Distributed, Group, ThreadRank, on_ranks
from toys import Regression, data, run_of

from descend.launch import TrainerLayout
from descend.runtime import Communicator
from descend.train import Callback, ExchangeStrategy
from descend.train.loop import train
from descend.train.population import exchange
from descend.train.population.exchange import STATE, ModelState, ModelTransport, capture_model, restore_model
from descend.train.stopping import Steps


class Counting(Callback):
    def __init__(self):
        self.count = 0

    def after_step(self, step):
        self.count += 1

    def state(self):
        return {"count": self.count}

    def load_state(self, state):
        self.count = state["count"]


def trained(steps):
    watch = Counting()
    run = run_of(Regression(), data(ignored=()), callbacks=[watch])
    train(run, Steps(steps))
    run.state.algorithm = {"own": steps, STATE: f"of trainer {steps}"}
    return run, watch


def parameters(run):
    return {name: p.detach().clone() for name, p in run.parameters.items()}


def test_a_model_continues_in_another_trainer_with_the_same_bits():
    (first, _), (second, watch) = trained(4), trained(1)
    restore_model(second, capture_model(first))
    assert (second.state.step, watch.count) == (4, 4)
    assert second.state.algorithm == {"own": 4, STATE: "of trainer 1"}  # the tournament is the trainer's own
    for run in (first, second):
        run.optimizer.zero_grad()
        sum(p.sum() ** 2 for p in run.parameters.values()).backward()
        run.optimizer.step()  # with momentum, so the state of the optimizer counts
    found = parameters(second)
    assert all(torch.equal(p, found[name]) for name, p in parameters(first).items())


def test_what_was_captured_does_not_change_with_the_run_nor_with_those_that_load_it():
    run, _ = trained(2)
    state, before = capture_model(run), parameters(run)
    train(run, Steps(5))
    restore_model(run, state)
    assert all(torch.equal(p, before[name]) for name, p in parameters(run).items())
    kept = copy.deepcopy(state.tensors)
    train(run, Steps(5))
    assert all(torch.equal(tensor, kept[name]) for name, tensor in state.tensors.items())


def test_of_named_weights_only_these_and_their_state_are_sent():
    (first, _), (second, _) = trained(4), trained(1)
    momentum = second.optimizer.state[second.parameters["bias"]]["momentum_buffer"].clone()
    bias = second.parameters["bias"].detach().clone()
    restore_model(second, capture_model(first, ["weight"]))
    assert torch.equal(second.parameters["weight"], first.parameters["weight"])
    assert torch.equal(second.parameters["bias"], bias)
    assert torch.equal(second.optimizer.state[second.parameters["bias"]]["momentum_buffer"], momentum)
    for name, one in (("weight", True), ("bias", False)):
        buffers = [run.optimizer.state[run.parameters[name]]["momentum_buffer"] for run in (first, second)]
        assert torch.equal(*buffers) is one


def test_weights_alone_leave_optimizer_and_step():
    (first, _), (second, watch) = trained(4), trained(1)
    state = capture_model(first, whole=False)
    assert all("optimizer" not in name for name in state.tensors)
    restore_model(second, state)
    assert torch.equal(second.parameters["weight"], first.parameters["weight"])
    assert (second.state.step, watch.count) == (1, 1)


def model(value):
    tensors = {
        "a": torch.full((2, 3), float(value)),
        "half": torch.tensor([value], dtype=torch.bfloat16),
        "number": torch.tensor(value),
        "none": torch.zeros(0, 2),
    }
    return ModelState(tensors, {"step": value, "names": ["tensor:a"]})


def same(found, value):
    expected = model(value)
    assert found.plain == expected.plain
    assert sorted(found.tensors) == sorted(expected.tensors)
    for name, tensor in expected.tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name], tensor)
    return True


@pytest.fixture
def current(monkeypatch):
    """Point-to-point messages between threads, each of which sets its communicator here."""
    here = threading.local()

    class PointToPoint:
        @staticmethod
        def send(tensor, rank):
            Distributed.send(tensor, here.rank.group, rank)

        @staticmethod
        def recv(tensor, rank):
            Distributed.recv(tensor, here.rank.group, rank)

    monkeypatch.setattr(exchange, "distributed", PointToPoint)
    return here


def delivered(current, moves, way, numbers=(1, 2, 3)):
    """Three trainers on a rank each, whose models hold their numbers; what each has received, and the bytes sent."""
    layout = TrainerLayout(3, 3, 1)

    def act(communicator):
        current.rank, own = communicator, communicator.rank
        transport = ModelTransport(communicator, layout, {own: Communicator()}, "net")
        taken = {own: model(numbers[own])}
        return transport.deliver(iter(moves), taken, way, 5), transport.sent_bytes

    return on_ranks(3, act)


@pytest.fixture(params=["checkpoint_binary", "sendrecv_weights", "checkpoint_file"])
def way(request, tmp_path):
    folder = str(tmp_path / "shared") if request.param == "checkpoint_file" else None
    return ExchangeStrategy(request.param, checkpoint_dir=folder)


def test_models_go_where_the_moves_send_them(current, way):
    (first, sent), (second, _), (third, none) = delivered(current, [(0, 1), (1, 0), (0, 2)], way)
    assert (list(first), list(second), list(third)) == ([0], [1], [2])
    assert same(first[0], 2)
    assert same(second[1], 1)
    assert same(third[2], 1)
    assert sent > 0
    assert none == 0


def test_files_lie_below_the_name_of_the_model_and_the_trainer(current, tmp_path):
    delivered(current, [(2, 0)], ExchangeStrategy("checkpoint_file", checkpoint_dir=str(tmp_path)))
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*")] == ["net_trainer2/step-5"]


def test_trainers_of_one_process_send_nothing():
    layout = TrainerLayout(2, 1, 1)
    transport = ModelTransport(Communicator(), layout, {0: Communicator(), 1: Communicator()}, "net")
    found = transport.deliver([(0, 1), (1, 0)], {0: model(1), 1: model(2)}, ExchangeStrategy(), 1)
    assert same(found[1], 1)
    assert same(found[0], 2)
    assert transport.sent_bytes == 0


def test_all_ranks_of_a_trainer_get_the_model_that_its_first_rank_received(current):
    """Two trainers of two ranks each: rank 0 sends to rank 2, which broadcasts to rank 3."""
    layout, blocks = TrainerLayout(2, 4, 2), [Group(2), Group(2)]

    def act(communicator):
        current.rank, trainer = communicator, communicator.rank // 2
        own = ThreadRank.of(blocks[trainer], communicator.rank % 2)
        transport = ModelTransport(communicator, layout, {trainer: own}, "net")
        return transport.deliver([(0, 1)], {trainer: model(trainer)}, ExchangeStrategy(), 1)

    first, second, third, fourth = on_ranks(4, act)
    assert (first, second) == ({}, {})
    assert same(third[1], 0)
    assert same(fourth[1], 0)
