"""One trial after the other, each through `descend.fit`: what a trial means. Faster executors agree with it."""

from __future__ import annotations

import contextlib
import time
import warnings
from typing import TYPE_CHECKING, Any

import torch

from descend.callbacks import Checkpoint
from descend.errors import NumericalError, Stopped
from descend.experiment.fit import fit
from descend.study.running.optimizer import make, multipliers, schedule_of
from descend.study.running.scores import Scorer
from descend.study.running.trial import Record, Trial, evaluation_steps
from descend.train import Callback, Steps
from descend.train.evaluation import averaged

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from descend.optim.schedules import Schedule
    from descend.study.running.trial_setup import TrialCheckpoints
    from descend.study.task import StudyTask
    from descend.train.events import RunView, StepView

__all__ = ["run_sequentially", "run_trial", "status_of"]


class _ScoreRecorder(Callback):
    """Takes scores before the first update and after those that are asked for.

    Runs:  before_run, before_step and after_step.
    Reads: the module, in evaluation mode. Changes nothing.
    """

    remembers = ("steps", "scores", "seconds")

    def __init__(self, scorer: Scorer, at: tuple[int, ...], *, test: bool = False) -> None:
        self.scorer, self.at = scorer, frozenset(at)
        self.last = max(at) if test else None  # the update after which the test samples are looked at, once
        self.now = 0
        self.steps: list[int] = []
        self.scores: dict[str, dict[str, list[float]]] = {}
        self._began, self._before = time.perf_counter(), 0.0

    @property
    def seconds(self) -> float:
        """That the trial took, with those of its processes that were interrupted until their last checkpoint."""
        return self._before + time.perf_counter() - self._began

    @seconds.setter
    def seconds(self, before: float) -> None:
        self._before = before

    def before_run(self, run: RunView) -> None:
        """Score the untrained module, unless a checkpoint has its scores."""
        if not self.steps:
            self._look(run.module, 0)

    def before_step(self, step: StepView) -> None:
        """Know which update is under way, for one that is not finite."""
        self.now = step.step

    def after_step(self, step: StepView) -> None:
        """Score where it is asked for."""
        if step.step in self.at:
            with _evaluated(step.optimizer):
                self._look(step.module, step.step)

    def _look(self, module: torch.nn.Module, step: int) -> None:
        training = module.training
        module.eval()
        place = next((p.device for p in module.parameters()), torch.device("cpu"))

        def call(*rows: torch.Tensor) -> Any:
            *inputs, target = (part.to(place) for part in rows)
            return self.scorer.ratios(module(*inputs), target)

        found = self.scorer.take_all(call) | (self.scorer.take_test(call) if step == self.last else {})
        module.train(training)
        self.steps.append(step)
        for split, metrics in found.items():
            for name, value in metrics.items():
                self.scores.setdefault(split, {}).setdefault(name, []).append(float(value))


@contextlib.contextmanager
def _evaluated(optimizer: Any) -> Generator[None]:
    """The weights that an optimizer wants evaluated, where they are others than those it trains."""
    switches = callable(getattr(optimizer, "eval", None)) and callable(getattr(optimizer, "train", None))
    if switches:  # as schedule-free optimizers of other libraries have it
        optimizer.eval()
    with averaged(optimizer):
        yield
    if switches:
        optimizer.train()


class _Rates(Callback):
    """Writes the scheduled rate into the groups of an optimizer that knows no schedules.

    Runs:  before_step.
    Costs: one assignment a group.
    """

    def __init__(self, schedule: Schedule, multipliers: list[float]) -> None:
        self.schedule = schedule
        self.multipliers = multipliers

    def before_step(self, step: StepView) -> None:
        """Set the rate of the update that follows."""
        rate = self.schedule(step.step - 1)
        for group, multiplier in zip(step.optimizer.param_groups, self.multipliers, strict=True):
            group["lr"] = multiplier * rate


def run_trial(
    task: StudyTask,
    trial: Trial,
    evaluations: int,
    *,
    scorer: Scorer | None = None,
    kind: Any = None,
    checkpoints: TrialCheckpoints | None = None,
) -> Record:
    """Run a trial to its end, whatever comes of it. One that has a checkpoint goes on from there, to the same bits.

    Args:
        task: A prepared task.
        trial: What is run.
        evaluations: Looks at the scores.
        scorer: Of the task, where several trials share it.
        kind: Optimizer class of an arm that has no name for it.
        checkpoints: Where it is saved, and goes on from; None saves nothing.

    Raises:
        Stopped: a signal asked for an end; the trial is not recorded and runs again.
    """
    at = evaluation_steps(trial.steps, evaluations)
    looks = _ScoreRecorder(scorer or Scorer(task), at, test=trial.phase == "confirmation")
    status, failed_at, message = "done", None, ""
    try:
        module = task.module(trial.seed)
        optimizer = make(trial.configuration, trial.steps, module, kind)
        foreign = kind is not None or ":" in trial.configuration["optimizer"]
        schedule = schedule_of(trial.configuration, trial.steps)
        rates = [_Rates(schedule, multipliers(trial.configuration, module))] if foreign else []
        saving = [] if checkpoints is None else [Checkpoint(every_steps=checkpoints.every_steps, keep=1)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit(
                module,
                task.loss,
                tuple(task.train),
                optimizer=optimizer,
                batch_size=trial.batch_size,
                stop=Steps(trial.steps),
                seed=trial.seed,
                callbacks=[*rates, looks, *saving],
                run_dir=None if checkpoints is None else checkpoints.run_dir(trial),
                resume=checkpoints is not None,
                verbose=False,
            )
    except NumericalError:
        status, failed_at = "diverged", looks.now
    except Stopped:
        raise
    except torch.OutOfMemoryError as error:
        status, message = "out of memory", str(error)
    except MemoryError as error:
        status, message = "out of memory", str(error)
    except Exception as error:  # whatever the user's module or optimizer raises is a result of the trial
        status, message = "error", f"{type(error).__name__}: {error}"
    if status == "done":
        status, failed_at = status_of(looks.steps, looks.scores["train"]["loss"])
    return Record(trial, status, tuple(looks.steps), looks.scores, failed_at, message, looks.seconds)


def status_of(steps: Iterable[int], losses: list[float]) -> tuple[str, int | None]:
    """How a trial ended that came to its end, from its training losses at some updates."""
    for step, loss in zip(steps, losses, strict=True):
        if not abs(loss) < float("inf"):
            return "diverged", step
    return ("collapsed" if losses[-1] >= losses[0] else "done"), None


def run_sequentially(
    task: StudyTask,
    trials: Iterable[Trial],
    evaluations: int,
    kinds: dict[str, Any] | None = None,
    *,
    checkpoints: TrialCheckpoints | None = None,
) -> Iterator[Record]:
    """Records of the trials as they end.

    Args:
        task: A prepared task.
        trials: What is run.
        evaluations: Looks at the scores of each.
        kinds: Optimizer classes by arm, of arms that have no name for them.
        checkpoints: Where trials are saved.
    """
    scorer = Scorer(task)
    for trial in trials:
        kind = (kinds or {}).get(trial.arm)
        yield run_trial(task, trial, evaluations, scorer=scorer, kind=kind, checkpoints=checkpoints)
