"""A parameter server: which mini-batches it hands out, and what becomes of the gradients that come back."""

import functools
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from thread_ranks import Distributed, on_ranks
from toys import Regression, data, run_of

import descend
from descend.errors import ConfigurationError, NumericalError, Stopped
from descend.experiment.build import build_run
from descend.optim import DCASGD
from descend.runtime import Communicator
from descend.train import BatchedIterativeOptimizer, Callbacks, Epochs, Mode
from descend.train.loop import train
from descend.train.run import RunConfig
from descend.train.strategies import channel
from descend.train.strategies.parameter_server import BatchQueue, ParameterServer, ParameterServerRank, Worker
from descend.train.strategies.worker_pool import PendingGradient, SimulatedDelays

FEED = SimpleNamespace(batch_size=4, num_samples=24)


def handed_out(queue, steps):
    found = []
    while (number := queue.pop(steps)) is not None:
        found.append(number)
    return found


def pending(number, epoch=1):
    return PendingGradient(1, epoch, number, 0, {}, 0.0)


def test_mini_batches_are_handed_out_in_order_once():
    queue = BatchQueue()
    queue.begin(FEED, 1, 0, 0)
    assert handed_out(queue, 3) == [0, 1, 2]
    assert queue.pop(3) is None


def test_what_was_pending_is_handed_out_again_after_a_restart():
    queue = BatchQueue()
    queue.begin(FEED, 1, 0, 0)
    taken = [queue.pop(6) for _ in range(4)]
    assert taken == [0, 1, 2, 3]
    state = queue.state([pending(3), pending(1), pending(2, epoch=0)])  # two of them have been applied
    assert state == {"epoch": 1, "next": 4, "again": [1, 3]}
    again = BatchQueue()
    again.load(state)
    again.begin(FEED, 1, 2, 8)
    assert handed_out(again, 6) == [1, 3, 4, 5]
    assert again.state([]) == {"epoch": 1, "next": 6, "again": []}


def test_the_state_of_another_epoch_is_left_alone():
    queue = BatchQueue()
    queue.load({"epoch": 0, "next": 4, "again": [1]})
    queue.begin(FEED, 1, 0, 0)
    assert handed_out(queue, 2) == [0, 1]


@pytest.mark.parametrize(("samples", "taken"), [(7, 7), (5, 5), (8, 8), (9, 8)])
def test_a_partial_mini_batch_may_have_been_taken_where_it_is_the_last(samples, taken):
    queue = BatchQueue()
    queue.begin(SimpleNamespace(batch_size=4, num_samples=samples), 1, 2, taken)
    assert queue.pop(9) == 2


@pytest.mark.parametrize("taken", [4, 7, 9, 3])
def test_an_epoch_of_mini_batches_of_another_size_is_refused(taken):
    with pytest.raises(ConfigurationError, match="epoch 1 was begun with mini-batches of another size"):
        BatchQueue().begin(FEED, 1, 2, taken)
    queue = BatchQueue()
    queue.load({"epoch": 1, "next": 4, "again": [1]})
    with pytest.raises(ConfigurationError, match="another size"):
        queue.begin(FEED, 1, 2, 8)


# ---- a server and its workers, which are threads


@pytest.fixture
def threads(monkeypatch):
    monkeypatch.setattr(channel, "distributed", Distributed)


def carry_out_run(run):
    """Carries a run out as the runner does, without files."""
    strategy, module = run.strategy, run.task.module
    if strategy.serve is not None:
        return SimpleNamespace(module=module, **strategy.serve())
    with strategy.running():
        run.state.end = train(run, Epochs(2))
    state = run.state
    return SimpleNamespace(history=state.history, reason=state.end, run_dir=None, steps=state.step, module=module)


def on_server_and_workers(
    ranks,
    act=lambda run: None,
    task=Regression,
    rule=descend.optim.SGD,
    server=ParameterServer,
    carry_out_run=carry_out_run,
):
    """What the run of each rank comes to; `act(run)` is called with each before it begins."""

    def carry_out(world):
        regression = task()
        run = build_run(
            RunConfig("model0", 0, BatchedIterativeOptimizer()),
            task=regression,
            optimizer=rule(regression.module.parameters(), lr=0.1),
            data={Mode.TRAIN: data(batch_size=3)},
            world=world,
            strategy=server(),
            micro_batch_size=10,
        )
        act(run)
        return carry_out_run(run)

    return on_ranks(ranks, carry_out)


def replayed(history, lamda):
    """Weights after updates by stale gradients, by the rule in float64: Algorithms 1 and 2 of Zheng et al. 2017."""
    module, past = Regression().module, []
    batches = [b for epoch in (0, 1) for b in [list(data(batch_size=3).epoch(epoch))]]
    for row in history:
        if "delay" not in row:
            continue
        now = [p.detach().clone() for p in module.parameters()]
        past.append(now)
        had = past[len(past) - 1 - int(row["delay"])]
        fields = batches[(len(past) - 1) // 4][int(row["mini_batch"])].fields
        x, y = torch.from_numpy(fields["x"]), torch.from_numpy(fields["y"])
        known = ~y.isnan()
        with torch.no_grad():
            for p, w in zip(module.parameters(), had, strict=True):
                p.copy_(w)
        (module(x) - y)[known].square().mean().backward()
        with torch.no_grad():
            for p, w, stale in zip(module.parameters(), now, had, strict=True):
                p.copy_(w - 0.1 * (p.grad + lamda * p.grad**2 * (w - stale)))
                p.grad = None
    return [p.detach() for p in module.parameters()]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("rule", "lamda"), [(descend.optim.SGD, 0.0), (functools.partial(DCASGD, lamda=2.0), 2.0)])
def test_updates_are_those_of_the_rule_with_the_delays_that_happened(threads, ranks, rule, lamda):
    server, *workers = on_server_and_workers(ranks, rule=rule)
    rows = [row for row in server.history if "delay" in row]
    assert (
        sorted(row["mini_batch"] for row in rows[:4]) == sorted(row["mini_batch"] for row in rows[4:]) == [0, 1, 2, 3]
    )
    assert {row["worker"] for row in rows} <= set(range(1, ranks))
    assert max(row["delay"] for row in rows) <= ranks - 2 + 1
    if ranks == 2:
        assert {row["delay"] for row in rows} == {0}
    for found, expected in zip(server.module.parameters(), replayed(server.history, lamda), strict=True):
        torch.testing.assert_close(found.detach(), expected, rtol=1e-12, atol=1e-14)
    assert server.steps == 8
    for worker in workers:
        assert (worker.reason, worker.steps, worker.history) == (server.reason, 8, server.history)
        assert all(map(torch.equal, worker.module.parameters(), server.module.parameters()))


def test_objective_and_metrics_are_those_of_all_samples(threads):
    server, _ = on_server_and_workers(2)
    alone = run_of(Regression(), data(batch_size=3), optimizer=None)
    alone.optimizer.param_groups[0]["momentum"] = 0.0
    train(alone, Epochs(2))
    for row, expected in zip([r for r in server.history if "objective" in r], alone.state.history, strict=True):
        assert row["objective"] == pytest.approx(expected["objective"], rel=1e-12)
        assert row["absolute"] == pytest.approx(expected["absolute"], rel=1e-12)


def test_an_error_of_the_server_ends_its_workers_with_the_same_words(threads):
    def act(run):
        run.task.module.weight.data.fill_(math.inf)

    def problems_of(run):
        try:
            return carry_out_run(run)
        except NumericalError as error:
            return error.problems

    server, *workers = on_server_and_workers(3, act, carry_out_run=problems_of)
    assert server[0].startswith("step 1: the gradient of 'weight', 'bias' is not finite")
    assert server[1].startswith(("rank 1: epoch 1, mini-batch 1", "rank 2: epoch 1, mini-batch 2"))
    assert workers == [server, server]


def test_a_signal_that_a_worker_got_ends_the_server(threads):
    def act(run):
        if isinstance(run.strategy, Worker):
            run.stop.listen(lambda: "SIGTERM", lambda waiting: None)

    with pytest.raises(Stopped, match="stopped by SIGTERM after step 1"):
        on_server_and_workers(2, act)


def test_callbacks_that_look_into_layers_are_refused_in_training(threads):
    def act(run):
        if isinstance(run.strategy, ParameterServerRank):
            run.activations.listen(lambda *seen: None)

    with pytest.raises(ConfigurationError, match="outputs of layers in training, which workers compute"):
        on_server_and_workers(2, act)


class Larger(descend.Callback):
    """Lets a hook set the size of mini-batches to 5."""

    def __init__(self, hook):
        setattr(self, hook, lambda record: setattr(record.run.control, "batch_size", 5))


def with_callback(callback):
    def act(run):
        if isinstance(run.strategy, ParameterServerRank):
            run.callbacks = Callbacks((*run.callbacks.all, callback))

    return act


def test_a_new_batch_size_holds_from_the_next_epoch_on_for_workers_too(threads):
    server, _ = on_server_and_workers(2, with_callback(Larger("after_epoch")))
    assert [row["mini_batch"] for row in server.history if "delay" in row] == [0, 1, 2, 3, 0, 1]
    alone = run_of(Regression(), data(batch_size=3), callbacks=[Larger("after_epoch")])
    alone.optimizer.param_groups[0]["momentum"] = 0.0
    train(alone, Epochs(2))
    for found, expected in zip(server.module.parameters(), alone.task.module.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_a_new_batch_size_within_an_epoch_is_refused(threads):
    with pytest.raises(ConfigurationError, match="epoch 0 was begun with mini-batches of another size"):
        on_server_and_workers(2, with_callback(Larger("after_step")))


def test_what_does_not_go_with_it_is_said_before_the_run_begins():
    run = run_of(Regression(), data())
    world = Communicator(0, 3)
    made = ParameterServer(delays=[0, 1])
    assert made.problems(run, Communicator(), 1) == []
    [simulated] = made.problems(run, world, 1)
    assert simulated.endswith("does not go with simulated delays on 3 ranks: there they happen")
    assert simulated.startswith("strategy=ParameterServer(")
    [tournament] = ParameterServer().problems(run, Communicator(), 2)
    assert tournament.endswith("trainers: there are 2, and one server")
    run.precision.checks_for_overflow = True
    run.data[Mode.TRAIN] = iter(())
    run.config = replace(run.config, settings={"skip_bad": 2}, algorithm=SimpleNamespace())
    said = " ".join(ParameterServer().given_by("asynchronous=ParameterServer()").problems(run, world, 1))
    assert said.count("asynchronous=ParameterServer() does not go with") == 4
    for part in ("loss scale of float16", "as a stream", "skip_bad", "SimpleNamespace is not mini-batch descent"):
        assert part in said


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"delays": [1, -1]}, r"delays\[1\] must be an integer >= 0, got -1"),
        ({"largest_delay": 1.5}, "largest_delay must be an integer >= 0, got 1.5"),
        ({"delays": [1], "largest_delay": 2}, "leave out one"),
    ],
)
def test_settings_out_of_range_are_refused(settings, words):
    with pytest.raises(ConfigurationError, match=words):
        ParameterServer(**settings)


def test_delays_are_given_in_turn_or_drawn_from_their_range():
    given = ParameterServer(delays=[2, 0, 1])
    assert (given.made, given.oldest, [given.delay(t) for t in range(5)]) == (True, 2, [2, 0, 1, 2, 0])
    drawn = ParameterServer(largest_delay=3, seed=1)
    first = [drawn.delay(t) for t in range(400)]
    assert (drawn.made, drawn.oldest, set(first)) == (True, 3, {0, 1, 2, 3})
    assert first == [drawn.delay(t) for t in range(400)]
    assert first != [ParameterServer(largest_delay=3, seed=2).delay(t) for t in range(400)]
    assert not ParameterServer().made


def test_what_asynchronous_may_be():
    assert ParameterServer.of(None) is None
    assert ParameterServer.of(ParameterServer(seed=3)).written == f"asynchronous={ParameterServer(seed=3)!r}"
    with pytest.raises(ConfigurationError, match=r"asynchronous must be descend.ParameterServer\(\) or None, got True"):
        ParameterServer.of(True)


def test_each_rank_has_its_own_strategy_and_one_process_makes_delays(threads):
    described = ParameterServer(delays=[2, 1])
    assert described.delays == (2, 1)
    assert hash(described) == hash(ParameterServer(delays=(2, 1)))
    assert ParameterServer() == ParameterServer(delays=(), largest_delay=0, seed=0, every_steps=1)
    assert (described.oldest, ParameterServer(largest_delay=3).oldest, ParameterServer().oldest) == (2, 3, 0)
    assert type(described.create(Communicator())) is SimulatedDelays
    for world, kind in [(Communicator(0, 2), ParameterServerRank), (Communicator(1, 2), Worker)]:
        made = ParameterServer().create(world)
        assert type(made) is kind
        assert made.world is world


def test_the_gradient_that_is_being_applied_is_not_lost_with_a_checkpoint():
    """The mini-batches of gradients that are under way, and of the one at hand, are handed out again."""
    pool = SimpleNamespace(pending=[pending(2)])
    server = ParameterServerRank(Communicator(0, 2), pool)
    server._queue.begin(FEED, 1, 0, 0)
    assert handed_out(server._queue, 4) == [0, 1, 2, 3]
    assert server.own_state() == {"epoch": 1, "next": 4, "again": [2]}
    server._newest = pending(0)
    state = server.own_state()
    assert state == {"epoch": 1, "next": 4, "again": [0, 2]}
    again = ParameterServerRank(Communicator(0, 2), pool)
    again.load_own_state(state)
    again._queue.begin(FEED, 1, 2, 8)
    assert handed_out(again._queue, 6) == [0, 2, 4, 5]


def test_a_server_begins_busy():
    """The first update may wait for a compiler, and workers must not take that for a crash."""
    world = Communicator(0, 2)
    ParameterServerRank(world, SimpleNamespace())
    assert world.status.is_busy
