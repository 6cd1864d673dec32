"""Fields of callbacks that are names, modes and numbers."""

from types import SimpleNamespace

import pytest

from descend.callbacks import CheckMetric, DumpOutputs, EarlyStopping
from descend.callbacks.name_fields import (
    MODE_WORDS,
    at_least,
    modes_of,
    problems,
    require,
    require_extra,
    require_samples,
    words,
)
from descend.errors import ConfigurationError, MissingExtra
from descend.train import Callback, Mode

KNOWN = {"layer": ["conv1", "conv2"], "weights": ["w"], "metric": ["top 5"]}


def test_words_are_separated_by_any_blanks():
    assert words("  a  b\tc\n") == ("a", "b", "c")
    assert words("") == ()


@pytest.mark.parametrize(
    ("text", "modes"),
    [
        ("train", {Mode.TRAIN}),
        ("testing validate", {Mode.TEST, Mode.VALIDATION}),
        ("tournament", {Mode.TOURNAMENT}),
        ("", set(Mode)),
    ],
)
def test_modes_by_either_word(text, modes):
    assert modes_of(text) == modes
    assert all(modes_of(word) == {mode} for mode, word in MODE_WORDS.items())


def test_an_unknown_mode_is_named():
    with pytest.raises(ConfigurationError, match="no execution mode 'tset'; there are train, training"):
        modes_of("train tset")


def test_names_that_do_not_exist_are_found_in_all_fields_with_the_nearest():
    layers, metric = DumpOutputs(directory="d", layers="conv1 conv3"), CheckMetric(metric="top 6", upper_bound=0.5)
    found = problems([layers, metric], KNOWN)
    assert found[0].startswith("DumpOutputs.layers names a layer 'conv3' that does not exist")
    assert "did you mean 'conv" in found[0]
    assert found[1].startswith("CheckMetric.metric names a metric 'top 6' that does not exist")
    assert len(found) == 2


def test_a_monitored_metric_stands_behind_its_mode_and_the_objective_is_always_there():
    assert problems([EarlyStopping(monitor="validation/objective", patience=1)], KNOWN) == []
    assert problems([EarlyStopping(monitor="validation/top 5", mode="max", patience=1)], KNOWN) == []
    (found,) = problems([EarlyStopping(monitor="validation/top", mode="max", patience=1)], KNOWN)
    assert "EarlyStopping.monitor names a metric 'top'" in found


def test_a_kind_that_is_not_known_yet_is_not_checked():
    assert problems([DumpOutputs(directory="d", layers="conv9")], {"weights": []}) == []


def test_fields_of_a_users_own_callback_may_mean_anything():
    class Own(Callback):
        layers: str = "conv9"

    assert problems([Own()], KNOWN) == []


def test_the_place_in_a_text_is_named_first():
    callback = DumpOutputs(directory="d", layers="conv9")
    callback.where = "a.prototext:3:5"
    assert problems([callback], KNOWN)[0].startswith("a.prototext:3:5: DumpOutputs.layers")


def test_numbers_below_the_least_are_named_together():
    with pytest.raises(ConfigurationError) as caught:
        at_least(SimpleNamespace(a=0, b=1, c=-2), 1, "a", "b", "c")
    assert [problem.split(" must")[0] for problem in caught.value.problems] == [
        "SimpleNamespace: a",
        "SimpleNamespace: c",
    ]
    at_least(SimpleNamespace(a=1.0), 1, "a")


def test_empty_fields_are_named_together():
    with pytest.raises(ConfigurationError) as caught:
        require(SimpleNamespace(a="", b="x", c=0), "a", "b", "c")
    assert list(caught.value.problems) == ["SimpleNamespace needs a=", "SimpleNamespace needs c="]


class OfTests(Callback):
    looks_at = (Mode.TEST, Mode.VALIDATION)


def test_a_callback_for_samples_that_are_not_there_is_refused_with_the_role():
    require_samples(OfTests(), [Mode.TRAIN, Mode.TEST])
    require_samples(Callback(), [])
    with pytest.raises(ConfigurationError, match=r"OfTests needs test or validation samples.*'test' or 'validate'"):
        require_samples(OfTests(), [Mode.TRAIN])


def test_a_missing_library_is_an_error_with_the_place(monkeypatch):
    callback = OfTests()
    require_extra(callback)
    monkeypatch.setattr(OfTests, "missing_extra", lambda self: "OfTests needs x: pip install x")
    callback.where = "a.prototext:3:5"
    with pytest.raises(MissingExtra, match=r"a\.prototext:3:5: OfTests needs x"):
        require_extra(callback)
