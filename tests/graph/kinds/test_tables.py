"""Embeddings as kinds of layers: shapes as torch's, the table, its update rule, and what they refuse."""

import pytest
import torch

import descend.graph as g
from tests.graph.kinds.given import kind, refusal, shape_of, slots_of

KINDS = [g.Embedding, g.DistEmbedding]


@pytest.mark.parametrize("shape", [(1,), (4,), (4, 3)])
@pytest.mark.parametrize("table", KINDS)
def test_the_output_is_shaped_as_torchs(table, shape):
    looked_up = torch.nn.Embedding(5, 2)(torch.zeros(shape, dtype=torch.long))
    assert shape_of(table(num_embeddings=5, embedding_dim=2), shape) == tuple(looked_up.shape)


@pytest.mark.parametrize("table", KINDS)
def test_the_table_has_a_vector_in_each_column_and_starts_as_torchs(table):
    """torch.nn.Embedding holds the transposed matrix and draws it from N(0, 1)."""
    (slot,) = slots_of(table(num_embeddings=5, embedding_dim=2), (4,)).values()
    assert slot.suffix == "weights"
    assert slot.shape == tuple(torch.nn.Embedding(5, 2).weight.T.shape)
    assert slot.initializer.moments == (0.0, 1.0)
    assert (slot.fan_in, slot.fan_out, slot.column_major, slot.trainable) == (5, 2, True, True)
    assert table.index_parents == (0,)


def test_sparse_sgd_is_an_update_rule_of_the_table():
    fields = {"num_embeddings": 5, "embedding_dim": 2, "sparse_sgd": True, "learning_rate": 0.5}
    (slot,) = slots_of(g.DistEmbedding(**fields), (4,)).values()
    assert slot.optimizer == g.SGD(learn_rate=0.5)
    (slot,) = slots_of(g.DistEmbedding(num_embeddings=5, embedding_dim=2), (4,)).values()
    assert slot.optimizer is None


@pytest.mark.parametrize(("sparse", "rate"), [(True, 0.0), (True, -0.1), (False, 0.1)])
def test_sparse_sgd_and_its_rate_are_set_together(sparse, rate):
    layer = g.DistEmbedding(num_embeddings=5, embedding_dim=2, sparse_sgd=sparse, learning_rate=rate)
    assert refusal(layer, (4,)) == (
        f"has sparse_sgd {sparse} and learning_rate {rate!r}; set both, the rate above 0, or neither"
    )


def test_a_padding_vector_is_one_of_the_table():
    for index in (0, 4):
        assert shape_of(g.Embedding(num_embeddings=5, embedding_dim=2, padding_idx=index), (1,)) == (1, 2)
    for index in (-1, 5):
        layer = g.Embedding(num_embeddings=5, embedding_dim=2, padding_idx=index)
        assert refusal(layer, (1,)) == f"has padding_idx {index}; expected 0 to 4, or unset"


@pytest.mark.parametrize(
    ("layer", "shapes", "problem"),
    [
        (g.Embedding(), [(4,)], "has num_embeddings 0 and embedding_dim 0; both must be at least 1"),
        (g.Embedding(num_embeddings=3, embedding_dim=2, padding_idx=3), [(4,)], "has padding_idx 3; expected 0 to 2"),
        (g.DistEmbedding(num_embeddings=3), [(4,)], "has num_embeddings 3 and embedding_dim 0"),
        (g.DistEmbedding(num_embeddings=3, embedding_dim=2, sparse_sgd=True), [(4,)], "set both, the rate above 0"),
        (g.DistEmbedding(num_embeddings=3, embedding_dim=2, learning_rate=0.1), [(4,)], "has sparse_sgd False"),
    ],
    ids=kind,
)
def test_what_does_not_fit_is_refused(layer, shapes, problem):
    assert problem in refusal(layer, *shapes)
