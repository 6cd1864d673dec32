"""NVRTC compiles what `codegen_cuda` writes, without a GPU, and its refusals can be read."""

from __future__ import annotations

import locale
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from optimizer_inputs import group_settings
from system_needs import needs

from descend.optim.compiler import nvrtc
from descend.optim.compiler.cache import script_process
from descend.optim.compiler.codegen_cuda import emit_cuda
from descend.optim.compiler.codegen_cuda_matrix import emit_cuda_matrices
from descend.optim.compiler.trace import trace, trace_matrices
from descend.optim.rules import ALL_RULES, LANS, SGLD, Adafactor, Rule


def is_here() -> bool:
    try:
        nvrtc.library()
    except nvrtc.NvrtcError:
        return False
    return True


pytestmark = needs("NVRTC", is_here(), "pip install nvidia-cuda-nvrtc-cu12")

ELF = b"\x7fELF"
TRACED = [rule for rule in ALL_RULES if not rule.whole_tensor]


def source(rule: Rule, dtype: str, low: str | None) -> str:
    return emit_cuda(trace(group_settings(rule, lr=1.0, decay=1.0), low is not None), dtype, low)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize(("rule", "low"), [(LANS(), "bfloat16"), (SGLD(), "float16")], ids=str)
def test_sources_compile(rule: Rule, low: str, architecture: str) -> None:
    assert nvrtc.compile_cuda(source(rule, "float32", low), architecture).startswith(ELF)


@pytest.mark.parametrize(
    ("architecture", "dims", "dtype", "low"),
    [("sm_80", 1, "float32", "bfloat16"), ("sm_80", 2, "float64", None), ("sm_90", 4, "float32", "float16")],
)
def test_sources_with_means_compile(architecture: str, dims: int, dtype: str, low: str | None) -> None:
    text = trace_matrices(group_settings(Adafactor(), lr=1.0, decay=1.0), getattr(torch, dtype), low is not None, dims)
    assert nvrtc.compile_cuda(emit_cuda_matrices(text, dtype, low), architecture).startswith(ELF)


@pytest.mark.slow
@pytest.mark.parametrize("rule", {source(rule, "float32", None): rule for rule in TRACED}.values(), ids=repr)
def test_sources_of_every_rule_compile(rule: Rule) -> None:
    """A source says nothing of the architecture, so pairs of architecture and precision show what the product does."""
    for architecture, dtype, low in (("sm_80", "float32", None), ("sm_90", "float32", "bfloat16")):
        assert nvrtc.compile_cuda(source(rule, dtype, low), architecture).startswith(ELF)


def test_a_source_that_is_wrong_is_refused_with_the_first_error() -> None:
    with pytest.raises(nvrtc.NvrtcError, match=r"refuses the source: .*nowhere"):
        nvrtc.compile_cuda("__device__ int x = nowhere;", "sm_80")


def test_a_device_newer_than_the_compiler_gets_text_for_the_driver() -> None:
    assert nvrtc.target((8, 0)) == "sm_80"
    newest = nvrtc.target((99, 0))
    assert newest.startswith("compute_")
    assert b".target sm_" in nvrtc.compile_cuda('extern "C" __global__ void nothing() {}', newest)
    with pytest.raises(nvrtc.NvrtcError, match="the device is sm_10"):
        nvrtc.target((1, 0))


def test_a_process_of_its_own_writes_the_file_or_says_why(tmp_path: Path) -> None:
    def compiled(source: str) -> bytes:
        (tmp_path / "own").mkdir()
        running = script_process(Path(nvrtc.__file__), ["sm_80"], source, tmp_path / "own" / "out")
        assert running.has_ended(wait=True)
        return running.end()

    assert compiled('extern "C" __global__ void f() {}').startswith(ELF)
    with pytest.raises(OSError, match="NVRTC refuses the source: "):
        compiled("wrong")


def test_that_process_does_not_import_torch() -> None:
    """It would take it longer than compiling does."""
    command = [sys.executable, "-P", "-X", "importtime", nvrtc.__file__]
    imported = subprocess.run(command, text=True, check=False, capture_output=True).stderr
    assert "ctypes" in imported
    assert "torch" not in imported
    assert "descend" not in imported.partition("Traceback")[0]


def test_a_machine_without_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_candidates", lambda: ["libnvrtc-missing.so"])
    with pytest.raises(nvrtc.NvrtcError, match="pip install nvidia-cuda-nvrtc"):
        nvrtc.library.__wrapped__()


def test_text_files_are_read_as_before() -> None:
    before = locale.getencoding()
    nvrtc.compile_cuda('extern "C" __global__ void kernel(float* x) { x[0] = 1; }', "sm_80")
    assert locale.getencoding() == before
