"""What every run has in common, whatever described it: a directory, signals, checkpoints, training, a last evaluation.

`run` comes here from a graph and `fit` from any nn.Module.
"""

from __future__ import annotations

import platform
import sys
import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from descend.callbacks import ProgressBar
from descend.callbacks.console import listening, say
from descend.errors import ConfigurationError, DescendError, NumericalError, Stopped, StorageError, nearest
from descend.exit_codes import exit_code
from descend.experiment.checkpoint import (
    LoadedCheckpoint,
    capture,
    check_weights,
    load,
    restore,
    restore_weights,
    tensors_of,
)
from descend.experiment.ranks import require_same_configuration, scratch_directory
from descend.experiment.settings_diff import SettingChange, changed_options, compare, refuse
from descend.runtime import (
    STOPPED,
    CheckpointManager,
    RunDirectory,
    SaveRequest,
    SignalHandler,
    newest_checkpoint,
    require_storable,
)
from descend.runtime.dtensor import full_tensor
from descend.runtime.seeds import forked_rng
from descend.train import LTFB, Callbacks, Event, ExecutionContext, Mode
from descend.train.evaluation import evaluate
from descend.train.numerics import Numerics
from descend.train.population.runner import check_mutation
from descend.train.session import Session
from descend.train.strategies.majority_vote import Vote
from descend.version import __version__

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator, Mapping, Sequence

    from descend.data import Feed
    from descend.runtime import Communicator
    from descend.train import Callback, TrainingAlgorithm
    from descend.train.micro_batch import MicroBatch
    from descend.train.strategies.buffers import RunningStatistics
    from descend.train.strategies.delayed import StaleGradients
    from descend.train.strategies.majority_vote import MajorityVote
    from descend.train.task import Task

__all__ = [
    "Opened",
    "Result",
    "Work",
    "check_exchange",
    "diff_settings",
    "execute",
    "facts_of",
    "finish",
    "logging",
    "open_run",
    "result_of",
    "run_algorithm",
    "save_stopped",
    "saved_after_error",
]


@dataclass(frozen=True)
class Result:
    """What came of a run.

    Attributes:
        weights: Every weights object by name, on the CPU.
        history: One row for each pass over samples, as in `metrics.jsonl`.
        reason: Why training stopped, a sentence.
        run_dir: Where description, rows and checkpoints lie; None where the run kept no files.
        module: The trained module.
        steps: Updates applied.
        samples: How many samples there are of each mode; None where nobody has counted them.
        outputs: Outputs of layers (samples, …) that `BatchedInference` was asked for, by "mode/layer".
        trainer: Number of the trainer.
        trainers: Where there are several: what came of each one that this process has trained.
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


@dataclass(frozen=True)
class Work:
    """One run, ready to be carried out.

    Attributes:
        name: The model's name.
        task: The module and its losses.
        optimizer: What updates it.
        data: Mini-batches by mode.
        process: This process among its ranks.
        algorithm: What is done.
        seed: Where random numbers begin.
        callbacks: Who watches.
        default_epochs: Passes where the algorithm sets no limit.
        micro_batch_size: Samples that go through the module at once; None for a whole mini-batch, "auto" for as many
            as the memory of the device allows.
        unit: Samples that a micro-batch is made of; None where a mini-batch cannot be cut.
        files: Text files that the run directory begins with, by name.
        summary_dir: Where TensorBoard's files go; None for a folder of the run directory.
        settings: Plain facts about the run. What differs between a run and its continuation is shown, and applied or
            refused as `changes.py` says.
        numerics: Loss scale, look for non-finite gradients, clipping.
        before_part: Called with each part of a mini-batch before it goes through the module.
        reset_optimizer: Continue a checkpoint with an optimizer without state.
        weights_only: Begin anew with those weights of a checkpoint that fit.
        running: Buffers of the module that are running statistics of batch norm.
        in_turns: Whether all ranks go through the module as often in each step.
        shard_optimizer: Let each of several ranks keep the optimizer's state of some weights only.
        outside: Metrics that the module does not compute; given the run directory.
        compression: What ranks send instead of gradients; None for these.
        metrics: Names of all metrics.
        late: Where gradients come from that are computed at older weights; None where they are not.
    """

    name: str
    task: Task
    optimizer: torch.optim.Optimizer
    data: Mapping[Mode, Feed]
    process: Communicator
    algorithm: TrainingAlgorithm
    seed: int
    callbacks: tuple[Callback, ...] = ()
    default_epochs: int = 0
    micro_batch_size: int | Literal["auto"] | None = None
    unit: int | None = 1
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    summary_dir: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    numerics: Numerics = field(default_factory=Numerics)
    before_part: Callable[[MicroBatch], None] = lambda part: None
    reset_optimizer: bool = False
    weights_only: bool = False
    running: Sequence[RunningStatistics] = ()
    in_turns: bool = False
    shard_optimizer: bool = False
    outside: Callable[[Path | None], Mapping[str, float]] = lambda directory: {}
    compression: MajorityVote | None = None
    metrics: Sequence[str] = ()
    late: StaleGradients | None = None


def execute(
    work: Work, run_dir: str | os.PathLike[str] | None, *, keep_files: bool = True, resume: bool = False
) -> Result:
    """Carry out a run.

    Args:
        work: The run.
        run_dir: A new or empty directory; with `resume`, that of the run to continue; None makes a dated one.
        keep_files: False writes nothing at all; `run_dir` must be None then.
        resume: Continue the newest good checkpoint of `run_dir`; without one, begin.

    Raises:
        ConfigurationError: also where another process is at work in the directory.
        Stopped: a signal asked for an end; the state is saved if the run has a directory.
        Other errors of `descend.errors`, as they come.
    """
    if not resume and (work.reset_optimizer or work.weights_only):
        raise ConfigurationError("reset_optimizer and weights_only say how to continue a run: they need resume=True")
    check_exchange(work)
    with ExitStack() as stack:
        requests = stack.enter_context(SignalHandler())
        stack.enter_context(forked_rng(work.process.device))
        opened = stack.enter_context(open_run(work, run_dir, requests, keep_files=keep_files, resume=resume))
        stack.enter_context(logging(opened.directory))
        if opened.session.cut:
            stack.enter_context(opened.session.cut.sum_reduction())
        opened.begin(resume, opened.newest() if resume else None)
        stack.enter_context(opened.end_noted())
        reason = run_algorithm(opened.session, lambda: work.algorithm.apply(opened.session), work.algorithm.trains)
    return result_of(opened, reason)


def check_exchange(work: Work) -> None:
    """Refuse a tournament whose exchanges could not be carried out.

    Raises:
        ConfigurationError: a model that was taken over cannot be changed in the way that was asked for.
    """
    if isinstance(work.algorithm, LTFB):
        strategy: Any = work.algorithm.strategy
        check_mutation(strategy.mutation_strategy, work.optimizer, work.task)


@dataclass
class Opened:
    """A run that may begin: its session, and the directory of those ranks that leave files.

    Attributes:
        work: The run.
        session: What the algorithm works on.
        folder: The run directory; None where no files are kept.
        directory: The same on the rank that owns it.
        archive: Its checkpoints, likewise.
    """

    work: Work
    session: Session
    folder: Path | None
    directory: RunDirectory | None
    archive: CheckpointManager | None

    def newest(self) -> Path | None:
        """The newest good checkpoint of the directory, on all ranks."""
        archive = self.archive
        name = self.work.process.on_rank_zero(lambda: str(archive.open() or "") if archive else "")
        return Path(name) if name else None

    def begin(self, resume: bool, checkpoint: Path | None) -> None:
        """Write what the directory begins with, or bring the session to where a checkpoint stands."""
        if self.folder is not None:
            _begin(self.work, self.directory, self.archive, self.session, checkpoint if resume else None)

    @contextmanager
    def end_noted(self) -> Generator[None]:
        """Leave in the run directory how the run ended, whatever it was."""
        if self.directory is None or self.archive is None:
            yield
            return
        with _end_noted(self.session, self.directory, self.archive):
            yield


@contextmanager
def open_run(
    work: Work,
    run_dir: str | os.PathLike[str] | None,
    requests: SignalHandler,
    *,
    keep_files: bool = True,
    resume: bool = False,
) -> Generator[Opened]:
    """Compare the ranks, open the directory, and let callbacks set themselves up; nothing is trained yet."""
    require_same_configuration(work)
    with ExitStack() as stack:
        directory, folder = _directory(work, run_dir, resume) if keep_files else (None, None)
        archive = None
        if directory is not None:
            stack.callback(directory.close)
            archive = stack.enter_context(CheckpointManager(directory.checkpoints, say))
        session = _session(work, requests)
        if folder is not None:
            _keep_files(work, session, folder, directory, archive, requests)
        if not work.process.is_rank_zero:
            session.scratch = stack.enter_context(scratch_directory())
        with logging(directory):
            _set_up(work, session, directory)
        yield Opened(work, session, folder, directory, archive)


def result_of(opened: Opened, reason: str) -> Result:
    """What came of a run that has ended."""
    work, session = opened.work, opened.session
    weights = {name: full_tensor(tensor).cpu().clone() for name, tensor in tensors_of(session).items()}
    counts = {mode.value: batches.num_samples for mode, batches in work.data.items()}
    steps = session.contexts[Mode.TRAIN].step
    return Result(weights, session.history, reason, opened.folder, work.task.module, steps, counts, session.outputs)


def _directory(work: Work, run_dir: str | os.PathLike[str] | None, resume: bool) -> tuple[RunDirectory | None, Path]:
    """The run directory, which belongs to the first rank, and its place, which all know."""
    directory: RunDirectory | None = None

    def opened() -> str:
        nonlocal directory
        directory = RunDirectory(run_dir, work.name, resume=resume)
        return str(directory.path)

    folder = Path(work.process.on_rank_zero(opened))
    return directory, folder


@contextmanager
def logging(directory: RunDirectory | None) -> Generator[None]:
    """Whatever is printed, and every warning, goes into log.txt as well."""
    if directory is None:
        yield
        return
    before = warnings.showwarning

    def show(message: Warning | str, *about: Any) -> None:
        directory.log(f"warning: {message}")
        before(message, *about)

    with listening(directory.log):
        warnings.showwarning = show
        try:
            yield
        finally:
            if warnings.showwarning is show:
                warnings.showwarning = before


@contextmanager
def _end_noted(session: Session, directory: RunDirectory, archive: CheckpointManager) -> Generator[None]:
    """Leave in the run directory how the run ended, whatever it was."""
    end: dict[str, Any] = {"exit_code": 0}
    try:
        yield
    except BaseException as error:
        problems = error.problems if isinstance(error, DescendError) else [f"{type(error).__name__}: {error}"]
        end = {"exit_code": exit_code(error), "error": list(problems)}
        directory.log("\n".join(f"ended: {problem}" for problem in problems))
        raise
    finally:
        saves = {"failed_saves": archive.failures, "save_seconds": archive.longest_seconds}
        directory.note_end({"reason": session.end, **end, "step": session.contexts[Mode.TRAIN].step, **saves})


def _session(work: Work, requests: SignalHandler) -> Session:
    callbacks = work.callbacks
    if sys.stdout.isatty() and not any(isinstance(callback, ProgressBar) for callback in callbacks):
        callbacks = (*callbacks, ProgressBar(print_mem_usage=True))
    session = Session(
        name=work.name,
        task=work.task,
        optimizer=work.optimizer,
        data=work.data,
        communicator=work.process,
        callbacks=Callbacks(callbacks),
        seed=work.seed,
        micro_batch_size=None if work.micro_batch_size == "auto" else work.micro_batch_size,
        adaptive=work.micro_batch_size == "auto",
        unit=work.unit,
        numerics=work.numerics,
        epochs=work.algorithm.epochs(work.default_epochs),
        stop_requested=requests.requested,
        waits=requests.wait if work.process.world_size == 1 else lambda waiting: None,  # of several, none leaves alone
        summary_dir=work.summary_dir,
        before_part=work.before_part,
        outside=lambda: work.process.on_rank_zero(lambda: dict(work.outside(session.directory))),
        say=say,
        running=work.running,
        in_turns=work.in_turns,
        shard_optimizer=work.shard_optimizer,
        vote=Vote(work.compression, work.process) if work.compression else None,
        late=work.late,
    )
    session.restore = lambda checkpoint: restore(load(checkpoint), session)
    return session


def _keep_files(
    work: Work,
    session: Session,
    folder: Path,
    directory: RunDirectory | None,
    archive: CheckpointManager | None,
    requests: SignalHandler,
) -> None:
    """Let a session write into its directory, as long as that is its own; of several ranks the first one writes."""
    facts = {"random_seed": work.seed, "settings": dict(work.settings)}

    def rewrite(rows: list[dict[str, Any]]) -> None:
        if directory is not None:
            directory.replace_rows(rows, session.contexts[Mode.TRAIN].step)

    def save(wish: SaveRequest | None = None, final: bool = False) -> Path | None:
        moment = capture(session, facts)

        def written() -> tuple[str, float]:
            if directory is None or archive is None:
                return "", 0.0
            directory.require_ownership()
            return str(archive.save(moment, wish or SaveRequest(), final) or ""), archive.longest_seconds

        path, seconds = work.process.on_rank_zero(written)
        session.save_seconds = lambda: seconds
        return Path(path) if path else None

    def restored(checkpoint: Path) -> None:
        restore(load(checkpoint), session)
        rewrite(session.history)

    def requested() -> str | None:
        if directory is not None:
            directory.require_ownership()
        return requests.requested()

    if directory is not None:
        session.record = directory.append_row
    session.rewrite, session.save = rewrite, save
    session.restore, session.stop_requested = restored, requested
    session.directory = folder


def _set_up(work: Work, session: Session, directory: RunDirectory | None) -> None:
    """Let callbacks begin; what they refuse, they refuse before anything is written."""
    try:
        _check_awaited(work)
        if directory is not None:
            require_storable(tensors_of(session))
        session.callbacks.fire(Event.AFTER_SETUP, session.view())
    except ConfigurationError:
        if directory is not None:
            directory.discard()
        raise


def _check_awaited(work: Work) -> None:
    """Refuse a criterion that waits for what nobody records; callbacks of the user's own may record anything.

    Raises:
        ConfigurationError: all such, with the nearest names.
    """
    own = __name__.partition(".")[0]
    criterion = work.algorithm.criterion()
    if criterion is None or any(type(callback).__module__.partition(".")[0] != own for callback in work.callbacks):
        return
    quantities = ("objective", *work.metrics)
    recorded = [f"train/{name}" for callback in work.callbacks for name in callback.records]
    recorded = [*(f"{mode.value}/{name}" for mode in work.data for name in quantities), *recorded]
    known = {*recorded, *(name.partition("/")[2] for name in recorded)}
    if missing := [name for name in criterion.awaited if name not in known]:
        raise ConfigurationError(
            [
                f"Reached('{name}') waits for what nobody records{nearest(name, known) or ';'} this run records "
                f"{', '.join(recorded)}"
                for name in missing
            ]
        )


def _begin(
    work: Work,
    directory: RunDirectory | None,
    archive: CheckpointManager | None,
    session: Session,
    checkpoint: Path | None,
) -> None:
    """Write what the directory begins with, or bring the session to where a checkpoint stands."""
    if checkpoint is not None and not work.weights_only:
        _continue(work, session, directory, archive, checkpoint)
        return
    if checkpoint is not None:
        restore_weights(load(checkpoint), session)
        session.meet("the weights of a checkpoint")
    if directory is None or archive is None:
        return
    if checkpoint is not None:
        say(f"begins anew with the weights of {checkpoint.name}; that run lies in {directory.set_aside()} now")
        archive.open()
    for name, text in work.files.items():
        directory.write_text(name, text)
    directory.write_json("run.json", facts_of(work))
    directory.replace_rows([])
    directory.log(f"descend {__version__}: {work.name} begins")


def _continue(
    work: Work, session: Session, directory: RunDirectory | None, archive: CheckpointManager | None, checkpoint: Path
) -> None:
    """Bring the session to where a checkpoint stands, and show what is different now."""
    saved = load(checkpoint)
    check_weights(saved, session)
    work.process.on_rank_zero(lambda: directory.facts() if directory else None)  # before anything is changed
    changes = _shown(saved, work)
    times = work.process.on_rank_zero(lambda: archive.times(checkpoint) if archive else {})
    rows = work.process.on_rank_zero(lambda: list(directory.seconds_of_rows().items()) if directory else [])
    seconds = {(mode, epoch, step): length for (mode, epoch, step), length in rows}
    restore(saved, session, changed_options(changes), work.reset_optimizer, times, seconds)
    if session.began is None:  # the run had come to its end; limits count from its beginning, not from there
        session.began = ExecutionContext(Mode.TRAIN)
    session.rewrite(session.history)
    if directory is None:
        return
    for name, text in work.files.items():
        directory.keep_text(name, text)
    at = session.contexts[Mode.TRAIN]
    directory.note_restart(at.step, at.epoch, [str(change) for change in changes])


def _shown(saved: LoadedCheckpoint, work: Work) -> list[SettingChange]:
    """What is different between a checkpoint and the run that is to continue it, each said to the user.

    Raises:
        ConfigurationError: something of it cannot be.
    """
    changes = compare(saved.settings, work.settings, work.reset_optimizer)
    for change in changes:
        say(str(change))
    refuse(changes, saved.checkpoint)
    return changes


def diff_settings(work: Work, run_dir: str | os.PathLike[str]) -> None:
    """Say what is different between the newest checkpoint of a run and what would continue it; start nothing.

    Raises:
        ConfigurationError: something of it cannot be.
        StorageError: there is no good checkpoint.
    """
    checkpoint = newest_checkpoint(Path(run_dir) / "checkpoints")
    if checkpoint is None:
        raise StorageError(f"there is no checkpoint in {run_dir}, so there is nothing to compare with")
    if not _shown(load(checkpoint), work):
        say(f"nothing has changed since {checkpoint}")


def facts_of(work: Work) -> dict[str, Any]:
    """What is needed to repeat the run, beside its text."""
    return {
        "descend": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "command": sys.argv,
        "random_seed": work.seed,
        "settings": dict(work.settings),
        "restarts": [],
        "end": None,
    }


def run_algorithm(session: Session, algorithm: Callable[[], str], trains: bool = True) -> str:
    """Train, evaluate the test samples and save; on a signal, save and say so.

    Args:
        session: The run.
        algorithm: Trains, and returns why it stopped.
        trains: Whether it makes updates, so that the test samples are to be evaluated after it.
    """
    with session.announced():
        try:
            reason = algorithm()
            finish(session, reason, trains)
        except Stopped as stopped:
            raise Stopped(f"{stopped}; {save_stopped(session, stopped)}") from None
        except NumericalError as error:
            raise NumericalError([*error.problems, *saved_after_error(session)]) from None
    return reason


def finish(session: Session, reason: str, trains: bool = True) -> None:
    """Evaluate the test samples where something was trained, and save the end of the run."""
    session.end = reason
    session.callbacks.fire(Event.AFTER_TRAINING, session.view(reason))
    if Mode.TEST in session.data and trains:
        _forget_test(session)
        evaluate(session, Mode.TEST)
    session.save(SaveRequest("end"), final=True)


def save_stopped(session: Session, stopped: Stopped) -> str:
    """Save the state of a run that a signal has ended; says where."""
    session.end = str(stopped)
    path = session.save(SaveRequest(STOPPED), final=True)
    return f"everything is saved in {path}" if path else "nothing is saved: the run has no directory"


def saved_after_error(session: Session) -> list[str]:
    """Save what stands after the last whole step, and say where; a save that fails does not hide the error."""
    step = session.contexts[Mode.TRAIN].step
    try:
        path = session.save(SaveRequest("end"), final=True)
    except StorageError as failed:
        return [failed.problems[0]]
    return [f"the state after {step:,} updates is saved in {path}"] if path else []


def _forget_test(session: Session) -> None:
    """Take back the test of a finished run that has come to the same end once more."""
    step = session.contexts[Mode.TRAIN].step
    while session.history and (last := session.history[-1])["mode"] == Mode.TEST and last["step"] == step:
        session.rewind(len(session.history) - 1)
