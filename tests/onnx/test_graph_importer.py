"""Names, parameters, constants and broadcasts that all importers share."""

import numpy as np
import pytest

from descend import NoOptimizer
from descend.graph import Add, FullyConnected, Relu, TensorPermute
from descend.onnx.values import Budget, ConstantValue, ShapeValue, Tensor, UnsupportedNode
from tests.onnx.files import a_node, computed, drawn, importer_of

S = (3, 4)
X = drawn(2, *S)
NODE = a_node("Op")


def added_to_zeros(r, x, constant):
    """A constant for one sample, as a layer that has an input."""
    return computed(r.layer(Add, "sum", x, constant), x0=np.zeros((1, *S), np.float32))[0]


def test_no_two_layers_have_one_name():
    r, _ = importer_of(S)
    assert [r.name(wish) for wish in ("a b", "a_b", "a_b", "/", "")] == ["a_b", "a_b_2", "a_b_3", "layer", "layer_2"]


def test_a_layer_that_does_not_take_its_input_is_a_reason_and_not_an_error():
    r, x = importer_of(S)
    assert r.layer(Relu, NODE, x).shape == S
    with pytest.raises(UnsupportedNode, match="axes"):
        r.layer(TensorPermute, NODE, x, axes=[0, 0])


def test_layers_count_against_the_budget():
    budget = Budget()
    budget.layers_left = 1
    r, x = importer_of(S, budget=budget)
    y = r.layer(Relu, NODE, x)
    with pytest.raises(UnsupportedNode, match="far more layers"):
        r.layer(Relu, NODE, y)


def test_a_tensor_of_the_file_is_one_parameter_wherever_it_is_used():
    r, _ = importer_of(S)
    named, whole = ConstantValue(drawn(2, 3), "table"), ConstantValue(np.arange(6).reshape(2, 3), "places")
    first = r.weights(named, "owner")
    assert r.weights(named, "another") is first
    assert first.name == "table"
    np.testing.assert_array_equal(first.initializer.array, named.array)
    assert first.optimizer is None  # trained by the model's rule
    assert isinstance(r.weights(whole, "owner").optimizer, NoOptimizer)  # integers are no parameters
    assert isinstance(r.weights(ConstantValue(drawn(2)), "owner").optimizer, NoOptimizer)  # nor what was computed
    with pytest.raises(UnsupportedNode, match="takes a constant of complex64"):
        r.weights(ConstantValue(np.ones(2, np.complex64), "c"), "owner")


def test_a_transposed_matrix_is_remembered_so_that_a_table_is_a_classifier_too():
    r, _ = importer_of(S)
    table = ConstantValue(drawn(2, 3), "table")
    assert not r.turned(table)
    turned = r.weights(table, "owner", turned=True)
    assert r.turned(table)
    np.testing.assert_array_equal(turned.initializer.array, table.array.T)


def test_an_array_that_was_broadcast_is_counted_before_it_is_made():
    r, _ = importer_of(S)
    wide = np.broadcast_to(np.float32(1), (10**5, 10**4))
    with pytest.raises(UnsupportedNode, match="constant of more than 100,000,000 entries"):
        r.weights(ConstantValue(wide, "wide"), "owner")


def test_a_reshape_that_changes_nothing_makes_no_layer():
    r, x = importer_of(S)
    assert r.reshaped(x, S, NODE) is x
    one = Tensor(x.layer, (1,))
    assert r.reshaped(one, (), NODE).layer is x.layer  # one number a sample, which a layer gives as (1,)
    y = r.reshaped(x, (2, 6), NODE)
    np.testing.assert_array_equal(computed(y, x0=X), X.reshape(2, 2, 6))
    with pytest.raises(UnsupportedNode, match=r"makes \(samples, 5\) of \(samples, 3, 4\)|makes"):
        r.reshaped(x, (5,), NODE)


@pytest.mark.parametrize("shape", [(), (4,), (3, 1), (1, 3, 4)])
def test_constants_are_broadcast_with_tensors_as_numpy_does(shape):
    r, x = importer_of(S)
    constant = drawn(*shape, seed=1)
    same, other = r.broadcast(NODE, x, ConstantValue(np.asarray(constant)))
    assert same is x
    np.testing.assert_array_equal(added_to_zeros(r, x, other), np.broadcast_to(constant, (1, *S))[0])


def test_tensors_are_broadcast_within_a_sample_alone():
    r, x, column = importer_of(S, (3, 1))
    _, wide = r.broadcast(NODE, x, column)
    one = drawn(2, 3, 1, seed=1)
    np.testing.assert_array_equal(computed(wide, x1=one), np.broadcast_to(one, X.shape))
    for other, message in [
        (Tensor(column.layer, (3,)), "brings together dimensions of samples with others"),
        (Tensor(column.layer, ()), "takes one number a sample without a dimension of its own"),
        (ConstantValue(drawn(5)), "brings together shapes that do not fit: 3 x 4, 1 x 5"),
        (ConstantValue(drawn(2, 3, 4, 1, 1)), "takes a constant of more dimensions than its other inputs have"),
        (ConstantValue(drawn(2, 3, 4)), "takes a constant that is another one for each sample"),
        (ConstantValue(np.full(4, np.nan)), "or one that holds NaN"),
        (ShapeValue((None, 3)), "computes with the number of samples"),
        (None, "is given too few inputs"),
    ]:
        with pytest.raises(UnsupportedNode, match=message):
            r.broadcast(NODE, x, other)


def test_a_constant_that_says_the_same_of_all_samples_is_that_of_one():
    r, x = importer_of(S, batch=2)
    row = drawn(3, 4)
    _, other = r.broadcast(NODE, x, ConstantValue(np.stack([row, row])))
    np.testing.assert_array_equal(added_to_zeros(r, x, other), row)


def test_infinities_of_a_mask_stay_and_its_parameters_are_finite():
    r, x = importer_of(S)
    mask = np.where(np.arange(12).reshape(S) % 3, 0.5, -np.inf).astype(np.float32)
    mask[0, 0] = np.inf
    _, other = r.broadcast(NODE, x, ConstantValue(mask))
    np.testing.assert_array_equal(added_to_zeros(r, x, other), mask)
    held = [one.initializer.array for layer in r.layers for one in layer.weights]
    assert held
    assert all(np.isfinite(array).all() for array in held)


def test_parameters_of_layers_are_those_of_the_file():
    r, x = importer_of((4,))
    matrix = ConstantValue(drawn(4, 2), "w")
    y = r.layer(
        FullyConnected,
        NODE,
        x,
        weights=[r.weights(matrix, "n", column_major=True)],
        num_neurons=2,
        has_bias=False,
        transpose=True,
    )
    given = drawn(3, 4)
    np.testing.assert_allclose(computed(y, x0=given), given @ matrix.array, rtol=1e-5, atol=1e-6)
