"""Arguments of scripts."""

import argparse

import pytest

import descend.lbann.contrib.args as args
from descend.errors import ConfigurationError
from descend.graph import text


def parsed(add, *words, **defaults):
    parser = argparse.ArgumentParser()
    add(parser, **defaults)
    return parser.parse_args(words)


def test_the_scheduler_gets_what_was_given_and_nothing_else():
    assert args.get_scheduler_kwargs(parsed(args.add_scheduler_arguments, default_job_name="mine")) == {
        "job_name": "mine"
    }
    words = ["--nodes=2", "--procs-per-node", "4", "--partition=debug", "--setup-only", "--time-limit=30"]
    assert args.get_scheduler_kwargs(parsed(args.add_scheduler_arguments, *words)) == {
        "nodes": 2,
        "procs_per_node": 4,
        "partition": "debug",
        "setup_only": True,
        "time_limit": 30,
        "job_name": "lbann",
    }


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("momentum", "sgd { learn_rate: 0.5 momentum: 0.9 }"),
        ("sgd", "sgd { learn_rate: 0.5 }"),
        ("adam", "adam { learn_rate: 0.5 beta1: 0.9 beta2: 0.99 eps: 1e-08 }"),
        ("adamw", "adam { learn_rate: 0.5 beta1: 0.9 beta2: 0.99 eps: 1e-08 adamw_weight_decay: 0.01 }"),
        ("AdaGrad", "adagrad { learn_rate: 0.5 eps: 1e-08 }"),
        ("rmsprop", "rmsprop { learn_rate: 0.5 decay_rate: 0.99 eps: 1e-08 }"),
    ],
)
def test_an_optimizer_is_made_of_its_name(name, message):
    given = parsed(args.add_optimizer_arguments, "--optimizer", name, "--optimizer-learning-rate", "0.5")
    assert " ".join(text.render(args.create_optimizer(given).export_proto()).split()) == message


def test_an_unknown_optimizer_is_answered_with_the_nearest():
    with pytest.raises(ConfigurationError, match="did you mean 'adam'"):
        args.create_optimizer(parsed(args.add_optimizer_arguments, "--optimizer=adm"))


def test_defaults_are_those_of_lbann():
    found = parsed(args.add_optimizer_arguments)
    assert (found.optimizer, found.optimizer_learning_rate) == ("momentum", 0.01)
    found = parsed(args.add_training_arguments)
    assert (found.mini_batch_size, found.num_epochs) == (256, 20)


def test_profiling_is_a_callback_and_arguments_of_the_driver():
    found = parsed(args.add_profiling_arguments, "--profile", "--caliper", "--caliper-config=x")
    assert args.create_profile_callbacks(found)[0].export_proto().profiler.skip_init
    assert args.get_profile_args(found) == ["--caliper", "--caliper_config=x"]
    assert args.create_profile_callbacks(parsed(args.add_profiling_arguments)) == []
    assert args.get_profile_args(parsed(args.add_profiling_arguments)) == []
