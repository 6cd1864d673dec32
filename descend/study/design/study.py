"""A study as one value: what is compared, on what, how hard each arm is tuned, and what counts as success.

A file is TOML with the same names:

    name = "nesterov-against-lars"
    workload = "task.py:task"
    batch_sizes = [1024]
    steps = [100]
    trials = 24
    searches = 2
    seed = 1

    [target]
    value = 0.855

    [arms.nesterov]
    optimizer = "SGD"
    fixed = { nesterov = true }
    schedule = { kind = "polynomial", warmup_fraction = 0.28 }
    [arms.nesterov.space]
    lr = { log = [0.01, 10] }
    momentum = { one_minus_log = [5e-3, 0.3] }
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, ValidationError

from descend.arguments import check_path, require, shown
from descend.errors import ConfigurationError, nearest
from descend.files import regular_file
from descend.study.design.field_types import (
    Arms,
    BatchSizes,
    Sampler,
    Shortlist,
    Steps,
    Workload,
    WorkloadOptions,
    named_fields,
    needed_for_steps,
)
from descend.study.design.needs import Needs

if TYPE_CHECKING:
    import os

    from pydantic_core import ErrorDetails

__all__ = ["Protocol", "Study", "Target", "make_study", "read_study", "table_of"]


class Target(BaseModel):
    """What counts as success, written down before the first trial.

    Attributes:
        value: Of the metric on the selection split.
        rule: "median": the median over re-run seeds reaches it.
        consecutive: Evaluations in a row that must reach it where steps are counted.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: float = Field(allow_inf_nan=False)
    rule: Literal["median"] = "median"
    consecutive: int = Field(default=1, ge=1)

    if not TYPE_CHECKING:  # whose signature is that of the fields

        def __init__(self, **fields: Any) -> None:
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise ConfigurationError([line for one in error.errors() for line in _line(one, "target.")]) from None


MAX_TRIALS = 200_000  # all are held in memory, and planned again whenever one ends


class Protocol(BaseModel):
    """What a study was preceded by, who may tune, and on which samples is judged. A part of `Study`.

    Attributes:
        split: "validation", "train" or "finetuned", on which winners are chosen. Never the test split.
        judge: "selection" compares winners on the samples by which they were chosen, "test" on the test samples, which
            are looked at once, at the end of each re-run.
        ruleset: "external" tunes every arm alike, by the same number of trials; "self-tuning" tunes nothing: arms
            search over nothing, a search is one trial, and the optimizer has to do without. None asks for neither.
        rounds: Directories of earlier studies that led to this one, seen from the working directory; their cost is
            added up in the report.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, ser_json_inf_nan="constants")

    split: Literal["validation", "train", "finetuned"] = "validation"
    judge: Literal["selection", "test"] = "selection"
    ruleset: Literal["external", "self-tuning"] | None = None
    rounds: tuple[str, ...] = ()

    @property
    def compared_splits(self) -> tuple[str, str]:
        """Where the scores on training and on held samples stand that are set beside each other."""
        return ("finetuned train", "finetuned") if self.split == "finetuned" else ("train", "validation")


_LATER = ("margin", "needs", "checkpoint_every", "ruleset", "rounds")  # fields that say nothing by default


class Study(Protocol):
    """The description of a study.

    Attributes:
        name: Of the study.
        workload: What is trained: `file.py:function` or `module:function`, which returns a `descend.study.Task`; an
            experiment's `FILE.prototext`; `zoo:NAME`; in Python also a Task or such a function.
        workload_options: Arguments of the function.
        batch_sizes: Samples of an update; each is a comparison of its own.
        steps: Updates of a trial; several budgets, or one for each batch size.
        arms: What is compared, by name.
        trials: Of each search of each arm.
        searches: Independent searches of each arm.
        seed: Of everything that is drawn.
        sampler: "sobol", "random" or "grid".
        common_random_numbers: Whether all arms share the seeds of their trials, and arms with one space the points.
            Without it two arms of one optimizer are independent repetitions, as an A/A study wants them.
        metric: What is compared: "loss", "accuracy" or the name of a metric of the task.
        lower_is_better: Whether the best is the least; by default for "loss" alone.
        select: "value" chooses by the metric at the end, "steps" by steps to the target.
        evaluations: Looks at the metric in a trial, at equal distances, the same for every arm.
        shortlist: Trials of a search that are repeated before one is chosen.
        shortlist_seeds: Repeats of each.
        confirmation_seeds: Repeats of the winner with fresh seeds, which alone are compared.
        target: What counts as success.
        margin: The largest difference of the compared number that does not matter; with it arms are also tested for
            equivalence.
        reference: What others found, shown beside the results: by the name of an arm, and anything else by its title.
        needs: What one trial needs of a machine.
        checkpoint_every: Updates from one checkpoint of a trial to the next, in the directory of the study; None
            keeps none, and a trial that was interrupted starts over.

    Raises:
        ConfigurationError: every problem at once.
    """

    name: str = "study"
    workload: Workload
    workload_options: WorkloadOptions = Field(default_factory=dict)
    batch_sizes: BatchSizes
    steps: Steps
    arms: Arms
    trials: int = Field(default=16, ge=1)
    searches: int = Field(default=3, ge=1)
    seed: int = Field(default=0, ge=0, le=2**63 - 1)
    sampler: Sampler = "sobol"
    common_random_numbers: bool = True
    metric: str = "accuracy"
    lower_is_better: bool | None = None
    select: Literal["value", "steps"] = "value"
    evaluations: int = Field(default=10, ge=1)
    shortlist: Shortlist = 3
    shortlist_seeds: int = Field(default=3, ge=0)
    confirmation_seeds: int = Field(default=10, ge=1)
    target: Annotated[
        Target | None, Field(validate_default=True), AfterValidator(needed_for_steps), BeforeValidator(named_fields)
    ] = None
    margin: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    reference: dict[str, str | int | FiniteFloat] = Field(default_factory=dict)
    needs: Needs = Needs()
    checkpoint_every: int | None = Field(default=None, ge=1, strict=True)

    if not TYPE_CHECKING:  # whose signature is that of the fields

        def __init__(self, **fields: Any) -> None:
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise ConfigurationError([line for one in error.errors() for line in _line(one)]) from None
            if problems := protocol_problems(self):
                raise ConfigurationError(problems)
            if (count := _most_trials(self)) > MAX_TRIALS:
                raise ConfigurationError(
                    f"a study of {count:,} trials with those that are repeated; at most {MAX_TRIALS:,} are planned: "
                    "make trials, searches, seeds, batch_sizes or steps smaller, or studies of it"
                )

    @property
    def lower(self) -> bool:
        """Whether the best value of the metric is the least."""
        return self.metric == "loss" if self.lower_is_better is None else self.lower_is_better

    def budgets(self, batch_size: int) -> tuple[int, ...]:
        """Updates of a trial at a batch size."""
        return (self.steps[batch_size],) if isinstance(self.steps, dict) else self.steps

    def trials_of(self, name: str) -> int:
        """Trials of a search of an arm."""
        own = self.arms[name].trials
        return self.trials if own is None else own

    def plain(self) -> dict[str, Any]:
        """The description as plain values, e.g. for a file."""
        made = self.model_dump(exclude={"arms", "workload"}, mode="json")
        inherited = {name: made.pop(name) for name in Protocol.model_fields}
        made = {name: value for head in made for name, value in _followed(head, made[head], inherited)}
        if self.common_random_numbers:
            del made["common_random_numbers"]  # as in descriptions that were written before there was a choice
        made["needs"] = self.needs.model_dump(exclude_defaults=True)
        for name in [name for name in _LATER if not made[name]]:  # likewise
            del made[name]
        if self.judge == "selection":
            del made["judge"]
        workload = self.workload if isinstance(self.workload, str) else _name_of(self.workload)
        return {"workload": workload, **made, "arms": {name: one.plain() for name, one in self.arms.items()}}


def _most_trials(study: Study) -> int:
    """Trials of all searches, with all that may be repeated."""
    budgets = sum(len(study.budgets(size)) for size in study.batch_sizes)
    repeated = study.shortlist * study.shortlist_seeds + study.confirmation_seeds
    return budgets * study.searches * sum(study.trials_of(name) + repeated for name in study.arms)


def protocol_problems(study: Study) -> list[str]:
    """What contradicts itself in who may tune and what is judged."""
    problems: list[str] = []
    if study.select == "steps" and study.judge == "test":
        problems.append("select = 'steps' counts steps on the split of the study, and judge = 'test' has one score")
    if study.select == "steps" and study.split == "finetuned":
        problems.append("select = 'steps' counts steps during a trial, and split = 'finetuned' is known at its end")
    if study.ruleset == "external":
        counts = {study.trials_of(name) for name in study.arms}
        if len(counts) > 1:
            problems.append(f"ruleset = 'external' gives every arm the same trials, and they have {sorted(counts)}")
    if study.ruleset == "self-tuning":
        problems += [
            f"arms.{name}: ruleset = 'self-tuning' searches over nothing, and this arm over {', '.join(arm.space)}"
            for name, arm in study.arms.items()
            if arm.space
        ]
        if any(study.trials_of(name) != 1 for name in study.arms):
            problems.append("ruleset = 'self-tuning' has one trial a search: say trials = 1 and shortlist = 1")
    return problems


def _followed(name: str, value: Any, inherited: dict[str, Any]) -> list[tuple[str, Any]]:
    """A field and, after the direction of the metric, those of the protocol: their order in files of every version."""
    return [(name, value), *(inherited.items() if name == "lower_is_better" else ())]


def _name_of(workload: Any) -> str:
    function = getattr(workload, "model", workload)
    return f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def table_of(file: str | os.PathLike[str]) -> dict[str, Any]:
    """The table in a TOML file.

    Raises:
        ConfigurationError: it cannot be read, or is no TOML.
    """
    require(check_path("file", file))
    path = Path(file)
    try:
        return tomllib.loads(regular_file(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{path}: {error}") from error


def read_study(file: str | os.PathLike[str]) -> Study:
    """The study in a TOML file.

    Raises:
        ConfigurationError: every problem of the file at once, each with the place.
    """
    table = table_of(file)
    try:
        return make_study(table)
    except ConfigurationError as error:
        raise ConfigurationError([f"{Path(file)}: {problem}" for problem in error.problems]) from None


def make_study(table: dict[str, Any]) -> Study:
    """A study from a table of its fields.

    Raises:
        ConfigurationError: every problem at once.
    """
    return Study(**table)


def _line(error: ErrorDetails, head: str = "") -> list[str]:
    """One problem that pydantic found, in our words."""
    place = head + ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        tables = {"target": Target.model_fields, "needs": Needs.model_fields}
        known = tables.get(place.partition(".")[0], Study.model_fields) if "." in place else Study.model_fields
        return [f"there is no '{place}'{nearest(place.rpartition('.')[2], known) or ';'} fields are {', '.join(known)}"]
    if error["type"] == "missing":
        return [f"'{place}' is missing"]
    if error["type"] == "value_error":
        return str(error["ctx"]["error"] if "ctx" in error else error["msg"]).splitlines()
    return [f"{place} is {shown(error['input'])}: {error['msg']}"]
