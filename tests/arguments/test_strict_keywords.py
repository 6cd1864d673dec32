import contextlib
import dataclasses
import functools
import inspect
from enum import Enum

import pytest
import torch

import descend
from descend import errors
from descend.arguments.strict_keywords import strict_keywords
from descend.data.transforms import Scale
from descend.errors import ConfigurationError


@pytest.mark.parametrize(
    ("make", "wrong", "right"),
    [
        (descend.Trainer, {"mini_batch_sise": 64}, "mini_batch_size"),
        (descend.Print, {"intervall": 2}, "interval"),
        (descend.Checkpoint, {"every_step": 2}, "every_steps"),
        (descend.BatchedIterativeOptimizer, {"epoch_counts": 2}, "epoch_count"),
        (descend.Reader, {"data_file_dir": "x"}, "data_filedir"),
        (descend.DataReader, {"readers": []}, "reader"),
        (Scale, {"scala": 2}, "scale"),
        (descend.SGD, {"learn_rat": 2}, "learn_rate"),
        (descend.Convolution, {"kernel_sise": 2}, "kernel_size"),
        (descend.Weights, {"initialiser": None}, "initializer"),
        (descend.Model, {"callback": []}, "callbacks"),
        (descend.Epochs, {"epoch": 3}, "epochs"),
        (descend.Reached, {"names": "train/objective"}, "name"),
        (descend.WeightedSampler, {"weigths": [1.0]}, "weights"),
        (descend.predict, {"batchsize": 3}, "batch_size"),
        (descend.infer, {"layer": ["0"]}, "layers"),
        (descend.evaluate, {"metric": ["accuracy"]}, "metrics"),
        (descend.load_weights, {"wich": "best"}, "which"),
        (descend.find_learning_rate, {"lowst": 1e-4}, "lowest"),
        (descend.find_learning_rate, {"micro_batch_sise": 4}, "micro_batch_size"),  # passed on to fit
        (descend.data.split, {"strattify": "kind"}, "stratify"),
        (descend.data.normalize, {"field": ["x"]}, "fields"),
        (descend.optim.groups.no_decay, {"weight_decays": 0.1}, "weight_decay"),
        (descend.optim.groups.layerwise, {"facter": 0.9}, "factor"),
    ],
)
def test_a_misspelt_keyword_is_answered_with_the_nearest(make, wrong, right):
    with pytest.raises(ConfigurationError, match=f"did you mean '{right}'"):
        make(**wrong)


@pytest.mark.parametrize(
    ("make", "wrong", "said"),
    [
        (descend.predict, {"device": "cuda"}, r"module\.to\(device\)"),
        (descend.Reached, {"mode": "min"}, "at_most=True"),
    ],
)
def test_words_of_other_libraries_are_answered_with_ours(make, wrong, said):
    with pytest.raises(ConfigurationError, match=said):
        make(**wrong)


def test_a_callback_of_one_s_own_takes_what_it_takes():
    class Loud(descend.Callback):
        def __init__(self, words, **more):
            self.words, self.more = words, more

    assert Loud("x", any_thing=1).more == {"any_thing": 1}


KINDS = [kind for name in descend.callbacks.__all__ if not issubclass(kind := getattr(descend, name), Enum)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_callbacks_show_their_arguments(kind: type):
    parameters = inspect.signature(kind).parameters
    for parameter in parameters.values():
        assert parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        assert parameter.annotation is not parameter.empty
        assert parameter.default is not parameter.empty
    if dataclasses.is_dataclass(kind):
        assert {field.name for field in dataclasses.fields(kind) if field.init} <= set(parameters)


def test_descriptions_show_their_arguments():
    scale = inspect.signature(Scale).parameters
    assert list(scale) == ["scale", "where"]
    assert scale["scale"].default == 0.0
    rate = inspect.signature(descend.CosineDecayLearningRate).parameters
    assert list(rate)[:3] == ["weights", "lr_max", "lr_min"]
    assert rate["weights"].default == ""
    assert rate["lr_max"].annotation == "float"


ROOMS = [descend, descend.callbacks, descend.modules, descend.zoo, descend.models, descend.optim.schedules]
PUBLIC = {
    f"{room.__name__}.{name}": found
    for room in ROOMS
    for name in dir(room)
    if not name.startswith("_")
    if isinstance(found := getattr(room, name), type)
    and found.__module__.startswith("descend")
    and not issubclass(found, Enum)
}
ABSTRACT = {"descend.optim.schedules.Schedule", "descend.optim.schedules.StrictKeywords"}


@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in ABSTRACT])
def test_classes_show_their_arguments(name):
    """Parents of a layer are the only arguments without a name of their own."""
    for parameter in inspect.signature(PUBLIC[name]).parameters.values():
        assert parameter.kind is not parameter.VAR_KEYWORD
        layers = issubclass(PUBLIC[name], descend.Layer)
        assert parameter.kind is not parameter.VAR_POSITIONAL or (layers and parameter.name == "args")
        assert parameter.annotation is not parameter.empty


@pytest.mark.parametrize("name", [name for name, kind in PUBLIC.items() if issubclass(kind, descend.Layer)])
def test_layers_take_what_they_show(name):
    """Each keyword with its default makes the layer that none makes."""
    kind = PUBLIC[name]
    shown = inspect.signature(kind).parameters.values()
    named = {one.name: one.default for one in shown if one.kind is one.KEYWORD_ONLY and one.default is not one.empty}
    assert {"name", "parents", "where"} <= set(named)
    with_all, with_none = kind(**{**named, "name": "a"}), kind(name="a")
    assert [with_all.setting(field) for field in kind.own_fields()] == [
        with_none.setting(field) for field in kind.own_fields()
    ]


def test_a_layer_is_called_as_its_call_says():
    assert list(inspect.signature(descend.Input(data_field="x")).parameters) == ["parent"]


def test_options_that_are_passed_on_are_shown_and_those_that_are_set_are_not():
    shown = inspect.signature(descend.zoo.WideResNet50_2).parameters
    assert "output_size" in shown
    assert "small_images" in shown
    assert not {"width", "bottleneck"} & set(shown)


WRONG = [object(), "x", None, [5], 10**400, torch.ones(2)]


@pytest.mark.parametrize("name", [name for name in PUBLIC if name.startswith("descend.") and name.count(".") == 1])
def test_an_option_of_a_wrong_kind_is_an_error_of_ours(name):
    kind = PUBLIC[name]
    if issubclass(kind, BaseException):
        return
    parameters = [p for p in inspect.signature(kind).parameters.values() if p.kind is not p.VAR_POSITIONAL]
    required = {p.name: None for p in parameters if p.default is p.empty}
    for parameter in parameters:
        for value in WRONG:
            with contextlib.suppress(errors.DescendError):
                kind(**{**required, parameter.name: value})


def test_an_option_of_a_wrong_kind_is_named_with_what_it_must_be():
    with pytest.raises(
        errors.WrongType, match=r"ParameterServer: delays must be Sequence\[int\], got 2 \('int' object"
    ):
        descend.ParameterServer(2)
    with pytest.raises(errors.WrongType, match="KFAC: damping_warmup_steps must be int, got 'x'"):
        descend.KFAC(damping_warmup_steps="x")
    with pytest.raises(errors.WrongType, match=r"learn_rate is tensor\(.*; expected a number"):
        descend.SGD(learn_rate=torch.ones(2))

    class Mine(descend.Callback):
        def __init__(self, size):
            self.size = 1 / size

    with pytest.raises(ZeroDivisionError):  # of a class that is not ours
        Mine(0)


def test_all_options_are_listed_where_they_are_few_or_nothing_better_is_known():

    def many(**given):
        """Takes what its signature says."""

    def few(option=None):
        """Takes one option."""

    names = [f"option_{number}" for number in range(20)]
    many.__signature__ = inspect.Signature([inspect.Parameter(one, inspect.Parameter.KEYWORD_ONLY) for one in names])
    many, few = strict_keywords(epochs="say stop=")(many), strict_keywords()(few)
    for function, word, expected in (
        (many, "option0", r"many has no option 'option0'; did you mean 'option_0'\?$"),
        (many, "epochs", "many has no option 'epochs'; say stop=$"),
        (many, "zzz", "many has no option 'zzz'; its options are option_0, .*option_19$"),
        (few, "optoin", r"few has no option 'optoin'; did you mean 'option'\? its options are option$"),
    ):
        with pytest.raises(errors.ConfigurationError, match=expected):
            function(**{word: 1})


def test_arguments_that_are_missing_are_named_with_a_value_for_each():
    @strict_keywords(stop="descend.Epochs(10)")
    def train(module, data, *, stop, lr=1.0, size):
        return module, data, stop, size

    assert train(1, data=2, stop=3, size=4) == (1, 2, 3, 4)
    with pytest.raises(TypeError) as caught:
        train(1)
    said = ["train needs data=", "train needs stop=, such as stop=descend.Epochs(10)", "train needs size="]
    assert str(caught.value).splitlines() == said
    assert isinstance(caught.value, ConfigurationError)


@pytest.mark.parametrize("name", ["loss", "optimizer", "batch_size", "stop"])
def test_what_fit_suggests_for_a_missing_argument_works(name):
    given = {"loss": "mse", "optimizer": functools.partial(torch.optim.SGD, lr=0.1), "batch_size": 5}
    given |= {"stop": descend.Epochs(1)}
    data = torch.randn(10, 3), torch.randint(0, 2, (10,))
    module = torch.nn.Linear(3, 2)
    with pytest.raises(ConfigurationError, match=f"such as {name}=") as caught:
        descend.fit(module, data=data, **{key: value for key, value in given.items() if key != name})
    suggested = eval(str(caught.value).partition(f"such as {name}=")[2])
    descend.fit(module, data=data, verbose=False, **{**given, "loss": "cross_entropy", name: suggested})
