"""Answers are kept in the directory of a study."""

import math

import pytest

from descend.errors import StorageError
from descend.study.kept import keep, read_kept


def test_what_was_kept_is_read_again_and_a_newer_answer_stands(tmp_path):
    assert read_kept(tmp_path) == []
    keep(tmp_path, {"kind": "swap", "seeds": 1}, "schedule.warmup_power")
    keep(tmp_path, {"kind": "noise", "scale": math.inf}, "an arm / of slashes")
    keep(tmp_path, {"kind": "swap", "seeds": 2}, "schedule.warmup_power")
    assert read_kept(tmp_path) == [{"kind": "noise", "scale": math.inf}, {"kind": "swap", "seeds": 2}]


def test_a_damaged_answer_is_named(tmp_path):
    keep(tmp_path, {"kind": "swap"}, "lr")
    (tmp_path / "follow_ups" / "swap-lr.json").write_text("{")
    with pytest.raises(StorageError, match=r"swap-lr\.json: not an answer"):
        read_kept(tmp_path)
