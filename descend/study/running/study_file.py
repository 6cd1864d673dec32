"""study.json: the description of a study with hashes of code and data, versions, and all later changes.

It is written before the first trial. Changes that leave the records valid (more trials, another arm, other code) are
added as amendments; any other change is refused.
"""

from __future__ import annotations

import json
import os
import platform
from importlib import metadata
from typing import TYPE_CHECKING, Any, cast

from descend.arguments import require, shown
from descend.errors import DAMAGED_FILE, ConfigurationError, DirectoryLost, StorageError
from descend.files import bounded_text
from descend.machine import __version__
from descend.runtime.json_object import without_repeats
from descend.runtime.run_directory import write_beside
from descend.study.design.study import Study, make_study
from descend.study.design.workload import RecordedWorkload, check_form

if TYPE_CHECKING:
    from pathlib import Path

    from descend.runtime.directory_lock import HeldFolder

__all__ = ["StudyFile"]


class StudyFile:
    """The description of a study in its directory.

    Args:
        directory: The directory of the study.

    Attributes:
        was_there: Whether it was seen, so that its absence is a fault of the storage.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / "study.json"
        self.was_there = False

    def require(self) -> None:
        """Raise DirectoryLost if the file was there and is gone, so that what is recorded would belong to no study."""
        if self.was_there and not os.path.lexists(self.file):
            raise self._gone()

    def _gone(self) -> DirectoryLost:
        return DirectoryLost(
            f"{self.file} is gone, which describes the study that is running: put back a copy of it, or run the "
            "study's file again, which keeps the records"
        )

    def write(self, study: Study, hashes: dict[str, str], folder: HeldFolder) -> None:
        """Write the description, or amend the one that is there.

        Args:
            study: The description.
            hashes: Of code and data.
            folder: The directory, so that no other one is written to.

        Raises:
            ConfigurationError: the directory holds another study.
            StorageError: the description that is there is damaged.
        """
        plain, facts = study.plain(), _versions()
        if not self.file.exists():
            require(_unstorable(plain))
            self._write({"study": plain, "hashes": hashes, "made_with": facts, "amendments": []}, folder)
            return
        require(_unstorable(plain))
        frozen = self.read()
        changes = _changes(frozen["study"], plain) | _changes(frozen["hashes"], hashes, "hashes.")
        known = {name: facts.get(name) for name in frozen["made_with"]}
        changes |= _changes(frozen["made_with"], known, "made_with.")
        if not changes:
            return
        if wrong := [name for name in changes if not _may_change(name, changes[name])]:
            raise ConfigurationError(
                [
                    f"{self.directory} holds a study whose {name} is {changes[name][0]!r}, and now it is "
                    f"{changes[name][1]!r}: give the changed study a directory of its own"
                    for name in wrong
                ]
            )
        frozen["amendments"].append({name: list(pair) for name, pair in changes.items()})
        self._write({**frozen, "study": plain, "hashes": hashes, "made_with": facts}, folder)

    def _write(self, content: dict[str, Any], folder: HeldFolder) -> None:
        with folder.writing() as place:
            write_beside(place / self.file.name, json.dumps(content, indent=2) + "\n")
        self.was_there = True

    def read(self) -> dict[str, Any]:
        """The content of study.json.

        Raises:
            ConfigurationError: there is none.
            DirectoryLost: it was there before.
            StorageError: it is damaged.
        """
        try:
            text = bounded_text(self.file)
            found = json.loads(text, object_pairs_hook=without_repeats)
            whole = {name: _of_kind(found[name], kind) for name, kind in _PARTS.items()}
            for amendment in whole["amendments"]:
                for pair in _of_kind(amendment, dict).values():
                    _, _ = _of_kind(pair, list)
            self.was_there = True
            return whole
        except OSError as error:
            self.require()
            raise ConfigurationError(f"{self.directory} holds no study: {self.file}: {error.strerror}") from error
        except DAMAGED_FILE as error:
            raise StorageError(
                f"{self.file} is damaged: {error!r}; restore it from a copy, or remove it and run the study's file "
                "again, which keeps the records"
            ) from error

    def study(self) -> Study:
        """The study that is described. It cannot be run if its workload or an optimizer is a Python object.

        Raises:
            ConfigurationError: there is none, or this version does not know its fields.
            StorageError: it is damaged.
        """
        described = self.read()["study"]
        workload = described.get("workload")
        if isinstance(workload, str) and check_form(workload):
            described = {**described, "workload": RecordedWorkload(workload)}
        try:
            return make_study(described)
        except ConfigurationError as error:
            raise ConfigurationError([f"{self.file}: {line}" for line in error.problems]) from error


_PARTS = {"study": dict, "hashes": dict, "made_with": dict, "amendments": list}  # of study.json


def _of_kind(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"expected a {kind.__name__}, and found {value!r:.40}")
    return value


def _unstorable(plain: dict[str, Any]) -> list[str]:
    """The settings of arms, and other fields, that no file can hold."""
    fields = {name: value for name, value in plain.items() if name != "arms"}
    for name, arm in plain["arms"].items():
        for part in ("fixed", "space"):
            fields |= {f"arms.{name}: {part}[{key!r}]": value for key, value in arm[part].items()}
    what = "a number, a text, or a list or table of them, which study.json can hold"
    remedy = "leave directory out, or write it otherwise"
    return [
        f"{name} must be {what}, got {shown(value)}: {remedy}" for name, value in fields.items() if not _is_json(value)
    ]


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _changes(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Fields that differ. Arms are compared one by one."""
    plain_old = {**old, **_arms(old)}
    plain_new = json.loads(json.dumps({**new, **_arms(new)}))
    names = [name for name in dict.fromkeys([*plain_old, *plain_new]) if name != "arms"]
    pairs = {name: (plain_old.get(name), plain_new.get(name)) for name in names}
    return {prefix + name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _arms(plain: dict[str, Any]) -> dict[str, Any]:
    """Arms under names of their own; none where a damaged file has something else."""
    arms = plain.get("arms")
    return {f"arms.{name}": one for name, one in cast("dict[str, Any]", arms).items()} if isinstance(arms, dict) else {}


def _versions() -> dict[str, str]:
    """Versions of the packages that trials depend on."""
    others = {name: metadata.version(name) for name in ("torch", "numpy")}
    return {"descend": __version__, "python": platform.python_version(), **others}


_CHANGES = ("name", "target", "batch_sizes", "reference", "needs", "checkpoint_every")
_EXTENDS = ("trials", "searches", "confirmation_seeds", "shortlist", "shortlist_seeds")


def _may_change(name: str, pair: tuple[Any, Any]) -> bool:
    """Whether old records stay valid: more of something, another arm, name, target or code."""
    old, new = pair
    if name in _EXTENDS:
        return isinstance(old, int) and new >= old
    if name.startswith("arms."):
        return old is None
    return name in _CHANGES or name.startswith(("hashes.code", "made_with."))
