"""What tests of kernels share."""

import cuda_on_cpu
import pytest


@pytest.fixture
def _on_cpu(monkeypatch):
    """Arenas of a processor have kernels for CUDA, which it runs."""
    cuda_on_cpu.install(monkeypatch)
