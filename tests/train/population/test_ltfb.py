"""Descriptions of tournaments: their text, LBANN's defaults, and what they refuse."""

import pytest

import descend
from descend.errors import ConfigurationError
from descend.experiment.text import classes
from descend.graph import text
from descend.train import MetricStrategy

MUTATIONS = [
    descend.MutationStrategy(),
    descend.MutationStrategy("replace_activation"),
    descend.MutationStrategy("replace_convolution"),
    descend.MutationStrategy("hybrid_mutation"),
    descend.MutationStrategy("perturb_hyperparameters", options="lr momentum", factor=2.0, lowest=0.001, highest=1.0),
]
STRATEGIES = [
    descend.RandomPairwiseExchange({"accuracy": MetricStrategy.HIGHER_IS_BETTER, "objective": 0}),
    descend.RandomPairwiseExchange(
        {"accuracy": 1},
        descend.ExchangeStrategy("sendrecv_weights", ["conv1", "conv2"], exchange_hyperparameters=True),
        MUTATIONS[1],
    ),
    descend.RandomPairwiseExchange(
        {"loss": 0}, descend.ExchangeStrategy("checkpoint_file", checkpoint_dir="/shared/x"), MUTATIONS[2]
    ),
    descend.TruncationSelectionExchange({"loss": 0}, 2, MUTATIONS[2]),
    descend.RegularizedEvolution("accuracy", 1, MUTATIONS[1], 3),
]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_tournament_comes_back_from_its_text(strategy):
    local = descend.BatchedIterativeOptimizer("local", num_iterations=10)
    algorithm = descend.LTFB("tournament", local, strategy, 5)
    trainer = descend.Trainer(32, training_algo=algorithm)
    assert text.to_value(text.parse(text.render(trainer), message="Trainer"), classes()) == trainer


def test_the_text_of_lbann_is_read():
    written = """
        mini_batch_size: 8
        training_algorithm {
          name: "ltfb"
          parameters {
            [type.googleapis.com/lbann_data.LTFB] {
              local_training_algorithm {
                name: "local sgd"
                parameters { [type.googleapis.com/lbann_data.SGD] { stopping_criteria { max_batches: 100 } } }
              }
              meta_learning_strategy {
                [type.googleapis.com/lbann_data.RandomPairwiseExchange] {
                  metric_name_strategy_map { key: "accuracy" value: HIGHER_IS_BETTER }
                  exchange_strategy { checkpoint_binary {} }
                }
              }
              stopping_criteria { max_tournaments: 7 }
            }
          }
        }"""
    trainer = text.to_value(text.parse(written, message="Trainer"), classes())
    algorithm = trainer.training_algo
    assert (algorithm.name, algorithm.metalearning_steps) == ("ltfb", 7)
    assert algorithm.local_algo == descend.BatchedIterativeOptimizer("local sgd", num_iterations=100)
    assert algorithm.metalearning == descend.RandomPairwiseExchange({"accuracy": 1})


def test_what_lbanns_scripts_write():
    strategy = descend.RandomPairwiseExchange(
        metric_strategies={"random": descend.RandomPairwiseExchange.MetricStrategy.LOWER_IS_BETTER}
    )
    assert strategy.exchange_strategy.strategy == "checkpoint_binary"
    assert strategy.mutation_strategy.strategy == "null_mutation"
    assert descend.LTFB("ltfb", descend.BatchedIterativeOptimizer("sgd", epoch_count=2), strategy, 4).epochs(0) == 10


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: descend.LTFB(), "metalearning must be .* got None"),
        (
            lambda: descend.LTFB(metalearning=STRATEGIES[0], metalearning_steps=-1),
            "metalearning_steps must be an integer >= 0, got -1",
        ),
        (lambda: descend.RandomPairwiseExchange(), "no metric is given"),
        (lambda: descend.RandomPairwiseExchange({"a": 2}), r"metric 'a' must be .* got 2"),
        (lambda: descend.TruncationSelectionExchange({"a": 0, "b": 1}, 1), "must name one metric, got 2"),
        (lambda: descend.TruncationSelectionExchange({"a": 0}), "truncation_k must be an integer >= 1, got 0"),
        (lambda: descend.RegularizedEvolution("a", 0), "sample_size must be an integer >= 1, got 0"),
        (lambda: descend.RegularizedEvolution(sample_size=2), "no metric is given"),
        (lambda: descend.ExchangeStrategy("sendrecv"), "did you mean 'sendrecv_weights'"),
        (lambda: descend.ExchangeStrategy("checkpoint_file"), "checkpoint_dir must be set"),
        (lambda: descend.ExchangeStrategy(checkpoint_dir="x"), "and only then"),
        (lambda: descend.MutationStrategy("null"), "must be one of .* got 'null'"),
        (
            lambda: descend.RandomPairwiseExchange(
                {"a": 0},
                descend.ExchangeStrategy(weights_names=["w"]),
                descend.MutationStrategy("replace_convolution"),
            ),
            "changes the shapes of weights",
        ),
        (lambda: descend.MutationStrategy("perturb_hyperparameters", factor=1.0), "factor=1.0"),
    ],
)
def test_what_makes_no_sense_is_refused(make, words):
    with pytest.raises(ConfigurationError, match=words):
        make()
