"""Every callback of the format goes through a text and comes back; names in them are checked before a run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from callback_runs import graph

import descend
from descend import callbacks
from descend.callbacks.name_fields import problems
from descend.errors import ConfigurationError, TextError, Unsupported
from descend.experiment import classes
from descend.experiment.check import _check_names
from descend.graph import check, text
from descend.graph.model import from_text, to_text

REFUSED = ("CustomLearningRate",)

# What each needs at least, and something in every other field.
FIELDS = {
    "AdaptiveLearningRate": {"weights": "a b", "patience": 3, "amt": 0.5},
    "AlternateUpdates": {"layers_1": "fc1", "layers_2": "fc2", "iters_1": 2, "iters_2": 3},
    "CheckDataset": {},
    "ExportOnnx": {"output_filename": "model.onnx", "debug_string_filename": "model.txt"},
    "CheckGradients": {"step_size": 0.25, "verbose": True, "error_on_failure": True, "execution_modes": "train test"},
    "CheckInit": {},
    "CheckMetric": {
        "metric": "m",
        "lower_bound": -1.5,
        "upper_bound": 2.0,
        "error_on_failure": True,
        "execution_modes": "test",
    },
    "CheckNaN": {},
    "CheckSmall": {},
    "Checkpoint": {
        "every_steps": 5,
        "every_epochs": 2,
        "every_seconds": 1.5,
        "checkpoint_dir": "c",
        "restart_dir": "r",
    },
    "ClipGradientNorm": {"weights": "w", "global_norm": True, "value": 0.1},
    "ComputeModelSize": {"output_name": "size", "batch_interval": 3},
    "ConfusionMatrix": {"prediction": "prob", "label": "labels", "prefix": "cm-"},
    "CosineDecayLearningRate": {
        "weights": "w",
        "lr_max": 0.1,
        "lr_min": 0.01,
        "decay_steps": 10,
        "initial_warmup_learning_rate": 0.001,
        "warmup_steps": 5,
    },
    "Debug": {"phase": "train"},
    "DebugIO": {"phase": "train", "lvl": 1},
    "DispIOStats": {"layers": "images"},
    "DropFixedLearningRate": {"weights": "w", "drop_epoch": (3, 5), "amt": 0.1},
    "DumpErrorSignals": {"basename": "e-"},
    "DumpGradients": {"basename": "g-", "interval": 4},
    "DumpMBIndices": {"basename": "i-", "interval": 4},
    "DumpModelGraph": {"basename": "x.dot", "print": True},
    "DumpOutputs": {
        "layers": "fc1",
        "execution_modes": "test",
        "batch_interval": 2,
        "directory": "o",
        "format": "npz",
    },
    "DumpWeights": {"directory": "w", "epoch_interval": 3, "format": "binary"},
    "EarlyStopping": {"patience": 4},
    "EvaluateProgress": {"batch_interval": 10, "metric": "m"},
    "GPUMemoryUsage": {},
    "Hang": {"rank": 1},
    "LocalTournament": {
        "batch_interval": 2,
        "metric": "accuracy",
        "weights": "a b",
        "low_score_wins": True,
        "communication_algorithm": "checkpoint_file",
        "exchange_hyperparameters": True,
        "checkpoint_basedir": "models",
    },
    "LinearGrowthLearningRate": {"weights": "w", "target": 0.5, "num_epochs": 4, "delay": 1},
    "LoadModel": {"dirs": "a b", "extension": "x"},
    "MemoryProfiler": {"detailed_first_step": True},
    "MinibatchRamp": {"starting_mbsize": 8, "target": 64, "num_samples": 1000, "multiple_of": 8},
    "MinibatchSchedule": {
        "starting_mbsize": 4,
        "step": (callbacks.MinibatchScheduleStep(epoch=2, mbsize=8, lr=0.5, ramp_time=1),),
    },
    "Mixup": {"layers": "images", "alpha": 0.4},
    "OptimizerwiseAdaptiveLearningRate": {"weights": "w", "scale": 0.01},
    "PerturbAdam": {
        "learning_rate_factor": 0.1,
        "beta1_factor": 0.2,
        "beta2_factor": 0.3,
        "eps_factor": 0.4,
        "perturb_during_training": True,
        "batch_interval": 5,
        "weights": "w",
    },
    "PerturbDropout": {"keep_dropout_factor": 0.1, "layers": "drop"},
    "PerturbLearningRate": {
        "learning_rate_factor": 0.1,
        "perturb_during_training": True,
        "batch_interval": 5,
        "weights": "w",
    },
    "PerturbWeights": {
        "upper": 1.0,
        "lower": -1.0,
        "scale": 0.1,
        "perturb_probability": 0.3,
        "output_name": "w",
        "batch_interval": 7,
    },
    "PolyLearningRate": {"weights": "w", "power": 2.0, "num_epochs": 3, "max_iter": 100, "end_lr": 0.001},
    "Print": {"interval": 2, "print_global_stat_only": True},
    "PrintModelDescription": {},
    "Profiler": {"sync": True, "skip_init": True},
    "ProgressBar": {
        "interval": 2,
        "newline_interval": 3,
        "print_mem_usage": True,
        "moving_average_length": 4,
        "bar_width": 5,
        "scientific_notation": True,
    },
    "ReplaceWeights": {"source_layers": "fc1", "destination_layers": "fc2", "batch_interval": 3},
    "SaveImages": {"layers": "images", "image_format": "png", "image_prefix": "i-"},
    "SaveModel": {"dir": "d", "extension": "x", "disable_save_after_training": True},
    "SaveTopKModels": {"dir": "d", "k": 2, "metric": "m", "ascending_ordering": True},
    "SetLearningRate": {"weights": "w", "step": 3, "val": 0.2},
    "SetWeightsValue": {"weights": "w", "value": 0.5, "step": 4},
    "StepLearningRate": {"weights": "w", "step": 3, "amt": 0.5},
    "StepMinibatch": {"starting_mbsize": 4, "step": 2, "ramp_time": 1},
    "Summary": {"batch_interval": 2, "mat_interval": 50},
    "SummarizeImages": {
        "selection_strategy": callbacks.CategoricalAccuracyStrategy(
            accuracy_layer_name="a", match_type=callbacks.MatchType.MATCH, num_images_per_epoch=3
        ),
        "image_source_layer_name": "images",
        "epoch_interval": 2,
    },
    "SyncLayers": {"sync_gpus": True, "sync_mpi": True, "only_input": True},
    "Timeline": {"directory": "t"},
    "Timer": {"skip_steps": 1},
}

SCHEMA = Path(descend.__file__).parent / "graph" / "schema" / "callbacks.proto"


def test_every_callback_of_the_format_has_a_class():
    named = re.findall(r"^    (Callback\w+) \w+ = \d+;$", SCHEMA.read_text(), re.MULTILINE)
    assert len(named) == 58 + 1  # minibatch_ramp is our own
    messages = {kind.message for kind in (getattr(callbacks, name) for name in (*FIELDS, *REFUSED))}
    assert messages == {f"Callback.{name}" for name in named}


@pytest.mark.parametrize("name", FIELDS)
def test_a_callback_goes_through_the_text_of_a_model(name):
    kind = getattr(callbacks, name)
    model = graph(callbacks=[kind(**FIELDS[name])])
    (back,) = from_text(to_text(model), classes=classes()).callbacks
    assert type(back) is kind
    assert back == model.callbacks[0]
    for field, value in FIELDS[name].items():
        assert getattr(back, field) == value


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_of_the_message_is_a_field_of_the_class(name):
    """Except those that a text may not set here, which are refused."""
    kind = getattr(callbacks, name)
    message = kind.message.removeprefix("Callback.")
    body = re.search(rf"message {message} \{{(\}}|.*?\n  \}})", SCHEMA.read_text(), re.DOTALL)
    fields = re.findall(r"^    (?:repeated )?[\w.]+ (\w+) = \d+;$", body[1], re.MULTILINE)
    rendered = text.render(graph(callbacks=[kind(**FIELDS[name])]))
    if name == "Checkpoint":
        fields = [field for field in fields if not field.startswith(("per_rank", "ckpt_dist"))]
    assert [field for field in fields if not re.search(rf"\b{field}\b", rendered)] == []


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_in_a_text_says_where(name):
    source = text.render(graph()) + "\ncallback { custom_learning_rate { } }\n"
    with pytest.raises(TextError, match=rf"net\.prototext:{source.count(chr(10))}:\d+: "):
        from_text(source, "net.prototext", classes())
    with pytest.raises(Unsupported):
        getattr(callbacks, name)()


def test_a_wrong_number_in_a_text_says_where():
    source = text.render(graph()) + "\ncallback { step_learning_rate { step: 0 amt: 0.5 } }\n"
    with pytest.raises(TextError, match=r"net\.prototext:\d+:\d+: StepLearningRate: step must be a number >= 1, got 0"):
        from_text(source, "net.prototext", classes())


def test_names_that_nothing_has_are_all_found_before_a_run():
    watching = [
        callbacks.DumpOutputs(layers="fc1 fcc2"),
        callbacks.StepLearningRate(weights="fc1_linearity_weight", step=1, amt=0.5),
        callbacks.CheckMetric(metric="acuracy"),
        callbacks.Print(),
    ]
    model = graph(callbacks=watching)
    experiment = descend.Experiment(descend.Trainer(4), model, descend.zoo.digits(), descend.SGD(learn_rate=0.1))
    with pytest.raises(ConfigurationError) as found:
        _check_names(experiment, check(model, {"samples": (1, 4, 4), "labels": (3,)}))
    assert [problem.split("; did")[1] for problem in found.value.problems] == [
        " you mean 'fc2'?",
        " you mean 'fc1_linearity_weights'?",
        " you mean 'accuracy'?",
    ]
    assert problems([callbacks.Print()], {}) == []


def test_a_trainer_takes_checkpoints_alone():
    model = graph()
    experiment = descend.Experiment(
        descend.Trainer(4, callbacks=[callbacks.Print()]), model, descend.zoo.digits(), descend.SGD(learn_rate=0.1)
    )
    with pytest.raises(ConfigurationError, match="Print is a callback of a model, and a trainer takes only Checkpoint"):
        _check_names(experiment, check(model, {"samples": (1, 4, 4), "labels": (3,)}))


def test_callbacks_are_described_without_torch():
    code = "import sys, descend.callbacks, descend.experiment; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
