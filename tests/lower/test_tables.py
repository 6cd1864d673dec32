"""Tables of vectors."""

import pytest
import torch

import descend
from tests.lower.single import Single, f64

nan = float("nan")


def table(kind=descend.Embedding, shape=(4,), **fields):
    """A table of vector i = (10 i, 10 i + 1), listed one vector after the other."""
    listed = descend.Weights(descend.ValueInitializer(values=[0, 1, 10, 11, 20, 21]), name="table")
    fields = {"num_embeddings": 3, "embedding_dim": 2, **fields}
    return Single(lambda s: kind(s, weights=[listed], name="e", **fields), shape)


@pytest.mark.parametrize("kind", [descend.Embedding, descend.DistEmbedding])
def test_an_entry_is_a_vector_and_indices_are_rounded_down(kind):
    layer = table(kind)
    y = layer(f64([0, 2.9, 1, 1]))
    assert y.tolist() == [[[0, 1], [20, 21], [10, 11], [10, 11]]]
    (y * f64([[1, 1], [2, 2], [3, 3], [4, 4]])).sum().backward()
    assert layer.weights["table"].grad.tolist() == [[1, 7, 2], [1, 7, 2]]


@pytest.mark.parametrize("kind", [descend.Embedding, descend.DistEmbedding])
def test_an_index_out_of_range_gives_zeros_and_no_gradient(kind):
    layer = table(kind)
    y = layer(f64([3, -0.5, nan, 1e30]))
    assert not y.any()
    y.sum().backward()
    assert not layer.weights["table"].grad.any()


def test_the_padding_vector_is_zero_and_gets_no_gradient():
    """LBANN compares padding_idx with embedding_dim, so 2 of 3 vectors of 2 would not be found."""
    layer = table(padding_idx=2)
    y = layer(f64([0, 1, 2, 2]))
    assert y.tolist() == [[[0, 1], [10, 11], [0, 0], [0, 0]]]
    y.sum().backward()
    assert layer.weights["table"].grad.tolist() == [[1, 1, 0], [1, 1, 0]]
    assert table(padding_idx=0)(f64([0, 1, 2, 2])).tolist() == [[[0, 0], [10, 11], [20, 21], [20, 21]]]


def test_the_padding_vector_starts_at_zero_for_all_layers_that_share_the_table():
    """As in LBANN; else regularization would count it, and another layer would read it."""
    given = descend.Weights(descend.ConstantInitializer(value=3), name="t")

    def both(x):
        settings = {"num_embeddings": 3, "embedding_dim": 2, "weights": [given]}
        return descend.Add(descend.Embedding(x, padding_idx=1, **settings), descend.Embedding(x, **settings))

    y = both(descend.Input(data_field="x"))
    module = descend.Model(0, [y]).to_torch(fields={"x": (1,)}, outputs=[y.name])
    (table,) = module.parameters()
    assert table.tolist() == [[3, 0, 3], [3, 0, 3]]
    assert module(f64([[0], [1]])).tolist() == [[[6, 6]], [[0, 0]]]


def test_the_output_has_one_dimension_more():
    assert table(shape=(4, 3)).shape == (4, 3, 2)
    indices = f64([[0, 1, 2], [2, 1, 0], [0, 0, 0], [1, 1, 1]])
    assert table(shape=(4, 3))(indices)[0, 1].tolist() == [[20, 21], [10, 11], [0, 1]]


def test_a_table_starts_as_standard_normal():
    layer = Single(lambda s: descend.Embedding(s, num_embeddings=1000, embedding_dim=20, name="e"), (1,))
    (weights,) = layer.weights.values()
    assert list(layer.weights) == ["e_weights"]
    assert weights.shape == (20, 1000)
    assert abs(weights.mean()) < 0.03
    assert abs(weights.std() - 1) < 0.03


def test_gradients_of_the_table_are_finite_differences():
    layer = table(padding_idx=1)
    index = f64([0, 2, 1, 0], [5, 2, 2, -1])
    assert torch.autograd.gradcheck(lambda *_: layer(index), tuple(layer.weights.values()))
