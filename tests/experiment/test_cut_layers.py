"""Weights of layers with a model-parallel layout are cut over ranks, and the numbers are those of whole weights."""

import json
import subprocess
import sys

import pytest
import torch

import descend
from descend.experiment import check_experiment, load
from descend.experiment.cut_layers import cut_weights, needs_whole, rank_memory

TEXT = """
trainer { mini_batch_size: 5 random_seed: 1 }
optimizer { adam { learn_rate: 0.01 beta1: 0.9 beta2: 0.99 eps: 1e-8 } }
model {
  name: "m" num_epochs: 2
  objective_function { layer_term { scale_factor: 1 layer: "z" } L2 }
  metric { layer_metric { layer: "z" name: "size" } }
  layer { name: "x" input { data_field: "samples" } }
  layer { name: "i" parents: "x" operator_layer { ops { parameters {
    [type.googleapis.com/lbann_data.AbsOperator] {} } } } }
  layer { name: "e" parents: "i" data_layout: "model_parallel" embedding { num_embeddings: 5 embedding_dim: 2 } }
  layer { name: "y" parents: "e" data_layout: "model_parallel" fully_connected { num_neurons: 7 has_bias: true } }
  layer { name: "v" parents: "y" weights: "w" fully_connected { num_neurons: 3 has_bias: true } }
  layer { name: "z" parents: "v" l2_norm2 {} }
  weights { name: "w" initializer { he_normal_initializer {} } sharded: true }
  callback { print {} } CALLBACK
}
data_reader {
  reader { name: "synthetic" role: "train" num_samples: 13 synth_dimensions: "5" fraction_of_data_to_use: 1 }
  reader { name: "synthetic" role: "test" num_samples: 7 synth_dimensions: "5" fraction_of_data_to_use: 1 }
}
"""
CUT = ["e_weights", "y_linearity_weights", "y_bias_weights", "w"]

PROGRAM = """
import json, os, sys
import descend
from descend.runtime.dtensor import local_shard

class Held(descend.callbacks.Print):
    reads_weights = False  # of other ranks: it looks at what this one holds
    def after_training(self, run):
        state = run.optimizer.state
        held["weights"] = sum(local_shard(p).numel() for p in run.module.parameters())
        held["state"] = sum(local_shard(v).numel() for s in state.values() for v in s.values()
                            if hasattr(v, "numel") and v.numel() > 1)

def main():
    experiment = descend.load("e.prototext")
    experiment.model.callbacks.append(Held())
    result = descend.run(experiment.trainer, experiment.model, experiment.data_reader, experiment.optimizer,
                         run_dir="run", resume=True)
    rows = [{k: v for k, v in row.items() if "seconds" not in k} for row in result.history]
    weights = {name: value.tolist() for name, value in result.weights.items()}
    with open(f"found{os.environ.get('RANK', 0)}.json", "w") as file:
        json.dump({**held, "rows": rows, "values": weights}, file)

held = {}
descend.main(main)
"""


def experiment(tmp_path, l2="", callback=""):
    (tmp_path / "e.prototext").write_text(TEXT.replace("L2", l2).replace("CALLBACK", callback))
    return load(tmp_path / "e.prototext")


def test_what_is_cut_is_what_asks_for_it_and_has_a_row_for_each_rank(tmp_path):
    plan = check_experiment(experiment(tmp_path)).plan
    assert cut_weights(plan, 1) == []
    assert cut_weights(plan, 2) == CUT
    assert cut_weights(plan, 3) == CUT[1:]  # the table has two rows
    assert cut_weights(plan, 8) == []


def test_the_memory_of_a_rank_is_said(tmp_path):
    plan = check_experiment(experiment(tmp_path)).plan
    said = rank_memory(plan, 2)
    # whole: the bias of v, 3 numbers; cut: 1 x 5, 4 x 10, 4 and 2 x 7
    assert said.splitlines()[0].startswith(f"each of 2 ranks holds {4 * (3 + 5 + 40 + 4 + 14)} of {4 * 111} bytes")
    assert "  y_linearity_weights: 160 of 280" in said
    assert "no weights are cut" in rank_memory(plan, 1)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, None),
        ({"l2": 'l2_weight_regularization { scale_factor: 0.1 weights: "w" }'}, "L2 regularization"),
        ({"l2": 'l2_weight_regularization { scale_factor: 0.1 weights: "v_bias_weights" }'}, None),
        ({"callback": "callback { check_nan {} }"}, "the callback CheckNaN"),
    ],
)
def test_what_needs_whole_weights_keeps_them(more, said, tmp_path):
    given = experiment(tmp_path, **more)
    found = needs_whole(given, check_experiment(given).plan, CUT, several=False)
    assert found is None if said is None else said in found
    assert needs_whole(given, check_experiment(given).plan, CUT, several=True) == "several trainers"


class Counting(descend.Callback):
    """A user's callback that says it reads no weights."""

    reads_weights = False

    def after_step(self, step):
        self.last = step.step


class Looking(Counting):
    def before_step(self, step):
        self.norm = sum(float(p.norm()) for p in step.run.module.parameters())


class Renamed(Counting):
    """Has no hook of its own."""


@pytest.mark.parametrize(
    ("callback", "said"),
    [
        (Counting(), None),
        (Renamed(), None),
        (Looking(), "the callback Looking"),
        (descend.EarlyStopping(patience=1), None),
        (descend.EarlyStopping(patience=1, restore_best=True), "the callback EarlyStopping"),
    ],
)
def test_a_callback_says_whether_it_reads_weights(callback, said, tmp_path):
    given = experiment(tmp_path)
    plan = check_experiment(given).plan
    given.model.callbacks.append(callback)
    assert needs_whole(given, plan, CUT, several=False) == said


@pytest.mark.slow
def test_two_ranks_hold_their_rows_and_compute_what_one_does(tmp_path):
    given = experiment(tmp_path)
    alone = descend.run(given.trainer, given.model, given.data_reader, given.optimizer, run_dir=tmp_path / "alone")
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "program.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    first, second = (json.loads((tmp_path / f"found{rank}.json").read_text()) for rank in (0, 1))
    held = [3 + 5 + 40 + 4 + 14, 3 + 5 + 30 + 3 + 7]
    assert [first["weights"], second["weights"]] == held
    assert [first["state"], second["state"]] == [2 * own for own in held]
    for name, value in alone.weights.items():
        torch.testing.assert_close(torch.tensor(first["values"][name]), value, rtol=2e-5, atol=1e-6)
    for row, own in zip(first["rows"], alone.history, strict=True):
        assert row["objective"] == pytest.approx(own["objective"], rel=1e-5)
