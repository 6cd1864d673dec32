"""What the check says of models that it refuses."""

import pytest

import descend.graph as g
from descend.errors import GraphError
from tests.graph.models import FIELDS


def problems(model, fields=FIELDS):
    """The problems of a model."""
    with pytest.raises(GraphError) as caught:
        g.check(model, fields)
    return list(caught.value.problems)


def of_text(source, fields=FIELDS):
    """The problems of a model's text."""
    return problems(g.from_text(source, "f.prototext"), fields)


def scalar(layer):
    """A layer of one number behind any layer, for an objective."""
    return g.MeanSquaredError(layer, layer)
