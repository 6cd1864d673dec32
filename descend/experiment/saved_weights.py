"""Weights out of the checkpoints of a run directory, into a module or a plain one of torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch

from descend.arguments import check_bool, check_integer, check_path, is_integer, require, shown
from descend.arguments.strict_keywords import strict_keywords
from descend.errors import DAMAGED_FILE, ConfigurationError, StorageError, nearest, table
from descend.experiment.best import best_epoch, monitored_metric, steps_in
from descend.experiment.checkpoint import as_storage_error, load
from descend.experiment.field_roles import remember_classes
from descend.experiment.inspect.memory_estimate import beyond_memory, machine_bytes
from descend.experiment.ranks import unwrapped
from descend.files import bounded_text, has_file, has_folder
from descend.graph import Layer, TorchModel, check, prediction_outputs
from descend.lower import PlainModule
from descend.runtime import generator, newest_checkpoint, read_rows, read_weights
from descend.runtime.checkpoint import read_plain_state
from descend.runtime.dtensor import copy_into
from descend.train.callback import Monitored
from descend.train.module_state import tensors_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from descend.graph import Model, Plan, Shape

__all__ = ["evaluated_weights", "load_weights", "plain_module", "planned_for_export"]


@strict_keywords()
def load_weights(
    module: torch.nn.Module,
    run_dir: str | os.PathLike[str],
    which: Literal["best", "last"] | int = "best",
    *,
    averaged: bool | str = True,
) -> Path:
    """Load weights and buffers of a run into a module of the same architecture, in place.

        descend.load_weights(model, "runs/mnist")                  # the best epoch
        descend.load_weights(model, "runs/mnist", which="last")
        descend.load_weights(model, "runs/mnist/checkpoints/step-600")

    Args:
        module: Where they go: on any device and in any floating-point type, sharded by `fully_shard` or not.
        run_dir: The directory of a run, of one trainer of several, or a checkpoint.
        which: "best": by what `Checkpoint(keep_best=...)` or `EarlyStopping` monitored, else by the validation
            objective (of a run without validation, the training objective). "last": the newest. A number: the
            checkpoint after so many steps.
        averaged: Whether the averages of `descend.EMA`, `descend.SWA` or a schedule-free rule are loaded where the run
            had some, which are what was evaluated; False loads the weights in training. Of a run with several averages
            the name of one, such as "ema_0.999"; True is the first.

    Returns:
        The checkpoint.

    Raises:
        ConfigurationError: there is no such directory, checkpoint or average, with those that there are; no checkpoint
            of the best epoch was kept.
        StorageError: the checkpoint is damaged, or holds other weights than the module.
    """
    if not isinstance(cast("Any", module), torch.nn.Module):
        raise ConfigurationError(f"load_weights: module must be a torch.nn.Module, got a {type(module).__name__}")
    require(
        check_path("run_dir", run_dir),
        check_integer("which", which, 0, _MOST_STEPS) if is_integer(which) else None,
        None if isinstance(averaged, str) else check_bool("averaged", averaged),
        where="load_weights",
    )
    target = cast("torch.nn.Module", unwrapped(module))
    checkpoint = _chosen(Path(run_dir), which)
    name = averaged if isinstance(averaged, str) else None
    saved = evaluated_weights(checkpoint, name) if averaged else read_weights(checkpoint)
    settings = read_plain_state(checkpoint).get("settings")
    classes = settings.get("classes") if isinstance(settings, dict) else None
    own, saved = _of_original(tensors_of(target)), _of_original(saved)
    rows = [
        (name, _form(own.get(name)), _form(saved.get(name)))
        for name in {**own, **saved}
        if _form(own.get(name)) != _form(saved.get(name))
    ]
    if rows:
        remedy = "build the module as the run did; nothing was changed"
        raise StorageError(table(f"{checkpoint} holds other weights than this module:", rows, remedy))
    with torch.no_grad():
        for name, tensor in own.items():
            copy_into(tensor, saved[name])
    remember_classes(target, classes)
    return checkpoint


def _of_original(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors by the names that they have without torch.compile, which may wrap a module or a part of it."""
    return {name.replace("_orig_mod.", ""): tensor for name, tensor in tensors.items()}


_MOST_STEPS = 10**18


def evaluated_weights(checkpoint: Path, name: str | None = None) -> dict[str, torch.Tensor]:
    """Weights and buffers of a checkpoint as its run evaluates them: averages where it has some.

    Args:
        checkpoint: Its folder.
        name: One of several averages of the run; None for the first.

    Raises:
        ConfigurationError: there is no average of this name.
        StorageError: the checkpoint is damaged.
    """
    from descend.callbacks.weight_average import evaluated_average
    from descend.optim.engine.evaluation import saved_averages
    from descend.optim.named_optimizers import rule_class

    saved = load(checkpoint)
    weights = dict(saved.weights)
    with as_storage_error(checkpoint):
        callbacks = saved.parts.get("callbacks", {})
        if not any(state.get("last_weights") for state in callbacks.values()):  # else they are in place already
            weights |= saved_averages(saved.parts.get("optimizer", {}), weights, rule_class)
        weights |= evaluated_average(callbacks, name)
    return weights


def _form(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return "nothing"
    kind = "floating point" if tensor.is_floating_point() else str(tensor.dtype).removeprefix("torch.")
    return f"{tuple(tensor.shape)} {kind}"


def _chosen(run_dir: Path, which: str | int) -> Path:
    """The checkpoint that `which` means."""
    if not has_folder(run_dir):
        raise ConfigurationError(f"load_weights: there is no directory {run_dir}")
    if has_file(run_dir / "manifest.json"):
        return run_dir
    folder = run_dir / "checkpoints"
    if which == "last":
        newest = newest_checkpoint(folder) if has_folder(folder) else None
        if newest is None:
            raise ConfigurationError(_nothing_there(run_dir))
        return newest
    if which == "best":
        return _best_checkpoint(run_dir, folder)
    if isinstance(which, bool) or not isinstance(which, int):
        raise ConfigurationError(
            f"load_weights: which must be 'best', 'last' or the number of a step, got {shown(which)}"
        )
    if not has_folder(path := folder / f"step-{which}"):
        raise ConfigurationError(f"load_weights: {run_dir} has no checkpoint of step {which}; {_kept(folder)}")
    return path


def _best_checkpoint(run_dir: Path, folder: Path) -> Path:
    rows = read_rows(run_dir / "metrics.jsonl")
    monitored = _recorded_metric(run_dir) or monitored_metric((), rows)
    best = best_epoch(rows, monitored, folder)
    if best is None:
        raise ConfigurationError(
            f"load_weights: {run_dir} has no row of '{monitored.metric}'; {_nothing_there(run_dir)}"
        )
    if best.path is None:
        raise ConfigurationError(
            f"load_weights: the best epoch by {best.metric} is that of step {best.step} ({best.value:.6g}), and no "
            f"checkpoint of it was kept: train with callbacks=[descend.Checkpoint(keep_best='{best.metric}')], or pass "
            f"which='last' or a step; {_kept(folder)}"
        )
    return best.path


def _recorded_metric(run_dir: Path) -> Monitored | None:
    """What the run monitored, from its run.json; None where that is not there."""
    try:
        noted = json.loads(bounded_text(run_dir / "run.json"))["monitored"]
        metric, direction, restored = noted["metric"], noted["direction"], noted["restored"]
    except DAMAGED_FILE:
        return None
    if not isinstance(metric, str) or direction not in ("min", "max") or not isinstance(restored, bool):
        return None
    ended = restored and _has_ended(run_dir)
    return Monitored(metric, direction, ended)


def _has_ended(run_dir: Path) -> bool:
    """Whether the run came to its end, where the best weights are put back."""
    end = json.loads(bounded_text(run_dir / "run.json")).get("end")
    return isinstance(end, dict) and cast("dict[str, Any]", end).get("exit_code") == 0


def _nothing_there(run_dir: Path) -> str:
    parts = sorted(path.parent.name for path in run_dir.glob("*/checkpoints"))
    inside = f"; it has those of {', '.join(parts[:4])}: name one of them" if parts else ""
    return f"{run_dir} has no checkpoints{inside}"


def _kept(folder: Path) -> str:
    steps = ", ".join(str(step) for step in steps_in(folder)[-10:])
    return f"there are checkpoints of steps {steps}" if steps else "it has no checkpoints"


# ---- export a model as a plain torch module, and load weights into a module


def plain_module(
    model: Model,
    weights: Any = None,
    fields: Mapping[str, Shape] | None = None,
    outputs: str | Layer | Iterable[str | Layer] | None = None,
    seed: int = 0,
) -> torch.nn.Module:
    """See `descend.Model.to_torch`."""
    if isinstance(model, TorchModel):
        if weights is not None:
            set_weights(model.module, weights)
        return model.module
    plan, wanted = planned_for_export(model, fields, outputs)

    def draw(name: str) -> torch.Generator:
        return generator(seed, "weights", name)

    module = PlainModule(plan, draw, wanted, model.channels_last)
    trained = weights if weights is not None else model.trained and model.trained.weights
    if trained is not None:
        set_weights(module, trained)
    return module


def planned_for_export(
    model: Model, fields: Mapping[str, Shape] | None, outputs: str | Layer | Iterable[str | Layer] | None
) -> tuple[Plan, tuple[str, ...]]:
    """The checked graph, and the names of the layers whose outputs the module returns.

    Raises:
        ConfigurationError: the shapes of its fields are not known, or its weights do not fit into memory.
        GraphError: the graph is inconsistent.
    """
    known = fields if fields is not None else model.trained and model.trained.fields
    if known is None:
        inputs = dict.fromkeys(layer.data_field for layer in model.layers if hasattr(layer, "data_field"))  # pyright: ignore[reportAttributeAccessIssue]
        shapes = ", ".join(f"'{name}': (...)" for name in inputs)
        raise ConfigurationError(
            f"model '{model.name}' has not been run, so the shapes of its data are unknown: pass fields={{{shapes}}}, "
            "the shape of one sample of each"
        )
    plan = check(model, {name: tuple(shape) for name, shape in known.items()})
    beyond_memory(plan, False, machine_bytes())
    if outputs is None:
        return plan, prediction_outputs(plan)
    each = [outputs] if isinstance(outputs, (str, Layer)) else outputs
    return plan, tuple(one if isinstance(one, str) else one.name for one in each)


def set_weights(module: torch.nn.Module, weights: Any) -> None:
    """Load the weights of a run into a module.

    Args:
        module: The module.
        weights: A Result, tensors by name, a run directory (its newest checkpoint) or a checkpoint.

    Raises:
        ConfigurationError: a name or a shape differs; all differences are listed and nothing is changed.
        StorageError: there is no such checkpoint, or it is damaged.
    """
    given = _tensors(weights)
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    problems = [
        f"the module's weights '{name}' are {tuple(tensor.shape)}, and "
        + (f"those given are {tuple(given[name].shape)}" if name in given else f"none are given{nearest(name, given)}")
        for name, tensor in own.items()
        if name not in given or given[name].shape != tensor.shape
    ]
    if problems:
        raise ConfigurationError(problems)
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(torch.as_tensor(given[name]))


def _tensors(weights: Any) -> Mapping[str, Any]:
    if hasattr(weights, "weights"):
        return weights.weights
    if not isinstance(weights, (str, Path)):
        return weights
    folder = Path(weights)
    checkpoint = folder if has_file(folder / "manifest.json") else newest_checkpoint(folder / "checkpoints")
    if checkpoint is None:
        raise StorageError(f"{folder} is neither a checkpoint nor a run directory with a checkpoint")
    return evaluated_weights(checkpoint)
