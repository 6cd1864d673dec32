"""The tournament of LBANN's callback LTFB, within the training of several trainers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from descend.arguments import check_choice
from descend.arguments import require as require_all
from descend.arguments.leniency import Deviation, refused
from descend.callbacks.name_fields import require, words
from descend.errors import ConfigurationError
from descend.graph.fields import described_openly
from descend.launch.environment import current_trainer
from descend.train import Callback, ExchangeStrategy, Mode
from descend.train.callback import Beginning

if TYPE_CHECKING:
    from descend.train import RunView, StepView
    from descend.train.population.ltfb import PairwiseWithTies

__all__ = ["LocalTournament"]

_WAYS = ("sendrecv_weights", "checkpoint_binary", "checkpoint_file")


@described_openly
class LocalTournament(Callback):
    """LBANN's CallbackLTFB: every `batch_interval` steps trainers meet in random pairs, and both keep the better model.

    It is the older form of the algorithm `descend.LTFB`: rounds do not cut epochs, and of two equal scores that of the
    partner wins. All trainers must take the same number of steps.

    Runs:  after_setup, to check that there are samples to compare models by; before_step.
    Reads: the metric on tournament samples, or on validation samples where there are none. Changes weights, and with
        exchange_hyperparameters or whole models what `descend.LTFB` sends.
    Costs: a model sent and two evaluations each time.

    Args:
        batch_interval: Steps from one round to the next; 0 is 1.
        metric: Decides who is better.
        weights: Names of the weights that are sent, with spaces between; all of them without any.
        low_score_wins: Whether a lower value is better.
        communication_algorithm: "sendrecv_weights", which is the default, "checkpoint_binary" or "checkpoint_file".
        exchange_hyperparameters: Whether the optimizer's state and options are sent as well.
        checkpoint_basedir: With "checkpoint_file", the folder of the files, which all trainers must share.

    Raises:
        ConfigurationError: there is no metric, or the way of sending is unknown.
    """

    message: ClassVar[str] = "Callback.CallbackLTFB"

    batch_interval: int = 0
    metric: str = ""
    weights: str = ""
    low_score_wins: bool = False
    communication_algorithm: str = ""
    exchange_hyperparameters: bool = False
    checkpoint_basedir: str = ""

    def __post_init__(self) -> None:
        require(self, "metric")
        require_all(check_choice("communication_algorithm", self._way, _WAYS), where="CallbackLTFB")
        self.strategy()

    @property
    def _way(self) -> str:
        return self.communication_algorithm or _WAYS[0]

    def strategy(self) -> PairwiseWithTies:
        """How models are chosen and sent."""
        from descend.train.population.ltfb import MetricStrategy, PairwiseWithTies

        direction = MetricStrategy.LOWER_IS_BETTER if self.low_score_wins else MetricStrategy.HIGHER_IS_BETTER
        own: dict[str, Any] = {}
        if self._way == "sendrecv_weights":
            own = {"exchange_hyperparameters": self.exchange_hyperparameters}
        elif self._way == "checkpoint_file":
            own = {"checkpoint_dir": self.checkpoint_basedir or "."}
        way = ExchangeStrategy(self._way, tuple(words(self.weights)), **own)
        return PairwiseWithTies({self.metric: direction}, way)

    @property
    def beginning(self) -> Beginning:
        """See `Callback.beginning`: models are exchanged before an update."""
        return Beginning(f"batch_interval={self.batch_interval}", "updates", max(self.batch_interval, 1) + 1)

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        self._plays = any(mode in run.steps_per_epoch for mode in (Mode.TOURNAMENT, Mode.VALIDATION))
        problem = "the callback LTFB needs tournament or validation samples, and this run has none"
        if not self._plays and (current_trainer()[1] > 1 or refused(Deviation.OLD_TOURNAMENT, problem)):
            raise ConfigurationError(f"{problem}: add a reader with the role 'tournament', or remove the callback")

    def before_step(self, step: StepView) -> None:
        """See `Callback.before_step`."""
        done = step.step - 1
        if self._plays and done and done % max(self.batch_interval, 1) == 0:
            step.run.control.population.meet(self.strategy(), done)
