"""`run`: an experiment from top to bottom. Arguments → experiment → `check` → `build_experiment` → `execute_all`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from descend.arguments.strict_keywords import strict_keywords
from descend.callbacks.console import say
from descend.experiment.build_experiment import build_experiment, copied, run_seed
from descend.experiment.check import check
from descend.experiment.execution import assign_ranks, execute_all
from descend.experiment.experiment import Experiment
from descend.experiment.graph_task import GraphTask
from descend.experiment.ranks import mute_other_ranks
from descend.experiment.runner import Result, RunOptions, TrainerContext
from descend.graph import TorchModel, Trained
from descend.runtime import process_group
from descend.runtime.seeds import deterministic_algorithms

if TYPE_CHECKING:
    import os

    from descend.data import Batches, DataReader, OpenReader
    from descend.experiment.check import Checked
    from descend.graph import Model, Optimizer
    from descend.train import Trainer
    from descend.train.run import Run

__all__ = ["Result", "run", "run_experiment"]


@strict_keywords()
def run(
    trainer: Trainer,
    model: Model,
    data_reader: DataReader,
    optimizer: Optimizer,
    run_dir: str | os.PathLike[str] | None = None,
    *,
    resume: bool = False,
    reset_optimizer: bool = False,
    weights_only: bool = False,
    trainers: int | None = None,
    procs_per_trainer: int | None = None,
    deterministic: bool = False,
    check_ranks: bool = True,
) -> Result:
    """Train `model` and evaluate it on the test samples.

    Args:
        trainer: Mini-batch size, seed and training algorithm.
        model: Layers, weights, objective, metrics and callbacks; or any torch module, by `descend.Model.from_torch`.
        data_reader: The readers of all roles, such as `descend.zoo.digits()`.
        optimizer: The rule for weights without one of their own.
        run_dir: A new or empty directory for the results; None makes a dated one.
        resume: Continue the newest good checkpoint of `run_dir`; without one, begin. What is set differently now is
            shown, and applied or refused.
        reset_optimizer: With `resume`, continue the checkpoint with an optimizer without state.
        weights_only: With `resume`, start over with those weights of the checkpoint that fit by name and shape.
        trainers: How many train the model, each by itself but for what the algorithm exchanges; None for one a block of
            ranks. `docs/trainers.md` says more.
        procs_per_trainer: Ranks of a block; None for LBANN_PROCS_PER_TRAINER or all.
        deterministic: Let torch take algorithms that give the same bits each time while the run lasts, and refuse an
            operation without one. On a GPU only that makes a repeated or continued run the same to the bit.
        check_ranks: With several ranks that hold copies of the weights, compare these now and then and at the end.

    Returns:
        Final weights, history and the reason for stopping.

    Raises:
        ConfigurationError: the description is wrong; nothing was started.
        DataError: a data set or a sample is not what the description says.
        NumericalError: a gradient was not finite; the weights are those before that step.
        Stopped: a signal asked it to stop; the state is saved in the run directory.
    """
    options = RunOptions(
        run_dir,
        resume=resume,
        reset_optimizer=reset_optimizer,
        weights_only=weights_only,
        trainers=trainers,
        procs_per_trainer=procs_per_trainer,
        deterministic=deterministic,
        check_ranks=check_ranks,
    )
    return run_experiment(Experiment(trainer, model, data_reader, optimizer), options)


def run_experiment(experiment: Experiment, options: RunOptions, checked: Checked | None = None) -> Result:
    """Carry out an experiment, whose graph is checked once however many trainers it has.

    Args:
        experiment: The description.
        options: Where the run is kept, and the trainers.
        checked: What a check of the description gave; None checks it here.
    """
    built: list[Run] = []
    with ExitStack() as stack:
        stack.enter_context(deterministic_algorithms(options.deterministic))
        world = stack.enter_context(process_group())
        stack.enter_context(mute_other_ranks(world))
        layout = assign_ranks(world, options.trainers, options.procs_per_trainer, options.continued)
        seed = run_seed(experiment.trainer, options.continued, world)
        if layout.trainers > 1:  # a seed from the clock is one for all
            experiment = replace(experiment, trainer=replace(experiment.trainer, random_seed=seed))
        if not isinstance(experiment.model, TorchModel):
            checked = checked or check(experiment, seed)
            if checked.seed != seed:
                checked = checked.with_readers(experiment, seed)
        others = len(layout.of_rank(world.rank)) - 1  # copied while no trainer trains them
        experiments = iter([experiment, *(copied(experiment) for _ in range(others))])

        def make(context: TrainerContext) -> Run:
            several, own = layout.trainers > 1, next(experiments)
            mine = checked.with_readers(own, seed) if checked and built else checked  # readers may be read in threads
            built.append(stack.enter_context(build_experiment(own, options, context, several, mine)))
            return built[-1]

        result = execute_all(make, layout, world, experiment.trainer.random_seed or 0, options)
    _keep_weights(experiment, built[0], result)
    return result


def _keep_weights(experiment: Experiment, run: Run, result: Result) -> None:
    """Let the model know its trained weights, unless the run has changed what the description says."""
    if isinstance(run.task, GraphTask) and (form := run.task.form()):
        changes = ", ".join(f"{name} is {run.task.kind(name)} now" for name in form)
        say(f"the model was changed: {changes}; it is in result.module")
        return
    readers = [cast("OpenReader", cast("Batches", feed).reader) for feed in run.data.values()]
    fields = {name: field.shape for reader in readers for name, field in reader.fields.items()}
    experiment.model.trained = Trained(fields, result.weights)
