"""Whether weights can start as their initializer says, for planned weights alone and in a model."""

import math

import numpy as np
import pytest

import descend.graph as g
from descend.errors import GraphError
from descend.graph.checking.weight_table import initializer_problems
from descend.graph.weights import ArrayInitializer


def found(start, shape=(2, 3), fan_in=3):
    planned = g.PlannedWeights("w", shape, start, fan_in, 2, None, True, "fc", False, None)
    return list(initializer_problems(planned))


@pytest.mark.parametrize(
    "start",
    [
        g.ConstantInitializer(-1e300),
        g.ValueInitializer(range(6)),
        g.ValueInitializer(values_d=[0.1] * 6),
        ArrayInitializer(np.zeros((2, 3), np.float32)),
        ArrayInitializer(np.full((2, 3), 1e308)),  # each is finite, and their sum is not
        g.UniformInitializer(),
        g.UniformInitializer(2.0, 2.0),
        g.NormalInitializer(),
        g.NormalInitializer(3.0, 0.0),
        g.HeNormalInitializer(),
    ],
    ids=repr,
)
def test_what_fits_has_no_problems(start):
    assert found(start) == []


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        (g.ConstantInitializer(math.nan), "start at nan; expected a finite number"),
        (g.ConstantInitializer(-math.inf), "start at -inf; expected a finite number"),
        (g.ValueInitializer([1.0, 2.0]), "have 6 entries (2 x 3) in layer 'fc', and 2 values"),
        (g.ValueInitializer(), "have 6 entries (2 x 3) in layer 'fc', and 0 values"),
        (g.ValueInitializer([1.0], [1.0]), "have both values and values_d; expected one of them"),
        (g.ValueInitializer([math.inf] * 6), "have a listed value that is not finite"),
        (g.ValueInitializer(values_d=[0, 0, 0, 0, 0, math.nan]), "have a listed value that is not finite"),
        (ArrayInitializer(np.zeros((3, 2))), "are 2 x 3 for layer 'fc', and their array is 3 x 2"),
        (
            ArrayInitializer(np.zeros((2, 3), np.int64)),
            "start from an array of int64; expected finite numbers of float32 or float64",
        ),
        (
            ArrayInitializer(np.array([[0, math.inf, -math.inf], [0, 0, 0]])),
            "start from an array of float64; expected finite numbers of float32 or float64",
        ),
        (
            g.UniformInitializer(1.0, -1.0),
            "start between 1.0 and -1.0; expected finite numbers, the smaller first",
        ),
        (
            g.UniformInitializer(-1.7e308, 1.7e308),  # each is finite, and their distance is not
            "start between -1.7e+308 and 1.7e+308; expected finite numbers, the smaller first",
        ),
        (
            g.NormalInitializer(0.0, -1.0),
            "start as N(0.0, -1.0²); expected finite numbers, the second >= 0",
        ),
        (
            g.NormalInitializer(math.nan, 1.0),
            "start as N(nan, 1.0²); expected finite numbers, the second >= 0",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_does_not_fit_is_named(start, problem):
    assert found(start) == [problem]


@pytest.mark.parametrize(
    "start",
    [
        g.GlorotNormalInitializer(),
        g.GlorotUniformInitializer(),
        g.HeNormalInitializer(),
        g.HeUniformInitializer(),
        g.LeCunNormalInitializer(),
        g.LeCunUniformInitializer(),
    ],
    ids=repr,
)
def test_a_variance_over_the_fan_in_needs_one(start):
    assert found(start, fan_in=0) == [
        f"start as {type(start).__name__}, which counts inputs, and layer 'fc' counts none for them: use another one"
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_file_of_the_shape_is_taken(dtype, tmp_path):
    np.save(tmp_path / "w.npy", np.zeros((2, 3), dtype))
    assert found(g.NumpyInitializer(str(tmp_path / "w.npy"))) == []


def test_a_file_of_another_shape_and_format_has_two_problems(tmp_path):
    file = str(tmp_path / "w.npy")
    np.save(file, np.zeros((3, 2), np.int64))
    assert found(g.NumpyInitializer(file)) == [
        f"start from '{file}', which holds int64; expected float32 or float64",
        f"are 2 x 3 for layer 'fc', and '{file}' holds 3 x 2",
    ]


def test_a_file_that_is_missing_or_no_array_says_why(tmp_path):
    (missing,) = found(g.NumpyInitializer(str(tmp_path / "none.npy")))
    assert missing.startswith(f"start from '{tmp_path / 'none.npy'}', which cannot be read as .npy: [Errno 2]")
    (tmp_path / "text.npy").write_text("1 2 3")
    (text,) = found(g.NumpyInitializer(str(tmp_path / "text.npy")))
    assert "which cannot be read as .npy:" in text
    np.save(tmp_path / "objects.npy", np.array([[print]]), allow_pickle=True)
    (objects,) = found(g.NumpyInitializer(str(tmp_path / "objects.npy")))
    assert "which cannot be read as .npy:" in objects  # code in a file is never run


def test_the_check_names_the_weights_and_their_place_in_the_text():
    source = """
layer { name: "x" input { data_field: "x" } }
layer { name: "fc" parents: "x" weights: "w" fully_connected { num_neurons: 2 } }
layer { name: "l" parents: "fc" l2_norm2 {} }
objective_function { layer_term { layer: "l" scale_factor: 1 } }
weights { name: "w" initializer { value_initializer { values: [1, 2] } } }
"""
    with pytest.raises(GraphError) as caught:
        g.check(g.from_text(source, "f.prototext"), {"x": (3,)})
    assert list(caught.value.problems) == [
        "f.prototext:6:1: weights 'w' have 6 entries (2 x 3) in layer 'fc', and 2 values"
    ]
