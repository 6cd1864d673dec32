"""Every mistake a user can make in a description ends with the right exit code, a message that helps, and nothing left
behind."""

import gzip
import re
import struct

import pytest

from descend.__main__ import main
from descend.experiment import experiment_text
from descend.zoo import demo_experiment

DEMO = experiment_text(demo_experiment("digits"))


@pytest.fixture
def attempt(tmp_path, monkeypatch, capsys):
    """Run a text through the command line; returns the exit code and what it printed, and asserts that nothing was
    left."""

    def go(text, *options, leaves=()):
        monkeypatch.chdir(tmp_path)
        file = tmp_path / "lenet.prototext"
        file.write_text(text)
        before = {path.name for path in tmp_path.iterdir()} | set(leaves)
        monkeypatch.setattr("sys.argv", ["descend", "run", "lenet.prototext", "--run-dir", "run", *options])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0 or {path.name for path in tmp_path.iterdir()} == before
        printed = capsys.readouterr()
        return ended.value.code, printed.err + printed.out

    return go


def changed(old, new, count=1):
    assert old in DEMO
    return DEMO.replace(old, new, count)


def test_an_unknown_field_is_shown_with_its_place_and_the_nearest_name(attempt):
    code, message = attempt(changed("mini_batch_size: 64", "mini_batch_sise: 64"))
    assert code == 2
    line = next(i for i, text in enumerate(DEMO.splitlines(), 1) if "mini_batch_size" in text)
    assert f"lenet.prototext:{line}:3" in message
    assert "'mini_batch_size'" in message


def test_a_wrong_type_says_what_was_expected(attempt):
    code, message = attempt(changed("num_neurons: 64", 'num_neurons: "many"'))
    assert code == 2
    assert "num_neurons" in message
    assert "lenet.prototext:" in message


def test_all_problems_of_a_text_are_reported_at_once(attempt):
    text = (
        changed("num_neurons: 64", "num_neuron: 64")
        .replace("learn_rate:", "learning_rate:")
        .replace("shuffle:", "shufle:")
    )
    code, message = attempt(text)
    assert code == 2
    assert all(word in message for word in ("'num_neurons'", "'learn_rate'", "'shuffle'"))


def test_two_layers_of_one_name(attempt):
    code, message = attempt(changed('name: "relu2"', 'name: "relu1"').replace('parents: "relu2"', 'parents: "relu1"'))
    assert code == 2
    assert "relu1" in message
    assert message.count("lenet.prototext:") >= 2


def test_a_missing_parent_is_answered_with_the_nearest_name(attempt):
    code, message = attempt(changed('parents: "pool1"', 'parents: "pool_1"'))
    assert code == 2
    assert "pool_1" in message
    assert "did you mean 'pool1'" in message


def test_a_cycle_is_named_in_order(attempt):
    code, message = attempt(changed('name: "conv1"\n    parents: "images"', 'name: "conv1"\n    parents: "relu2"'))
    assert code == 2
    assert "->" in message
    assert all(name in message for name in ("conv1", "relu1", "pool1", "conv2", "relu2"))


def test_a_shape_that_does_not_fit_names_layer_parent_and_both_shapes(attempt):
    code, message = attempt(changed("num_neurons: 10", "num_neurons: 9"))
    assert code == 2
    assert "9" in message
    assert "10" in message
    assert "probabilities" in message


def test_no_objective(attempt):
    start = DEMO.index("  objective_function {")
    end = DEMO.index("  metric {")
    code, message = attempt(DEMO[:start] + DEMO[end:])
    assert code == 2
    assert "objective" in message


@pytest.mark.parametrize("rate", ["-0.05", "nan", "inf"])
def test_a_rate_that_is_no_rate(attempt, rate):
    code, message = attempt(changed("learn_rate: 0.05", f"learn_rate: {rate}"))
    assert code == 2
    assert "learn_rate" in message


def test_a_learning_rate_of_zero_is_taken_as_in_lbann_with_a_warning(attempt):
    """A field that is not set is 0; LBANN then trains nothing and says nothing."""
    start = DEMO.index("    learn_rate")
    without = DEMO[:start] + DEMO[DEMO.index("\n", start) + 1 :]
    code, message = attempt(without, "--check")
    assert code == 0
    assert re.search("'conv1_kernel', 'conv1_bias', .* a learning rate of 0.*: set learn_rate", message)
    schedule = "  callback {\n    set_learning_rate {\n      step: 1\n      val: 0.1\n    }\n  }\n"
    for text in (DEMO, without.replace("model {\n", "model {\n" + schedule, 1)):
        code, message = attempt(text, "--check")
        assert code == 0
        assert "learning rate of 0" not in message


def test_roles_that_give_a_field_in_another_shape_or_not_at_all(attempt):
    reader = 'reader {{ name: "synthetic" role: "{}" num_samples: 9 synth_dimensions: "{}" num_labels: {} }}'
    text = DEMO[: DEMO.index("data_reader {")] + DEMO[DEMO.index("model {") :]
    roles = {"train": ("1 8 8", 10), "validate": ("1 9 8", 10), "test": ("1 8 8", 0)}
    readers = "\n".join(reader.format(role, *given) for role, given in roles.items())
    code, message = attempt(f"{text}\ndata_reader {{\n{readers}\n}}", "--check")
    assert code == 2
    assert re.search(r"\(validate\): the field 'samples' .*has shape 1 x 9 x 8, and has shape 1 x 8 x 8 in", message)
    assert re.search(r"\(test\): the field 'labels' .*is missing, and has shape 10 in the role train", message)


def test_a_library_that_a_callback_needs_is_missed_by_the_check(attempt, monkeypatch):
    monkeypatch.setattr("descend.callbacks.tensorboard.find_spec", lambda name: None)
    text = DEMO.replace("model {\n", "model {\n  callback {\n    summary {\n    }\n  }\n", 1)
    code, message = attempt(text, "--check")
    assert code == 2
    assert re.search(r"lenet.prototext:\d+:\d+: Summary needs the library tensorboard: pip install", message)


def test_names_in_callbacks_are_looked_at_in_a_graph_that_does_not_fit(attempt):
    callback = '  callback {\n    dump_outputs {\n      layers: "image relu1_split"\n      directory: "o"\n    }\n  }\n'
    text = DEMO.replace("model {\n", "model {\n" + callback, 1).replace('parents: "pool1"', 'parents: "pool_1"')
    code, message = attempt(text, "--check")
    assert code == 2
    assert "did you mean 'pool1'" in message
    assert "DumpOutputs.layers names a layer 'image' that does not exist; did you mean 'images'" in message
    assert "relu1_split" not in message


def test_a_kind_that_cannot_be_had_is_refused_by_name(attempt):
    code, message = attempt(changed("relu {\n    }", 'external {\n      filename: "f.so"\n    }'))
    assert code == 2
    assert "layer 'relu1'" in message
    assert "External runs code from a shared library" in message


def test_a_field_that_no_reader_offers(attempt):
    code, message = attempt(changed('data_field: "labels"', 'data_field: "lables"'))
    assert code == 2
    assert "lables" in message
    assert "labels" in message


@pytest.mark.parametrize("role", ["validation", "tranining"])
def test_a_role_that_does_not_exist(attempt, role):
    code, message = attempt(changed('role: "train"', f'role: "{role}"'))
    assert code == 2
    assert role in message


def test_a_mini_batch_of_no_samples(attempt):
    code, message = attempt(changed("mini_batch_size: 64", "mini_batch_size: -3"))
    assert code == 2
    assert "mini_batch_size" in message
    assert "-3" in message


def test_a_missing_part(attempt):
    code, message = attempt(DEMO[: DEMO.index("optimizer {")] + DEMO[DEMO.index("trainer {") :])
    assert code == 2
    assert "optimizer" in message


def test_a_file_that_is_not_there(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["descend", "run", "nowhere.prototext"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "nowhere.prototext" in capsys.readouterr().err


def test_a_run_directory_that_cannot_be_written(attempt, tmp_path):
    (tmp_path / "file").write_text("")
    code, message = attempt(DEMO, "--run-dir", "file/run", leaves=["file"])
    assert code == 2
    assert "file/run" in message
    code, message = attempt(DEMO, "--run-dir", "/proc/descend/run", leaves=["file"])
    assert code == 2
    assert "/proc/descend/run" in message


def idx(shape, values):
    return struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + bytes(values)


@pytest.fixture
def images(tmp_path):
    """Write a small data set in IDX files and return a text that reads it."""

    def write(count=20, labels=None, cut=0, compress=False):
        folder = tmp_path / "data"
        folder.mkdir(exist_ok=True)
        pixels = idx((count, 8, 8), [i % 256 for i in range(count * 64)])
        numbers = idx((count,), labels if labels is not None else [i % 10 for i in range(count)])
        for role in ("train", "t10k"):
            for name, data in (("images-idx3-ubyte", pixels[: len(pixels) - cut]), ("labels-idx1-ubyte", numbers)):
                path = folder / f"{role}-{name}{'.gz' if compress else ''}"
                path.write_bytes(gzip.compress(data) if compress else data)
        readers = "".join(
            f'  reader {{ name: "mnist" role: "{role}" data_filedir: "data" }}\n' for role in ("train", "test")
        )
        return f"data_reader {{\n{readers}}}\n" + DEMO[DEMO.index("model {") :]

    return write


@pytest.mark.parametrize("compress", [False, True])
def test_a_truncated_file_says_how_much_is_missing(attempt, images, compress):
    code, message = attempt(images(cut=100, compress=compress))
    assert code == 3
    assert "train-images-idx3-ubyte" in message


def test_an_empty_data_set(attempt, images):
    code, message = attempt(images(count=0))
    assert code == 3
    assert "empty" in message


def test_a_label_out_of_range_names_sample_value_and_range(attempt, images):
    code, message = attempt(images(labels=[*range(10), 3, 4, 17, 0, 0, 0, 0, 0, 0, 0]))
    assert code == 3
    assert "12" in message
    assert "17" in message
    assert "0 to 9" in message or "[0, 9]" in message or "below 10" in message


def test_a_batch_larger_than_the_data_set_is_one_partial_batch_and_is_said_once(attempt, images):
    code, message = attempt(images(count=20), leaves=["run"])
    assert code == 0
    assert message.count("more than the 20 samples of the reader for 'train'") == 1


def test_zero_epochs_evaluate_only(attempt, images):
    code, message = attempt(
        images().replace("max_epochs: 20", "max_epochs: 0").replace("num_epochs: 20", "num_epochs: 0")
    )
    assert code == 0
    assert "test accuracy: " in message
    assert "train accuracy" not in message


def test_check_starts_nothing_and_prints_the_layers(attempt, tmp_path):
    code, message = attempt(DEMO, "--check")
    assert code == 0
    assert "conv2" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("options", [(), ("--check",)])
def test_a_callback_without_samples_to_look_at_is_refused_before_anything_runs(attempt, options):
    readers = DEMO.split("  reader {")
    text = "  reader {".join(part for part in readers if 'role: "validate"' not in part)
    code, message = attempt(text.replace("progress_bar {", "early_stopping { patience: 2"), *options)
    assert code == 2
    assert "EarlyStopping needs validation samples and this run has none" in message
    assert "give a reader the role 'validate' (of fit: valid=), or remove the callback" in message
