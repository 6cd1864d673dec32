"""Safetensors, written by the library."""

import json

import numpy as np
import pytest
import torch
from data.files import refusal, same
from safetensors.torch import save_file

from descend.data import read
from descend.errors import ConfigurationError

RNG = np.random.default_rng(0)
TYPES = ("float64", "float32", "float16", "complex64", "bool", "int8", "int16", "int32", "int64", "uint8")
TYPES += ("uint16", "uint32", "uint64")


def test_tensors_of_every_type(tmp_path):
    tensors = {name: torch.from_numpy(RNG.integers(0, 2, (7, 2)).astype(name)) for name in TYPES}
    half = torch.from_numpy(RNG.normal(size=(7, 2))).bfloat16()
    save_file({**tensors, "half": half}, tmp_path / "a.safetensors", {"made": "here"})
    reader = read(tmp_path / "a.safetensors")
    assert set(reader.fields) == {*TYPES, "half"}
    found = {name: half.float().numpy() if name == "half" else tensors[name].numpy() for name in reader.fields}
    same(reader, found)
    same(read(tmp_path / "a.safetensors", key=["int16"]), {"int16": found["int16"]})
    with pytest.raises(ConfigurationError, match="no tensor 'int1'; did you mean 'int16'"):
        read(tmp_path / "a.safetensors", key="int1")


def test_several_files(tmp_path):
    x = RNG.normal(size=(9, 3)).astype(np.float32)
    for part, rows in ((0, slice(0, 4)), (1, slice(4, 9))):
        save_file({"x": torch.from_numpy(x[rows].copy())}, tmp_path / f"{part}.safetensors")
    same(read(tmp_path), {"x": x})


def test_damaged_files(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({"x": torch.zeros(9, 3), "y": torch.zeros(5)}, path)
    assert "all arrays must have one entry for each sample, got lengths {'x': 9, 'y': 5}" in refusal(path)
    content = path.read_bytes()
    path.write_bytes(content[:-8])
    assert "is truncated or damaged" in refusal(path)
    path.write_bytes(content[:30])
    assert "is not a safetensors file, or was cut off: it promises a header of" in refusal(path)
    for header, words in (
        (b'{"x": 3}', "expected dtype, shape and data_offsets"),
        (b'{"x": ', "its header is no JSON"),
        (json.dumps({"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}).encode(), "expected dtype, shape"),
        (json.dumps({"x": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}).encode(), "holds a single value"),
        (json.dumps({f"x{i}": 1 for i in range(2000)}).encode(), "2,000 tensors; at most 1,024"),
    ):
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
        assert words in refusal(path)
