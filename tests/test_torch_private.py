"""Each access to a private part of torch works with the torch that is installed; a failure names that version."""

from datetime import timedelta

import pytest
import torch
from torch import distributed, nn

from descend import torch_private

BROKE = f"torch {torch.__version__} has changed what descend/torch_private.py uses here"


@pytest.fixture
def group():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_the_default_store_is_the_one_that_the_group_uses(group):
    store = torch_private.default_store()
    store.set("key", "value")
    assert torch_private.default_store().get("key") == b"value", BROKE


def test_a_clone_of_a_store_has_its_values_and_a_connection_of_its_own():
    store = distributed.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=10))
    clone = torch_private.clone_store(store)
    store.set("key", "value")
    assert clone is not store, BROKE
    assert clone.get("key") == b"value", BROKE


def test_an_elastic_agent_asked_to_stop_restarts_nothing(monkeypatch):
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    assert hasattr(LocalElasticAgent, "_restart_workers"), BROKE
    monkeypatch.setattr(LocalElasticAgent, "_restart_workers", LocalElasticAgent._restart_workers)
    torch_private.disable_elastic_restarts()
    agent = object.__new__(LocalElasticAgent)
    agent._remaining_restarts = 3
    agent._restart_workers(None)
    assert agent._remaining_restarts == 0, BROKE


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, nn.SyncBatchNorm, nn.InstanceNorm1d, nn.LazyBatchNorm1d])
def test_batch_and_instance_norms_have_one_base(kind):
    assert issubclass(kind, torch_private.norm_class()), BROKE


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv3d, nn.ConvTranspose2d, nn.LazyConv2d])
def test_convolutions_have_one_base(kind):
    assert issubclass(kind, torch_private.convolution_class()), BROKE
    assert not issubclass(nn.Linear, torch_private.convolution_class())
