"""Random settings: recorders run the other libraries with random ones, and ours must follow every step.

What is recorded is judged by test_trajectories.py itself, in a process of its own, as any other folder would be.
torch.optim is at hand always. The rest want an interpreter with the library in it, named by a variable:

    DESCEND_MXNET19              MXNet 1.9.1: Python 3.8, numpy<1.24
    DESCEND_MXNET20              MXNet 2.0.0b1: Python 3.8, numpy<1.24
    DESCEND_OPTAX      optax, with jax on the CPU
    DESCEND_PYTORCH_OPTIMIZER    pytorch_optimizer 4.1
    DESCEND_RECORDER_SEED        another seed than 0
    DESCEND_RECORDER_CASES       another number of cases than 60
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from system_needs import require

HERE = Path(__file__).resolve().parent
TRAJECTORIES = HERE.parent / "optim" / "test_trajectories.py"
RECORDERS = {
    "torch": (None, "torch_cases.py", ()),
    "lbann": (None, "lbann_cases.py", ()),
    "mxnet-1.9": ("DESCEND_MXNET19", "mxnet_cases.py", ()),
    "mxnet-2.0": ("DESCEND_MXNET20", "mxnet_cases.py", ()),
    "optax": ("DESCEND_OPTAX", "optax_cases.py", ()),
    "pytorch_optimizer": ("DESCEND_PYTORCH_OPTIMIZER", "torch_cases.py", ("pytorch_optimizer",)),
}


@pytest.mark.slow
@pytest.mark.parametrize("library", RECORDERS)
def test_random_settings_follow_the_library(library: str, tmp_path: Path) -> None:
    variable, script, more = RECORDERS[library]
    python = sys.executable if variable is None else os.environ.get(variable)
    require(library, python is not None, f"set {variable} to a Python that has it")
    assert python is not None
    seed, cases = (
        os.environ.get(f"DESCEND_RECORDER_{word}", given) for word, given in (("SEED", "0"), ("CASES", "60"))
    )
    subprocess.run(
        [python, "-W", "ignore", HERE / "recorders" / script, tmp_path, seed, cases, *more],
        check=True,
        capture_output=True,
    )
    judged = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", TRAJECTORIES],
        env={**os.environ, "DESCEND_TRAJECTORIES": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert judged.returncode == 0, judged.stdout[-6000:]
