"""Page-locked memory: without it copies are slower, and nothing else differs."""

import warnings

import pytest
import torch

from descend import machine as module
from descend.machine import page_locked, page_locked_copy


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(module, "_refused", [])


@pytest.fixture
def refusing(monkeypatch):
    """A system that gives none; returns how often it was asked."""
    asked, real = [], torch.empty

    def empty(*given, pin_memory=False, **options):
        if pin_memory:
            asked.append(1)
            raise RuntimeError("CUDA error: out of memory\nmore about it")
        return real(*given, **options)

    monkeypatch.setattr(torch, "empty", empty)
    return asked


def test_where_there_is_none_ordinary_memory_serves_and_one_line_says_so(refusing):
    with pytest.warns(UserWarning, match=r"there is no page-locked memory \(CUDA error: out of memory\)") as said:
        tensor = page_locked((2, 3), torch.float16)
    assert (tuple(tensor.shape), tensor.dtype, tensor.device.type) == ((2, 3), torch.float16, "cpu")
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page_locked((), torch.int64)
        assert torch.equal(page_locked_copy(torch.ones(3)), torch.ones(3))
    assert refusing == [1]


def test_a_tensor_stays_as_it_is_where_it_cannot_be_copied(monkeypatch):
    x = torch.arange(3)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: (_ for _ in ()).throw(RuntimeError("none")))
    with pytest.warns(UserWarning, match="no page-locked memory"):
        assert page_locked_copy(x) is x
