"""Types of the fields of a study that need checks of their own: `Annotated` types with a validator of pydantic.

    Workload, WorkloadOptions, Arms, BatchSizes, Sampler     checked by themselves
    Steps, Shortlist, needed_for_steps                       checked against fields that stand before them in the study

A validator raises ValueError with one problem a line, from which `descend.study.design.study` makes the
`ConfigurationError` that lists all problems of a study.
"""

from __future__ import annotations

from typing import Annotated, Any, cast

from pydantic import AfterValidator, BeforeValidator, Field, InstanceOf, ValidationInfo
from pydantic_core import to_jsonable_python

from descend.arguments import shown
from descend.errors import ConfigurationError, nearest
from descend.study.design.arm import Arm, arm, no_setting
from descend.study.design.sampling import SAMPLERS
from descend.study.design.space import plain
from descend.study.design.workload import FORMS, RecordedWorkload, check_form
from descend.terminal.display import printable

__all__ = [
    "Arms",
    "BatchSizes",
    "Sampler",
    "Shortlist",
    "Steps",
    "Workload",
    "WorkloadOptions",
    "named_fields",
    "needed_for_steps",
]


_MOST = 2**53  # samples of an update, and updates: what floats count exactly


def _refused(said: str) -> ValueError:
    """The error of a validator, which pydantic can keep: without characters that UTF-8 does not have."""
    return ValueError(printable(said, keep="\n\t"))


def _without(problems: list[str], value: Any) -> Any:
    """A value that has no problems."""
    if problems:
        raise _refused("\n".join(problems))
    return value


def _check_workload(value: Any) -> Any:
    if isinstance(value, RecordedWorkload):
        return value
    if isinstance(value, str):
        return _without(check_form(value), value)
    if callable(value) or hasattr(value, "prepared"):  # a function, or a task, whose class needs torch
        return value
    what = f"a text of the form {FORMS}, a Task or a function that returns one"
    raise _refused(f"workload must be {what}, got {shown(value)}")


def _check_options(options: dict[str, Any]) -> dict[str, Any]:
    problems = [
        f"workload_options: '{name}' is {shown(value)}, which no record of a study can hold; expected numbers, texts, "
        "lists and tables of them, such as a date as a text"
        for name, value in options.items()
        if no_setting(value) or not _is_storable(value)
    ]
    return _without(problems, options)


def _is_storable(value: Any) -> bool:
    """Whether JSON can hold a value."""
    try:
        to_jsonable_python(value, inf_nan_mode="constants")
    except Exception:  # of a value of any class, each in its way
        return False
    return True


def named_fields(value: Any) -> Any:
    """A table whose names are texts, as fields have; anything else is checked by what follows."""
    if isinstance(value, dict) and (wrong := [name for name in cast("dict[Any, Any]", value) if type(name) is not str]):
        raise _refused(f"a name of a field must be a string, got {shown(wrong[0])}")
    return value


def _read_arms(value: Any) -> dict[str, Arm]:
    """Arms in any of their short forms, as `Arm`s."""
    if not isinstance(value, dict):
        raise _refused("arms must be a table from names to arms")
    made: dict[str, Arm] = {}
    problems: list[str] = []
    for name, one in cast("dict[str, Any]", value).items():
        try:
            made[name] = arm(one)
        except ConfigurationError as error:
            problems.extend(f"arms.{name}: {problem}" for problem in error.problems)
            continue
        problems.extend(f"arms.{name}: {problem}" for problem in made[name].problems())
    return _without(problems, made)


def _one_or_several(value: Any, info: ValidationInfo) -> Any:
    """A number or several as a tuple; a table of steps by batch size with integer keys."""
    by_size = info.field_name == "steps" and isinstance(value, dict)
    given = list(cast("dict[Any, Any]", value).values()) if by_size else plain(value)
    several = [plain(number) for number in (given if isinstance(given, (list, tuple, range)) else [given])]
    if not several or not all(isinstance(number, int) and not isinstance(number, bool) for number in several):
        table = ", or a table of one for each batch size" if info.field_name == "steps" else ""
        raise _refused(f"{info.field_name} is {shown(value)}; expected an integer, or a list of them{table}")
    if any(number > _MOST for number in several):
        raise _refused(f"{info.field_name} is {shown(value)}; expected numbers of at most {_MOST:,}")
    if any(number < 1 for number in several):
        raise _refused(f"{info.field_name} is {shown(value)}; expected numbers of at least 1")
    if not by_size:
        return _without(_repeated(info.field_name or "", several), tuple(several))
    sizes = cast("dict[Any, Any]", value)
    if wrong := [size for size in sizes if not str(size).isdecimal()]:
        raise _refused(f"steps has the batch size {shown(wrong[0])}; expected an integer")
    return {int(size): count for size, count in zip(sizes, several, strict=True)}


def _repeated(name: str, numbers: list[int]) -> list[str]:
    twice = [number for place, number in enumerate(numbers) if number in numbers[:place]]
    return [f"{name} has {number} more than once" for number in dict.fromkeys(twice)]


def _for_each_batch_size(value: Any, info: ValidationInfo) -> Any:
    sizes = info.data.get("batch_sizes")
    if isinstance(value, dict) and sizes is not None and set(cast("dict[int, int]", value)) != set(sizes):
        raise _refused(f"steps has the batch sizes {sorted(value)}, and batch_sizes {sorted(sizes)}")
    return value


def _check_sampler(value: str) -> str:
    if value not in SAMPLERS:
        close = nearest(value, SAMPLERS)
        raise _refused(f"there is no sampler '{value}'{close or ';'} there are {', '.join(SAMPLERS)}")
    return value


def _at_most_the_trials(value: int, info: ValidationInfo) -> int:
    trials = info.data.get("trials", value)
    if value > trials:
        raise _refused(f"shortlist is {value} and a search has {trials} trials")
    return value


def needed_for_steps(value: Any, info: ValidationInfo) -> Any:
    """A target, which must be there where `select` counts the steps to it."""
    if value is None and info.data.get("select") == "steps":
        raise _refused("select = 'steps' counts steps to a target: give one in [target]")
    return value


WorkloadOptions = Annotated[dict[str, Any], AfterValidator(_check_options)]
Workload = Annotated[Any, AfterValidator(_check_workload)]
Arms = Annotated[dict[str, InstanceOf[Arm]], Field(min_length=1), BeforeValidator(_read_arms)]
BatchSizes = Annotated[tuple[int, ...], Field(min_length=1), BeforeValidator(_one_or_several)]
Steps = Annotated[
    tuple[int, ...] | dict[int, int], BeforeValidator(_one_or_several), AfterValidator(_for_each_batch_size)
]
Sampler = Annotated[str, AfterValidator(_check_sampler)]
Shortlist = Annotated[int, Field(ge=1, validate_default=True), AfterValidator(_at_most_the_trials)]
