"""LTFB as values: the pairing of trainers, the exchange of models, and mutations.

    repeat metalearning_steps times: local algorithm, exchange          then the local algorithm once more

The limits of the local algorithm are counted from the start of each round. `runner.py` runs it.

Source: LBANN's LTFB, "let a thousand flowers bloom", Jacobs et al. 2017, https://doi.org/10.1145/3146347.3146351.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from descend.arguments import check_integer, require, shown
from descend.arguments.strict_keywords import StrictKeywords
from descend.errors import ConfigurationError, nearest
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
    "PairwiseWithTies",
    "RandomPairwiseExchange",
    "RegularizedEvolution",
    "TruncationSelectionExchange",
]


class MetricStrategy(IntEnum):
    """Which direction of a metric is better; the numbers are those of the text form."""

    LOWER_IS_BETTER = 0
    HIGHER_IS_BETTER = 1


class _Variant:
    """One option of a oneof of the text form, with its fields."""

    message: ClassVar[str]

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = dict(fields)

    def to_fields(self) -> dict[str, Any]:
        """The fields of its text form."""
        return self.fields

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> _Variant:
        """An option from its fields."""
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


def _check_choice(what: str, given: object, known: Mapping[str, Any]) -> None:
    if given not in known:
        hint = nearest(given, known) if isinstance(given, str) else ""
        raise ConfigurationError(f"{what}: strategy must be one of {', '.join(known)}, got {shown(given)}{hint}")


@dataclass(frozen=True)
class MutationStrategy(metaclass=StrictKeywords):
    """How a copied model is mutated.

    Args:
        strategy: "null_mutation" leaves it unchanged; "replace_activation" replaces one activation, chosen at random,
            by another of ReLU, tanh, ELU, sigmoid and leaky ReLU (0.01); "replace_convolution" replaces one convolution
            by one with a kernel of 3, 5, 7 or 9 and 6, 16 or 32 channels; "hybrid_mutation" does either;
            "perturb_hyperparameters", our own addition, multiplies or divides options of the optimizer by `factor`, at
            random.
        options: For perturb_hyperparameters: names of options, separated by spaces.
        factor: For perturb_hyperparameters: > 1.
        lowest: For perturb_hyperparameters: lower bound of an option, >= 0.
        highest: For perturb_hyperparameters: upper bound of an option.

    Raises:
        ConfigurationError: the strategy is unknown, or a number is out of range.
    """

    message: ClassVar[str] = "MutationStrategy"

    strategy: str = "null_mutation"
    options: str = "lr"
    factor: float = 1.2
    lowest: float = 0.0
    highest: float = math.inf

    def __post_init__(self) -> None:
        _check_choice("MutationStrategy", self.strategy, _MUTATIONS)
        if not self.factor > 1 or not 0 <= self.lowest <= self.highest or not self.options.split():
            raise ConfigurationError(
                "MutationStrategy: factor must be > 1, lowest >= 0 and <= highest, and options must name at least one; "
                f"got factor={self.factor!r}, lowest={self.lowest!r}, highest={self.highest!r}, "
                f"options={self.options!r}"
            )

    @property
    def reshapes(self) -> bool:
        """Whether it changes the shapes of weights."""
        return self.strategy in ("replace_convolution", "hybrid_mutation")

    def to_fields(self) -> dict[str, Any]:
        """The fields of its text form."""
        own: dict[str, Any] = {}
        if self.strategy == "perturb_hyperparameters":
            bound = {"highest": self.highest} if math.isfinite(self.highest) else {}
            own = {"options": self.options, "factor": self.factor, "lowest": self.lowest, **bound}
        return {self.strategy: _MUTATIONS[self.strategy](own)}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> MutationStrategy:
        """A strategy from the fields of its text form; without any, models are not changed."""
        for name, variant in fields.items():
            return cls(name, **{key: value for key, value in variant.fields.items() if value})
        return cls()


@dataclass(frozen=True)
class ExchangeStrategy(metaclass=StrictKeywords):
    """How a model is sent from one trainer to another.

    Args:
        strategy: "checkpoint_binary" sends the whole model in one message, "checkpoint_file" as files, and
            "sendrecv_weights" tensor by tensor.
        weights_names: Names of the weights that are sent; empty for all.
        exchange_hyperparameters: With "sendrecv_weights", also send the optimizer's state and options; the two others
            always do.
        checkpoint_dir: With "checkpoint_file", the directory of the files, which all trainers must share.

    Raises:
        ConfigurationError: the strategy is unknown, or a setting does not apply to it.
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
                "ExchangeStrategy: checkpoint_dir must be set with strategy='checkpoint_file' and only then, got "
                f"strategy={self.strategy!r}, checkpoint_dir={self.checkpoint_dir!r}"
            )

    @property
    def whole(self) -> bool:
        """Whether the optimizer is sent, too."""
        return self.strategy != "sendrecv_weights" or self.exchange_hyperparameters

    def to_fields(self) -> dict[str, Any]:
        """The fields of its text form."""
        own: dict[str, Any] = {}
        if self.strategy == "sendrecv_weights":
            own = {"exchange_hyperparameters": self.exchange_hyperparameters}
        if self.strategy == "checkpoint_file":
            own = {"checkpoint_dir": self.checkpoint_dir}
        return {"weights_name": self.weights_names, self.strategy: _WAYS[self.strategy](own)}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> ExchangeStrategy:
        """A strategy from the fields of its text form; "checkpoint_binary" if none is set."""
        names = tuple(fields.get("weights_name", ()))
        for name in fields.keys() - {"weights_name"}:
            return cls(name, names, **fields[name].fields)
        return cls(weights_names=names)


class MetaLearningStrategy(metaclass=StrictKeywords):
    """How models are selected and copied between trainers after a round."""

    MetricStrategy: ClassVar[type[MetricStrategy]] = MetricStrategy

    @property
    def metrics(self) -> Mapping[str, MetricStrategy]:
        """The metrics that models are compared by, and the better direction of each."""
        raise NotImplementedError(f"{type(self).__name__} defines no metrics")


def _directions(what: str, given: Mapping[str, Any]) -> dict[str, MetricStrategy]:
    known = [int(way) for way in MetricStrategy]
    problems = [f"{what}: no metric is given; name at least one"] * (not given)
    problems += [
        f"{what}: metric '{name}' must be LOWER_IS_BETTER (0) or HIGHER_IS_BETTER (1), got {shown(way)}"
        for name, way in given.items()
        if way not in known
    ]
    if problems:
        raise ConfigurationError(problems)
    return {name: MetricStrategy(way) for name, way in given.items()}


class _Exchange(MetaLearningStrategy):
    """Base of the strategies with a map of metrics."""

    metric_strategies: Mapping[str, int]

    @property
    def metrics(self) -> Mapping[str, MetricStrategy]:
        """See `MetaLearningStrategy.metrics`."""
        return {name: MetricStrategy(way) for name, way in self.metric_strategies.items()}

    def to_fields(self) -> dict[str, Any]:
        """The fields of its text form."""
        own = {entry.name: getattr(self, entry.name) for entry in fields(cast("Any", self))}
        del own["metric_strategies"]
        return {"metric_name_strategy_map": {name: int(way) for name, way in self.metrics.items()}, **own}

    @classmethod
    def from_fields(cls, given: Mapping[str, Any]) -> Self:
        """The strategy from the fields of its text form."""
        rest = dict(given)
        return cls(metric_strategies=rest.pop("metric_name_strategy_map", {}), **rest)


@dataclass(frozen=True)
class RandomPairwiseExchange(_Exchange):
    """Trainers are paired at random, evaluate both models on their own tournament samples and keep the better one.

    A trainer keeps its own model on a tie, and unless the other one is better in all of several metrics.

    With an odd number of trainers one is not paired. NaN loses against every number.

    Args:
        metric_strategies: Names of metrics, which may include "objective", and the better direction of each.
        exchange_strategy: How a model is sent.
        mutation_strategy: How a copied model is mutated.

    Raises:
        ConfigurationError: no metric is named, or a direction is unknown.
    """

    message: ClassVar[str] = "RandomPairwiseExchange"
    takes_equal: ClassVar[bool] = False

    metric_strategies: Mapping[str, int] = field(default_factory=dict[str, int])
    exchange_strategy: ExchangeStrategy = field(default_factory=ExchangeStrategy)
    mutation_strategy: MutationStrategy = field(default_factory=MutationStrategy)

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric_strategies", _directions("RandomPairwiseExchange", self.metric_strategies))
        if self.mutation_strategy.reshapes and self.exchange_strategy.weights_names:
            raise ConfigurationError(
                f"RandomPairwiseExchange: {self.mutation_strategy.strategy} changes the shapes of weights, so models "
                "are sent whole: leave out weights_names"
            )


@dataclass(frozen=True)
class PairwiseWithTies(RandomPairwiseExchange):
    """The same, but on a tie a trainer takes its partner's model, as in LBANN's callback LTFB. It has no text form."""

    takes_equal: ClassVar[bool] = True


@dataclass(frozen=True)
class TruncationSelectionExchange(_Exchange):
    """All trainers are ranked by one metric on their own tournament samples; the one at rank i ≥ k, from 0, copies the
    model of the one at rank i mod k. Ties are broken by the number of the trainer. NaN is last, and a model whose score
    is NaN is never copied: there are fewer than k models to copy then.

    Args:
        metric_strategies: One metric and its better direction.
        truncation_k: How many trainers keep their models.
        mutation_strategy: How a copied model is mutated; our own addition.

    Raises:
        ConfigurationError: there is not exactly one metric, or k is not an integer >= 1.
    """

    message: ClassVar[str] = "TruncationSelectionExchange"

    metric_strategies: Mapping[str, int] = field(default_factory=dict[str, int])
    truncation_k: int = 0
    mutation_strategy: MutationStrategy = field(default_factory=MutationStrategy)

    def __post_init__(self) -> None:
        what = "TruncationSelectionExchange"
        object.__setattr__(self, "metric_strategies", _directions(what, self.metric_strategies))
        if len(self.metric_strategies) != 1:
            raise ConfigurationError(
                f"{what}: metric_strategies must name one metric, got {len(self.metric_strategies)}"
            )
        require(check_integer("truncation_k", self.truncation_k, minimum=1), where=what)


@dataclass(frozen=True)
class RegularizedEvolution(MetaLearningStrategy):
    """A sample of the trainers is drawn; a mutated copy of the best of them replaces the oldest model.

    The oldest is the trainer whose number is the round modulo the number of trainers. LBANN truncates scores to
    integers before it compares them; here they are compared as they are.

    Args:
        metric_name: The metric, on each trainer's own tournament samples.
        metric_strategy: Its better direction.
        mutation_strategy: How the copy is mutated.
        sample_size: How many trainers are drawn, >= 1.

    Raises:
        ConfigurationError: no metric is named, the direction is unknown, or `sample_size` is out of range.

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
        require(check_integer("sample_size", self.sample_size, minimum=1), where="RegularizedEvolution")

    @property
    def metrics(self) -> Mapping[str, MetricStrategy]:
        """See `MetaLearningStrategy.metrics`."""
        return {self.metric_name: MetricStrategy(self.metric_strategy)}


@dataclass(frozen=True)
class LTFB(TrainingAlgorithm):
    """LTFB: in each round, trainers train independently and then exchange models.

    Weights, the optimizer's state and options, the step of its schedules and the state of callbacks move with a model,
    except with "sendrecv_weights" without hyperparameters. Each trainer keeps its position in its data. Tournament
    samples come from the reader of the role "tournament" and are never trained on.

    A trainer whose gradient is not finite stops training until the next exchange, and its score is NaN.

    Args:
        name: A name for this algorithm in logs.
        local_algo: The training algorithm of a round; its limits are the length of a round.
        metalearning: How models are selected and copied after a round.
        metalearning_steps: Number of exchanges.
        suppress_timer_output: Do not log the time this algorithm takes.

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
                "metalearning must be a RandomPairwiseExchange, a TruncationSelectionExchange or a "
                f"RegularizedEvolution, got {self.metalearning!r}"
            )
        if type(self.metalearning_steps) is not int or self.metalearning_steps < 0:
            problems.append(f"metalearning_steps must be an integer >= 0, got {self.metalearning_steps!r}")
        if not isinstance(self.local_algo, TrainingAlgorithm) or isinstance(self.local_algo, LTFB):  # pyright: ignore[reportUnnecessaryIsInstance]  # users pass anything
            problems.append(
                f"local_algo must be an algorithm such as BatchedIterativeOptimizer(), got {self.local_algo!r}"
            )
        if problems:
            raise ConfigurationError([f"LTFB: {problem}" for problem in problems])

    @property
    def strategy(self) -> MetaLearningStrategy:
        """The strategy of the exchanges."""
        assert self.metalearning is not None  # checked by __post_init__
        return self.metalearning

    def to_fields(self) -> dict[str, Any]:
        """The fields of its text form."""
        return {
            "name": self.name,
            "local_training_algorithm": self.local_algo,
            "meta_learning_strategy": self.metalearning,
            "stopping_criteria": _Tournaments({"max_tournaments": self.metalearning_steps}),
            "suppress_timer_output": self.suppress_timer_output,
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> LTFB:
        """The algorithm from the fields of its text form; without a number of exchanges there are none."""
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
        """The local algorithm's `stop`, which may have no text form."""
        return getattr(self.local_algo, "stop", None)

    def nested(self) -> tuple[TrainingAlgorithm, ...]:
        """See `TrainingAlgorithm.nested`."""
        return (self, *self.local_algo.nested())

    def epochs(self, default: int) -> int | None:
        """See `TrainingAlgorithm.epochs`."""
        of_one = self.local_algo.epochs(default)
        return None if of_one is None else of_one * (self.metalearning_steps + 1)

    def until(self, stop: Stop) -> LTFB:
        """See `TrainingAlgorithm.until`; the criterion ends a round."""
        return replace(self, local_algo=self.local_algo.until(stop))

    def check(self, metrics: Mapping[str, Any] | list[str], roles: Mapping[str, Any] | list[str]) -> None:
        """Check metrics and data before anything runs.

        Args:
            metrics: Names of the metrics of an evaluation, without "objective".
            roles: The roles that have data.

        Raises:
            ConfigurationError: a metric does not exist, or there are no tournament samples.
        """
        known = ["objective", *metrics]
        problems = [
            f"{type(self.metalearning).__name__} names a metric '{name}' that does not exist{nearest(name, known)}"
            for name in self.strategy.metrics
            if name not in known
        ]
        if "tournament" not in roles:
            problems.append(
                "LTFB needs samples that no trainer trains on: add a reader with the role 'tournament', or hold some "
                "out with tournament_fraction"
            )
        if problems:
            raise ConfigurationError(problems)

    def apply(self, run: Run) -> str:
        """See `TrainingAlgorithm.apply`: with one trainer."""
        from descend.train.population.runner import Population  # imports torch, so not at module level

        return Population.alone(run).play(self)[0]
