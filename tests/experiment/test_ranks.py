"""What is refused for a module that is sharded among ranks."""

import functools

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_module

import descend
from descend.errors import ConfigurationError, Unsupported

DATA = (torch.randn(4, 3), torch.tensor([0, 1, 2, 0]))
SGD = functools.partial(torch.optim.SGD, lr=0.1)
SIGNS = functools.partial(descend.optim.SignSGD, lr=0.1)
SOAP = functools.partial(descend.optim.SOAP, lr=0.1)
PAIRS = descend.RandomPairwiseExchange({"objective": 0})
LTFB = descend.LTFB(metalearning=PAIRS, metalearning_steps=1)


@pytest.fixture
def mesh():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def fit(module, **settings):
    given = {"optimizer": SGD, "batch_size": 2, "stop": descend.Epochs(1), **settings}
    return descend.fit(module, "cross_entropy", DATA, **given)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"shard_optimizer": True}, "shard_optimizer=True"),
        ({"gradient_compression": "sign", "optimizer": SIGNS}, "gradient_compression"),
        ({"algorithm": descend.KFAC()}, "K-FAC needs the whole weights"),
        ({"precision": "float16"}, "take 'bfloat16'"),
        ({"optimizer": SOAP}, "SOAP needs whole matrices"),
        ({"algorithm": LTFB, "trainers": 2, "tournament": DATA}, "2 trainers need a whole module each"),
    ],
)
def test_what_needs_whole_weights_is_refused_by_name(mesh, settings, problem):
    module = fully_shard(nn.Sequential(nn.Linear(3, 3)), mesh=mesh)
    before = module[0].weight.full_tensor().clone()
    with pytest.raises(ConfigurationError, match=problem):
        fit(module, **settings)
    assert torch.equal(module[0].weight.full_tensor(), before)


@pytest.mark.slow
def test_weights_that_are_cut_up_in_another_way_are_refused(mesh):
    module = distribute_module(nn.Sequential(nn.Linear(3, 3)), mesh)
    with pytest.raises(Unsupported, match=r"'0\.weight' of Sequential is a DTensor .* by fully_shard"):
        fit(module)


@pytest.mark.slow
def test_a_module_can_be_used_by_torch_afterwards(mesh):
    """Its gradients are means over ranks again, and its weights those that were trained."""
    module = fully_shard(nn.Sequential(nn.Linear(3, 3)), mesh=mesh)
    result = fit(module, valid=DATA)
    assert torch.equal(module[0].weight.full_tensor(), result.weights["0.weight"])
    module.zero_grad()
    module(DATA[0]).sum().backward()
    torch.testing.assert_close(module[0].bias.grad.full_tensor(), torch.full((3,), 4.0))
