""""""

import ctypes
import gc
import io
import multiprocessing
import os
import subprocess
import sys
import tarfile
import threading
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from system_needs import needs, needs_linux, processors, require

from descend.data import Loading, open_data, read
from descend.data.loading import read_threads
from descend.data.loading import read_threads as freed_memory
from descend.data.loading.read_threads import in_threads, prefetched, share_processors


def test_results_are_in_order_and_from_several_threads():
    used = set()
    together = threading.Barrier(2, timeout=20)

    def task(number):
        used.add(threading.get_ident())
        if number < 2:
            together.wait()  # two tasks at once, or none
        return number * number

    require("two processors", processors() > 1)
    assert in_threads(task, 50) == [number * number for number in range(50)]
    assert len(used) > 1


def test_the_first_error_is_raised():
    def task(number):
        if number >= 3:
            raise ValueError(number)

    with pytest.raises(ValueError, match="3"):
        in_threads(task, 20)


def test_few_tasks_need_no_threads():
    assert in_threads(lambda _: threading.current_thread(), 2) == [threading.current_thread()] * 2
    assert in_threads(str, 0) == []


@pytest.mark.parametrize(("processes", "threads"), [(1, 4), (3, 2), (5, 0), (9, 0)])
def test_processes_that_read_share_the_processors(processes, threads, monkeypatch):
    """A single thread would be the caller's own, so it is none."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(read_threads, "_processes", 1)
    share_processors(processes)
    pool = read_threads._pool.__wrapped__(0)
    assert (0 if pool is None else pool._max_workers) == threads


def alive():
    return [thread for thread in threading.enumerate() if thread.name == "descend-prefetch"]


@pytest.mark.parametrize("ahead", [1, 2, 100])
@pytest.mark.parametrize("n", [0, 1, 2, 50])
def test_same_items_in_the_same_order(n, ahead):
    assert list(prefetched(iter(range(n)), ahead)) == list(range(n))
    assert not alive()


@pytest.mark.parametrize("ahead", [1, 3])
def test_no_more_than_asked_for_is_made_in_advance(ahead):
    made = threading.Semaphore(0)

    def items():
        for i in range(100):
            made.release()
            yield i

    taker = prefetched(items(), ahead)
    assert next(taker) == 0
    for _ in range(ahead + 1):  # the one taken and those in advance
        assert made.acquire(timeout=10)
    assert not made.acquire(timeout=0.05)
    taker.close()


def test_closing_ends_the_thread_while_it_waits_for_room():
    taker = prefetched(iter(range(100)), 1)
    next(taker)
    [thread] = alive()
    assert thread.daemon
    taker.close()
    assert not thread.is_alive()


def test_never_started_means_no_thread():
    prefetched(iter(range(3)), 1).close()
    assert not alive()


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt(), SystemExit(3)])
def test_an_exception_comes_out_after_the_items_before_it(error):
    def items():
        yield 1
        yield 2
        raise error

    taker = prefetched(items(), 5)
    assert [next(taker), next(taker)] == [1, 2]
    with pytest.raises(type(error)) as caught:
        next(taker)
    assert caught.value is error
    assert not alive()


def test_a_program_that_ends_in_the_middle_does_not_hang():
    code = (
        "import itertools\n"
        "from descend.data.loading.read_threads import prefetched\n"
        "taker = prefetched(itertools.count(), 2)\n"
        "assert next(taker) == 0\n"
        "raise SystemExit(7)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 7


# ---- an epoch leaves nothing behind: no buffer, no slot of shared memory, no page that is free

N = 60
PIXELS = np.random.default_rng(0).integers(0, 256, (N, 96, 96, 3)).astype(np.uint8)
BATCH = 12
needs_trim = needs("a C library with malloc_trim", freed_memory._trim() is not None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    (folder / "images" / "a").mkdir(parents=True)
    with tarfile.open(folder / "a.tar", "w") as tar:
        for i, one in enumerate(PIXELS):
            path = folder / "images" / "a" / f"{i:03}.jpg"
            Image.fromarray(one).save(path)
            tar.add(path, f"{i:03}.jpg")
            member = tarfile.TarInfo(f"{i:03}.cls")
            member.size = 1
            tar.addfile(member, io.BytesIO(b"1"))
    columns = {f"c{i}": np.arange(N, dtype=np.float32) + i for i in range(4)}
    pq.write_table(pa.table({**columns, "list": [[1.0] * 20_000] * N}), folder / "a.parquet", row_group_size=16)
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("x", data=PIXELS, chunks=(8, 96, 96, 3), compression="gzip")
    (folder / "a.txt").write_text("a line of text\n" * 20_000)
    return folder


FORMATS = {
    "images": ("images", {"image_size": 224}),
    "tar": ("a.tar", {"image_size": 224}),
    "parquet": ("a.parquet", {}),
    "hdf5": ("a.h5", {}),
    "text": ("a.txt", {"length": 256}),
}


def feed_of(folder, name, workers):
    path, options = FORMATS[name]
    return open_data(read(folder / path, **options), Loading(batch_size=BATCH, workers=workers))


def slots_of(process):
    """Mapped slots of batches of a process, and their bytes."""
    lines = [line.split() for line in Path(f"/proc/{process}/maps").read_text().splitlines()]
    spans = [line[0].split("-") for line in lines if "memfd:descend-batches" in " ".join(line[5:])]
    return len(spans), sum(int(end, 16) - int(begin, 16) for begin, end in spans)


@pytest.mark.parametrize("name", FORMATS)
def test_no_buffer_outlives_its_epoch(folder, name):
    """NumPy and Python tell of each allocation; a batch that is kept would be found in any of them."""
    feed = feed_of(folder, name, 0)
    held = []
    tracemalloc.start()
    for epoch in range(10):
        batch_bytes = max(freed_memory.bytes_of(batch.fields) for batch in feed.epoch(epoch))
        gc.collect()
        held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert max(held[3:]) - held[2] < min(batch_bytes, 100_000)


@pytest.mark.slow
@needs_linux
@pytest.mark.parametrize(("name", "workers"), [*((name, 2) for name in FORMATS), ("images", 1)])
def test_epochs_need_no_more_slots_than_the_first(folder, name, workers):
    feed = feed_of(folder, name, workers)
    found = []
    for epoch in range(10):
        largest = max(freed_memory.bytes_of(batch.fields) for batch in feed.epoch(epoch))
        found.append([slots_of(one) for one in [os.getpid(), *(p.pid for p in multiprocessing.active_children())]])
    feed.reader.close()
    most = 2 + 3  # ahead of the consumer, and those of the consumer, the thread and the worker
    for slots in found:
        assert all(count <= most * (workers if place == 0 else 1) for place, (count, _) in enumerate(slots))
        assert all(total <= count * (largest + 2**16) for count, total in slots)
    gc.collect()
    assert slots_of(os.getpid()) == (0, 0)


@needs_trim
def test_freed_memory_is_returned_for_large_batches_alone(monkeypatch):
    asked = []
    monkeypatch.setattr(freed_memory, "_trim", lambda: asked.append)
    batch = {"x": np.zeros(freed_memory.WORTH_BYTES, np.uint8)}
    needed = freed_memory.WORTH_READ_BYTES // freed_memory.WORTH_BYTES
    small, large = freed_memory.BatchMemory(), freed_memory.BatchMemory()
    for _ in range(2 * needed):
        small.count({"x": batch["x"][1:]})
    small.give_back()
    for _ in range(needed - 1):
        large.count(batch)
    large.give_back()
    assert asked == []
    large.count(batch)
    large.give_back()
    large.give_back()
    assert asked == [0]


@needs_trim
def test_short_epochs_return_memory_once_in_a_while(folder, monkeypatch):
    """It takes longer than they do; several of them together are as much as a long one."""
    asked = []
    feed = feed_of(folder, "images", 0)
    epoch_bytes = sum(freed_memory.bytes_of(batch.fields) for batch in feed.epoch(0))
    monkeypatch.setattr(freed_memory, "_trim", lambda: asked.append)
    monkeypatch.setattr(freed_memory, "WORTH_READ_BYTES", 3 * epoch_bytes)
    for epoch in range(1, 7):
        assert len(asked) == epoch // 3
        list(feed.epoch(epoch))


@needs_trim
def test_pages_of_freed_buffers_go_back_to_the_system():
    """Buffers between others that are held cannot leave the heap otherwise."""
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    buffers = [library.malloc(100_000) for _ in range(1000)]
    for one in buffers:
        ctypes.memset(one, 1, 100_000)
    for one in buffers[::2]:
        library.free(one)
    before = resident_bytes()
    memory = freed_memory.BatchMemory()
    memory.count({"x": np.empty(freed_memory.WORTH_READ_BYTES, np.uint8)})
    memory.give_back()
    after = resident_bytes()
    for one in buffers[1::2]:
        library.free(one)
    assert before - after > 25e6


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
