import numpy as np
import onnxruntime
import pytest
import torch
from callback_runs import follow, graph_run, in_one_go_and_in_two, samples

import descend
from descend.callbacks import ExportOnnx, LoadModel, SaveModel, SaveTopKModels
from descend.errors import ConfigurationError, StorageError, Unsupported


def test_saved_weights_are_those_of_the_end_in_hydrogen_s_form(tmp_path):
    result = graph_run(tmp_path, SaveModel(dir="saved"))
    folder = tmp_path / "run" / "saved" / "trainer0" / "model0"
    sizes = {"fc1_linearity_weights": (5, 16), "fc1_bias_weights": (5, 1)}
    sizes |= {"fc2_linearity_weights": (3, 5), "fc2_bias_weights": (3, 1)}
    assert {path.name for path in folder.iterdir()} == {
        f"model_weights_{name}_{h}x{w}.bin" for name, (h, w) in sizes.items()
    }
    for name, (height, width) in sizes.items():
        content = (folder / f"model_weights_{name}_{height}x{width}.bin").read_bytes()
        columns = np.frombuffer(content[8:], "<f4").reshape(width, height)
        np.testing.assert_array_equal(columns.T.reshape(result.weights[name].shape), result.weights[name].numpy())


def test_loading_brings_back_what_was_saved_and_names_what_is_missing(tmp_path, capsys):
    trained = graph_run(tmp_path / "a", SaveModel(dir="saved"))
    folder = tmp_path / "a" / "run" / "saved"
    loaded = graph_run(tmp_path / "b", LoadModel(dirs=str(folder)), epochs=0)
    for name, weights in trained.weights.items():
        torch.testing.assert_close(loaded.weights[name], weights, rtol=0, atol=0)
    (folder / "trainer0" / "model0" / "model_weights_fc2_bias_weights_3x1.bin").unlink()
    capsys.readouterr()
    graph_run(tmp_path / "c", LoadModel(dirs=str(folder / "trainer0" / "model0")), epochs=0)
    assert "loaded 3 weights" in (out := capsys.readouterr().out)
    assert "not there: fc2_bias_weights" in out


def test_a_folder_without_weights_or_with_others_is_refused_and_nothing_is_changed(tmp_path):
    with pytest.raises(StorageError, match="holds neither files"):
        graph_run(tmp_path / "a", LoadModel(dirs=str(tmp_path)))
    (tmp_path / "model_weights_fc1_bias_weights_2x1.bin").write_bytes(np.array([2, 1], "<i4").tobytes() + b"\0" * 8)
    with pytest.raises(StorageError, match=r"is 2 x 1; expected \(5, 1\)"):
        graph_run(tmp_path / "b", LoadModel(dirs=str(tmp_path)))


def test_a_run_that_is_continued_keeps_its_own_weights(tmp_path):
    """LoadModel acts once, at the beginning."""
    column = np.array([1, 3], "<i4").tobytes() + np.array([1.0, 2.0, 3.0]).tobytes()
    (tmp_path / "model_weights_weight_1x3.bin").write_bytes(column)
    whole, parts = in_one_go_and_in_two(tmp_path, lambda: [LoadModel(dirs=str(tmp_path))])
    torch.testing.assert_close(parts.weights["weight"], whole.weights["weight"], rtol=0, atol=0)


def test_the_only_trainer_is_among_the_best(tmp_path):
    graph_run(tmp_path, SaveTopKModels(dir="best", k=1, metric="accuracy"), epochs=0)
    assert len(list((tmp_path / "run" / "best" / "trainer0" / "model0").iterdir())) == 4


def test_saving_can_be_switched_off(tmp_path):
    graph_run(tmp_path, SaveModel(dir="saved", disable_save_after_training=True), epochs=0)
    assert not (tmp_path / "run" / "saved").exists()


def test_what_cannot_be_had_is_refused():
    with pytest.raises(ConfigurationError, match="SaveModel needs dir="):
        SaveModel()
    with pytest.raises(ConfigurationError, match="ExportOnnx needs output_filename="):
        ExportOnnx()
    with pytest.raises(Unsupported, match=r"torch\.onnx\.export"):
        follow(ExportOnnx(output_filename="model.onnx"))


def test_a_model_that_onnx_has_no_form_for_is_refused_before_it_is_trained(tmp_path):
    x = descend.Input(data_field="samples", name="x")
    noise = descend.Gaussian(neuron_dims=[1, 3, 3], stdev=0.5, name="noise")
    scores = descend.FullyConnected(descend.Add(x, noise), num_neurons=1, name="scores")
    model = descend.Model(
        1,
        layers=descend.traverse_layer_graph([x, noise]),
        objective_function=descend.ObjectiveFunction([descend.L2Norm2(scores)]),
        callbacks=[ExportOnnx(output_filename="model.onnx")],
    )
    readers = descend.DataReader(
        [descend.Reader(name="synthetic", role="train", num_samples=4, synth_dimensions="1 3 3")]
    )
    with pytest.raises(Unsupported, match="layer 'noise': Gaussian has no form in ONNX"):
        descend.run(descend.Trainer(2, random_seed=1), model, readers, descend.SGD(learn_rate=0.1), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_trained_model_lies_as_onnx_in_the_run_directory(tmp_path):
    """Its predictions are those of the module, for any number of samples."""
    given = ExportOnnx(output_filename="out/model.onnx", debug_string_filename="out/model.txt")
    result = graph_run(tmp_path, given, epochs=1)
    session = onnxruntime.InferenceSession(tmp_path / "run" / "out" / "model.onnx")
    x = samples(7)["samples"]
    (got,) = session.run(None, {"samples": x})
    w = {name: tensor.numpy() for name, tensor in result.weights.items()}
    hidden = np.maximum(x.reshape(7, -1) @ w["fc1_linearity_weights"].T + w["fc1_bias_weights"], 0)
    logits = hidden @ w["fc2_linearity_weights"].T + w["fc2_bias_weights"]
    want = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert 'op_type: "Gemm"' in (tmp_path / "run" / "out" / "model.txt").read_text()
