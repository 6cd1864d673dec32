"""Builds a run from its parts: defaults of each part, and combinations that are refused."""

import pytest
import torch
from thread_ranks import Group, ThreadRank
from toys import Regression, data

import descend
from descend.callbacks import ProgressBar
from descend.errors import ConfigurationError
from descend.experiment.build import build_run, strategy_of
from descend.experiment.ranks import NoFiles
from descend.runtime import Communicator
from descend.train import BatchedIterativeOptimizer, Callback, Mode
from descend.train.run import RunConfig
from descend.train.strategies.base import Strategy, StrategyDescription
from descend.train.strategies.data_parallel import DataParallel
from descend.train.transforms.usual import usual_transforms


def built(world=None, **settings):
    task = Regression()
    return build_run(
        RunConfig("model0", 0, BatchedIterativeOptimizer()),
        task=task,
        optimizer=torch.optim.SGD(task.module.parameters(), lr=0.1),
        data={Mode.TRAIN: data()},
        world=world or Communicator(),
        **settings,
    )


def test_one_rank_has_the_strategy_of_a_single_device_and_several_are_data_parallel():
    assert type(built().strategy) is Strategy
    assert type(built(ThreadRank.of(Group(2), 1)).strategy) is DataParallel


def test_without_a_store_no_files_are_kept():
    assert type(built().store) is NoFiles
    store = NoFiles()
    assert built(store=store).store is store


@pytest.mark.parametrize(("given", "samples", "adaptive"), [(None, None, True), ("auto", None, True), (3, 3, False)])
def test_a_micro_batch_size_that_is_given_is_not_adapted(given, samples, adaptive):
    size = built(micro_batch_size=given).micro_batch_size
    assert (size.samples, size.adaptive) == (samples, adaptive)


@pytest.mark.parametrize(("is_terminal", "own", "bars"), [(True, False, 1), (True, True, 1), (False, False, 0)])
def test_a_terminal_gets_one_progress_bar(monkeypatch, is_terminal, own, bars):
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    first = Callback()
    watching = built(callbacks=[first, *([ProgressBar()] if own else [])]).callbacks.all
    assert watching[0] is first
    assert sum(isinstance(callback, ProgressBar) for callback in watching) == bars


class Described(StrategyDescription):
    """A strategy of its own on the ranks of `share`, with problems to report."""

    def __init__(self, share, problems=()):
        self.share, self.found, self.calls = share, list(problems), []

    def communicator(self, world):
        return self.share

    def create(self, world):
        return Mine()

    def problems(self, run, world, trainers):
        self.calls.append(("problems", trainers))
        return self.found

    def prepare(self, run, world):
        self.calls.append(("prepare", type(run.strategy).__name__))


class Mine(Strategy):
    pass


def test_a_description_chooses_ranks_and_strategy_and_is_prepared_last():
    share = Communicator()
    described = Described(share)
    run = built(ThreadRank.of(Group(2), 0), strategy=described, trainers=3)
    assert type(run.strategy) is Mine
    assert run.communicator is share
    assert described.calls == [("problems", 3), ("prepare", "Mine")]


def test_problems_of_a_description_are_all_reported_before_it_is_prepared():
    described = Described(Communicator(), ["first", "second"])
    with pytest.raises(ConfigurationError) as caught:
        built(strategy=described)
    assert list(caught.value.problems) == ["first", "second"]
    assert described.calls == [("problems", 1)]


def test_transforms_come_in_their_order_and_all_wrong_settings_are_reported():
    names = [type(one).__name__ for one in usual_transforms(clip_norm=1.0)._transforms]
    assert names == ["Penalty", "RequireGradient", "AfterBackward", "CheckFinite", "Clip"]
    with pytest.raises(ConfigurationError) as caught:
        usual_transforms("go on", clip_global_norm=-1.0)
    text = "\n".join(caught.value.problems)
    assert "on_nonfinite" in text
    assert "clip_global_norm" in text


def test_one_strategy_is_chosen_and_auto_is_none():
    vote = descend.MajorityVote()
    assert strategy_of({"strategy": "auto", "gradient_compression": vote}) is vote
    assert strategy_of({"strategy": None}) is None
    with pytest.raises(ConfigurationError, match="leave out the others"):
        strategy_of({"strategy": vote, "asynchronous": descend.ParameterServer()})
    with pytest.raises(ConfigurationError, match="strategy must be a strategy such as"):
        strategy_of({"strategy": 3})
