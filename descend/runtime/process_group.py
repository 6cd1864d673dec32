"""The process group of the ranks that a launcher has started: rendezvous, initialization, and destruction after a run.

A process group that the caller has initialized is used and left as it is; its ranks get a watchdog too. Our own uses
NCCL for tensors on GPUs, and gloo for those on CPUs.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import distributed
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

from descend import torch_private
from descend.errors import ConfigurationError, LostPeer
from descend.launch import detect, timeout_seconds
from descend.machine import join_threads_at_exit
from descend.runtime.communicator import Communicator
from descend.runtime.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Generator

    from descend.launch import RankEnvironment, TrainerLayout

__all__ = ["process_group", "within_trainer"]

_RENDEZVOUS_SECONDS = 60  # after it the missing ranks are reported
_POLL_SECONDS = 0.02  # how often rank zero looks for ranks that ask for the name of the rendezvous
_LINGER_SECONDS = 3.0  # that rank zero keeps the store alive after a failed rendezvous
_COLLECTIVE_TIMEOUT = timedelta(days=7)  # torch's own; the watchdog decides how long a rank is waited for

join_threads_at_exit()  # registered this early to run after the exit handlers of the user's script


@contextmanager
def process_group(device: torch.device | None = None) -> Generator[Communicator]:
    """The communicator of this process, with the process group initialized and a watchdog running.

    Args:
        device: Device of the module; None for a GPU if there is one, a different one for each rank of a host.

    Yields:
        The communicator. Its world size is 1 if no launcher has started several ranks.

    Raises:
        ConfigurationError: the environment does not say where the ranks meet.
        LostPeer: some ranks did not come to the rendezvous.
    """
    environment = detect()
    if device is None and torch.cuda.is_available():
        device = torch.device("cuda", environment.local_rank % torch.cuda.device_count())
    if distributed.is_initialized():
        communicator = Communicator.current(device)
        with _watchdog(communicator, _common_store(communicator) if communicator.world_size > 1 else None):
            yield from _until_left(communicator)
        return
    if environment.world_size == 1:
        yield Communicator.current(device)
        return
    store = _rendezvous(environment, distributed_c10d.PrefixStore("descend", _store(environment)))
    communicator = Communicator(environment.rank, environment.world_size, device or torch.device("cpu"))
    try:
        with _watchdog(communicator, store):  # also while the group is initialized: a rank may crash before that
            _initialize_group(communicator, store)
            yield from _until_left(communicator)
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _until_left(communicator: Communicator) -> Generator[Communicator]:
    """The communicator; what shares memory with other ranks tells them at the end that this one has left."""
    try:
        yield communicator
    finally:
        for sums in communicator.status.sums.values():
            sums.leave()


@contextmanager
def _watchdog(communicator: Communicator, store: distributed_c10d.Store | None) -> Generator[None]:
    """Run the watchdog of this rank; without a store there is none."""
    if store is None:
        yield
        return
    torch_private.log_no_native_warnings()
    # A connection of its own: requests on a shared one would wait until init_process_group has returned.
    heartbeats = distributed_c10d.PrefixStore("watchdog", torch_private.clone_store(store))
    store_rank = None if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else 0
    with Watchdog(heartbeats, communicator, timeout_seconds(), store_rank):
        yield


def _common_store(communicator: Communicator) -> distributed_c10d.Store | None:
    """A key-value store of a process group that the caller has initialized; None for MPI, which has none."""
    if distributed.get_backend() == "mpi":
        return None
    # There is no watchdog yet: the other ranks may come as late as the group's own timeout allows.
    name = communicator.all_gather_object(secrets.token_hex(8))[0]
    return distributed_c10d.PrefixStore(f"descend/{name}", torch_private.default_store())


def within_trainer(world: Communicator, shares: TrainerLayout) -> Communicator:
    """The communicator among the ranks of this process's trainer. All ranks call it together.

    Args:
        world: The communicator among all ranks.
        shares: Which ranks belong to which trainer.
    """
    if shares.blocks == 1:
        return world
    groups = [
        distributed.new_group(list(shares.ranks_of_block(block)), timeout=_COLLECTIVE_TIMEOUT)
        for block in range(shares.blocks)
    ]
    block, rank = divmod(world.rank, shares.procs_per_trainer)
    world.status.peers = frozenset(shares.ranks_of_block(block))
    own = groups[block]
    assert isinstance(own, distributed.ProcessGroup)  # only ranks outside a group get a number
    return Communicator(rank, shares.procs_per_trainer, world.device, world.status, own)


def _initialize_group(communicator: Communicator, store: distributed_c10d.Store) -> None:
    if communicator.device.type == "cuda":
        torch.cuda.set_device(communicator.device)
    # Agreements of a few numbers go by gloo, so that the host does not wait for the GPU.
    backend = "cpu:gloo,cuda:nccl" if communicator.device.type == "cuda" else "gloo"
    with communicator.status.wait("the connections between all ranks"):
        distributed.init_process_group(
            backend,
            store=store,
            rank=communicator.rank,
            world_size=communicator.world_size,
            timeout=_COLLECTIVE_TIMEOUT,
        )


@cache
def _store(environment: RankEnvironment) -> distributed_c10d.Store:
    """The key-value store of the rendezvous; kept as long as the process runs, since rank zero may host it."""
    if environment.address is None or environment.port is None:
        raise ConfigurationError(
            f"{environment.launcher} started {environment.world_size} ranks and nothing says where they meet: set "
            "MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there, or start them with descend launch"
        )
    until, timeout = time.monotonic() + _RENDEZVOUS_SECONDS, timedelta(seconds=_RENDEZVOUS_SECONDS)
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # torchrun hosts one
        store, _, _ = next(rendezvous("env://", timeout=timeout))
        return store
    try:
        if environment.rank:
            _wait_for_host(environment.address, environment.port, until)
        # Without waiting for workers: _rendezvous reports the missing ranks, and this constructor could not.
        return distributed.TCPStore(  # pyright: ignore[reportPrivateImportUsage]  # documented there
            environment.address,
            environment.port,
            environment.world_size,
            environment.rank == 0,
            timeout,
            wait_for_workers=False,
            multi_tenant=True,
        )
    except (OSError, RuntimeError) as error:  # torch's DistNetworkError
        raise LostPeer(
            f"rank 0 of {environment.world_size} did not connect to {environment.address}:{environment.port} within "
            f"{_RENDEZVOUS_SECONDS} seconds: {str(error).splitlines()[0]}"
        ) from error


def _wait_for_host(address: str, port: int, until: float) -> None:
    """Wait until rank zero listens, at most until a time of the monotonic clock; else raise the last OSError.

    torch's client tries twice, each time as long as its timeout, and logs a C++ stack trace both times.
    """
    delay = _POLL_SECONDS
    while True:
        try:
            socket.create_connection((address, port), max(until - time.monotonic(), _POLL_SECONDS)).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(delay)
            delay = min(2 * delay, 0.5)  # thousands of ranks may ask the same host
        else:
            return


def _rendezvous(environment: RankEnvironment, store: distributed_c10d.Store) -> distributed_c10d.Store:
    """Wait until every rank has come; returns a part of the store that only these processes use.

    A launcher that restarts ranks may keep its store, with the keys and addresses of the processes before. So each rank
    asks under a new random name, and rank zero answers with the random prefix of this rendezvous.
    """
    until, own = time.monotonic() + _RENDEZVOUS_SECONDS, None
    keys = [f"rank {rank}" for rank in range(environment.world_size)]
    try:
        name = secrets.token_hex(8) if environment.rank == 0 else _ask_for_name(environment.rank, store)
        own = distributed_c10d.PrefixStore(name, store)
        own.set(keys[environment.rank], "here")
        if environment.rank == 0:
            _answer_ranks(name, keys[1:], store, until)
        own.wait(keys, timedelta(seconds=max(until - time.monotonic(), _POLL_SECONDS)))
    except RuntimeError as error:  # torch's DistStoreError
        missing = [key for key in keys if own is not None and not _has(own, key)]
        if environment.rank == 0:
            time.sleep(_LINGER_SECONDS)  # the other ranks ask its store which are missing
        raise LostPeer(
            f"{', '.join(missing) or 'rank 0'} of {environment.world_size} did not connect within "
            f"{_RENDEZVOUS_SECONDS} seconds; see their output"
        ) from error
    return own


def _ask_for_name(rank: int, store: distributed_c10d.Store) -> str:
    own = secrets.token_hex(8)
    store.set(f"rank {rank} asks", own)
    store.wait([f"answer to {own}"], timedelta(seconds=_RENDEZVOUS_SECONDS))
    return store.get(f"answer to {own}").decode()


def _answer_ranks(name: str, missing: list[str], store: distributed_c10d.Store, until: float) -> None:
    """Answer every rank that asks for the name of the rendezvous, earlier processes too, until all have come."""
    answered = set[str]()
    while (missing := [key for key in missing if not store.check([f"{name}/{key}"])]) and time.monotonic() < until:
        asking = {store.get(f"{key} asks").decode() for key in missing if store.check([f"{key} asks"])}
        for one in asking - answered:
            store.set(f"answer to {one}", name)
        answered |= asking
        time.sleep(_POLL_SECONDS)


def _has(store: distributed_c10d.Store, key: str) -> bool:
    try:
        return store.check([key])
    except RuntimeError:  # the process that hosts the store has exited
        return True
