from types import SimpleNamespace

import numpy as np
import pytest
import torch
from callback_runs import graph_run
from sklearn.metrics import confusion_matrix

from descend.callbacks import ConfusionMatrix, DumpOutputs
from descend.errors import ConfigurationError
from descend.train import Mode


def dumped(folder, mode, epoch, count, first):
    files = [
        [folder / "trainer0" / "model0" / f"sgd.{mode}.epoch.{epoch}.step.{first + i}_{layer}_output0.npy"
         for i in range(count)]
        for layer in ("prob", "labels")
    ]  # fmt: skip
    return [np.concatenate([np.load(file) for file in some]).argmax(1) for some in files]


def test_against_scikit_learn_from_the_dumped_outputs(tmp_path):
    matrix = ConfusionMatrix(prediction="prob", label="labels", prefix="cm/")
    graph_run(tmp_path, DumpOutputs(layers="prob labels", directory="o", format="npy"), matrix)
    run = tmp_path / "run"
    passes = {"train-epoch1": ("training", 0, 3, 0), "train-epoch2": ("training", 1, 3, 3)}
    passes |= {"validation-epoch1": ("validation", 1, 2, 0), "validation-epoch2": ("validation", 2, 2, 2)}
    passes |= {"test": ("testing", 2, 2, 0)}
    assert {path.stem for path in (run / "cm").iterdir()} == set(passes)
    for name, place in passes.items():
        prediction, label = dumped(run / "o", *place)
        expected = confusion_matrix(prediction, label, labels=[0, 1, 2]) / len(label)  # rows: the first argument
        written = np.loadtxt(run / "cm" / f"{name}.csv", delimiter=",")
        np.testing.assert_allclose(written, expected, atol=1e-8)


def test_labels_of_another_length_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="'fc1' has 5 outputs and 'labels' 3"):
        graph_run(tmp_path, ConfusionMatrix(prediction="fc1", label="labels"))


def test_a_prediction_that_is_nan_is_in_no_row():
    matrix, written = ConfusionMatrix(prediction="p", label="y"), {}
    matrix.counts = {}
    outputs = {
        "p": torch.tensor([[1.0, 0.0], [float("nan"), 0.0], [0.0, 1.0], [0.0, float("nan")]]),
        "y": torch.eye(2)[[0, 0, 0, 1]],
    }
    watch = SimpleNamespace(outputs=lambda name: (outputs[name],))
    path = SimpleNamespace(write_text=lambda text, encoding: written.update(text=text))
    run = SimpleNamespace(control=SimpleNamespace(path=lambda name: path))
    matrix.after_evaluation_step(SimpleNamespace(watch=watch, mode=Mode.TEST))
    matrix.after_evaluation_step(SimpleNamespace(watch=watch, mode=Mode.TEST))
    matrix.after_evaluation(SimpleNamespace(mode=Mode.TEST, run=run, epoch=1))
    assert written["text"] == "0.25,0\n0.25,0\n"
    assert not matrix.counts
