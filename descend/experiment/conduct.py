"""What every run has in common, whatever described it: a directory, signals, checkpoints, training, a last evaluation.

`run` comes here from a graph and `fit` from any nn.Module.
"""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from descend.callbacks import ProgressBar
from descend.callbacks.output import say
from descend.errors import ConfigurationError, NumericalError, Stopped
from descend.experiment.changes import changed_options, compare, refuse
from descend.experiment.snapshot import restore, take
from descend.runtime import RunDirectory, StopRequests, newest_checkpoint, read_state, save_checkpoint
from descend.train import Callbacks, Event, ExecutionContext, Mode
from descend.train.loop import Session, evaluate
from descend.train.numerics import Numerics
from descend.version import __version__

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from descend.data import Feed
    from descend.runtime import Process
    from descend.train import Callback, TrainingAlgorithm
    from descend.train.loop import Part
    from descend.train.task import Task

__all__ = ["Result", "Work", "conduct"]


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
    """

    weights: dict[str, torch.Tensor]
    history: list[dict[str, Any]]
    reason: str
    run_dir: Path | None
    module: torch.nn.Module
    steps: int
    samples: dict[str, int | None]
    outputs: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])


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
        fresh_optimizer: Continue with the weights of a checkpoint and an optimizer without state.
    """

    name: str
    task: Task
    optimizer: torch.optim.Optimizer
    data: Mapping[Mode, Feed]
    process: Process
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
    before_part: Callable[[Part], None] = lambda part: None
    fresh_optimizer: bool = False


def conduct(
    work: Work, run_dir: str | os.PathLike[str] | None, *, keep_files: bool = True, resume: bool = False
) -> Result:
    """Carry out a run.

    Args:
        work: The run.
        run_dir: A new or empty directory; with `resume`, that of the run to continue; None makes a dated one.
        keep_files: False writes nothing at all; `run_dir` must be None then.
        resume: Continue the newest good checkpoint of `run_dir`; without one, begin.

    Raises:
        Stopped: a signal asked for an end; the state is saved if the run has a directory.
        Other errors of `descend.errors`, as they come.
    """
    directory = RunDirectory(run_dir, work.name, resume=resume) if keep_files else None
    with StopRequests() as requests, torch.random.fork_rng():
        session = _session(work, directory, requests)
        _set_up(session, directory)
        if directory is not None:
            _begin(work, directory, session, resume)
        reason = _carry_out(work, session, directory)
    weights = {name: tensor.detach().cpu().clone() for name, tensor in _tensors(session).items()}
    counts = {mode.value: batches.num_samples for mode, batches in work.data.items()}
    steps = session.contexts[Mode.TRAIN].step
    path = directory.path if directory else None
    return Result(weights, session.history, reason, path, work.task.module, steps, counts, session.outputs)


def _session(work: Work, directory: RunDirectory | None, requests: StopRequests) -> Session:
    callbacks = work.callbacks
    if not any(isinstance(callback, ProgressBar) for callback in callbacks):
        callbacks = (*callbacks, ProgressBar())  # draws on a terminal only
    session = Session(
        name=work.name,
        task=work.task,
        optimizer=work.optimizer,
        data=work.data,
        process=work.process,
        callbacks=Callbacks(callbacks),
        seed=work.seed,
        micro_batch_size=None if work.micro_batch_size == "auto" else work.micro_batch_size,
        adaptive=work.micro_batch_size == "auto",
        unit=work.unit,
        numerics=work.numerics,
        epochs=work.algorithm.epochs(work.default_epochs),
        stop_requested=requests.requested,
        summary_dir=work.summary_dir,
        before_part=work.before_part,
        say=say,
    )
    if directory is not None:
        session.record = directory.append_row
        session.save = lambda: _save(work, session, directory)
        session.directory = directory.path
    session.restore = lambda checkpoint: restore(checkpoint, session)
    return session


def _set_up(session: Session, directory: RunDirectory | None) -> None:
    """Let callbacks begin; what they refuse, they refuse before anything is written."""
    try:
        session.callbacks.fire(Event.AFTER_SETUP, session.view())
    except ConfigurationError:
        if directory is not None:
            directory.discard()
        raise


def _begin(work: Work, directory: RunDirectory, session: Session, resume: bool) -> None:
    """Write what the directory begins with, or bring the session to where its newest checkpoint stands."""
    checkpoint = newest_checkpoint(directory.checkpoints) if resume else None
    if checkpoint is not None:
        _continue(work, session, checkpoint)
        directory.replace_rows(session.history)
        directory.note_restart(session.contexts[Mode.TRAIN].step)
        return
    for name, text in work.files.items():
        directory.write_text(name, text)
    directory.write_json("run.json", _facts(work))
    directory.replace_rows([])


def _continue(work: Work, session: Session, checkpoint: Path) -> None:
    """Bring the session to where a checkpoint stands, and show what is different now."""
    changes = compare(read_state(checkpoint)[1]["settings"], work.settings, work.fresh_optimizer)
    refuse(changes, checkpoint)
    for change in changes:
        say(str(change))
    restore(checkpoint, session, changed_options(changes), work.fresh_optimizer)
    if session.began is None:  # the run had come to its end; limits count from its beginning, not from there
        session.began = ExecutionContext(Mode.TRAIN)


def _facts(work: Work) -> dict[str, Any]:
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
    }


def _carry_out(work: Work, session: Session, directory: RunDirectory | None) -> str:
    """Train, evaluate the test samples and save; on a signal, save and say so."""
    reason = "ended by an error"
    session.callbacks.fire(Event.BEFORE_RUN, session.view())
    try:
        reason = work.algorithm.apply(session)
        session.callbacks.fire(Event.AFTER_TRAINING, session.view(reason))
        if Mode.TEST in session.data and work.algorithm.trains:
            evaluate(session, Mode.TEST)
        session.save()
    except Stopped as stopped:
        reason = str(stopped)
        path = session.save()
        raise Stopped(f"{reason}; {f'everything is saved in {path}' if path else 'nothing is saved'}") from None
    except NumericalError as error:
        if path := session.save():
            raise NumericalError([*error.problems, f"the state before that step is saved in {path}"]) from None
        raise
    finally:
        session.callbacks.fire(Event.AFTER_RUN, session.view(reason))
    return reason


def _tensors(session: Session) -> dict[str, torch.Tensor]:
    """Weights and buffers by name; a tensor under several names stands under the first."""
    module = session.task.module
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _save(work: Work, session: Session, directory: RunDirectory) -> Path:
    """Write the checkpoint of this moment."""
    tensors, plain = take(session)
    step = session.contexts[Mode.TRAIN].step
    state = {"random_seed": work.seed, "settings": dict(work.settings), **plain}
    return save_checkpoint(directory.checkpoints, step, _tensors(session), tensors, state)
