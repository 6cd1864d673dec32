"""LBANN's names, and a run whose data a text describes."""

import numpy as np
import pytest

import descend
from descend.data import MESSAGES, DataReader, Reader, check
from descend.data.validate import known_readers
from descend.errors import ConfigurationError
from descend.graph import text
from descend.lbann.readers import LBANN_READERS, REFUSED

# The names of section "Data readers" of LBANN's documentation, those of Python left out.
NAMES = {
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
    "mnist",
    "multi_conduit",
    "nci",
    "node2vec",
    "numpy",
    "numpy_npz",
    "numpy_npz_conduit_reader",
    "pilot2_molecular_reader",
    "ras_lipid",
    "smiles",
    "synthetic",
}


def test_every_name_of_lbann_is_a_reader_or_says_what_to_use():
    assert set(known_readers()[0]) | set(REFUSED) >= NAMES
    assert not set(LBANN_READERS) & set(REFUSED)
    for name, advice in REFUSED.items():
        with pytest.raises(ConfigurationError, match=f"'{name}' is not available here") as caught:
            check(DataReader([Reader(name=name, role="train")]))
        assert advice in str(caught.value)


def test_a_run_on_a_table_that_a_text_describes(tmp_path):
    x = np.random.default_rng(0).normal(size=(300, 4))
    np.savetxt(tmp_path / "t.csv", np.column_stack((x.sum(1) > 0, x)), "%g", ";", header="y;a;b;c;d", comments="")
    described = f"""
    reader {{
      name: "csv" role: "train" shuffle: true data_filedir: "{tmp_path}" data_filename: "t.csv"
      separator: ";" has_header: true label_col: -5
      validation_fraction: 0.2 fraction_of_data_to_use: 1.0
      transforms {{ normalize {{ means: "0" stddevs: "1" }} }}
    }}"""
    readers = text.to_value(text.parse(described, "data.prototext", "DataReader"), MESSAGES)
    samples, labels = descend.Input(data_field="samples"), descend.Input(data_field="labels")
    probabilities = descend.Softmax(descend.FullyConnected(samples, num_neurons=2, has_bias=True))
    accuracy = descend.CategoricalAccuracy(probabilities, labels)
    model = descend.Model(
        8,
        layers=[samples, labels],
        objective_function=descend.CrossEntropy(probabilities, labels),
        metrics=[descend.Metric(accuracy, name="accuracy", unit="%")],
    )
    result = descend.run(descend.Trainer(20), model, readers, descend.SGD(learn_rate=0.5), run_dir=tmp_path / "run")
    rows = [row for row in result.history if row["mode"] == "train"]
    assert rows[-1]["accuracy"] > 0.9
