import re

import torch
from callback_runs import follow, graph_run

from descend.callbacks import Debug, DebugIO, Profiler, Timeline


def test_layers_run_one_after_the_other(tmp_path):
    graph_run(tmp_path, Timeline(directory="t"), epochs=1)
    lines = (tmp_path / "run" / "t" / "timeline.m0.0.txt").read_text().splitlines()
    rows = [(name, float(start), float(end)) for name, start, end in (line.rsplit(":", 2) for line in lines)]
    assert all(start <= end for _, start, end in rows)
    names = [name for name, _, _ in rows]
    step = names[: len(names) // 3]
    assert names == step * 3
    forward = [name for name in step if name.startswith("fp-")]
    assert [name for name in forward if name[3:] in ("fc1", "relu", "fc2", "prob", "loss")] == [
        "fp-fc1", "fp-relu", "fp-fc2", "fp-prob", "fp-loss",
    ]  # fmt: skip
    backward = [name for name in step if name.startswith("bp-")]
    assert [name for name in backward if name[3:] in ("fc1", "relu", "fc2", "prob", "loss")] == [
        "bp-loss", "bp-prob", "bp-fc2", "bp-relu", "bp-fc1",
    ]  # fmt: skip
    assert {name for name in step if name.startswith("opt-")} == {
        f"opt-{layer}_{part}_weights" for layer in ("fc1", "fc2") for part in ("linearity", "bias")
    }
    starts = [start for name, start, _ in rows if not name.startswith("opt-")]
    assert starts == sorted(starts)


def test_marks_are_seen_by_torch_s_profiler():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        follow(Profiler(skip_init=True), epochs=3)
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["forward and backward"] == counts["update"] == 6
    assert counts["epoch 1"] == counts["epoch 2"] == 1
    assert "epoch 0" not in counts


def test_debug_lines(tmp_path, capsys):
    graph_run(tmp_path, Debug(phase="test"), DebugIO(phase="train", lvl=1), epochs=1)
    out = capsys.readouterr().out
    assert "test epoch 1 step 2: layer fc1 gave (2, 5)" in out
    assert "train epoch 0 step 1: layer" not in out
    ids = re.findall(r"train epoch 0 step \d: \d samples (.*)", out)
    assert sorted(int(i) for line in ids for i in line.split()) == list(range(20))
