"""Answers are kept in the directory of a study."""

import json
import math

import pytest

from descend.errors import StorageError
from descend.study.follow_up_store import read_follow_ups, save_follow_up

CELL = {"arm": "a", "giver": "b", "median": math.inf, "interval": None, "change": 0.0}
SWAP = {"kind": "swap", "command": "descend", "setting": "lr", "seeds": 1, "cells": [CELL]}
POINT = {"step": 1, "scale": math.inf, "interval": None, "said": None}
NOISE = {"kind": "noise", "command": "", "arm": "a", "parts": 2, "part_size": 1, "repeats": 1, "points": [POINT]}


def test_what_was_kept_is_read_again_and_a_newer_answer_stands(tmp_path):
    assert read_follow_ups(tmp_path) == []
    save_follow_up(tmp_path, {**SWAP, "seeds": 1}, "schedule.warmup_power")
    save_follow_up(tmp_path, NOISE, "an arm / of slashes")
    save_follow_up(tmp_path, {**SWAP, "seeds": 2}, "schedule.warmup_power")
    assert read_follow_ups(tmp_path) == [NOISE, {**SWAP, "seeds": 2}]


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "3", "{}", '{"kind": "other"}', json.dumps({**SWAP, "cells": [1]}), json.dumps({**NOISE, "arm": 0})],
)
def test_a_damaged_answer_is_named(tmp_path, text):
    save_follow_up(tmp_path, SWAP, "lr")
    (tmp_path / "follow_ups" / "swap-lr.json").write_text(text)
    with pytest.raises(StorageError, match=r"swap-lr\.json: not an answer"):
        read_follow_ups(tmp_path)


MINIMIZE = {"kind": "minimize", "command": "", "seeds": 1, "arm": "a", "reference": "b", "rule": "r", "tried": 1}
MINIMIZE |= {"needed": {"lr": [0.1, 0.2]}, "taken_back": {}}
SHARPNESS = {"kind": "sharpness", "command": "", "arm": "a"}
SHARP = {"step": 1, "sharpness": 1.0, "sharpness_error": math.inf, "hessian_smallest": 0.0}


@pytest.mark.parametrize(
    "answer", [SWAP, NOISE, MINIMIZE, {**SHARPNESS, "points": [SHARP]}], ids=lambda one: one["kind"]
)
def test_answers_of_every_kind_are_read(tmp_path, answer):
    save_follow_up(tmp_path, answer, "x")
    assert read_follow_ups(tmp_path) == [answer]


@pytest.mark.parametrize(
    ("answer", "place"),
    [
        ({**MINIMIZE, "needed": {"lr": [0.1]}}, "minimize.needed.lr"),
        ({**MINIMIZE, "needed": {"lr": 3}}, "minimize.needed.lr"),
        ({**MINIMIZE, "taken_back": []}, "minimize.taken_back"),
        ({**SHARPNESS, "points": [{**SHARP, "sharpness": [1]}]}, "sharpness.points.0.sharpness"),
        ({**SHARPNESS, "points": {}}, "sharpness.points"),
        ({**SWAP, "cells": [{**CELL, "interval": [1.0]}]}, "swap.cells.0.interval"),
        ({**SWAP, "cells": [{**CELL, "median": "x"}]}, "swap.cells.0.median"),
        ({**NOISE, "points": [{**POINT, "scale": True}]}, "noise.points.0.scale"),
    ],
)
def test_a_value_of_another_kind_is_named(tmp_path, answer, place):
    save_follow_up(tmp_path, answer, "x")
    with pytest.raises(StorageError, match=rf"not an answer: {place}.*, got .*; remove it and ask again"):
        read_follow_ups(tmp_path)
