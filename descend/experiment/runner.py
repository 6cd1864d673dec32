"""Carries out a run, whatever described it: directory, signals, checkpoints, training, the last evaluation.

execute            the run in the role that its strategy gives this rank: it trains, or computes for the one that does
  opened             ranks are compared, the store opens, callbacks set themselves up
  begin_or_resume    a new directory, or a checkpoint
  run_algorithm      training, then the test samples, then the last checkpoint
result_of          what came of it
"""

from __future__ import annotations

import math
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from descend.arguments.leniency import Deviation, refused
from descend.errors import (
    ConfigurationError,
    DirectoryLost,
    NumericalError,
    Stopped,
    StorageError,
    nearest,
    warn,
)
from descend.experiment.best import Best, best_epoch, monitored_metric
from descend.experiment.ranks import require_same_configuration
from descend.runtime import STOPPED, SaveRequest, SignalHandler
from descend.runtime.dtensor import full_tensor
from descend.runtime.seeds import forked_rng
from descend.terminal import hold_standard_streams
from descend.terminal.display import printable
from descend.train import Event, Mode
from descend.train.evaluation import averages_of, evaluate, write_weights
from descend.train.events import announced
from descend.train.module_state import tensors_of
from descend.train.optional_classes import is_ltfb
from descend.train.transforms.check_finite import CheckFinite

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator, Mapping

    from descend.runtime import Communicator
    from descend.train.callback import Monitored
    from descend.train.run import Run
    from descend.train.store import RunStore

__all__ = [
    "Result",
    "RunOptions",
    "TrainerContext",
    "begin_or_resume",
    "check_exchange",
    "execute",
    "finish",
    "opened",
    "result_of",
    "run_algorithm",
    "save_stopped",
    "saved_after_error",
]


@dataclass(frozen=True)
class TrainerContext:
    """One of several trainers.

    Attributes:
        number: Its number.
        communicator: This process among the ranks of the trainer.
        store: Where it keeps rows and checkpoints.
    """

    number: int
    communicator: Communicator
    store: RunStore


@dataclass(frozen=True)
class RunOptions:
    """Where a run is kept and who carries it out, as `descend.fit` and `descend.run` take it.

    Attributes:
        run_dir: A new or empty directory; with `resume`, that of the run to continue; None makes a dated one.
        keep_files: False keeps no files at all.
        resume: Continue the newest good checkpoint of `run_dir`; without one, begin.
        reset_optimizer: With `resume`, continue the checkpoint with an optimizer without state.
        weights_only: With `resume`, start over with those weights of the checkpoint that fit by name and shape.
        trainers: How many train the model; None for one a block of ranks.
        procs_per_trainer: Ranks of a block; None for LBANN_PROCS_PER_TRAINER or all.
        deterministic: Let torch take algorithms that give the same bits each time while the run lasts, and refuse an
            operation without one. On a GPU only that makes a repeated or continued run the same to the bit.
        working_dir: Where relative names of callbacks lie; None for the run directory.
        check_ranks: With several ranks that hold copies of the weights, compare these now and then and at the end, at a
            cost below a thousandth; a rank whose weights have drifted away ends the run.
    """

    run_dir: str | os.PathLike[str] | None = None
    keep_files: bool = True
    resume: bool = False
    reset_optimizer: bool = False
    weights_only: bool = False
    trainers: int | None = None
    procs_per_trainer: int | None = None
    deterministic: bool = False
    working_dir: Path | None = None
    check_ranks: bool = True

    @property
    def continued(self) -> str | os.PathLike[str] | None:
        """The directory of the run that is continued; None for a new run."""
        return self.run_dir if self.resume else None


@dataclass(frozen=True)
class Result:
    """What came of a run.

    Attributes:
        weights: Every parameter and buffer by name, on the CPU.
        history: One row for each epoch and evaluation, as in `metrics.jsonl`.
        reason: Why training stopped, a sentence.
        run_dir: Where description, rows and checkpoints lie; None where the run kept no files.
        module: The trained module.
        steps: Updates applied.
        samples: How many samples there are of each mode; None where that is not known.
        outputs: Outputs of layers (samples, …) that `BatchedInference` was asked for, by "mode/layer".
        trainer: Number of the trainer.
        trainers: Where there are several: what came of each one that this process has trained.
        monitored: By what the best epoch is chosen.
        averages: Of a run with several averages of the weights, those behind the first one, by their names.
    """

    weights: dict[str, torch.Tensor]
    history: list[dict[str, Any]]
    reason: str
    run_dir: Path | None
    module: torch.nn.Module
    steps: int
    samples: dict[str, int | None]
    outputs: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    trainer: int = 0
    trainers: tuple[Result, ...] = ()
    monitored: Monitored | None = None
    averages: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict[str, dict[str, "torch.Tensor"]])

    @property
    def best(self) -> Best | None:
        """The best epoch, by what `Checkpoint(keep_best=...)` or `EarlyStopping` monitored.

        Without such a callback it is the validation objective that decides, and of a run without validation the
        training objective. None where that was never a number. `descend.load_weights` loads the weights of that epoch.
        """
        checkpoints = None if self.run_dir is None else self.run_dir / "checkpoints"
        return best_epoch(self.history, self.monitored or monitored_metric((), self.history), checkpoints)

    def __repr__(self) -> str:
        last = {row["mode"]: row for row in self.history if "objective" in row}
        rows = [f"  {mode} " + _values_of(row) for mode, row in last.items()]
        lines = [f"Result: {self.reason}; {self.steps:,} steps", *rows]
        if self.best is not None:
            lines.append(f"  best {self.best.metric} {self.best.value:.6g} at step {self.best.step:,}")
        lines.append(f"  run_dir {self.run_dir}" if self.run_dir else "  no files were kept")
        return "\n".join(lines)


def _values_of(row: Mapping[str, Any]) -> str:
    """The measured values of a row of the history, without counts and times."""
    left_out = {"mode", "epoch", "step", "samples", "seconds"}
    numbers = {name: value for name, value in row.items() if name not in left_out and isinstance(value, (int, float))}
    return ", ".join(f"{printable(name)} {value:.6g}" for name, value in numbers.items())


def execute(run: Run) -> Result:
    """Carry out a run.

    Raises:
        ConfigurationError: also where another process is at work in the directory.
        Stopped: a signal asked it to stop; the state is saved if the run has a directory.
        Other errors of `descend.errors`, as they come.
    """
    if (serve := run.strategy.serve) is not None:
        return _serve(run, serve)
    with run.strategy.running():
        reason = _train(run)
    return result_of(run, reason)


def _train(run: Run) -> str:
    """Train from the beginning, or a checkpoint, to the end; returns why it ended."""
    config = run.config
    if not config.resume and (config.reset_optimizer or config.weights_only):
        raise ConfigurationError("reset_optimizer and weights_only say how to continue a run: they need resume=True")
    check_exchange(run)
    with ExitStack() as stack:
        signals = stack.enter_context(SignalHandler())
        stack.enter_context(opened(run, signals))
        stack.enter_context(run.store.logging())
        begin_or_resume(run, run.store.newest_checkpoint() if config.resume else None)
        stack.enter_context(run.store.noting_end(run))
        return run_algorithm(run, lambda: config.algorithm.apply(run), config.algorithm.trains)


def _serve(run: Run, serve: Callable[[], dict[str, Any]]) -> Result:
    """Compute for the rank that trains; its last words say what came of the run."""
    with SignalHandler() as signals, opened(run, signals):
        end = serve()
        own = result_of(run, end["reason"])
    folder = end["run_dir"] and Path(end["run_dir"])
    own = replace(own, history=end["history"], run_dir=folder, steps=end["steps"], outputs={})
    return replace(own, monitored=monitored_metric(run.callbacks.all, own.history))


def check_exchange(run: Run) -> None:
    """Refuse a tournament whose exchanges could not be carried out.

    Raises:
        ConfigurationError: a model that was taken over cannot be changed in the way that was asked for.
    """
    algorithm = run.config.algorithm
    if is_ltfb(algorithm):
        from descend.train.population.runner import check_mutation

        strategy: Any = algorithm.strategy
        check_mutation(strategy.mutation_strategy, run.optimizer, run.task, run.callbacks.all)


@contextmanager
def opened(run: Run, signals: SignalHandler) -> Generator[None]:
    """Compare the ranks, open the store, and let callbacks set themselves up; nothing is trained yet."""
    hold_standard_streams()
    alone = run.communicator.world_size == 1  # of several ranks, none leaves by itself
    run.stop.listen(signals.requested, signals.wait if alone else lambda waiting: None)
    with ExitStack() as stack:
        stack.enter_context(forked_rng(run.communicator.device))
        require_same_configuration(run)
        try:
            stack.enter_context(run.store.opened(run))
            run.strategy.synchronize("the beginning of the run")
            run.clock.start()
            with run.store.logging():
                _check_awaited_metrics(run)
                run.checks.updates.check_plan()
                run.store.check(run)
                run.callbacks.fire(Event.AFTER_SETUP, run.views.of_run())
        except ConfigurationError:  # nothing was written yet
            run.store.discard()
            raise
        yield


def result_of(run: Run, reason: str) -> Result:
    """What came of a run that has ended."""
    run.strategy.end_training()
    counts = {mode.value: batches.num_samples for mode, batches in run.data.items()}
    state = run.state
    return Result(
        _on_cpu(tensors_of(run.task.module)),
        state.history,
        reason,
        run.store.directory,
        run.task.module,
        state.step,
        counts,
        state.outputs,
        monitored=monitored_metric(run.callbacks.all, state.history),
        averages={label: _on_cpu(average) for label, average in run.control.evaluated.others().items()},
    )


def _on_cpu(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies of whole tensors; every rank of a sharded module calls it."""
    return {name: full_tensor(tensor).detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def _check_awaited_metrics(run: Run) -> None:
    """Refuse what waits for a quantity that is not recorded; callbacks of a user may record anything.

    Raises:
        ConfigurationError: all such, with the nearest names.
    """
    own = __name__.partition(".")[0]
    if any(type(callback).__module__.partition(".")[0] != own for callback in run.callbacks.all):
        return
    criterion = run.config.algorithm.criterion()
    awaited = [] if criterion is None else [(f"Reached('{name}')", name) for name in criterion.awaited]
    # What looks at certain modes has its own words where these have no samples.
    watching = [callback for callback in run.callbacks.all if not callback.looks_at]
    monitors = [(type(callback).__name__, callback.monitored) for callback in watching]
    awaited += [(f"{who} of '{each.metric}'", each.metric) for who, each in monitors if each is not None]
    quantities = ("objective", *run.config.metrics)
    recorded = [f"train/{name}" for callback in run.callbacks.all for name in callback.records]
    recorded = [*(f"{mode.value}/{name}" for mode in run.data for name in quantities), *recorded]
    beside = [f"{average}/{name}" for average in run.control.evaluated.other_names for name in quantities]
    recorded += [f"{mode.value}/{name}" for mode in run.data if mode is not Mode.TRAIN for name in beside]
    known = {*recorded, *(name.partition("/")[2] for name in recorded)}
    if missing := [(who, name) for who, name in awaited if name not in known]:
        raise ConfigurationError(
            [
                f"{who} waits for a value that is not recorded{nearest(name, known) or ';'} this run "
                f"records {', '.join(recorded)}"
                for who, name in missing
            ]
        )


def begin_or_resume(run: Run, checkpoint: Path | None) -> None:
    """Write what the directory of a new run begins with, or bring the run to where a checkpoint stands."""
    if checkpoint is None:
        run.store.begin(run, None)
        return
    from descend.experiment.resume import resume, start_over

    (start_over if run.config.weights_only else resume)(run, checkpoint)


def run_algorithm(run: Run, algorithm: Callable[[], str], trains: bool = True) -> str:
    """Train, evaluate the test samples and save; on a signal, save and say so.

    Args:
        run: The run.
        algorithm: Trains, and returns why it stopped.
        trains: Whether it makes updates, so that the test samples are evaluated after it.
    """
    with announced(run):
        run.checks.begin()
        try:
            return _finish_or_save(run, algorithm, trains)
        except DirectoryLost as lost:
            raise DirectoryLost([*lost.problems, *saved_where_it_went(run)]) from None


def _finish_or_save(run: Run, algorithm: Callable[[], str], trains: bool) -> str:
    try:
        return finish(run, algorithm(), trains)
    except Stopped as stopped:
        raise Stopped(f"{stopped}; {save_stopped(run, stopped)}") from None
    except NumericalError as error:
        raise NumericalError([*error.problems, *saved_after_error(run)]) from None


def finish(run: Run, reason: str, trains: bool = True) -> str:
    """Evaluate the test samples where something was trained, and save the end of the run.

    Returns:
        The reason, which says so where no update was made.
    """
    reason = run.checks.end(reason) if trains else reason
    run.state.end = reason
    with run.control.evaluated.finishing():
        run.callbacks.fire(Event.AFTER_TRAINING, run.views.of_run(reason))
    if trains and run.checks.updates.only_evaluates and Mode.VALIDATION in run.data:
        evaluate(run, Mode.VALIDATION)
    if Mode.TEST in run.data and trains:
        _forget_test(run)
        evaluate(run, Mode.TEST)
    if trains:
        _require_objective(run)
    run.store.save(run, SaveRequest("end"), final=True)
    if trains:
        # What was evaluated is what the module has at the end.
        write_weights(averages_of(run), tensors_of(run.task.module))
    return reason


def _require_objective(run: Run) -> None:
    """Refuse to end a run as if nothing was wrong whose objective is infinite or undefined.

    Gradients may be finite all the same, for example where a loss divides by a count of zero.

    Raises:
        NumericalError: unless the run allows what is not finite, or skips it.
    """
    if run.transforms.one(CheckFinite).on_nonfinite != "stop":
        return
    for mode, is_empty in run.history.nothing_counted.items():
        value = run.state.values.get(f"{mode.value}/objective", 0.0)
        if mode is Mode.TOURNAMENT or math.isfinite(value):
            continue
        if is_empty:
            warn(f"no {mode.value} target counted, as where a loss ignores all of them: the objective is undefined")
        elif mode is Mode.TRAIN:
            problem = f"the training objective of the last epoch is {value}, although all gradients were finite"
            _refuse_objective(
                problem, "the loss and at what it divides by (the sum of weights or of counted targets may be 0)"
            )
        else:
            _refuse_objective(
                f"the last {mode.value} objective is {value}",
                f"the {mode.value} samples and the module in evaluation mode",
            )


def _refuse_objective(problem: str, place: str) -> None:
    if refused(Deviation.OBJECTIVE_NOT_FINITE, problem):
        raise NumericalError(f"{problem}: look at {place}, or pass on_nonfinite='allow'")


def save_stopped(run: Run, stopped: Stopped) -> str:
    """Save the state of a run that a signal has ended; says where."""
    run.state.end = str(stopped)
    path = run.store.save(run, SaveRequest(STOPPED), final=True)
    return f"everything is saved in {path}" if path else "nothing is saved: the run has no directory"


def saved_after_error(run: Run) -> list[str]:
    """Save what stands after the last whole step, and say where; a save that fails does not hide the error."""
    try:
        path = run.store.save(run, SaveRequest("end"), final=True)
    except DirectoryLost as lost:
        return [lost.problems[0], *saved_where_it_went(run)]
    except StorageError as failed:
        return [failed.problems[0]]
    return [f"the state after {run.state.step:,} updates is saved in {path}"] if path else []


def saved_where_it_went(run: Run) -> list[str]:
    """Save what stands after the last whole step in the directory of a run that was renamed, and say how to resume."""
    moved = run.store.follow()
    if moved is None:
        return ["nothing could be saved after the last checkpoint"]
    return [*saved_after_error(run), f"continue the run with run_dir={str(moved)!r}, resume=True"]


def _forget_test(run: Run) -> None:
    """Take back the test of a finished run that has come to the same end once more."""
    history, step = run.state.history, run.state.step
    while history and (last := history[-1])["mode"] == Mode.TEST and last["step"] == step:
        run.history.truncate(len(history) - 1)
