"""What is public is written down: every listed name is there, and every room's list is true."""

import importlib
import pkgutil

import pytest

import descend
from tools.public_names import differences

ROOMS = [
    "errors",
    "graph",
    "optim",
    "data",
    "lower",
    "runtime",
    "train",
    "callbacks",
    "experiment",
    "zoo",
    "study",
    "onnx",
]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_lists_what_it_offers(room):
    module = importlib.import_module(f"descend.{room}")
    assert len(set(module.__all__)) == len(module.__all__)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert module.__doc__


def test_every_public_name_can_be_fetched():
    assert [name for name in dir(descend) if not hasattr(descend, name)] == []


def test_public_names_and_their_arguments_change_on_purpose():
    """`python -m tools.public_names --write` writes the file again, and the changelog says what users meet."""
    assert differences() == []


def test_names_that_the_documents_use_are_public():
    names = (
        "Input Convolution Relu Pooling FullyConnected Softmax CrossEntropy CategoricalAccuracy Weights Model Trainer "
    )
    names += "BatchedIterativeOptimizer SGD Adam run save_prototext Metric Print Timer ProgressBar Checkpoint Callback "
    names += "Steps Epochs Seconds Reached main"
    assert [name for name in names.split() if name not in dir(descend)] == []


def test_a_misspelt_name_is_answered_with_the_nearest():
    with pytest.raises(AttributeError, match="did you mean 'Convolution'"):
        descend.Convolutoin  # noqa: B018
    with pytest.raises(AttributeError, match="did you mean 'StepLearningRate'"):
        _ = descend.CallbackStepLearningRate
    with pytest.raises(AttributeError, match="did you mean 'AdaGrad'"):  # torch's spelling
        _ = descend.optim.Adagrad


def test_names_of_what_is_not_here_get_the_reason_and_no_neighbour_by_its_letters():
    with pytest.raises(AttributeError, match="no attribute 'LBFGS': it needs several evaluations of the loss"):
        _ = descend.optim.LBFGS
    with pytest.raises(AttributeError, match="no attribute 'RAdam': its rectification is not among the rules"):
        _ = descend.optim.RAdam
    with pytest.raises(AttributeError, match="did you mean 'load_weights'"):
        _ = descend.load_checkpoint


def test_an_optimizer_for_torch_loops_is_found_where_descriptions_are():
    with pytest.raises(
        AttributeError, match=r"it is descend\.optim\.AdamW, and for fit .*partial\(descend\.optim\.AdamW, lr="
    ):
        _ = descend.AdamW


def test_every_module_has_a_docstring():
    for info in pkgutil.walk_packages(descend.__path__, "descend."):
        if info.name != "descend.__main__":
            assert importlib.import_module(info.name).__doc__, info.name
