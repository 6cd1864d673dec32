"""What a study trains: a module created again for each trial, a loss, and samples in memory.

A workload is a function that returns a `Task`, written as `file.py:function` or `module:function`:

    def task(width=64):
        return descend.study.Task(
            model=lambda: nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10)),
            loss=nn.CrossEntropyLoss(),
            train=(x, y),
            validation=(x_valid, y_valid),
        )
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import importlib.util
import inspect
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, Subset, SubsetRandomSampler, default_collate

from descend.arguments import shown
from descend.data import Loading, open_data
from descend.data.loading.torch_data import files_of_feed
from descend.data.plain_arrays import plain_collate, plain_tensor, widened
from descend.errors import ConfigurationError, nearest
from descend.experiment.build import say_what_is_skipped
from descend.experiment.field_roles import TARGET_NAMES, checked_targets, join_columns, takes_one
from descend.experiment.losses import loss_of, takes_class_numbers
from descend.runtime.seeds import forked_rng
from descend.study.design.sampling import seed_of
from descend.study.design.workload import RecordedWorkload, check_form

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, nn

    from descend.study.design.study import Study
    from descend.study.phases import FineTuning, PretrainingPhase

__all__ = ["StudyTask", "Task", "open_task", "task_of"]

_HELD_OUT = 5  # without validation samples every fifth of the training samples is held out
_MOST_MEASURED = 2048  # training samples that the score on training data is taken from, at most


@dataclass(frozen=True)
class StudyTask:
    """A module, a loss and data.

    Args:
        model: Returns a new module, or is a module whose layers can `reset_parameters`. It is called with torch's
            generator seeded by the trial.
        loss: As for `descend.fit`.
        train: Tensors of the inputs and, last, of the target, (samples, …) each; or any data that `descend.fit` takes
            and that have a known number of samples, all of which are read. Fields with names go to the module's
            arguments of these names.
        validation: Likewise; without it a fifth of `train` is held out.
        test: Likewise; never looked at by a search.
        metrics: What may be compared beside the loss: names, or functions by name, as for `descend.fit`.
        device: Where modules are put once they are made; None leaves them where `model` puts them.
        phases: Later parts of a trial, on other samples and the same weights.
        fine_tuning: What the trained weights are tried at in the end; its scores are the split "finetuned".
        targets: The name of the field that is the target, as for `descend.fit`, where that is not clear.

    Attributes:
        traces: Steps of stacks of its modules as plain operations, by what they depend on, so that the next stack of
            the same form need not be traced.
    """

    model: Callable[[], nn.Module] | nn.Module
    loss: Any
    train: Any
    validation: Any = None
    test: Any = None
    metrics: Mapping[str, Any] = field(default_factory=lambda: {"accuracy": "accuracy"})
    device: str | None = None
    phases: tuple[PretrainingPhase, ...] = ()
    fine_tuning: FineTuning | None = None
    targets: str | Sequence[str] | None = None
    traces: dict[Any, Any] = field(default_factory=dict[Any, Any], init=False, repr=False, compare=False)

    def prepared(self) -> StudyTask:
        """The same with all samples as tuples of tensors, and validation samples held out where there are none."""
        target = self._target()
        numbers = TARGET_NAMES if takes_class_numbers(loss_of(self.loss)) else ()
        first = _Reading(target, class_targets=numbers)
        train = self._rows(self.train, "train", first)
        later = _Reading(target, first.classes, numbers, first.said)
        validation = None if self.validation is None else self._rows(self.validation, "validation", later)
        if validation is None and len(train[0]) < 2:
            raise ConfigurationError("there is one sample, and a study needs one to train on and one to validate on")
        if validation is None:
            chosen = np.random.default_rng(seed_of("held out")).permutation(len(train[0]))
            cut = max(1, len(chosen) // _HELD_OUT)
            held, kept = torch.from_numpy(chosen[:cut]), torch.from_numpy(np.sort(chosen[cut:]))
            train, validation = tuple(part[kept] for part in train), tuple(part[held] for part in train)
        test = None if self.test is None else self._rows(self.test, "test", later)
        phases, last = tuple(phase.prepared() for phase in self.phases), self.fine_tuning
        fine_tuning = None if last is None else last.prepared()
        return replace(self, train=train, validation=validation, test=test, phases=phases, fine_tuning=fine_tuning)

    def _target(self) -> tuple[str, ...]:
        """The name of the target, where it was given."""
        found = checked_targets(self.targets)
        if found is not None and (isinstance(found, int) or len(found) != 1):
            raise ConfigurationError(
                f"targets must be the name of one field of a study, such as ['price'], got {shown(self.targets)}"
            )
        return () if found is None else tuple(found)

    def _rows(self, data: Any, role: str, reading: _Reading) -> tuple[Tensor, ...]:
        """All samples in memory, inputs in the order in which the module takes them and the target last."""
        fields = reading.fields(data, role)
        named = not all(name.isdecimal() for name in fields)
        rows = self._in_order(fields, reading.target) if named else tuple(fields.values())
        if len(rows) == 1:
            rows = (rows[0], rows[0])  # single tensors are their own targets, as for an autoencoder
        if len({len(part) for part in rows}) > 1:
            sizes = ", ".join(f"{name} {len(part):,}" for name, part in fields.items())
            raise ConfigurationError(f"the {role} data have different numbers of samples: {sizes}")
        if not rows or not len(rows[0]):
            raise ConfigurationError(f"the {role} data have no samples")
        return rows

    def _in_order(self, fields: Mapping[str, Tensor], target: tuple[str, ...]) -> tuple[Tensor, ...]:
        """Fields with names as the module takes them, and the target."""
        names = list(fields)
        targets = list(target) or [name for name in names if name in TARGET_NAMES]
        if unknown := [name for name in targets if name not in fields]:
            raise ConfigurationError(
                f"targets: a sample has no field '{unknown[0]}'; it has {', '.join(names)}{nearest(unknown[0], names)}"
            )
        if len(targets) != 1:
            raise ConfigurationError(
                f"which field is the target is not clear from the names ({', '.join(names)}): pass targets=['...']"
            )
        inputs = [name for name in names if name not in targets]
        module = self.module(0)
        if takes_one(module, inputs, fields):
            return join_columns(module, [fields[name] for name in inputs]), fields[targets[0]]
        if len(inputs) > 1:
            taken = list(inspect.signature(module.forward).parameters)
            if unknown := [name for name in inputs if name not in taken]:
                raise ConfigurationError(
                    f"a sample has the field '{unknown[0]}' and the module's forward takes {', '.join(taken)}"
                    f"{nearest(unknown[0], taken)}"
                )
            inputs.sort(key=taken.index)
        return tuple(fields[name] for name in (*inputs, *targets))

    def measured(self) -> dict[str, tuple[Tensor, ...]]:
        """The samples that scores are taken from: of training a fixed part, of the others all. Of a prepared task."""
        chosen = np.random.default_rng(seed_of("measured")).permutation(len(self.train[0]))
        some = torch.from_numpy(np.sort(chosen[: max(_MOST_MEASURED, len(self.validation[0]))]))
        return {"train": tuple(part[some] for part in self.train), "validation": self.validation}

    def with_fewer(self, train: int, validation: int) -> StudyTask:
        """The same with so many samples of a prepared task at most, at equal distances, for runs of a few steps."""

        def some(rows: tuple[Tensor, ...], count: int) -> tuple[Tensor, ...]:
            taken = torch.arange(min(count, len(rows[0]))) * max(1, len(rows[0]) // count)
            return tuple(part[taken.to(part.device)] for part in rows)

        return replace(self, train=some(self.train, train), validation=some(self.validation, validation))

    def module(self, seed: int) -> nn.Module:
        """A new module whose weights are a function of the seed. Torch's own generator is left as it was."""
        with forked_rng():
            # torch.manual_seed notes its caller for devices to come, which takes longer than a small module.
            (torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed)(seed)
            if not isinstance(self.model, torch.nn.Module):
                return self._placed(_made(self.model))
            module = copy.deepcopy(self.model)
            for layer in module.modules():
                reset = getattr(layer, "reset_parameters", None)
                if callable(reset):
                    reset()
            return self._placed(module)

    def on_device(self, device: str | None) -> StudyTask:
        """The same with its modules, those of its phases included, put on a device."""
        phases = tuple(replace(phase, task=phase.task.on_device(device)) for phase in self.phases)
        last = self.fine_tuning
        last = None if last is None else replace(last, task=last.task.on_device(device))
        return replace(self, device=device, phases=phases, fine_tuning=last)

    def beside(self, module: nn.Module) -> StudyTask:
        """The same with all samples of a prepared task on the device of one of its modules, for stacks of these."""
        device = next((p.device for p in module.parameters()), torch.device("cpu"))
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        if all(part.device == device for rows in splits.values() for part in rows or ()):
            return self
        moved = {name: rows and tuple(part.to(device) for part in rows) for name, rows in splits.items()}
        task = replace(self, **moved)
        object.__setattr__(task, "traces", self.traces)  # one for all stacks
        return task

    def _placed(self, module: nn.Module) -> nn.Module:
        return module if self.device is None else module.to(self.device)

    def fingerprint(self) -> str:
        """A hash of all samples of a prepared task, those of its phases included."""
        digest = hashlib.sha256()
        for part in (*self.train, *self.validation, *(self.test or ())):
            array = part.detach().cpu().contiguous().numpy()
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(array.tobytes())
        for later in (*self.phases, *([] if self.fine_tuning is None else [self.fine_tuning])):
            digest.update(later.task.fingerprint().encode())
        return digest.hexdigest()[:16]


Task = StudyTask  # the public name, `descend.study.Task`


def _made(model: Any) -> nn.Module:
    """What a function for modules returns, which raises whatever it raises."""
    if callable(model) and not isinstance(model, torch.nn.Module):
        _require_no_arguments(model)
    made = model() if callable(model) else model
    if not isinstance(made, torch.nn.Module):
        what = "returned" if callable(model) else "is"
        raise ConfigurationError(f"model {what} {shown(made)}; it must be a function that returns a new torch module")
    return made


def _require_no_arguments(model: Callable[..., Any]) -> None:
    try:
        inspect.signature(model).bind()
    except TypeError as error:
        raise ConfigurationError(
            f"model must be a function without arguments that returns a new torch module, got {shown(model)}: {error}"
        ) from None
    except ValueError:  # a class or a function of C that does not say what it takes, and makes no modules
        raise ConfigurationError(
            f"model must be a function without arguments that returns a new torch module, got {shown(model)}"
        ) from None


class _Reading:
    """How the samples of a role are read.

    Attributes:
        target: The name of the target: as given, else as the reader says that was read last.
        classes: The text of the classes of the data that were read last, so that other roles get the same numbers.
        said: What was printed of what is skipped.
    """

    def __init__(
        self,
        target: tuple[str, ...],
        classes: Mapping[str, Sequence[str]] | None = None,
        class_targets: tuple[str, ...] = (),
        said: set[str] | None = None,
    ) -> None:
        self.target = target
        self.classes = classes
        self._class_targets = class_targets
        self.said = set[str]() if said is None else said

    def fields(self, data: Any, role: str) -> dict[str, Tensor]:
        """All samples in memory by the names of their fields; numbers where they have none."""
        if isinstance(data, (tuple, list)) and all(isinstance(part, torch.Tensor) for part in cast("list[Any]", data)):
            tensors = enumerate(cast("list[Tensor]", data))
            return {str(place): widened(plain_tensor(str(place), part)) for place, part in tensors}
        if isinstance(data, DataLoader):
            return _of_loader(cast("DataLoader[Any]", data), role)
        of_files = {"validation": "validate"}.get(role, role)
        how = Loading(
            batch_size=1,
            role=of_files,
            shuffle=False,
            targets=self.target,
            classes=self.classes,
            class_targets=self._class_targets,
        )
        feed = cast("Any", open_data(data, how))
        count = feed.num_samples
        if count is None or not hasattr(feed, "reader"):
            raise ConfigurationError(f"the {role} data of a study must have a known number of samples")
        if (files := files_of_feed(feed)) is not None:
            say_what_is_skipped([files], self.said)
            self.target = self.target or tuple(files.target)
            self.classes = self.classes or files.classes or None
        fields = feed.reader.read(np.arange(count, dtype=np.int64))
        return {name: torch.as_tensor(value) for name, value in fields.items()}


def _of_loader(loader: DataLoader[Any], role: str) -> dict[str, Tensor]:
    """The samples that a DataLoader draws from, each once and in the order of its data set.

    Raises:
        ConfigurationError: its sampler does not tell which samples these are.
    """
    data: Any = loader.dataset
    if isinstance(loader.sampler, SubsetRandomSampler):
        data = Subset(data, sorted(loader.sampler.indices))
    elif not isinstance(loader.sampler, (SequentialSampler, RandomSampler)) or loader.batch_size is None:
        raise ConfigurationError(
            f"DataLoader for '{role}': which samples its {type(loader.sampler).__name__} draws is unknown; pass "
            "its dataset, or a Subset of it"
        )
    collate = plain_collate if loader.collate_fn is default_collate else loader.collate_fn
    batches = DataLoader(data, loader.batch_size, collate_fn=collate)
    parts = [batch if isinstance(batch, dict) else dict(enumerate(batch)) for batch in batches]
    return {str(name): torch.cat([torch.as_tensor(part[name]) for part in parts]) for name in parts[0]}


def open_task(workload: Any, options: Mapping[str, Any] | None = None) -> StudyTask:
    """The task of a study.

    Args:
        workload: A `Task`, a function that returns one, `file.py:function` or `module:function`, `FILE.prototext`, or
            `zoo:NAME`.
        options: Arguments of the function.

    Raises:
        ConfigurationError: it cannot be found, or returns something else.
    """
    given = dict(options or {})
    if isinstance(workload, StudyTask):
        if given:
            raise ConfigurationError(f"a workload that is a Task takes no arguments, and {', '.join(given)} are given")
        return workload.prepared()
    if isinstance(workload, str) and (made := _without_a_script(workload, given)) is not None:
        return made.prepared()
    function = _find(workload) if isinstance(workload, str) else workload
    try:
        inspect.signature(function).bind(**given)
    except TypeError as error:  # of the call, and not of what the function does
        raise ConfigurationError(f"workload '{workload}': {error}") from error
    made = function(**given)
    if not isinstance(made, StudyTask):
        raise ConfigurationError(
            f"workload '{workload}' returned a {type(made).__name__}; it must be a descend.study.Task"
        )
    return made.prepared()


def task_of(study: Study, configuration: Mapping[str, Any]) -> StudyTask:
    """The task of a trial of a study: the workload with the arguments among its settings, on the study's device.

    Raises:
        ConfigurationError: as `open_task`.
    """
    own = {name.partition(".")[2]: value for name, value in configuration.items() if name.startswith("workload.")}
    task = open_task(study.workload, {**study.workload_options, **own})
    return task if study.needs.device is None else task.on_device(study.needs.device)


def _without_a_script(workload: str, options: dict[str, Any]) -> StudyTask | None:
    """The task of a prototext or of a network of the zoo; None for a function."""
    from descend.study import workloads  # it is made of tasks

    if workload.startswith("zoo:"):
        return workloads.of_zoo(workload.removeprefix("zoo:"), options)
    if not workload.endswith(".prototext"):
        return None
    if options:
        raise ConfigurationError(
            f"workload '{workload}' is a prototext, which takes no arguments: {', '.join(options)}"
        )
    return workloads.of_prototext(Path(workload))


_OF_A_SCRIPT = (
    "is a Python object of the script that made the study, which no file names, so that the study can be read and not "
    "run here: go on with it in that script, by the same call with the same directory, or write the workload as "
    "'file.py:function'"
)


def _find(text: str) -> Any:
    place, _, name = text.rpartition(":")
    if isinstance(text, RecordedWorkload):
        raise ConfigurationError(f"workload '{text}' {_OF_A_SCRIPT}")
    if problems := check_form(text):
        raise ConfigurationError(problems)
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    if not hasattr(module, name) and place == "__main__":
        raise ConfigurationError(f"workload '{text}' {_OF_A_SCRIPT}")
    if not hasattr(module, name):
        raise ConfigurationError(f"{place} has no '{name}'{nearest(name, vars(module))}")
    return getattr(module, name)


def _load_file(path: Path) -> Any:
    if not path.is_file():
        raise ConfigurationError(f"workload: there is no file {path}, seen from {Path.cwd()}")
    name = f"descend_workload_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"workload: {path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)  # so that it finds the modules beside it, as when Python is given the file
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    return module


def _load_module(place: str) -> Any:
    try:
        return importlib.import_module(place)
    except ImportError as error:
        raise ConfigurationError(f"workload: module '{place}' cannot be imported: {error}") from error
