"""Where a run stands: counts of mini-batches, epochs and samples, and their plain form."""

import json

import pytest

from descend.train.progress import ExecutionContext, Mode, Progress


def test_an_epoch_that_has_a_mini_batch_without_an_update():
    context = ExecutionContext(Mode.TRAIN)
    context.advance(4)
    context.leave_out(4)
    context.advance(2)
    assert (context.step, context.position, context.samples, context.taken, context.epoch) == (2, 3, 10, 10, 0)
    context.finish_epoch()
    assert (context.step, context.position, context.samples, context.taken, context.epoch) == (2, 0, 10, 0, 1)
    context.advance(5)
    assert (context.step, context.position, context.samples, context.taken, context.epoch) == (3, 1, 15, 5, 1)


@pytest.mark.parametrize("mode", Mode)
def test_the_plain_form_goes_through_json_and_back(mode):
    context = ExecutionContext(mode, 1, 2, 3, 4, 5)
    plain = json.loads(json.dumps(context.state()))
    assert plain == {"mode": mode.value, "step": 1, "epoch": 2, "position": 3, "samples": 4, "taken": 5}
    assert ExecutionContext.from_state(plain) == context


@pytest.mark.parametrize("missing", ["mode", "step", "epoch", "position", "samples", "taken"])
def test_a_plain_form_that_lacks_a_value_is_refused_by_its_name(missing):
    plain = ExecutionContext(Mode.TEST).state()
    del plain[missing]
    with pytest.raises(KeyError, match=missing):
        ExecutionContext.from_state(plain)


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="'evaluation'"):
        ExecutionContext.from_state({**ExecutionContext(Mode.TRAIN).state(), "mode": "evaluation"})


def test_modes_are_the_words_of_the_records_and_roles_those_of_a_reader():
    assert [(mode.value, mode.role) for mode in Mode] == [
        ("train", "train"),
        ("validation", "validate"),
        ("test", "test"),
        ("tournament", "tournament"),
    ]
    assert f"{Mode.VALIDATION}/loss" == "validation/loss"


def test_no_criterion_can_change_the_values_that_others_see_by_default():
    with pytest.raises(TypeError):
        Progress(0, 0, 0.0).values["validation/loss"] = 1.0  # pyright: ignore[reportIndexIssue]  # what is refused
