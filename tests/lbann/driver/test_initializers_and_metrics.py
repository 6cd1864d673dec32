"""Initializers by their laws, and metrics that programs and functions give, through LBANN's driver."""

import numpy as np
import pytest

from tests.lbann.driver.programs import run, write

TEXT = """
trainer { mini_batch_size: 2 random_seed: 1 }
model {
  metric { layer_metric { layer: "mean" name: "mean" } }
  metric { layer_metric { layer: "square" name: "square" } }
  layer { name: "unread" input { data_field: "samples" } }
  LAYER
  layer { name: "mean" parents: "w" reduction { mode: "mean" } }
  layer { name: "squares" parents: "w" operator_layer { ops { parameters {
    [type.googleapis.com/lbann_data.SquareOperator] {} } } } }
  layer { name: "square" parents: "squares" reduction { mode: "mean" } }
  weights { name: "own" initializer { INITIALIZER } }
  CHECKS
}
data_reader { reader { name: "python" role: "test" python { module: "ones_of_a_test" module_dir: "."
  sample_function: "sample" num_samples_function: "count" sample_dims_function: "dims" } } }
"""
PLAIN = 'layer { name: "w" weights: "own" weights_layer { dims: [100, 200] } }'
DENSE = 'layer { name: "w" parents: "unread" weights: "own" fully_connected { num_neurons: 20000 } }'
INPUTS = 50  # of the dense layer, whose outputs are sums over as many weights


def check(metric: str, value: float, error: float) -> str:
    low, high = value - error - 1e-6 * abs(value), value + error + 1e-6 * abs(value)
    return (
        f'callback {{ check_metric {{ metric: "{metric}" lower_bound: {low!r} upper_bound: {high!r} '
        "error_on_failure: true } }"
    )


def program(folder, initializer: str, mean: float, variance: float, layer: str = PLAIN, exact: bool = False) -> str:
    """Mean and mean square to five standard errors of 20,000 numbers, whose fourth moment is at most a normal one's."""
    (folder / "ones_of_a_test.py").write_text(
        f"import numpy as np\ndef sample(i): return np.ones({INPUTS})\ndef count(): return 2\n"
        f"def dims(): return ({INPUTS},)\n"
    )
    spread = 0.0 if exact else 5 * (variance / 20_000) ** 0.5
    square, wide = (
        variance + mean**2,
        0.0 if exact else 5 * ((2 * variance**2 + 4 * variance * mean**2) / 20_000) ** 0.5,
    )
    checks = check("mean", mean, spread) + check("square", square, wide)
    text = TEXT.replace("LAYER", layer).replace("INITIALIZER", initializer).replace("CHECKS", checks)
    return f"--prototext={write(folder, text)}"


LAWS = ("he", "lecun", "glorot")
EXACT = ("constant_initializer", "value_initializer", "numpy_initializer")
INITIALIZERS = (
    *("uniform_initializer", "normal_initializer", *EXACT),
    *(f"{name}_{law}_initializer" for name in LAWS for law in ("normal", "uniform")),
)


def ends(capsys, monkeypatch, folder, file, code):
    ended = run(capsys, monkeypatch, folder, file, "--mini_batch_size=2")
    assert ended.code == code, ended.err


@pytest.mark.parametrize(
    ("initializer", "mean", "variance", "layer"),
    [
        ("uniform_initializer {}", 0.5, 1 / 12, PLAIN),
        ("uniform_initializer { min: -1 max: 3 }", 1.0, 16 / 12, PLAIN),
        ("normal_initializer {}", 0.0, 1.0, PLAIN),
        ("normal_initializer { mean: 2 standard_deviation: 0.5 }", 2.0, 0.25, PLAIN),
        *(
            (f"{name}_{law}_initializer {{}}", 0.0, INPUTS * variance, DENSE)
            for name, variance in (("he", 2 / INPUTS), ("lecun", 1 / INPUTS), ("glorot", 2 / (INPUTS + 20_000)))
            for law in ("normal", "uniform")
        ),
    ],
)
def test_random_weights_follow_their_law(initializer, mean, variance, layer, capsys, monkeypatch, tmp_path):
    ends(capsys, monkeypatch, tmp_path, program(tmp_path, initializer, mean, variance, layer), 0)
    ends(capsys, monkeypatch, tmp_path, program(tmp_path, initializer, mean + 0.3 * variance**0.5, variance, layer), 4)


def test_constants_and_listed_values_are_exact(capsys, monkeypatch, tmp_path):
    values = np.linspace(-1, 2, 6).astype(np.float32)
    layer = 'layer { name: "w" weights: "own" weights_layer { dims: [2, 3] } }'
    np.save(tmp_path / "values.npy", values.reshape(2, 3))
    listed = ", ".join(map(repr, values.tolist()))
    for initializer, known in (
        ("constant_initializer { value: -2.5 }", np.full(6, -2.5)),
        (f"value_initializer {{ values: [{listed}] }}", values.astype(np.float64)),
        ('numpy_initializer { file: "values.npy" }', values.astype(np.float64)),
    ):
        given = (initializer, float(known.mean()), float(known.var()), layer, True)
        ends(capsys, monkeypatch, tmp_path, program(tmp_path, *given), 0)
        spoilt = (initializer, given[1] * 1.0001, *given[2:])
        ends(capsys, monkeypatch, tmp_path, program(tmp_path, *spoilt), 4)


def test_metrics_of_programs_and_functions_lie_in_the_working_directory(capsys, monkeypatch, tmp_path):
    (tmp_path / "own_metric.py").write_text(
        "from pathlib import Path\ndef evaluate(path, rank): return 10 * rank + len(Path(path).parts[-1])\n"
    )
    script = tmp_path / "program.sh"
    script.write_text('#!/bin/sh\ncat "$1"\necho "$2" > said.txt\n')
    script.chmod(0o755)
    (tmp_path / "number.txt").write_text("2.5\n")
    metrics = """
      metric { python_metric { name: "function" module: "own_metric" module_dir: "." } }
      metric { executable_metric { name: "program" filename: "./program.sh" other_args: "number.txt" } }
    """
    initializer = "constant_initializer { value: 1 }"

    def file(function: float, program_: float) -> str:
        name = program(tmp_path, initializer, 1, 0, exact=True)
        text = (tmp_path / "experiment.prototext").read_text()
        own = metrics + check("function", function, 0) + check("program", program_, 0)
        (tmp_path / "experiment.prototext").write_text(text.replace("model {", f"model {{ {own}", 1))
        return name

    ends(capsys, monkeypatch, tmp_path, file(len("model0"), 2.5), 0)
    assert (tmp_path / "said.txt").read_text() == "trainer0/model0\n"
    ends(capsys, monkeypatch, tmp_path, file(len("model0"), 2.6), 4)
    ends(capsys, monkeypatch, tmp_path, file(len("model0") + 1, 2.5), 4)
