"""What a person does on the first day needs nothing that only Linux has; tests/other_system hides that."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from system_needs import needs_linux

TESTS = Path(__file__).parent

FIRST_DAY = """
import functools
import json
import sys
import urllib.request
from pathlib import Path
import numpy as np
import torch
from PIL import Image
import descend
from descend.view.server import ViewServer
from descend.view.subjects import subjects


def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def fit(folder, **options):
    adamw = functools.partial(descend.optim.AdamW, lr=0.02)
    return descend.fit(build(), "cross_entropy", {"train": "train.csv", "validation": "valid.csv"}, targets=["kind"],
                       metrics=["accuracy"], optimizer=adamw, batch_size=16, micro_batch_size=6, workers=2,
                       callbacks=[descend.Checkpoint(every_epochs=1)], run_dir=folder, resume=True, **options)


def main():
    assert sys.platform == "darwin"
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    for name, part in (("train", x[:160]), ("valid", x[160:])):
        lines = [f"{a},{b},{'up' if a + b > 0 else 'down'}" for a, b in part.tolist()]
        Path(name + ".csv").write_text("a,b,kind\\n" + "\\n".join(lines))
    assert len(descend.data.read("train.csv")) == 160
    for name in ("cat", "dog"):
        Path("pictures", name).mkdir(parents=True)
        for number in range(5):
            Image.new("L", (8, 8), 20 * number).save(f"pictures/{name}/{number}.png")
    pictures = descend.data.read("pictures")
    assert pictures.read(np.arange(10))["image"].shape[0] == 10  # by threads
    whole = fit("whole", stop=descend.Epochs(4))
    fit("parts", stop=descend.Epochs(2))
    parts = fit("parts", stop=descend.Epochs(4))
    assert parts.steps == whole.steps == 40
    for a, b in zip(*(torch.load(f"{name}.pt") for name in saved(whole, parts)), strict=True):
        assert torch.equal(a, b)
    assert whole.history[-1]["accuracy"] > 0.8
    found = descend.compare(build, "cross_entropy", {"train": "train.csv", "validation": "valid.csv"}, targets=["kind"],
                            arms=["nesterov", "AdamW"], batch_size=32, steps=20, trials=4, seeds=2, directory="study")
    print(found)
    with ViewServer(subjects([Path("whole"), Path("study")])) as server:
        import threading
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert b"<html" in urllib.request.urlopen(server.url).read()
        server.shutdown()


def saved(*results):
    for number, result in enumerate(results):
        torch.save([weights for _, weights in sorted(result.weights.items())], f"{number}.pt")
        yield number


if __name__ == "__main__":
    main()
"""
COMMANDS = ["demo --run-dir demo", "report whole", "report study", "data train.csv"]


@pytest.mark.slow(seconds=90)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("system", ["macos", "least"])
def test_the_first_day(system, tmp_path):
    (tmp_path / "day.py").write_text(FIRST_DAY)
    path = os.pathsep.join([str(TESTS / "other_system"), str(TESTS.parent)])
    environment = {**os.environ, "PYTHONPATH": path, "OTHER_SYSTEM": system}
    commands = COMMANDS if system == "macos" else COMMANDS[1:2]
    for words in (["day.py"], *(["-m", "descend", *command.split()] for command in commands)):
        command = [sys.executable, *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr[-3000:]}"
    assert "<svg" in (tmp_path / "whole/report.html").read_text()


WITHOUT_OPENMP = """
import functools, torch, warnings, descend.optim
from descend.optim.compiler import cache

cache.PATIENCE_SECONDS = 0.0

def trained(runner):
    draw = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(5000, generator=draw)) for _ in range(3)]
    optimizer = descend.optim.AdamW(params, lr=0.1, runner=runner)
    for step in range(60):
        for p in params:
            p.grad = torch.randn(p.shape, generator=draw)
        optimizer.step()
        if runner == "auto":
            import time
            time.sleep(0.05)
    return params

with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for found, wanted in zip(trained("auto"), trained("blocks"), strict=True):
        assert torch.equal(found, wanted)
(line,) = {str(one.message) for one in said if "compil" in str(one.message)}
assert "compiling a kernel failed (no OpenMP here); this optimizer runs eagerly" in line, line
"""


@pytest.mark.slow
@needs_linux
def test_a_compiler_without_openmp_leaves_optimizers_eager(tmp_path):
    """As clang without its library: it refuses the flag, with one line, and the weights are the same."""
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\ncase $* in *-fopenmp*) cat >/dev/null; echo no OpenMP here >&2; exit 1;; esac\n")
    compiler.chmod(0o755)
    environment = {**os.environ, "CXX": str(compiler), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", WITHOUT_OPENMP]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
