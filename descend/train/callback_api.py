"""What a callback may change in a run, and what it may ask for beyond its record. Everything that is not here is out of
its reach, so that a reader of a run knows where to look."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from descend.data import Batches
from descend.errors import ConfigurationError, nearest
from descend.runtime import generator, seed_step
from descend.train.layers import plan_of
from descend.train.micro_batch import MicroBatch
from descend.train.param_groups import options_of, set_each, set_option
from descend.train.progress import Mode
from descend.train.stopping import whole

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from descend.data import Batch
    from descend.train.run import Run

__all__ = ["RunControl"]


def _count(name: str, value: Any) -> int:
    """A number of samples, which may be one of NumPy's.

    Raises:
        ConfigurationError: it is none.
    """
    found: Any = whole(value)
    if type(found) is not int or found < 1:
        raise ConfigurationError(f"{name} must be an integer above 0 and has become {value!r}: look at what sets it")
    return found


class RunControl:
    """What callbacks may change in a run.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    # Weights

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """Every parameter and buffer by name."""
        module = self._run.task.module
        return {**dict(module.named_parameters()), **dict(module.named_buffers())}

    @property
    def trained(self) -> dict[str, torch.Tensor]:
        """The weights that the optimizer updates, by name."""
        held = options_of(self._run.optimizer, "lr")
        return {name: p for name, p in self._run.task.module.named_parameters() if id(p) in held}

    def select(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Those of the trained weights that are named; all of them where nothing is named.

        Raises:
            ConfigurationError: a name is unknown, or its weights have no optimizer.
        """
        trained = self.trained
        problems = [
            f"weights '{name}' have no optimizer: they are not trained"
            if name in self.weights
            else f"there are no weights '{name}'{nearest(name, trained)}"
            for name in names
            if name not in trained
        ]
        if problems:
            raise ConfigurationError(problems)
        return {name: trained[name] for name in names} if names else trained

    def weights_of(self, layers: Iterable[str]) -> dict[str, torch.Tensor]:
        """The weights and buffers of the layers of these names, by name and in the order of the layers.

        Raises:
            ConfigurationError: there is no such layer.
        """
        weights = self.weights
        return {name: weights[name] for layer in layers for name in self._names_of(layer)}

    def _names_of(self, layer: str) -> list[str]:
        module = self._run.task.module
        plan = plan_of(module)
        if plan is not None:
            found = next((planned for planned in plan.layers if planned.name == layer), None)
            names = None if found is None else list(found.weights)
            known = [planned.name for planned in plan.layers]
        else:
            known = [name for name, _ in module.named_modules()]
            names = [name for name in self.weights if name.startswith(f"{layer}.")] if layer in known else None
        if names is None:
            raise ConfigurationError(f"there is no layer '{layer}'{nearest(layer, known)}")
        return names

    # The optimizer's settings

    def rates(self) -> dict[str, float]:
        """The learning rate in force for each trainable parameter."""
        return self.options("lr")

    def set_rate(self, rate: float, names: Sequence[str] = ()) -> None:
        """Let these weights, or all that are trained, learn at `rate` from the next update on."""
        self.set_option("lr", rate, names)

    def options(self, option: str) -> dict[str, Any]:
        """An option of the optimizer by weights; None where their rule has no such option."""
        held = options_of(self._run.optimizer, option)
        return {name: held[id(p)] for name, p in self.trained.items()}

    def set_option(self, option: str, value: Any, names: Sequence[str] = ()) -> None:
        """Set an option of the optimizer, such as "beta1", for these weights or all."""
        set_option(self._run.optimizer, self.select(names).values(), option, value)

    def set_each(self, option: str, values: Mapping[str, Any]) -> None:
        """Set an option of the optimizer for each parameter by its name.

        Raises:
            ConfigurationError: the rule of some weights has no such option.
        """
        if missing := [name for name, value in self.options(option).items() if name in values and value is None]:
            raise ConfigurationError(
                f"the optimizer of weights '{missing[0]}' has no option '{option}'; descend's own optimizers have it"
            )
        trained = self.trained
        set_each(self._run.optimizer, {trained[name]: value for name, value in values.items()}, option)

    # The course of the run

    def stop(self, reason: str) -> None:
        """End training after this step or, between two epochs, now. `reason` is the sentence of log and result."""
        self._run.stop.stop(reason)

    @property
    def batch_size(self) -> int:
        """Samples of a training mini-batch; a new size holds from the next one on, and no sample is left out or taken
        twice. Where partial batches are dropped it holds from the next epoch on."""
        return self._batches().batch_size

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        batches, size = self._batches(), _count("batch_size", size)
        self._run.state.rebatch = size != batches.batch_size and not batches.drop_last
        batches.batch_size = size

    @property
    def samples(self) -> int:
        """Training samples seen since the run began."""
        return self._run.state.training.samples

    def _batches(self) -> Batches:
        feed = self._run.data[Mode.TRAIN]
        if not isinstance(feed, Batches):
            raise ConfigurationError("the training data come in mini-batches of their own; a callback cannot cut them")
        return feed

    @property
    def micro_batch_size(self) -> int | None:
        """Samples that go through the module at once."""
        return self._run.micro_batch_size.samples

    @micro_batch_size.setter
    def micro_batch_size(self, size: int | None) -> None:
        self._run.micro_batch_size.samples = None if size is None else _count("micro_batch_size", size)

    @property
    def batch(self) -> Batch:
        """The training mini-batch; another one can be put in its place in `before_step`."""
        return self._run.state.batches[Mode.TRAIN]

    @batch.setter
    def batch(self, batch: Batch) -> None:
        self._run.state.batches[Mode.TRAIN] = batch

    def evaluate(self, mode: Mode) -> dict[str, float]:
        """Objective and metrics over all samples of `mode`, now; the row goes into the history."""
        from descend.train.evaluation import evaluate

        run = self._run
        values = evaluate(run, mode)
        run.state.fix_rows()
        return values

    def record(self, values: Mapping[str, float], step: int) -> None:
        """Add a row to the history and to `metrics.jsonl`, and let stopping criteria see its values as `train/name`."""
        self._run.record_step(values, step)

    @property
    def keeps_files(self) -> bool:
        """Whether the run has a directory; without one nothing is saved."""
        return self._run.store.directory is not None

    def restore(self, checkpoint: Path) -> None:
        """Bring the run to where a checkpoint stands."""
        self._run.store.load(self._run, checkpoint)

    @property
    def signal_divisor(self) -> float:
        """What to divide gradients of layers' outputs by in `after_backward`, so that they are those of the
        objective: each micro-batch of a mini-batch that was split gives those of its sum, and float16 those of a scaled
        loss. Waits for the device."""
        return float(self._run.state.signal_divisor) * self._run.precision.loss_scale

    # The objective once more

    def last_batch(self, mode: Mode) -> Batch | None:
        """The newest mini-batch of a mode, where there was one."""
        return self._run.state.batches.get(mode)

    def objective(self, batch: Batch) -> float:
        """The objective on a mini-batch with the weights of now; changes nothing."""
        with torch.no_grad(), self._undisturbed():
            return float(self._value(batch))

    def gradients(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Its gradient by weights; changes nothing."""
        trained = self.trained
        with torch.enable_grad(), self._undisturbed():
            found = torch.autograd.grad(self._value(batch), list(trained.values()), materialize_grads=True)
        return dict(zip(trained, found, strict=True))

    def _value(self, batch: Batch) -> torch.Tensor:
        run = self._run
        fields = {name: run.communicator.to_device(array) for name, array in batch.fields.items()}
        step = run.state.step
        seed_step(run.seed, step, batch.position)  # the same masks each time
        top, bottom = run.task.losses(MicroBatch(fields, batch, step, 0, len(batch.ids), batch.position)).objective
        penalty = run.task.penalty()
        return top / bottom if penalty is None else top / bottom + penalty

    @contextlib.contextmanager
    def _undisturbed(self) -> Generator[None]:
        """Buffers, such as running statistics, are afterwards what they were."""
        buffers = [(b, b.clone()) for b in self._run.task.module.buffers()]
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)

    # Other ranks

    @property
    def ranks(self) -> int:
        """How many share a mini-batch."""
        return self._run.communicator.world_size

    def of_all_ranks(self, rows: torch.Tensor) -> torch.Tensor:
        """The (n, *shape) rows of all ranks that share a mini-batch, one after the other; n may differ. All have to
        ask."""
        process = self._run.communicator
        return rows if process.world_size == 1 else process.all_gather_cat(rows.to(process.device)).to(rows.device)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor summed over the ranks that share a mini-batch, which all have to ask."""
        process = self._run.communicator
        return (
            tensor
            if process.world_size == 1
            else process.all_reduce(tensor.to(process.device, copy=True)).to(tensor.device)
        )

    def ids(self, batch: Batch) -> NDArray[np.int64]:
        """Numbers of the samples of a mini-batch, those of all ranks; all have to ask."""
        return self.of_all_ranks(torch.from_numpy(batch.ids)).numpy()

    # Files and random numbers

    @property
    def first(self) -> bool:
        """Whether this is the rank that leaves files; what it writes the others need not."""
        return self._run.communicator.is_rank_zero

    def now(self) -> float:
        """Seconds of a monotonic clock that all ranks read alike, so that they decide alike."""
        return self._run.communicator.now()

    @property
    def summary_dir(self) -> str:
        """Where TensorBoard's files go."""
        return self._run.config.summary_dir

    def path(self, name: str) -> Path:
        """Where a file of a callback goes: a relative name is within the run directory, or here if there is none."""
        wanted, scratch = Path(name), self._run.store.scratch
        if scratch is not None:  # the first rank alone leaves files
            wanted = scratch / wanted.relative_to(wanted.anchor)
        path = Path(self._run.store.directory or Path.cwd()) / wanted
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def generator(self, *names: str | int) -> torch.Generator:
        """A generator that is a function of the run's seed and `names`, so that nothing of it has to be saved."""
        return generator(self._run.seed, "callback", *names)
