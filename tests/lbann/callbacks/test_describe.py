import re

import pytest
import torch
from callback_runs import follow, graph_run
from toys import Regression, data

from descend.callbacks import (
    ComputeModelSize,
    DispIOStats,
    DumpModelGraph,
    MemoryProfiler,
    PrintModelDescription,
)
from descend.errors import ConfigurationError


def test_the_description_names_every_layer_and_counts_the_numbers(tmp_path, capsys):
    graph_run(tmp_path, PrintModelDescription(), epochs=0)
    out = capsys.readouterr().out
    assert "layer fc1 (FullyConnected): images -> 5" in out
    assert "layer images (Input): data -> 1 x 4 x 4" in out
    assert "103 trainable parameters" in out
    follow(PrintModelDescription(), epochs=0)
    assert "Linear(in_features=3" in capsys.readouterr().out


def test_the_graph_has_an_edge_for_each_parent(tmp_path, capsys):
    graph_run(tmp_path, DumpModelGraph(print=True), epochs=0)
    text = (tmp_path / "run" / "model.dot").read_text()
    edges = set(re.findall(r'"(\w+)" -> "(\w+)"', text))
    assert {("images", "fc1"), ("fc1", "relu"), ("relu", "fc2"), ("fc2", "prob")} <= edges
    assert text.startswith('digraph "model0" {')
    assert text.count("{") == text.count("}") == 1
    assert text in capsys.readouterr().out
    with pytest.raises(ConfigurationError, match=r"plain nn\.Module"):
        follow(DumpModelGraph())


def test_the_size_of_the_model_is_stored_in_weights(capsys):
    task = Regression()
    still = torch.optim.SGD(task.module.parameters(), lr=0.0)
    follow(ComputeModelSize(output_name="bias", batch_interval=6), task=task, optimizer=still, epochs=1)
    assert "Model size: 3" in capsys.readouterr().out  # the bias itself does not count
    assert task.module.bias.tolist() == [3.0]


def test_samples_of_each_reader(capsys):
    follow(DispIOStats(), epochs=1, validation=data(samples=8, batch_size=3))
    lines = capsys.readouterr().out.splitlines()
    assert "model0 (instance 0) training samples : 10 of 10" in lines
    assert "model0 (instance 0) validation samples : 8 of 8" in lines


def test_memory_of_the_first_step(tmp_path, capsys):
    graph_run(tmp_path, MemoryProfiler(detailed_first_step=True), epochs=2)
    out = capsys.readouterr().out
    assert out.count("memory, weights") == 1
    assert f"memory, weights : {103 * 4} bytes" in out
    assert f"memory, outputs of layer fc1 : {8 * 5 * 4} bytes" in out
