"""Ranks that are threads of one process, for tests of code that communicates: the collectives block as real ones do."""

import threading
from collections import defaultdict
from types import SimpleNamespace

import torch
from system_needs import require
from torch import distributed
from torch.testing._internal.distributed import multi_threaded_pg

from descend.runtime import Communicator

SECONDS = 20.0  # after which a collective that some rank never joins is an error


class Group:
    """Matches the n-th collective of each rank with the n-th of the others, and messages by sender and receiver."""

    def __init__(self, size):
        self.size, self.changed, self.failed = size, threading.Condition(), False
        self.posted, self.messages = defaultdict(dict), defaultdict(list)
        self.order = [[] for _ in range(size)]  # number of elements of each collective, by rank

    def post(self, rank, tensor):
        with self.changed:
            number = len(self.order[rank])
            self.order[rank].append(tensor.numel())
            self.posted[number][rank] = tensor.detach().clone()
            self.changed.notify_all()
            return number

    def collect(self, number):
        self.wait(lambda: len(self.posted[number]) == self.size)
        return [self.posted[number][rank] for rank in range(self.size)]

    def wait(self, is_met):
        with self.changed:
            met = self.changed.wait_for(lambda: self.failed or is_met(), SECONDS)
            if self.failed or not met:
                raise RuntimeError("another rank has failed" if self.failed else "another rank never came")

    def fail(self):
        with self.changed:
            self.failed = True
            self.changed.notify_all()


class ThreadRank(Communicator):
    """A communicator whose other ranks are threads."""

    @classmethod
    def of(cls, group, rank):
        return cls(rank, group.size, group=SimpleNamespace(threads=group, rank=rank))

    def _exchange(self, tensor):
        if self.world_size == 1:
            return [tensor]
        threads = self.group.threads
        return threads.collect(threads.post(self.rank, tensor))

    def all_reduce(self, tensor):
        return tensor.copy_(sum(self._exchange(tensor)))

    def use_shared_memory(self, awake, say):
        """Threads need none."""

    def broadcast(self, source, tensors):
        with torch.no_grad():
            for tensor in tensors:
                tensor.copy_(self._exchange(tensor)[source])

    def all_gather(self, rows, counts=None):
        found = self._exchange(rows)
        assert counts is None or [len(one) for one in found] == list(counts)
        return found


class Distributed:
    """Those functions of torch.distributed that are called directly, among threads."""

    @staticmethod
    def all_reduce(tensor, group, async_op):
        number = group.threads.post(group.rank, tensor)
        return SimpleNamespace(wait=lambda: tensor.copy_(sum(group.threads.collect(number))))

    @staticmethod
    def reduce(tensor, group, group_dst, async_op):
        number = group.threads.post(group.rank, tensor)

        def wait():
            total = sum(group.threads.collect(number))
            tensor.copy_(total if group.rank == group_dst else torch.full_like(total, torch.nan))  # no longer its own

        return SimpleNamespace(wait=wait)

    @staticmethod
    def get_backend(group):
        return "gloo"

    @staticmethod
    def send(tensor, group, group_dst):
        with group.threads.changed:
            group.threads.messages[group.rank, group_dst].append(tensor.detach().clone())
            group.threads.changed.notify_all()

    @staticmethod
    def recv(tensor, group, group_src):
        with group.threads.changed:  # two threads that ask for one key at once would each make a list of their own
            waiting = group.threads.messages[group_src, group.rank]
        group.threads.wait(lambda: waiting)
        sent = waiting.pop(0)
        assert (sent.dtype, sent.shape) == (tensor.dtype, tensor.shape)
        tensor.copy_(sent)


def on_ranks(size, act, group=None):
    """What `act(communicator)` returns on each of `size` ranks; the first error of a rank is raised."""
    group, results, errors = group or Group(size), [None] * size, []

    def work(rank):
        try:
            results[rank] = act(ThreadRank.of(group, rank))
        except BaseException as error:  # raised below
            errors.append(error)
            group.fail()

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SECONDS)
    if errors:
        raise errors[0]
    return results


def on_torch_ranks(size, act):
    """What `act(rank)` returns on each of `size` threads, to which torch.distributed and FSDP2 look like processes."""
    require("torch 2.13", torch.__version__ >= "2.13")  # seen at 2.11: its ThreadLocalWorld lacks `comms`
    results, errors = [None] * size, []
    isolate = torch._C._distributed_c10d._set_thread_isolation_mode
    isolate(True)
    multi_threaded_pg._install_threaded_pg()
    store = distributed.HashStore()

    def work(rank):
        try:
            distributed.init_process_group("threaded", rank=rank, world_size=size, store=store)
            results[rank] = act(rank)
            distributed.destroy_process_group()
        except BaseException as error:  # raised below
            errors.append(error)
            multi_threaded_pg.ProcessLocalGroup.exception_handle(error)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * SECONDS)
    finally:
        multi_threaded_pg.ProcessLocalGroup.reset()
        multi_threaded_pg._uninstall_threaded_pg()
        isolate(False)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a rank waits for another that never came"
    return results
