"""Sums in memory that ranks share, each of which is done here in turn."""

import resource

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from system_needs import needs_linux

from descend.runtime import shared_memory as shared


@given(st.integers(2, 5), st.integers(0, 40), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_every_rank_has_the_sum_in_the_order_of_ranks(ranks, count, at_once, seed):
    given = np.random.default_rng(seed).normal(size=(ranks, count)).astype(np.float32)
    some = [torch.from_numpy(one.copy()) for one in given]
    whole = shared._CHUNK
    shared._CHUNK = at_once
    try:
        for rank in range(ranks):
            shared.all_reduce_shared(some, rank)
    finally:
        shared._CHUNK = whole
    expected = given[0].copy()
    for one in given[1:]:
        expected += one
    for one in some:
        np.testing.assert_array_equal(one.numpy(), expected)
    owner, some = seed % ranks, [torch.from_numpy(one.copy()) for one in given]
    shared.reduce_shared(some, owner)
    for rank, one in enumerate(some):
        np.testing.assert_array_equal(one.numpy(), expected if rank == owner else given[rank])


@needs_linux
def test_a_shortage_of_memory_is_reported():
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        assert shared._create(4096) == (None, "4,096 bytes: File too large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
