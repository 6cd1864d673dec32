"""Gradients of several ranks, which are threads, summed in buckets: against plain sums of what each rank computed."""

import pytest
import torch
from thread_ranks import Distributed, Group, on_ranks
from torch import nn

from descend.errors import Unsupported
from descend.runtime import Communicator
from descend.runtime.shared_memory import SharedAllReduce
from descend.train.strategies import buckets
from descend.train.strategies.buckets import BucketAllocator, GradientReducer


@pytest.fixture
def threads(monkeypatch):
    monkeypatch.setattr(buckets, "distributed", Distributed)


def parameters(**shapes):
    draw = torch.Generator().manual_seed(0)
    return {name: nn.Parameter(torch.randn(shape, generator=draw)) for name, shape in shapes.items()}


def allocator(weights, bucket_bytes):
    return BucketAllocator(weights, Communicator(), bucket_bytes, pytest.fail)


def test_buckets_hold_neighbours_from_the_last_parameter_to_the_first():
    weights = parameters(a=(2,), b=(3,), c=(4,), d=(5,))
    found = allocator(weights, 24).allocate(list(weights))
    assert [(one.names, one.sizes, one.buffer.numel()) for one in found] == [
        (["d", "c"], [5, 4], 9),  # 20 bytes are too few for a bucket, 36 are enough
        (["b", "a"], [3, 2], 5),
    ]
    assert [one.names for one in allocator(weights, 1).allocate(list(weights))] == [["d"], ["c"], ["b"], ["a"]]
    assert allocator(weights, 24).allocate([]) == []


def test_parameters_of_different_types_are_in_different_buckets():
    weights = {**parameters(a=(2,), b=(3,)), "c": nn.Parameter(torch.zeros(2, dtype=torch.float64))}
    found = allocator(weights, 1 << 20).allocate(["a", "b", "c"])
    assert [(one.names, one.buffer.dtype) for one in found] == [
        (["c"], torch.float64),
        (["b", "a"], torch.float32),
    ]


def test_a_place_is_a_view_into_the_buffer():
    [bucket] = allocator(parameters(a=(2,), b=(1, 3)), 1 << 20).allocate(["a", "b"])
    bucket.views()["b"].fill_(2.0)
    bucket.views()["a"].fill_(1.0)
    assert bucket.buffer.tolist() == [2, 2, 2, 1, 1]


def gradients(communicator, rank_loss, divisor=1.0, group_bytes=1, **settings):
    """One step of `rank_loss(weights, rank)` on each rank; the gradients afterwards, and the reducer."""
    weights = parameters(a=(2,), b=(3,), c=(4,))
    reducer = GradientReducer(weights, communicator, group_bytes, **settings)
    reducer.begin(divisor)
    reducer.watch()
    loss = rank_loss(weights, communicator.rank)
    if loss is not None:
        loss.backward()
    reducer.send()
    counts = communicator.all_reduce(reducer.counts())
    reducer.wait()
    reducer.scatter(counts)
    reducer.close()
    return {name: p.grad for name, p in weights.items()}, reducer


def square(weights, rank):
    return (rank + 1) * sum(p.square().sum() for p in weights.values())


@pytest.mark.parametrize("group_bytes", [1, 24, 1 << 20])
def test_every_rank_gets_the_sum_divided_by_the_divisor(threads, group_bytes):
    found = on_ranks(3, lambda rank: gradients(rank, square, 4.0, group_bytes))
    for grads, reducer in found:
        for name, p in parameters(a=(2,), b=(3,), c=(4,)).items():
            torch.testing.assert_close(grads[name], 2 * p.detach() * (1 + 2 + 3) / 4.0)
        assert reducer.sent_bytes == 4 * 9


def test_buckets_are_sent_in_one_order_whatever_the_order_in_which_they_fill(threads):
    """Rank 1 uses the parameters in the opposite order and never completes 'c' before `send`."""

    def loss(weights, rank):
        a, b, c = weights.values()
        return c.sum() * 2 + a.sum() + b.sum() if rank == 0 else a.prod() * b.prod()

    group = Group(2)
    (first, _), (second, _) = on_ranks(2, lambda rank: gradients(rank, loss), group)
    assert group.order == [[4, 3, 2, 3]] * 2  # c, b, a, and the counts
    weights = parameters(a=(2,), b=(3,), c=(4,))
    a, b, c = weights.values()
    (c.sum() * 2 + a.sum() + b.sum() + a.prod() * b.prod()).backward()
    for name, p in weights.items():
        torch.testing.assert_close(first[name], p.grad)
        assert torch.equal(first[name], second[name])


def test_a_bucket_is_sent_within_the_backward_pass_as_soon_as_those_before_it(threads):
    group, sent = Group(1), []

    def act(communicator):
        weights = parameters(a=(2,), b=(3,), c=(4,))
        reducer = GradientReducer(weights, communicator, 1)
        reducer.begin()
        (2 * weights["c"]).sum().backward()  # an earlier micro-batch: nothing is sent
        sent.append(list(group.order[0]))
        reducer.watch()
        (weights["c"].sum() + weights["a"].sum()).backward()
        sent.append(list(group.order[0]))  # 'a' waits for 'b', which gets no gradient
        reducer.send()
        sent.append(list(group.order[0]))
        reducer.wait()
        reducer.scatter(reducer.counts())
        reducer.close()
        return {name: None if p.grad is None else p.grad.tolist() for name, p in weights.items()}

    assert on_ranks(1, act, group) == [{"a": [1.0] * 2, "b": None, "c": [3.0] * 4}]
    assert sent == [[], [4], [4, 3, 2]]


def test_a_gradient_on_no_rank_stays_away_and_a_missing_one_counts_as_zero(threads):
    def loss(weights, rank):
        return weights["a"].sum() if rank == 0 else None

    for grads, reducer in on_ranks(2, lambda rank: gradients(rank, loss)):
        assert grads["a"].tolist() == [1.0, 1.0]
        assert grads["b"] is None
        assert grads["c"] is None
        assert sorted(reducer.local) == (["a"] if reducer.process.rank == 0 else [])


def test_frozen_parameters_are_not_sent_and_what_is_trained_may_change(threads):
    group = Group(1)

    def act(communicator):
        weights = parameters(a=(2,), b=(3,))
        weights["b"].requires_grad_(False)
        reducer, found = GradientReducer(weights, communicator, 1), []
        for trained in (False, True):
            weights["b"].requires_grad_(trained)
            reducer.begin()
            reducer.watch()
            sum(p.square().sum() for p in weights.values()).backward()
            reducer.send()
            reducer.wait()
            found.append(list(group.order[0]))
        return found

    assert on_ranks(1, act, group) == [[[2], [2, 3, 2]]]


def test_without_sums_each_rank_keeps_its_gradient_and_has_zero_where_another_has_one(threads):
    def loss(weights, rank):
        return (rank + 1) * weights["a"].sum() if rank == 0 else weights["b"].sum()

    found = on_ranks(2, lambda rank: gradients(rank, loss, summed=False))
    assert [grads["a"].tolist() for grads, _ in found] == [[1.0, 1.0], [0.0, 0.0]]
    assert [grads["b"].tolist() for grads, _ in found] == [[0.0] * 3, [1.0] * 3]
    assert [grads["c"] for grads, _ in found] == [None, None]
    assert [reducer.sent_bytes for _, reducer in found] == [0, 0]


def embedding_step(reducer, table, places, communicator):
    table.grad = None
    reducer.begin(2.0)
    reducer.watch()
    if places:
        nn.functional.embedding(torch.tensor(places), table, sparse=True).sum().backward()
    reducer.send()
    counts = communicator.all_reduce(reducer.counts())
    reducer.wait()
    reducer.scatter(counts)
    return table.grad


def test_sparse_gradients_are_summed_by_row_and_leave_the_buckets(threads):
    group = Group(2)

    def act(communicator):
        table = nn.Parameter(torch.zeros(5, 2))
        reducer = GradientReducer({"table": table}, communicator)
        places = [0, 3, 3] if communicator.rank == 0 else []
        return [embedding_step(reducer, table, places, communicator) for _ in range(2)]

    for grads in on_ranks(2, act, group):
        for grad in grads:
            assert grad.is_sparse
            assert grad.to_dense()[:, 0].tolist() == [0.5, 0, 0, 1.0, 0]
    # The first step sends a bucket of 10 numbers in vain, the second none.
    assert [sizes.count(10) for sizes in group.order] == [1, 1]


def test_a_gradient_that_is_sparse_on_one_rank_only_is_refused(threads):
    def act(communicator):
        table = nn.Parameter(torch.ones(5, 2))
        reducer = GradientReducer({"table": table}, communicator)
        if communicator.rank == 0:
            return embedding_step(reducer, table, [1], communicator)
        reducer.begin()
        table.sum().backward()
        reducer.send()
        counts = communicator.all_reduce(reducer.counts())
        reducer.wait()
        return reducer.scatter(counts)

    with pytest.raises(Unsupported, match="sparse gradient on one rank and a dense one on another"):
        on_ranks(2, act)


def test_a_gradient_in_several_pieces_names_the_parameter_and_the_remedy(threads):
    def act(communicator):
        weights = parameters(a=(2,))
        reducer = GradientReducer(weights, communicator)
        reducer.begin()
        reducer.watch()
        weights["a"].sum().backward()
        weights["a"].sum().backward()

    with pytest.raises(Unsupported, match=r"gradient of 'a' comes in several pieces.*use_reentrant=False"):
        on_ranks(1, act)


def test_after_close_a_backward_pass_is_torch_s_own(threads):
    def act(communicator):
        weights = parameters(a=(2,))
        reducer = GradientReducer(weights, communicator)
        reducer.begin()
        reducer.watch()
        reducer.close()
        weights["a"].sum().backward()
        weights["a"].sum().backward()
        return weights["a"].grad.tolist(), reducer.sent_bytes

    assert on_ranks(1, act) == [([2.0, 2.0], 0)]


def test_buckets_in_memory_that_all_ranks_see_are_summed_without_messages(monkeypatch):
    group, memory = Group(2), [torch.zeros(1024, dtype=torch.uint8) for _ in range(2)]
    monkeypatch.setattr(buckets, "LEAST_SHARED_BYTES", 1)
    monkeypatch.setattr(buckets, "shared_memory", lambda process, size, say: memory)
    monkeypatch.setattr(buckets, "distributed", type("Sized", (), {"get_world_size": staticmethod(lambda: 2)}))
    found = on_ranks(2, lambda rank: gradients(rank, square, 2.0, 24), group)
    for grads, _ in found:
        for name, p in parameters(a=(2,), b=(3,), c=(4,)).items():
            torch.testing.assert_close(grads[name], 2 * p.detach() * 3 / 2.0)
    assert group.order == [[3, 1]] * 2  # the counts, and the number with which the ranks meet after the sums


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("group_bytes", [1, 100, 1 << 20])
def test_sums_in_shared_memory_have_the_bits_of_sums_in_the_order_of_ranks(ranks, group_bytes, monkeypatch):
    """Of parameters within a rank's part, across both ends of it and outside, whatever their gradients are."""
    memory = [torch.full((4096,), 255, dtype=torch.uint8) for _ in range(ranks)]  # NaN, were any of it read
    monkeypatch.setattr(buckets, "LEAST_SHARED_BYTES", 1)
    monkeypatch.setattr(buckets, "shared_memory", lambda process, size, say: memory)
    monkeypatch.setattr(buckets, "distributed", type("Sized", (), {"get_world_size": staticmethod(lambda: ranks)}))
    monkeypatch.setattr("descend.runtime.shared_memory._CHUNK", 5)
    shapes = {"a": (7, 5), "b": (1,), "c": (3, 4), "d": (), "e": (2,), "f": (40,), "g": (6, 6)}
    draw = torch.Generator().manual_seed(1)
    drawn = [
        [{name: torch.randn(shape, generator=draw) for name, shape in shapes.items()} for _ in range(ranks)]
        for _ in range(2)
    ]
    for step, given in enumerate(drawn):
        for name in ("c", "g"):  # which are transposed on one rank
            given[1][name] = given[1][name].t().contiguous().t()
        given[0][("f", "a")[step]] = None

    def act(communicator):
        weights = parameters(**shapes)
        reducer, found = GradientReducer(weights, communicator, group_bytes), []
        for given in drawn:
            reducer.begin(4.0)
            reducer.watch()
            for name, p in reversed(weights.items()):
                p.grad, gradient = None, given[communicator.rank][name]
                if gradient is not None and name != "e":
                    (p * gradient).sum().backward()
            weights["e"].grad = given[communicator.rank]["e"]  # which no hook sees
            reducer.send()
            counts = communicator.all_reduce(reducer.counts())
            reducer.wait()
            reducer.scatter(counts)
            found.append({name: p.grad.clone() for name, p in weights.items()})
            communicator.all_reduce(torch.zeros(1))
        return found

    for found in on_ranks(ranks, act):
        for mine, given in zip(found, drawn, strict=True):
            for name, shape in shapes.items():
                parts = [torch.zeros(shape) if one[name] is None else one[name] / 4.0 for one in given]
                total = parts[0].clone()
                for part in parts[1:]:
                    total += part
                assert torch.equal(mine[name], total), name


def test_a_gradient_that_lies_in_the_bucket_is_summed_where_it_is(monkeypatch):
    """As after `zero_grad(set_to_none=False)`: the next backward pass adds to the sum of the step before."""
    memory = [torch.zeros(1024, dtype=torch.uint8) for _ in range(2)]
    monkeypatch.setattr(buckets, "LEAST_SHARED_BYTES", 1)
    monkeypatch.setattr(buckets, "shared_memory", lambda process, size, say: memory)
    monkeypatch.setattr(buckets, "distributed", type("Sized", (), {"get_world_size": staticmethod(lambda: 2)}))

    def act(communicator):
        weights, found = parameters(a=(9,), b=(4,)), []
        reducer = GradientReducer(weights, communicator)
        for factor in (1.0, 10.0):
            for p in weights.values():
                if p.grad is not None:
                    p.grad.zero_()
            communicator.all_reduce(torch.zeros(1))
            reducer.begin(2.0)
            reducer.watch()
            sum((factor * (communicator.rank + 1) * p).sum() for p in weights.values()).backward()
            reducer.send()
            counts = communicator.all_reduce(reducer.counts())
            reducer.wait()
            reducer.scatter(counts)
            found.append([p.grad.tolist() for p in weights.values()])
            communicator.all_reduce(torch.zeros(1))
        return found

    expected = [[[1.5] * 9, [1.5] * 4], [[15.0] * 9, [15.0] * 4]]
    assert on_ranks(2, act) == [expected] * 2


def test_a_bucket_is_full_at_the_size_that_was_asked_for():
    weights = parameters(a=(2,), b=(3,), c=(3,))
    assert [one.names for one in allocator(weights, 24).allocate(list(weights))] == [["c", "b"], ["a"]]
    assert [one.names for one in allocator(weights, 12).allocate(list(weights))] == [["c"], ["b"], ["a"]]


@pytest.fixture
def shared(monkeypatch):
    """What is asked of shared memory, in bytes. A host of eight cores, two ranks of two threads each."""
    asked = []

    def memory(process, size, say):
        asked.append(size)
        return [torch.zeros(size, dtype=torch.uint8) for _ in range(2)]

    monkeypatch.setattr(buckets, "shared_memory", memory)
    monkeypatch.setattr(buckets, "LEAST_SHARED_BYTES", 64)
    monkeypatch.setattr(buckets, "distributed", type("Two", (), {"get_world_size": staticmethod(lambda: 2)}))
    monkeypatch.setattr(buckets.torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(buckets, "cores", lambda: 8)
    monkeypatch.setattr(SharedAllReduce, "among", lambda communicator, awake, say: None)
    return asked


def of_rank_zero(weights, communicator=None):
    return BucketAllocator(weights, communicator or Communicator(0, 2), 1, pytest.fail)


def test_memory_is_shared_from_a_size_on_and_asked_for_again_only_to_grow(shared):
    weights = parameters(a=(2,), b=(16,), c=(16,))
    one = of_rank_zero(weights)
    for trained, sizes in [(["a", "b"], [128]), (["b"], [128]), (["a", "b"], [128]), (["a", "b", "c"], [128, 192])]:
        found = one.allocate(trained)
        assert shared == sizes
        assert all(len(bucket.of_each) == 2 for bucket in found)
    assert of_rank_zero(weights).allocate(["b"])[0].of_each  # 64 bytes are enough


def test_too_few_bytes_are_not_shared_and_a_refusal_is_not_asked_about_again(shared, monkeypatch):
    monkeypatch.setattr(buckets, "LEAST_SHARED_BYTES", 129)
    weights = parameters(a=(2,), b=(16,))
    assert all(not one.of_each for one in of_rank_zero(weights).allocate(["a", "b"]))
    assert shared == []
    monkeypatch.setattr(buckets, "LEAST_SHARED_BYTES", 1)
    monkeypatch.setattr(buckets, "shared_memory", lambda process, size, say: shared.append(size) or [])
    communicator = Communicator(0, 2)
    one = of_rank_zero(weights, communicator)
    assert all(not bucket.of_each for bucket in one.allocate(["a"]) + one.allocate(["a", "b"]))
    assert shared == [64]
    assert not communicator.status.awake


@pytest.mark.parametrize(("cores", "awake"), [(8, True), (4, True), (3, False)])
def test_ranks_stay_awake_where_each_thread_has_a_core(shared, monkeypatch, cores, awake):
    monkeypatch.setattr(buckets, "cores", lambda: cores)
    communicator = Communicator(0, 2)
    of_rank_zero(parameters(a=(32,)), communicator).allocate(["a"])
    assert communicator.status.awake is awake


def test_gradients_that_no_hook_copied_are_sent_and_those_of_a_step_before_are_not(threads):
    """Without `watch`, as where the last micro-batch is padding."""

    def act(communicator):
        weights = parameters(a=(2,), b=(3,))
        reducer, found = GradientReducer(weights, communicator, 1), []
        assert reducer.room == 2
        for used in ({0: "ab", 1: ""}, {0: "b", 1: "a"}):
            for p in weights.values():
                p.grad = None
            reducer.begin()
            if used[communicator.rank]:
                sum(2 * weights[name].sum() for name in used[communicator.rank]).backward()
            reducer.send()
            counts = communicator.all_reduce(reducer.counts())
            reducer.wait()
            reducer.scatter(counts)
            found.append({name: p.grad.tolist() for name, p in weights.items()})
        return found

    assert on_ranks(2, act) == [[{"a": [2.0] * 2, "b": [2.0] * 3}] * 2] * 2
