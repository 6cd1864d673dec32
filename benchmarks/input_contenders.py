"""One input pipeline, timed on request: `python input_contenders.py LIBRARY CASE WORKERS FOLDER BATCH`.

Answers each line with a line of JSON: the seconds and samples of one more epoch in a new order, and the most memory
that the process and its workers took. benchmarks/input_pipeline.py starts it, in an environment that has the library.
Every pipeline of a case gives the same: shuffled mini-batches of torch tensors, except where the module's table says
otherwise.
"""

from __future__ import annotations

import io
import json
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Epoch = Callable[[int], Iterable[Any]]  # its number to its batches

MEAN, DEVIATION = 0.2860, 0.3530  # of Fashion-MNIST
COLOUR_MEAN, COLOUR_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RESIZED, SIDE, TOKENS = 256, 224, 256
COLUMNS = [f"c{number}" for number in range(16)]
END = 256  # the token behind a document


# The work on a sample, as the users of the peers write it


def augmented(pixels: Any) -> Any:
    """A gray image, padded by 2, cut to 28 x 28 at random, flipped at random, normalized: in torch."""
    import torch

    padded = torch.nn.functional.pad(pixels, (2, 2, 2, 2))
    top, left = torch.randint(0, 5, (2,)).tolist()
    part = padded[..., top : top + 28, left : left + 28]
    part = part.flip(-1) if torch.rand(()) < 0.5 else part
    return (part.float() / 255 - MEAN) / DEVIATION


def augmented_by_numpy(pixels: Any) -> Any:
    """The same in NumPy."""
    rng = np.random.default_rng()
    padded = np.pad(pixels, ((0, 0), (2, 2), (2, 2)))
    top, left = rng.integers(0, 5, 2)
    part = padded[:, top : top + 28, left : left + 28]
    part = part[..., ::-1] if rng.random() < 0.5 else part
    return (part.astype(np.float32) / 255 - MEAN) / DEVIATION


def cropped(image: Any, rng: Any = np.random) -> Any:
    """A JPEG, a random part of it scaled to 224 x 224 by Pillow, flipped at random, normalized, as (3, 224, 224)."""
    from PIL import Image

    image = Image.open(image).convert("RGB") if not isinstance(image, Image.Image) else image.convert("RGB")
    area = image.width * image.height * rng.uniform(0.08, 1)
    ratio = rng.uniform(3 / 4, 4 / 3)
    width = min(image.width, max(1, round((area * ratio) ** 0.5)))
    height = min(image.height, max(1, round((area / ratio) ** 0.5)))
    left, top = rng.uniform(0, image.width - width), rng.uniform(0, image.height - height)
    part = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height))
    x = np.asarray(part, dtype=np.float32).transpose(2, 0, 1)
    x = x[..., ::-1] if rng.uniform() < 0.5 else x
    mean, deviation = (np.array(of, np.float32).reshape(3, 1, 1) for of in (COLOUR_MEAN, COLOUR_DEVIATION))
    return np.ascontiguousarray((x / 255 - mean) / deviation)


def resized(image: Any, rng: Any = np.random) -> Any:
    """A JPEG scaled to 256 x 256 by Pillow, cut to 224 x 224 at random, flipped at random, normalized."""
    from PIL import Image

    image = Image.open(image).convert("RGB") if not isinstance(image, Image.Image) else image.convert("RGB")
    x = np.asarray(image.resize((RESIZED, RESIZED), Image.Resampling.BILINEAR))
    top, left = rng.randint(0, RESIZED - SIDE + 1, 2)
    x = x[top : top + SIDE, left : left + SIDE].astype(np.float32).transpose(2, 0, 1)
    x = x[..., ::-1] if rng.uniform() < 0.5 else x
    mean, deviation = (np.array(of, np.float32).reshape(3, 1, 1) for of in (COLOUR_MEAN, COLOUR_DEVIATION))
    return np.ascontiguousarray((x / 255 - mean) / deviation)


IMAGE_WORK = {"jpeg": cropped, "photos": resized}


def packed(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The corpus as rows of tokens, `END` behind each document, and the token after each; −100 across documents."""
    documents = (folder / "corpus.txt").read_bytes().split(b"\n\n")
    ended = [np.append(np.frombuffer(one, np.uint8).astype(np.int64), END) for one in documents if one]
    tokens = np.concatenate(ended)
    count = (len(tokens) - 1) // TOKENS * TOKENS
    targets = np.where(tokens[:count] == END, -100, tokens[1 : count + 1])
    return tokens[:count].reshape(-1, TOKENS), targets.reshape(-1, TOKENS)


# descend


def of_descend(case: str, workers: int, folder: Path, batch: int) -> Epoch:
    """What `descend.fit` iterates over."""
    from descend import data
    from descend.data import transforms as t

    if case == "images":
        normalize = t.NormalizeToLBANNLayout(str(MEAN), str(DEVIATION))
        chain: list[Any] = [t.Pad(2), t.RandomCrop(28, 28), t.HorizontalFlip(0.5), normalize]
        reader: Any = data.Reader(name="mnist", role="train", data_filedir=str(folder), transforms=chain)
    elif case == "jpeg":
        last = t.NormalizeToLBANNLayout(*(" ".join(map(str, of[::-1])) for of in (COLOUR_MEAN, COLOUR_DEVIATION)))
        chain = [t.RandomResizedCrop(SIDE, SIDE), t.Colorize(), t.HorizontalFlip(0.5), last]
        place = str(folder / "jpeg")
        reader = data.Reader(name="imagenet", role="train", data_filedir=place, data_filename="list", transforms=chain)
    if case in ("images", "jpeg"):
        source: Any = data.open_readers(data.DataReader([reader]))["train"]
    elif case == "photos":
        last = t.NormalizeToLBANNLayout(*(" ".join(map(str, of)) for of in (COLOUR_MEAN, COLOUR_DEVIATION)))
        photos = data.read(folder / "jpeg" / "list", format="image list", image_size=RESIZED)
        source = data.transform(photos, [t.RandomCrop(SIDE, SIDE), t.HorizontalFlip(0.5), last])
    elif case == "parquet":
        source = data.read(folder / "table.parquet", columns={"x": COLUMNS, "y": ["y"]})
    elif case == "hdf5":
        source = data.read(folder / "images.h5")
    elif case == "tar":
        source = data.read(f"{folder}/shard-{{000..003}}.tar", image_size=SIDE)
    else:
        source = data.read(folder / "corpus.txt", length=TOKENS, separator="\n\n", fields=["input", "target"])
    feed = data.open_data(source, data.Loading(batch_size=batch, workers=workers))

    def epoch(number: int) -> Iterator[Any]:
        import torch

        for one in feed.epoch(number):
            yield {name: torch.as_tensor(values) for name, values in one.fields.items()}

    return epoch


# The peers


class Rows:
    """A map-style data set of one case, for torch and for grain."""

    def __init__(self, case: str, folder: Path, as_tensors: bool) -> None:
        self.case, self.folder, self.as_tensors = case, folder, as_tensors
        self.file: Any = None
        if case == "images":
            self.x, self.y = idx(folder / "train-images-idx3-ubyte")[:, None], idx(folder / "train-labels-idx1-ubyte")
        elif case in IMAGE_WORK:
            self.names = [line.rsplit(" ", 1) for line in (folder / "jpeg" / "list").read_text().splitlines()]
        elif case == "parquet":
            import pyarrow.parquet as pq

            table = pq.read_table(folder / "table.parquet")
            self.x = np.stack([table[name].to_numpy() for name in COLUMNS], axis=1)
            self.y = table["y"].to_numpy()
        elif case == "text":
            self.x, self.y = packed(folder)
        if as_tensors and hasattr(self, "x"):
            import torch

            self.x = torch.from_numpy(np.ascontiguousarray(self.x))
            self.y = torch.from_numpy(np.array(self.y)) if hasattr(self, "y") else None
        self.length = self.count()

    def count(self) -> int:
        """Samples of an epoch."""
        if self.case == "hdf5":
            import h5py

            with h5py.File(self.folder / "images.h5") as file:
                return len(file["x"])
        return len(self.names if self.case in IMAGE_WORK else self.x)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if self.case in IMAGE_WORK:
            name, label = self.names[index]
            return IMAGE_WORK[self.case](self.folder / "jpeg" / name), int(label)
        if self.case == "hdf5":
            if self.file is None:  # in the worker
                import h5py

                self.file = h5py.File(self.folder / "images.h5")
            return self.file["x"][index], self.file["y"][index]
        if self.case == "images":
            make = augmented if self.as_tensors else augmented_by_numpy
            return make(self.x[index]), self.y[index]
        return self.x[index], self.y[index]


def idx(path: Path) -> np.ndarray:
    """An array of a plain IDX file of bytes."""
    content = path.read_bytes()
    sizes = np.frombuffer(content, ">u4", count=content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(sizes.tolist())


def of_torch(case: str, workers: int, folder: Path, batch: int) -> Epoch:
    """`torch.utils.data.DataLoader`."""
    from torch.utils.data import DataLoader

    rows: Any = Rows(case, folder, as_tensors=True)
    loader = DataLoader(rows, batch, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    return lambda _: loader


def of_grain(case: str, workers: int, folder: Path, batch: int) -> Epoch:
    """grain's MapDataset, whose batches are NumPy's; with `workers` threads, or its own number."""
    import grain
    import torch

    rows: Any = Rows(case, folder, as_tensors=False)
    read = grain.ReadOptions(num_threads=workers)

    def epoch(number: int) -> Iterator[Any]:
        dataset = grain.MapDataset.source(rows).shuffle(seed=number).batch(batch).to_iter_dataset(read)
        for one in dataset:
            yield [torch.from_numpy(np.asarray(part)) for part in (one if isinstance(one, tuple) else (one,))]

    return epoch


def of_datasets(case: str, workers: int, folder: Path, batch: int) -> Epoch:
    """Hugging Face's datasets under a DataLoader."""
    import datasets
    from torch.utils.data import DataLoader

    if case == "parquet":
        table: Any = datasets.Dataset.from_parquet(str(folder / "table.parquet"), cache_dir=str(folder / "hf"))
    elif case in IMAGE_WORK:
        lines = [line.rsplit(" ", 1) for line in (folder / "jpeg" / "list").read_text().splitlines()]
        columns = {"image": [str(folder / "jpeg" / name) for name, _ in lines], "y": [int(label) for _, label in lines]}
        table = datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())
    else:
        table = datasets.Dataset.from_dict(dict(zip(("x", "y"), packed(folder), strict=True)))
    if case in IMAGE_WORK:
        work = IMAGE_WORK[case]
        table = table.with_transform(lambda rows: {"x": [work(one) for one in rows["image"]], "y": rows["y"]})
    else:
        table = table.with_format("torch")
    loader = DataLoader(table, batch, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    return lambda _: loader


def of_webdataset(case: str, workers: int, folder: Path, batch: int) -> Epoch:
    """webdataset's shards, shuffled within a buffer, under its loader."""
    import webdataset
    from PIL import Image

    def decoded(sample: tuple[bytes, bytes]) -> tuple[Any, int]:
        image = Image.open(io.BytesIO(sample[0])).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        return np.asarray(image, np.float32).transpose(2, 0, 1) / 255, int(sample[1])

    shards = webdataset.WebDataset(f"{folder}/shard-{{000..003}}.tar", shardshuffle=4)
    samples = shards.shuffle(1000).to_tuple("jpg", "cls").map(decoded).batched(batch)
    loader = webdataset.WebLoader(samples, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
    return lambda _: loader


CONTENDERS: dict[str, Callable[[str, int, Path, int], Epoch]] = {
    "descend": of_descend,
    "torch": of_torch,
    "datasets": of_datasets,
    "webdataset": of_webdataset,
    "grain": of_grain,
}


def samples_of(batch: Any) -> int:
    """Samples of a batch of any of them."""
    while not hasattr(batch, "shape"):
        batch = next(iter(batch.values() if isinstance(batch, dict) else batch))
    return len(batch)


def held_mebibytes() -> float:
    """What this process and its children have in memory now, without the pages of files that they map."""
    children = [task.read_text().split() for task in Path("/proc/self/task").glob("*/children")]
    total = 0
    for process in ["self", *(child for some in children for child in some)]:
        status = Path(f"/proc/{process}/status")
        lines = status.read_text().splitlines() if status.exists() else []
        total += sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))
    return total / 1024


def main() -> None:
    """Answer lines until there are none."""
    library, case, workers, folder, batch = sys.argv[1:6]
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever the contender prints is no answer
    epoch = CONTENDERS[library](case, int(workers), Path(folder), int(batch))
    for number, _ in enumerate(sys.stdin):
        begin = time.perf_counter()
        count = sum(samples_of(one) for one in epoch(number))
        seconds = time.perf_counter() - begin
        own, children = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        memory = (own + int(workers) * (children or own)) / 1024
        found = {"seconds": seconds, "samples": count, "mebibytes": memory, "held": held_mebibytes()}
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
