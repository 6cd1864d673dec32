"""First values against the distributions and fan rules they are named for."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import descend
from descend.errors import GraphError
from descend.lower import initial_values
from descend.runtime import generator


def start(initializer, shape=(200, 300), fan_in=300, fan_out=200, column_major=False, seed=1, datatype=None):
    planned = SimpleNamespace(
        zero_columns=(),
        name="w",
        shape=shape,
        initializer=initializer,
        fan_in=fan_in,
        fan_out=fan_out,
        column_major=column_major,
        datatype=datatype,
    )
    return initial_values(planned, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("initializer", "variance", "bounded"),
    [
        (descend.GlorotNormalInitializer(), 2 / 500, False),
        (descend.GlorotUniformInitializer(), 2 / 500, True),
        (descend.HeNormalInitializer(), 2 / 300, False),
        (descend.HeUniformInitializer(), 2 / 300, True),
        (descend.LeCunNormalInitializer(), 1 / 300, False),
        (descend.LeCunUniformInitializer(), 1 / 300, True),
        (descend.NormalInitializer(), 1.0, False),
        (descend.UniformInitializer(min=-1, max=1), 1 / 3, True),
    ],
)
def test_random_starts_have_their_variance(initializer, variance, bounded):
    """60,000 draws: the variance of the sample is within 5 standard errors, and uniform ones stay within ±√(3
    variance)."""
    values = start(initializer).double()
    kurtosis = 1.8 if bounded else 3.0
    error = variance * math.sqrt((kurtosis - 1) / values.numel())
    assert float(values.var()) == pytest.approx(variance, abs=5 * error)
    assert abs(float(values.mean())) < 5 * math.sqrt(variance / values.numel())
    bound = math.sqrt(3 * variance)
    assert (float(values.abs().max()) <= bound) == bounded


def test_a_normal_start_is_not_truncated():
    assert float(start(descend.HeNormalInitializer()).abs().max()) > 3.5 * math.sqrt(2 / 300)


def test_uniform_without_bounds_is_from_zero_to_one():
    values = start(descend.UniformInitializer())
    assert float(values.min()) >= 0
    assert float(values.max()) < 1
    assert float(values.mean()) == pytest.approx(0.5, abs=0.01)


def test_constants():
    assert (start(descend.ConstantInitializer(value=2.5)) == 2.5).all()


def test_values_in_rows_or_in_columns():
    listed = descend.ValueInitializer(values=range(6))
    assert start(listed, (2, 3)).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert start(listed, (2, 3), column_major=True).tolist() == [[0, 2, 4], [1, 3, 5]]
    with pytest.raises(GraphError, match=r"need 8 values.*lists 6"):
        start(listed, (2, 4))


def test_values_from_a_file(tmp_path):
    array = np.arange(6.0).reshape(2, 3)
    np.save(tmp_path / "w.npy", array)
    start_from_file = descend.NumpyInitializer(file=str(tmp_path / "w.npy"))
    np.testing.assert_array_equal(start(start_from_file, (2, 3)).numpy(), array)
    with pytest.raises(GraphError, match=r"shape \(2, 3\).*\(3, 2\)"):
        start(start_from_file, (3, 2))
    with pytest.raises(GraphError, match="cannot be read"):
        start(descend.NumpyInitializer(file=str(tmp_path / "none.npy")), (3, 2))


def test_values_have_the_format_that_is_asked_for():
    for datatype, dtype in (("FLOAT", torch.float32), ("DOUBLE", torch.float64), ("FP16", torch.float16)):
        for initializer in (
            descend.HeNormalInitializer(),
            descend.ConstantInitializer(0.1),
            descend.ValueInitializer(values_d=[0.1] * 60_000),
        ):
            assert start(initializer, datatype=descend.DataType[datatype]).dtype == dtype
    listed = start(descend.ValueInitializer(values_d=[0.1]), (1,), datatype=descend.DataType.DOUBLE)
    assert listed.item() == 0.1


def network(order):
    """Three layers, made in an order; their names are the same."""
    x = descend.Input(data_field="x", name="x")
    layers = {name: descend.FullyConnected(num_neurons=4, has_bias=True, name=name) for name in order}
    y = x
    for name in sorted(layers):
        layers[name](y)
        y = layers[name]
    return descend.Model(1, objective_function=descend.L2Norm2(y))


def test_values_are_a_function_of_seed_and_name_alone():
    """Whatever the order of construction, the other layers and their number."""
    found = []
    for order in ("abc", "cab", "ab"):
        plan = descend.graph.check(network(order), {"x": (4,)})
        found.append({name: initial_values(one, generator(7, "weights", name)) for name, one in plan.weights.items()})
    first, second, fewer = found
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(torch.equal(first[name], fewer[name]) for name in fewer)
    assert not torch.equal(first["a_linearity_weights"], first["b_linearity_weights"])


# By layer: the fans that its kernel or matrix has by LBANN's rules.
FANS = [
    (lambda x: descend.FullyConnected(x, num_neurons=5), (3, 2, 4), 24, 5),
    (lambda x: descend.FullyConnected(x, num_neurons=5, transpose=True), (3, 2, 4), 24, 5),
    (lambda x: descend.ChannelwiseFullyConnected(x, output_channel_dims=[2, 5]), (3, 2, 4), 8, 10),
    (lambda x: descend.Convolution(x, num_dims=2, out_channels=6, kernel_size=[3, 2]), (4, 9, 9), 4 * 6, 6 * 6),
    (
        lambda x: descend.Convolution(x, num_dims=1, out_channels=6, kernel_size=3, groups=2),
        (4, 9),
        2 * 3,
        6 * 2 * 3 // 4,
    ),
]


@pytest.mark.parametrize(("make", "shape", "fan_in", "fan_out"), FANS)
def test_fans_are_lbanns(make, shape, fan_in, fan_out):
    """Convolution: entries of the kernel over out_channels, and over in_channels."""
    model = descend.Model(1, objective_function=descend.L2Norm2(make(descend.Input(data_field="x"))))
    planned = next(iter(descend.graph.check(model, {"x": shape}).weights.values()))
    assert (planned.fan_in, planned.fan_out) == (fan_in, fan_out)
