"""LBANN's readers by the names that a prototext gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.lbann.readers.cifar10 import CIFAR10
from descend.lbann.readers.hdf5_schema import HDF5_SCHEMA
from descend.lbann.readers.imagenet import IMAGENET
from descend.lbann.readers.merged import MERGE_FEATURES, MERGE_SAMPLES
from descend.lbann.readers.smiles import SMILES
from descend.lbann.readers.tables import CSV, NUMPY, NUMPY_NPZ, NUMPY_NPZ_FILES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.data.reader_protocol import Format

__all__ = ["LBANN_READERS", "REFUSED"]

LBANN_READERS: Mapping[str, Format] = {
    "cifar10": CIFAR10,
    "csv": CSV,
    "hdf5_data_reader": HDF5_SCHEMA,
    "imagenet": IMAGENET,
    "merge_features": MERGE_FEATURES,
    "merge_samples": MERGE_SAMPLES,
    "numpy": NUMPY,
    "numpy_npz": NUMPY_NPZ,
    "numpy_npz_conduit_reader": NUMPY_NPZ_FILES,
    "smiles": SMILES,
}

_SCHEMA = "use 'hdf5_data_reader', which reads any samples of HDF5 files by a schema"
_ARRAYS = "store the samples as arrays and use 'numpy_npz'"

# Readers of single projects, with what reads such data here.
REFUSED: Mapping[str, str] = {
    "cosmoflow_hdf5": f"it belongs to LBANN's distributed convolution; {_SCHEMA}",
    "hdf5": f"it belongs to LBANN's distributed convolution; {_SCHEMA}",
    "jag_conduit": f"it reads data of one project; {_SCHEMA}",
    "jag_conduit_hdf5": f"it reads data of one project; {_SCHEMA}",
    "mesh": f"it reads data of one project; {_ARRAYS}",
    "multi_conduit": f"it joins readers of one project; {_SCHEMA} and takes several files in its sample list",
    "nci": "it reads data of one project; use 'csv', whose separator, skip_cols and label_col can be set",
    "node2vec": "it draws walks on a graph of one project; write them to files before the run, for 'numpy_npz'",
    "pilot2_molecular_reader": f"it reads data of one project; {_ARRAYS}",
    "ras_lipid": f"it reads data of one project; {_ARRAYS}",
}
