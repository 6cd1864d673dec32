"""What kernels with means over rows and columns are given: one layout for Python and CUDA; and their job."""

import ctypes
import re

from descend.optim.compiler.codegen_cuda_matrix import MATRIX_HEADER, TILE, WALKS
from descend.optim.compiler.cuda import CudaCompileJob, DeviceMatrixJob, DeviceMatrixLaunch, Walk
from descend.optim.compiler.native import CpuCompileJob, MatrixCompileJob

HEADER = MATRIX_HEADER.read_text(encoding="utf-8")


def members(name: str) -> list[str]:
    body = re.search(rf"struct {name} \{{(.*?)\n\}};", HEADER, re.S)
    assert body is not None
    lines = [line.split("//")[0].rsplit(";", 1)[0] for line in body[1].splitlines() if ";" in line.split("//")[0]]
    return [found for line in lines for found in re.findall(r"(\w+)(?:,|$)", line.replace("*", " "))]


def test_the_argument_has_the_members_of_the_structs_in_their_order():
    assert members("Walk") == [name for name, *_ in Walk._fields_]
    assert members("Matrices") == [name for name, *_ in DeviceMatrixLaunch._fields_]
    others = len(DeviceMatrixLaunch._fields_) - len(WALKS)
    assert ctypes.sizeof(DeviceMatrixLaunch) == 8 * others + len(WALKS) * ctypes.sizeof(Walk)


def test_parts_are_as_long_as_kernels_assume():
    assert f"constexpr int64 TILE = {TILE};" in HEADER


def test_kernels_of_one_text_with_and_without_means_are_two_files(monkeypatch):
    """A vector's text may be that of an elementwise rule."""
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda index: (9, 0))
    given = ('{"ops": [], "outputs": {}}', "float32", None)
    keys = [CudaCompileJob(*given, 0).key, DeviceMatrixJob(*given, 0).key]
    keys += [kind(*given).key for kind in (CpuCompileJob, MatrixCompileJob)]
    assert len(set(keys)) == 4
    assert CudaCompileJob(*given, 0) != DeviceMatrixJob(*given, 0)
    assert CpuCompileJob(*given) != MatrixCompileJob(*given)
