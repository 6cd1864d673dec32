"""The text form of an experiment: files that hold a part each, what is left out, and all problems at once."""

import pytest
import torch

import descend
from descend.errors import ConfigurationError, TextError
from descend.experiment.experiment import Experiment
from descend.experiment.text import classes, experiment_text, load, run_text, save_prototext
from descend.graph import TorchModel


def parts(**changed):
    x, y = descend.Input(data_field="x", name="x"), descend.Input(data_field="y", name="y")
    z = descend.FullyConnected(x, num_neurons=2, name="fc")
    model = descend.Model(3, objective_function=descend.MeanSquaredError(z, y, name="loss"), name="net")
    return {
        "trainer": descend.Trainer(mini_batch_size=4, random_seed=7),
        "model": model,
        "data_reader": descend.DataReader([descend.Reader(name="synthetic", role="train", num_samples=8)]),
        "optimizer": descend.SGD(learn_rate=0.1),
        **changed,
    }


def test_the_text_of_an_experiment_gives_it_back(tmp_path):
    text = experiment_text(Experiment(**parts()))
    (tmp_path / "a.prototext").write_text(text)
    assert experiment_text(load(tmp_path / "a.prototext")) == text


@pytest.mark.parametrize("binary", [False, True])
def test_what_was_saved_is_loaded(tmp_path, binary):
    file = tmp_path / ("a.protobin" if binary else "a.prototext")
    save_prototext(file, **parts(), binary=binary)
    assert experiment_text(load(file)) == experiment_text(Experiment(**parts()))


def split(tmp_path):
    """The same experiment in a file for each part."""
    text, files, depth, lines = experiment_text(Experiment(**parts())), [], 0, []
    for line in text.splitlines():
        lines.append(line)
        depth += line.count("{") - line.count("}")
        if depth == 0 and line.startswith("}"):
            name = lines[0].split()[0]
            (tmp_path / name).write_text("\n".join(lines))
            files.append(tmp_path / name)
            lines = []
    return files


def test_parts_may_be_in_files_of_their_own_in_any_order(tmp_path):
    files = split(tmp_path)
    assert sorted(file.name for file in files) == ["data_reader", "model", "optimizer", "trainer"]
    assert experiment_text(load(*reversed(files))) == experiment_text(Experiment(**parts()))


def test_all_missing_parts_are_named_with_what_they_hold(tmp_path):
    files = {file.name: file for file in split(tmp_path)}
    with pytest.raises(TextError) as caught:
        load(files["model"], files["optimizer"])
    assert [problem.split(": ")[1] for problem in caught.value.problems] == [
        "trainer (batch size, seed and algorithm) is missing; add trainer { ... }",
        "data_reader (training data) is missing; add data_reader { ... }",
    ]


def test_a_part_that_is_in_two_files_is_refused(tmp_path):
    files = split(tmp_path)
    with pytest.raises(TextError, match=f"'{files[0].name}' is also in another of the files; leave one out"):
        load(*files, files[0])


class Plain(descend.Callback):
    """A callback of a program, without a text form."""


def test_callbacks_without_a_text_form_are_left_out_and_named():
    made = parts()
    made["model"].callbacks = [descend.Timer(), Plain()]
    text = run_text(Experiment(**made))
    assert text.startswith("# left out, because it has no text form: Plain\n")
    assert "timer" in text
    assert [type(one).__name__ for one in made["model"].callbacks] == ["Timer", "Plain"]


def test_a_criterion_without_a_text_form_is_left_out_and_the_experiment_is_not_changed():
    class Mine(descend.train.Stop):
        def __repr__(self):
            return "Mine()"

        def check(self):
            pass

    algorithm = descend.BatchedIterativeOptimizer(stop=Mine())
    made = parts(trainer=descend.Trainer(mini_batch_size=4, training_algo=algorithm))
    text = run_text(Experiment(**made))
    assert text.startswith("# left out, because it has no text form: stop=Mine()\n")
    assert made["trainer"].training_algo is algorithm


def test_a_module_has_no_text_and_the_comment_says_what_follows(tmp_path):
    made = parts(model=TorchModel(torch.nn.Linear(2, 1), "mse", epochs=2, name="mine"))
    text = run_text(Experiment(**made))
    assert "# left out, because it has no text form: the module of model 'mine', so this text does not repeat" in text
    with pytest.raises(ConfigurationError):
        experiment_text(Experiment(**made))


def test_messages_have_one_class_each():
    found = classes()
    for message, kind in (("SGD", descend.BatchedIterativeOptimizer), ("LTFB", descend.LTFB)):
        assert found[message] is kind
    assert all(isinstance(kind, type) for kind in found.values())
