"""A model that a machine cannot hold is refused before anything is made, with the figures."""

import re

import numpy
import pytest

import descend
from descend.errors import ConfigurationError
from descend.experiment.inspect.memory_estimate import beyond_memory, machine_bytes
from descend.graph import check

GIGA = 10**9


def plan_of(neurons, datatype=None):
    x = descend.Input(data_field="x", name="x")
    y = descend.FullyConnected(x, num_neurons=neurons, name="y", datatype=datatype)
    loss = descend.L2Norm2(y, name="loss")
    return check(descend.Model(1, objective_function=loss), {"x": (1_000_000,)})


def test_what_fits_is_not_spoken_of():
    assert beyond_memory(plan_of(1000), True, 9 * GIGA) == []


@pytest.mark.parametrize(("datatype", "size"), [(None, 40), ("DOUBLE", 80), ("FP16", 20)])
def test_weights_beyond_the_memory_are_refused_with_the_largest(datatype, size):
    """10,000 x 1,000,000 numbers of 4, 8 and 2 bytes."""
    says = (
        rf"^the weights alone are {size}\.0 GB and this machine has 16\.0 GB of memory; the largest are "
        rf"'y_linearity_weights' of layer 'y' with 10000 x 1000000 numbers, {size}\.0 GB: "
    )
    with pytest.raises(ConfigurationError, match=says):
        beyond_memory(plan_of(10_000, datatype), True, 16 * GIGA)


def test_gradients_that_would_not_fit_are_reported_and_not_refused():
    """On an accelerator with more memory they may: 4 GB of weights, and as much again."""
    (said,) = beyond_memory(plan_of(1000), True, 7 * GIGA)
    assert said.startswith(
        "weights (4.0 GB), gradients (4.0 GB) and the largest output of one sample (layer 'x', 0.0 GB)"
    )
    assert "more than the 7.0 GB of memory" in said
    assert beyond_memory(plan_of(1000), False, 7 * GIGA) == []


def test_the_memory_of_this_machine_is_a_plausible_figure():
    assert 10**8 < machine_bytes() < 10**15


TEXT = """
data_reader { reader { name: "synthetic" role: "train" num_samples: 10 synth_dimensions: "1000000000" num_labels: 2
    fraction_of_data_to_use: 1 } }
trainer { mini_batch_size: 2 }
optimizer { sgd { learn_rate: 0.1 } }
model { num_epochs: 1 objective_function { layer_term { layer: "loss" scale_factor: 1 } }
  layer { name: "x" input { data_field: "samples" } }
  layer { name: "wide" parents: "x" fully_connected { num_neurons: 10000000 } }
  layer { name: "loss" parents: "wide" l2_norm2 { } }
}
"""


@pytest.mark.parametrize("options", [["--check"], ["--run-dir", "run"]])
def test_the_check_and_the_run_say_the_same_of_a_text(options, tmp_path, monkeypatch, capsys):
    from descend.__main__ import main

    file = tmp_path / "huge.prototext"
    file.write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["descend", "run", "huge.prototext", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert re.search(
        r"huge\.prototext:8:3: the weights alone are 40,000,000\.0 GB and this machine has .* GB",
        capsys.readouterr().err,
    )
    assert [path.name for path in tmp_path.iterdir()] == ["huge.prototext"]


def test_a_plain_module_of_it_is_refused_too():
    x = descend.Input(data_field="x", name="x")
    y = descend.FullyConnected(x, num_neurons=10**12, name="y")
    with pytest.raises(ConfigurationError, match=r"the weights alone are 4,000\.0 GB"):
        descend.Model(0, layers=[y]).to_torch(fields={"x": (1,)}, outputs=[y])


def test_parts_of_another_kind_are_reported_all_at_once():
    model = descend.Model(1, objective_function=descend.L2Norm2(descend.Input(data_field="x")))
    reader = descend.ArrayReader({"x": numpy.ones((2, 1))})
    with pytest.raises(ConfigurationError) as caught:
        descend.run(model, descend.Trainer(mini_batch_size=2), reader, None)
    said = caught.value.problems
    assert [re.match(r"\w+ must be \w+, such as .*; got .*", str(one))[0] for one in said] == [
        "trainer must be Trainer, such as Trainer(mini_batch_size=64); got a Model",
        "model must be Model, such as Model(5, objective_function=loss), or Model.from_torch(module, loss=...); "
        "got a Trainer",
        "data_reader must be DataReader, such as zoo.digits() or DataReader([Reader(...)]); data in memory: use "
        "descend.fit; got a ArrayReader",
        "optimizer must be Optimizer, such as SGD(learn_rate=0.1); for a torch optimizer use descend.fit; got None",
    ]
