"""Jobs of CPU kernels, and the struct that they are called with."""

import ctypes
from pathlib import Path

import pytest
import torch
from optimizer_inputs import group_settings
from system_needs import needs_compiler

from descend.optim.compiler import native
from descend.optim.compiler.native import FLAGS, CpuCompileJob, KernelLaunch
from descend.optim.compiler.trace import trace
from descend.optim.rules import SGD


def structure():
    return trace(group_settings(SGD(), lr=1.0), False).structure


def test_equal_jobs_have_equal_keys():
    one, other = CpuCompileJob(structure(), "float32", None), CpuCompileJob(structure(), "float32", None)
    assert one == other
    assert one.key == other.key
    assert one.file == f"{one.key}.so"


def test_precision_flags_and_vectors_are_part_of_the_key(monkeypatch):
    plain = CpuCompileJob(structure(), "float32", None).key
    assert CpuCompileJob(structure(), "float64", None).key != plain
    assert CpuCompileJob(structure(), "float32", "bfloat16").key != plain
    monkeypatch.setattr(native, "FLAGS", (*FLAGS, "-g"))
    assert CpuCompileJob(structure(), "float32", None).key != plain
    monkeypatch.setattr(native, "FLAGS", FLAGS)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "OTHER")
    assert CpuCompileJob(structure(), "float32", None).key != plain


def test_the_struct_has_the_fields_of_the_header():
    """All fields of eight bytes each, in the order of the same struct in kernel.h."""
    header = Path(native.__file__).with_name("kernel.h").read_text()
    struct = header.split("struct Work {")[1].split("};")[0]
    code = " ".join(line.split("//")[0] for line in struct.splitlines())
    declared = [part.split()[-1].strip("*") for line in code.split(";") if line.strip() for part in line.split(",")]
    assert [name for name, _ in KernelLaunch._fields_] == declared
    assert ctypes.sizeof(KernelLaunch) == 8 * len(declared)


@needs_compiler
def test_a_library_under_a_wrong_name_is_refused(tmp_path):
    job = CpuCompileJob(structure(), "float32", None)
    (tmp_path / "own").mkdir()
    running = job.start(tmp_path / "own" / "kernel.so")
    assert running.has_ended(wait=True)
    content = running.end()
    library = job.load(content)
    library.key.restype = ctypes.c_char_p
    assert library.key().decode() == job.key
    assert library.call0
    assert not (tmp_path / "own").exists()
    misplaced = CpuCompileJob(structure(), "float64", None)
    with pytest.raises(RuntimeError, match="holds another kernel than its name says"):
        misplaced.load(content)
