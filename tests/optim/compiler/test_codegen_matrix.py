"""The C++ of texts with means over rows and columns. What it computes is in engine/test_matrices.py."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from descend.optim.compiler.codegen_matrix import emit_matrices
from descend.optim.compiler.trace import Trace, from_structure, trace_matrices
from descend.optim.rules import Adafactor


def text(dims: int = 2, low: bool = False) -> Trace:
    options = {"lr": 0.1, "decay": 0.0, "decay_form": "coupled", "rescale": 1.0, "clip": None, "scaled": True}
    return trace_matrices(SimpleNamespace(rule=Adafactor(), **options), torch.float32, low, dims)


def test_a_structure_is_read_back() -> None:
    made = text(low=True)
    assert from_structure(made.structure).structure == made.structure
    assert "Tensors" in emit_matrices(made, "float32", "bfloat16")


@pytest.mark.parametrize(("dims", "wanted"), [(1, ["tiled"]), (2, ["tiled", "packed"]), (3, ["tiled", "packed"])])
def test_matrices_are_taken_by_tiles_or_by_packs_and_vectors_by_tiles(dims: int, wanted: list[str]) -> None:
    source = emit_matrices(text(dims), "float32", None)
    heads = [line for line in source.splitlines() if line.endswith("int64_t t, const Team& team, char* memory) {")]
    heads = [head for head in heads if "tensor(" not in head]
    assert [head.split("(")[0].split()[-1] for head in heads] == wanted
