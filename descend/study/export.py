"""The trials of a study for the viewers of others: TensorBoard's page of hyperparameters, and Optuna's dashboard.

Both get every trial that ended, with its settings, phase, seed and status. Neither can hold a result that is infinite:
a trial that diverged or missed its target has no value there, and its status says why. Ours are the records; nothing is
read back.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError, MissingExtra, StorageError, missing_library, nearest
from descend.study.running.plan import score

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from descend.study.design.space import Dimension
    from descend.study.results import Comparison
    from descend.study.running.trial import Record

__all__ = ["FORMS", "export_study"]

FORMS = ("tensorboard", "optuna")


def export_study(comparison: Comparison, path: str | os.PathLike[str], to: str) -> str:
    """Write all trials.

    Args:
        comparison: The study, finished or not.
        path: A new directory for TensorBoard, a new journal file for Optuna.
        to: "tensorboard" or "optuna".

    Returns:
        A sentence: what was written, and how it is looked at.

    Raises:
        ConfigurationError: there is no such form, or the path exists.
        MissingExtra: the library is not installed.
        StorageError: the directory of the path cannot be made.
    """
    target = Path(path)
    if to not in FORMS:
        raise ConfigurationError(f"there is no form '{to}'{nearest(to, FORMS) or ';'} there are {', '.join(FORMS)}")
    if target.exists():
        raise ConfigurationError(f"{target} exists; name a new one")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the directory {target.parent}: {error.strerror}") from error
    if to == "tensorboard":
        _tensorboard(comparison, target)
        return f"{len(comparison.records)} trials in {target}; look at them with: tensorboard --logdir {target}"
    _optuna(comparison, target)
    return f"{len(comparison.records)} trials in {target}; look at them with: optuna-dashboard {target}"


def _result(comparison: Comparison, record: Record) -> float | None:
    """The compared number, None where it is infinite."""
    value = score(comparison.study, record)
    return None if not math.isfinite(value) else -value if comparison.lower else value


def _known(comparison: Comparison) -> Iterator[tuple[str, Record]]:
    """Trials of arms that the description still has."""
    for name, record in comparison.records.items():
        if record.trial.arm in comparison.study.arms:
            yield name, record


# ---- TensorBoard


def _tensorboard(comparison: Comparison, folder: Path) -> None:
    if importlib.util.find_spec("tensorboard") is None:
        raise MissingExtra(missing_library("the form 'tensorboard'", "tensorboard"))
    writers: Any = importlib.import_module("torch.utils.tensorboard")
    for name, record in _known(comparison):
        trial = record.trial
        settings = {k: v if isinstance(v, (bool, int, float, str)) else str(v) for k, v in trial.configuration.items()}
        settings |= {"arm": trial.arm, "batch_size": trial.batch_size, "steps": trial.steps, "phase": trial.phase}
        settings |= {"search": trial.search, "seed": trial.seed, "status": record.status}
        result = _result(comparison, record)
        with writers.SummaryWriter(str(folder / name)) as writer:
            for split, metrics in record.scores.items():
                for metric, values in metrics.items():
                    steps = record.steps if len(values) > 1 else record.steps[-1:]
                    for step, value in zip(steps, values, strict=False):
                        writer.add_scalar(f"{split}/{metric}", value, step)
            compared = {"compared": math.nan if result is None else result}
            writer.add_hparams(settings, compared, run_name=".", global_step=trial.steps)


# ---- Optuna


def _optuna(comparison: Comparison, file: Path) -> None:
    try:
        optuna: Any = importlib.import_module("optuna")
    except ImportError as error:
        raise MissingExtra(missing_library("the form 'optuna'", "optuna")) from error
    backend = optuna.storages.journal.JournalFileBackend(str(file))
    storage = optuna.storages.JournalStorage(backend)
    optuna.logging.disable_default_handler()
    made: dict[str, Any] = {}
    for name, record in _known(comparison):
        trial = record.trial
        title = f"{comparison.study.name}: {trial.arm}, batch {trial.batch_size}, {trial.steps} updates"
        if title not in made:
            direction = "minimize" if comparison.lower else "maximize"
            made[title] = optuna.create_study(storage=storage, study_name=title, direction=direction)
            made[title].set_user_attr("compared", comparison.unit)
            made[title].set_user_attr("verdict", comparison.verdict)
        made[title].add_trial(_trial(optuna, comparison, name, record))


def _trial(optuna: Any, comparison: Comparison, name: str, record: Record) -> Any:
    space = comparison.study.arms[record.trial.arm].space
    params = {key: _param(one, record.trial.configuration[key]) for key, one in space.items()}
    result = _result(comparison, record)
    states = optuna.trial.TrialState
    metric = record.scores.get(comparison.study.split, {}).get(comparison.study.metric, [])
    looks = {step: value for step, value in zip(record.steps, metric, strict=False) if math.isfinite(value)}
    facts = {"trial": name, "status": record.status, "phase": record.trial.phase, "seed": record.trial.seed}
    return optuna.trial.create_trial(
        state=states.FAIL if result is None else states.COMPLETE,
        value=result,
        params=params,
        distributions={key: _distribution(optuna, one) for key, one in space.items()},
        user_attrs={**facts, "search": record.trial.search + 1, "repeat": record.trial.repeat},
        intermediate_values=looks,
    )


def _param(one: Dimension, value: Any) -> Any:
    """A value that its distribution holds, whatever rounding did to it at an end."""
    if one.kind == "choice":
        return _option(value)
    low, high = (1 - end for end in reversed(one.options)) if one.kind == "one_minus_log" else one.options
    return min(max(value, low), high)


def _option(value: Any) -> Any:
    """Optuna's choices are numbers, texts and the like; others are written out."""
    return value if isinstance(value, (bool, int, float, str)) or value is None else json.dumps(value)


def _distribution(optuna: Any, one: Dimension) -> Any:
    made = optuna.distributions
    if one.kind == "choice":
        return made.CategoricalDistribution([_option(value) for value in one.options])
    low, high = one.options
    if one.kind == "integer":
        return made.IntDistribution(int(low), int(high))
    if one.kind == "one_minus_log":  # a ratio of distances from 1, which Optuna has no name for
        return made.FloatDistribution(1 - high, 1 - low)
    return made.FloatDistribution(float(low), float(high), log=one.kind == "log")
