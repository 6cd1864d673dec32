"""What was asked of a finished study, kept in its directory so that its report can show it.

follow_ups/KIND-WHAT.json    one file a question; asked again, the newer answer stands
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from descend.arguments import shown
from descend.errors import StorageError
from descend.runtime.json_object import read_json
from descend.runtime.run_directory import write_beside

if TYPE_CHECKING:
    import os

__all__ = ["read_follow_ups", "save_follow_up"]

_FOLDER = "follow_ups"


def save_follow_up(directory: str | os.PathLike[str], found: dict[str, Any], what: str) -> None:
    """Write an answer.

    Args:
        directory: Of the study.
        found: The answer as plain values; `kind` is "swap", "minimize", "noise" or "sharpness".
        what: Says which question of its kind it was.
    """
    folder = Path(directory) / _FOLDER
    folder.mkdir(exist_ok=True)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{found['kind']}-{what}")
    write_beside(folder / f"{name}.json", json.dumps(found, indent=2) + "\n")


def read_follow_ups(directory: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """All answers, in the order of their files.

    Raises:
        StorageError: a file is damaged, or none that `keep` wrote.
    """
    found: list[dict[str, Any]] = []
    for file in sorted((Path(directory) / _FOLDER).glob("*.json")):
        try:
            one = read_json(file)
            _ANSWER.validate_python(one, strict=True)
            found.append(one)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            said = f"{place}: {first['msg']}, got {shown(first['input'])}"
            raise StorageError(f"{file}: not an answer: {said}; remove it and ask again") from error
        except OSError as error:
            raise StorageError(f"{file}: not an answer: {error}; remove it and ask again") from error
    return found


class _Part(BaseModel):
    """A part of an answer; what else it may have is not shown."""


class _Cell(_Part):
    arm: str
    giver: str
    median: float
    interval: Annotated[list[float], Field(min_length=2, max_length=2)] | None
    change: float


class _NoisePoint(_Part):
    step: int
    scale: float | None
    interval: Annotated[list[float], Field(min_length=2, max_length=2)] | None
    said: str | None


class _SharpnessPoint(_Part):
    step: int
    sharpness: float
    sharpness_error: float
    hessian_smallest: float
    preconditioned_sharpness: float | None = None
    stability: float | None = None


class _Swap(_Part):
    kind: Literal["swap"]
    command: str
    setting: str
    seeds: int
    cells: list[_Cell]


class _MinimalDifference(_Part):
    kind: Literal["minimize"]
    command: str
    seeds: int
    arm: str
    reference: str
    rule: str
    tried: int
    needed: dict[str, Annotated[list[Any], Field(min_length=2, max_length=2)]]
    taken_back: dict[str, Annotated[list[Any], Field(min_length=2, max_length=2)]]


class _Noise(_Part):
    kind: Literal["noise"]
    command: str
    arm: str
    parts: int
    part_size: int
    repeats: int
    points: list[_NoisePoint]


class _Sharpness(_Part):
    kind: Literal["sharpness"]
    command: str
    arm: str
    points: list[_SharpnessPoint]


_ANSWER: TypeAdapter[Any] = TypeAdapter(
    Annotated[_Swap | _MinimalDifference | _Noise | _Sharpness, Field(discriminator="kind")]
)
