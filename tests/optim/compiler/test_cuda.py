"""What a CUDA kernel may be called with; no GPU is needed."""

import pytest
import torch
from optimizer_inputs import group_settings

from descend.optim.compiler.cuda import Compiled, CudaCompileJob
from descend.optim.compiler.layout import BLOCK
from descend.optim.compiler.partition import partition
from descend.optim.compiler.trace import trace
from descend.optim.rules import LAMB, SGD, Adam


def kernel():
    """One buffer, index, valid and a table of two numbers; returns the number of rows."""
    dtypes = (torch.float32, torch.int32, torch.int32, torch.float32)
    return Compiled(lambda arguments: [torch.tensor(float(len(arguments[0])))], dtypes, numbers=2)


def arguments(rows=3, numbers=2, buffer=torch.float32):
    index = torch.zeros(rows, dtype=torch.int32)
    return [torch.zeros(rows, BLOCK, dtype=buffer), index, index.clone(), torch.zeros(numbers, 5)]


def test_right_arguments_reach_the_kernel():
    assert kernel()(arguments())[0] == 3


def test_wrong_arguments_are_refused_before_they_crash():
    with pytest.raises(TypeError, match="float64"):
        kernel()(arguments(buffer=torch.float64))
    with pytest.raises(TypeError, match="2 numbers"):
        kernel()(arguments(numbers=3))
    with pytest.raises(TypeError):
        kernel()(arguments()[:3])
    short = arguments()
    short[2] = short[2][:2]
    with pytest.raises(TypeError, match="2 numbers"):
        kernel()(short)


@pytest.mark.parametrize(("rule", "low"), [(SGD(momentum=0.9), None), (Adam(), "bfloat16"), (LAMB(), None)], ids=repr)
def test_a_job_knows_its_kernel_and_the_precisions_of_its_arguments(rule, low):
    found = trace(group_settings(rule, lr=1.0), low is not None)
    for k, cut in enumerate(partition(found)):
        job = CudaCompileJob(found.structure, k, "float32", low, 0)
        assert job.cut.buffers == cut.buffers
        assert len(job.dtypes) == len(cut.buffers) + 3
        kinds = dict(zip(cut.buffers, job.dtypes, strict=False))
        assert kinds.get("g", getattr(torch, low or "float32")) is getattr(torch, low or "float32")
        assert all(kinds[name] is torch.float32 for name in kinds if name not in ("g", "w"))
