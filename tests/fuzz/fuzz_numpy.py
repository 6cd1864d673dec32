"""Mutated .npy files of first values: each is taken, or refused with an error of ours, within memory.

    python tests/fuzz/fuzz_numpy.py --count 20000 --seed 0

Arrays of any type and shape are changed in header and bytes; some files are archives, pickles, or empty.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import descend
from descend.graph import check
from tests.fuzz.harness import main
from tests.fuzz.mutations import other_bytes

if TYPE_CHECKING:
    import random

TYPES = ("f4", "f4", "f4", "f8", ">f4", "i8", "u1", "?", "c8", "S3", "U2", "M8[s]", "f2", "V4")
HEADERS = (
    b"(4, 3)",
    b"(3, 4)",
    b"(10**9, 10**9)",
    b"(99999999999, 3)",
    b"(-1, 3)",
    b"(4, 3, 1)",
    b"()",
    b"4",
    b"'a'",
    b"[[[[",
    b"(" * 300,
    b"True",
    b"1e400",
)
_FILE = Path(tempfile.mkdtemp(prefix="fuzz_numpy_")) / "w.npy"


def mutated(draw: random.Random) -> bytes:
    """A file, mostly of the right shape, mostly with a mutation."""
    shape = draw.choice(((4, 3), (4, 3), (4, 3), (3, 4), (12,), (0, 3), ()))
    array: Any = np.zeros(shape, draw.choice(TYPES))
    if array.dtype.kind == "f" and array.size and draw.random() < 0.2:
        array.reshape(-1)[0] = draw.choice((np.nan, np.inf, 1e30))
    stream = io.BytesIO()
    match draw.randrange(12):
        case 0:
            np.savez(stream, w=array)
        case 1:
            np.save(stream, np.array([{}], object), allow_pickle=True)
        case 2:
            return b""
        case _:
            np.save(stream, np.asfortranarray(array) if draw.random() < 0.3 else array)
    content = stream.getvalue()
    if draw.random() < 0.3:
        content = content.replace(str(shape).encode(), draw.choice(HEADERS), 1)
    return other_bytes(content, draw) if draw.random() < 0.5 else content


def attempt(draw: random.Random) -> None:
    """Check a model whose weights start from the file, and build it."""
    _FILE.write_bytes(mutated(draw))
    weights = descend.Weights(descend.NumpyInitializer(file=str(_FILE)), name="w")
    x = descend.Input(data_field="x", name="x")
    y = descend.FullyConnected(x, num_neurons=4, weights=[weights], name="y")
    model = descend.Model(0, layers=[y])
    check(model, {"x": (3,)})
    model.to_torch(fields={"x": (3,)}, outputs=["y"])


if __name__ == "__main__":
    main(attempt, __doc__ or "")
