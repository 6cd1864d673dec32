"""Every format by every way of reading: in random order, in other processes and on two ranks the bytes are the same.

All formats have the same number of samples here, so that one reader of each stands beside the others and the processes
start once for all of them.
"""

import io
import json
import multiprocessing
import os
import signal
import tarfile

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
import torch
from data.files import refusal
from PIL import Image
from safetensors.numpy import save_file

from descend.data import DataReader, Loading, Reader, file_format, open_data, open_readers, read
from descend.data.transforms import HorizontalFlip, RandomResizedCrop, Scale
from descend.data.validate import known_readers
from descend.errors import DataError

N = 21
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3)).astype(np.float32)
Y = np.arange(N) % 4
PIXELS = RNG.integers(0, 256, (N, 3, 32, 32)).astype(np.uint8)
TABLE = {**{f"c{i}": X[:, i] for i in range(3)}, "y": Y}
LISTS = [list(range(i % 4)) for i in range(N)]
RESIZED = [RandomResizedCrop(8, 8), HorizontalFlip(0.5), Scale(1 / 255)]


def as_bytes(image, kind):
    Image.fromarray(image.transpose(1, 2, 0)).save(buffer := io.BytesIO(), kind)
    return buffer.getvalue()


def write_idx(folder):
    for name, array in (("train-images-idx3-ubyte", PIXELS[:, 0]), ("train-labels-idx1-ubyte", Y.astype(np.uint8))):
        header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
        (folder / name).write_bytes(header + array.tobytes())


def write_tar(folder):
    with tarfile.open(folder / "a.tar", "w") as tar:
        for i in range(N):
            for ending, content in (("png", as_bytes(PIXELS[i], "PNG")), ("cls", str(Y[i]).encode())):
                member = tarfile.TarInfo(f"{i:04}.{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same samples in every format."""
    at = tmp_path_factory.mktemp("formats")
    np.save(at / "a.npy", X)
    np.savez(at / "a.npz", x=X, y=Y)
    save_file({"x": X, "y": Y}, at / "a.safetensors")
    table = pa.table({**TABLE, "list": LISTS})
    pq.write_table(table, at / "a.parquet", row_group_size=8)
    pyarrow.feather.write_feather(table, at / "a.feather")
    with pa.OSFile(str(at / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=5)
    pyarrow.csv.write_csv(pa.table(TABLE), at / "a.csv")
    rows = [{**{k: v[i].item() for k, v in TABLE.items()}, "list": LISTS[i]} for i in range(N)]
    (at / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with h5py.File(at / "a.h5", "w") as file:
        file.create_dataset("x", data=X, chunks=(4, 3), compression="gzip")
        file["y"] = Y
    records = [bytes([Y[i]]) + PIXELS[i].tobytes() for i in range(N)]
    (at / "cifar").mkdir()
    for batch in range(5):
        (at / "cifar" / f"data_batch_{batch + 1}.bin").write_bytes(b"".join(records[batch * 5 : batch * 5 + 5]))
    for i in range(N):
        (at / "images" / str(Y[i])).mkdir(parents=True, exist_ok=True)
        (at / "images" / str(Y[i]) / f"{i:02}.jpg").write_bytes(as_bytes(PIXELS[i], "JPEG"))
    names = sorted(path.relative_to(at / "images") for path in (at / "images").rglob("*.jpg"))
    (at / "images" / "list.txt").write_text("".join(f"{name} {name.parts[0]}\n" for name in names))
    (at / "text.md").write_bytes(bytes(RNG.integers(97, 123, N * 8 - 1).astype(np.uint8)))
    (at / "a.smi").write_text("smiles\n" + "".join("C" * (i + 1) + "\n" for i in range(N)))
    (at / "vocab.txt").write_text("<bos> 0\n<eos> 1\n<pad> 2\n<unk> 3\nC 4\n")
    (at / "idx").mkdir()
    write_idx(at / "idx")
    write_tar(at)
    write_parts(at)
    return at


def write_parts(at):
    """The samples in several files, for LBANN's readers of such."""
    halves = {0: slice(0, 8), 1: slice(8, N)}
    with h5py.File(at / "groups.h5", "w") as file:
        for i in range(N):
            file[f"id{i:02}/x"], file[f"id{i:02}/image"], file[f"id{i:02}/y"] = X[i], PIXELS[i, :, :2], Y[i]
    (at / "schema.yaml").write_text(
        "x: {metadata: {pack: datum, scale: 2}}\nimage: {metadata: {pack: response}}\ny: {metadata: {pack: label}}\n"
    )
    (at / "samples.txt").write_text(f"CONDUIT_HDF5_EXCLUSION\n{N} 0 1\n.\ngroups.h5 {N} 0\n")
    for part, rows in halves.items():
        np.savez(at / f"part{part}.npz", data=X[rows], labels=Y[rows])
        np.save(at / f"part{part}.npy", np.column_stack([X[rows], Y[rows]]))
        np.savetxt(at / f"side{part}.csv", X * (part + 1), delimiter=",")
    (at / "parts.txt").write_text("part0.npz\npart1.npz\n")


def of_read(folder):
    """Readers of files, by format."""
    a = {kind: read(folder / f"a.{kind}") for kind in ("npy", "npz", "csv", "h5", "tar", "safetensors")}
    a |= {kind: read(folder / f"a.{kind}", length=3) for kind in ("parquet", "feather", "arrow", "jsonl")}
    return a | {
        "images": read(folder / "images", format="images", image_size=16),
        "image list": read(folder / "images" / "list.txt"),
        "cifar": read(folder / "cifar"),
        "text": read(folder / "text.md", length=8),
        "idx": read(folder / "idx" / "train-images-idx3-ubyte"),
        "idx files": read(folder / "idx"),
    }


def of_descriptions(folder):
    """Readers of LBANN, by name."""

    def opened(name, where=folder, **fields):
        place = {"data_filedir": str(where)} if where else {}
        reader = Reader(name=name, role="train", **place, **fields)
        return open_readers(DataReader([reader]), 5)["train"]

    npz = {"data": X, "labels": Y}
    np.savez(folder / "lbann.npz", **npz)
    np.save(folder / "lbann.npy", np.column_stack([X, Y]))
    smiles = {"vocab_filename": "vocab.txt", "sequence_length": 32, "has_header": True}
    labels = {"num_labels": 4, "disable_responses": True}
    csv = {"has_header": True, "separator": ",", "disable_responses": True}
    return {
        "mnist": opened("mnist", folder / "idx", transforms=[HorizontalFlip(0.5), Scale(1 / 255)]),
        "imagenet": opened("imagenet", folder / "images", data_filename="list.txt", num_labels=4, transforms=RESIZED),
        "cifar10": opened("cifar10", folder / "cifar"),
        "lbann csv": opened("csv", data_filename="a.csv", **csv),
        "numpy": opened("numpy", data_filename="lbann.npy", num_labels=4, disable_responses=True),
        "numpy_npz": opened("numpy_npz", data_filename="lbann.npz", disable_responses=True),
        "smiles": opened("smiles", data_filename="a.smi", **smiles),
        "hdf5_data_reader": opened(
            "hdf5_data_reader",
            sample_list="samples.txt",
            data_schema_filename="schema.yaml",
            experiment_schema_filename="schema.yaml",
            enable_labels=True,
            enable_responses=True,
            num_labels=4,
        ),
        "conduit": opened("numpy_npz_conduit_reader", data_filename="parts.txt", disable_responses=True),
        "merge_samples": opened("merge_samples", data_file_pattern="part*.npy", format="npy", **labels),
        "merge_features": opened("merge_features", data_file_pattern="side*.csv", format="csv", separator=","),
        "synthetic": opened("synthetic", None, num_samples=N, synth_dimensions="4", num_labels=3),
    }


class Beside:
    """Readers side by side, as one."""

    role, shuffle = "train", True

    def __init__(self, readers):
        self.readers = readers
        self.fields = {f"{name}.{key}": one for name, r in readers.items() for key, one in r.fields.items()}

    def __len__(self):
        return N

    def read(self, indices, epoch=0):
        found = {name: reader.read(indices, epoch) for name, reader in self.readers.items()}
        return {f"{name}.{key}": values for name, some in found.items() for key, values in some.items()}


def rows_by_sample(readers, **how):
    """For each field the bytes of each sample, as the batches of two epochs have them; all ranks together."""
    found = {}
    for rank in range(ranks := how.pop("ranks", 1)):
        feed = open_data(Beside(readers), Loading(batch_size=5, seed=3, rank=rank, ranks=ranks, **how))
        try:
            for epoch in (0, 1):
                for batch in feed.epoch(epoch):
                    for name, values in batch.fields.items():
                        for i, row in zip(batch.ids.tolist(), torch.as_tensor(values), strict=True):
                            assert (epoch, name, i) not in found
                            found[epoch, name, i] = row.numpy().tobytes()
        finally:
            getattr(feed.reader, "close", lambda: None)()
    return found


def one_by_one(readers):
    """The same from `read`, of single samples from the last to the first."""
    found = {}
    for epoch in (0, 1):
        for i in reversed(range(N)):
            for name, values in Beside(readers).read(np.array([i]), epoch).items():
                found[epoch, name, i] = torch.as_tensor(values)[0].numpy().tobytes()
    return found


def test_all_formats_are_here(folder):
    readers = of_read(folder)
    assert {reader.format for reader in readers.values()} == {one.name for one in file_format.file_formats()}
    assert all(len(reader) == N for reader in readers.values())


def test_batches_are_the_samples(folder):
    """In this process, on one rank and on two."""
    described = of_descriptions(folder)
    others = set(known_readers()[0]) - {reader.description.name for reader in described.values()}
    assert others == {"digits", "python", "python_dataset"}
    readers = of_read(folder) | described
    truth = one_by_one(readers)
    assert len(truth) == 2 * N * len(Beside(readers).fields)
    assert rows_by_sample(readers) == truth
    assert rows_by_sample(readers, ranks=2) == truth
    crops = [truth[epoch, "imagenet.samples", 3] for epoch in (0, 1)]
    assert crops[0] != crops[1]  # what is random differs between epochs


@pytest.mark.slow
def test_processes_read_the_same(folder):
    readers = of_read(folder) | of_descriptions(folder)
    truth = one_by_one(readers)
    assert rows_by_sample(readers, workers=1, ranks=2) == truth
    assert rows_by_sample(readers, workers=4) == truth


@pytest.mark.slow
def test_a_worker_that_dies_or_hangs_is_named_with_what_it_reads(folder):
    """Of files, of a description and of a data set; on either of two ranks."""
    rows = torch.utils.data.StackDataset(torch.as_tensor(X), torch.as_tensor(Y))
    sources = {
        "reader 'tar' for 'train'": read(folder / "a.tar"),
        "reader 'hdf5_data_reader' for 'train'": of_descriptions(folder)["hdf5_data_reader"],
        "StackDataset for 'train'": rows,
    }
    killed = r"loader descend-loader-0 \(process \d+\) was killed by SIGKILL at sample \d+ of "
    stopped = r"sample \d+ of .* is not read after 2 seconds: it hangs"
    what = ((0, signal.SIGSTOP, stopped), (1, signal.SIGKILL, killed), (1, signal.SIGSTOP, stopped))
    for (name, source), (rank, number, words) in zip(sources.items(), what, strict=True):
        feed = open_data(source, Loading(batch_size=2, workers=1, rank=rank, ranks=2, timeout_seconds=2.0))
        steps = feed.epoch(0)
        next(steps)
        (process,) = multiprocessing.active_children()
        os.kill(process.pid, number)
        with pytest.raises(DataError, match=words) as caught:
            list(steps)
        assert name in str(caught.value)
        feed.reader.close()
        assert multiprocessing.active_children() == []


# A cut or blank text is a text, and blank records of CIFAR are images.
FILES = ("a.npy", "a.npz", "a.safetensors", "a.csv", "a.jsonl", "a.h5", "a.tar", "a.parquet", "a.feather", "a.arrow")
FILES += ("idx/train-images-idx3-ubyte", "cifar/data_batch_1.bin", "images/0/00.jpg", "images/list.txt", "text.md")
UNSEEN = {("half", "text.md"), ("zeros", "text.md"), ("zeros", "images/list.txt"), ("zeros", "cifar/data_batch_1.bin")}
DAMAGES = {
    "half": lambda content: content[: len(content) // 2 + 7],
    "zeros": lambda content: bytes(len(content)),
    "empty": lambda content: b"",
    "junk": lambda content: bytes(RNG.integers(128, 256, 5000).astype(np.uint8)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_of_every_format_are_errors_that_name_them(folder, tmp_path, damage):
    """With exit code 3, the path, and the reader as soon as one is known; none takes long or raises something else."""
    for name in FILES:
        if (damage, name) in UNSEEN or (damage == "junk" and name in ("text.md", "images/list.txt")):
            continue
        path = tmp_path / name.replace("/", "-")
        path.write_bytes(DAMAGES[damage]((folder / name).read_bytes()))
        text = refusal(path)
        assert path.name in text
        assert "reader '" in text or " is empty" in text or " of no known format" in text


def test_a_file_with_the_ending_of_another_format_is_what_it_holds(folder, tmp_path):
    for ending in ("npy", "parquet", "h5", "arrow"):
        for name in ("a.npy", "a.npz", "a.parquet", "a.arrow", "a.h5", "a.tar"):
            path = tmp_path / f"{name}.{ending}"
            path.write_bytes((folder / name).read_bytes())
            assert len(read(path)) == N
