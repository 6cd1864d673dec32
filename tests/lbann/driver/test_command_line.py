import pytest

from descend.errors import ConfigurationError
from descend.lbann.driver.command_line import parse
from descend.lbann.driver.options import OPTIONS, SPELLINGS


@pytest.mark.parametrize("arguments", [["--num_epochs=3"], ["--num_epochs", "3"]])
def test_a_value_follows_an_equals_sign_or_is_the_next_word(arguments: list[str]):
    assert parse(arguments, {}).get("num_epochs") == 3


def test_a_flag_takes_no_value_from_the_next_word():
    line = parse(["--exit_after_setup", "--prototext", "f"], {})
    assert line.get("exit_after_setup") is True
    assert line.files["prototext"] == ("f",)


def test_both_spellings_of_an_option_are_one():
    assert parse(["--ckpt_dir=a"], {}).values == parse(["--checkpoint_dir=a"], {}).values == {"checkpoint_dir": "a"}
    assert parse(["--rand_seed=2"], {}).get("random_seed") == 2


def test_lbanns_default_of_minus_one_sets_nothing():
    assert parse(["--num_epochs=-1", "--mini_batch_size=-1"], {}).values == {}


def test_an_environment_variable_stands_for_an_option_that_is_not_given():
    environment = {"LBANN_RANDOM_SEED": "7", "LBANN_SERIALIZE_IO": "0"}
    assert parse(["--prototext=f"], environment).values == {"random_seed": 7}
    assert parse(["--random_seed=8"], environment).get("random_seed") == 8


def test_help_is_asked_for_by_a_word_or_by_silence():
    assert all(parse(arguments, {}).wants_help for arguments in ([], ["--help"], ["--prototext=f", "-h"]))


def test_every_problem_is_named_behind_lbanns_words():
    with pytest.raises(ConfigurationError) as raised:
        parse(["--num_epoch=3", "--mini_batch_size=x", "file", "--random_seed"], {"LBANN_PROCS_PER_TRAINER": "all"})
    assert raised.value.problems == (
        "Arguments could not be parsed.",
        "there is no option '--num_epoch=3'; did you mean 'num_epochs'?",
        "--mini_batch_size: 'x' is not a number (int)",
        "'file' is not an option",
        "--random_seed: a value is missing (int)",
        "environment variable LBANN_PROCS_PER_TRAINER: 'all' is not a number (int)",
    )


def test_a_file_is_given_once_unless_each_trainer_has_its_own():
    with pytest.raises(ConfigurationError, match="--prototext is given 2 times, which only --generate_multi_proto"):
        parse(["--prototext=a", "--prototext=b"], {})
    several = parse(["--prototext=a", "--prototext=b", "--generate_multi_proto"], {})
    assert several.files["prototext"] == ("a", "b")


def test_options_without_effect_are_accepted_and_named():
    line = parse(["--caliper", "--z_score", "--max_io_thread_rngs=3", "--num_epochs=1", "--num_subgrids=2"], {})
    assert line.idle == ("caliper", "z_score", "max_io_thread_rngs", "num-subgrids")


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_understood(name: str):
    option = OPTIONS[name]
    line = parse([f"--{name}"] if option.takes is bool else [f"--{name}", "1"], {})
    assert line.get(name) is not None or line.files.get(name) == ("1",)
    assert SPELLINGS[name.replace("-", "_")] == name
