"""Experiments as files."""

import pytest

import descend
import descend.lbann as lbann
from descend.errors import ConfigurationError, TextError
from descend.lbann.proto import bin2text, generic_load, save_prototext, text2bin, to_experiment


def test_text_and_binary_form_are_turned_into_each_other(tmp_path):
    x = lbann.Input(data_field="samples", name="x")
    save_prototext(tmp_path / "a.prototext", model=lbann.Model(3, [x]), trainer=lbann.Trainer(4))
    text2bin(tmp_path / "a.prototext", tmp_path / "a.protobin")
    bin2text(tmp_path / "a.protobin", tmp_path / "b.prototext")
    assert (tmp_path / "a.prototext").read_text() == (tmp_path / "b.prototext").read_text()
    assert (tmp_path / "a.protobin").read_bytes() != (tmp_path / "a.prototext").read_bytes()
    for name in ("a.prototext", "a.protobin"):
        found = generic_load(tmp_path / name)
        assert (found.model.num_epochs, found.trainer.mini_batch_size) == (3, 4)
    lbann.save_prototext(str(tmp_path / "c.protobin"), binary=True, optimizer=lbann.SGD(learn_rate=0.5))
    assert generic_load(tmp_path / "c.protobin").optimizer.sgd.learn_rate == 0.5


def test_parts_and_files_that_are_none_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="no part 'modell'; did you mean 'model'"):
        save_prototext(tmp_path / "a", modell=1)
    with pytest.raises(ConfigurationError, match=r"experiment\.model is 3"):
        save_prototext(tmp_path / "a", model=3)
    (tmp_path / "bad.prototext").write_text("model { layer { nam: 'x' } }")
    with pytest.raises(TextError, match=r"bad\.prototext:1:17: .*did you mean 'name'"):
        text2bin(tmp_path / "bad.prototext", tmp_path / "bad.protobin")
    assert not (tmp_path / "bad.protobin").exists()


def network(names):
    """A small network and its callbacks, of the names of LBANN or of descend, which are alike."""
    x, labels = names.Input(data_field="samples", name="x"), names.Input(data_field="labels", name="labels")
    y = names.FullyConnected(x, num_neurons=10, has_bias=True, name="y")
    predicted = names.Softmax(names.Clamp(y, min=-5, max=5, name="clamped"), name="predicted")
    loss = names.CrossEntropy(predicted, labels, name="loss")
    accuracy = names.Metric(names.CategoricalAccuracy(predicted, labels, name="a"), name="accuracy", unit="%")
    return names.Model(1, x, objective_function=loss, metrics=[accuracy])


def test_an_experiment_runs_in_this_process_to_the_same_bits_as_one_of_descend(tmp_path):
    described = descend.zoo.digits()
    ours = descend.run(
        descend.Trainer(64, random_seed=3),
        network(descend),
        described,
        descend.Adam(learn_rate=0.01, beta1=0.9, beta2=0.99, eps=1e-8),
        run_dir=tmp_path / "a",
    )
    algorithm = lbann.BatchedIterativeOptimizer("sgd", epoch_count=1)
    found = to_experiment(
        lbann.Trainer(64, random_seed=3, training_algo=algorithm),
        network(lbann),
        experiment_readers(described),
        lbann.Adam(learn_rate=0.01, beta1=0.9, beta2=0.99, eps=1e-8),
    )
    theirs = descend.run(found.trainer, found.model, found.data_reader, found.optimizer, run_dir=tmp_path / "b")
    assert [row["objective"] for row in theirs.history] == [row["objective"] for row in ours.history]
    assert theirs.history[-1]["accuracy"] > 0.5


def experiment_readers(readers):
    """The message of some readers, as LBANN's programs have it."""
    message = lbann.reader_pb2.DataReader()
    for one in readers.reader:
        reader = message.reader.add(name=one.name, role=one.role, shuffle=one.shuffle, fraction_of_data_to_use=1.0)
        reader.transforms.add().scale.scale = 1 / 16
    return message
