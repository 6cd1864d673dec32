"""The base of modules: names, calls, weights that calls share, and activations."""

import pytest

import descend
from descend.errors import ConfigurationError
from descend.zoo import modules
from descend.zoo.modules.module import Module, activated, fill_weights, fixed


class Twice(Module):
    """A module of two layers, for what the base does."""

    prefix = "twice"

    def forward(self, x):
        return descend.Relu(descend.Relu(x, name=self.label("inner")), name=self.label())


def test_a_module_is_called_by_its_class_and_counted_for_itself():
    first, named, second = Twice(), Twice("own"), Twice()
    assert [first.name, named.name, second.name] == ["twice1", "own", "twice2"]

    class Other(Twice):
        prefix = "other"

    assert Other().name == "other1"
    assert Twice().name == "twice3"
    Twice.global_count = 0


def test_modules_of_one_prefix_are_counted_together():
    """ConvolutionModule and Convolution2dModule in one model would else both have a layer conv1."""
    made = [modules.ConvolutionModule(2, 4, 3), modules.Convolution2dModule(4, 3), modules.Convolution3dModule(4, 3)]
    assert [one.name for one in made] == ["conv1", "conv2", "conv3"]
    attention = [modules.MultiheadAttention(4, 2), modules.MultiheadAttentionAllsubGraph(4, 2, 1)]
    assert [one.name for one in attention] == ["multiheadattention1", "multiheadattention2"]
    assert modules.ConvolutionModule(2, 4, 3).name == "conv4"


def test_layers_of_later_calls_have_the_number_of_the_call():
    module = Twice("m")
    x = module(module(module(descend.Input(name="x"))))
    assert names(x) == ["x", "m_inner", "m", "m_instance2_inner", "m_instance2", "m_instance3_inner", "m_instance3"]
    assert module.instance == 3


def test_a_module_without_forward_says_so():
    with pytest.raises(NotImplementedError, match=r"Module defines no forward\(\)"):
        Module("m")()


def test_missing_weights_are_made_by_their_part_and_the_first_starts_by_the_fan_in():
    module, own = Twice("m"), descend.Weights(name="own")
    made = fill_weights(module, [], ["matrix", "bias"])
    assert [(w.name, w.initializer) for w in made] == [
        ("m_matrix", descend.HeNormalInitializer()),
        ("m_bias", descend.ConstantInitializer(0.0)),
    ]
    kept, bias = fill_weights(module, own, ["matrix", "bias"])
    assert kept is own
    assert (bias.name, bias.initializer) == ("m_bias", descend.ConstantInitializer(0.0))


def test_starts_hold_for_the_part_at_their_place():
    """The start of a weight that was given is not passed on to the next one."""
    starts = [descend.ConstantInitializer(1.0), descend.ConstantInitializer(2.0)]
    made = fill_weights(Twice("m"), descend.Weights(), ["a", "b"], starts)
    assert made[1].initializer == descend.ConstantInitializer(2.0)


def test_fixed_numbers_are_listed_in_float64_and_never_trained():
    weights = fixed([0.1, 2], "table")
    assert weights.name == "table"
    assert weights.initializer == descend.ValueInitializer(values_d=[0.1, 2])
    assert weights.optimizer == descend.NoOptimizer()


@pytest.mark.parametrize("activation", [descend.Relu, descend.Relu(name="other"), modules.Silu])
def test_an_activation_is_a_kind_a_layer_of_it_or_a_function(activation):
    x = descend.Input(name="x")
    y = activated(Twice("m"), x, activation)
    assert y.name == "m_activation"
    assert x in descend.graph.traverse_layer_graph(y)
    assert y is not activation
    assert activated(Twice("m"), x, None) is x


def names(layer):
    return [one.name for one in descend.graph.traverse_layer_graph(layer)]


def test_modules_and_their_calls_are_counted():
    x = descend.Input(name="x")
    first, second = modules.FullyConnectedModule(3), modules.FullyConnectedModule(4, activation=descend.Relu)
    named = modules.ConvolutionModule(2, 4, 3, name="stem")
    again = first(first(x))
    assert names(second(again)) == ["x", "fc1", "fc1_instance2", "fc2", "fc2_activation"]
    assert [w.name for w in first.weights] == ["fc1_matrix", "fc1_bias"]
    assert named(x).name == "stem"
    assert [w.name for w in named.weights] == ["stem_kernel", "stem_bias"]
    assert modules.Convolution2dModule(4, 3)(x).name == "conv1"
    assert again.weights == again.parents[0].weights == first.weights


def test_too_many_weights_are_refused():
    with pytest.raises(ConfigurationError, match="FullyConnectedModule 'fc1' is given 2 weights and takes 1: matrix"):
        modules.FullyConnectedModule(3, bias=False, weights=[descend.Weights(), descend.Weights()])
