"""Tournaments of trainers through LBANN's driver: its log lines, and a folder for each trainer."""

import re
import subprocess
import sys

import pytest

from tests.lbann.driver.programs import MODEL, OPTIMIZER, run, write

TRAINER = """
trainer { mini_batch_size: 4 random_seed: 7
  training_algorithm { name: "ltfb" parameters { [type.googleapis.com/lbann_data.LTFB] {
    local_training_algorithm { name: "local" parameters { [type.googleapis.com/lbann_data.SGD] {
      stopping_criteria { max_batches: 4 } } } }
    meta_learning_strategy { [type.googleapis.com/lbann_data.RandomPairwiseExchange] {
      metric_name_strategy_map { key: "size" value: LOWER_IS_BETTER } exchange_strategy { checkpoint_binary {} } } }
    stopping_criteria { max_tournaments: 2 } } } } }
"""
READERS = """
data_reader {
  reader { name: "synthetic" role: "train" num_samples: 8 synth_dimensions: "5" }
  reader { name: "synthetic" role: "tournament" num_samples: 4 synth_dimensions: "5" }
  reader { name: "synthetic" role: "test" num_samples: 4 synth_dimensions: "5" }
}
"""
TEXT = TRAINER + MODEL.replace("MORE", 'callback { save_model { dir: "saved" } }') + OPTIMIZER + READERS
LINE = re.compile(
    r'LTFB \(model "m", step (\d)\): trainer (\d) selected model from trainer (\d) '
    r"\(trainer (\d) score = ([\d.e+-]+), trainer (\d) score = ([\d.e+-]+)\)"
)


def test_one_trainer_plays_itself_in_every_round(capsys, monkeypatch, tmp_path):
    ended = run(capsys, monkeypatch, tmp_path, f"--prototext={write(tmp_path, TEXT)}")
    assert ended.code == 0, ended.err
    found = LINE.findall(ended.out)
    assert [line[:3] for line in found] == [("0", "0", "0"), ("1", "0", "0")]
    assert all(line[4] == line[6] for line in found)
    passes = [line for line in ended.out.splitlines() if "training epoch" in line and "objective" in line]
    assert len(passes) == 6  # one more local run follows the last exchange


@pytest.mark.slow
def test_two_trainers_take_the_better_model_and_have_folders_of_their_own(tmp_path):
    write(tmp_path, TEXT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "descend.lbann.driver", "--prototext=experiment.prototext", "--procs_per_trainer=1"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found = LINE.findall(ended.stdout)
    assert {(step, trainer) for step, trainer, *_ in found} == {("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")}
    for _, trainer, chosen, _, own, partner, other in found:
        assert chosen == (trainer if float(own) <= float(other) else partner)
    assert {path.name for path in (tmp_path / "saved").iterdir()} == {"trainer0", "trainer1"}
    for trainer in (0, 1):
        assert ended.stdout.count(f"m (instance {trainer}) test size : ") == 1


@pytest.mark.slow
def test_each_trainer_may_have_a_file_and_a_model_of_its_own(tmp_path):
    text = "trainer { mini_batch_size: 4 random_seed: 7 }" + TEXT.removeprefix(TRAINER)
    for trainer in (0, 1):
        write(tmp_path, text.replace("num_neurons: 3", f"num_neurons: {3 + trainer}"), f"e.trainer{trainer}")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "descend.lbann.driver", "--prototext=e.trainer", "--generate_multi_proto"]
    ended = subprocess.run(
        [*command, "--procs_per_trainer=1"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    saved = {path.parts[-3]: path.name for path in (tmp_path / "saved").rglob("*.bin")}
    assert saved == {
        "trainer0": "model_weights_y_linearity_weights_3x5.bin",
        "trainer1": "model_weights_y_linearity_weights_4x5.bin",
    }


# Each trainer has a weight of its own, which nothing trains, and its score is a number drawn again by each evaluation.
CALLBACK = """
trainer { mini_batch_size: 4 random_seed: 7 }
model { name: "model0" num_epochs: 4
  metric { layer_metric { layer: "score" name: "score" } }
  metric { layer_metric { layer: "w" name: "weight" } }
  layer { name: "x" input { data_field: "samples" } }
  layer { name: "score" uniform { neuron_dims: [1] } }
  layer { name: "w" weights: "own" weights_layer { dims: [1] } }
  weights { name: "own" initializer { uniform_initializer { min: 0 max: 1 } } }
  callback { print {} }
  callback { save_topk_models { dir: "best" k: 1 metric: "weight" ascending_ordering: true } }
  callback { ltfb { batch_interval: INTERVAL metric: "score" MORE } }
}
data_reader {
  reader { name: "synthetic" role: "train" num_samples: 8 synth_dimensions: "5" }
  reader { name: "synthetic" role: "tournament" num_samples: 4 synth_dimensions: "5" }
  reader { name: "synthetic" role: "validate" num_samples: 4 synth_dimensions: "5" }
  reader { name: "synthetic" role: "test" num_samples: 4 synth_dimensions: "5" }
}
"""
VALUE = re.compile(r"model0 \(instance (\d)\) (tournament|validation|test) weight : ([\d.e+-]+)")


def test_alone_the_callback_plays_against_itself(capsys, monkeypatch, tmp_path):
    text = CALLBACK.replace("INTERVAL", "3").replace("MORE", "")
    ended = run(capsys, monkeypatch, tmp_path, f"--prototext={write(tmp_path, text)}")
    assert ended.code == 0, ended.err
    assert [line[:3] for line in LINE.findall(ended.out.replace("model0", "m"))] == [("3", "0", "0"), ("6", "0", "0")]
    assert "  Trainers              : 1\n" in ended.out
    assert sum("training epoch" in line and "objective" in line for line in ended.out.splitlines()) == 4


@pytest.mark.slow
@pytest.mark.parametrize("way", ["sendrecv_weights", "checkpoint_file"])
def test_the_callback_lets_the_better_model_of_a_pair_go_on_in_both(way, tmp_path):
    lower = way == "sendrecv_weights"
    more = f'communication_algorithm: "{way}" low_score_wins: {str(lower).lower()} checkpoint_basedir: "sent"'
    write(tmp_path, CALLBACK.replace("INTERVAL", "2").replace("MORE", more))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "descend.lbann.driver", "--prototext=experiment.prototext", "--procs_per_trainer=1"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "  Trainers              : 2\n" in ended.stdout
    rounds = LINE.findall(ended.stdout.replace("model0", "m"))
    assert [line[:2] for line in rounds] == [(step, trainer) for step in "246" for trainer in "01"]
    weights = {
        (int(trainer), mode): [float(value) for who, where, value in VALUE.findall(ended.stdout) if
                               (who, where) == (trainer, mode)]
        for trainer in "01" for mode in ("tournament", "validation", "test")
    }  # fmt: skip
    for number, line in enumerate(rounds):
        trainer, chosen, partner = int(line[1]), int(line[2]), int(line[5])
        own, theirs = float(line[4]), float(line[6])
        assert partner == 1 - trainer
        assert chosen == (partner if (theirs <= own if lower else theirs >= own) else trainer)
        both = weights[trainer, "tournament"][2 * (number // 2) : 2 * (number // 2) + 2]
        assert weights[trainer, "validation"][number // 2 + 1] == both[chosen != trainer]
    last = [weights[trainer, "test"][0] for trainer in (0, 1)]
    best = last.index(min(last))
    assert [path.name for path in (tmp_path / "best").iterdir()] == [f"trainer{best}"]
