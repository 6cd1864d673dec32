"""Rendezvous of the ranks of a launcher, by threads on one store, and groups that the caller has made."""

import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
from torch import distributed

from descend.errors import ConfigurationError, LostPeer
from descend.launch import detect, layout_trainers
from descend.runtime import Communicator, process_group, within_trainer
from descend.runtime.process_group import _rendezvous, _store

MODULE = sys.modules[_store.__module__]  # the room offers a function of this name


@pytest.fixture
def environment():
    return detect({"RANK": "0", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"})


@pytest.fixture
def store():
    store = distributed.HashStore()
    store.set_timeout(timedelta(seconds=5))
    return store


def test_without_a_launcher_there_is_one_rank(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    with process_group(torch.device("cpu")) as communicator:
        assert (communicator.rank, communicator.world_size) == (0, 1)
        assert not distributed.is_initialized()


def test_a_group_that_the_caller_has_made_is_used_and_kept(tmp_path):
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with process_group(torch.device("cpu")) as communicator:
            assert communicator.world_size == 1
        assert distributed.is_initialized()
    finally:
        distributed.destroy_process_group()


def test_all_ranks_meet_under_one_name_that_no_earlier_process_has(environment, store):
    store.set("rank 1 asks", "of an earlier process")

    def come(rank):
        own = _rendezvous(replace(environment, rank=rank), store)
        own.set(f"from {rank}", str(rank))
        return own

    for _ in range(2):  # a launcher that restarts ranks keeps the store
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(come, range(3)))
        assert [[own.get(f"from {rank}") for rank in range(3)] for own in found] == [[b"0", b"1", b"2"]] * 3
        assert not store.check(["from 0"])


def test_ranks_that_do_not_come_are_named(environment, store, monkeypatch):
    monkeypatch.setattr(MODULE, "_RENDEZVOUS_SECONDS", 0.3)
    monkeypatch.setattr(MODULE, "_LINGER_SECONDS", 0.0)
    with pytest.raises(LostPeer, match=r"rank 1, rank 2 of 3 did not connect within 0\.3 seconds"):
        _rendezvous(environment, store)


def test_a_missing_rank_zero_is_named_without_the_stack_trace_of_torch(environment, monkeypatch, capfd):
    monkeypatch.setattr(MODULE, "_RENDEZVOUS_SECONDS", 0.3)
    with socket.socket() as bound:  # and not listening, so that no other process takes the port
        bound.bind(("127.0.0.1", 0))
        nowhere = replace(environment, rank=1, address="127.0.0.1", port=bound.getsockname()[1])
        with pytest.raises(LostPeer, match=r"rank 0 of 3 did not connect to 127\.0\.0\.1:\d+ within 0\.3 seconds"):
            _store(nowhere)
    assert capfd.readouterr().err == ""


def test_ranks_that_do_not_know_where_to_meet_say_what_to_set(environment):
    with pytest.raises(ConfigurationError, match="3 ranks and nothing says where they meet: set MASTER_ADDR"):
        _store(replace(environment, address=None, port=None))


def test_one_block_of_ranks_is_all_ranks():
    world = Communicator(1, 4)
    assert within_trainer(world, layout_trainers(4, 1, 4, {})) is world


@pytest.mark.parametrize("fails", [False, True])
def test_ranks_that_share_memory_learn_of_one_that_leaves(monkeypatch, fails):
    """After an error too: ranks that wait for it in shared memory have no connection that breaks."""
    informed = []
    communicator = Communicator()
    communicator.status.sums[None] = SimpleNamespace(leave=lambda: informed.append("left"))
    monkeypatch.setattr(MODULE.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(MODULE.Communicator, "current", lambda device: communicator)
    with suppress(ValueError), process_group(torch.device("cpu")):
        assert informed == []
        if fails:
            raise ValueError
    assert informed == ["left"]
