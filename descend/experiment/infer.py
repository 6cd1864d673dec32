"""Forward passes without training: outputs of a module for every sample, or a loss and metrics.

    predict     what the module returns
    infer       the same with outputs of inner layers; for graphs too
    evaluate    a loss and metrics

They go through the samples once, in their order, in evaluation mode and without gradients. What comes out does not
depend on `batch_size`: outputs stand beside one another by sample, and losses are summed before they are divided.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

import torch

from descend.arguments import require, shown
from descend.arguments.strict_keywords import strict_keywords
from descend.callbacks.console import say
from descend.data import Loading, brings_batches, open_data
from descend.data.loading.map_dataset import SampleReader
from descend.data.loading.torch_data import files_of_feed
from descend.data.numbered_texts import self_numbered
from descend.errors import ConfigurationError, DataError, nearest
from descend.experiment.field_roles import TARGET_NAMES, checked_targets, classes_of_module
from descend.experiment.fit import device_of
from descend.experiment.losses import Loss, loss_of, takes_class_numbers
from descend.experiment.metrics import build_metrics
from descend.experiment.module_task import ModuleTask
from descend.lazy import instance_check
from descend.runtime import Communicator
from descend.train.activations import ActivationRecorder
from descend.train.micro_batch import MicroBatch, MicroBatchSize, retry_on_oom, split_into_micro_batches
from descend.train.objective import Totals
from descend.train.precision import precision_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from typing_extensions import TypeIs

    from descend.data import Batch
    from descend.data.files import FileReader
    from descend.graph import AutomaticMixedPrecision
    from descend.lower.module import LoweredModel, PlainModule

__all__ = ["Inference", "evaluate", "infer", "predict"]

_BATCH_SIZE = 256  # of forward passes; results do not depend on it, and memory that runs out halves what is computed
BatchSize = int | Literal["auto"] | None
_is_lowered_model: Callable[[object], TypeIs[LoweredModel]] = instance_check("descend.lower.module", "LoweredModel")
_is_file_reader: Callable[[object], TypeIs[FileReader]] = instance_check("descend.data.files", "FileReader")
_is_plain_module: Callable[[object], TypeIs[PlainModule]] = instance_check("descend.lower.module", "PlainModule")


@dataclass(frozen=True)
class Inference:
    """What came of `infer`.

    Attributes:
        outputs: What the module returned, tensors (samples, …) on the CPU: one, a tuple or a dictionary of them. For a
            graph the layers that were asked for, by name.
        layers: Outputs of the submodules that were asked for, by name.
        samples: How many went through.
    """

    outputs: Any
    layers: dict[str, torch.Tensor]
    samples: int


@strict_keywords(device="a module computes where its weights are: move it with module.to(device)")
def predict(
    module: torch.nn.Module,
    data: Any,
    *,
    batch_size: BatchSize = "auto",
    targets: int | Sequence[str] | None = None,
    precision: str | AutomaticMixedPrecision = "float32",
    workers: int | None = None,
) -> Any:
    """What a module returns for every sample, in the order of the samples, in evaluation mode and without gradients.

        scores = descend.predict(model, x)
        labels = scores.argmax(1)

    Args:
        module: Any module; it is not changed.
        data: As for `fit`, or a single tensor or array. Fields that are targets are left out as in `fit`.
        batch_size: Samples read at once; "auto" is 256, or batches as the data bring them.
        targets: As for `infer`.
        precision: As for `fit`.
        workers: As for `fit`.

    Returns:
        One tensor (samples, …) on the CPU, or a tuple or a dictionary of them, as the module returns.

    Raises:
        ConfigurationError: a setting is wrong; the module returns what is not a tensor, or one without a row for each
            sample where the data did not go through at once.
        DataError: a field is missing, or the data are not what they should be.
    """
    return infer(module, data, batch_size=batch_size, targets=targets, precision=precision, workers=workers).outputs


@strict_keywords(device="a module computes where its weights are: move it with module.to(device)")
def infer(
    module: torch.nn.Module,
    data: Any,
    *,
    batch_size: BatchSize = "auto",
    micro_batch_size: int | Literal["auto"] | None = None,
    layers: Sequence[str] = (),
    targets: int | Sequence[str] | None = None,
    precision: str | AutomaticMixedPrecision = "float32",
    workers: int | None = None,
) -> Inference:
    """What a module returns for every sample, in the order of the samples.

        result = descend.fit(module, "cross_entropy", (x, y), ...)
        scores = descend.infer(result.module, x, batch_size=256).outputs

    Args:
        module: Any module, or the module of a graph that was run; it is not changed.
        data: As for `fit`, or a single tensor. A graph takes fields by name and needs those alone that lead to
            `layers`.
        batch_size: Samples read at once; "auto" is 256, or batches as the data bring them; None the latter alone.
        micro_batch_size: Samples that go through at once; None or "auto" begins with all and halves them when memory
            runs out.
        layers: Submodules whose outputs are wanted as well, as `named_modules()` calls them; of a graph, its layers,
            and one at least.
        targets: Fields that the module does not take: names, or how many of the last ones; 0 for none. None is the
            usual, as for `fit`, where there are such fields.
        precision: As for `fit`.
        workers: As for `fit`.

    Raises:
        ConfigurationError: there is no such layer, or nothing to compute; an output has not a row for each sample, and
            the data did not go through at once.
        DataError: a field is missing, or the data are not what they should be.
    """
    names = isinstance(layers, (list, tuple)) and all(isinstance(name, str) for name in cast("list[Any]", layers))
    require(None if names else f"layers must be a list of names, got {shown(layers)}", where="infer")
    graph = _is_lowered_model(module) and not _is_plain_module(module)
    if graph and not layers:
        raise ConfigurationError("infer: name the layers of the graph whose outputs are wanted, as in layers=['prob']")
    device, targets = device_of(module), _targets_of(data, targets)
    autocast = precision_of(precision, device).autocast
    task = None if graph else ModuleTask(module, Loss(), {}, targets, autocast)
    watch = ActivationRecorder(module)
    found: list[Any] = []

    def of_part(part: MicroBatch) -> Any:
        if graph and _is_lowered_model(module):
            return _of_graph(module, layers, part, autocast), {}
        if not layers:
            return cast("ModuleTask", task).predict(part), {}
        watch.layers(layers)
        with watch.attached():
            output = cast("ModuleTask", task).predict(part)
        return output, {name: _tensor_of(watch, name) for name in layers}

    def counted(part: MicroBatch) -> Any:
        return part.count, *of_part(part)

    how = Loading(None, role="test", workers=workers, not_taken=_names(targets) or TARGET_NAMES)
    samples = _through(module, device, data, batch_size, micro_batch_size, how, counted, found.append)
    counts = [count for count, _, _ in found]
    outputs = _joined([output for _, output, _ in found], counts, "the module returned")
    seen = {name: _joined([one[name] for *_, one in found], counts, f"layer '{name}' returned") for name in found[0][2]}
    return Inference(outputs, seen, samples)


@strict_keywords(device="a module computes where its weights are: move it with module.to(device)")
def evaluate(
    module: torch.nn.Module,
    loss: Any,
    data: Any,
    *,
    batch_size: BatchSize = "auto",
    micro_batch_size: int | Literal["auto"] | None = None,
    metrics: Mapping[str, Any] | Iterable[str] = (),
    targets: int | Sequence[str] | None = None,
    precision: str | AutomaticMixedPrecision = "float32",
    workers: int | None = None,
) -> dict[str, float]:
    """A loss and metrics over all samples, each counted once.

    Args:
        module: Any module; it is not changed.
        loss: As for `fit`.
        data: As for `fit`.
        batch_size: Samples read at once; "auto" is 256, or batches as the data bring them; None the latter alone.
        micro_batch_size: As for `infer`.
        metrics: As for `fit`.
        targets: As for `fit`, or those of a reader. Text in them is classes, with the numbers that `fit` has trained
            the module with, or `load_weights` has found in its run.
        precision: As for `fit`.
        workers: As for `fit`.

    Returns:
        "objective" and each metric by name.

    Raises:
        ConfigurationError: a setting is wrong.
        DataError: the data, a sample or a target is not what it should be.
    """
    device, targets = device_of(module), _targets_of(data, targets)
    objective, measured = loss_of(loss), build_metrics(metrics, loss)
    for part in (objective, *measured.values()):
        part.to(device)
    task = ModuleTask(module, objective, measured, targets, precision_of(precision, device).autocast)
    totals = Totals()
    names, classes = _names(targets), classes_of_module(module)
    numbers = names or TARGET_NAMES if takes_class_numbers(objective) else ()
    how = Loading(None, role="test", workers=workers, targets=names, class_targets=numbers, classes=classes)
    _through(module, device, data, batch_size, micro_batch_size, how, task.losses, totals.add_losses)
    return totals.values(task.computed)


def _targets_of(data: Any, targets: int | Sequence[str] | None) -> int | Sequence[str] | None:
    """The targets of a call, or else those that a reader of files was made with."""
    return data.target or None if targets is None and _is_file_reader(data) else targets


def _names(targets: int | Sequence[str] | None) -> tuple[str, ...]:
    """The names among what is said of targets."""
    names = checked_targets(targets)
    return tuple(names) if isinstance(names, list) else ()


class _Inference:
    """What `retry_on_oom` needs, without a run."""

    def __init__(self, communicator: Communicator, micro_batch_size: int | str | None) -> None:
        self.communicator = communicator
        fixed = isinstance(micro_batch_size, int)
        self.micro_batch_size = MicroBatchSize(micro_batch_size if fixed else None, adaptive=not fixed)

    def say(self, text: str) -> None:
        """Print for the user."""
        say(text)


@torch.no_grad()
def _through(
    module: torch.nn.Module,
    device: torch.device,
    data: Any,
    batch_size: BatchSize,
    micro_batch_size: int | str | None,
    how: Loading,
    of_part: Callable[[MicroBatch], Any],
    keep: Callable[[Any], None],
) -> int:
    """Hand all samples, part by part, to `of_part`, and its results to `keep`; how many samples there were."""
    process, seen = Communicator(device=device), 0
    memory = _Inference(process, micro_batch_size)

    def compute(batch: Batch) -> list[Any]:
        """What `of_part` returns for each micro-batch of the size that is in force."""
        return [of_part(part) for part in split_into_micro_batches(batch, process, memory.micro_batch_size.samples)]

    auto = isinstance(batch_size, str) and batch_size == "auto"
    size = (None if brings_batches(data) else _BATCH_SIZE) if auto else batch_size
    how = replace(how, batch_size=size, shuffle=False, module=module, pin_memory=device.type == "cuda")
    with ExitStack() as stack:
        feed = open_data(data, how)
        reader, files = getattr(feed, "reader", None), files_of_feed(feed)
        if how.class_targets and files and (unsure := self_numbered(files)):
            say(
                f"the classes of {', '.join(sorted(unsure))} are numbered by these samples alone, and those of the "
                "module are not known: classes=[...] of descend.data.read says them in the order of training"
            )
        if isinstance(reader, SampleReader):
            stack.callback(reader.close)
        stack.enter_context(_evaluating(module))
        for batch in feed.epoch(0):
            attempt = partial(compute, batch)
            for found in retry_on_oom(memory, batch.size, 1, attempt, undo=_nothing):
                keep(found)
            seen += batch.size
            del batch, attempt  # the next one takes their memory, which is still in the processor's cache
    return seen


def _nothing() -> None:
    """An attempt leaves nothing to undo."""


@contextmanager
def _evaluating(module: torch.nn.Module) -> Generator[None]:
    """Evaluation mode, and afterwards the mode of every part as it was."""
    before = [(part, part.training) for part in module.modules()]
    if any(training for _, training in before):  # a module takes long to set an attribute
        module.eval()
    try:
        yield
    finally:
        for part, training in before:
            if part.training is not training:
                part.training = training


def _of_graph(
    module: LoweredModel, layers: Sequence[str], part: MicroBatch, autocast: torch.dtype | None
) -> dict[str, torch.Tensor]:
    known = [planned.name for planned in module.plan.layers]
    if unknown := [name for name in layers if name not in known]:
        raise ConfigurationError([f"infer: there is no layer '{name}'{nearest(name, known)}" for name in unknown])
    if missing := module.fields_of(layers).difference(part.fields):
        raise DataError(f"infer: {', '.join(layers)} need the field '{min(missing)}', which the data do not have")
    device = next(iter(part.fields.values())).device.type
    with torch.autocast(device, autocast, enabled=autocast is not None):
        return module.outputs(layers, part.fields, position=part.position, batch_size=part.batch.size)


def _tensor_of(watch: ActivationRecorder, layer: str) -> torch.Tensor:
    if outputs := watch.outputs(layer):
        return outputs[0]
    raise ConfigurationError(f"infer: layer '{layer}' returns no tensor: name layers that return one")


def _joined(parts: Sequence[Any], counts: Sequence[int], what: str) -> Any:
    """Outputs of parts as those of all samples, on the CPU.

    Args:
        parts: What was returned for each part.
        counts: Its samples.
        what: Whose output it is, for messages.

    Raises:
        ConfigurationError: they are no tensors, or one has not a row for each sample, so that they cannot be joined.
    """
    first = parts[0]
    if all(part is None for part in parts):  # such as the loss of a module that was given no labels
        return None
    if isinstance(first, torch.Tensor):
        return _joined_tensors(parts, counts, what)
    if isinstance(first, dict):
        named = cast("dict[str, Any]", first)
        return {key: _joined([part[key] for part in parts], counts, f"{what} in {key!r}") for key in named}
    if isinstance(first, (tuple, list)):
        columns = [_joined(one, counts, f"{what} in [{i}]") for i, one in enumerate(zip(*parts, strict=True))]
        return type(cast("Any", first))(*columns) if hasattr(first, "_fields") else tuple(columns)
    raise ConfigurationError(f"{what} a {type(first).__name__}, and infer can join tensors alone")


def _joined_tensors(parts: Sequence[torch.Tensor], counts: Sequence[int], what: str) -> torch.Tensor:
    if len(parts) == 1:
        return parts[0].cpu()
    for part, count in zip(parts, counts, strict=True):
        if not part.ndim or len(part) != count or part.shape[1:] != parts[0].shape[1:]:
            other = f" and {tuple(parts[0].shape)} for {counts[0]:,}" if part.ndim and len(part) == count else ""
            raise ConfigurationError(
                f"{what} the shape {tuple(part.shape)} for {count:,} samples{other}: to be joined, what parts of the "
                "data give must be of shape (samples, ...) and equal in what follows; change it in forward, or give a "
                "batch_size that takes all samples at once"
            )
    return torch.cat([part.cpu() for part in parts])
