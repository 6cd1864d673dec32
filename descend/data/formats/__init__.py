"""File formats, one a file, by the names that a description gives them."""

from collections.abc import Mapping

from descend.data.formats.images import DIGITS, MNIST
from descend.data.formats.python_dataset import PYTHON_DATASET
from descend.data.formats.python_module import PYTHON
from descend.data.formats.synthetic import SYNTHETIC
from descend.data.reader_protocol import Format

__all__ = ["FORMATS", "NOT_BUILT"]

FORMATS: Mapping[str, Format] = {
    "mnist": MNIST,
    "digits": DIGITS,
    "synthetic": SYNTHETIC,
    "python": PYTHON,
    "python_dataset": PYTHON_DATASET,
}

# Readers of LBANN that are not implemented; their names give an error of their own.
NOT_BUILT = frozenset(
    {
        "cifar10",
        "cosmoflow_hdf5",
        "csv",
        "hdf5",
        "hdf5_data_reader",
        "imagenet",
        "jag_conduit",
        "jag_conduit_hdf5",
        "merge_features",
        "merge_samples",
        "mesh",
        "multi_conduit",
        "nci",
        "node2vec",
        "numpy",
        "numpy_npz",
        "numpy_npz_conduit_reader",
        "pilot2_molecular_reader",
        "ras_lipid",
        "smiles",
    }
)
