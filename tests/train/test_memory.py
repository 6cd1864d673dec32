"""Micro-batches that fit, with the errors that torch itself raises."""

import functools
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import descend
from descend.train.micro_batch import out_of_memory, part_size, release


@given(wanted=st.one_of(st.none(), st.integers(1, 1000)), count=st.integers(1, 1000), unit=st.integers(1, 100))
def test_parts_are_whole_units_of_at_most_the_wanted_size_or_one_unit(wanted, count, unit):
    size = part_size(wanted, count, unit)
    if wanted is None:
        assert size == count
    else:
        assert size % unit == 0
        assert size <= max(wanted, unit) < size + unit or size == unit
    assert part_size(wanted, count, None) == count


def test_the_errors_of_this_machine_and_of_devices_are_known():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50)
    assert out_of_memory(caught.value)
    assert out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert out_of_memory(MemoryError())
    assert not out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


@pytest.mark.parametrize(
    "said",
    [
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "ncclUnhandledCudaError: Call to CUDA function failed. Last error: Cuda failure 2 'out of memory'",
    ],
)
def test_what_libraries_say_where_their_own_memory_does_not_fit_is_known(said):
    assert out_of_memory(RuntimeError(said))


def test_what_a_failed_pass_held_is_freed_before_others_hear_of_it():
    held = []

    def forward():
        activation = torch.zeros(3)
        held.append(weakref.ref(activation))
        raise torch.OutOfMemoryError("CUDA out of memory")

    try:
        forward()
    except RuntimeError as error:
        assert held[0]() is not None
        release(error, torch.device("cpu"))
        assert held[0]() is None


class Greedy(nn.Module):
    """Asks for 4 PiB where more than three samples go through at once."""

    def __init__(self):
        super().__init__()
        self.out, self.sizes = nn.Linear(4, 3), []

    def forward(self, x):
        self.sizes.append(len(x))
        torch.empty(2**50 if len(x) > 3 else 1)
        return self.out(x)


def test_a_step_is_made_again_where_this_machine_has_no_more_memory():
    x, y = torch.randn(10, 4), torch.randint(0, 3, (10,))
    options = {"optimizer": functools.partial(torch.optim.SGD, lr=0.1), "batch_size": 10, "stop": descend.Epochs(2)}
    module = Greedy()
    found = descend.fit(module, "cross_entropy", (x, y), valid=(x, y), **options)
    assert module.sizes == [10, 5, *[3, 3, 3, 1] * 4]
    assert found.steps == 2


def test_an_evaluation_before_any_step_is_made_again_as_well():
    x, y = torch.randn(10, 4), torch.randint(0, 3, (10,))
    options = {"optimizer": functools.partial(torch.optim.SGD, lr=0.1), "batch_size": 10, "stop": descend.Epochs(0)}
    module = Greedy()
    found = descend.fit(module, "cross_entropy", (x, y), test=(x, y), metrics=["accuracy"], **options)
    with torch.no_grad():
        expected = nn.functional.cross_entropy(module.out(x), y)
    assert module.sizes == [10, 5, 3, 3, 3, 1]
    assert found.history[-1]["objective"] == pytest.approx(float(expected), rel=1e-6)
    assert found.history[-1]["samples"] == 10


def test_other_errors_are_passed_on_at_once():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.out, self.calls = nn.Linear(4, 3), 0

        def forward(self, x):
            self.calls += 1
            return self.out(x[:, :3])

    x, y = torch.randn(10, 4), torch.randint(0, 3, (10,))
    module = Broken()
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        descend.fit(
            module,
            "cross_entropy",
            (x, y),
            optimizer=functools.partial(torch.optim.SGD, lr=0.1),
            batch_size=10,
            stop=descend.Steps(1),
        )
    assert module.calls == 1
