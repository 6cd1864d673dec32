"""Newer optimizers, step by step, against what their authors' code computed.

The folder of `DESCEND_MODERN_TRAJECTORIES` holds `index.json` and `trajectories.npz`; without it, and without the
default folder beside the repository, these tests are skipped. A case that `from_library` refuses by name is skipped
with that reason.
"""

from __future__ import annotations

import copy
import functools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from system_needs import recorded as recorded_cases
from system_needs import require

from descend.compat import LIBRARIES, from_library
from descend.errors import Unsupported

HERE = Path(__file__).resolve()
DEFAULT = HERE.parents[2].parent / "shared/data/modern_optimizers"
FOLDER = Path(os.environ.get("DESCEND_MODERN_TRAJECTORIES", DEFAULT))
INDEX: dict[str, Any] = (
    json.loads((FOLDER / "index.json").read_text()) if (FOLDER / "index.json").is_file() else {"cases": []}
)
AVERAGED = ("Averaged", "GPA", "PolyakAveraged", "ShampooAveraged")


@functools.cache
def recorded() -> Any:
    return np.load(FOLDER / "trajectories.npz")


def arguments(case: dict[str, Any]) -> dict[str, Any]:
    """The options of a case; infinity is a text there."""
    return {key: float("inf") if value == "inf" else value for key, value in case["kwargs"].items()}


def parameters(case: dict[str, Any], params: list[torch.nn.Parameter]) -> Any:
    """The tensors, or groups of them with options of their own."""
    groups = case.get("groups")
    if not groups:
        return params
    return [
        {**{key: value for key, value in group.items() if key != "of"}, "params": [params[i] for i in group["of"]]}
        for group in groups
    ]


def averages(optimizer: Any, params: list[torch.nn.Parameter]) -> list[np.ndarray]:
    """The weights that are evaluated, of a copy."""
    optimizer.eval()
    found = [p.detach().clone().numpy() for p in params]
    optimizer.train()
    return found


@pytest.mark.parametrize("case", recorded_cases(INDEX["cases"], FOLDER, "DESCEND_MODERN_TRAJECTORIES"))
def test_every_step_is_the_authors(case: dict[str, Any]):
    require(f"{case['source']} among the libraries of from_library", case["source"] in LIBRARIES)
    arrays, dtype = case["arrays"], getattr(torch, case["dtype"])
    params = [torch.nn.Parameter(torch.tensor(recorded()[key]).to(dtype)) for key in arrays.get("start", arrays["w0"])]
    grads, wanted = ([recorded()[key] for key in arrays[name]] for name in ("grads", "w"))
    try:
        optimizer = from_library(case["source"], case["optimizer"], parameters(case, params), **arguments(case))
    except Unsupported as refused:
        require("a setting that is not refused", False, str(refused))
    close = functools.partial(np.testing.assert_allclose, **case["tol"])
    for t in range(case["n_steps"]):
        if "lr_at" in case:
            for group in optimizer.param_groups:
                group["lr"] = case["lr_at"][t]
        for p, g in zip(params, grads, strict=True):
            p.grad = torch.tensor(g[t]).to(dtype)
        optimizer.step()
        for p, w in zip(params, wanted, strict=True):
            close(p.detach().numpy(), w[t], err_msg=f"step {t + 1}")
        if case["step_kind"] in AVERAGED:
            twin, twins = copied(optimizer, params)
            for mean, key in zip(averages(twin, twins), arrays["x"], strict=True):
                close(mean, recorded()[key][t], err_msg=f"average after step {t + 1}")


def copied(optimizer: Any, params: list[torch.nn.Parameter]) -> tuple[Any, list[torch.nn.Parameter]]:
    """A copy of an optimizer with its tensors, which may change its mode without effect on the original."""
    return copy.deepcopy((optimizer, params))
