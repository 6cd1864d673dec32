"""The group of processes that a launcher has started together: joined for a run, and left after it.

A group that somebody else has made is used and left as it is, and its ranks watch over each other as those of ours do.
Ours is NCCL where the module is on a GPU and gloo otherwise; small agreements of a run on a GPU go through gloo too.
"""

from __future__ import annotations

import os
import secrets
import time
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import distributed
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

from descend.errors import ConfigurationError, LostPeer
from descend.launch import detect, timeout_seconds
from descend.runtime.communicator import Communicator
from descend.runtime.watchdog import Watchdog
from descend.thread_shutdown import join_threads_at_exit

if TYPE_CHECKING:
    from collections.abc import Generator

    from descend.launch import RankEnvironment, TrainerLayout

__all__ = ["process_group", "within_trainer"]

_MEETING_SECONDS = 60  # to find each other; after it, it is said who is missing
_LOOK_SECONDS = 0.02  # how often the first rank looks for those that ask where to meet
_LINGER_SECONDS = 3.0  # of the rank that has the store, where some did not come
_COLLECTIVE = timedelta(days=7)  # how long a rank is waited for is for those to say who watch over the ranks

join_threads_at_exit()  # from here on, so that it comes after what the user's script still does at its end


@contextmanager
def process_group(device: torch.device | None = None) -> Generator[Communicator]:
    """This process among its ranks; the group is made and left where the environment tells of one and nobody has.

    Args:
        device: Where the module is; None for a GPU where there is one, each rank of a host its own.

    Raises:
        ConfigurationError: the environment does not say where the ranks meet.
        LostPeer: some did not come.
    """
    where = detect()
    if device is None and torch.cuda.is_available():
        device = torch.device("cuda", where.local_rank % torch.cuda.device_count())
    if distributed.is_initialized():
        process = Communicator.current(device)
        with _watched(process, _common_store(process) if process.world_size > 1 else None):
            yield process
        return
    if where.world_size == 1:
        yield Communicator.current(device)
        return
    store = _meet(where, distributed_c10d.PrefixStore("descend", _store(where)))
    process = Communicator(where.rank, where.world_size, device or torch.device("cpu"))
    try:
        with _watched(process, store):  # also while the group is made: a rank may be gone before it is
            _make_group(process, store)
            yield process
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


@contextmanager
def _watched(process: Communicator, store: distributed_c10d.Store | None) -> Generator[None]:
    """Let the ranks watch over each other by words that they leave in a store; without one they do not."""
    if store is None:
        yield
        return
    # A connection of its own: on a common one it would wait as long as the process waits for others to make a group.
    own = store.clone()  # pyright: ignore[reportAttributeAccessIssue]  # torch's types leave it out
    words = distributed_c10d.PrefixStore("vigil", own)
    keeper = None if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else 0
    with Watchdog(words, process, timeout_seconds(), keeper):
        yield


def _common_store(process: Communicator) -> distributed_c10d.Store | None:
    """Where the ranks of a group that somebody else has made can leave words; None where MPI has made it."""
    if distributed.get_backend() == "mpi":
        return None
    # Nobody is watched yet: the others may come as late as the group allows.
    name = process.all_gather_object(secrets.token_hex(8))[0]
    common = distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage]  # there is no other way to it
    return distributed_c10d.PrefixStore(f"descend/{name}", common)


def within_trainer(world: Communicator, shares: TrainerLayout) -> Communicator:
    """This process among the ranks of its trainers. All ranks call it together.

    Args:
        world: This process among all ranks.
        shares: Which ranks belong together.
    """
    if shares.blocks == 1:
        return world
    groups = [
        distributed.new_group(list(shares.ranks_of_block(block)), timeout=_COLLECTIVE) for block in range(shares.blocks)
    ]
    block, rank = divmod(world.rank, shares.procs_per_trainer)
    world.status.peers = frozenset(shares.ranks_of_block(block))
    own = groups[block]
    assert isinstance(own, distributed.ProcessGroup)  # others get a number in its place
    return Communicator(rank, shares.procs_per_trainer, world.device, world.status, own)


def _make_group(process: Communicator, store: distributed_c10d.Store) -> None:
    if process.device.type == "cuda":
        torch.cuda.set_device(process.device)
    backend = "nccl" if process.device.type == "cuda" else "gloo"
    with process.status.wait("the connections of all ranks"):
        distributed.init_process_group(
            backend, store=store, rank=process.rank, world_size=process.world_size, timeout=_COLLECTIVE
        )


@cache
def _store(where: RankEnvironment) -> distributed_c10d.Store:
    """Where ranks find each other; kept as long as the process lives, since rank 0 may be the one that has it."""
    if where.address is None or where.port is None:
        raise ConfigurationError(
            f"{where.launcher} started {where.world_size} ranks and nothing says where they meet: set MASTER_ADDR to "
            "the host of rank 0 and MASTER_PORT to a free port there, or start them with descend launch"
        )
    timeout = timedelta(seconds=_MEETING_SECONDS)
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # torchrun has one
        store, _, _ = next(rendezvous("env://", timeout=timeout))
        return store
    try:
        # Nobody is waited for here: _meet can say who is missing, and this could not.
        return distributed.TCPStore(  # pyright: ignore[reportPrivateImportUsage]  # documented there all the same
            where.address,
            where.port,
            where.world_size,
            where.rank == 0,
            timeout,
            wait_for_workers=False,
            multi_tenant=True,
        )
    except RuntimeError as error:  # torch's DistNetworkError
        raise LostPeer(
            f"rank 0 of {where.world_size} did not come to {where.address}:{where.port} within {_MEETING_SECONDS} "
            f"seconds: {str(error).splitlines()[0]}"
        ) from error


def _meet(where: RankEnvironment, store: distributed_c10d.Store) -> distributed_c10d.Store:
    """Wait until every rank is there; a place in the store that is theirs alone.

    A launcher that starts ranks again may keep its store, with the words and addresses of those that were there before.
    So each rank asks under a name that nobody had, and the first one answers with the name of the place.
    """
    until, own = time.monotonic() + _MEETING_SECONDS, None
    keys = [f"rank {rank}" for rank in range(where.world_size)]
    try:
        name = secrets.token_hex(8) if where.rank == 0 else _name_as_told(where.rank, store)
        own = distributed_c10d.PrefixStore(name, store)
        own.set(keys[where.rank], "here")
        if where.rank == 0:
            _tell(name, keys[1:], store, until)
        own.wait(keys, timedelta(seconds=max(until - time.monotonic(), _LOOK_SECONDS)))
    except RuntimeError as error:  # torch's DistStoreError
        missing = [key for key in keys if own is not None and not _has(own, key)]
        if where.rank == 0:
            time.sleep(_LINGER_SECONDS)  # the others have to ask its store who is missing
        raise LostPeer(
            f"{', '.join(missing) or 'rank 0'} of {where.world_size} did not come within {_MEETING_SECONDS} seconds; "
            "see what they say"
        ) from error
    return own


def _name_as_told(rank: int, store: distributed_c10d.Store) -> str:
    own = secrets.token_hex(8)
    store.set(f"rank {rank} asks", own)
    store.wait([f"answer to {own}"], timedelta(seconds=_MEETING_SECONDS))
    return store.get(f"answer to {own}").decode()


def _tell(name: str, missing: list[str], store: distributed_c10d.Store, until: float) -> None:
    """Tell the name of the place to whoever asks, those who have gone as well, until all have come."""
    answered = set[str]()
    while (missing := [key for key in missing if not store.check([f"{name}/{key}"])]) and time.monotonic() < until:
        asking = {store.get(f"{key} asks").decode() for key in missing if store.check([f"{key} asks"])}
        for one in asking - answered:
            store.set(f"answer to {one}", name)
        answered |= asking
        time.sleep(_LOOK_SECONDS)


def _has(store: distributed_c10d.Store, key: str) -> bool:
    try:
        return store.check([key])
    except RuntimeError:  # whoever has the store has left
        return True
