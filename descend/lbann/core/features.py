"""What this build has, under LBANN's names for the parts of a build, and the driver's command."""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

__all__ = ["get_features", "has_feature", "lbann_exe"]

# Parts of LBANN's build whose work is done here by torch or NumPy, on any device: array files, reductions over some
# dimensions, Fourier transforms, permuted tensors, GRU layers on a CPU; and runs repeat to the last bit.
_ALWAYS = ("CNPY", "CUTENSOR", "DETERMINISTIC", "FFTW", "ONEDNN_CPU", "TENSOR_PERMUTE")
_LIBRARIES = {"ONNX": "onnx", "OPENCV": "PIL"}  # images are decoded by Pillow
_OF_A_GPU = ("CUDA", "CUDNN", "GPU", "HALF")


def lbann_exe() -> str:
    """The command that starts the driver, as a shell takes it.

    It is the path of the program `descend-lbann` beside this Python, so that it can also be the first word of a list of
    arguments; where that is not installed, this Python with the driver's module.
    """
    program = Path(sys.executable).with_name("descend-lbann")
    if program.is_file():
        return shlex.quote(str(program))
    return f"{shlex.quote(sys.executable)} -m descend.lbann.driver"


def get_features() -> list[str]:
    """The parts of LBANN's build that are here. Asking about GPUs imports torch."""
    import torch

    libraries = [name for name, library in _LIBRARIES.items() if find_spec(library) is not None]
    return sorted([*_ALWAYS, *libraries, *(_OF_A_GPU if torch.cuda.is_available() else ())])


def has_feature(name: str) -> bool:
    """Whether a part of LBANN's build is here; upper and lower case are the same.

    What is divided over processes by other means (DISTCONV, NVSHMEM) is not, and no library is that only LBANN calls
    (MIOPEN, CALIPER).
    """
    asked = name.upper()
    if asked in _OF_A_GPU:
        return asked in get_features()
    return asked in _ALWAYS or (asked in _LIBRARIES and find_spec(_LIBRARIES[asked]) is not None)
