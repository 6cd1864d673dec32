"""What does not go with strategies whose ranks keep their own gradients, in the words of the user's argument."""

from types import SimpleNamespace

import pytest
import torch
from toys import Regression, data, run_of

import descend
from descend.runtime import Communicator
from descend.train.strategies import own_gradients
from descend.train.strategies.majority_vote import MajorityVote
from descend.train.strategies.own_gradients import OwnGradients
from descend.train.strategies.zero import ZeroRedundancyOptimizer

KFAC_LTFB = descend.LTFB(
    local_algo=descend.KFAC(first_order_optimizer=descend.BatchedIterativeOptimizer(epoch_count=1)),
    metalearning=descend.RandomPairwiseExchange(
        {"objective": descend.RandomPairwiseExchange.MetricStrategy.LOWER_IS_BETTER}
    ),
)


def made(algorithm=None, optimizer=None, callbacks=()):
    """What descriptions look at in a run."""
    parameters = {"w": torch.nn.Parameter(torch.ones(2))}
    return SimpleNamespace(
        optimizer=optimizer or descend.optim.SignSGD(parameters.values(), lr=0.1),
        config=SimpleNamespace(algorithm=algorithm or descend.BatchedIterativeOptimizer()),
        parameters=parameters,
        callbacks=SimpleNamespace(all=callbacks),
    )


def sharded_optimizer():
    found = object.__new__(ZeroRedundancyOptimizer)
    found.inner = descend.optim.SignSGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    return found


@pytest.mark.parametrize("strategy", [descend.LocalSGD(steps=3), MajorityVote(0.5)])
def test_a_usual_run_is_refused_nothing(strategy):
    run = made(optimizer=descend.optim.SignSGD([torch.nn.Parameter(torch.ones(2))], lr=0.1))
    assert strategy.problems(run, Communicator(), 1) == []


@pytest.mark.parametrize("strategy", [descend.LocalSGD(steps=3), MajorityVote(0.5)])
@pytest.mark.parametrize("algorithm", [descend.KFAC(), KFAC_LTFB], ids=["K-FAC", "K-FAC in a tournament"])
def test_k_fac_is_refused_wherever_it_stands(strategy, algorithm):
    (problem,) = strategy.problems(made(algorithm), Communicator(), 1)
    assert problem.startswith(f"strategy={strategy!r} does not go with K-FAC")


def test_a_sharded_optimizer_is_refused_with_the_reason_of_each():
    run = made(optimizer=sharded_optimizer())
    (local,) = descend.LocalSGD().problems(run, Communicator(), 1)
    assert "does not go with shard_optimizer: each rank makes updates of its own" in local
    assert any(
        "shard_optimizer: SignSGD has no state" in line for line in MajorityVote().problems(run, Communicator(), 1)
    )


def test_sharded_parameters_are_refused(monkeypatch):
    monkeypatch.setattr(own_gradients, "is_sharded", lambda p: True)
    (problem,) = descend.LocalSGD().problems(made(), Communicator(), 1)
    assert "does not go with sharded parameters" in problem


def test_averages_of_weights_that_differ_between_ranks_are_refused():
    """A checkpoint keeps what rank zero's callbacks remember, which would be the average of its weights alone."""
    run = made(callbacks=(descend.EMA(),))
    (problem,) = descend.LocalSGD().problems(run, Communicator(0, 2), 1)
    assert "does not go with EMA on several ranks" in problem
    assert not descend.LocalSGD().problems(run, Communicator(), 1)
    assert not MajorityVote().problems(made(callbacks=(descend.EMA(),)), Communicator(0, 2), 1)


def test_local_sgd_is_refused_before_the_run_begins():
    with pytest.raises(descend.errors.ConfigurationError, match=r"strategy=LocalSGD\(steps=2.*K-FAC"):
        descend.fit(
            torch.nn.Linear(2, 1),
            "mse",
            (torch.zeros(4, 2), torch.zeros(4, 1)),
            optimizer=torch.optim.SGD,
            batch_size=2,
            stop=descend.Epochs(1),
            algorithm=descend.KFAC(),
            strategy=descend.LocalSGD(steps=2),
        )


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (MajorityVote(0.5), "strategy=MajorityVote(momentum=0.5)"),
        (MajorityVote.of(MajorityVote(0.5)), "gradient_compression=MajorityVote(momentum=0.5)"),
        (MajorityVote.of("sign"), "gradient_compression='sign'"),
    ],
)
def test_messages_say_what_the_user_wrote(given, written):
    adam = made(optimizer=torch.optim.Adam([torch.nn.Parameter(torch.ones(2))]))
    (problem,) = given.problems(adam, Communicator(), 1)
    assert problem.startswith(f"{written} votes on signs")


def test_how_it_was_given_is_no_part_of_the_value():
    assert MajorityVote.of("sign") == MajorityVote()
    assert repr(MajorityVote.of("sign")) == repr(MajorityVote())
    assert MajorityVote().written == "strategy=MajorityVote(momentum=0.9)"
    assert MajorityVote.of(None) is None


def test_each_rank_divides_by_its_own_denominator():
    strategy = OwnGradients()
    assert strategy.divisor(3.0, 10.0) == 3.0
    assert (strategy.reduces_gradients, strategy.divides_early, strategy.overlaps) == (False, False, False)
    run = run_of(Regression(), data())
    strategy.setup(run)
    assert strategy.union(["b", "a", "b"]) == ["b", "a"]
