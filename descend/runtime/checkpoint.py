"""Checkpoints on disk: plain files, written atomically and verified by checksums.

    checkpoints/step-N/
        weights.safetensors                every parameter and buffer under its own name
        training/optimizer.safetensors     tensors of the optimizer's state
        training/state.json                execution contexts, counts, seed, and all else that is not a tensor
        shards/weights-R-of-N.safetensors  the shards of rank R of N, where tensors are sharded, and ...
    shards/optimizer-R-of-N.safetensors
    manifest.json                      size and SHA-256 of each file above, CRC-32 of each tensor; written last

A checkpoint is written under another name, flushed, and renamed, so `step-N` is complete whenever it exists. Nothing
here is a pickle, and no byte depends on the time or the machine, so equal runs write equal files.

Files are not trusted when they are read: only the files that the manifest and this module expect are opened, only
inside the folder, and headers are compared with the sizes of files before anything is allocated.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from descend.errors import DAMAGED_FILE, StorageError, warn
from descend.files import escape, regular_file, unescape
from descend.machine import __version__
from descend.runtime.run_directory import write_beside
from descend.runtime.safetensors_io import TensorFiles, check_layout, damaged_tensors, write_tensors

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import torch

__all__ = ["newest_checkpoint", "read_state", "read_weights", "remove", "remove_leftovers", "save_checkpoint", "verify"]

# 1: before the state was kept by the names of parts; its weights alone can be taken. 3: some tensors are sharded.
# 4: the rows of the history are in metrics.jsonl, and the state holds how many there were, with a checksum.
FORMAT_VERSION = 4

_WEIGHTS, _OPTIMIZER, _STATE = "weights.safetensors", "training/optimizer.safetensors", "training/state.json"
_MANIFEST = "manifest.json"
_FILES = (_WEIGHTS, _OPTIMIZER, _STATE)
_SHARD = re.compile(r"shards/(weights|optimizer)-\d{5,}-of-\d{5,}\.safetensors")
_LARGEST_JSON = 2**30  # bytes; far above any state that we write
_LEFTOVER = re.compile(r"\.step-\d+\.(\d+\.part|shards\.part|gone)")


class StagedShards:
    """Shards that all ranks have written beside the checkpoints, for the next checkpoint.

    Args:
        folder: Of the files.
        files: Of each file by its name in a checkpoint, the facts for the manifest.
        not_finite: Name of a sharded parameter with a NaN or an infinity in any shard; None if all are finite.
        problems: Why a rank could not write its files.
    """

    def __init__(
        self,
        folder: Path,
        files: Mapping[str, Mapping[str, Any]],
        not_finite: str | None = None,
        problems: Sequence[str] = (),
    ) -> None:
        self.folder, self.files, self.not_finite, self.problems = folder, files, not_finite, list(problems)

    @staticmethod
    def folder_of(checkpoints: Path, step: int) -> Path:
        """Where the shards of a step lie until its checkpoint is written."""
        return checkpoints / f".step-{step}.shards.part"

    @staticmethod
    def name_of(kind: str, rank: int, world_size: int) -> str:
        """The name in a checkpoint of a rank's file."""
        return f"shards/{kind}-{rank:05}-of-{world_size:05}.safetensors"

    def copy_to(self, checkpoint: Path) -> Mapping[str, Any]:
        """Link or copy the files into a checkpoint; returns their entries for the manifest."""
        (checkpoint / "shards").mkdir()
        for name in self.files:
            source, target = self.folder / Path(name).name, checkpoint / name
            try:
                os.link(source, target)
            except OSError:  # the file system has no hard links
                shutil.copyfile(source, target)
        return self.files

    def remove(self) -> None:
        """Remove the folder; the checkpoint has the files."""
        shutil.rmtree(self.folder, ignore_errors=True)


def save_checkpoint(
    folder: Path,
    step: int,
    weights: Mapping[str, torch.Tensor],
    optimizer: Mapping[str, torch.Tensor],
    state: Mapping[str, Any],
    not_finite: str | None = None,
    shards: StagedShards | None = None,
) -> Path:
    """Write `folder/step-N`.

    Args:
        folder: The checkpoints folder of a run; made if it does not exist.
        step: Updates applied so far.
        weights: Parameters and buffers by name.
        optimizer: Tensors of the optimizer's state by name.
        state: Everything else, as plain JSON values.
        not_finite: Name of a parameter with a NaN or an infinity; None if all are finite. No run resumes from such a
            checkpoint.
        shards: What all ranks have written of sharded tensors; stays where it is.

    Returns:
        The checkpoint's folder.

    Raises:
        StorageError: it cannot be written; older checkpoints are unchanged and no partial one is left.
    """
    target, beside = folder / f"step-{step}", folder / f".step-{step}.{os.getpid()}.part"
    aside = folder / f".step-{step}.old"
    try:
        if strange := _foreign_file(target):
            raise StorageError(f"{target} holds '{strange}', which no run has written: move the folder elsewhere")
        _remove_tree(beside)
        folder.mkdir(exist_ok=True)
        beside.mkdir()
        (beside / "training").mkdir()
        facts = {
            _WEIGHTS: write_tensors(beside / _WEIGHTS, {escape(name): tensor for name, tensor in weights.items()}),
            _OPTIMIZER: write_tensors(beside / _OPTIMIZER, optimizer),
            _STATE: _write_json(beside / _STATE, {"step": step, **state}),
        }
        if shards:
            facts |= shards.copy_to(beside)
        _write_json(beside / _MANIFEST, _sealed(facts, not_finite))
        for path in (beside / "training", *([beside / "shards"] if shards else []), beside):
            _flush(path)
        if target.exists():  # the same step, written before; kept until the new one has replaced it
            _remove_tree(aside)
            target.replace(aside)
        beside.replace(target)
        _flush(folder)
        _remove_tree(aside)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        with contextlib.suppress(OSError):  # of a disk that turned read-only; the next process puts it back
            if aside.exists() and not target.exists():
                aside.replace(target)
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"cannot write checkpoint {target}: {error.strerror or error}") from error
    return target


def _write_json(path: Path, value: Mapping[str, Any]) -> dict[str, Any]:
    """Write a JSON file; returns its entry for the manifest."""
    data = (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
    write_beside(path, data)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _sealed(files: Mapping[str, Any], not_finite: str | None) -> dict[str, Any]:
    """A manifest, with a checksum of itself."""
    manifest = {"format_version": FORMAT_VERSION, "descend": __version__, "files": files, "not_finite": not_finite}
    return {**manifest, "sha256": _seal(manifest)}


def _seal(manifest: Mapping[str, Any]) -> str:
    content = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _foreign_file(checkpoint: Path) -> str | None:
    """Name of a file in a checkpoint's folder that is not part of a checkpoint, or of what is no folder; or None."""
    if checkpoint.is_symlink() or (checkpoint.exists() and not checkpoint.is_dir()):
        return checkpoint.name
    expected = {*_FILES, _MANIFEST, "training"}
    names = sorted(str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*"))
    return next((name for name in names if name not in expected and not _is_of_shards(name)), None)


def _is_of_shards(name: str) -> bool:
    return name == "shards" or bool(_SHARD.fullmatch(name))


def _remove_tree(folder: Path) -> None:
    """Remove what is there; a pipe would be waited for by `shutil.rmtree`, which opens it."""
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)
    else:
        folder.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Flush a folder's entries to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(checkpoint: Path) -> str | None:
    """Remove a checkpoint atomically, by renaming it first; returns why it could not be, None where it is gone."""
    if not checkpoint.is_dir() or _foreign_file(checkpoint):
        return "it holds files that this run has not written"
    gone = checkpoint.with_name(f".{checkpoint.name}.gone")
    try:
        _remove_tree(gone)
        checkpoint.replace(gone)
        shutil.rmtree(gone)
    except OSError as error:
        return f"it cannot be removed: {error.strerror or error}"
    return None


def remove_leftovers(folder: Path) -> list[str]:
    """Remove what a process that was killed during a save has left in a checkpoints folder; returns the names.

    Only for the process that owns the run directory; otherwise such a file may belong to a save in progress.
    """
    for aside in folder.glob(".step-*.old"):  # killed while it replaced a checkpoint of the same step
        name = aside.name.removeprefix(".").removesuffix(".old")
        with contextlib.suppress(OSError):
            if (folder / name).exists():
                _remove_tree(aside)
            else:
                aside.replace(folder / name)
    left = [path for path in folder.glob(".step-*") if _LEFTOVER.fullmatch(path.name) and not path.is_symlink()]
    for path in left:
        with contextlib.suppress(OSError):
            _remove_tree(path)
    return sorted(path.name for path in left)


def verify(checkpoint: Path, but: Collection[str] = ()) -> None:
    """Compare every file with the manifest.

    Args:
        checkpoint: Its folder.
        but: Names of files that others have just compared; of these the size alone.

    Raises:
        StorageError: a file is missing, or its size or content differs; the message names all such files and the
            damaged tensors.
    """
    manifest = _manifest(checkpoint)
    files: Mapping[str, Any] = manifest["files"]
    problems: list[str] = []
    for name in sorted({*_FILES, *files}):
        if name not in files or not (name in _FILES or _SHARD.fullmatch(name)):
            what = "does not list" if name in _FILES else "lists"
            problems.append(f"{checkpoint / _MANIFEST} {what} '{name}', so descend has not written it")
        else:
            problems += file_problems(checkpoint, name, files[name], content=name not in but)
    if not problems and manifest["not_finite"]:
        problems.append(f"{checkpoint} holds weights that are not finite ('{manifest['not_finite']}')")
    if problems:
        raise StorageError([*problems[:4], f"checkpoint {checkpoint} cannot be used; use an older one"])


def _manifest(checkpoint: Path) -> dict[str, Any]:
    """The manifest, after a check of its form and of its own checksum."""
    path = checkpoint / _MANIFEST
    try:
        manifest = cast("dict[str, Any]", _read_json(path, checkpoint))
        files = cast("dict[str, Any]", manifest["files"])
        sound = manifest["sha256"] == _seal(manifest)
        newer = manifest["format_version"] > FORMAT_VERSION
        good = all(isinstance(facts["bytes"], int) and isinstance(facts["sha256"], str) for facts in files.values())
        if not good or "not_finite" not in manifest:
            raise ValueError("it lists no sizes and checksums")
    except DAMAGED_FILE as error:
        raise StorageError(f"{checkpoint} has no readable manifest.json, so it cannot be trusted: {error}") from error
    text = (
        f"{checkpoint} was written by descend {manifest.get('descend')} in format {manifest['format_version']}, "
        f"and this is descend {__version__}, which reads up to format {FORMAT_VERSION}: install a newer descend"
    )
    if newer and sound:
        raise _Newer(text)
    if not sound:
        also = f" (or: {text})" if newer else ""
        raise StorageError(f"{path} does not have the content that was written: its own SHA-256 differs{also}")
    return manifest


class _Newer(StorageError):
    """A checkpoint of a newer version: an error, since an older checkpoint in its place would lose progress."""


def _read_json(path: Path, inside: Path) -> Any:
    _require_inside(path, inside)
    if regular_file(path).stat().st_size > _LARGEST_JSON:
        raise StorageError(f"{path} has {path.stat().st_size:,} bytes, more than descend writes")
    return json.loads(path.read_text(encoding="utf-8"))


def _require_inside(path: Path, folder: Path) -> None:
    """Refuse a link out of the folder.

    Raises:
        StorageError: the path leads out of the folder.
    """
    # `Path.resolve` raises a RuntimeError where links lead in a circle.
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise StorageError(f"{path} is a link out of the checkpoint; nothing outside it is opened")


def file_problems(checkpoint: Path, name: str, facts: Mapping[str, Any], content: bool = True) -> list[str]:
    """What is wrong with a file of a checkpoint; its content is read only where that is asked for."""
    path = checkpoint / name
    try:
        _require_inside(path, checkpoint)
        if not path.is_file():
            return [f"{path} is missing"]
        if (size := path.stat().st_size) != facts["bytes"]:
            return [f"{path} has {size:,} bytes where {facts['bytes']:,} were written"]
        if not content:
            return []
        if _digest(path) != facts["sha256"]:
            return [f"{path} does not have the content that was written: its SHA-256 differs{_where(path, facts)}"]
        if name == _STATE:
            _read_json(path, checkpoint)
        else:
            check_layout(path)
    except StorageError as error:
        return list(error.problems)
    except DAMAGED_FILE as error:
        return [f"{path} cannot be read: {error}"]
    return []


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _where(path: Path, facts: Mapping[str, Any]) -> str:
    """A description of the damaged tensors of a damaged file."""
    if "tensors" not in facts:
        return ""
    names = damaged_tensors(path, facts["tensors"])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f", in {', '.join(f'{name!r}' for name in names[:3])}{more}" if names else ", in the header"


def read_weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a checkpoint by name; verifies it first.

    Raises:
        StorageError: the checkpoint is damaged.
    """
    verify(checkpoint)
    weights = weights_of(checkpoint)
    return {unescape(name): weights.read(name) for name in weights}


def weights_of(checkpoint: Path) -> TensorFiles:
    """The parameters and buffers of a checkpoint by escaped name, to be read whole or in part. Call `verify` first.

    Raises:
        StorageError: it cannot be read.
    """
    return _tensor_files(checkpoint, _WEIGHTS, "weights")


def optimizer_tensors_of(checkpoint: Path) -> TensorFiles:
    """The tensors of a checkpoint's state, to be read whole or in part. Call `verify` first.

    Raises:
        StorageError: it cannot be read.
    """
    return _tensor_files(checkpoint, _OPTIMIZER, "optimizer")


def _tensor_files(checkpoint: Path, whole: str, kind: str) -> TensorFiles:
    files: Mapping[str, Any] = _manifest(checkpoint)["files"]
    sharded = [name for name in sorted(files) if (found := _SHARD.fullmatch(name)) and found[1] == kind]
    return TensorFiles({checkpoint / whole: None, **{checkpoint / n: files[n].get("shards", {}) for n in sharded}})


def read_state(checkpoint: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The rest of a checkpoint: the optimizer's tensors by name, and plain values. Call `verify` first.

    Raises:
        StorageError: a newer version of this package wrote it, or it cannot be read.
    """
    plain, tensors = read_plain_state(checkpoint), optimizer_tensors_of(checkpoint)
    return {name: tensors.read(name) for name in tensors}, plain


def read_plain_state(checkpoint: Path) -> dict[str, Any]:
    """The plain values of a checkpoint's state alone. Call `verify` first.

    Raises:
        StorageError: a newer version of this package wrote it, or it cannot be read.
    """
    _manifest(checkpoint)
    try:
        found = _read_json(checkpoint / _STATE, checkpoint)
    except DAMAGED_FILE as error:
        raise StorageError(f"{checkpoint / _STATE} cannot be read: {error}") from error
    plain = cast("dict[str, Any]", found if isinstance(found, dict) else {})
    step = plain.get("step")
    if type(step) is not int or step < 0:
        raise StorageError(f"{checkpoint / _STATE} is damaged: step must be an integer >= 0, got {step!r:.40}")
    return plain


def good_checkpoints(folder: Path) -> list[Path]:
    """All valid checkpoints in a folder, the newest first."""
    found = sorted((path for path in folder.glob("step-*") if _step_of(path) >= 0), key=_step_of, reverse=True)
    return [checkpoint for checkpoint in found if _is_good(checkpoint, folder)]


def _is_good(checkpoint: Path, folder: Path) -> bool:
    try:
        _require_inside(checkpoint, folder)
        verify(checkpoint)
    except StorageError:
        return False
    return True


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest valid checkpoint in a folder; None if the folder has no checkpoints.

    Warns:
        UserWarning: for each newer checkpoint that is damaged, with what is wrong.

    Raises:
        StorageError: there are checkpoints and all are damaged, or one is of a newer version.
    """
    found = sorted((path for path in folder.glob("step-*") if _step_of(path) >= 0), key=_step_of, reverse=True)
    problems: list[str] = []
    for checkpoint in found:
        try:
            _require_inside(checkpoint, folder)
            verify(checkpoint)
        except _Newer:
            raise
        except StorageError as error:
            problems.append(error.problems[0])
            warn(f"{error.problems[0]}; trying the checkpoint before it")
        else:
            return checkpoint
    if problems:
        raise StorageError([*problems[:5], f"no checkpoint in {folder} can be used; start over in another directory"])
    return None


def _step_of(checkpoint: Path) -> int:
    """The step of a checkpoint's folder; -1 for other names."""
    found = re.fullmatch(r"step-(\d+)", checkpoint.name)
    return int(found.group(1)) if found else -1
