"""Several trainers on one process: what moves with a model, who loses, what is written, and going on in the middle."""

import functools
import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from ranks.tournament import Watch, optimizer, outcome, play, strategy
from sklearn.datasets import load_digits
from torch import nn

import descend
from descend.errors import ConfigurationError, Stopped
from descend.runtime import read_state, read_weights
from descend.train.population.runner import beats


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def lineage(folder="run"):
    return [json.loads(line) for line in Path(folder, "tournament.jsonl").read_text().splitlines()]


def exchanged(folder, trainer, step):
    """Weights and optimizer tensors of the checkpoint that an exchange has left."""
    checkpoint = Path(folder) / f"trainer{trainer}" / "checkpoints" / f"step-{step}"
    tensors, state = read_state(checkpoint)
    return {**read_weights(checkpoint), **tensors}, state


class Rates(descend.Callback):
    """Keeps by trainer the rate of each step, and what the weights would be with it."""

    kept: dict[int, list[tuple[int, float, float]]] = {}  # noqa: RUF012  # copies of this callback share it

    def after_backward(self, step):
        p = next(step.module.parameters())
        self.before, self.gradient = p.detach().clone(), p.grad.clone()

    def after_step(self, step):
        rate = step.optimizer.param_groups[0]["lr"]
        moved = self.before - next(step.module.parameters()).detach()
        buffer = step.optimizer.state[next(step.module.parameters())]["momentum_buffer"]
        wrong = float((moved - rate * buffer).abs().max())
        self.kept.setdefault(descend.distributed.trainer(), []).append((step.step, rate, wrong))


def test_losers_take_all_of_the_best_and_the_changed_rate_is_in_force():
    Rates.kept = {}
    play(rounds=1, trainers=4, callbacks=[Rates()])
    best, _ = exchanged("run", 2, 5)
    for trainer in (0, 1, 3):
        other, others_state = exchanged("run", trainer, 5)
        assert best.keys() == other.keys()
        assert any("momentum" in name for name in best)
        for name, tensor in best.items():
            assert torch.equal(tensor, other[name]), name
        assert others_state["parts"]["train"]["contexts"]["train"]["step"] == 5
        assert others_state["parts"]["train"]["contexts"]["train"]["epoch"] == 1
    rows = {row["trainer"]: row for row in lineage()}
    assert [rows[trainer]["took"] for trainer in range(4)] == [2, 2, None, 2]
    assert rows[2]["scores"]["objective"] < min(rows[trainer]["scores"]["objective"] for trainer in (0, 1, 3))
    for trainer in (0, 1, 3):
        before, after = rows[trainer]["changed"]["lr"]
        assert before == 0.1
        assert after in (0.12, 0.1 / 1.5)  # 0.15 would be too much
        used = [rate for step, rate, _ in Rates.kept[trainer] if step > 5]
        assert used == [after] * 5
    assert [rate for _, rate, _ in Rates.kept[2]] == [0.1] * 10
    assert max(wrong for kept in Rates.kept.values() for _, _, wrong in kept) < 1e-12


@pytest.mark.slow
def test_a_changed_rate_stays_within_its_bounds():
    play(rounds=6, trainers=3)
    changed = [row["changed"]["lr"][1] for row in lineage() if row["changed"]]
    assert len(changed) == 12
    assert (min(changed), max(changed)) == (0.05, 0.12)


@pytest.mark.slow
def test_the_log_replays_the_history():
    """From the rows alone one knows whose weights each trainer has; the checkpoints agree."""
    play("binary", rounds=3, trainers=5)
    for number in range(3):
        rows = [row for row in lineage() if row["round"] == number]
        assert [row["trainer"] for row in rows] == list(range(5))
        assert sum(row["partner"] is None for row in rows) == 1  # the odd one
    last = [row for row in lineage() if row["round"] == 2]
    for row in last:
        own, _ = exchanged("run", row["trainer"], 15)
        source, _ = exchanged("run", row["partner"] if row["took"] is not None else row["trainer"], 15)
        taken = lineage_of(last, row)
        if taken == row["took"]:
            assert all(torch.equal(own[name], source[name]) for name in own)
        met = next((other for other in last if other["trainer"] == row["partner"]), row)
        if met is not row and row["took"] is None:
            assert row["scores"]["objective"] <= row["partner_scores"]["objective"]
        elif row["took"] is not None:
            assert row["partner_scores"]["objective"] < row["scores"]["objective"]
    lines = [line for line in Path("run/log.txt").read_text().splitlines() if line.startswith("LTFB")]
    assert len(lines) == 15
    assert lines[0].startswith('LTFB (model "Sequential", step 0): trainer 0 selected model from trainer ')


def lineage_of(rows, row):
    """Whose model a trainer has, if that one has not taken another's in the same exchange."""
    source = next((other for other in rows if other["trainer"] == row["took"]), None)
    return row["took"] if source is not None and source["took"] is None else None


@pytest.mark.slow
@pytest.mark.parametrize("way", ["sendrecv", "file"])
def test_it_does_not_matter_what_a_model_travels_by(way):
    by_memory = outcome(play("binary", trainers=4, run_dir="memory"))
    assert outcome(play(way, trainers=4, run_dir="other")) == by_memory
    assert lineage("memory") == lineage("other")


def test_tournament_samples_never_train():
    class Seen(descend.Callback):
        trained: set[tuple[float, ...]] = set()  # noqa: RUF012  # copies share it
        judged: set[tuple[float, ...]] = set()  # noqa: RUF012

        def before_step(self, step):
            self.trained.update(map(tuple, next(iter(step.batch.fields.values())).tolist()))

        def before_evaluation_step(self, step):
            if step.mode is descend.Mode.TOURNAMENT:
                self.judged.update(map(tuple, next(iter(step.batch.fields.values())).tolist()))

    play("binary", trainers=4, run_dir=None, callbacks=[Seen()])
    assert (len(Seen.trained), len(Seen.judged)) == (23, 9)
    assert not Seen.trained & Seen.judged


@pytest.mark.slow
def test_nan_loses_and_a_trainer_that_has_failed_comes_back_by_the_exchange():
    class Poison(descend.Callback):
        def after_backward(self, step):
            if descend.distributed.trainer() == 2 and step.step == 3:
                for p in step.module.parameters():
                    p.grad.fill_(math.nan)

    result = play(rounds=1, trainers=3, callbacks=[Poison()])
    rows = {row["trainer"]: row for row in lineage()}
    assert math.isnan(rows[2]["scores"]["objective"])
    assert rows[2]["took"] in (0, 1)
    assert result.trainers[2].reason == "finished 1 of 1 epochs"
    assert all(bool(torch.isfinite(tensor).all()) for tensor in result.trainers[2].weights.values())


class Failing(descend.Callback):
    """Some trainers come to a gradient that is not finite, in their first round."""

    def __init__(self, trainers):
        self.trainers = trainers

    def after_backward(self, step):
        if descend.distributed.trainer() in self.trainers and step.step == 3:
            for p in step.module.parameters():
                p.grad.fill_(math.nan)


def took(number=0):
    return {row["trainer"]: row["took"] for row in lineage() if row["round"] == number}


@pytest.mark.slow
def test_all_take_the_one_model_that_is_left_however_many_may_keep_theirs():
    best = descend.LTFB(metalearning=descend.TruncationSelectionExchange({"objective": 0}, 3), metalearning_steps=1)
    result = play(rounds=1, trainers=4, callbacks=[Failing((0, 2, 3))], algorithm=best)
    assert took() == {0: 1, 1: None, 2: 1, 3: 1}
    assert {one.reason for one in result.trainers} == {"finished 1 of 1 epochs"}


@pytest.mark.slow
def test_evolution_copies_no_model_that_has_failed():
    one = descend.LTFB(metalearning=descend.RegularizedEvolution("objective", 0, sample_size=1), metalearning_steps=4)
    play(rounds=4, trainers=3, callbacks=[Failing((0, 1))], algorithm=one)
    failed = {0, 1}
    for number in range(4):
        for taker, giver in took(number).items():
            assert giver not in failed
            failed -= {taker} if giver is not None else set()


@pytest.mark.slow
def test_one_of_three_sits_out_and_where_models_are_equal_each_keeps_its_own():
    same = functools.partial(torch.optim.SGD, lr=0.0)
    play("binary", rounds=2, trainers=3, optimizer=same)
    for number in range(2):
        rows = [row for row in lineage() if row["round"] == number]
        assert sorted(row["partner"] is None for row in rows) == [False, False, True]
        assert set(took(number).values()) == {None}


SCHEDULED = functools.partial(descend.optim.SGD, lr=lambda updates: 0.1 / (1 + updates))


@pytest.mark.parametrize("trainers", [1, 2])
@pytest.mark.parametrize(
    ("mutation", "optimizer", "message"),
    [
        ({"strategy": "perturb_hyperparameters"}, SCHEDULED, "'lr' follows a schedule"),
        ({"strategy": "perturb_hyperparameters", "options": "lr momentun"}, optimizer, "'momentun'.*mean 'momentum'"),
        ({"strategy": "replace_activation"}, optimizer, "needs a graph"),
        ({"strategy": "hybrid_mutation"}, optimizer, "needs a graph"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused_before_anything_runs(trainers, mutation, optimizer, message):
    exchange = descend.TruncationSelectionExchange({"objective": 0}, 1, descend.MutationStrategy(**mutation))
    algorithm = descend.LTFB(metalearning=exchange, metalearning_steps=1)
    with pytest.raises(ConfigurationError, match=message):
        play(rounds=1, trainers=trainers, optimizer=optimizer, algorithm=algorithm)
    assert not Path("run").exists()


def test_a_model_beats_another_in_every_metric_or_not_at_all():
    metrics = {
        "loss": descend.train.MetricStrategy.LOWER_IS_BETTER,
        "acc": descend.train.MetricStrategy.HIGHER_IS_BETTER,
    }
    assert beats({"loss": 1.0, "acc": 0.9}, {"loss": 2.0, "acc": 0.8}, metrics)
    assert not beats({"loss": 1.0, "acc": 0.8}, {"loss": 2.0, "acc": 0.8}, metrics)  # as good in one: the own wins
    assert not beats({"loss": 3.0, "acc": 0.9}, {"loss": 2.0, "acc": 0.8}, metrics)
    assert beats({"loss": 1.0, "acc": 0.9}, {"loss": math.nan, "acc": math.nan}, metrics)
    assert not beats({"loss": math.nan, "acc": 0.9}, {"loss": 1.0, "acc": 0.8}, metrics)
    assert not beats({"loss": math.nan, "acc": math.nan}, {"loss": math.nan, "acc": math.nan}, metrics)


@pytest.mark.slow
def test_evolution_replaces_the_oldest():
    play("evolution", rounds=4, trainers=3)
    for number in range(4):
        rows = [row for row in lineage() if row["round"] == number]
        assert [row["trainer"] for row in rows if row["took"] is not None] == [number % 3]


@pytest.mark.parametrize(
    ("trainer", "at"),
    [(0, 8), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 3), (2, 12), (1, 15)))],
)
def test_a_tournament_goes_on_where_it_was_stopped(trainer, at):
    whole = play("binary", trainers=3, run_dir="whole")
    with pytest.raises(Stopped, match="stopped by SIGTERM"):
        play("binary", trainers=3, callbacks=[Watch("signal", trainer, at)])
    result = play("binary", trainers=3, resume=True)
    assert outcome(result) == outcome(whole)
    assert lineage() == lineage("whole")


@pytest.mark.parametrize(("trainer", "at"), [(1, 2), pytest.param(0, 1, marks=pytest.mark.slow)])
def test_a_signal_in_a_tournament_waits_for_its_end(trainer, at):
    """In the second one a trainer has its partner's model for the time being."""
    whole = play("binary", trainers=2, run_dir="whole")
    with pytest.raises(Stopped, match=r"trainer 0: stopped by SIGTERM after step 6"):
        play("binary", trainers=2, callbacks=[Watch("signal in a tournament", trainer, at)])
    assert {row["round"] for row in lineage()} == {0}
    result = play("binary", trainers=2, resume=True)
    assert outcome(result) == outcome(whole)
    assert lineage() == lineage("whole")


@pytest.mark.slow
def test_trainers_go_back_to_a_round_that_all_of_them_know():
    """As after a crash between the saves of two trainers: the newer checkpoint of one is not used."""
    whole = play("binary", trainers=2, run_dir="whole")
    play("binary", trainers=2)
    for step in (10, 15):
        shutil.rmtree(f"run/trainer1/checkpoints/step-{step}", ignore_errors=True)
    result = play("binary", trainers=2, resume=True)
    assert outcome(result) == outcome(whole)
    assert lineage() == lineage("whole")


class Steps(descend.Callback):
    """Lists the steps that each trainer makes."""

    made: list[tuple[int, int]] = []  # noqa: RUF012  # copies of this callback share it

    def after_step(self, step):
        self.made.append((descend.distributed.trainer(), step.step))


def apart(run_dir, resume=False, trainers=2):
    """Trainers that do not meet, one after the other."""
    settings = {"algorithm": None, "callbacks": [Steps()]}
    return play(run_dir=run_dir, resume=resume, trainers=trainers, **settings)


def test_a_trainer_that_was_killed_before_its_first_checkpoint_begins_and_the_other_keeps_its_own():
    whole = apart("run")
    shutil.rmtree("run/trainer1")  # as it is when the process dies while the second one trains
    Steps.made = []
    result = apart("run", resume=True)
    assert outcome(result) == outcome(whole)
    assert {trainer for trainer, _ in Steps.made} == {1}


@pytest.mark.parametrize(("had", "now"), [(2, 3), (1, 2)])
def test_another_number_of_trainers_is_refused_and_nothing_is_changed(had, now):
    apart("run", trainers=had)
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    message = f"has {had} trainers? and cannot be continued with {now}; nothing was"
    with pytest.raises(ConfigurationError, match=message):
        apart("run", resume=True, trainers=now)
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before
    assert len(apart("run", resume=True, trainers=None).trainers) == (had if had > 1 else 0)


@pytest.mark.slow
def test_sixteen_trainers_on_one_process():
    result = play(rounds=1, trainers=16, run_dir=None)
    assert [one.trainer for one in result.trainers] == list(range(16))
    assert len({tuple(one.history[0].items())[3] for one in result.trainers}) > 1  # each has an order of its own


def test_what_does_not_fit_is_said_before_anything_begins():
    with pytest.raises(ConfigurationError, match="role 'tournament'"):
        descend.LTFB(metalearning=strategy("binary")).check([], ["train"])
    with pytest.raises(ConfigurationError, match=r"metric 'acuracy' .*did you mean 'accuracy'"):
        descend.LTFB(metalearning=descend.TruncationSelectionExchange({"acuracy": 1}, 1)).check(
            ["accuracy"], ["tournament"]
        )
    with pytest.raises(ConfigurationError, match="trainers must be an integer >= 1"):
        play(trainers=0)


def test_a_single_trainer_plays_all_its_rounds():
    result = descend.fit(
        torch.nn.Linear(3, 3).double(),
        "cross_entropy",
        (torch.randn(8, 3, dtype=torch.float64), torch.randint(0, 3, (8,))),
        tournament=(torch.randn(4, 3, dtype=torch.float64), torch.randint(0, 3, (4,))),
        optimizer=optimizer,
        batch_size=4,
        stop=descend.Epochs(1),
        algorithm=descend.LTFB(metalearning=strategy("binary"), metalearning_steps=2),
    )
    assert result.steps == 6


class AfterExchange(descend.Callback):
    """Keeps what a trainer's second round begins with."""

    def __init__(self, begins_at, seen):
        self.begins_at, self.seen = begins_at, seen

    def __deepcopy__(self, _):
        return AfterExchange(self.begins_at, self.seen)  # one list for all trainers

    def before_step(self, step):
        if step.step == self.begins_at:
            weights = {name: p.detach().clone() for name, p in step.module.named_parameters()}
            self.seen[descend.distributed.trainer()] = weights


def test_the_best_of_four_on_the_digits_is_taken_by_all(tmp_path):
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    seen: dict[int, dict[str, torch.Tensor]] = {}
    mutation = descend.MutationStrategy("perturb_hyperparameters", factor=1.3, lowest=0.05, highest=0.9)
    higher = descend.RandomPairwiseExchange.MetricStrategy.HIGHER_IS_BETTER
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    result = descend.fit(
        module,
        "cross_entropy",
        (x[:1200], y[:1200]),
        tournament=(x[1200:], y[1200:]),
        optimizer=lambda named: torch.optim.SGD(named, lr=0.5 if descend.distributed.trainer() == 2 else 1e-4),
        batch_size=50,
        stop=descend.Epochs(1),
        algorithm=descend.LTFB(
            metalearning=descend.TruncationSelectionExchange({"accuracy": higher}, 1, mutation), metalearning_steps=1
        ),
        trainers=4,
        metrics={"accuracy": "accuracy"},
        callbacks=[AfterExchange(25, seen)],
        run_dir=tmp_path / "run",
    )
    assert sorted(seen) == [0, 1, 2, 3]
    for loser in (0, 1, 3):
        assert all(torch.equal(seen[loser][name], seen[2][name]) for name in seen[2])
    rows = [json.loads(line) for line in (tmp_path / "run" / "tournament.jsonl").read_text().splitlines()]
    assert {row["trainer"]: row["took"] for row in rows} == {0: 2, 1: 2, 2: None, 3: 2}
    # The rate that the log names is the one that was trained with: all four have learnt by the end.
    assert all(row["changed"]["lr"][1] in (0.5 / 1.3, 0.5 * 1.3) for row in rows if row["took"] == 2)
    assert all(one.history[-1]["accuracy"] > 0.7 for one in result.trainers)
