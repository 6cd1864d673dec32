"""The messages DataReader and Reader as plain values: which data a run reads.

Field names are those of the text form, and an unset field is zero, empty or false, as there. A description opens
nothing; `descend.data.open_readers` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from descend.arguments.strict_keywords import StrictKeywords
from descend.data.transforms import TRANSFORMS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from descend.data.transforms import Transform

__all__ = ["MESSAGES", "ROLES", "DataReader", "Node2VecDataReader", "PythonDataReader", "PythonDatasetReader", "Reader"]

ROLES = ("train", "validate", "test", "tournament")


@dataclass(frozen=True)
class PythonDataReader:
    """Functions of a Python module that return samples; with `workers` of 2 or more, in so many processes."""

    message: ClassVar[str] = "PythonDataReader"

    module: str = ""
    module_dir: str = ""
    sample_function: str = ""
    num_samples_function: str = ""
    sample_dims_function: str = ""
    workers: int = 0
    where: str | None = field(default=None, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class PythonDatasetReader:
    """A Python object that returns samples; with `workers` of 2 or more, copies of it in so many processes."""

    message: ClassVar[str] = "PythonDatasetReader"

    dataset_path: str = ""
    module_dir: str = ""
    prefetch_factor: int = 0
    workers: int = 0
    where: str | None = field(default=None, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class Node2VecDataReader:
    """Random walks over a graph."""

    message: ClassVar[str] = "Node2VecDataReader"

    graph_file: str = ""
    epoch_size: int = 0
    walk_length: int = 0
    return_param: float = 0.0
    inout_param: float = 0.0
    num_negative_samples: int = 0
    where: str | None = field(default=None, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, kw_only=True, repr=False)
class Reader(metaclass=StrictKeywords):
    """One data set in one role.

        Reader(name="mnist", role="train", shuffle=True, data_filedir="mnist", transforms=[Scale(1 / 255)])

    How much of it is used, in this order:

    1. `first_n` keeps the first samples of the file (0: all).
    2. `fraction_of_data_to_use` or `absolute_sample_count` keeps that many of these: with `shuffle` a random choice,
       without it the first ones. LBANN requires exactly one of the two; here, in Python and in a text, neither of them
       means all, and both are an error.
    3. `validation_fraction` and `tournament_fraction` of the rest, chosen at random even without `shuffle`, become
       readers of the roles "validate" and "tournament", with the same transforms. Only a reader of the role "train" has
       them, and only if the description has no reader of that role already.

    Choices depend on the seed alone and counts are rounded to the nearest integer.

    With `gan_labelling` all samples have the label `gan_label_value` of two, as adversarial networks need them.

    A field that the reader of this name does not use is refused by `descend.data.check`, so that no setting is silently
    without effect.
    """

    message: ClassVar[str] = "Reader"

    name: str = ""
    role: str = ""
    shuffle: bool = False
    data_filedir: str = ""
    data_local_filedir: str = ""
    data_filename: str = ""
    label_filename: str = ""
    sample_list: str = ""
    validation_fraction: float = 0.0
    tournament_fraction: float = 0.0
    absolute_sample_count: int = 0
    first_n: int = 0
    fraction_of_data_to_use: float = 0.0
    metadata_filename: str = ""
    gan_labelling: bool = False
    gan_label_value: int = 0
    num_labels: int = 0
    num_samples: int = 0
    synth_dimensions: str = ""
    synth_response_dimensions: str = ""
    separator: str = ""
    skip_cols: int = 0
    skip_rows: int = 0
    has_header: bool = False
    label_col: int = 0
    response_col: int = 0
    disable_labels: bool = False
    disable_responses: bool = False
    enable_labels: bool = False
    enable_responses: bool = False
    format: str = ""
    data_file_pattern: str = ""
    num_neighbors: int = 0
    max_neighborhood: int = 0
    num_image_srcs: int = 0
    scaling_factor_int16: float = 0.0
    max_files_to_load: int = 0
    sample_list_per_trainer: bool = False
    sample_list_per_model: bool = False
    sample_list_keep_order: bool = False
    python: PythonDataReader | None = None
    node2vec: Node2VecDataReader | None = None
    python_dataset: PythonDatasetReader | None = None
    transforms: Sequence[Transform] = ()
    hdf5_key_data: str = ""
    hdf5_key_labels: str = ""
    hdf5_key_responses: str = ""
    hdf5_hyperslab_labels: bool = False
    num_responses: int = 0
    data_schema_filename: str = ""
    experiment_schema_filename: str = ""
    vocab_filename: str = ""
    sequence_length: int = 0
    where: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", tuple(self.transforms))
        # The text form holds this one number as a float32; the others are doubles.
        object.__setattr__(self, "scaling_factor_int16", float(np.float32(self.scaling_factor_int16)))

    def __repr__(self) -> str:
        """The fields that are set, of about fifty."""
        values = ((field.name, getattr(self, field.name), field.default) for field in fields(self) if field.repr)
        return f"Reader({', '.join(f'{name}={value!r}' for name, value, default in values if value != default)})"

    def __str__(self) -> str:
        """Its name in messages: the file position if it came from a text, its name and role."""
        return (f"{self.where}: " if self.where else "") + f"reader '{self.name}' ({self.role})"


@dataclass(frozen=True)
class DataReader(metaclass=StrictKeywords):
    """The readers of a run, at most one for each role: train, validate, test, tournament.

    With `workers` so many processes read and transform the samples of each role, else a thread does; the samples are
    the same.
    """

    message: ClassVar[str] = "DataReader"

    reader: Sequence[Reader] = ()
    max_par_io_size: int = 0
    requires_data_set_metadata: bool = False
    workers: int = 0
    where: str | None = field(default=None, compare=False, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reader", tuple(self.reader))


MESSAGES: Mapping[str, type] = {
    kind.message: kind
    for kind in (DataReader, Reader, PythonDataReader, PythonDatasetReader, Node2VecDataReader, *TRANSFORMS)
}
"""The classes of this package that a text can contain, by the names of their messages."""
