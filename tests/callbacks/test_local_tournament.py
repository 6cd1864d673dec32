"""LBANN's callback LTFB: its settings; `tests/lbann/driver/test_tournament.py` plays it."""

import pytest

from descend.callbacks import LocalTournament
from descend.errors import ConfigurationError
from descend.train import ExchangeStrategy
from descend.train.population.runner import beats


@pytest.mark.parametrize(
    ("settings", "way"),
    [
        ({}, ExchangeStrategy("sendrecv_weights")),
        (
            {"weights": "a b", "exchange_hyperparameters": True},
            ExchangeStrategy("sendrecv_weights", ("a", "b"), exchange_hyperparameters=True),
        ),
        ({"communication_algorithm": "checkpoint_binary"}, ExchangeStrategy()),
        (
            {"communication_algorithm": "checkpoint_file", "checkpoint_basedir": "d"},
            ExchangeStrategy("checkpoint_file", checkpoint_dir="d"),
        ),
    ],
)
def test_models_are_sent_as_the_settings_say(settings, way):
    assert LocalTournament(metric="m", **settings).strategy().exchange_strategy == way


@pytest.mark.parametrize("lower", [True, False])
def test_of_equal_scores_the_partner_s_wins(lower):
    strategy = LocalTournament(metric="m", low_score_wins=lower).strategy()
    assert beats({"m": 1.0}, {"m": 1.0}, strategy.metrics, strategy.takes_equal)
    assert beats({"m": 1.0}, {"m": 2.0}, strategy.metrics, strategy.takes_equal) is lower
    assert not beats({"m": float("nan")}, {"m": 2.0}, strategy.metrics, strategy.takes_equal)


def test_what_is_wrong_is_refused():
    with pytest.raises(ConfigurationError, match="needs metric="):
        LocalTournament()
    with pytest.raises(ConfigurationError, match="'checkpoint_binary'"):
        LocalTournament(metric="m", communication_algorithm="checkpoint_binry")
