"""Gradients summed over ranks, in a few large pieces, while the backward pass is still running.

    bucket        gradients of neighbouring weights, last layers first, side by side in one buffer
    hook          copies a gradient into its bucket as soon as it is whole; a bucket that is full is sent
    send          sends the rest
                  here the ranks meet
    wait          waits for the sums
    put           puts them in the places of the gradients

Buckets are sent in one order on all ranks, whatever the order in which they fill up. A parameter without a
gradient on some ranks counts as zero there, and one without on all ranks stays without.

Where all ranks compute on the CPUs of one host their buckets are in memory that all of them map. Nothing is sent then:
once the ranks have met, each adds up a part of every bucket.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from descend.errors import Unsupported
from descend.launch import cores
from descend.runtime.shared_memory import all_reduce_shared, shared_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from descend.runtime import Communicator

__all__ = ["BUCKET_BYTES", "Bucket", "BucketAllocator", "GradientReducer"]

BUCKET_BYTES = 4 << 20  # at 2 gloo ranks a sum of 4 MB takes 5 ms, of 4 bytes 0.3 ms
LEAST_SHARED_BYTES = 1 << 18  # of all gradients together; fewer take gloo no longer
_ALIGNED = 64  # bytes; where a bucket begins
_SPARSE = 2**20  # more than there are ranks: tells sparse gradients from others in a sum over ranks


@dataclass
class Bucket:
    """Weights whose gradients are sent together.

    Attributes:
        names: Of the weights.
        sizes: Elements of each.
        buffer: (elements of all,), this rank's.
        of_each: That of each rank, where all see them.
        missing: How many gradients have not been copied yet.
        work: The sum that is under way.
    """

    names: list[str]
    sizes: list[int]
    buffer: torch.Tensor
    of_each: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    missing: int = 0
    work: Any = None

    def views(self) -> dict[str, torch.Tensor]:
        """The place of each gradient, flat."""
        return dict(zip(self.names, self.buffer.split(self.sizes), strict=True))


class BucketAllocator:
    """Divides parameters into buckets, in memory that all ranks of a host see where there is some.

    Args:
        weights: By name.
        process: This process among its ranks.
        bucket_bytes: Least size of a bucket.
        say: Prints for the user where ranks of one host can share no memory.
    """

    def __init__(
        self,
        weights: Mapping[str, torch.nn.Parameter],
        process: Communicator,
        bucket_bytes: int,
        say: Callable[[str], None],
    ) -> None:
        self._weights, self._process, self._bucket_bytes, self._say = weights, process, bucket_bytes, say
        self._memory: list[torch.Tensor] | None = None

    def allocate(self, trained: list[str]) -> list[Bucket]:
        """The buckets of these parameters, the last ones first: their gradients are the first to be complete."""
        together = self.divide(trained)
        ends = list(itertools.accumulate(self._room(names) for names in together))
        memory = self._shared(ends[-1]) if ends else []
        return [
            self._bucket(names, [one[end - self._room(names) : end] for one in memory])
            for names, end in zip(together, ends, strict=True)
        ]

    def divide(self, trained: list[str]) -> list[list[str]]:
        """The names of the weights of each bucket: neighbours, the last ones first."""
        found: list[list[str]] = []
        some: list[str] = []
        for i, name in enumerate(reversed(trained)):
            some.append(name)
            following = self._weights[trained[-2 - i]] if i + 1 < len(trained) else None
            p = self._weights[name]
            held = sum(self._weights[other].numel() for other in some) * p.element_size()
            if following is None or held >= self._bucket_bytes or _kind(following) != _kind(p):
                found.append(some)
                some = []
        return found

    def _room(self, names: list[str]) -> int:
        """Bytes that the gradients of some weights take, and what is left free behind them."""
        size = sum(self._weights[name].numel() * self._weights[name].element_size() for name in names)
        return -(-size // _ALIGNED) * _ALIGNED

    def _shared(self, size: int) -> list[torch.Tensor]:
        """At least so many bytes of each rank that all see; an empty list where they do not."""
        if self._process.device.type != "cpu" or size < LEAST_SHARED_BYTES:
            return []
        if self._memory is None or (self._memory and len(self._memory[0]) < size):
            self._memory = shared_memory(self._process, size, self._say)
            if self._memory:
                enough = distributed.get_world_size() * torch.get_num_threads() <= cores()
                self._process.use_shared_memory(enough, self._say)
        return self._memory

    def _bucket(self, names: list[str], memory: Sequence[torch.Tensor]) -> Bucket:
        """The bucket of some weights, in memory of each rank where there is such a thing."""
        sizes = [self._weights[name].numel() for name in names]
        kind = _kind(self._weights[names[0]])[0]
        if memory:
            of_each = [one.view(kind)[: sum(sizes)] for one in memory]
            return Bucket(names, sizes, of_each[self._process.rank], of_each)
        return Bucket(names, sizes, torch.zeros(sum(sizes), dtype=kind, device=self._process.device))


@dataclass
class GradientReducer:
    """What sums the gradients of some weights over ranks.

    Args:
        weights: By name; those that are not trained take no part.
        process: This process among its ranks.
        bucket_bytes: Least size of a bucket; the sums depend on it by rounding at most.
        summed: Whether gradients are summed at all; otherwise each rank keeps its own, and 0 where it has none.
        say: Prints for the user where ranks of one host can share no memory.

    Attributes:
        sent_bytes: What this rank has handed to sums of gradients so far.
        local: Gradients of this rank alone in the newest step, by name, until the next one.
    """

    weights: Mapping[str, torch.nn.Parameter]
    process: Communicator
    bucket_bytes: int = BUCKET_BYTES
    summed: bool = True
    say: Callable[[str], None] = lambda text: None
    sent_bytes: int = 0
    local: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    _buckets: list[Bucket] = field(default_factory=list[Bucket])
    _place: dict[str, tuple[Bucket, torch.Tensor]] = field(default_factory=dict[str, tuple[Bucket, torch.Tensor]])
    _copied: set[str] = field(default_factory=set[str])
    _sparse: set[str] = field(default_factory=set[str])
    _hooks: list[Any] = field(default_factory=list[Any])
    _sent: int = 0
    _watching: bool = False
    _divisor: float = 1.0

    def __post_init__(self) -> None:
        self.allocator = BucketAllocator(self.weights, self.process, self.bucket_bytes, self.say)

    @property
    def room(self) -> int:
        """How many numbers `counts` gives."""
        return len(self.weights)

    def begin(self, divisor: float = 1.0) -> None:
        """Forget the step before; what is trained now decides what is sent.

        Args:
            divisor: What gradients are divided by on their way into the buckets, the same on all ranks.
        """
        self._divisor = divisor
        trained = [name for name, p in self.weights.items() if p.requires_grad and name not in self._sparse]
        trained = trained if self.summed else []
        if trained != [name for bucket in reversed(self._buckets) for name in reversed(bucket.names)]:
            self._lay_out(trained)
        for bucket in self._buckets:
            bucket.missing, bucket.work = len(bucket.names), None
        self.local = {}
        self._copied.clear()
        self._sent, self._watching = 0, False

    def watch(self) -> None:
        """From here on a gradient is whole once it has been accumulated: the last backward pass begins."""
        self._watching = True

    def send(self) -> None:
        """Send what has not been sent; every rank does, whatever it has come to."""
        self._watching = False
        for name, (_, view) in self._place.items():
            if name not in self._copied:
                gradient = self.weights[name].grad
                if gradient is None or gradient.is_sparse:
                    view.zero_()
                else:
                    _take(gradient, view, self._divisor)
        for bucket in self._buckets[self._sent :]:
            self.send_bucket(bucket)

    def wait(self) -> None:
        """Wait for the sums; they are in the buckets afterwards. All ranks have met since they called `send`."""
        shared = any(bucket.of_each for bucket in self._buckets)
        for bucket in self._buckets:
            if bucket.of_each:
                self.sum_shared(bucket)
        if shared:
            self.process.all_reduce(torch.zeros(1))  # no rank changes a bucket that others still read or write
            return
        with self.process.status.wait("the sum of gradients"):
            for bucket in self._buckets:
                bucket.work.wait()

    def counts(self) -> torch.Tensor:
        """(weights,) float64: 1 where this rank has a gradient, more where it is sparse."""
        gradients = [p.grad for p in self.weights.values()]
        return torch.tensor(
            [0.0 if g is None else _SPARSE if g.is_sparse else 1.0 for g in gradients], dtype=torch.float64
        )

    def scatter(self, counts: torch.Tensor) -> None:
        """Give every parameter the sum of its gradients over all ranks.

        Args:
            counts: What `counts` gives, summed over ranks.
        """
        for (name, p), count in zip(self.weights.items(), counts.tolist(), strict=True):
            if p.grad is not None:
                self.local[name] = p.grad
            if count >= _SPARSE and self.summed:
                self._sparse.add(name)
                p.grad = _sparse_sum(p, self._divisor, self.process, dense=count % _SPARSE)
            elif count == 0:
                p.grad = None
            elif not self.summed:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            else:
                p.grad = self._place[name][1].view(p.shape)

    def close(self) -> None:
        """Leave the weights as they were."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    # ---- inside

    def _lay_out(self, trained: list[str]) -> None:
        """Allocate buckets, and hook the parameters to them."""
        self.close()
        self._buckets = self.allocator.allocate(trained)
        self._place = {name: (bucket, view) for bucket in self._buckets for name, view in bucket.views().items()}
        self._hooks = [self.weights[name].register_post_accumulate_grad_hook(self._hook(name)) for name in self._place]

    def _hook(self, name: str) -> Callable[[torch.Tensor], None]:
        def copy(p: torch.Tensor) -> None:
            if not self._watching or p.grad is None or p.grad.is_sparse:
                return
            bucket, view = self._place[name]
            if name in self._copied:
                raise Unsupported(
                    f"the gradient of '{name}' comes in several pieces within one backward pass, as with reentrant "
                    "checkpointing; call torch.utils.checkpoint with use_reentrant=False"
                )
            _take(p.grad, view, self._divisor)
            self._copied.add(name)
            bucket.missing -= 1
            while self._sent < len(self._buckets) and not self._buckets[self._sent].missing:
                self.send_bucket(self._buckets[self._sent])

        return copy

    def send_bucket(self, bucket: Bucket) -> None:
        """Hand over a bucket whose gradients are there."""
        self.sent_bytes += bucket.buffer.nbytes
        if not bucket.of_each:
            with self.process.status.wait("the sum of gradients"):
                bucket.work = self.begin_sum(bucket)
        self._sent += 1

    def begin_sum(self, bucket: Bucket) -> Any:
        """Begin to sum a bucket over ranks; returns what to wait for."""
        return distributed.all_reduce(bucket.buffer, group=self.process.group, async_op=True)

    def sum_shared(self, bucket: Bucket) -> None:
        """Do this rank's part of the sum of a bucket that all ranks see; they have met, and meet again afterwards."""
        all_reduce_shared(bucket.of_each, self.process.rank)


def _take(gradient: torch.Tensor, view: torch.Tensor, divisor: float) -> None:
    """Put a gradient into its bucket."""
    torch.div(gradient.detach().reshape(-1), divisor, out=view)


def _kind(p: torch.Tensor) -> tuple[torch.dtype, torch.device]:
    return p.dtype, p.device


def _sparse_sum(p: torch.nn.Parameter, divisor: float, process: Communicator, dense: float) -> torch.Tensor:
    """The sum of a sparse gradient over ranks; a rank without one brings no rows."""
    if dense:
        raise Unsupported("a parameter has a sparse gradient on one rank and a dense one on another")
    if p.grad is None:
        places = torch.zeros(1, 0, dtype=torch.int64, device=p.device)
        p.grad = torch.sparse_coo_tensor(places, p.new_zeros(0, *p.shape[1:]), p.shape)
    own = p.grad.coalesce() / divisor
    rows = process.all_gather_cat(own.indices().T)
    values = process.all_gather_cat(own.values())
    return torch.sparse_coo_tensor(rows.T, values, own.shape).coalesce()
