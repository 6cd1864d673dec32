"""The argument of kernels for CUDA is the struct that they read; no GPU is needed."""

import ctypes
import re
from pathlib import Path

from descend.optim.compiler import codegen_cuda
from descend.optim.compiler.cuda import THREADS, CudaCompileJob, CudaLaunch

HEADER = codegen_cuda.HEADER.read_text(encoding="utf-8")


def test_the_argument_has_the_fields_of_the_struct_in_their_order():
    body = re.search(r"struct Work \{(.*?)\n\};", HEADER, re.S)
    assert body is not None
    lines = [line.split("//")[0].rsplit(";", 1)[0] for line in body[1].splitlines() if ";" in line.split("//")[0]]
    names = [name for line in lines for name in re.findall(r"(\w+)(?:,|$)", line.replace("*", " "))]
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
