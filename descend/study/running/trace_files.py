"""Traces of stacks in the user's cache, beside the compiled kernels: the next process with the same modules need not
trace. Only files that no other user can write are loaded.

A file's name is a hash of what the operations depend on: the forms of tensors, versions, our sources, and the source
files, classes and plain attributes of the user's modules, loss and metrics. What a hash cannot see (a number in a file
that those import) shows when a loaded trace is run beside the function before it is used: see `agrees`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import types
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from descend.files.private_folder import PrivateFolder, cache_root

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

__all__ = ["agrees", "identity", "load", "path_of", "save"]

_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, type(None))
_DEEPEST = 8
_MOST = 2000  # objects that are looked at
_TOLERANCE = 1e-4  # of the largest element; fused operations round once where others round twice


class _Unknown(Exception):
    """Something whose code is in no file."""


def identity(*objects: Any) -> str | None:
    """A hash of the code and plain attributes of modules and functions, without values of tensors.

    Returns:
        None where some code is in no file, as in a notebook.
    """
    digest, seen = hashlib.sha256(_ours().encode()), dict[int, tuple[int, Any]]()
    try:
        for one in objects:
            _walk(one, digest.update, seen, 0)
    except (_Unknown, OSError):
        return None
    return digest.hexdigest()


def path_of(whose: str | None, form: Sequence[Any]) -> Path | None:
    """The file of a trace of some form of a code's `identity`; None without one."""
    if whose is None:
        return None
    try:
        folder = cache_root() / "traces"
    except OSError:  # a user without a home
        return None
    return folder / f"{hashlib.sha256(repr((whose, form)).encode()).hexdigest()}.pt"


def save(script: Any, path: Path) -> None:
    """Keep a traced function; where that fails, the next process traces again."""
    try:
        with warnings.catch_warnings(), contextlib.closing(PrivateFolder(path.parent)) as folder:
            warnings.simplefilter("ignore")  # that TorchScript is no longer worked on
            content = io.BytesIO()
            torch.jit.save(script, content)
            folder.write(path.name, content.getvalue())
    except (OSError, RuntimeError):  # a full disk, a folder of others, or operations that cannot be written
        return


def load(path: Path) -> Any:
    """The function in a file that this user wrote; None where there is none, or a damaged one."""
    try:
        with warnings.catch_warnings(), contextlib.closing(PrivateFolder(path.parent, make=False)) as folder:
            warnings.simplefilter("ignore")
            content = folder.read(path.name)
            return None if content is None else torch.jit.load(io.BytesIO(content))
    except (OSError, RuntimeError, ValueError):
        return None


def agrees(found: Callable[..., Any], function: Callable[..., list[Tensor]], example: Sequence[Tensor]) -> bool:
    """Whether a loaded trace computes what the function does, up to rounding, of one example that is left alone."""

    def copies() -> list[Tensor]:
        return [x.detach().clone() for x in example]

    try:
        with torch.no_grad():
            ours, theirs = found(*copies()), function(*copies())
    except Exception:  # a file of other operations fails in many ways
        return False
    return len(ours) == len(theirs) and all(_close(x, y) for x, y in zip(ours, theirs, strict=True))


def _close(x: Tensor, y: Tensor) -> bool:
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    if not x.is_floating_point():
        return bool(torch.equal(x, y))
    finite = y.isfinite()
    if not torch.equal(x.isfinite(), finite):
        return False
    if not finite.all():  # to pick elements takes long
        x, y = x[finite], y[finite]
    return not y.numel() or bool((x - y).abs().max() <= _TOLERANCE * y.abs().max() + 1e-12)


@functools.cache
def _ours() -> str:
    """A hash of the sources of descend and of what else decides about operations."""
    root = Path(__file__).parents[2]
    parts = [root / "optim", root / "study" / "running", root / "experiment", root / "train" / "patches"]
    digest = hashlib.sha256(f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()}".encode())
    for file in sorted(file for part in parts for file in part.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


@functools.cache
def _file(path: str, changed_ns: int) -> bytes:
    return hashlib.sha256(Path(path).read_bytes()).digest()


def _source(path: str | None, say: Callable[[bytes], None]) -> None:
    if not path or not Path(path).is_file():
        raise _Unknown
    if not Path(path).is_relative_to(Path(torch.__file__).parent):  # whose version is in the hash
        say(_file(path, Path(path).stat().st_mtime_ns))


def _of_class(kind: type, say: Callable[[bytes], None]) -> None:
    say(f"{kind.__module__}.{kind.__qualname__}".encode())
    for base in kind.__mro__:
        if base.__module__ not in ("builtins", "typing", "abc", "enum", "dataclasses", "collections", "functools"):
            methods = [x for x in vars(base).values() if isinstance(x, types.FunctionType)]
            names = {x.__code__.co_filename for x in methods if not _is_generated(x)}
            for name in sorted(names):
                _source(name, say)


def _is_generated(method: types.FunctionType) -> bool:
    """Whether `dataclass`, `NamedTuple` and the like made it from the fields of its class."""
    return method.__code__.co_filename.startswith("<") and method.__name__.startswith("__")


def _walk(one: Any, say: Callable[[bytes], None], seen: dict[int, tuple[int, Any]], depth: int) -> None:
    """Feed what decides about the operations of an object to a hash."""
    if isinstance(one, _PLAIN):
        return say(f"{type(one).__name__} {one!r}".encode())
    if id(one) in seen:
        return say(f"again {seen[id(one)][0]}".encode())
    seen[id(one)] = (len(seen), one)  # which keeps it, so that no other object gets its id
    if depth > _DEEPEST or len(seen) > _MOST:
        raise _Unknown
    if isinstance(one, torch.Tensor):
        return say(f"tensor {tuple(one.shape)} {one.dtype} {one.requires_grad}".encode())
    if isinstance(one, type):
        return _of_class(one, say)
    if isinstance(one, types.FunctionType):
        say(one.__qualname__.encode())
        _source(one.__code__.co_filename, say)
        say(one.__code__.co_code)
        parts: list[Any] = [one.__defaults__, one.__kwdefaults__, *(_cell(x) for x in one.__closure__ or ())]
    elif isinstance(one, types.MethodType):
        parts = [one.__func__, one.__self__]
    elif isinstance(one, (types.BuiltinFunctionType, types.ModuleType)):
        return say(one.__name__.encode())
    elif isinstance(one, (tuple, list)):
        say(f"{len(cast('list[Any]', one))}".encode())
        parts = list(cast("list[Any]", one))
    elif isinstance(one, (set, frozenset)):
        parts = sorted(cast("set[Any]", one), key=repr)
    elif isinstance(one, dict):
        parts = [x for pair in cast("dict[Any, Any]", one).items() for x in pair]
    else:
        _of_class(type(one), say)
        parts = [_attributes(one)]
    for part in parts:
        _walk(part, say, seen, depth + 1)
    return None


def _cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _attributes(one: Any) -> dict[str, Any]:
    """Instance attributes by name."""
    found = dict(getattr(one, "__dict__", {}))
    if isinstance(one, functools.partial):
        return {"func": one.func, "args": one.args, "keywords": one.keywords}
    if isinstance(one, nn.Module):
        found.pop("training", None)  # a step and its scores set it
        return found
    for name in (name for base in type(one).__mro__ for name in getattr(base, "__slots__", ())):
        found[name] = getattr(one, name, None)
    return found
