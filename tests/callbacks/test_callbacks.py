"""What the room offers: every callback by its name, described without torch."""

import subprocess
import sys
from dataclasses import is_dataclass

import descend
from descend import callbacks
from descend.train import Callback


def test_every_name_is_a_callback_or_a_part_of_one_and_is_offered_by_the_package():
    parts = {"CategoricalAccuracyStrategy", "MatchType", "MinibatchScheduleStep", "TrackSampleIDsStrategy"}
    assert len(set(callbacks.__all__)) == len(callbacks.__all__)  # ruff sorts them
    for name in callbacks.__all__:
        kind = getattr(callbacks, name)
        assert kind.__name__ == name
        assert issubclass(kind, Callback) == (name not in parts)
        assert getattr(descend, name) is kind


def test_every_callback_is_plain_data_and_says_when_it_runs_what_it_reads_and_what_it_costs():
    for name in callbacks.__all__:
        kind = getattr(callbacks, name)
        if issubclass(kind, Callback):
            assert is_dataclass(kind), name
            assert all(word in kind.__doc__ for word in ("Runs:", "Reads:", "Costs:")), name


def test_the_room_imports_no_torch():
    code = "import sys, descend.callbacks; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
