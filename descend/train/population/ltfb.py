"""Tournaments between trainers as values: who meets whom, what a model travels by, and how a taken model is changed.

    repeat metalearning_steps times: local algorithm, exchange          and the local algorithm once more

A local algorithm counts its limits anew in each round. `population.py` carries it out.

Source: LBANN's LTFB, "let a thousand flowers bloom", Jacobs et al. 2017, https://doi.org/10.1145/3146347.3146351.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from descend.errors import ConfigurationError, nearest
from descend.strict_keywords import StrictKeywords
from descend.train.algorithms import BatchedIterativeOptimizer, TrainingAlgorithm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.train.run import Run
    from descend.train.stopping import Stop

__all__ = [
    "LTFB",
    "ExchangeStrategy",
    "MetaLearningStrategy",
    "MetricStrategy",
    "MutationStrategy",
    "RandomPairwiseExchange",
    "RegularizedEvolution",
    "TruncationSelectionExchange",
]


class MetricStrategy(IntEnum):
    """Which way a metric is better; the numbers are those of the text form."""

    LOWER_IS_BETTER = 0
    HIGHER_IS_BETTER = 1


class _Variant:
    """One choice of a oneof in the text, with its fields."""

    message: ClassVar[str]

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = dict(fields)

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them."""
        return self.fields

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> _Variant:
        """A choice from the fields of a text."""
        return cls(fields)


def _variant(name: str) -> type[_Variant]:
    return type(name.rpartition(".")[2], (_Variant,), {"message": name})


_MUTATIONS = {
    "null_mutation": _variant("MutationStrategy.NullMutation"),
    "replace_activation": _variant("MutationStrategy.ReplaceActivation"),
    "replace_convolution": _variant("MutationStrategy.ReplaceConvolution"),
    "hybrid_mutation": _variant("MutationStrategy.HybridMutation"),
    "perturb_hyperparameters": _variant("MutationStrategy.PerturbHyperparameters"),
}
_WAYS = {
    "sendrecv_weights": _variant("RandomPairwiseExchange.ExchangeStrategy.SendRecvWeights"),
    "checkpoint_binary": _variant("RandomPairwiseExchange.ExchangeStrategy.CheckpointBinary"),
    "checkpoint_file": _variant("RandomPairwiseExchange.ExchangeStrategy.CheckpointFile"),
}
_Tournaments = _variant("LTFB.TerminationCriteria")
VARIANTS: tuple[type, ...] = (*_MUTATIONS.values(), *_WAYS.values(), _Tournaments)


def _check_choice(what: str, given: str, known: Mapping[str, Any]) -> None:
    if given not in known:
        hint = nearest(str(given), known)
        raise ConfigurationError(f"{what}: strategy is {given!r} and is to be one of {', '.join(known)}{hint}")


@dataclass(frozen=True)
class MutationStrategy(metaclass=StrictKeywords):
    """How a model that was taken over is changed.

    Args:
        strategy: "null_mutation" leaves it as it is; "replace_activation" puts another of ReLU, tanh, ELU, sigmoid and
            leaky ReLU (0.01) in the place of one activation, chosen at random; "perturb_hyperparameters", our own,
            multiplies options of the optimizer by `factor` or divides them by it, by chance.
        options: For the last: names of options, spaces between.
        factor: For the last: above 1.
        lowest: For the last: what an option does not fall below.
        highest: For the last: what it does not rise above.

    Raises:
        ConfigurationError: the strategy is unknown, or its numbers make no sense.
    """

    message: ClassVar[str] = "MutationStrategy"

    strategy: str = "null_mutation"
    options: str = "lr"
    factor: float = 1.2
    lowest: float = 0.0
    highest: float = math.inf

    def __post_init__(self) -> None:
        _check_choice("MutationStrategy", self.strategy, _MUTATIONS)
        if self.strategy in ("replace_convolution", "hybrid_mutation"):
            raise ConfigurationError(
                f"MutationStrategy: {self.strategy} changes the shapes of weights, which a run here cannot; "
                "replace_activation and perturb_hyperparameters are to be had"
            )
        if not self.factor > 1 or not 0 <= self.lowest <= self.highest or not self.options.split():
            raise ConfigurationError(
                f"MutationStrategy: factor={self.factor!r} is to be above 1, lowest={self.lowest!r} at least 0 and not "
                f"above highest={self.highest!r}, and options={self.options!r} are to name some"
            )

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them."""
        own: dict[str, Any] = {}
        if self.strategy == "perturb_hyperparameters":
            bound = {"highest": self.highest} if math.isfinite(self.highest) else {}
            own = {"options": self.options, "factor": self.factor, "lowest": self.lowest, **bound}
        return {self.strategy: _MUTATIONS[self.strategy](own)}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> MutationStrategy:
        """A strategy from the fields of a text; none set leaves models as they are."""
        for name, variant in fields.items():
            return cls(name, **{key: value for key, value in variant.fields.items() if value})
        return cls()


@dataclass(frozen=True)
class ExchangeStrategy(metaclass=StrictKeywords):
    """What a model travels by.

    Args:
        strategy: "checkpoint_binary" sends a whole model from memory to memory, "checkpoint_file" by files, and
            "sendrecv_weights" tensor by tensor.
        weights_names: Names of the weights that travel; none for all.
        exchange_hyperparameters: With "sendrecv_weights", send the optimizer's state and options too; the two others
            always do.
        checkpoint_dir: With "checkpoint_file", where the files go; all trainers have to see it.

    Raises:
        ConfigurationError: the strategy is unknown, or a setting does not belong to it.
    """

    message: ClassVar[str] = "RandomPairwiseExchange.ExchangeStrategy"

    strategy: str = "checkpoint_binary"
    weights_names: tuple[str, ...] = ()
    exchange_hyperparameters: bool = False
    checkpoint_dir: str | None = None

    def __post_init__(self) -> None:
        _check_choice("ExchangeStrategy", self.strategy, _WAYS)
        object.__setattr__(self, "weights_names", tuple(self.weights_names))
        if bool(self.checkpoint_dir) != (self.strategy == "checkpoint_file"):
            raise ConfigurationError(
                f"ExchangeStrategy: strategy={self.strategy!r} with checkpoint_dir={self.checkpoint_dir!r}: "
                "checkpoint_file needs a directory, and the others take none"
            )

    @property
    def whole(self) -> bool:
        """Whether the optimizer travels too."""
        return self.strategy != "sendrecv_weights" or self.exchange_hyperparameters

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them."""
        own: dict[str, Any] = {}
        if self.strategy == "sendrecv_weights":
            own = {"exchange_hyperparameters": self.exchange_hyperparameters}
        if self.strategy == "checkpoint_file":
            own = {"checkpoint_dir": self.checkpoint_dir}
        return {"weights_name": self.weights_names, self.strategy: _WAYS[self.strategy](own)}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> ExchangeStrategy:
        """A strategy from the fields of a text; without one a model travels from memory to memory."""
        names = tuple(fields.get("weights_name", ()))
        for name in fields.keys() - {"weights_name"}:
            return cls(name, names, **fields[name].fields)
        return cls(weights_names=names)


class MetaLearningStrategy(metaclass=StrictKeywords):
    """Who takes whose model after a round."""

    MetricStrategy: ClassVar[type[MetricStrategy]] = MetricStrategy

    @property
    def metrics(self) -> Mapping[str, MetricStrategy]:
        """The metrics that decide, and which way each of them is better."""
        raise NotImplementedError(f"{type(self).__name__} defines no metrics")


def _directions(what: str, given: Mapping[str, Any]) -> dict[str, MetricStrategy]:
    known = [int(way) for way in MetricStrategy]
    problems = [f"{what}: no metric is named"] * (not given)
    problems += [
        f"{what}: metric '{name}' is {way!r}; expected LOWER_IS_BETTER (0) or HIGHER_IS_BETTER (1)"
        for name, way in given.items()
        if way not in known
    ]
    if problems:
        raise ConfigurationError(problems)
    return {name: MetricStrategy(way) for name, way in given.items()}


class _Exchange(MetaLearningStrategy):
    """What strategies share whose fields are a map of metrics and what else they have."""

    metric_strategies: Mapping[str, int]

    @property
    def metrics(self) -> Mapping[str, MetricStrategy]:
        """See `MetaLearningStrategy.metrics`."""
        return {name: MetricStrategy(way) for name, way in self.metric_strategies.items()}

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them."""
        own = {entry.name: getattr(self, entry.name) for entry in fields(cast("Any", self))}
        del own["metric_strategies"]
        return {"metric_name_strategy_map": {name: int(way) for name, way in self.metrics.items()}, **own}

    @classmethod
    def from_fields(cls, given: Mapping[str, Any]) -> Self:
        """The strategy from the fields of a text."""
        rest = dict(given)
        return cls(metric_strategies=rest.pop("metric_name_strategy_map", {}), **rest)


@dataclass(frozen=True)
class RandomPairwiseExchange(_Exchange):
    """Trainers meet in random pairs. Both evaluate both models on their own tournament samples, and each goes on with
    the better one; its own wins where they are equal, and where it is as good in any of several metrics.

    With an odd number of trainers one sits out. NaN loses to every number.

    Args:
        metric_strategies: Names of metrics, "objective" among them, and which way each is better.
        exchange_strategy: What a model travels by.
        mutation_strategy: How a model that was taken over is changed.

    Raises:
        ConfigurationError: no metric is named, or a direction is unknown.
    """

    message: ClassVar[str] = "RandomPairwiseExchange"

    metric_strategies: Mapping[str, int] = field(default_factory=dict[str, int])
    exchange_strategy: ExchangeStrategy = field(default_factory=ExchangeStrategy)
    mutation_strategy: MutationStrategy = field(default_factory=MutationStrategy)

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric_strategies", _directions("RandomPairwiseExchange", self.metric_strategies))


@dataclass(frozen=True)
class TruncationSelectionExchange(_Exchange):
    """All trainers are ranked by one metric on their own tournament samples; the one at rank i ≥ k, from 0, takes the
    model of the one at rank i mod k. Of equal trainers the one with the lower number is first; NaN is last,
    and nobody takes a model whose score it is: there are fewer than k then to take from.

    Args:
        metric_strategies: One metric and which way it is better.
        truncation_k: How many keep their models.
        mutation_strategy: How a model that was taken over is changed; our own addition.

    Raises:
        ConfigurationError: there is not one metric, or k is not a whole number above 0.
    """

    message: ClassVar[str] = "TruncationSelectionExchange"

    metric_strategies: Mapping[str, int] = field(default_factory=dict[str, int])
    truncation_k: int = 0
    mutation_strategy: MutationStrategy = field(default_factory=MutationStrategy)

    def __post_init__(self) -> None:
        what = "TruncationSelectionExchange"
        object.__setattr__(self, "metric_strategies", _directions(what, self.metric_strategies))
        if len(self.metric_strategies) != 1:
            raise ConfigurationError(f"{what}: it ranks by one metric, and {len(self.metric_strategies)} are named")
        if self.truncation_k < 1:
            raise ConfigurationError(f"{what}: truncation_k is {self.truncation_k!r} and is to be at least 1")


@dataclass(frozen=True)
class RegularizedEvolution(MetaLearningStrategy):
    """Some trainers are drawn; a changed copy of the best of them takes the place of the oldest.

    The oldest is the trainer whose number is the round modulo the number of trainers. LBANN compares whole numbers of
    scores; here they are compared as they are.

    Args:
        metric_name: The metric that decides, on each trainer's own tournament samples.
        metric_strategy: Which way it is better.
        mutation_strategy: How the copy is changed.
        sample_size: How many are drawn.

    Raises:
        ConfigurationError: no metric is named, the direction is unknown, or nobody is drawn.

    Source: Real et al. 2019, https://arxiv.org/abs/1802.01548.
    """

    message: ClassVar[str] = "RegularizedEvolution"

    metric_name: str = ""
    metric_strategy: int = MetricStrategy.LOWER_IS_BETTER
    mutation_strategy: MutationStrategy = field(default_factory=MutationStrategy)
    sample_size: int = 0

    def __post_init__(self) -> None:
        given = {self.metric_name: self.metric_strategy} if self.metric_name else {}
        found = _directions("RegularizedEvolution", given)
        object.__setattr__(self, "metric_strategy", found[self.metric_name])
        if self.sample_size < 1:
            raise ConfigurationError(
                f"RegularizedEvolution: sample_size is {self.sample_size!r} and is to be at least 1"
            )

    @property
    def metrics(self) -> Mapping[str, MetricStrategy]:
        """See `MetaLearningStrategy.metrics`."""
        return {self.metric_name: MetricStrategy(self.metric_strategy)}


@dataclass(frozen=True)
class LTFB(TrainingAlgorithm):
    """Trainers train by themselves and then exchange models, round after round.

    Weights, the optimizer's state, its options, the step that schedules follow and what callbacks remember all move
    with a model, however it travels, but for "sendrecv_weights" without hyperparameters. Where each trainer stands in
    its data stays. Tournament samples come from the reader of the role "tournament" and never train.

    A trainer whose gradient is not finite stops training until the next exchange, and its score is NaN.

    Args:
        name: A name for this algorithm in logs.
        local_algo: What each trainer does in a round; its limits say how long one is.
        metalearning: Who takes whose model after it.
        metalearning_steps: How many exchanges.
        suppress_timer_output: Leave out the times of this algorithm in logs.

    Raises:
        ConfigurationError: there is no strategy, or the number of exchanges is negative.
    """

    message: ClassVar[str] = "LTFB"

    name: str = "LTFB"
    local_algo: TrainingAlgorithm = field(default_factory=BatchedIterativeOptimizer)
    metalearning: MetaLearningStrategy | None = None
    metalearning_steps: int = 1
    suppress_timer_output: bool = False

    def __post_init__(self) -> None:
        problems: list[str] = []
        if not isinstance(self.metalearning, MetaLearningStrategy):
            problems.append(
                f"metalearning is {self.metalearning!r}; expected RandomPairwiseExchange, TruncationSelectionExchange "
                "or RegularizedEvolution"
            )
        if type(self.metalearning_steps) is not int or self.metalearning_steps < 0:
            problems.append(f"metalearning_steps is {self.metalearning_steps!r}; expected a whole number")
        if not isinstance(self.local_algo, TrainingAlgorithm) or isinstance(self.local_algo, LTFB):  # pyright: ignore[reportUnnecessaryIsInstance]  # users pass anything
            problems.append(f"local_algo is {self.local_algo!r}; expected one such as BatchedIterativeOptimizer")
        if problems:
            raise ConfigurationError([f"LTFB: {problem}" for problem in problems])

    @property
    def strategy(self) -> MetaLearningStrategy:
        """Who takes whose model."""
        assert self.metalearning is not None  # __post_init__ refuses that
        return self.metalearning

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them."""
        return {
            "name": self.name,
            "local_training_algorithm": self.local_algo,
            "meta_learning_strategy": self.metalearning,
            "stopping_criteria": _Tournaments({"max_tournaments": self.metalearning_steps}),
            "suppress_timer_output": self.suppress_timer_output,
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> LTFB:
        """The algorithm from the fields of a text; without a number of exchanges there is none."""
        given = dict(fields)
        limits = given.pop("stopping_criteria", None)
        inner = {"local_algo": given["local_training_algorithm"]} if "local_training_algorithm" in given else {}
        return cls(
            given.get("name", ""),
            metalearning=given.get("meta_learning_strategy"),
            metalearning_steps=limits.fields.get("max_tournaments", 0) if limits else 0,
            suppress_timer_output=given.get("suppress_timer_output", False),
            **inner,
        )

    @property
    def stop(self) -> Stop | None:
        """The local algorithm's criterion, where it is of a form that has no text."""
        return getattr(self.local_algo, "stop", None)

    def epochs(self, default: int) -> int | None:
        """See `TrainingAlgorithm.epochs`."""
        of_one = self.local_algo.epochs(default)
        return None if of_one is None else of_one * (self.metalearning_steps + 1)

    def until(self, stop: Stop) -> LTFB:
        """See `TrainingAlgorithm.until`; the criterion is that of a round."""
        return replace(self, local_algo=self.local_algo.until(stop))

    def check(self, metrics: Mapping[str, Any] | list[str], roles: Mapping[str, Any] | list[str]) -> None:
        """Refuse what is known to be wrong before anything is started.

        Args:
            metrics: Names of the metrics that an evaluation gives, "objective" aside.
            roles: The roles that there are data for.

        Raises:
            ConfigurationError: a metric that nothing measures, or no samples for tournaments.
        """
        known = ["objective", *metrics]
        problems = [
            f"{type(self.metalearning).__name__} names a metric '{name}' that does not exist{nearest(name, known)}"
            for name in self.strategy.metrics
            if name not in known
        ]
        if "tournament" not in roles:
            problems.append(
                "LTFB needs samples that no trainer trains on: give a reader of the role 'tournament', or hold some "
                "out by tournament_fraction"
            )
        if problems:
            raise ConfigurationError(problems)

    def apply(self, run: Run) -> str:
        """See `TrainingAlgorithm.apply`: a trainer that is alone."""
        from descend.train.population.runner import Population  # torch comes in here, not when a description is read

        return Population.alone(run).play(self)[0]
