"""A model that holds a torch module: its name, its measures, and what it refuses."""

import pytest
import torch

import descend
import descend.graph as g
from descend.errors import ConfigurationError


def test_a_model_is_named_by_the_class_of_its_module_and_has_no_layers():
    net = torch.nn.Linear(2, 1)
    model = g.TorchModel(net, loss="mse", epochs=3)
    assert model.module is net
    assert (model.name, model.epochs, model.loss) == ("Linear", 3, "mse")
    assert (model.layers, model.weights, model.metrics) == ([], [], [])
    assert g.TorchModel(net, loss="mse", name="line").name == "line"
    assert repr(model) == "Model.from_torch(Linear, loss='mse')"


def test_the_front_door_makes_it():
    model = descend.Model.from_torch(torch.nn.Linear(2, 1), loss="mse", metrics="accuracy", batch_norm_group_size=4)
    assert isinstance(model, g.TorchModel)
    assert model.measures == ("accuracy",)
    assert model.batch_norm_group_size == 4


@pytest.mark.parametrize(
    ("metrics", "measures"),
    [((), ()), ("mse", ("mse",)), (["mse", "mae"], ("mse", "mae")), ({"own": max}, {"own": max})],
    ids=str,
)
def test_metrics_are_names_or_a_mapping(metrics, measures):
    assert g.TorchModel(torch.nn.Identity(), "mse", metrics).measures == measures


@pytest.mark.parametrize(("targets", "kept"), [(None, None), (2, 2), (["a", "b"], ("a", "b"))])
def test_targets_are_a_number_or_names(targets, kept):
    assert g.TorchModel(torch.nn.Identity(), "mse", targets=targets).targets == kept


@pytest.mark.parametrize(
    ("module", "what"),
    [(torch.nn.Linear, "the class Linear"), (3, "a int"), (max, "a builtin_function_or_method"), (None, "a NoneType")],
)
def test_what_is_no_module_is_refused(module, what):
    with pytest.raises(ConfigurationError) as caught:
        g.TorchModel(module, "mse")
    assert str(caught.value) == f"Model.from_torch was given {what}; expected a torch.nn.Module, made and ready"


def test_it_has_no_text():
    with pytest.raises(
        ConfigurationError, match=r"model 'Linear' is a torch module \(torch\.nn\..*\.Linear\), and a pr"
    ):
        g.to_text(g.TorchModel(torch.nn.Linear(2, 1), "mse"))


def test_it_equals_itself_alone():
    net = torch.nn.Linear(2, 1)
    model = g.TorchModel(net, "mse")
    assert model == model  # its own __eq__
    assert model != g.TorchModel(net, "mse")


def test_settings_of_any_model_are_checked():
    with pytest.raises(ConfigurationError, match=r"epochs is 'many'; expected an integer"):
        g.TorchModel(torch.nn.Identity(), "mse", epochs="many")
