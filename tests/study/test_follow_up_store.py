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
