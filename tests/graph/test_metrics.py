"""Descriptions of metrics: names, units, fields of the text, and what they refuse."""

import pytest

import descend.graph as g
from descend.errors import ConfigurationError


def test_a_metric_is_named_by_its_layer_unless_it_is_named():
    layer = g.Input(name="acc")
    assert g.Metric(layer).name == "acc"
    assert g.Metric(layer, "accuracy", "%").name == "accuracy"
    assert g.Metric("acc").name == "acc"  # a name of a text, which the check looks up
    assert g.Metric(layer, "").name == "acc"


def test_the_fields_of_the_text_name_the_layer():
    metric = g.Metric(g.Input(name="acc"), unit="%")
    assert metric.to_fields() == {"layer": "acc", "name": "acc", "unit": "%"}
    assert repr(metric) == "Metric('acc', unit='%')"
    read = g.Metric.from_fields({**metric.to_fields(), "where": "f:2:1"})
    assert (read.to_fields(), read.where) == (metric.to_fields(), "f:2:1")


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: g.Metric(3), "Metric.layer is 3; expected a layer"),
        (lambda: g.Metric("acc", unit=3), "Metric.unit is 3; expected a string"),
        (lambda: g.Metric("acc", 3), "Metric.name is 3; expected a string or None"),
        (
            lambda: g.Metric("acc", units="%"),
            "Metric has no field 'units'; did you mean 'unit'? its fields are layer, name, unit",
        ),
        (lambda: g.PythonMetric(function=3), "PythonMetric.function is 3; expected a string"),
        (lambda: g.ExecutableMetric(file="x"), "ExecutableMetric has no field 'file'; did you mean 'filename'?"),
    ],
)
def test_wrong_fields_are_refused_by_name(make, problem):
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize(
    ("metric", "written"),
    [
        (g.PythonMetric(name="m", module="a"), "Metric.PythonMetric.module"),
        (g.ExecutableMetric(name="m", filename="a"), "Metric.ExecutableMetric.filename"),
    ],
    ids=["python", "executable"],
)
def test_fields_that_must_be_set_are_fields(metric, written):
    assert metric.message == written.rpartition(".")[0]
    assert metric.needs == ("name", written.rpartition(".")[2])
    assert all(getattr(metric, name) for name in metric.needs)


def test_a_metric_of_a_text_names_its_layer_with_its_place():
    source = 'metric { layer_metric { layer: "acc" } }\nmetric { python_metric { name: "m" module: "a" } }'
    first, second = g.from_text(source, "f").metrics
    assert (first.layer, first.name, first.where) == ("acc", "acc", "f:1:1")
    assert (second, second.where) == (g.PythonMetric("m", "a"), "f:2:1")
