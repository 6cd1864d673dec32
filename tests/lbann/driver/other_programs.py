"""Programs for algorithms, readers, transforms, and layers that have no closed form.

Each is one of `callback_programs.py`: true, and spoilt by bounds that are moved or by other settings.
"""

import io
import math

import numpy as np

from tests.lbann.driver.callback_programs import (
    SIZE,
    VALIDATION,
    CallbackProgram,
    after,
    bounds,
    experiment,
    leaves,
    says,
)

ANY = "type.googleapis.com/lbann_data"
TOURNAMENT = VALIDATION.replace("validate", "tournament")


def algorithm(name: str, fields: str) -> dict[str, str]:
    return {"TRAINER": f'training_algorithm {{ name: "a" parameters {{ [{ANY}.{name}] {{ {fields} }} }} }}'}


def sgd(limit: str) -> str:
    return f"stopping_criteria {{ {limit} }}"


def ltfb(strategy: str, fields: str, mutation: str = "null_mutation {}") -> dict[str, str]:
    """Two rounds of 4 steps, and 4 steps more."""
    local = f'local_training_algorithm {{ name: "l" parameters {{ [{ANY}.SGD] {{ {sgd("max_batches: 4")} }} }} }}'
    changed = f"mutation_strategy {{ {mutation} }}" if strategy != "TruncationSelectionExchange" else ""
    meta = f"meta_learning_strategy {{ [{ANY}.{strategy}] {{ {fields} {changed} }} }}"
    found = algorithm("LTFB", f"{local} {meta} stopping_criteria {{ max_tournaments: 2 }}")
    return {**found, "READERS": TOURNAMENT}


LOWER = 'metric_name_strategy_map { key: "size" value: LOWER_IS_BETTER }'
TWELVE = after(*[0.1] * 12)


def kfac() -> float:
    """y = w x with x = 1, and Σ y²: A is 1 and G is 4 y², as running means; the step is bounded."""
    w, activations, errors = 1.5, None, None
    for _ in range(6):
        g = 2 * w
        activations = 1.0 if activations is None else 0.99 * activations + 0.01
        errors = g**2 if errors is None else 0.99 * errors + 0.01 * g**2
        step = g / ((activations + 3e-2) * (errors + 3e-2))
        w -= 0.1 * step * min(1.0, math.sqrt(0.001 / (step**2 * 0.1**2)))
    return w**2


KFAC_MODEL = """
  layer { name: "one" constant { value: 1 num_neurons: [1] } }
  layer { name: "y" parents: "one" weights: "slope" fully_connected { num_neurons: 1 } }
  layer { name: "y2" parents: "y" l2_norm2 {} }
  weights { name: "slope" initializer { constant_initializer { value: 1.5 } } }
  metric { layer_metric { layer: "y2" name: "y2" } }
"""


def decayed(lr: float, scale: float) -> float:
    return SIZE * (1 - lr * (2 + scale)) ** 12


CONVOLVED = """
  layer { name: "image" parents: "w" reshape { dims: [1, 2, 2] } }
  layer { name: "conv" parents: "image" convolution {
    num_dims: 2 kernel_size: [3] padding: [1] out_channels: 2 } }
  layer { name: "flat" parents: "conv" l2_norm2 {} }
"""
ALGORITHMS = {
    "SGD max_batches": leaves(after(*[0.1] * 5), "", **algorithm("SGD", sgd("max_batches: 5"))),
    "SGD max_epochs": leaves(after(*[0.1] * 4), "", **algorithm("SGD", sgd("max_epochs: 2"))),
    "SGD max_seconds": leaves(after(0.1), "", **algorithm("SGD", sgd("max_seconds: 1e-9"))),
    "KFAC": leaves(kfac(), KFAC_MODEL, "y2", TERMS='layer_term { scale_factor: 1 layer: "y2" }',
                   **algorithm("KFAC", f"sgd {{ {sgd('max_batches: 6')} }}")),
    "LTFB RandomPairwiseExchange CheckpointBinary": leaves(
        TWELVE, "", **ltfb("RandomPairwiseExchange", LOWER + "exchange_strategy { checkpoint_binary {} }")),
    "LTFB RandomPairwiseExchange CheckpointFile": leaves(
        TWELVE, "", **ltfb("RandomPairwiseExchange",
                           LOWER + 'exchange_strategy { checkpoint_file { checkpoint_dir: "sent" } }')),
    "LTFB RandomPairwiseExchange SendRecvWeights": leaves(
        TWELVE, "", **ltfb("RandomPairwiseExchange", LOWER + 'exchange_strategy { sendrecv_weights '
                           '{ exchange_hyperparameters: true } weights_name: "own" }')),
    "LTFB TruncationSelectionExchange": leaves(
        TWELVE, "", **ltfb("TruncationSelectionExchange", LOWER + "truncation_k: 1")),
    "LTFB RegularizedEvolution": leaves(
        TWELVE, "", **ltfb("RegularizedEvolution", 'metric_name: "size" metric_strategy: 0 sample_size: 1')),
    "MutationStrategy ReplaceActivation": says(
        "receives model from trainer 0 .*, act: relu -> (tanh|elu|sigmoid|leaky relu)",
        'layer { name: "act" parents: "w" relu {} }',
        'layer { name: "act" parents: "w" softmax {} } layer { name: "other" parents: "w" relu {} }',
        **ltfb("RegularizedEvolution", 'metric_name: "size" sample_size: 1', "replace_activation {}")),
    "MutationStrategy ReplaceConvolution": says(
        "receives model from trainer 0 .*, conv: kernel 3, 2 channels -> kernel [3579], (6|16|32) channels",
        CONVOLVED, CONVOLVED.replace("out_channels: 2 }", "out_channels: 2 } freeze: true"),
        **ltfb("RegularizedEvolution", 'metric_name: "size" sample_size: 1', "replace_convolution {}")),
    "MutationStrategy HybridMutation": says(
        "receives model from trainer 0 .*, conv: kernel 3, 2 channels -> kernel [3579], (6|16|32) channels",
        CONVOLVED, 'layer { name: "act" parents: "w" relu {} }',
        **ltfb("RegularizedEvolution", 'metric_name: "size" sample_size: 1', "hybrid_mutation {}")),
    "L2WeightRegularization": leaves(
        decayed(0.1, 0.5), "", TERMS='l2_weight_regularization { scale_factor: 0.5 weights: "own" }'),
}  # fmt: skip

# ---- readers: 6 samples of 4 numbers, with labels 0, 1, 2 and a response, in each form

ROWS = np.array([[i + 1, 2, 0.5 * i, -1] for i in range(6)], np.float32)
LABELS = np.arange(6) % 3
RESPONSES = np.linspace(0, 1, 6).astype(np.float32)
PIXELS = (np.arange(6 * 16) % 200).reshape(6, 4, 4).astype(np.uint8)
CIFAR = (np.arange(6 * 3072) % 251).reshape(6, 3, 32, 32).astype(np.uint8)

READ = """
trainer { mini_batch_size: 3 random_seed: 1 }
model { name: "m"
  layer { name: "x" input { data_field: "samples" } }
  layer { name: "first" parents: "x" l1_norm {} }
  metric { layer_metric { layer: "first" name: "samples" } }
  MORE
}
data_reader { reader { name: "NAME" role: "test" data_filedir: "data" fraction_of_data_to_use: 1 FIELDS } }
"""
OTHER = """
  layer { name: "l" input { data_field: "FIELD" } }
  layer { name: "place" constant { value: 0 num_neurons: [SIZE] } }
  layer { name: "squares" parents: "l" l2_norm2 {} }
  metric { layer_metric { layer: "squares" name: "FIELD" } }
"""


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def table(array: np.ndarray, head: str = "") -> bytes:
    file = io.StringIO()
    np.savetxt(file, array, delimiter=",", header=head, comments="")
    return file.getvalue().encode()


def idx(array: np.ndarray) -> bytes:
    sizes = np.array(array.shape, ">i4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def png(array: np.ndarray) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


def reads(
    name: str, fields: str, value: float, files: dict[str, bytes], error: float = 0.0, **others: float
) -> CallbackProgram:
    """The mean over samples of Σ |x|, and of the squares of other fields; spoilt, each bound in turn would fail."""
    more = "".join(
        OTHER.replace("FIELD", field).replace("SIZE", "1").replace('"l"', f'"{field}_in"').replace(
            '"squares"', f'"{field}_squares"').replace('"place"', f'"{field}_place"')
        for field in others
    )  # fmt: skip

    def text(shift: float) -> str:
        wanted = {metric: number * (1 + shift) + shift for metric, number in {"samples": value, **others}.items()}
        errors = {metric: error or 2e-6 * abs(number) + 1e-7 for metric, number in wanted.items()}
        checks = "".join(bounds(one, wanted[one] - errors[one], wanted[one] + errors[one]) for one in wanted)
        return READ.replace("MORE", more + checks).replace("NAME", name).replace("FIELDS", fields)

    return CallbackProgram(
        text(0), text(10 * error or 1e-3), files={f"data/{one}": content for one, content in files.items()}
    )


SUM = float(np.abs(ROWS).sum(1).mean())
SQUARE = float((RESPONSES.astype(np.float64) ** 2).mean())
WHOLE = np.column_stack((ROWS, LABELS))
RIGHT = float(np.abs(np.column_stack((ROWS, RESPONSES))).sum(1).mean())
NPY = {"t.npy": npy(WHOLE)}
COLOURS = np.stack([PIXELS] * 3, -1)

PYTHON = b"""
import numpy as np
rows = np.load("data/t.npy")[:, :4]
def get(i): return rows[i]
def count(): return len(rows)
def dims(): return (4,)
"""

READERS = {
    "synthetic": reads(
        # Twelve normal numbers: the mean of Σ |x| has the deviation 2.09 / √2000.
        "synthetic", 'num_samples: 2000 synth_dimensions: "3 4" num_labels: 5', 12 * math.sqrt(2 / math.pi), {},
        error=0.25, labels=1.0),
    "python": reads(
        "python", 'python { module: "rows_of_a_test" module_dir: "data" sample_function: "get" '
        'num_samples_function: "count" sample_dims_function: "dims" }', SUM, {**NPY, "rows_of_a_test.py": PYTHON}),
    "csv": reads("csv", 'data_filename: "t.csv" has_header: true', SUM, {"t.csv": table(WHOLE, "a,b,c,d,e")},
                 labels=1.0),
    "numpy": reads("numpy", 'data_filename: "t.npy"', SUM, NPY, labels=1.0),
    "numpy_npz": reads(
        "numpy_npz", 'data_filename: "t.npz" num_labels: 3', SUM,
        {"t.npz": npz(data=ROWS, labels=LABELS, responses=RESPONSES)}, labels=1.0, responses=SQUARE),
    "numpy_npz_conduit_reader": reads(
        "numpy_npz_conduit_reader", 'data_filename: "list" num_labels: 3 disable_responses: true', SUM,
        {"list": b"a.npz\nb.npz\n", "a.npz": npz(data=ROWS[:4], labels=LABELS[:4]),
         "b.npz": npz(data=ROWS[4:], labels=LABELS[4:])}, labels=1.0),
    "mnist": reads(
        "mnist", 'data_filename: "images" label_filename: "labels"', float(PIXELS.sum((1, 2)).mean()),
        {"images": idx(PIXELS), "labels": idx(LABELS)}, labels=1.0),
    "cifar10": reads(
        "cifar10", "", float(CIFAR.sum((1, 2, 3)).mean()),
        {"test_batch.bin": np.column_stack((LABELS.astype(np.uint8), CIFAR.reshape(6, -1))).tobytes()}, labels=1.0),
    "imagenet": reads(
        "imagenet", 'data_filename: "data/list" num_labels: 3 transforms { to_lbann_layout {} }',
        float(COLOURS.sum((1, 2, 3)).mean()) / 255,
        {"list": b"".join(b"%d.png %d\n" % (i, i % 3) for i in range(6)),
         **{f"{i}.png": png(COLOURS[i]) for i in range(6)}}, labels=1.0),
    "merge_samples": reads(
        "merge_samples", 'data_file_pattern: "p*.npy" format: "npy"', SUM,
        {"p0.npy": npy(WHOLE[:4]), "p1.npy": npy(WHOLE[4:])}, labels=1.0),
    "merge_features": reads(
        "merge_features", 'data_file_pattern: "f*.csv" format: "csv" separator: ","', SUM,
        {"f0.csv": table(ROWS[:, :1]), "f1.csv": table(ROWS[:, 1:])}),
    "smiles": reads(
        "smiles", 'data_filename: "a.smi" vocab_filename: "vocab" sequence_length: 4', float(0 + 4 + 5 + 1),
        {"a.smi": b"CO\nOC\n", "vocab": b"<bos> 0\n<eos> 1\n<pad> 2\n<unk> 3\nC 4\nO 5\n"}),
}  # fmt: skip


# ---- transforms of one image of 4 x 6 pixels, with the value that NumPy gives

IMAGE = (np.arange(4 * 6 * 3).reshape(4, 6, 3) * 3 % 256).astype(np.uint8)
FLAT = np.full((4, 6, 3), 100, np.uint8)


def image(transform: str, value: float, array: np.ndarray = IMAGE, after_it: str = "transforms { to_lbann_layout {} }",
          ) -> CallbackProgram:  # fmt: skip
    """The sum of all pixels of the transformed image, of 0 to 1."""
    fields = f'data_filename: "data/list" num_labels: 2 transforms {{ {transform} }} {after_it}'
    return reads("imagenet", fields, value, {"list": b"a.png 1\n", "a.png": png(array)})


def total(array: np.ndarray) -> float:
    return float(array.astype(np.float64).sum() / 255)


BGR = (IMAGE[..., ::-1].astype(np.float64) / 255).transpose(2, 0, 1)
NORMAL = float(np.abs((BGR - np.array([0.5, 0.4, 0.3])[:, None, None]) / 0.25).sum())


def flipped(kind: str, axis: int) -> CallbackProgram:
    """A flip is seen by a crop of what comes first afterwards."""
    other = np.flip(IMAGE, axis)
    crop = "transforms { center_crop { height: 1 width: 1 } } transforms { to_lbann_layout {} }"
    middle = other[1:2, 2:3]  # a margin that is odd is rounded down
    return image(f"{kind} {{ p: 1 }}", total(middle), after_it=crop)


TRANSFORMS = {
    "to_lbann_layout": image("to_lbann_layout {}", total(IMAGE), after_it=""),
    "scale": image("to_lbann_layout {}", 3 * total(IMAGE), after_it="transforms { scale { scale: -3 } }"),
    "normalize": image(
        "to_lbann_layout {}", NORMAL,
        after_it='transforms { normalize { means: "0.5 0.4 0.3" stddevs: "0.25 0.25 0.25" } }'),
    "normalize_to_lbann_layout": image(
        'normalize_to_lbann_layout { means: "0.5 0.4 0.3" stddevs: "0.25 0.25 0.25" }', NORMAL, after_it=""),
    "sample_normalize": image(
        "to_lbann_layout {}", float(np.abs((BGR - BGR.mean()) / BGR.std()).sum()),
        after_it="transforms { sample_normalize {} }"),
    "center_crop": image("center_crop { height: 2 width: 2 }", total(IMAGE[1:3, 2:4])),
    "random_crop": image("random_crop { height: 2 width: 3 }", total(FLAT[:2, :3]), FLAT),
    "resize": image("resize { height: 8 width: 9 }", total(np.full((8, 9, 3), 100)), FLAT),
    "resized_center_crop": image(
        "resized_center_crop { height: 8 width: 12 crop_height: 3 crop_width: 5 }", total(np.full((3, 5, 3), 100)),
        FLAT),
    "random_resized_crop": image(
        "random_resized_crop { height: 3 width: 3 scale_min: 0.2 scale_max: 1 ar_min: 0.75 ar_max: 1.3 }",
        total(np.full((3, 3, 3), 100)), FLAT),
    "random_resized_crop_with_fixed_aspect_ratio": image(
        "random_resized_crop_with_fixed_aspect_ratio { height: 8 width: 12 crop_height: 3 crop_width: 5 }",
        total(np.full((3, 5, 3), 100)), FLAT),
    "horizontal_flip": flipped("horizontal_flip", 1),
    "vertical_flip": flipped("vertical_flip", 0),
    "random_affine": image(
        "random_affine { rotate_min: 0 rotate_max: 0 translate_h: 0 translate_w: 0 scale_min: 1 scale_max: 1 }",
        total(IMAGE)),
    "grayscale": image(
        "grayscale {}", total(np.full((4, 6), 100)), FLAT),
    "colorize": image("colorize {}", total(np.full((4, 6, 3), 100)), FLAT[..., 0]),
    "color_jitter": image(
        "color_jitter { min_brightness_factor: 0.5 max_brightness_factor: 0.5 min_contrast_factor: 1 "
        "max_contrast_factor: 1 min_saturation_factor: 1 max_saturation_factor: 1 }",
        total(np.full((4, 6, 3), 50)), FLAT),
    "adjust_brightness": image("adjust_brightness { factor: 0.5 }", total(np.full((4, 6, 3), 50)), FLAT),
    "adjust_contrast": image("adjust_contrast { factor: 0.5 }", total(FLAT), FLAT),
    "adjust_saturation": image("adjust_saturation { factor: 0.5 }", total(FLAT), FLAT),
    "cutout": image("cutout { num_holes: 1 length: 20 }", 0.0, FLAT),
    "pad": image("pad { pad: 2 }", total(FLAT), FLAT),
}  # fmt: skip


# ---- layers that are random, have no output, or hash bytes

N = 20_000


def drawn(fields: str, mean: float, variance: float, modes: str = "train", kind: str = "") -> CallbackProgram:
    """Mean and mean square of 20,000 draws, to six standard errors; spoilt, of a mean that is 0.3 deviations off."""

    def text(shift: float) -> str:
        centre = mean + shift * math.sqrt(variance)
        error = 6 * math.sqrt(variance / N) + 1e-6
        more = (
            f'layer {{ name: "r" {fields} }} layer {{ name: "mean" parents: "r" reduction {{ mode: "mean" }} }}'
            'metric { layer_metric { layer: "mean" name: "mean" } }' + bounds("mean", centre - error, centre + error,
                                                                             modes)
        )  # fmt: skip
        return experiment(more)

    return CallbackProgram(text(0), text(0.3))


DIMS = f"neuron_dims: [{N}]"
RANDOM = {
    "gaussian": drawn(f"gaussian {{ mean: 2 stdev: 3 {DIMS} }}", 2.0, 9.0, "train test"),
    "uniform": drawn(f"uniform {{ min: -1 max: 3 {DIMS} }}", 1.0, 16 / 12, "train test"),
    "bernoulli": drawn(f"bernoulli {{ prob: 0.25 {DIMS} }}", 0.25, 0.1875),
    "dropout": drawn(f'parents: "many" dropout {{ keep_prob: 0.75 }} }} layer {{ name: "many" constant {{ value: 1 '
                     f"num_neurons: [{N}] }}", 1.0, 1 / 3),
    "dummy": leaves(after(*[0.1] * 6), 'layer { name: "gone" parents: "w" dummy {} }'),
    "evaluation": leaves(after(*[0.1] * 6), 'layer { name: "seen" parents: "z" evaluation {} } '
                         'metric { layer_metric { layer: "z" name: "again" } }', "again"),
    "input": reads("numpy", 'data_filename: "t.npy"', SUM, NPY, labels=1.0),
    "cutout": leaves(0.0, 'layer { name: "picture" constant { value: 3 num_neurons: [1, 3, 3] } } '
                     'layer { name: "length" constant { value: 10 num_neurons: [1] } } '
                     'layer { name: "hole" parents: "picture" parents: "length" cutout {} } '
                     'layer { name: "left" parents: "hole" l1_norm {} } '
                     'metric { layer_metric { layer: "left" name: "left" } }', "left"),
    "rowwise_weights_norms": leaves(
        # The rows (3, -4) and (0, 1) have the norms 5 and 1.
        26.0, 'layer { name: "m" weights: "matrix" weights_layer { dims: [2, 2] } } '
        'layer { name: "norms" weights: "matrix" hint_layer: "m" rowwise_weights_norms {} } '
        'weights { name: "matrix" initializer { value_initializer { values: [3, -4, 0, 1] } } } '
        'layer { name: "n2" parents: "norms" l2_norm2 {} } metric { layer_metric { layer: "n2" name: "n2" } }', "n2"),
    "uniform_hash": drawn(f'parents: "many" uniform_hash {{}} }} layer {{ name: "many" gaussian {{ stdev: 1 {DIMS} }}',
                          0.5, 1 / 12),
}  # fmt: skip
OTHERS = {
    **{f"algorithm {name}": one for name, one in ALGORITHMS.items()},
    **{f"reader {name}": one for name, one in READERS.items()},
    **{f"transform {name}": one for name, one in TRANSFORMS.items()},
    **{f"layer {name}": one for name, one in RANDOM.items()},
}
