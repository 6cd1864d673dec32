"""What tests of kernels share."""

import cuda_on_cpu
import pytest
import torch


@pytest.fixture
def _on_cpu(monkeypatch):
    """Arenas of a processor have kernels for CUDA, which it runs."""
    cuda_on_cpu.install(monkeypatch)


@pytest.fixture
def threads():
    """Lets a test change how many threads torch has."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
