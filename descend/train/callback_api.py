"""What a callback may change in a run, and what it may read beyond its view: nothing else is within its reach.

RunControl       parameters, options of the optimizer, batch sizes, the end of the run
Collectives      `control.collectives`: communication between ranks
RunFiles         `control.files`: the run directory
ObjectiveProbe   the objective and its gradient once more
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.attention

from descend.arguments import check_choice, require
from descend.data import Batches
from descend.errors import ConfigurationError, Unsupported, nearest
from descend.runtime import generator, seed_step
from descend.train.evaluation import EvaluatedWeights
from descend.train.layers import weights_of_layer
from descend.train.micro_batch import MicroBatch
from descend.train.param_groups import options_of, set_each, set_option
from descend.train.progress import Mode
from descend.train.stopping import whole

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from descend.data import Batch
    from descend.runtime import Communicator
    from descend.train.population.runner import Population
    from descend.train.run import Run

    HessianProduct = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]

__all__ = ["Collectives", "ObjectiveProbe", "RunControl", "RunFiles"]


def _count(name: str, value: Any) -> int:
    """A number of samples, which may be one of NumPy's.

    Raises:
        ConfigurationError: it is none.
    """
    found: Any = whole(value)
    if type(found) is not int or found < 1:
        raise ConfigurationError(f"{name} must be an integer above 0, and was set to {value!r}: see what sets it")
    return found


class RunControl:
    """What callbacks may change in a run.

    Args:
        run: The run.

    Attributes:
        collectives: Communication between ranks, and their clock.
        files: The run directory.
        probe: The objective on mini-batches, once more.
        evaluated: Puts other weights in place of those in training for the evaluation under way.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.collectives, self.files = Collectives(run.communicator), RunFiles(run)
        self.probe, self.evaluated = ObjectiveProbe(run), EvaluatedWeights(run)
        self._population: Population | None = None

    @property
    def population(self) -> Population:
        """The trainers that train beside each other, as this process sees them; often a single one."""
        if self._population is None:
            from descend.train.population.runner import Population

            self._population = Population.alone(self._run)
        return self._population

    @population.setter
    def population(self, population: Population) -> None:
        self._population = population

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
        module = self._run.task.module
        return {name: weights[name] for layer in layers for name in weights_of_layer(module, layer)}

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
        return _training_batches(self._run).batch_size

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        batches, size = _training_batches(self._run), _count("batch_size", size)
        self._run.state.rebatch = size != batches.batch_size and not batches.drop_last
        batches.batch_size = size

    @property
    def samples(self) -> int:
        """Training samples seen since the run began."""
        return self._run.state.training.samples

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

    def evaluate(self, mode: Mode | str) -> dict[str, float]:
        """Objective and metrics over all samples of a mode, or of its word such as "validation", now; the row goes into
        the history.

        Raises:
            ConfigurationError: there is no such mode, or the run has no samples for it.
        """
        from descend.train.evaluation import evaluate

        run = self._run
        there = [str(one) for one in run.data]
        require(check_choice("mode", mode, there), where="control.evaluate")
        values = evaluate(run, Mode(mode))
        run.state.fix_rows()
        return values

    def record(self, values: Mapping[str, float], step: int) -> None:
        """Add a row to the history and to `metrics.jsonl`, and let stopping criteria see its values as `train/name`."""
        self._run.history.record_step(values, step)

    @property
    def signal_divisor(self) -> float:
        """What to divide gradients of layers' outputs by in `after_backward`, so that they are those of the
        objective: each micro-batch of a mini-batch that was split gives those of its sum, and float16 those of a scaled
        loss. Waits for the device."""
        return float(self._run.state.signal_divisor) * self._run.precision.loss_scale

    # Other ranks

    def of_all_ranks(self, rows: torch.Tensor) -> torch.Tensor:
        """See `Collectives.all_gather_cat`."""
        return self.collectives.all_gather_cat(rows)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Collectives.all_reduce`."""
        return self.collectives.all_reduce(tensor)

    # Files and random numbers

    def path(self, name: str) -> Path:
        """See `RunFiles.path`."""
        return self.files.path(name)

    def generator(self, *names: str | int) -> torch.Generator:
        """A generator that is a function of the run's seed and `names`, so that nothing of it has to be saved."""
        return generator(self._run.seed, "callback", *names)

    def __getattr__(self, name: str) -> Any:
        """What had its place here before `collectives`, `files` and `probe` were objects of their own."""
        if name not in _MOVED:
            raise AttributeError(f"RunControl has no attribute '{name}'{nearest(name, dir(self))}")
        return getattr(getattr(self, _MOVED[name][0]), _MOVED[name][1])


_MOVED = {
    "ranks": ("collectives", "world_size"),
    "ids": ("collectives", "ids"),
    "first": ("collectives", "is_rank_zero"),
    "now": ("collectives", "now"),
    "keeps_files": ("files", "are_kept"),
    "summary_dir": ("files", "summary_dir"),
    "restore": ("files", "restore"),
    "last_batch": ("probe", "last_batch"),
    "objective": ("probe", "objective"),
    "gradients": ("probe", "gradients"),
}


class Collectives:
    """What callbacks send between the ranks that share each mini-batch.

    Args:
        communicator: This process among them.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator

    @property
    def world_size(self) -> int:
        """How many ranks share a mini-batch."""
        return self._communicator.world_size

    @property
    def is_rank_zero(self) -> bool:
        """Whether this is the rank that writes files; what the others write is thrown away."""
        return self._communicator.is_rank_zero

    def now(self) -> float:
        """Seconds of a monotonic clock that all ranks read alike, so that they decide alike."""
        return self._communicator.now()

    def all_gather_cat(self, rows: torch.Tensor) -> torch.Tensor:
        """The (n, *shape) rows of all ranks, one after the other, on the device of `rows`; n may differ.

        A collective call: every rank must make it.
        """
        own = self._communicator
        return rows if own.world_size == 1 else own.all_gather_cat(rows.to(own.device)).to(rows.device)

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor summed over the ranks, on its own device. A collective call: every rank must make it."""
        own = self._communicator
        return tensor if own.world_size == 1 else own.all_reduce(tensor.to(own.device, copy=True)).to(tensor.device)

    def ids(self, batch: Batch) -> NDArray[np.int64]:
        """Numbers of the samples of a mini-batch, those of all ranks. A collective call: every rank must make it."""
        return self.all_gather_cat(torch.from_numpy(batch.ids)).numpy()


class RunFiles:
    """The run directory as callbacks may use it.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def are_kept(self) -> bool:
        """Whether the run has a directory; without one nothing is saved."""
        return self._run.store.directory is not None

    @property
    def summary_dir(self) -> str:
        """Where TensorBoard's files go."""
        return self._run.config.summary_dir

    def path(self, name: str) -> Path:
        """Where a callback writes a file: relative names are in the run directory, or where LBANN's driver works."""
        self._run.store.require_place()
        wanted, scratch = Path(name), self._run.store.scratch
        if scratch is not None:  # only rank zero keeps files
            wanted = scratch / wanted.relative_to(wanted.anchor)
        path = (self._run.store.place or Path.cwd()) / wanted
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def trainer(self) -> str:
        """The folder of this trainer in LBANN's names of files, such as "trainer0"."""
        return f"trainer{self._run.store.trainer}"

    def restore(self, checkpoint: Path) -> None:
        """Bring the run to the state of a checkpoint."""
        self._run.store.load(self._run, checkpoint)


class ObjectiveProbe:
    """Evaluates the objective once more, outside of a step; it changes nothing.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def last_batch(self, mode: Mode, or_first: bool = False) -> Batch | None:
        """The newest mini-batch of a mode.

        With `or_first` it is the first one of the data where there was none, or where the newest is what was left over
        at the end of an epoch and has fewer samples.
        """
        newest, feed = self._run.state.batches.get(mode), self._run.data.get(mode)
        if feed is None or not or_first:
            return newest
        if newest is not None and not (newest.last and (feed.last_size or 0) < (feed.first_size or 0)):
            return newest
        return self.first_batch(mode)

    def first_batch(self, mode: Mode) -> Batch | None:
        """The first mini-batch of the first epoch of a mode; None where it has no data."""
        feed = self._run.data.get(mode)
        if feed is None:
            return None
        with contextlib.closing(feed.epoch(0)) as batches:
            return next(batches, None)

    def objective(self, batch: Batch) -> float:
        """The objective on a mini-batch with the present parameters."""
        with torch.no_grad(), self._buffers_kept():
            return float(self._value(batch))

    def gradients(self, batch: Batch, parameters: Mapping[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor]:
        """Its gradient by name, with respect to all trained parameters or to these; 0 where it depends on none."""
        parameters = self._run.control.trained if parameters is None else parameters
        with torch.enable_grad(), self._buffers_kept():
            value = self._value(batch)
            if not (parameters and value.requires_grad):
                return {name: torch.zeros_like(p) for name, p in parameters.items()}
            found = torch.autograd.grad(value, list(parameters.values()), materialize_grads=True)
        return dict(zip(parameters, found, strict=True))

    @contextlib.contextmanager
    def hessian(self, batch: Batch) -> Generator[HessianProduct]:
        """The Hessian of the objective with respect to the trained parameters, as its product with a vector.

        Within the block a function takes tensors shaped like these parameters and returns Hv likewise. Each call is one
        backward pass through the gradient, whose graph is kept. With several ranks it is the Hessian of the whole
        mini-batch, and each call a collective one.

        Args:
            batch: The share of this rank.

        Raises:
            Unsupported: from the function, where an operation of the module has no second derivative.
        """
        communicator, held = self._run.communicator, list(self._run.control.trained.values())
        # The faster kernels of attention have no second derivative.
        math_only = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
        with torch.enable_grad(), self._buffers_kept(), math_only:
            numerator, denominator, penalty = self._ratio(batch)
            counted = communicator.all_reduce(torch.as_tensor(denominator, dtype=torch.float64).detach().clone())
            value = numerator / counted.to(numerator.dtype)
            value = value if penalty is None else value + penalty / communicator.world_size
            slope = torch.autograd.grad(value, held, create_graph=True, materialize_grads=True)

            def product(vector: Sequence[torch.Tensor]) -> list[torch.Tensor]:
                try:
                    own = torch.autograd.grad(slope, held, list(vector), retain_graph=True, materialize_grads=True)
                except RuntimeError as error:
                    raise Unsupported(f"the module has no second derivative: {error}") from error
                return [communicator.all_reduce(part.contiguous()) for part in own]

            yield product

    def _value(self, batch: Batch) -> torch.Tensor:
        numerator, denominator, penalty = self._ratio(batch)
        return numerator / denominator if penalty is None else numerator / denominator + penalty

    def _ratio(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor | float, torch.Tensor | None]:
        """Numerator and denominator of the objective, and the penalty on parameters."""
        run = self._run
        fields = run.communicator.to_device(batch.fields)
        step = run.state.step
        seed_step(run.seed, step, batch.position)  # the same masks each time
        numerator, denominator = run.task.losses(
            MicroBatch(fields, batch, step, 0, len(batch.ids), batch.position)
        ).objective
        return numerator, denominator, run.task.penalty()

    @contextlib.contextmanager
    def _buffers_kept(self) -> Generator[None]:
        """Buffers, such as running statistics, are afterwards what they were."""
        buffers = [(b, b.clone()) for b in self._run.task.module.buffers()]
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)


def _training_batches(run: Run) -> Batches:
    feed = run.data[Mode.TRAIN]
    if not isinstance(feed, Batches):
        raise ConfigurationError(
            "the training data come as a stream of mini-batches, whose size a callback cannot change: leave out the "
            "callback, or pass data that descend divides into mini-batches"
        )
    return feed
