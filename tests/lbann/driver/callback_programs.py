"""A program for each of LBANN's callbacks: one that passes, and a spoilt one that must fail.

The model is a vector w of four numbers whose objective is Σ w², so an update of SGD is w ← (1 − 2 lr) w, and what
training leaves is known in closed form. A program either has a CheckMetric, whose bounds are moved in the spoilt one,
or leaves lines or files, which the spoilt one with other settings must not leave.
"""

import csv
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

START = np.array([0.5, -1.25, 2.0, 0.125])
SIZE = float((START**2).sum())
STEPS, EPOCHS = 2, 3  # of an epoch, and of these
FILE = "experiment.prototext"

TEXT = """
trainer { mini_batch_size: 2 random_seed: 1 TRAINER }
model { name: "m" num_epochs: 3
  objective_function { layer_term { scale_factor: 1 layer: "z" } TERMS }
  metric { layer_metric { layer: "z" name: "size" } }
  layer { name: "x" input { data_field: "samples" } }
  layer { name: "w" weights: "own" weights_layer { dims: [4] } }
  layer { name: "z" parents: "w" l2_norm2 {} }
  weights { name: "own" initializer { value_initializer { values: [0.5, -1.25, 2, 0.125] } } }
  MORE
}
optimizer { OPTIMIZER }
data_reader {
  reader { name: "synthetic" role: "train" num_samples: 4 synth_dimensions: "3" }
  reader { name: "synthetic" role: "test" num_samples: 2 synth_dimensions: "3" }
  READERS
}
"""
SGD = "sgd { learn_rate: 0.1 }"
VALIDATION = 'reader { name: "synthetic" role: "validate" num_samples: 2 synth_dimensions: "3" }'
SECOND = """
  layer { name: "v" weights: "other" weights_layer { dims: [4] } }
  layer { name: "zv" parents: "v" l2_norm2 {} }
  weights { name: "other" initializer { constant_initializer { value: 1 } } }
  metric { layer_metric { layer: "zv" name: "second" } }
"""
SECOND_TERM = 'layer_term { scale_factor: 1 layer: "zv" }'

Holds = Callable[[Any, Path], bool]


class CallbackProgram(NamedTuple):
    """A text, a spoilt one, and what tells them apart: without `holds` the exit codes 0 and 4.

    Attributes:
        text: The experiment.
        spoilt: The same with a wrong expectation, or with a setting by which the expectation does not hold.
        holds: Whether a run that ended well left what is expected.
        files: Other files by name.
    """

    text: str
    spoilt: str
    holds: Holds | None = None
    files: Mapping[str, bytes] = {}


def experiment(more: str, **parts: str) -> str:
    words = {"TRAINER": "", "TERMS": "", "READERS": "", "OPTIMIZER": SGD} | parts | {"MORE": more}
    text = TEXT
    for name, value in words.items():
        text = text.replace(name, value)
    return text


def bounds(metric: str, low: float, high: float, modes: str = "test") -> str:
    return (
        f'callback {{ check_metric {{ metric: "{metric}" lower_bound: {low!r} upper_bound: {high!r} '
        f'error_on_failure: true execution_modes: "{modes}" }} }}'
    )


def leaves(value: float, more: str, metric: str = "size", modes: str = "test", **parts: str) -> CallbackProgram:
    """A program whose metric has this value at the end."""
    error = 4e-6 * abs(value) + 1e-7

    def text(shift: float) -> str:
        centre = value + shift * error
        return experiment(more + bounds(metric, centre - error, centre + error, modes), **parts)

    return CallbackProgram(text(0), text(10))


def says(pattern: str, more: str, instead: str = "", err: bool = False, **parts: str) -> CallbackProgram:
    """A program that prints a line, which is not there with other settings in the callback's place."""
    return CallbackProgram(
        experiment(more, **parts),
        experiment(instead, **parts),
        lambda ended, folder: re.search(pattern, ended.err if err else ended.out, re.MULTILINE) is not None,
    )


def writes(found: Callable[[Path], bool], more: str, instead: str, **parts: str) -> CallbackProgram:
    """A program that leaves files of known content, which it does not with other settings."""

    def holds(ended, folder) -> bool:
        try:
            return found(folder)
        except (FileNotFoundError, IndexError):
            return False

    return CallbackProgram(experiment(more, **parts), experiment(instead, **parts), holds)


def ends(code: int, pattern: str, good: str, bad: str, **parts: str) -> CallbackProgram:
    """A program that ends well, and one in which the callback ends the run with a code and a line."""
    return CallbackProgram(
        experiment(good, **parts),
        experiment(bad, **parts),
        lambda ended, folder: not (ended.code == code and re.search(pattern, ended.err)),
    )


def after(*rates: float, start: float = SIZE) -> float:
    """Σ w² after updates with these rates."""
    return start * math.prod((1 - 2 * rate) ** 2 for rate in rates)


def of_epochs(*rates: float) -> float:
    return after(*(rate for rate in rates for _ in range(STEPS)))


def clipped(limit: float) -> float:
    w = START.copy()
    for _ in range(STEPS * EPOCHS):
        g = 2 * w
        w = w - 0.1 * g * min(1.0, limit / float(np.linalg.norm(g)))
    return float((w**2).sum())


def callback(name: str, fields: str = "") -> str:
    return f"callback {{ {name} {{ {fields} }} }}"


def one(folder: Path, pattern: str) -> Path:
    """The first file of a pattern, below a folder."""
    return sorted(folder.rglob(pattern))[0]


def numbers(path: Path) -> np.ndarray:
    return np.array([[float(x) for x in re.split(r"[ ,\t]+", line.strip())] for line in path.read_text().split("\n") if
                     line.strip()])  # fmt: skip


def close(found: Any, expected: Any) -> bool:
    found, expected = np.ravel(found), np.ravel(expected)
    return found.shape == expected.shape and bool(np.allclose(found, expected, rtol=1e-5))


def read_hydrogen(path: Path) -> np.ndarray:
    data = path.read_bytes()
    height, width = np.frombuffer(data[:8], np.int32)
    return np.frombuffer(data[8:], np.float32).reshape(width, height).T


def cosine(step: int) -> float:
    if step < 2:
        return 0.1 + (0.3 - 0.1) * step / 2
    return 0.01 + (0.3 - 0.01) * 0.5 * (1 + math.cos(math.pi * min(step - 2, 3) / 3))


def poly(step: int) -> float:
    return (0.1 - 0.01) * (1 - min(step, 6) / 6) ** 2 + 0.01


def matrix(folder: Path) -> bool:
    with (folder / "c-test.csv").open() as file:
        rows = [[float(x) for x in row if x.strip()] for row in csv.reader(file)]
    return close(rows, np.eye(4)[2][:, None] * np.eye(4)[0])  # w is largest at 2, a constant at 0


LABEL = 'layer { name: "label" constant { value: 1 num_neurons: [4] } }'
RATE = re.compile(r"^Model 0: changing global learning rate to ([\d.e+-]+) at epoch (\d+)$", re.MULTILINE)
DROPOUT = 'layer { name: "ones" constant { value: 1 num_neurons: [1000] } } ' \
          'layer { name: "drop" parents: "ones" dropout { keep_prob: 0.75 } } ' \
          'layer { name: "kept" parents: "drop" reduction { mode: "sum" } } ' \
          'metric { layer_metric { layer: "kept" name: "kept" } }'  # fmt: skip
NEGATIVE = (
    'layer { name: "below" constant { value: -1 num_neurons: [1] } } layer { name: "log" parents: "below" '
    "operator_layer { ops { parameters { [type.googleapis.com/lbann_data.LogOperator] {} } } } }"
)
TINY = 'layer { name: "tiny" constant { value: 1e-30 num_neurons: [1] } }'
IMAGE = 'layer { name: "image" weights: "grey" weights_layer { dims: [1, 2, 2] } } ' \
        'weights { name: "grey" optimizer { no_optimizer {} } initializer { value_initializer ' \
        "{ values: [0, 1, 2, 4] } } }"  # fmt: skip
ONES = 'layer { name: "ones" constant { value: 1 num_neurons: [1] } }'
COUNT = 'layer { name: "n" weights: "count" weights_layer { dims: [1] } } weights { name: "count" optimizer ' \
        '{ no_optimizer {} } } metric { layer_metric { layer: "n" name: "n" } }'  # fmt: skip
STOPPED = 'layer { name: "still" parents: "w" stop_gradient {} } layer { name: "zs" parents: "still" l2_norm2 {} }'
MIXED = (
    'layer { name: "sum" parents: "x" reduction { mode: "sum" } } metric { layer_metric { layer: "sum" name: "sum" } }'
    'layer { name: "x2" parents: "x" l2_norm2 {} } metric { layer_metric { layer: "x2" name: "x2" } }'
)
VECTOR = 'weights { name: "own" initializer { value_initializer { values: [0.5, -1.25, 2, 0.125] } } }'
DENSE = 'layer { name: "fc" parents: "x" fully_connected { num_neurons: 2 } }'


def _score(message: str) -> CallbackProgram:
    """The older tournament, of one trainer: it plays itself every second step."""
    more = callback(message, 'batch_interval: 2 metric: "size" low_score_wins: true')
    line = r'^LTFB \(model "m", step 4\): trainer 0 selected model from trainer 0 \(trainer 0 score = 0\.977797,'
    return says(line, more, callback(message, 'batch_interval: 3 metric: "size"'), READERS=VALIDATION)


def _drawn(mixed: str) -> str:
    """Samples of two one-hot entries of four, mixed or not; of the labels a third each at least comes as 0.5."""
    more = MIXED + mixed + bounds("sum", 1 - 1e-6, 1 + 1e-6, "train") + bounds("x2", 0.5, 0.95, "train")
    text = experiment(more).replace('data_field: "samples"', 'data_field: "labels"')
    reader = 'reader { name: "synthetic" role: "train" num_samples: 4 synth_dimensions: "3" }'
    labels = reader.replace("num_samples: 4", "num_samples: 64 num_labels: 4")
    text = text.replace('role: "test" num_samples: 2', 'role: "test" num_samples: 64 num_labels: 4')
    return text.replace(reader, labels).replace("mini_batch_size: 2", "mini_batch_size: 64")


def _perturbed_rate(name: str, fields: str, none: str, optimizer: str, value: float) -> CallbackProgram:
    """A perturbed rate leaves another weight, so the value of the plain one must not be found."""
    text = leaves(value, callback(name, none), OPTIMIZER=optimizer).text
    return CallbackProgram(text, text.replace(none, fields))


ADAM = "adam { learn_rate: 0.1 beta1: 0.9 beta2: 0.99 eps: 1e-8 }"


def _adam() -> float:
    w, m, v = START.copy(), np.zeros(4), np.zeros(4)
    for t in range(1, STEPS * EPOCHS + 1):
        g = 2 * w
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
        w = w - 0.1 * np.sqrt(1 - 0.99**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-8)
    return float((w**2).sum())


PLAIN = of_epochs(0.1, 0.1, 0.1)

PROGRAMS: dict[str, CallbackProgram] = {
    "step_learning_rate": leaves(of_epochs(0.1, 0.1, 0.05), callback("step_learning_rate", "step: 2 amt: 0.5")),
    "set_learning_rate": leaves(of_epochs(0.1, 0.3, 0.3), callback("set_learning_rate", "step: 1 val: 0.3")),
    "drop_fixed_learning_rate": leaves(
        of_epochs(0.1, 0.05, 0.025), callback("drop_fixed_learning_rate", "drop_epoch: [1, 2] amt: 0.5")
    ),
    "linear_growth_learning_rate": leaves(
        of_epochs(0.1, 0.2, 0.3), callback("linear_growth_learning_rate", "target: 0.3 num_epochs: 2")
    ),
    "poly_learning_rate": leaves(
        after(*map(poly, range(6))), callback("poly_learning_rate", "power: 2 num_epochs: 3 end_lr: 0.01")
    ),
    "cosine_decay_learning_rate": leaves(
        after(*map(cosine, range(6))),
        callback(
            "cosine_decay_learning_rate",
            "lr_max: 0.3 lr_min: 0.01 decay_steps: 3 initial_warmup_learning_rate: 0.1 warmup_steps: 2",
        ),
    ),
    "adaptive_learning_rate": leaves(
        of_epochs(1.5, 1.5, 0.375), callback("adaptive_learning_rate", "amt: 0.25"), OPTIMIZER="sgd { learn_rate: 1.5 }"
    ),
    "optimizerwise_adaptive_learning_rate": leaves(
        after(*[0.1 * 0.5 / 2] * 6), callback("optimizerwise_adaptive_learning_rate", "scale: 0.5")
    ),
    "step_minibatch": leaves(after(*[0.1] * 4, *[0.2] * 4), callback("step_minibatch", "starting_mbsize: 1 step: 1")),
    "minibatch_schedule": leaves(
        after(*[0.1] * 8, *[0.05] * 2),
        callback("minibatch_schedule", "starting_mbsize: 1 step { epoch: 2 mbsize: 2 lr: 0.05 }"),
    ),
    "clip_gradient_norm": leaves(clipped(1.0), callback("clip_gradient_norm", "global_norm: true value: 1")),
    "early_stopping": leaves(
        of_epochs(1.5, 1.5), callback("early_stopping"), OPTIMIZER="sgd { learn_rate: 1.5 }", READERS=VALIDATION
    ),
    "set_weights_value": leaves(
        after(*[0.1] * 3, start=36.0), callback("set_weights_value", 'weights: "own" value: 3 step: 3')
    ),
    "replace_weights": leaves(
        PLAIN,
        SECOND + callback("replace_weights", 'source_layers: "w" destination_layers: "v" batch_interval: 1'),
        "second",
    ),
    "alternate_updates": leaves(
        after(*[0.1] * 4, start=4.0),  # of the steps 2, 3, 5 and 6
        SECOND + callback("alternate_updates", 'layers_1: "w" layers_2: "v" iters_1: 1 iters_2: 2'),
        "second",
        TERMS=SECOND_TERM,
    ),
    "perturb_weights": leaves(
        4 * 0.25**2 * 0.8**2,
        callback(
            "perturb_weights",
            'output_name: "own" upper: 0.25 lower: -0.25 scale: 1e9 perturb_probability: 1 batch_interval: 1',
        ),
    ),
    "perturb_learning_rate": _perturbed_rate(
        "perturb_learning_rate", "learning_rate_factor: 0.5", "learning_rate_factor: 0", SGD, PLAIN
    ),
    "perturb_adam": _perturbed_rate(
        "perturb_adam", "learning_rate_factor: 0.5", "learning_rate_factor: 0", ADAM, _adam()
    ),
    "perturb_dropout": CallbackProgram(
        # Of 1,000 entries kept with probability k each is 1 / k, so the sum has the variance 1,000 (1 − k) / k.
        experiment(
            DROPOUT
            + bounds("kept", 1000 - 1e-3, 1000 + 1e-3, "train")
            + callback("perturb_dropout", "keep_dropout_factor: 0")
        ).replace("keep_prob: 0.75", "keep_prob: 1"),
        experiment(
            DROPOUT
            + bounds("kept", 1000 - 1e-3, 1000 + 1e-3, "train")
            + callback("perturb_dropout", "keep_dropout_factor: 1")
        ),
    ),
    "compute_model_size": leaves(
        4.0, COUNT + callback("compute_model_size", 'output_name: "count" batch_interval: 1'), "n"
    ),
    "load_model": CallbackProgram(
        experiment(
            callback("load_model", 'dirs: "saved"')
            + bounds("size", after(*[0.1] * 6, start=30.0) - 1e-4, after(*[0.1] * 6, start=30.0) + 1e-4)
        ),
        experiment(bounds("size", after(*[0.1] * 6, start=30.0) - 1e-4, after(*[0.1] * 6, start=30.0) + 1e-4)),
        files={
            "saved/model_weights_own_4x1.bin": np.array([4, 1], np.int32).tobytes()
            + np.array([1, 2, 3, 4], np.float32).tobytes()
        },
    ),
    "mixup": CallbackProgram(
        # 64 pairs of the numbers 0 and 1 that are mixed half and half have a smaller square and the same sum.
        _drawn(callback("mixup", 'layers: "x" alpha: 200')),
        _drawn(callback("mixup", 'layers: "x" alpha: 0')),
    ),
    "ltfb": _score("ltfb"),
    # ---- checks
    "check_metric": leaves(PLAIN, ""),
    "check_gradients": ends(
        4,
        "CheckGradients: ",
        callback("check_gradients", "error_on_failure: true"),
        callback("check_gradients", "error_on_failure: true") + STOPPED,
        TERMS="",
    ),
    "check_nan": ends(4, "CheckNaN: .*'log'.* is not finite", callback("check_nan"), callback("check_nan") + NEGATIVE),
    "check_small": ends(4, "CheckSmall: ", callback("check_small"), callback("check_small") + TINY),
    "init": says("^CheckInit", callback("init")),
    # ---- lines
    "print": says(
        r"^m \(instance 0\) training epoch 2 size : [\d.e+-]+$", callback("print"), callback("print", "interval: 9")
    ),
    "timer": says(r"^m \(instance 0\) training epoch 0 run time : ", callback("timer")),
    "print_model_description": says(r"\bz\b.*L2Norm2|L2Norm2.*\bz\b", callback("print_model_description")),
    "disp_io_stats": says(r"4 .*samples|samples.* 4", callback("disp_io_stats", 'layers: "x"')),
    "evaluate_progress": says(
        rf"^m \(instance 0\) step 4 test size : {after(*[0.1] * 4):.6g}",
        callback("evaluate_progress", 'batch_interval: 2 metric: "size"'),
        callback("evaluate_progress", 'batch_interval: 3 metric: "size"'),
    ),
    "gpu_memory_usage": says("GPU|memory", callback("gpu_memory_usage")),
    "memory_profiler": says("^memory, weights : 16 bytes$", callback("memory_profiler")),
    "debug": says(
        r"train epoch 2 step 5: layer w gave \(2, 4\)",
        callback("debug", 'phase: "train"'),
        callback("debug", 'phase: "test"'),
    ),
    "debug_io": says(
        "train epoch 0 step 1: 2 samples 0 1|train epoch 0 step 1: 2 samples 1 0",
        callback("debug_io", "lvl: 1"),
        callback("debug_io", "lvl: 0"),
    ),
    "hang": says("^Hang has no effect here", callback("hang")),
    "sync_layers": says("^SyncLayers has no effect here", callback("sync_layers")),
    # ---- what a caller sees nothing of: training is what it is without them
    "profiler": leaves(PLAIN, callback("profiler", "sync: true skip_init: true")),
    "progress_bar": leaves(PLAIN, callback("progress_bar", "interval: 2 newline_interval: 2")),
    "check_dataset": leaves(PLAIN, callback("check_dataset")),
    # ---- files
    "checkpoint": writes(
        lambda folder: (
            (folder / "c/trainer0/sgd.shared.epoch_end.epoch.1.step.2").is_dir()
            and (folder / "c/trainer0/sgd.last.shared.checkpoint").is_file()
        ),
        "",
        "",
        TRAINER='callback { checkpoint { checkpoint_dir: "c" checkpoint_epochs: 1 } }',
    ),
    "confusion_matrix": writes(
        matrix,
        LABEL + callback("confusion_matrix", 'prediction: "w" label: "label" prefix: "c-"'),
        LABEL + callback("confusion_matrix", 'prediction: "label" label: "label" prefix: "c-"'),
    ),
    "dump_error_signals": writes(
        lambda folder: close(numbers(folder / "e-model0-epoch0-step0-w-ErrorSignal0.txt"), np.tile(START, 2)),
        callback("dump_error_signals", 'basename: "e-"'),
        callback("dump_gradients", 'basename: "e-"'),
    ),
    "dump_gradients": writes(
        lambda folder: close(numbers(folder / "g-model0-epoch0-step0-own-Gradient.txt"), 2 * START),
        callback("dump_gradients", 'basename: "g-" interval: 1'),
        callback("dump_gradients", 'basename: "h-"'),
    ),
    "dump_mb_indices": writes(
        lambda folder: sorted(numbers(one(folder, "i-*-training-epoch0-step1-*")).ravel()) == [2, 3],
        callback("dump_mb_indices", 'basename: "i-"'),
        callback("dump_mb_indices", 'basename: "k-"'),
    ),
    "dump_model_graph": writes(
        lambda folder: {"w", "z"} <= set(re.findall(r"\w+", (folder / "graph.dot").read_text())),
        callback("dump_model_graph", 'basename: "graph.dot"'),
        callback("dump_model_graph"),
    ),
    "dump_outputs": writes(
        lambda folder: close(
            numbers(folder / "d/trainer0/m/sgd.testing.epoch.3.step.0_w_output0.csv"), np.tile(START * 0.8**6, 2)
        ),
        callback("dump_outputs", 'directory: "d" layers: "w" execution_modes: "test"'),
        callback("dump_outputs", 'directory: "d" layers: "w" execution_modes: "train"'),
    ),
    "dump_weights": writes(
        lambda folder: close(
            numbers(folder / "d/trainer0/sgd.shared.epoch_end.epoch.2.step.4/m/own.txt"), START * 0.8**4
        ),
        callback("dump_weights", 'directory: "d"'),
        callback("dump_weights", 'directory: "d" epoch_interval: 3'),
    ),
    "save_images": writes(
        lambda folder: (folder / "p-test-image.png").read_bytes()[:4] == b"\x89PNG",
        IMAGE + callback("save_images", 'layers: "image" image_format: "png" image_prefix: "p-"'),
        IMAGE + callback("save_images", 'layers: "image" image_format: "png"'),
    ),
    "save_model": writes(
        lambda folder: close(read_hydrogen(folder / "s/trainer0/m/model_weights_own_4x1.bin"), START * 0.8**6),
        callback("save_model", 'dir: "s"'),
        callback("save_model", 'dir: "s" disable_save_after_training: true'),
    ),
    "save_topk_models": writes(
        lambda folder: close(read_hydrogen(folder / "s/trainer0/m/model_weights_own_4x1.bin"), START * 0.8**6),
        callback("save_topk_models", 'dir: "s" k: 1 metric: "size"'),
        callback("save_topk_models", 'dir: "other" k: 1 metric: "size"'),
    ),
    "timeline": writes(
        lambda folder: bool(
            re.search(r"^fp-w:[\d.]+:[\d.]+$", one(folder / "t", "timeline.m*.txt").read_text(), re.MULTILINE)
        ),
        callback("timeline", 'directory: "t"'),
        callback("timeline", 'directory: "other"'),
    ),
    "summary": writes(
        lambda folder: b"train/step_objective" in one(folder, "events.out.tfevents*").read_bytes(),
        callback("summary", "mat_interval: 2") + 'summarizer { dir: "tb" }',
        'summarizer { dir: "tb" }',
    ),
    "summarize_images": writes(
        lambda folder: b"sample 0" in one(folder, "events.out.tfevents*").read_bytes(),
        IMAGE
        + ONES
        + callback(
            "summarize_images",
            'selection_strategy { categorical_accuracy { accuracy_layer_name: "ones" '
            'match_type: MATCH num_images_per_epoch: 1 } } image_source_layer_name: "image" epoch_interval: 1',
        ),
        IMAGE
        + ONES
        + callback(
            "summarize_images",
            'selection_strategy { categorical_accuracy { accuracy_layer_name: "ones" '
            'match_type: NOMATCH num_images_per_epoch: 1 } } image_source_layer_name: "image" epoch_interval: 1',
        ),
        READERS=VALIDATION,
    ),
    "export_onnx": writes(
        lambda folder: b"fc" in (folder / "model.onnx").read_bytes(),
        DENSE + callback("export_onnx", 'output_filename: "model.onnx"'),
        DENSE + callback("export_onnx", 'output_filename: "k.onnx"'),
    ),
}


def _change(name: str, text: tuple[str, str] | None = None, spoilt: tuple[str, str] | None = None) -> None:
    program = PROGRAMS[name]
    if text is not None:
        program = program._replace(text=program.text.replace(*text), spoilt=program.spoilt.replace(*text))
    if spoilt is not None:
        program = program._replace(spoilt=program.text.replace(*spoilt))
    PROGRAMS[name] = program


_change("checkpoint", spoilt=("checkpoint_epochs: 1", "checkpoint_epochs: 2"))
_change(  # an objective that does not see the weights which the numerical gradient changes
    "check_gradients",
    spoilt=('layer: "z" }', 'layer: "z" } layer_term { scale_factor: 1 layer: "zs" }'),
)
PROGRAMS["check_gradients"] = PROGRAMS["check_gradients"]._replace(
    spoilt=PROGRAMS["check_gradients"].spoilt.replace("callback {", STOPPED + " callback {", 1)
)
_change("export_onnx", ('layer { name: "w" weights: "own" weights_layer { dims: [4] } }', ""))
_change("export_onnx", ('parents: "w" l2', 'parents: "fc" l2'))
_change(
    "export_onnx", ('weights { name: "own" initializer { value_initializer { values: [0.5, -1.25, 2, 0.125] } } }', "")
)

# What has no program that trains, and why.
WITHOUT = {"custom_learning_rate": "LBANN cannot build it, and it is refused: test_what_is_refused_says_why"}
