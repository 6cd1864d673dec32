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
from descend.study.design.sampling import seed_of
from descend.study.phases import Stage, carry_weights, stages
from descend.study.running.optimizer import make, multipliers, schedule_of
from descend.study.running.scores import Scorer
from descend.study.running.trial import Record, Trial, evaluation_steps, machine_id
from descend.train import Callback, Steps
from descend.train.evaluation import averaged

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from descend.optim.schedules import Schedule
    from descend.study.running.trial import TrialCheckpoints
    from descend.study.task import StudyTask
    from descend.train.events import RunView, StepView

__all__ = ["run_sequentially", "run_trial", "status_of"]


class _ScoreRecorder(Callback):
    """Takes scores before the first update and after those that are asked for.

    Runs:  before_run, before_step and after_step.
    Reads: the module, in evaluation mode. Changes nothing.
    """

    remembers = ("steps", "scores", "seconds", "train_seconds", "looking_seconds")

    def __init__(self, scorer: Scorer, at: tuple[int, ...], *, test: bool = False) -> None:
        self.scorer, self.at = scorer, frozenset(at)
        self.last = max(at) if test else None  # the update after which the test samples are looked at, once
        self.now = 0
        self.steps: list[int] = []
        self.scores: dict[str, dict[str, list[float]]] = {}
        self.train_seconds: list[float] = []
        self.looking_seconds = 0.0
        self._began: float | None = time.perf_counter()
        self._before = 0.0

    @property
    def seconds(self) -> float:
        """That the trial took, with those of its processes that were interrupted until their last checkpoint."""
        return self._before + (0.0 if self._began is None else time.perf_counter() - self._began)

    @seconds.setter
    def seconds(self, before: float) -> None:
        self._before = before

    def end(self) -> None:
        """Count no further seconds: another phase follows, or none."""
        self._before, self._began = self.seconds, None

    def before_run(self, run: RunView) -> None:
        """Score the untrained module where it is asked for, unless a checkpoint has its scores."""
        if 0 in self.at and not self.steps:
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
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # updates under way are training, and not evaluation
        began = self.seconds
        self.train_seconds.append(began - self.looking_seconds)
        self._score(module, step)
        self.looking_seconds += self.seconds - began

    def _score(self, module: torch.nn.Module, step: int) -> None:
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
    """Run a trial to its end, whatever comes of it. One that has a checkpoint continues from there, to the same bits.

    Args:
        task: A prepared task.
        trial: What is run.
        evaluations: Looks at the scores.
        scorer: Of the task, where several trials share it.
        kind: Optimizer class of an arm that has no name for it.
        checkpoints: Where it is saved, and continues from; None saves nothing.

    Raises:
        Stopped: a signal asked it to stop; the trial is not recorded and runs again.
    """
    run = _TrialRun(task, trial, evaluations, scorer or Scorer(task), kind, checkpoints)
    status, failed_at, message = "done", None, ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run.pretrain()
            run.fine_tune()
    except NumericalError:
        status, failed_at = "diverged", run.now
    except Stopped:
        raise
    except torch.OutOfMemoryError as error:
        status, message = "out of memory", str(error)
    except MemoryError as error:
        status, message = "out of memory", str(error)
    except Exception as error:  # whatever the user's module or optimizer raises is a result of the trial
        status, message = "error", f"{type(error).__name__}: {error}"
    if status == "done":
        status, failed_at = status_of(run.steps, run.scores["train"]["loss"])
    return run.record(status, failed_at, message)


class _TrialRun:
    """The phases of a trial, one after the other, and what was seen in them.

    Attributes:
        steps: At which updates scores were taken, over all phases.
        scores: By split and metric.
    """

    def __init__(
        self,
        task: StudyTask,
        trial: Trial,
        evaluations: int,
        scorer: Scorer,
        kind: Any,
        checkpoints: TrialCheckpoints | None,
    ) -> None:
        self._task, self._trial, self._scorer, self._kind, self._checkpoints = task, trial, scorer, kind, checkpoints
        self._stages = stages(task, trial.configuration, trial.steps, trial.batch_size)
        self._at = evaluation_steps(trial.steps, evaluations)
        self._looks: list[tuple[int, _ScoreRecorder]] = []
        self._module: torch.nn.Module | None = None

    def pretrain(self) -> None:
        """Run all phases."""
        for stage in self._stages:
            last = stage is self._stages[-1]
            own = tuple(step - stage.first for step in self._at if stage.first < step <= stage.first + stage.steps)
            tested = self._trial.phase == "confirmation" and last and self._task.fine_tuning is None
            scorer = self._scorer if stage.task is self._task else Scorer(stage.task)
            looks = _ScoreRecorder(scorer, own if stage.first else (0, *own), test=tested)
            self._looks.append((stage.first, looks))
            self._train(stage, looks, self._trial.seed, self._kind, all_of_them=True)

    def fine_tune(self) -> None:
        """Try the weights at another task, where there is one."""
        last, trial = self._task.fine_tuning, self._trial
        if last is None:
            return
        scorer = Scorer(last.task)
        looks = _ScoreRecorder(scorer, (last.steps,), test=trial.phase == "confirmation")
        stage = Stage("fine_tuning", last.task, trial.steps, last.steps, last.batch_size, last.configuration)
        self._looks.append((trial.steps, looks))
        self._train(stage, looks, seed_of(trial.seed, "fine-tuning"), None, all_of_them=False)

    def _train(self, stage: Stage, looks: _ScoreRecorder, seed: int, kind: Any, *, all_of_them: bool) -> None:
        module = stage.task.module(seed)
        if self._module is not None:
            what = f"phase '{stage.name}'" if all_of_them else "fine tuning"
            carry_weights(module, self._module, all_of_them=all_of_them, what=what)
        self._module = module
        optimizer = make(stage.configuration, stage.steps, module, kind)
        foreign = kind is not None or ":" in stage.configuration["optimizer"]
        schedule = schedule_of(stage.configuration, stage.steps)
        rates = [_Rates(schedule, multipliers(stage.configuration, module))] if foreign else []
        kept = self._checkpoints
        saving = [] if kept is None else [Checkpoint(every_steps=kept.every_steps, keep=1)]
        place = "" if len(self._stages) == 1 and self._task.fine_tuning is None else stage.name or "first"
        try:
            fit(
                module,
                stage.task.loss,
                tuple(stage.task.train),
                optimizer=optimizer,
                batch_size=stage.batch_size,
                stop=Steps(stage.steps),
                seed=seed,
                callbacks=[*rates, looks, *saving],
                run_dir=None if kept is None else kept.run_dir(self._trial) / place,
                resume=kept is not None,
                verbose=False,
            )
        finally:
            looks.end()

    @property
    def _pretraining(self) -> list[tuple[int, _ScoreRecorder]]:
        return self._looks[: len(self._stages)]

    @property
    def now(self) -> int:
        """The update under way; one of fine tuning counts as the last."""
        return min(self._looks[-1][0] + self._looks[-1][1].now, self._trial.steps) if self._looks else 0

    @property
    def steps(self) -> list[int]:
        return [first + step for first, looks in self._pretraining for step in looks.steps]

    @property
    def scores(self) -> dict[str, dict[str, list[float]]]:
        found: dict[str, dict[str, list[float]]] = {}
        for _, looks in self._pretraining:
            _extend(found, looks.scores)
        for _, looks in self._looks[len(self._stages) :]:
            _extend(found, {_FINE_TUNED[split]: values for split, values in looks.scores.items()})
        return found

    def record(self, status: str, failed_at: int | None, message: str) -> Record:
        """What came of the trial."""
        seconds = sum(looks.seconds for _, looks in self._looks)
        samples = None
        if any(stage.batch_size != self._trial.batch_size for stage in self._stages):
            samples = sum(stage.steps * stage.batch_size for stage in self._stages)
        before, times = 0.0, list[float]()
        for _, looks in self._pretraining:
            times += [before + one for one in looks.train_seconds]
            before += looks.seconds - looks.looking_seconds
        return Record(
            self._trial,
            status,
            tuple(self.steps),
            self.scores,
            failed_at,
            message,
            seconds,
            tuple(times),
            machine_id(),
            samples,
        )


_FINE_TUNED = {"train": "finetuned train", "validation": "finetuned", "test": "test"}  # splits of its scores


def _extend(found: dict[str, dict[str, list[float]]], scores: dict[str, dict[str, list[float]]]) -> None:
    for split, metrics in scores.items():
        for name, values in metrics.items():
            found.setdefault(split, {}).setdefault(name, []).extend(values)


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
