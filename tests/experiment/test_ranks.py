"""What a run on ranks makes of modules that torch has wrapped for several ranks."""

import functools

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import descend
from descend.errors import Unsupported


@pytest.fixture
def _alone():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.usefixtures("_alone")
def test_a_module_that_is_cut_up_among_ranks_is_refused():
    module = nn.Sequential(nn.Linear(3, 3))
    fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(Unsupported, match=r"'0\.weight' of .* is a DTensor"):
        descend.fit(
            module,
            "cross_entropy",
            (torch.randn(4, 3), torch.tensor([0, 1, 2, 0])),
            optimizer=functools.partial(torch.optim.SGD, lr=0.1),
            batch_size=2,
            stop=descend.Epochs(1),
        )
