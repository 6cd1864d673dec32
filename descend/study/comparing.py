"""Compare optimizers on one's own module in ten lines."""

from __future__ import annotations

import collections.abc
import inspect
import math
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from descend.arguments import check_instance, check_integer, check_string, collect, require, shown
from descend.arguments.strict_keywords import strict_keywords
from descend.data.splits import data_of_roles
from descend.errors import ConfigurationError, DescendError, nearest
from descend.experiment.build_optimizer import build_optimizer
from descend.experiment.losses import looked_at
from descend.runtime.seeds import forked_rng
from descend.study.code import code_hashes
from descend.study.design.arm import Arm, arm
from descend.study.design.parameter_roles import unmatched
from descend.study.design.space import plain
from descend.study.design.study import Study, make_study
from descend.study.follow_up_store import read_follow_ups
from descend.study.lineage import keep_rounds, read_rounds
from descend.study.phases import phase_problems, phase_settings
from descend.study.results import Comparison, compare_records
from descend.study.running.executor_choice import Executor
from descend.study.running.optimizer import make
from descend.study.running.plan import check_records
from descend.study.running.ray_pool import RayCluster
from descend.study.running.scheduler import conduct
from descend.study.running.scores import Scorer
from descend.study.running.trial_store import Memory, StudyDirectory
from descend.study.task import StudyTask, open_task

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from descend.study.running.trial import Record

__all__ = ["compare", "open_directory", "opened", "read_directory", "run_study"]

_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss)
_SPLITS = ("train", "validation", "test")
_SPLIT_OF_ROLE = {"validate": "validation"}


@strict_keywords(
    epochs="a run is as long as steps= says, in updates: epochs × batches of an epoch",
    arms="['AdamW', 'LAMB']",
    batch_size="64",
    steps="300",
    trials="16",
    seeds="10",
)
def compare(
    model: Callable[[], nn.Module] | nn.Module,
    loss: Any,
    data: Any,
    arms: Mapping[str, Any] | Iterable[str],
    batch_size: int | Sequence[int],
    steps: int | Sequence[int] | Mapping[int, int],
    trials: int | Mapping[str, int],
    seeds: int,
    searches: int = 3,
    target: float | None = None,
    directory: str | os.PathLike[str] | None = None,
    *,
    margin: float | None = None,
    targets: str | Sequence[str] | None = None,
    metric: str | None = None,
    metrics: Mapping[str, Any] | None = None,
    lower_is_better: bool | None = None,
    select: str = "value",
    seed: int = 0,
    shortlist: int = 3,
    shortlist_seeds: int = 3,
    evaluations: int = 10,
    executor: str = "auto",
    said: Callable[[dict[str, Record], Record], None] = lambda records, record: None,
) -> Comparison:
    """Tune every arm equally hard, run the winners again with fresh seeds, and say what may be ranked.

        result = descend.compare(
            make_model, nn.CrossEntropyLoss(), {"train": (x, y), "validation": (x_valid, y_valid)},
            arms=["nesterov", "Adam", "LAMB"], batch_size=64, steps=300, trials=16, seeds=10)
        print(result.verdict)

    Args:
        model: Returns a new module; or a module, whose layers are reset for each trial.
        loss: As for `descend.fit`.
        data: `{"train": ..., "validation": ..., "test": ...}`, or the training data, of which a fifth is held out.
        arms: By name: an `Arm`, a rule's name, a torch optimizer class, or a table; or just names of rules.
        batch_size: Samples of an update; each of several is a comparison of its own.
        steps: Updates of a trial.
        trials: Of each search; different numbers by arm can be given and are then a reason not to rank.
        seeds: Repeats of each winner with fresh seeds; at least 6 for an interval of the median.
        searches: Independent searches of each arm; one does not rank.
        target: Value of the metric that counts as success.
        directory: Where records are kept, so that an interrupted comparison continues; None keeps none.
        margin: The largest difference that does not matter; with it arms are also tested for equivalence.
        targets: The name of the field that is the target, as for `descend.fit`, where that is not clear.
        metric: What is compared: "loss" or one of `metrics`; "accuracy" for losses over classes.
        metrics: What may be compared beside the loss.
        lower_is_better: Whether the best is the least; by default for "loss" alone.
        select: "value" compares the metric at the end, "steps" the steps to the target.
        seed: Of everything that is drawn.
        shortlist, shortlist_seeds: Trials of a search that are repeated before one is chosen, and how often.
        evaluations: Looks at the metric in a trial.
        executor: "one" by one, "together", in "stacks", one a process, in "processes", or "auto", which chooses one.
        said: Called with all records and the new one after each trial.

    Raises:
        ConfigurationError: everything that is wrong, before anything runs.
    """
    require(_argument_problems(model, metric, metrics, targets, trials, shortlist, executor, said))
    measured = dict(metrics if metrics is not None else {"accuracy": "accuracy"} if _is_over_classes(loss) else {})
    task = StudyTask(model, loss, **_splits(data), metrics=measured, targets=targets)
    fields = {
        "workload": task,
        "batch_sizes": batch_size,
        "steps": dict(steps) if isinstance(steps, collections.abc.Mapping) else steps,
        "searches": plain(searches),
        "seed": seed,
        "metric": metric or ("accuracy" if "accuracy" in measured else "loss"),
        "lower_is_better": lower_is_better,
        "select": select,
        "evaluations": evaluations,
        "shortlist_seeds": shortlist_seeds,
        "confirmation_seeds": plain(seeds),
        "target": None if target is None else {"value": target},
        "margin": margin,
    }
    study = _study_of(fields, arms, trials, shortlist)
    return run_study(study, directory, executor=executor, said=said)


def _is_over_classes(loss: Any) -> bool:
    return isinstance(loss, _CLASSES) or (isinstance(loss, str) and loss in ("cross_entropy", "nll"))


def _argument_problems(
    model: Any, metric: Any, metrics: Any, targets: Any, trials: Any, shortlist: Any, executor: Any, said: Any
) -> list[str]:
    """Problems with the kinds of arguments that are not fields of a study."""
    by_name = "a mapping from names to metrics"
    per_arm = trials if isinstance(trials, collections.abc.Mapping) else {}
    return collect(
        None if callable(model) else check_instance("model", model, nn.Module, "a torch.nn.Module or a function"),
        check_string("metric", metric, empty=False, also=(None,)),
        check_instance("metrics", metrics, collections.abc.Mapping, by_name, also=(None,)),
        [check_string("a name in metrics", name, empty=False) for name in metrics or ()]
        if isinstance(metrics, collections.abc.Mapping)
        else None,
        check_instance("targets", targets, (str, list, tuple), "the name of a field", also=(None,)),
        [check_string("a name in trials", name, empty=False) for name in cast("Mapping[Any, Any]", per_arm)],
        check_integer("shortlist", plain(shortlist), 1),
        check_instance("executor", executor, (str, Executor, RayCluster), "a name such as 'auto', or an Executor"),
        None if _takes_records(said) else f"said must be a function of all records and the new one, got {shown(said)}",
    )


def _takes_records(said: Any) -> bool:
    """Whether it can be called after each trial; one whose arguments cannot be seen is believed."""
    if not callable(said) or isinstance(said, type):
        return False
    try:
        inspect.signature(said).bind(None, None)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _study_of(fields: dict[str, Any], arms: Any, trials: Any, shortlist: int) -> Study:
    """The study of a comparison; a shortlist is no longer than the search of any arm."""
    made, each = _arms_with_trials(arms, trials)
    fewest = [count for count in (each, *(one.trials for one in made.values())) if isinstance(count, int) and count > 0]
    return make_study(
        {
            "name": "comparison",
            **fields,
            "arms": made,
            "trials": each,
            "shortlist": min(plain(shortlist), *fewest) if fewest else plain(shortlist),
        }
    )


def _arms_with_trials(arms: Any, trials: Any) -> tuple[dict[str, Arm], Any]:
    """Arms by name with their own numbers of trials, and the number for all others.

    Raises:
        ConfigurationError: every arm that cannot be made, and every number of trials for an arm that is not there.
    """
    named = _named(arms)
    own = dict(trials) if isinstance(trials, collections.abc.Mapping) else {}
    problems = [
        f"trials are given for an arm '{name}' that there is not{nearest(name, named)}"
        for name in own
        if name not in named
    ]
    made: dict[str, Arm] = {}
    for name, one in named.items():
        try:
            made[name] = _with_trials(arm(one), own.get(name))
        except ConfigurationError as error:
            problems.extend(f"arms.{name}: {problem}" for problem in error.problems)
    if problems:
        raise ConfigurationError(problems)
    return made, max(own.values(), default=1) if own else plain(trials)


def _named(arms: Any) -> dict[str, Any]:
    """Arms by name.

    Raises:
        ConfigurationError: a list has one twice.
    """
    if hasattr(arms, "keys"):
        return dict(arms)
    try:
        names = [arms] if isinstance(arms, (str, type)) or not hasattr(arms, "__iter__") else list(arms)
    except Exception as error:  # of any class: a 0-d tensor, for one, has an iterator that raises
        raise ConfigurationError(f"arms must be a list of optimizers or a mapping, got {shown(arms)}") from error
    if twice := [one for place, one in enumerate(names) if any(_is_same(one, other) for other in names[:place])]:
        raise ConfigurationError(
            f"the arm '{twice[0]}' is given twice: give names, such as arms={{'a': '{twice[0]}', 'b': '{twice[0]}'}}"
        )
    return {name if isinstance(name, str) else getattr(name, "__name__", shown(name)): name for name in names}


def _is_same(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, str) and isinstance(b, str) and a == b)


def _with_trials(one: Arm, trials: int | None) -> Arm:
    return one if trials is None else Arm(one.optimizer, one.space, one.fixed, one.schedule, trials)


def _splits(data: Any) -> dict[str, Any]:
    """Data by split; a mapping without "train" is data of named fields. `descend.data.split` says "validate"."""
    if not (hasattr(data, "keys") and "train" in data):
        return {"train": data}
    found = data_of_roles(data)
    named = dict(data) if found is None else {_SPLIT_OF_ROLE.get(role, role): part for role, part in found.items()}
    if unknown := [name for name in named if name not in _SPLITS]:
        close = nearest(str(unknown[0]), _SPLITS)
        raise ConfigurationError(f"data have no split '{unknown[0]}'{close or ';'} there are {', '.join(_SPLITS)}")
    return named


def run_study(
    study: Study,
    directory: str | os.PathLike[str] | None = None,
    *,
    executor: str | Executor | RayCluster = "auto",
    said: Callable[[dict[str, Record], Record], None] = lambda records, record: None,
    idle_seconds: float = math.inf,
) -> Comparison:
    """Run a study to its end, or go on with one.

    Args:
        study: The description.
        directory: Where it is kept; None keeps nothing.
        executor: "one", "together", "stacks", "processes", "auto", "ray", or one of your own.
        said: Called with all records and the new one after each trial.
        idle_seconds: Leave after so many seconds in which other processes held all trials that are left.

    Raises:
        ConfigurationError: the workload cannot be opened, or the directory holds another study.
        Stopped: it was left before its end.
    """
    task, hashes = opened(study, check=not isinstance(executor, Executor))
    if directory is None:
        records = conduct(study, Memory(), executor=executor, task=task, said=said)
        return compare_records(study, records, hashes=hashes)
    with StudyDirectory(directory, study, hashes) as ledger:
        keep_rounds(study, directory, read_directory)
        records = conduct(study, ledger, executor=executor, task=task, said=said, idle_seconds=idle_seconds)
        keep_rounds(study, directory, read_directory)  # once more: a round may have gone on meanwhile
        earlier = read_rounds(directory)
        amendments = ledger.description()["amendments"]
        return compare_records(study, records, amendments, hashes, read_follow_ups(directory), earlier)


def open_directory(study: Study, directory: str | os.PathLike[str]) -> None:
    """Write the description of a study into its directory, before several processes run it.

    Raises:
        ConfigurationError: as `run_study`.
    """
    StudyDirectory(directory, study, opened(study)[1])


def read_directory(directory: str | os.PathLike[str]) -> Comparison:
    """What the records in a directory say, finished or not.

    Raises:
        ConfigurationError: there is no study, or records are of other settings than the study's.
        StorageError: a file is damaged.
    """
    ledger = StudyDirectory(directory)
    frozen, study, records = ledger.description(), ledger.study(), ledger.records()
    check_records(study, records)
    asked, earlier = read_follow_ups(directory), read_rounds(directory)
    return compare_records(study, records, frozen["amendments"], frozen["hashes"], asked, earlier)


def opened(study: Study, check: bool = True) -> tuple[StudyTask, dict[str, str]]:
    """The workload, and hashes of its code and data; with `check` every arm's optimizer is made once.

    Raises:
        ConfigurationError: the workload cannot be opened, has no such metric, its loss or a metric cannot take what its
            module returns, or an arm does not fit it.
    """
    try:
        task = _first_task(study)
    except ConfigurationError as error:  # what can be said without a workload is said with it
        raise ConfigurationError([*error.problems, *(_arm_problems(study, None) if check else [])]) from error
    problems = [*_metric_problems(study, task), *_phase_problems(study, task)]
    if check:
        problems += [*_size_problems(study, task), *_score_problems(study, task), *_arm_problems(study, task)]
    if problems:
        raise ConfigurationError(problems)
    return task, {"data": task.fingerprint(), **code_hashes(study.workload)}


def _size_problems(study: Study, task: StudyTask) -> list[str]:
    """Batch sizes that no update would have."""
    samples = len(task.train[0])
    return [
        f"batch_sizes has {size:,} and there are {samples:,} samples to train on, so that its updates would be of "
        f"{samples:,} samples: say at most {samples:,}"
        for size in study.batch_sizes
        if size > samples
    ]


def _metric_problems(study: Study, task: StudyTask) -> list[str]:
    of, what = task, "the workload"
    if study.split == "finetuned":
        if task.fine_tuning is None:
            return ["split = 'finetuned' compares fine-tuned weights, and the workload has no fine_tuning"]
        of, what = task.fine_tuning.task, "the fine tuning of the workload"
    problems: list[str] = []
    if study.judge == "test" and of.test is None:
        problems.append(f"judge = 'test' compares on test samples, and {what} has none: give its Task test=")
    known = ("loss", *of.metrics)
    if study.metric in known:
        return problems
    close = nearest(study.metric, known)
    return [*problems, f"{what} has no metric '{study.metric}'{close or ';'} it has {', '.join(known)}"]


def _phase_problems(study: Study, task: StudyTask) -> list[str]:
    names = [name for one in study.arms.values() for name in (*one.fixed, *one.space)]
    return phase_problems(task, names, [steps for size in study.batch_sizes for steps in study.budgets(size)])


def _score_problems(study: Study, task: StudyTask) -> list[str]:
    """The loss and all metrics that cannot be taken from what an untrained module returns, whose own errors are those
    of trials.
    """
    rows = [part[: study.batch_sizes[0]] for part in task.train]
    problems: list[str] = []
    with torch.no_grad(), forked_rng():
        try:
            output = task.module(study.seed)(*rows[:-1])
        except Exception:  # it may depend on the seed; the trial that raises it reports it
            return []
        for name, metric in Scorer(task).metrics.items():
            try:
                looked_at(metric, output, [rows[-1]], len(rows[-1]))
            except (MemoryError, torch.OutOfMemoryError):
                return []
            except DescendError as error:
                problems.extend(error.problems)
            except Exception as error:  # a loss or metric says in its own way what it cannot take
                what = "the loss" if name == "loss" else f"the metric '{name}'"
                problems.append(
                    f"{what} cannot be taken from what the module returns, which is {_described(output)}, and a target "
                    f"that is {_described(rows[-1])}: {type(error).__name__}: {error}"
                )
    return problems


def _described(value: Any) -> str:
    """A description of what a module returned."""
    if isinstance(value, torch.Tensor):
        return f"a tensor {tuple(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, (tuple, list)):
        parts = ", ".join(_described(part) for part in cast("Sequence[Any]", value))
        return f"a {type(value).__name__} of {parts}"
    return f"a {type(value).__name__}"


def _arm_problems(study: Study, task: StudyTask | None) -> list[str]:
    """What each arm's optimizer refuses in the middle of its space and at its ends, and roles that no weight has.

    A workload that cannot be opened has a module of one layer in its place, which says nothing of roles.
    """
    problems: list[str] = []
    for name, one in study.arms.items():
        module = torch.nn.Linear(1, 1) if task is None else task.module(study.seed)
        own = [] if task is None else unmatched([*one.fixed, *one.space], module)
        steps = study.budgets(study.batch_sizes[0])[0]
        for point in _corners(one):
            own += _refused(one, one.configuration(point), steps, module)
            for phase in () if task is None else task.phases:
                own += _refused(one, phase_settings(one.configuration(point), phase.name), steps, module)
        problems.extend(f"arms.{name}: {problem}" for problem in dict.fromkeys(own))
    return problems


def _corners(one: Arm) -> list[dict[str, Any]]:
    """The middle of a space, and points that differ from it in one number, which lies at an end."""
    middle = {key: dimension.at(0.5) for key, dimension in one.space.items()}
    return [middle, *({**middle, key: end} for key, dimension in one.space.items() for end in dimension.ends)]


def _refused(one: Arm, configuration: Mapping[str, Any], steps: int, module: nn.Module) -> list[str]:
    """Why an arm's optimizer cannot be made."""
    kind = None if isinstance(one.optimizer, str) else one.optimizer
    try:
        build_optimizer(make(configuration, steps, module, kind), module)
    except DescendError as error:
        return list(error.problems)
    except (TypeError, ValueError) as error:  # how optimizers of other libraries refuse an option
        return [f"{one.title}: {error}"]
    return []


def _first_task(study: Study) -> StudyTask:
    """The workload with the arguments of the study; those that are searched over at the middle of their range."""
    searched = {
        name.partition(".")[2]: one.at(0.5)
        for arm in study.arms.values()
        for name, one in arm.space.items()
        if name.startswith("workload.")
    }
    fixed = {
        name.partition(".")[2]: value
        for arm in study.arms.values()
        for name, value in arm.fixed.items()
        if name.startswith("workload.")
    }
    return open_task(study.workload, {**study.workload_options, **fixed, **searched})
