"""Runs that stop and go on through LBANN's driver: the same folders byte for byte and the same lines."""

import re

from tests.lbann.driver.programs import run, write

SECONDS = re.compile(rb'"seconds": [^,}]*')
TEXT = """
trainer { mini_batch_size: 4 random_seed: 7
  callback { checkpoint { checkpoint_dir: "ckpt" checkpoint_epochs: 1 checkpoint_steps: 3 } } }
model { name: "m" num_epochs: 4
  objective_function { layer_term { scale_factor: 1 layer: "z" } }
  metric { layer_metric { layer: "z" name: "size" unit: "%" } }
  layer { name: "x" input { data_field: "samples" } }
  layer { name: "d" parents: "x" dropout { keep_prob: 0.5 } }
  layer { name: "y" parents: "d" fully_connected { num_neurons: 3 } }
  layer { name: "b" parents: "y" batch_normalization { } }
  layer { name: "z" parents: "b" l2_norm2 {} }
  callback { print {} }
  callback { dump_weights { directory: "weights" } }
}
optimizer { adam { learn_rate: 0.01 beta1: 0.9 beta2: 0.99 eps: 1e-8 } }
data_reader {
  reader { name: "synthetic" role: "train" shuffle: true num_samples: 8 synth_dimensions: "5" }
  reader { name: "synthetic" role: "test" num_samples: 4 synth_dimensions: "5" }
}
"""


def folders(path) -> set[str]:
    return {one.name for one in path.iterdir() if one.is_dir()}


def contents(folder) -> dict[str, bytes]:
    """The files below a folder by path; rows of the history without the time that they took."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: SECONDS.sub(b"", text) if name.endswith("metrics.jsonl") else text for name, text in found.items()}


def lines(text: str, *words: str) -> list[str]:
    return [line for line in text.splitlines() if "(instance 0)" in line and any(word in line for word in words)]


def drive(capsys, monkeypatch, folder, *arguments):
    folder.mkdir(exist_ok=True)
    write(folder, TEXT)
    ended = run(capsys, monkeypatch, folder, "--prototext=experiment.prototext", *arguments)
    assert ended.code == 0, ended.err
    return ended.out


def test_a_run_that_goes_on_leaves_the_same_bytes_and_prints_the_same_lines(capsys, monkeypatch, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    said = drive(capsys, monkeypatch, whole)
    drive(capsys, monkeypatch, parts, "--num_epochs=2")
    after = drive(capsys, monkeypatch, parts, "--ckpt_dir=later", "--restart_dir=ckpt")
    assert lines(after, "epoch") == lines(said, "epoch 2", "epoch 3")
    assert lines(after, "test") == lines(said, "test")
    later = parts / "later" / "trainer0"
    assert folders(later) == {
        "sgd.shared.batch_end.epoch.2.step.6",
        "sgd.shared.epoch_end.epoch.3.step.6",
        "sgd.shared.epoch_end.epoch.4.step.8",
    }
    for name in folders(later):
        assert contents(later / name) == contents(whole / "ckpt" / "trainer0" / name)
    assert contents(parts / "weights") == contents(whole / "weights")


def test_a_run_is_repeated_to_the_last_bit(capsys, monkeypatch, tmp_path):
    one = drive(capsys, monkeypatch, tmp_path / "one")
    other = drive(capsys, monkeypatch, tmp_path / "other")
    assert one == other
    assert contents(tmp_path / "one" / "ckpt") == contents(tmp_path / "other" / "ckpt")
