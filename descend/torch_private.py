"""Access to private parts of torch, all in this file; tests/test_torch_private.py checks each with the running torch.

torch may change these in any release. Every function imports torch inside, so that importing this module is free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]  # documented there

__all__ = ["clone_store", "convolution_class", "default_store", "disable_elastic_restarts", "norm_class"]


def default_store() -> Store:
    """The key-value store of the default process group, which the caller has initialized."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage]  # there is no public way


def clone_store(store: Store) -> Store:
    """A second connection to a key-value store; requests on it do not wait for those on the first one."""
    return store.clone()  # pyright: ignore[reportAttributeAccessIssue]  # missing in torch's type stubs


def disable_elastic_restarts() -> None:
    """Let the torchrun of this process restart no worker from now on, since it was asked to stop."""
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    def restart_nothing(self: Any, worker_group: Any) -> None:
        self._remaining_restarts = 0

    setattr(LocalElasticAgent, "_restart_workers", restart_nothing)  # noqa: B010  # torch has no public way


def norm_class() -> type[torch.nn.Module]:
    """The base class of all batch and instance normalizations."""
    from torch import nn

    return nn.modules.batchnorm._NormBase  # pyright: ignore[reportPrivateUsage]


def convolution_class() -> type[torch.nn.Module]:
    """The base class of all convolutions, transposed ones too."""
    from torch import nn

    return nn.modules.conv._ConvNd  # pyright: ignore[reportPrivateUsage]
