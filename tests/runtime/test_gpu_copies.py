"""The order of what is launched to bring a batch to a GPU, recorded on a pretended one; nothing waits on the host."""

import contextlib

import pytest
import torch

from descend.data.tensor_reader import STAGED_BYTES
from descend.runtime import gpu_copies
from descend.runtime.communicator import Communicator


class Pretended:
    """Streams, events and tensors of a GPU that note what is asked of them."""

    def __init__(self, log, name):
        self.log, self.name = log, name

    def record(self, stream):
        self.log.append(f"record in {stream.name}")

    def wait_event(self, event):
        self.log.append(f"{self.name} waits for {event.name}")


class Host:
    """A tensor of the host."""

    device = torch.device("cpu")

    def __init__(self, log, pinned=False, nbytes=2**20):
        self.log, self.pinned, self.nbytes = log, pinned, nbytes

    def is_pinned(self):
        return self.pinned

    def pin_memory(self):
        self.log.append("pin")
        return Host(self.log, True, self.nbytes)

    def to(self, device, non_blocking):
        assert self.pinned or self.nbytes <= STAGED_BYTES
        assert non_blocking
        self.log.append("copy")
        return self

    def record_stream(self, stream):
        self.log.append(f"keep for {stream.name}")


@pytest.fixture
def log(monkeypatch):
    seen = []
    events = []

    def event():
        events.append(Pretended(seen, f"event {len(events)}"))
        return events[-1]

    @contextlib.contextmanager
    def within(stream):
        seen.append(f"in {stream.name}")
        yield
        seen.append("out")

    copies, compute = Pretended(seen, "copies"), Pretended(seen, "compute")
    monkeypatch.setattr(gpu_copies, "_stream", lambda device: copies)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: compute)
    monkeypatch.setattr(torch.cuda, "stream", within)
    monkeypatch.setattr(torch.cuda, "Event", event)
    return seen


def test_a_batch_is_copied_beside_the_step_and_the_next_launches_wait(log):
    """Its fields together, since each change of streams costs the host more than a copy."""
    gpu_copies.send_to_gpu([Host(log), Host(log, pinned=True)], torch.device("cuda:0"))
    assert log == [
        "pin",
        "in copies",
        "copy",
        "copy",
        "record in copies",
        "out",
        "compute waits for event 0",
        "keep for compute",
        "keep for compute",
    ]


def test_a_small_batch_is_copied_in_the_stream_of_the_step(log):
    gpu_copies.send_to_gpu([Host(log, nbytes=2**19), Host(log, nbytes=2**17)], torch.device("cuda:0"))
    assert log == ["pin", "pin", "copy", "copy"]


def test_what_cuda_stages_by_itself_needs_no_page_locked_memory(log):
    gpu_copies.send_to_gpu([Host(log, nbytes=2**17), Host(log, nbytes=8)], torch.device("cuda:0"))
    assert log == ["pin", "copy", "copy"]


def test_a_number_on_its_way_to_the_host_is_the_one_that_was_sent():
    value = torch.tensor(2.5)
    sent = gpu_copies.HostNumber(value)
    value.fill_(7.0)
    assert sent.read() == 2.5


def test_the_run_sends_batches_so(log, monkeypatch):
    x = torch.zeros(2**18)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: True)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device, non_blocking: log.append("copy") or self)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    assert Communicator(device=torch.device("cuda:0")).to_device({"x": x})["x"] is x
    assert log == ["in copies", "copy", "record in copies", "out", "compute waits for event 0"]
