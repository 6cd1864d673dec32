"""Makes a feed of batches from any kind of data that torch users have.

a path, a folder, a pattern, a list      files, as `descend.data.read` takes them; fields by name
a Dataset of Hugging Face, a DatasetDict by columns, as `descend.data.read` takes them
a data frame, a table of pyarrow         the same
a reader of descend                      its fields by name
tensors or arrays: (x, y), {"x": x}      indexed by whole batches
TensorDataset, a Subset of one           the same
any map-style Dataset                    sample by sample; in processes with workers=n
DataLoader                               its data set, in its order; or its batches, if the data set is an iterable
an IterableDataset                       its samples, in their order; its batches with batch_size=None
a list of batches, an iterable, a function that returns one
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from descend.arguments import check_integer, check_number, require
from descend.data.hugging_face import is_hugging_face, split_of_role
from descend.data.loading.batch_iterable import BatchIterable
from descend.data.loading.batches import Batches
from descend.data.loading.map_dataset import SamplePipeline, SampleReader
from descend.data.nested_fields import samples_as_batches
from descend.data.numbered_texts import in_classes, self_numbered, with_class_numbers
from descend.data.paths import is_path
from descend.data.plain_arrays import plain_collate, plain_convert
from descend.data.samplers import WeightedSampler
from descend.data.tensor_reader import in_memory, is_array, is_table, tensor_reader
from descend.errors import ConfigurationError, DataError
from descend.lazy import instance_check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch.nn import Module
    from torch.utils.data import DataLoader
    from typing_extensions import TypeIs

    from descend.data.files import FileReader
    from descend.data.loading.batches import Samples
    from descend.data.loading.file_pipeline import FilePipeline, ReaderPipeline
    from descend.data.object_source import ReaderSource
    from descend.data.reader_protocol import OpenReader
    from descend.data.readers import ArrayReader
    from descend.data.samplers import Sampler

__all__ = ["Loading", "brings_batches", "files_of_feed", "in_processes", "open_data"]

_is_array_reader: Callable[[object], TypeIs[ArrayReader]] = instance_check("descend.data.readers", "ArrayReader")
_is_file_pipeline: Callable[[object], TypeIs[FilePipeline]] = instance_check(
    "descend.data.loading.file_pipeline", "FilePipeline"
)
_is_file_reader: Callable[[object], TypeIs[FileReader]] = instance_check("descend.data.files", "FileReader")
_is_reader_source: Callable[[object], TypeIs[ReaderSource]] = instance_check(
    "descend.data.object_source", "ReaderSource"
)


@dataclass(frozen=True)
class Loading:
    """How data are split into batches.

    Args:
        batch_size: Samples of a mini-batch over all ranks; None uses that of a DataLoader, or batches as they come.
        seed: Of the order of samples and of the random numbers of each sample.
        shuffle: Give each epoch an order of its own; a DataLoader has its own setting.
        role: "train", "validate" or "test".
        rank: This rank.
        ranks: Number of ranks.
        workers: Processes that read; None uses the number of a DataLoader and otherwise 0. Data in memory need none.
        skip_bad: Replace up to this many samples that cannot be used by the next one.
        timeout_seconds: Longest wait for a batch; None is ten minutes for processes and no limit without them.
        unit: Samples of a mini-batch that stay together on one rank.
        targets: Names of the target fields, where they are known: text in files is classes there.
        classes: The classes of such fields, those of training; None: those in the files, in the order of the alphabet.
        sampler: Which training sample is at each position of an epoch; None is each once.
        class_targets: Where targets are class numbers, so that they must be integers, the names that targets usually
            have; a field of files that is a target is one of them, or named by `targets`, or by the reader.
        not_taken: Fields that the module does not take, so that texts in them need be no classes.
        module: What takes the samples; optional fields of files are left out unless its `forward` has their names.
        pin_memory: Gather batches of data in memory in page-locked memory, from which they go to a GPU. Others are
            copied there when they are sent.
    """

    batch_size: int | None
    seed: int = 0
    shuffle: bool = True
    role: str = "train"
    rank: int = 0
    ranks: int = 1
    workers: int | None = None
    skip_bad: int = 0
    timeout_seconds: float | None = None
    unit: int = 1
    targets: tuple[str, ...] = ()
    classes: Mapping[str, Sequence[str]] | None = None
    sampler: Sampler | None = None
    class_targets: tuple[str, ...] = ()
    not_taken: tuple[str, ...] = ()
    module: Module | None = None
    pin_memory: bool = False

    def __post_init__(self) -> None:
        require(
            check_integer("batch_size", self.batch_size, 1, also=(None,)),
            check_integer("workers", self.workers, 0, also=(None,)),
            check_integer("skip_bad", self.skip_bad, 0),
            check_number("timeout_seconds", self.timeout_seconds, above=0, at_most=_LONGEST_WAIT_SECONDS, also=(None,)),
        )


_DATA = (
    "a torch Dataset or DataLoader, a tuple of tensors or arrays, a reader, a list of batches, or a function that "
    "returns an iterable of batches"
)
_WORKER_TIMEOUT_SECONDS = 600.0
_LONGEST_WAIT_SECONDS = 1_000_000  # systems' calls that wait take some 2 million


def open_data(data: Any, how: Loading) -> Batches | BatchIterable:
    """A feed of batches from any of the things listed above.

    Raises:
        ConfigurationError: it is none of them, or contradicts `how`.
        DataError: there are no samples.
    """
    from torch.nn import Module
    from torch.utils.data import DataLoader, IterableDataset

    if isinstance(data, (type, Module)):
        raise ConfigurationError(f"data for '{how.role}' must be {_DATA}, got {_described(data)}")
    if isinstance(data, DataLoader):
        return _of_loader(cast("DataLoader[Any]", data), how)
    if isinstance(data, IterableDataset):
        from descend.data.object_source import WholeDataset, has_numbers

        if has_numbers(data):
            return _of_samples(WholeDataset(data), how, None, None)
        from descend.data.loading.batch_iterable import sample_stream

        _refuse_unused(how, "an IterableDataset is read in this process", "DataLoader(dataset, num_workers=...)")
        return _of_loader(sample_stream(cast("Any", data), how.batch_size), replace(how, workers=None))
    if is_path(data) or is_hugging_face(data) or is_table(data) or split_of_role(data, how.role) is not None:
        from descend.data.file_format import options_of
        from descend.data.files import reader_of

        options = options_of(how.role, how.targets or None, {"classes": how.classes, "skip_bad": how.skip_bad})
        source, data = data, reader_of(data, options)
        if how.classes is None and data.format != "images":
            _refuse_unknown_classes(data, how, repr(str(source)))
    if _is_file_reader(data) and data.is_original and _is_reader_source(data.source):
        return open_data(data.source.original, how)
    if _is_file_reader(data):
        return _of_files(data, how)
    if _is_array_reader(data):
        return _batches(data, how)
    if hasattr(data, "read") and hasattr(data, "fields"):
        if how.workers or how.skip_bad or how.timeout_seconds:
            from descend.data.loading.file_pipeline import ReaderPipeline

            return _of_pipeline(ReaderPipeline(data, how.skip_bad > 0), how)
        return _batches(data, how, ahead=2)
    if (tensors := tensor_reader(data, how.role, pin_memory=how.pin_memory)) is not None:
        return _batches(tensors, how)
    if isinstance(data, dict):
        parts = cast("dict[Any, Any]", data).items()
        others = [f"{name!r} is a {type(part).__name__}" for name, part in parts if not is_array(part)]
        raise ConfigurationError(
            f"data for '{how.role}' must be a dictionary with a tensor or an array for each field, and "
            f"{others[0] if others else 'it is empty'}; a role has one data set, and a callback can measure others "
            "with descend.evaluate"
        )
    if not isinstance(data, (list, tuple, str, bytes)) and hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return _of_samples(data, how, None, None)
    if not isinstance(data, (str, bytes)) and (hasattr(data, "__iter__") or callable(data)):
        if (problem := samples_as_batches(data)) is not None:
            raise DataError(f"data for '{how.role}': {problem}")
        _refuse_sampler(how)
        _refuse_unused(how, "batches are taken as they come", "samples")
        return BatchIterable(cast("Any", data), how.batch_size, how.role, how.rank, how.ranks, how.unit)
    if not isinstance(data, (str, bytes)) and hasattr(data, "__getitem__"):
        raise ConfigurationError(f"data for '{how.role}': {type(data).__name__} has no __len__, and an epoch needs it")
    raise ConfigurationError(f"data for '{how.role}' must be {_DATA}, got a {type(data).__name__}")


def _described(data: Any) -> str:
    if isinstance(data, type):
        return f"the class {data.__name__}: pass an object of it"
    return f"a {type(data).__name__}: pass the model as model, and the samples as data"


def brings_batches(data: Any) -> bool:
    """Whether data are batches already, or have a batch size of their own, so that none is needed to read them."""
    from torch.utils.data import DataLoader, IterableDataset

    if isinstance(data, DataLoader):
        return True
    if is_path(data) or isinstance(data, IterableDataset) or is_hugging_face(data) or is_table(data):
        return False
    if in_memory(data) or hasattr(data, "read") or isinstance(data, (bytes, dict)):
        return False
    by_number = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return isinstance(data, (list, tuple)) or not by_number


def _size(how: Loading) -> int:
    if how.batch_size is None:
        raise ConfigurationError(
            "batch_size=None is for data that are batches, and these are samples: pass a batch_size"
        )
    return how.batch_size


def _batches(reader: Samples, how: Loading, ahead: int = 0, drop_last: bool = False) -> Batches:
    stream = reader.stream if isinstance(reader, SampleReader) else None
    shuffle = how.shuffle and how.role == "train"
    size, sampler = _size(how), how.sampler if how.role == "train" else None
    return Batches(reader, size, how.seed, shuffle, how.rank, how.ranks, ahead, stream, drop_last, how.unit, sampler)


def _of_samples(
    dataset: Any,
    how: Loading,
    collate: Callable[[list[Any]], Any] | None,
    prepare: Callable[[int], None] | None,
    drop_last: bool = False,
) -> Batches:
    if len(dataset) == 0:
        raise DataError(f"{type(dataset).__name__} for '{how.role}' has 0 samples, and at least 1 is needed")
    pipeline = SamplePipeline(dataset, collate, how.seed, how.role, how.skip_bad > 0)
    pool = None
    if how.workers:
        from descend.data.loading.workers import Pool

        pool = Pool(pipeline, how.workers, how.timeout_seconds or _WORKER_TIMEOUT_SECONDS, prepare)
    return _batches(SampleReader(pipeline, how.skip_bad, how.timeout_seconds, pool), how, drop_last=drop_last)


def files_of_feed(feed: Any) -> FileReader | None:
    """The reader of files behind a feed; None for other data."""
    pipeline = getattr(getattr(feed, "reader", None), "pipeline", None)
    return pipeline.reader if _is_file_pipeline(pipeline) else None


def _of_files(reader: FileReader, how: Loading) -> Batches:
    from descend.data.loading.file_pipeline import FilePipeline

    taken = () if how.module is None else inspect.signature(how.module.forward).parameters
    reader = reader.in_role(how.role).for_module(taken)
    if how.classes is not None:
        _refuse_unknown_classes(reader, how, "...")
        classes = {reader.names[name]: of for name, of in how.classes.items() if name in reader.names}
        reader = replace(reader, source=in_classes(reader.source, classes))
    if how.class_targets:
        names = how.targets or reader.target or how.class_targets
        source = with_class_numbers(reader.source, [reader.names[name] for name in names if name in reader.names])
        reader = replace(reader, source=source)
    if (in_run := getattr(reader.source, "in_run", None)) is not None:
        reader = replace(reader, source=in_run(how.seed, how.role))
    return _of_pipeline(FilePipeline(reader, how.skip_bad > 0, how.not_taken), how)


def _refuse_unknown_classes(reader: FileReader, how: Loading, source: str) -> None:
    """Refuse targets of text in another role than training where training does not say the numbers of its classes."""
    texts = self_numbered(reader).difference(how.classes or ()).intersection(how.targets or reader.target)
    if how.role != "train" and texts:
        raise DataError(
            f"{reader.name}: '{min(texts)}' holds text, and which class of training has which number is not known: "
            f"read it by descend.data.read({source}, target='{min(texts)}', classes=[...]), with all classes in the "
            "order of their numbers in training"
        )


def _of_pipeline(pipeline: ReaderPipeline[Any], how: Loading) -> Batches:
    """Read in processes, or by a thread two batches ahead."""
    pool = None
    if how.workers:
        from descend.data.loading.workers import Pool

        pool = Pool(pipeline, how.workers, how.timeout_seconds or _WORKER_TIMEOUT_SECONDS)
    samples = SampleReader(pipeline, how.skip_bad, how.timeout_seconds, pool)
    return _batches(samples, how, ahead=0 if pool else 2)


def in_processes(reader: OpenReader, workers: int) -> SampleReader:
    """The samples of a reader, read by so many processes, which end with `close`."""
    from descend.data.loading.file_pipeline import ReaderPipeline
    from descend.data.loading.workers import Pool

    pipeline = ReaderPipeline(reader)
    return SampleReader(pipeline, pool=Pool(pipeline, workers, _WORKER_TIMEOUT_SECONDS))


# ---- DataLoader


def _of_loader(loader: DataLoader[Any], how: Loading) -> Batches | BatchIterable:
    """The data set of a DataLoader with its settings; an error names the settings that fit cannot follow."""
    from torch.utils.data import IterableDataset

    if isinstance(loader.dataset, IterableDataset):
        _refuse_sampler(how)
        unused = replace(how, workers=None) if how.workers == loader.num_workers else how
        _refuse_unused(unused, "a DataLoader of an IterableDataset has its own", "them to the DataLoader")
        return BatchIterable(_with_masks(loader), how.batch_size, how.role, how.rank, how.ranks, how.unit)
    if problems := list(_conflicts(loader, how)):
        raise ConfigurationError([f"DataLoader for '{how.role}': {problem}" for problem in problems])
    training = how.role == "train"
    how = replace(
        how,
        batch_size=loader.batch_size if how.batch_size is None or not training else how.batch_size,
        shuffle=training and type(loader.sampler).__name__ == "RandomSampler",
        sampler=how.sampler or (_drawn_by_weight(loader.sampler) if training else None),
        workers=loader.num_workers if how.workers is None else how.workers,
        timeout_seconds=how.timeout_seconds or loader.timeout or None,
    )
    collate = None if _is_torchs_own(loader.collate_fn) else loader.collate_fn
    tensors = tensor_reader(loader.dataset, how.role, pin_memory=how.pin_memory) if collate is None else None
    if tensors is not None:
        return _batches(tensors, how, drop_last=loader.drop_last)
    return _of_samples(loader.dataset, how, collate, loader.worker_init_fn, loader.drop_last)


def _with_masks(loader: DataLoader[Any]) -> DataLoader[Any]:
    """The batches of a loader, where torch's own functions make them: they would drop the masks of arrays."""
    from torch.utils.data import default_collate, default_convert

    own = {default_collate: plain_collate, default_convert: plain_convert}
    if loader.collate_fn not in own:
        return loader
    loader = copy.copy(loader)  # that of the user stays as it is
    loader.collate_fn = own[loader.collate_fn]
    return loader


def _is_torchs_own(collate: Any) -> bool:
    from torch.utils.data import default_collate

    return collate is default_collate


def _drawn_by_weight(sampler: Any) -> WeightedSampler | None:
    """The sampler of ours that draws as torch's WeightedRandomSampler does, from random numbers of its own."""
    from torch.utils.data import WeightedRandomSampler

    if type(sampler) is not WeightedRandomSampler or sampler.generator is not None:
        return None
    return WeightedSampler(sampler.weights, sampler.num_samples, sampler.replacement)


def _refuse_sampler(how: Loading) -> None:
    if how.sampler is not None and how.role == "train":
        raise ConfigurationError(
            "sampler= says which sample is at each position, and the training data come as batches in an order of "
            "their own: pass the samples, or leave out the sampler"
        )


def _refuse_unused(how: Loading, why: str, instead: str) -> None:
    """Refuse for training data what only data sets with numbers have."""
    given = {"workers": how.workers, "skip_bad": how.skip_bad, "timeout_seconds": how.timeout_seconds}
    if how.role == "train" and (unused := [f"{name}={value}" for name, value in given.items() if value]):
        raise ConfigurationError(
            f"{', '.join(unused)}: {why}, so nothing would use it; leave it out, or pass {instead}"
        )


def _conflicts(loader: DataLoader[Any], how: Loading) -> Iterator[str]:
    """The settings of a DataLoader that fit cannot follow, each with the remedy."""
    from torch.utils.data import RandomSampler, SequentialSampler

    instead = "pass its dataset instead"
    training = how.role == "train"
    sampler = cast("Any", loader.sampler)
    if loader.batch_size is None:
        yield f"it makes batches of its own (batch_sampler {loader.batch_sampler!r}); {instead}, with batch_size="
        return
    if training and how.batch_size is not None and loader.batch_size != how.batch_size:
        yield f"its batch_size is {loader.batch_size} and fit's is {how.batch_size}; make them equal, or {instead}"
    if training and (how.sampler is not None or _drawn_by_weight(sampler) is not None):
        pass  # of which fit has one of its own
    elif type(sampler) not in (RandomSampler, SequentialSampler):
        yield (
            f"its sampler is a {type(sampler).__name__}, and fit uses every sample once an epoch, in an order of its "
            f"own or of the data set, and splits batches among ranks itself; {instead}, and "
            "sampler=descend.WeightedSampler(...), descend.ClassBalancedSampler(...) or a function (seed, epoch, "
            "positions) for another order"
        )
    elif type(sampler) is RandomSampler and (sampler.replacement or len(sampler) != len(cast("Any", loader.dataset))):
        yield f"it draws with replacement or only some of the samples, and fit uses every sample once; {instead}"
    elif training and isinstance(sampler, RandomSampler) and not how.shuffle:
        yield f"it shuffles and fit has shuffle=False; change one of the two, or {instead}"
    if loader.generator is not None:
        yield f"it has a generator, and the order of fit comes from seed=; {instead}"
    if loader.drop_last and not training:
        yield "drop_last=True would leave samples out of the evaluation; remove it"
