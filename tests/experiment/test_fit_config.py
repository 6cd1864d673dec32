"""The arguments of `fit` in their groups: where each goes, what is refused together, and what a model brings."""

import inspect
from dataclasses import fields

import numpy as np
import pytest
from torch import nn

import descend
from descend.errors import ConfigurationError
from descend.experiment.fit import FitDistribution, documented, fit, fit_config
from descend.train.strategies.majority_vote import MajorityVote
from descend.train.strategies.parameter_server import ParameterServer


def arguments(**changed):
    """What `fit` hands over where a user gives only what has no default."""
    given = {name: p.default for name, p in inspect.signature(fit).parameters.items()}
    own = {"module": nn.Linear(2, 1), "loss": "mse", "data": "the data", "optimizer": "an optimizer", "batch_size": 4}
    return {**given, **own, "stop": descend.Epochs(1), **changed}


def test_every_argument_goes_into_one_group():
    given = arguments(valid="the validation data", micro_batch_size=2, clip_norm=1.5, shard_optimizer=True, skip_bad=3)
    found = fit_config(**given)
    groups = (found.data, found.batching, found.numerics, found.distribution, found.options)
    for name, value in given.items():
        holders = [group for group in (found, *groups) if name in {entry.name for entry in fields(group)}]
        if name == "data":
            holders.remove(found)
        assert [getattr(one, name) for one in holders] == [value], name


@pytest.mark.parametrize(("given", "kept"), [({}, False), ({"run_dir": "a"}, True), ({"resume": True}, True)])
def test_files_are_kept_where_there_is_a_directory_or_a_run_to_continue(given, kept):
    assert fit_config(**arguments(**given)).options.keep_files is kept


@pytest.mark.parametrize("name", ["seed", "batch_size", "micro_batch_size", "batch_norm_group_size"])
def test_whole_numbers_of_numpy_are_integers(name):
    found = fit_config(**arguments(**{name: np.int64(3)}))
    value = found.seed if name == "seed" else getattr(found.batching, name)
    assert (value, type(value)) == (3, int)


def test_all_wrong_arguments_are_reported_at_once():
    wrong = {"module": nn.Linear, "stop": 3, "callbacks": "x", "shuffle": 1, "seed": -1, "micro_batch_size": 0}
    with pytest.raises(ConfigurationError) as caught:
        fit_config(**arguments(**wrong))
    text = "\n".join(caught.value.problems)
    assert all(name in text for name in wrong)
    assert "a class must be called first" in text
    assert len(caught.value.problems) == len(wrong)


def test_what_is_no_module_is_not_called_a_class():
    with pytest.raises(ConfigurationError, match=r"must be a torch.nn.Module, got 'resnet18'$"):
        fit_config(**arguments(module="resnet18"))


def test_a_model_brings_what_is_not_given_here():
    class Watch(descend.Callback):
        pass

    own, given = Watch(), Watch()
    module = nn.Linear(2, 1)
    model = descend.Model.from_torch(module, loss="l1", metrics=["mse"], epochs=3, callbacks=[own], targets=["y"])
    found = fit_config(**arguments(module=model, loss=None, callbacks=[given])).with_model()
    assert (found.module, found.loss, found.data.targets) == (module, "l1", ("y",))
    assert list(found.callbacks) == [own, given]
    assert list(found.metrics) == ["mse"]
    found = fit_config(**arguments(module=model, loss="mse", targets=2, metrics=["accuracy"])).with_model()
    assert (found.loss, found.data.targets, list(found.metrics)) == ("mse", 2, ["accuracy"])


def test_a_plain_module_stays_as_it_is():
    found = fit_config(**arguments())
    assert found.with_model() is found


def test_one_strategy_is_chosen_however_it_was_asked_for():
    assert FitDistribution().chosen() is None
    assert FitDistribution(strategy="auto").chosen() is None
    assert isinstance(FitDistribution(gradient_compression="sign").chosen(), MajorityVote)
    server = ParameterServer()
    assert isinstance(FitDistribution(asynchronous=server).chosen(), ParameterServer)
    with pytest.raises(ConfigurationError, match="each is a strategy, and a run has one; leave out the others"):
        FitDistribution(strategy=descend.LocalSGD(), asynchronous=server).chosen()


@pytest.mark.parametrize(
    "other", [{"gradient_compression": "sign"}, {"asynchronous": ParameterServer()}], ids=["sign", "asynchronous"]
)
def test_accumulation_is_not_combined_with_another_strategy(other):
    with pytest.raises(ConfigurationError, match="each is a strategy, and a run has one; leave out the others"):
        FitDistribution(strategy=descend.GradientAccumulation(2), **other).chosen()


@pytest.mark.parametrize("inner", [descend.LocalSGD(), MajorityVote(), ParameterServer()])
def test_accumulation_around_another_strategy_is_refused(inner):
    kind = type(inner).__name__
    with pytest.raises(ConfigurationError, match=f"GradientAccumulation: every must be an integer >= 1, got {kind}"):
        descend.GradientAccumulation(inner)


def test_the_docstring_of_fit_describes_each_argument_once():
    lines = [line.strip() for line in (fit.__doc__ or "").splitlines()]
    for name in inspect.signature(fit).parameters:
        assert sum(line.startswith(f"{name}: ") for line in lines) == 1, name
    assert not any(line.startswith(("batching:", "numerics:", "distribution:", "options:")) for line in lines)


def test_arguments_are_inserted_before_what_is_returned():
    def door():
        """Do it.

        Returns:
            Nothing.
        """

    text = documented(door).__doc__
    assert text.index("Do it.") < text.index("Args:") < text.index("        module: ") < text.index("Returns:")
