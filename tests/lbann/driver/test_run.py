import pytest

import descend
from descend.experiment import load, save_prototext
from descend.lbann.driver.command_line import parse
from descend.lbann.driver.run import free_run_dir, read_experiment
from tests.lbann.driver.programs import MODEL, READER, TRAINER, experiment, listing, run, write


def read(tmp_path, *arguments, text=None):
    (tmp_path / "e.prototext").write_text(text or experiment())
    return read_experiment([str(tmp_path / "e.prototext")], parse(["--prototext=e.prototext", *arguments], {}))


def test_options_stand_above_the_file(tmp_path):
    found = read(tmp_path, "--mini_batch_size=2", "--num_epochs=5", "--rand_seed=9", "--serialize_io")
    assert (found.trainer.mini_batch_size, found.trainer.random_seed, found.trainer.serialize_io) == (2, 9, True)
    assert found.model.epochs == 5


def test_epochs_of_an_algorithm_follow_the_option(tmp_path):
    algorithm = """training_algorithm { name: "a" parameters { [type.googleapis.com/lbann_data.SGD] {
        stopping_criteria { max_epochs: 3 } } } }"""
    trainer = TRAINER.replace("}", algorithm + "}", 1)
    found = read(tmp_path, "--num_epochs=7", text=experiment(trainer=trainer))
    assert found.trainer.training_algo.epochs(found.model.epochs) == 7


def test_an_algorithm_with_another_limit_keeps_it_and_says_so(tmp_path):
    algorithm = """training_algorithm { name: "a" parameters { [type.googleapis.com/lbann_data.SGD] {
        stopping_criteria { max_batches: 3 } } } }"""
    trainer = TRAINER.replace("}", algorithm + "}", 1)
    with pytest.warns(UserWarning, match="--num_epochs=7 holds for the model's epochs"):
        read(tmp_path, "--num_epochs=7", text=experiment(trainer=trainer))


def test_readers_are_overridden_by_role(tmp_path):
    found = read(tmp_path, "--absolute_sample_count=3", "--data_filedir_test=there", "--sample_list_train=list")
    train, test = found.data_reader.reader
    assert (train.absolute_sample_count, train.fraction_of_data_to_use, train.sample_list) == (3, 0.0, "list")
    assert (test.data_filedir, train.data_filedir) == ("there", "")


def test_the_reader_of_molecules_takes_vocabulary_and_length(tmp_path):
    text = experiment().replace('name: "synthetic" role: "train"', 'name: "smiles" role: "train"')
    text = text.replace('synth_dimensions: "5"', "", 1).replace("num_samples: 8", "", 1)
    train, test = read(tmp_path, "--vocab=v.txt", "--seq_len=12", text=text).data_reader.reader
    assert (train.vocab_filename, train.sequence_length) == ("v.txt", 12)
    assert (test.vocab_filename, test.sequence_length) == ("", 0)


def test_a_trainer_and_an_optimizer_may_be_missing(tmp_path):
    found = read(tmp_path, "--mini_batch_size=3", text=MODEL.replace("MORE", "") + READER)
    assert found.trainer.mini_batch_size == 3
    assert isinstance(found.optimizer, descend.NoOptimizer)


def test_setup_alone_builds_the_model_and_writes_nothing(capsys, monkeypatch, tmp_path):
    write(tmp_path, experiment())
    ended = run(capsys, monkeypatch, tmp_path, "--prototext=experiment.prototext", "--exit_after_setup")
    assert ended.code == 0
    assert "model 'm' is built" in ended.out
    assert [path.name for path in tmp_path.iterdir()] == ["experiment.prototext"]


def test_a_model_that_cannot_be_built_fails_at_setup(capsys, monkeypatch, tmp_path):
    write(tmp_path, experiment('layer { name: "w" parents: "z" fully_connected {} }'))
    ended = run(capsys, monkeypatch, tmp_path, "--prototext=experiment.prototext", "--exit_after_setup")
    assert ended.code == 2
    assert "experiment.prototext:" in ended.err


def test_files_of_callbacks_lie_in_the_working_directory_and_the_experiment_in_that_of_the_run(
    capsys, monkeypatch, tmp_path
):
    write(tmp_path, experiment('callback { dump_outputs { directory: "out" layers: "z" execution_modes: "test" } }'))
    ended = run(capsys, monkeypatch, tmp_path, "--prototext=experiment.prototext", "--num_epochs=1")
    assert ended.code == 0, ended.err
    assert listing(tmp_path) == {
        "experiment.prototext",
        "out/trainer0/m/sgd.testing.epoch.1.step.0_z_output0.csv",
    }
    assert "num_epochs: 1" in (tmp_path / "descend_run" / "experiment.prototext").read_text()


def test_each_run_has_a_directory_of_its_own(tmp_path):
    assert free_run_dir(tmp_path).name == "descend_run"
    (tmp_path / "descend_run").mkdir()
    assert free_run_dir(tmp_path).name == "descend_run_2"


def test_options_without_effect_are_named_in_the_log(capsys, monkeypatch, tmp_path):
    write(tmp_path, experiment())
    ended = run(capsys, monkeypatch, tmp_path, "--prototext=experiment.prototext", "--caliper", "--num-subgrids=2")
    assert "accepted and without effect here: --caliper, --num-subgrids" in ended.out


CHECKPOINT = "callback { checkpoint { checkpoint_dir: 'c' checkpoint_epochs: 1 } }"
SAVED = "callback { save_model { dir: 'saved' } } callback { dump_weights { directory: 'w' epoch_interval: 2 } }"


@pytest.fixture
def trained(capsys, monkeypatch, tmp_path):
    """A folder with the weights of a run of two epochs in all forms, and a file without callbacks that write them."""
    trainer = f"trainer {{ mini_batch_size: 4 random_seed: 1 {CHECKPOINT} }}"
    write(tmp_path, experiment(SAVED, trainer), "train.prototext")
    assert run(capsys, monkeypatch, tmp_path, "--prototext=train.prototext").code == 0
    write(tmp_path, experiment("callback { dump_weights { directory: 'loaded' } }"))
    return tmp_path


@pytest.mark.parametrize(
    ("folder", "more"),
    [
        ("c", []),
        ("c/trainer0", []),
        ("c/trainer0/sgd.shared.epoch_end.epoch.2.step.4", ["--load_model_weights_dir_is_complete"]),
        ("saved", []),
        ("saved/trainer0/m", ["--load_model_weights_dir_is_complete"]),
    ],
)
def test_weights_come_from_checkpoints_and_from_saved_models(folder, more, trained, capsys, monkeypatch):
    again = ["--prototext=experiment.prototext", "--num_epochs=0", f"--load_model_weights_dir={folder}", *more]
    found = run(capsys, monkeypatch, trained, *again)
    assert found.code == 0, found.err
    assert "loaded 1 weights" in found.out
    [before] = (trained / "w").rglob("*epoch_end.epoch.2.step.4/m/*.txt")
    [loaded] = (trained / "loaded").rglob("*training_begin*/m/*.txt")
    assert loaded.read_text() == before.read_text()


def test_a_folder_without_weights_is_an_error(capsys, monkeypatch, tmp_path):
    file = f"--prototext={write(tmp_path, experiment())}"
    ended = run(capsys, monkeypatch, tmp_path, file, "--load_model_weights_dir=nothing")
    assert ended.code == 5
    assert "LoadModel: nothing holds neither files model_weights_" in ended.err


def test_the_polynomial_rate_follows_the_steps_that_are_done(capsys, monkeypatch, tmp_path):
    rate = "callback { poly_learning_rate { power: 1 num_epochs: 2 } }"
    ended = run(capsys, monkeypatch, tmp_path, f"--prototext={write(tmp_path, experiment(rate))}")
    said = [line for line in ended.out.splitlines() if "learning rate" in line]
    assert said == [
        "Model 0: changing global learning rate to 0.05 at epoch 1",
        "Model 0: changing global learning rate to 0 at epoch 2",
    ]


def test_a_file_whose_name_says_protobin_is_binary(capsys, monkeypatch, tmp_path):
    found = load(tmp_path / write(tmp_path, experiment()))
    parts = {name: getattr(found, name) for name in ("trainer", "model", "data_reader", "optimizer")}
    save_prototext(tmp_path / "e.protobin", binary=True, **parts)
    whole = run(capsys, monkeypatch, tmp_path, "--prototext=experiment.prototext")
    assert whole.code == 0
    assert run(capsys, monkeypatch, tmp_path, "--prototext=e.protobin") == whole


@pytest.mark.parametrize(("layer", "code"), [("identity", 0), ("stop_gradient", 4)])
def test_gradients_are_checked_where_the_objective_is_exactly_zero(layer, code, capsys, monkeypatch, tmp_path):
    """As of a layer whose outputs equal their reference: rounding is allowed for, and a missing gradient is not."""
    more = f"""
      layer {{ name: "zeros" weights: "own" weights_layer {{ dims: [5] }} }}
      layer {{ name: "moved" parents: "x" parents: "zeros" sum {{}} }}
      layer {{ name: "error" parents: "moved" parents: "x" mean_squared_error {{}} }}
      layer {{ name: "passed" parents: "zeros" {layer} {{}} }}
      layer {{ name: "linear" parents: "passed" reduction {{ mode: "sum" }} }}
      weights {{ name: "own" optimizer {{ sgd {{ learn_rate: 1 }} }} }}
      callback {{ check_gradients {{ error_on_failure: true }} }}"""
    terms = 'layer_term { scale_factor: 1 layer: "error" } layer_term { scale_factor: 1 layer: "linear" }'
    text = experiment(more).replace('layer_term { scale_factor: 1 layer: "z" }', terms)
    ended = run(capsys, monkeypatch, tmp_path, f"--prototext={write(tmp_path, text)}", "--num_epochs=0")
    assert ended.code == code, ended.err
    assert ("CheckGradients: " in ended.err) == bool(code)
