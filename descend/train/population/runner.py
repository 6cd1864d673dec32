"""Runs several trainers: rounds of independent training, and exchanges of models between them.

    play            for each round: train, synchronize, exchange, save; then train once more
    exchange        the pairing is a function of seed and round, so all ranks compute it without communication
    lineage         which trainer copied which model, scores and mutations: gathered on all ranks, recorded by rank zero

A process runs the trainers of its block of ranks one after the other; a single process runs all of them.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from descend.errors import ConfigurationError, NumericalError, Stopped, nearest, warn
from descend.launch import TrainerLayout, as_trainer
from descend.launch.environment import current_trainer
from descend.runtime import Communicator, SaveRequest, generator
from descend.train.evaluation import AveragingCallback, evaluate
from descend.train.param_groups import current_learning_rates
from descend.train.population.exchange import STATE, ModelState, ModelTransport, capture_model, restore_model
from descend.train.population.ltfb import (
    ExchangeStrategy,
    MetricStrategy,
    MutationStrategy,
    RandomPairwiseExchange,
    RegularizedEvolution,
    TruncationSelectionExchange,
)
from descend.train.progress import ExecutionContext, Mode
from descend.train.stop_signal import DIRECTORY_LOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from descend.train.algorithms import TrainingAlgorithm
    from descend.train.callback import Callback
    from descend.train.population.ltfb import LTFB, MetaLearningStrategy
    from descend.train.run import Run

__all__ = ["ExchangeResult", "Population", "TrainerRun", "check_mutation"]

# What may be replaced in a graph, by the strategy of mutation.
REPLACED = {
    "replace_activation": ("activation",),
    "replace_convolution": ("convolution",),
    "hybrid_mutation": ("activation", "convolution"),
}
_KEPT = 2  # checkpoints of exchanges: after a crash between those of two trainers, all resume from the one before


@dataclass
class TrainerRun:
    """One trainer.

    Attributes:
        number: From 0.
        run: Its run.
        waits_at: The exchange within its training that it waits for, and the number of that, while others train.
    """

    number: int
    run: Run
    waits_at: tuple[MetaLearningStrategy, int] | None = None

    @property
    def state(self) -> dict[str, Any]:
        """Its progress: "round", whether it has "trained" in it, "reason" for stopping, and why it has "failed"."""
        begun = {"round": 0, "trained": False, "reason": "", "failed": None, "form": None}
        return self.run.state.algorithm.setdefault(STATE, begun)


@dataclass
class ExchangeResult:
    """What an exchange did to one trainer.

    Attributes:
        round: Number of the exchange, from 0.
        step: Updates of its model before the exchange.
        trainer: Its number.
        partner: The trainer it was paired with, or whose model it copied; None if there is none.
        scores: Of its own model, by metric.
        partner_scores: Of its partner's model; empty without a partner.
        took: The trainer whose model it copied; None if it kept its own.
        changed: What a mutation changed: before and after, by name.
        rates: The distinct learning rates of the next step, in ascending order.
    """

    round: int
    step: int
    trainer: int
    partner: int | None = None
    scores: dict[str, float] = field(default_factory=dict[str, float])
    partner_scores: dict[str, float] = field(default_factory=dict[str, float])
    took: int | None = None
    changed: dict[str, Any] = field(default_factory=dict[str, Any])
    rates: list[float] = field(default_factory=list[float])


class _Meets(BaseException):
    """Leaves the training of a trainer before a step, so that the others of this process come to that step as well."""


class Population:
    """The trainers of a run, as one of its processes sees them.

    Args:
        players: The trainers of this process.
        shares: Which ranks belong to which trainers.
        world: The communicator of all ranks.
        seed: Seed of pairings and mutations.
        say: Prints a line; of several ranks only the first does.
        record: Called with the results of each exchange; likewise.
    """

    def __init__(
        self,
        players: Sequence[TrainerRun],
        shares: TrainerLayout,
        world: Communicator,
        seed: int,
        say: Callable[[str], None],
        record: Callable[[list[dict[str, Any]]], None] = lambda rows: None,
    ) -> None:
        self.players, self.shares = list(players), shares
        self._world, self._seed, self._say, self._record = world, seed, say, record
        self._name = players[0].run.name
        processes = {player.number: player.run.communicator for player in players}
        self.courier = ModelTransport(world, shares, processes, self._name)
        self._stopped: str | None = None

    @classmethod
    def alone(cls, run: Run) -> Population:
        """A population of one trainer."""
        ranks = run.communicator.world_size
        return cls([TrainerRun(0, run)], TrainerLayout(1, ranks, ranks), run.communicator, run.seed, run.say)

    def play(self, algorithm: LTFB) -> list[str]:
        """Run a tournament.

        Returns:
            Why each trainer of this process stopped.

        Raises:
            Stopped: a signal requested it; trainers within a round resume there.
            NumericalError: the gradients of all trainers are not finite.
        """
        for player in self.players:
            begun = player.state["round"] or player.state["trained"]
            if begun and player.run.state.began == ExecutionContext(Mode.TRAIN):
                player.run.state.began = None  # limits count from the start of a round, not of the run
        while (number := self.players[0].state["round"]) < algorithm.metalearning_steps:
            self._train(algorithm.local_algo)
            self._exchange(algorithm.strategy, number)
        self._train(algorithm.local_algo)
        return [player.state["reason"] for player in self.players]

    def each(self, algorithm: TrainingAlgorithm) -> list[str]:
        """Train every trainer without exchanges; returns why each stopped."""
        self._train(algorithm)
        return [player.state["reason"] for player in self.players]

    def meet(self, strategy: MetaLearningStrategy, number: int) -> None:
        """Run exchange `number` within the training of every trainer, between two steps.

        Where several trainers share this process, the one that acts leaves its training here; all go on from here when
        the last of them has come. Then this is called again, and does nothing.

        Raises:
            ConfigurationError: a trainer has ended its training, and none is left to play with.
        """
        if len(self.players) == 1:
            self._meet(strategy, number)
            return
        acting = next(player for player in self.players if player.number == current_trainer()[0])
        if acting.state["round"] <= number:
            acting.waits_at = strategy, number
            raise _Meets

    def _meet(self, strategy: MetaLearningStrategy, number: int) -> None:
        _require_all_meet(self.tell({player.number: {"meets": number} for player in self.players}))
        self._exchange(strategy, number, saved=False)

    def tell(self, words: Mapping[int, Any]) -> dict[int, Any]:
        """Gather a plain value per trainer on all ranks, given those of the trainers of this process."""
        own = {str(number): word for number, word in words.items() if self._speaks(number)}
        with self._world.status.waiting_patiently():
            gathered = self._world.all_gather_object(own)
        by_trainer = {int(number): word for some in gathered for number, word in some.items()}
        return dict(sorted(by_trainer.items()))

    def _speaks(self, number: int) -> bool:
        return self.shares.first_of(number) == self._world.rank

    # ---- a round of training

    def _train(self, algorithm: TrainingAlgorithm) -> None:
        """Train each trainer for a round, and synchronize; a signal stops all of them."""
        while self._train_on(algorithm):
            pass
        words = {p.number: {"stopped": self._asked(p), "failed": p.state["failed"]} for p in self.players}
        states = self.tell(words)
        if any("meets" in word for word in states.values()):
            _require_all_meet(states)
        if stopped := next((word["stopped"] for word in states.values() if word["stopped"]), None):
            raise Stopped(stopped)
        failed = [f"trainer {number}: {word['failed']}" for number, word in states.items() if word["failed"]]
        if len(failed) == len(states):
            raise NumericalError([*failed, "no trainer is left whose model could be copied"])

    def _train_on(self, algorithm: TrainingAlgorithm) -> bool:
        """Train each trainer to its next exchange or to its end; whether there was an exchange, so that it goes on."""
        for player in self.players:
            if self._stopped is None and not player.state["trained"] and not player.state["failed"]:
                with as_trainer(player.number, self.shares.trainers):
                    self._train_one(player, algorithm)
        waiting = {player.number: player.waits_at for player in self.players}
        where = next((each for each in waiting.values() if each is not None), None)
        if where is None or self._stopped is not None:
            return False
        _require_all_meet({number: {"meets": each[1]} if each else {} for number, each in waiting.items()})
        for player in self.players:
            player.waits_at = None
        self._meet(*where)
        return True

    def _asked(self, player: TrainerRun) -> str | None:
        """Why all trainers must stop, if this one was stopped; else None."""
        signal = player.run.strategy.stop_requested()
        if signal == DIRECTORY_LOST:
            player.run.store.require_ownership()
        return self._stopped or (signal and f"stopped by {signal} between two rounds")

    def _train_one(self, player: TrainerRun, algorithm: TrainingAlgorithm) -> None:
        try:
            player.state["reason"] = algorithm.apply(player.run)
        except _Meets:
            return
        except Stopped as stopped:
            who = f"trainer {player.number}: " if self.shares.trainers > 1 else ""
            self._stopped = f"{who}{stopped}"
            return
        except NumericalError as error:
            player.state["failed"] = player.state["reason"] = error.problems[0]
            self._say(f"trainer {player.number} waits for the next exchange: {error.problems[0]}")
        player.state["trained"] = True

    # ---- an exchange

    def _exchange(self, strategy: MetaLearningStrategy, number: int, saved: bool = True) -> None:
        """Run exchange `number` and, where `saved`, save the state after it."""
        way = getattr(strategy, "exchange_strategy", ExchangeStrategy())
        match strategy:
            case RandomPairwiseExchange():
                outcomes = self._pairwise(strategy, number, way)
            case TruncationSelectionExchange():
                outcomes = self._truncation(strategy, number, way)
            case RegularizedEvolution():
                outcomes = self._evolution(strategy, number, way)
            case _:
                raise ConfigurationError(f"{type(strategy).__name__} is not a known strategy of exchange")
        sessions = {player.number: player.run for player in self.players}
        for one in outcomes:
            one.rates = sorted(set(current_learning_rates(sessions[one.trainer].optimizer).values()))
        for player in self.players:
            player.state.update(round=number + 1, trained=False)
        results = {trainer: ExchangeResult(**word) for trainer, word in self.tell(_words(outcomes)).items()}
        for line in _lines(self._name, strategy, list(results.values())):
            self._say(line)
        self._record([asdict(outcome) for outcome in results.values()])
        for player in self.players:
            player.run.state.fix_rows()
            if saved:
                player.run.store.save(player.run, SaveRequest("exchange", keep=_KEPT))

    def _pairwise(self, strategy: RandomPairwiseExchange, number: int, way: ExchangeStrategy) -> list[ExchangeResult]:
        averages = [one.label for one in self.players[0].run.callbacks.all if isinstance(one, AveragingCallback)]
        if averages and not way.whole and number == 0:
            warn(
                f"'{way.strategy}' sends weights alone, and the average of {', '.join(averages)}, which is evaluated, "
                "stays with its trainer: exchange_hyperparameters=True sends both"
            )
        order = self._drawn(number)
        pairs = list(zip(order[::2], order[1::2], strict=False))
        partners = {**dict(pairs), **{b: a for a, b in pairs}}
        taken = {p.number: capture_model(p.run, way.weights_names, way.whole) for p in self.players}
        received = self.courier.deliver([move for a, b in pairs for move in ((a, b), (b, a))], taken, way, number)
        return [
            self._duel(player, strategy, number, partners.get(player.number), taken, received)
            for player in self.players
        ]

    def _duel(
        self,
        player: TrainerRun,
        strategy: RandomPairwiseExchange,
        number: int,
        partner: int | None,
        taken: Mapping[int, ModelState],
        received: Mapping[int, ModelState],
    ) -> ExchangeResult:
        """Choose between a trainer's own model and its partner's."""
        outcome = _outcome(player, number, partner)
        outcome.scores = self._scores(player, strategy)
        if partner is None:
            return outcome
        own = taken[player.number]
        if strategy.mutation_strategy.reshapes and not strategy.exchange_strategy.whole:
            own = capture_model(player.run)  # the optimizer has no state for the weights of the other model
        restore_model(player.run, received[player.number])
        outcome.partner_scores = self._scores(player, strategy, failed=False)
        if beats(outcome.partner_scores, outcome.scores, strategy.metrics, strategy.takes_equal):
            self._after_copy(player, outcome, partner, strategy.mutation_strategy)
        else:
            restore_model(player.run, own)
        return outcome

    def _truncation(
        self, strategy: TruncationSelectionExchange, number: int, way: ExchangeStrategy
    ) -> list[ExchangeResult]:
        scores = self.tell({p.number: self._scores(p, strategy) for p in self.players})
        ranking = sorted(scores, key=lambda trainer: (*_order(scores[trainer], strategy.metrics), trainer))
        k = min(strategy.truncation_k, sum(not _order(scores[trainer], strategy.metrics)[0] for trainer in ranking))
        sources = {trainer: ranking[i % k] for i, trainer in enumerate(ranking) if i >= k} if k else {}
        return self._copy_models(sources, scores, strategy.mutation_strategy, number, way)

    def _evolution(self, strategy: RegularizedEvolution, number: int, way: ExchangeStrategy) -> list[ExchangeResult]:
        scores = self.tell({p.number: self._scores(p, strategy) for p in self.players})
        sample = self._drawn(number)[: strategy.sample_size]
        best = min(sample, key=lambda trainer: (*_order(scores[trainer], strategy.metrics), trainer))
        oldest = number % self.shares.trainers
        lost = _order(scores[best], strategy.metrics)[0]
        return self._copy_models({} if lost else {oldest: best}, scores, strategy.mutation_strategy, number, way)

    def _copy_models(
        self,
        sources: Mapping[int, int],
        scores: Mapping[int, dict[str, float]],
        mutation: MutationStrategy,
        number: int,
        way: ExchangeStrategy,
    ) -> list[ExchangeResult]:
        """Copy models between trainers.

        Args:
            sources: The trainer whose model is copied, by the number of the trainer that copies it.
            scores: Of every trainer.
            mutation: How copies are mutated.
            number: Of the exchange.
            way: How models are sent.
        """
        copied = set(sources.values())
        taken = {p.number: capture_model(p.run) for p in self.players if p.number in copied}
        moves = [(source, target) for target, source in sources.items()]
        received = self.courier.deliver(moves, taken, way, number)
        outcomes: list[ExchangeResult] = []
        for player in self.players:
            source = sources.get(player.number)
            outcome = _outcome(player, number, source)
            outcome.scores = scores[player.number]
            if source is not None:
                outcome.partner_scores = scores[source]
                restore_model(player.run, received[player.number])
                self._after_copy(player, outcome, source, mutation)
            outcomes.append(outcome)
        return outcomes

    def _after_copy(self, player: TrainerRun, outcome: ExchangeResult, source: int, mutation: MutationStrategy) -> None:
        if player.state["failed"] is not None:
            player.run.state.began = None  # it has not come to the end of its round
        outcome.took, player.state["failed"] = source, None
        player.run.state.skipped_in_a_row = 0
        draws = generator(self._seed, "mutation", outcome.round, player.number)
        outcome.changed = mutate(player.run, mutation, draws)
        form = getattr(player.run.task, "form", None)
        player.state["form"] = form() if form else None

    def _scores(
        self, player: TrainerRun, strategy: MetaLearningStrategy, failed: bool | None = None
    ) -> dict[str, float]:
        """The metrics on the trainer's own tournament samples; NaN for a trainer whose gradient was not finite."""
        if player.state["failed"] if failed is None else failed:
            return dict.fromkeys(strategy.metrics, math.nan)
        with as_trainer(player.number, self.shares.trainers), player.run.stop.deferred():
            data = player.run.data  # the algorithm LTFB insists on tournament samples
            values = evaluate(player.run, Mode.TOURNAMENT if Mode.TOURNAMENT in data else Mode.VALIDATION)
        if missing := [name for name in strategy.metrics if name not in values]:
            raise ConfigurationError(
                f"{type(strategy).__name__} names a metric '{missing[0]}' that does not exist"
                f"{nearest(missing[0], values)}"
            )
        return {name: values[name] for name in strategy.metrics}

    def _drawn(self, number: int) -> list[int]:
        """The trainers in a random order."""
        draws = generator(self._seed, "tournament", number)
        return torch.randperm(self.shares.trainers, generator=draws).tolist()


# ---- log lines


def _lines(name: str, strategy: MetaLearningStrategy, outcomes: Sequence[ExchangeResult]) -> list[str]:
    lines: list[str] = []
    for one in outcomes:
        if isinstance(strategy, RandomPairwiseExchange):
            lines.append(_pair_line(name, one))
        elif one.took is not None:
            lines += _moved_lines(one)
    return lines


def _pair_line(name: str, one: ExchangeResult) -> str:
    """LBANN's line about the winner of a pair, with the name of the model."""
    partner = one.trainer if one.partner is None else one.partner
    theirs = one.scores if one.partner is None else one.partner_scores
    chosen = one.trainer if one.took is None else one.took
    return (
        f'LTFB (model "{name}", step {one.round}): trainer {one.trainer} selected model from trainer '
        f"{chosen} (trainer {one.trainer} score = {_shown(one.scores)}, trainer {partner} score = {_shown(theirs)})"
        f"{_changes(one)}"
    )


def _outcome(player: TrainerRun, number: int, partner: int | None) -> ExchangeResult:
    return ExchangeResult(number, player.run.state.step, player.number, partner)


def _require_all_meet(states: Mapping[int, Any]) -> None:
    meets = {trainer: word.get("meets") for trainer, word in states.items()}
    if len(set(meets.values())) == 1:
        return
    where = ", ".join(
        f"trainer {trainer} {'has ended' if step is None else f'is after step {step}'}"
        for trainer, step in meets.items()
    )
    raise ConfigurationError(
        f"trainers cannot exchange models: {where}. Give all of them data and limits that make the same steps"
    )


def _moved_lines(one: ExchangeResult) -> list[str]:
    """LBANN's lines about a model that was sent, with its two spaces before the number of the receiver."""
    what, sent, replaced = f"In LTFB TSE step {one.round}, trainer", _shown(one.partner_scores), _shown(one.scores)
    return [
        f"{what} {one.took} with score {sent} sends model to trainer  {one.trainer} with score {replaced}",
        f"{what} {one.trainer} with score {replaced} receives model from trainer {one.took} with score {sent}"
        f"{_changes(one)}",
    ]


def _shown(scores: Mapping[str, float]) -> str:
    values = [f"{value:g}" for value in scores.values()]
    return values[0] if len(values) == 1 else ", ".join(values)


def _changes(one: ExchangeResult) -> str:
    return "".join(f", {name}: {before} -> {after}" for name, (before, after) in one.changed.items())


def _words(outcomes: Sequence[ExchangeResult]) -> dict[int, Any]:
    return {outcome.trainer: asdict(outcome) for outcome in outcomes}


def beats(
    theirs: Mapping[str, float], own: Mapping[str, float], metrics: Mapping[str, MetricStrategy], ties: bool = False
) -> bool:
    """Whether another model is strictly better than the own one in every metric; with `ties` as good is enough."""
    return all(
        _better(theirs[name], own[name], way) or (ties and theirs[name] == own[name]) for name, way in metrics.items()
    )


def _better(a: float, b: float, way: MetricStrategy) -> bool:
    if math.isnan(a) or math.isnan(b):
        return math.isnan(b) and not math.isnan(a)
    return a > b if way is MetricStrategy.HIGHER_IS_BETTER else a < b


def _order(scores: Mapping[str, float], metrics: Mapping[str, MetricStrategy]) -> tuple[bool, float]:
    """The sort key of trainers by their one metric: best first, NaN last."""
    ((name, way),) = metrics.items()
    value = scores[name]
    if math.isnan(value):
        return True, 0.0
    return False, -value if way is MetricStrategy.HIGHER_IS_BETTER else value


def check_mutation(
    strategy: MutationStrategy, optimizer: torch.optim.Optimizer, task: Any, callbacks: Iterable[Callback] = ()
) -> None:
    """Check that a mutation can be applied, before anything is trained.

    Args:
        strategy: The mutation.
        optimizer: Whose options it may change.
        task: Whose layers it may change.
        callbacks: Of the run.

    Raises:
        ConfigurationError: the optimizer has no such option, the model no such layer, or a callback keeps weights whose
            shapes would change.
    """
    if strategy.strategy == "perturb_hyperparameters":
        problems = [problem for option in strategy.options.split() for problem in _fixed(optimizer, option)]
        if problems:
            raise ConfigurationError(problems)
    if kinds := REPLACED.get(strategy.strategy):
        if not hasattr(task, "take_form"):
            raise ConfigurationError(f"{strategy.strategy} needs a graph, and this model is a torch module")
        task.replaceable(kinds)
    if keeping := [type(one).__name__ for one in callbacks if one.keeps_weights and strategy.reshapes]:
        raise ConfigurationError(
            f"{strategy.strategy} changes the shapes of weights, and {keeping[0]} keeps copies of them: leave out one "
            "of the two"
        )


def _fixed(optimizer: torch.optim.Optimizer, option: str) -> list[str]:
    """Why an option cannot be multiplied by a factor; empty if it can."""
    groups = [group for group in optimizer.param_groups if option in group]
    if option == "lr" and any(group.get("schedule") for group in groups):
        what = "follows a schedule, which would undo the change"
    elif not groups:
        what = f"does not exist{nearest(option, [str(name) for name in optimizer.param_groups[0]])}"
    elif not all(isinstance(group[option], (int, float)) for group in groups):
        what = f"is {groups[0][option]!r}"
    else:
        return []
    return [f"perturb_hyperparameters: '{option}' {what}; it must be a number in every group of the optimizer"]


def mutate(run: Run, strategy: MutationStrategy, draws: torch.Generator) -> dict[str, Any]:
    """Mutate a copied model; returns before and after of what changed, by name.

    Raises:
        ConfigurationError: as `check_mutation`.
    """
    check_mutation(strategy, run.optimizer, run.task)
    if strategy.strategy == "perturb_hyperparameters":
        return {option: _perturbed(run, option, strategy, draws) for option in strategy.options.split()}
    if kinds := REPLACED.get(strategy.strategy):
        task: Any = run.task
        form, name, before, after = task.mutate(kinds, draws)
        run.take_form(form, lambda weights: draws)
        return {name: [before, after]}
    return {}


def _perturbed(run: Run, option: str, strategy: MutationStrategy, draws: torch.Generator) -> list[float]:
    """Multiply or divide one option of all groups; its value in the first group, before and after."""
    groups = [group for group in run.optimizer.param_groups if option in group]
    up = bool(torch.randint(2, (), generator=draws))
    before: float = groups[0][option]
    for group in groups:
        value = group[option] * strategy.factor if up else group[option] / strategy.factor
        group[option] = min(max(value, strategy.lowest), strategy.highest)
    return [before, groups[0][option]]
