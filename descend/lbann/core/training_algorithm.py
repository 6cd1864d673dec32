"""Training algorithms, with LBANN's arguments.

LBANN's message holds one stopping criterion. Where several are given, ours holds all of them, and the first that is met
ends the training, as LBANN's documentation says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from descend.errors import ConfigurationError, nearest
from descend.graph.enums import Exported
from descend.lbann.core.messages import FromMessage, enumeration, message_class

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "KFAC",
    "LTFB",
    "SGD",
    "BatchedIterativeOptimizer",
    "ExchangeStrategy",
    "MetaLearningStrategy",
    "MutationStrategy",
    "RandomPairwiseExchange",
    "RegularizedEvolution",
    "TrainingAlgorithm",
    "TruncationSelectionExchange",
]

MetricStrategy = enumeration("lbann_data.RandomPairwiseExchange.MetricStrategy")


class TrainingAlgorithm(Exported):
    """How a model is trained.

    Args:
        name: A name for it in logs.
    """

    message: ClassVar[str]
    envelope = "TrainingAlgorithm"

    def __init__(self, name: str) -> None:
        self.name = name

    def own_fields(self) -> dict[str, Any]:
        """The fields of its own message."""
        raise NotImplementedError(f"{type(self).__name__} defines no own_fields()")

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them."""
        return {"name": self.name, **self.own_fields()}


class StoppingCriteria(Exported):
    """When mini-batch descent ends, counted from its start: as soon as one that is not 0 is met.

    Args:
        batch_count: Mini-batches.
        epoch_count: Passes over the data.
        seconds: Seconds of training.
    """

    message: ClassVar[str] = "SGD.TerminationCriteria"

    def __init__(self, batch_count: int = 0, epoch_count: int = 0, seconds: float = 0.0) -> None:
        self.batch_count, self.epoch_count, self.seconds = batch_count, epoch_count, seconds

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them."""
        given = {"max_batches": self.batch_count, "max_epochs": self.epoch_count, "max_seconds": self.seconds}
        given = {name: value for name, value in given.items() if value}
        if len(given) < 2:
            return message_class(self.message)(**given).to_fields()
        return {"any_of": message_class("SGD.TerminationCriteria.AnyOf")(**given)}


class BatchedIterativeOptimizer(TrainingAlgorithm):
    """Mini-batch descent; the update rules are those of the weights.

    Args:
        name: A name for it in logs.
        num_iterations: Stop after so many mini-batches; 0 is no limit.
        epoch_count: Stop after so many passes over the data; 0 is no limit.
        max_seconds: Stop after so many seconds; 0 is no limit.
        suppress_timer_output: Whether its time is not printed.
    """

    message: ClassVar[str] = "SGD"
    StoppingCriteria = StoppingCriteria

    def __init__(
        self,
        name: str = "sgd",
        num_iterations: int = 0,
        epoch_count: int = 0,
        max_seconds: float = 0.0,
        suppress_timer_output: bool = False,
    ) -> None:
        super().__init__(name)
        self.stopping = StoppingCriteria(num_iterations, epoch_count, max_seconds)
        self.suppress_timer_output = suppress_timer_output

    def own_fields(self) -> dict[str, Any]:
        """The fields of its own message."""
        limits = self.stopping if self.stopping.to_fields() else None
        return {"stopping_criteria": limits, "suppress_timer_output": self.suppress_timer_output}


SGD = BatchedIterativeOptimizer  # `lbann.SGD` is the optimizer


class _Sgd(Exported):
    """The message of mini-batch descent inside of K-FAC's, without a name."""

    message: ClassVar[str] = "SGD"

    def __init__(self, algorithm: BatchedIterativeOptimizer) -> None:
        self.algorithm = algorithm

    def to_fields(self) -> dict[str, Any]:
        return self.algorithm.own_fields()


class KFAC(TrainingAlgorithm):
    """Mini-batch descent with gradients multiplied by inverse Kronecker factors.

    Args:
        name: A name for it in logs.
        first_order_optimizer: The mini-batch descent.
        fields: Fields of the message, such as damping_act="0.03".
    """

    message: ClassVar[str] = "KFAC"

    def __init__(self, name: str, first_order_optimizer: BatchedIterativeOptimizer, **fields: Any) -> None:
        super().__init__(name)
        self.first_order_optimizer = first_order_optimizer
        self._settings = message_class("KFAC")(**fields)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._settings, name)

    def own_fields(self) -> dict[str, Any]:
        """The fields of its own message."""
        return {**self._settings.to_fields(), "sgd": _Sgd(self.first_order_optimizer)}


class MutationStrategy(Exported):
    """How a model that was taken over is changed.

    Args:
        strategy: null_mutation, replace_activation, replace_convolution or hybrid_mutation.
    """

    message: ClassVar[str] = "MutationStrategy"

    def __init__(self, strategy: str = "null_mutation") -> None:
        self.strategy = _chosen("MutationStrategy", strategy)

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them."""
        return {self.strategy: _option(self.message, self.strategy)}


class ExchangeStrategy(Exported):
    """How a model is sent from one trainer to another.

    Args:
        strategy: checkpoint_binary, checkpoint_file or sendrecv_weights.
        weights_names: Names of the weights that travel; all where none is named.
        exchange_hyperparameters: Whether sendrecv_weights sends the optimizer's state as well.
        checkpoint_dir: Folder of checkpoint_file.
    """

    message: ClassVar[str] = "RandomPairwiseExchange.ExchangeStrategy"

    def __init__(
        self,
        strategy: str = "checkpoint_binary",
        weights_names: Iterable[str] = (),
        exchange_hyperparameters: bool = False,
        checkpoint_dir: str | None = None,
    ) -> None:
        self.strategy = _chosen("RandomPairwiseExchange.ExchangeStrategy", strategy)
        self.weights_names = [weights_names] if isinstance(weights_names, str) else list(weights_names)
        self.exchange_hyperparameters = exchange_hyperparameters
        self.checkpoint_dir = checkpoint_dir
        if strategy == "checkpoint_file" and not checkpoint_dir:
            raise ConfigurationError(
                "ExchangeStrategy: 'checkpoint_file' needs checkpoint_dir, a folder that all share"
            )

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them."""
        settings: dict[str, Any] = {
            "sendrecv_weights": {"exchange_hyperparameters": self.exchange_hyperparameters},
            "checkpoint_file": {"checkpoint_dir": self.checkpoint_dir},
        }.get(self.strategy, {})
        return {"weights_name": self.weights_names, self.strategy: _option(self.message, self.strategy, **settings)}


def _options(message: str) -> Mapping[str, Any]:
    fields = message_class(message).field_infos()
    return {name: field for name, field in fields.items() if field.oneof is not None}


def _chosen(message: str, strategy: str) -> str:
    known = _options(message)
    if strategy not in known:
        short = message.rpartition(".")[2]
        raise ConfigurationError(
            f"{short} has no strategy {strategy!r}{nearest(str(strategy), known) or ';'} it has {', '.join(known)}"
        )
    return strategy


def _option(message: str, strategy: str, **settings: Any) -> FromMessage:
    return message_class(_options(message)[strategy].message.name)(**settings)


class MetaLearningStrategy(Exported):
    """What trainers do between two rounds of training."""

    message: ClassVar[str]
    MetricStrategy = MetricStrategy


class RandomPairwiseExchange(MetaLearningStrategy):
    """Trainers meet in random pairs; the better model of a pair continues in both.

    Args:
        metric_strategies: LOWER_IS_BETTER (0) or HIGHER_IS_BETTER (1) for the name of each metric.
        exchange_strategy: How a model is sent.
        mutation_strategy: How the loser's new model is changed.
    """

    message: ClassVar[str] = "RandomPairwiseExchange"
    ExchangeStrategy = ExchangeStrategy
    MutationStrategy = MutationStrategy

    def __init__(
        self,
        metric_strategies: Mapping[str, int] | None = None,
        exchange_strategy: ExchangeStrategy | None = None,
        mutation_strategy: MutationStrategy | None = None,
    ) -> None:
        self.metric_strategies = dict(metric_strategies or {})
        self.exchange_strategy = exchange_strategy or ExchangeStrategy()
        self.mutation_strategy = mutation_strategy or MutationStrategy()

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them."""
        return {
            "metric_name_strategy_map": {name: int(way) for name, way in self.metric_strategies.items()},
            "exchange_strategy": self.exchange_strategy,
            "mutation_strategy": self.mutation_strategy,
        }


class TruncationSelectionExchange(MetaLearningStrategy):
    """Trainers are ranked; those behind the first truncation_k take a model of these.

    Args:
        metric_strategies: As in RandomPairwiseExchange, for one metric.
        truncation_k: How many keep their model.
    """

    message: ClassVar[str] = "TruncationSelectionExchange"

    def __init__(self, metric_strategies: Mapping[str, int] | None = None, truncation_k: int = 0) -> None:
        self.metric_strategies, self.truncation_k = dict(metric_strategies or {}), truncation_k

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them."""
        ways = {name: int(way) for name, way in self.metric_strategies.items()}
        return {"metric_name_strategy_map": ways, "truncation_k": self.truncation_k}


class RegularizedEvolution(MetaLearningStrategy):
    """The best of a random sample of trainers is copied, changed, and replaces the oldest.

    Args:
        metric_name: The metric.
        metric_strategy: LOWER_IS_BETTER (0) or HIGHER_IS_BETTER (1).
        mutation_strategy: How the copy is changed.
        sample_size: How many trainers are drawn.
    """

    message: ClassVar[str] = "RegularizedEvolution"
    MutationStrategy = MutationStrategy

    def __init__(
        self,
        metric_name: str = "",
        metric_strategy: int = MetricStrategy["LOWER_IS_BETTER"],
        mutation_strategy: MutationStrategy | None = None,
        sample_size: int = 0,
    ) -> None:
        self.metric_name, self.metric_strategy, self.sample_size = metric_name, int(metric_strategy), sample_size
        self.mutation_strategy = mutation_strategy or MutationStrategy()

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them."""
        return dict(vars(self))


class LTFB(TrainingAlgorithm):
    """Rounds of local training, each followed by an exchange between trainers, and local training once more.

    Args:
        name: A name for it in logs.
        local_algo: The training of one round.
        metalearning: What trainers do after a round.
        metalearning_steps: Number of exchanges.
        suppress_timer_output: Whether its time is not printed.
    """

    message: ClassVar[str] = "LTFB"

    def __init__(
        self,
        name: str,
        local_algo: TrainingAlgorithm,
        metalearning: MetaLearningStrategy,
        metalearning_steps: int = 1,
        suppress_timer_output: bool = False,
    ) -> None:
        super().__init__(name)
        self.local_algo, self.metalearning = local_algo, metalearning
        self.metalearning_steps, self.suppress_timer_output = metalearning_steps, suppress_timer_output

    def own_fields(self) -> dict[str, Any]:
        """The fields of its own message."""
        return {
            "local_training_algorithm": self.local_algo,
            "meta_learning_strategy": self.metalearning,
            "stopping_criteria": message_class("LTFB.TerminationCriteria")(max_tournaments=self.metalearning_steps),
            "suppress_timer_output": self.suppress_timer_output,
        }
