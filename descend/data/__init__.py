"""Readers: files to samples to batches of named fields.

    read                                a reader of files of any known format, or of objects that have samples
    normalize                           readers with normalized fields, by statistics of the training samples
    transform                           a reader with a transformed field
    split                               readers of its parts: train, validate, test, tournament
    DataReader, Reader, transforms      descriptions: plain values that a text can contain
    check, open_readers                 check a description; open its readers, one for each role
    OpenReader, ArrayReader             samples indexed by number, each with named fields
    order                               the sample at a position of an epoch
    Sampler, WeightedSampler, ...       other orders than permutations
    orders                              the same for whole epochs of several seeds
    Batches, Batch                      a rank's share of each step

This package needs NumPy only; torch is imported where tensors are read.
"""

from typing import TYPE_CHECKING

from descend.lazy import lazy_names

if TYPE_CHECKING:
    from descend.data.description import (
        MESSAGES,
        ROLES,
        DataReader,
        Node2VecDataReader,
        PythonDataReader,
        PythonDatasetReader,
        Reader,
    )
    from descend.data.file_format import FileFormat, register
    from descend.data.files import FileReader, read
    from descend.data.loading.batches import Batch, Batches, Feed, RankSlice, Samples
    from descend.data.loading.torch_data import Loading, brings_batches, open_data
    from descend.data.normalization import normalize
    from descend.data.reader_protocol import Field, OpenReader, one_hot
    from descend.data.readers import ArrayReader, open_readers
    from descend.data.samplers import ClassBalancedSampler, Sampler, WeightedSampler
    from descend.data.splits import split
    from descend.data.transformed import transform
    from descend.data.validate import check

from descend.data.order import order, orders

__all__ = [
    "MESSAGES",
    "ROLES",
    "ArrayReader",
    "Batch",
    "Batches",
    "ClassBalancedSampler",
    "DataReader",
    "Feed",
    "Field",
    "FileFormat",
    "FileReader",
    "Loading",
    "Node2VecDataReader",
    "OpenReader",
    "PythonDataReader",
    "PythonDatasetReader",
    "RankSlice",
    "Reader",
    "Sampler",
    "Samples",
    "WeightedSampler",
    "brings_batches",
    "check",
    "normalize",
    "one_hot",
    "open_data",
    "open_readers",
    "order",
    "orders",
    "read",
    "register",
    "split",
    "transform",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "loading.batches": ("Batch", "Batches", "Feed", "RankSlice", "Samples"),
        "description": (
            "MESSAGES",
            "ROLES",
            "DataReader",
            "Node2VecDataReader",
            "PythonDataReader",
            "PythonDatasetReader",
            "Reader",
        ),
        "file_format": ("FileFormat", "register"),
        "files": ("FileReader", "read"),
        "normalization": ("normalize",),
        "reader_protocol": ("Field", "OpenReader", "one_hot"),
        "readers": ("ArrayReader", "open_readers"),
        "samplers": ("ClassBalancedSampler", "Sampler", "WeightedSampler"),
        "splits": ("split",),
        "loading.torch_data": ("Loading", "brings_batches", "open_data"),
        "transformed": ("transform",),
        "validate": ("check",),
    },
)
