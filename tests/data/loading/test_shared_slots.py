"""Slots of memory, written and read in one process over a real pipe."""

import gc
import multiprocessing
import os
import tempfile
from multiprocessing import reduction
from pathlib import Path

import pytest
import torch

from descend.data.loading import shared_slots
from descend.data.loading.shared_slots import SlotReader, SlotWriter

TENSORS = {
    "x": torch.arange(12.0).reshape(3, 4).t(),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "same": torch.ones(1, dtype=torch.int64).expand(5),
    "none": torch.empty(0, 7),
    "flag": torch.tensor([True, False]),
}


@pytest.fixture
def pair():
    """A function that sends tensors through a slot: what the reader sees, and whether the slot is new."""
    ours, theirs = multiprocessing.Pipe()
    writer, reader = SlotWriter(), SlotReader()

    def send(tensors):
        content, descriptor = writer.put(tensors, reader.take_freed())
        theirs.send(content)
        if descriptor is not None:
            reduction.send_handle(theirs, descriptor, os.getpid())
            os.close(descriptor)
        return reader.tensors(ours.recv(), ours), content

    yield send
    ours.close()
    theirs.close()


def equal(found, wanted):
    return found.keys() == wanted.keys() and all(
        found[name].dtype == one.dtype and torch.equal(found[name], one) for name, one in wanted.items()
    )


@pytest.mark.parametrize("shared", [True, False])
def test_tensors_of_any_type_and_layout(pair, monkeypatch, shared):
    monkeypatch.setattr(shared_slots, "CAN_SHARE", shared)
    found, content = pair(TENSORS)
    assert equal(found, TENSORS)
    assert (content.bytes is None) == shared
    found["x"] += 1  # it is the caller's


def test_a_slot_is_filled_again_when_the_last_of_its_tensors_is_gone(pair):
    first, content = pair({"x": torch.zeros(8), "y": torch.zeros(8)})
    held = first["y"][2:4]  # a view keeps the slot
    del first
    _, second = pair({"x": torch.ones(8)})
    assert (content.slot, second.slot) == (0, 1)
    assert held.tolist() == [0, 0]
    del held
    gc.collect()
    third, third_content = pair({"x": torch.full((16,), 3.0)})
    assert (third_content.slot, third_content.is_new) in ((0, False), (1, True))
    assert third["x"].tolist() == [3.0] * 16


def test_slots_that_are_too_small_are_replaced_and_not_kept(pair):
    slots = set()
    for size in (10, 100_000, 10, 1_000_000):
        found, content = pair({"x": torch.arange(size)})
        assert torch.equal(found["x"], torch.arange(size))
        slots.add(content.slot)
        del found
    assert slots == {0}


def test_no_descriptor_stays_open(pair):
    before = len(list(Path("/proc/self/fd").iterdir()))
    held = [pair({"x": torch.zeros(4)})[0] for _ in range(10)]
    assert len({one["x"].data_ptr() for one in held}) == 10
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("what", ["no anonymous files and a full disk", "nothing can be mapped"])
def test_without_memory_to_share_batches_come_in_the_message(monkeypatch, what):
    def fails(*given, **options):
        raise (OSError if "disk" in what else RuntimeError)("none")

    if "disk" in what:
        monkeypatch.setattr(os, "memfd_create", fails)
        monkeypatch.setattr(tempfile, "TemporaryFile", fails)
    else:
        monkeypatch.setattr(shared_slots, "_mapped", fails)
    before = len(list(Path("/proc/self/fd").iterdir()))
    content, descriptor = SlotWriter().put({"x": torch.arange(5)}, [])
    assert descriptor is None
    reader = SlotReader()
    assert reader.tensors(content, None)["x"].tolist() == [0, 1, 2, 3, 4]
    assert reader.take_freed() == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before
