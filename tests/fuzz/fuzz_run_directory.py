"""Damaged run directories: each is resumed, read, or refused with an error of ours, in seconds and within memory.

    python tests/fuzz/fuzz_run_directory.py --count 20000 --seed 0

Of a small run that was saved twice, one to three files are changed: run.json, metrics.jsonl, checkpoints.json, log.txt,
and in each checkpoint manifest.json, state.json and the safetensors files. Files of a checkpoint are changed with and
without new checksums, since who can write the one can write the other. Then the run is resumed, or its weights are
loaded, or its checkpoints are listed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import shutil
import struct
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

import descend
from descend.runtime import checkpoint as format_of
from descend.runtime import good_checkpoints, newest_checkpoint
from tests.fuzz.harness import main
from tests.fuzz.mutations import mutate_file, other_bytes, other_json, other_json_text

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

X = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
DATA = (X, X.sum(1, keepdim=True))


def _module() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))


def _fit(run_dir: Path, epochs: int, **more: Any) -> Any:
    module = _module()
    options = {"optimizer": functools.partial(descend.optim.Adam, lr=0.01), "batch_size": 4, "seed": 0}
    saving = [descend.Checkpoint(every_epochs=1)]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        stop = descend.Epochs(epochs)
        return descend.fit(module, "mse", DATA, stop=stop, run_dir=run_dir, callbacks=saving, **options, **more)


MEMORY = Path("/dev/shm")  # files are synced at each save, which a disk answers 50 times as slowly
FOLDER = Path(tempfile.mkdtemp(prefix="fuzz_run_directory_", dir=MEMORY if MEMORY.is_dir() else None))
BASE = FOLDER / "base"


def _base() -> Path:
    if not BASE.exists():
        _fit(BASE, 2)
    return BASE


def _reseal(checkpoint: Path) -> None:
    """Checksums that fit what is there."""
    path = checkpoint / "manifest.json"
    try:
        manifest = json.loads(path.read_bytes())
        for name, facts in manifest["files"].items():
            content = (checkpoint / name).read_bytes()
            facts["bytes"], facts["sha256"] = len(content), hashlib.sha256(content).hexdigest()
        manifest["sha256"] = format_of._seal(manifest)
        path.write_text(json.dumps(manifest))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return  # a mutation of the manifest itself


def _safetensors(content: bytes, draw: random.Random) -> bytes:
    """Another header, or other bytes."""
    if draw.random() < 0.4 or len(content) < 8:
        return other_bytes(content, draw)
    (size,) = struct.unpack("<Q", content[:8])
    try:
        header = json.dumps(other_json(json.loads(content[8 : 8 + size]), draw)).encode()
    except ValueError:  # an earlier mutation
        return other_bytes(content, draw)
    length = draw.choice((len(header),) * 8 + (0, 2**63, len(header) + 1))
    return struct.pack("<Q", length) + header + content[8 + size :]


def _lines(content: bytes, draw: random.Random) -> bytes:
    lines = content.decode().splitlines() or ["{}"]
    place = draw.randrange(len(lines))
    changed = other_json_text(lines[place], draw) if draw.random() < 0.8 else lines[place].encode() * 2
    return b"\n".join(
        [*(one.encode() for one in lines[:place]), changed, *(one.encode() for one in lines[place + 1 :])]
    )


def _resumed(run_dir: Path) -> None:
    _fit(run_dir, 3, resume=True)


def _loaded(which: Any) -> Callable[[Path], object]:
    return lambda run_dir: descend.load_weights(_module(), run_dir, which=which)


def _listed(run_dir: Path) -> None:
    good_checkpoints(run_dir / "checkpoints")
    newest_checkpoint(run_dir / "checkpoints")


USES: tuple[Callable[[Path], object], ...] = (
    *(_resumed,) * 4,
    _loaded("best"),
    _loaded("last"),
    _loaded(2),
    _listed,
)


def attempt(draw: random.Random) -> None:
    """Damage a copy of the run directory, and use it."""
    run_dir = FOLDER / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    shutil.copytree(_base(), run_dir)
    files = sorted(path for path in run_dir.rglob("*") if path.is_file() and path.suffix != ".lock")
    touched = draw.sample(files, draw.choice((1, 1, 1, 2, 3)))
    for path in touched:
        mutate_file(path, draw, {".jsonl": _lines, ".safetensors": _safetensors})
    if draw.random() < 0.8:
        for checkpoint in (run_dir / "checkpoints").glob("step-*"):
            _reseal(checkpoint)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draw.choice(USES)(run_dir)


if __name__ == "__main__":
    _base()
    main(attempt, __doc__ or "")
