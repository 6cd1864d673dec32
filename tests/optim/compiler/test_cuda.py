"""What the driver is given, by a driver that runs kernels on this processor; no GPU is needed."""

import ctypes
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from system_needs import needs_gnu_compiler

from descend.optim.compiler import codegen_cuda, cuda
from descend.optim.compiler.codegen_cuda_matrix import MATRIX_HEADER, TILE, WALKS
from descend.optim.compiler.cuda import (
    THREADS,
    CudaCompileJob,
    CudaLaunch,
    DeviceMatrixJob,
    DeviceMatrixLaunch,
    Walk,
)
from descend.optim.compiler.native import CpuCompileJob, MatrixCompileJob

HEADER = codegen_cuda.HEADER.read_text(encoding="utf-8")
SOURCE = MATRIX_HEADER.read_text(encoding="utf-8")


def test_the_argument_has_the_fields_of_the_struct_in_their_order():
    names = members("Work", HEADER)
    assert names == [name for name, *_ in CudaLaunch._fields_]
    assert ctypes.sizeof(CudaLaunch) == 8 * len(names)


def test_blocks_are_as_large_as_kernels_assume():
    assert f"constexpr int THREADS = {THREADS};" in HEADER
    assert THREADS & (THREADS - 1) == 0


def test_jobs_of_one_trace_and_precision_are_equal():
    job = CudaCompileJob("{}", "float32", None, 0)
    assert job == CudaCompileJob("{}", "float32", None, 0)
    assert job != CudaCompileJob("{}", "float32", "bfloat16", 0)
    assert Path(f"x{job.suffix}").suffix == ".cubin"


# A driver with two kernels that note how they were launched. It returns an error where it is used wrongly.
DRIVER = r"""
#include <cstring>
#include <string>
#include <vector>
static int current = 0;
struct Work { long long units, tensors; };
static std::string log;
extern "C" {
const char* said() { return log.c_str(); }
int cuDeviceGet(int* device, int index) { *device = 40 + index; return 0; }
int cuDevicePrimaryCtxRetain(void** context, int device) { *context = (void*)(long long)device; return device < 40; }
int cuCtxPushCurrent_v2(void* context) { current += context == (void*)41; return context != (void*)41; }
int cuCtxPopCurrent_v2(void** context) { *context = (void*)41; return current-- != 1; }
int cuModuleLoadData(void** module, const void* code) {
  *module = (void*)7;
  return !current || std::strcmp((const char*)code, "machine code");
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = (void*)(std::strcmp(name, "stage0") ? 8 : 9);
  return module != (void*)7 || !std::strcmp(name, "missing") ? 500 : 0;
}
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** given, void** extra) {
  if (!current || extra || shared || gy != 1 || gz != 1 || by != 1 || bz != 1) return 1;
  const Work* w = (const Work*)given[0];
  for (long long n : {(long long)function, (long long)gx, (long long)bx, (long long)stream, w->units, w->tensors})
    log += std::to_string(n) + " ";
  return 0;
}
int cuGetErrorString(int code, const char** text) {
  *text = code == 500 ? "named symbol not found" : "wrong";
  return 0;
}
}
"""


@pytest.fixture
def driver(tmp_path, monkeypatch):
    path = tmp_path / "driver.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path)], input=DRIVER, text=True, check=True)
    held = ctypes.CDLL(str(path))
    held.said.restype = ctypes.c_char_p
    held.cuGetErrorString.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
    monkeypatch.setattr(cuda, "_driver", lambda: held)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    properties = SimpleNamespace(multi_processor_count=2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    return held


@needs_gnu_compiler
def test_a_module_is_launched_in_its_context_and_stream_with_no_more_blocks_than_fit(driver):
    module = cuda.CudaModule(b"machine code", 1)
    module.launch([("numbers0", 1), ("stage0", 1000)], CudaLaunch(units=1000, tensors=3), 0x7F0000000010)
    stream = 0x7F0000000010
    assert driver.said().decode().split() == [str(n) for n in (8, 1, 256, stream, 1000, 3, 9, 16, 256, stream, 1000, 3)]


@needs_gnu_compiler
def test_what_the_driver_refuses_is_said(driver):
    with pytest.raises(RuntimeError, match="CUDA's driver: wrong"):
        cuda.CudaModule(b"damaged", 1)
    with pytest.raises(RuntimeError, match="named symbol not found"):
        cuda.CudaModule(b"machine code", 1).launch([("missing", 1)], CudaLaunch(), 0)


def members(name: str, source: str = SOURCE) -> list[str]:
    body = re.search(rf"struct {name} \{{(.*?)\n\}};", source, re.S)
    assert body is not None
    lines = [line.split("//")[0].rsplit(";", 1)[0] for line in body[1].splitlines() if ";" in line.split("//")[0]]
    return [found for line in lines for found in re.findall(r"(\w+)(?:,|$)", line.replace("*", " "))]


def test_the_argument_has_the_members_of_the_structs_in_their_order():
    assert members("Walk") == [name for name, *_ in Walk._fields_]
    assert members("Matrices") == [name for name, *_ in DeviceMatrixLaunch._fields_]
    others = len(DeviceMatrixLaunch._fields_) - len(WALKS)
    assert ctypes.sizeof(DeviceMatrixLaunch) == 8 * others + len(WALKS) * ctypes.sizeof(Walk)


def test_parts_are_as_long_as_kernels_assume():
    assert f"constexpr int64 TILE = {TILE};" in SOURCE


def test_kernels_of_one_text_with_and_without_means_are_two_files(monkeypatch):
    """A vector's text may be that of an elementwise rule."""
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda index: (9, 0))
    given = ('{"ops": [], "outputs": {}}', "float32", None)
    keys = [CudaCompileJob(*given, 0).key, DeviceMatrixJob(*given, 0).key]
    keys += [kind(*given).key for kind in (CpuCompileJob, MatrixCompileJob)]
    assert len(set(keys)) == 4
    assert CudaCompileJob(*given, 0) != DeviceMatrixJob(*given, 0)
    assert CpuCompileJob(*given) != MatrixCompileJob(*given)
