"""The core trains where no annex is installed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_import_order import ANNEXES, PACKAGE

CODE = """
import functools, sys
import torch, descend, descend.data, descend.optim
x, y = torch.randn(64, 3), torch.randint(0, 2, (64,))
how = dict(loss="cross_entropy", batch_size=16, stop=descend.Epochs(2), verbose=False, metrics=["accuracy"])
descend.fit(torch.nn.Linear(3, 2), data=(x, y), optimizer=descend.SGD(learn_rate=0.1), run_dir=sys.argv[1], **how)
descend.fit(torch.nn.Linear(3, 2), data=(x, y), optimizer=functools.partial(descend.optim.AdamW, lr=0.1), **how)
print(descend.__file__, len(descend.data.read(sys.argv[2])))
"""


@pytest.mark.slow
def test_fit_and_read_need_no_annex(tmp_path: Path):
    left_out = shutil.ignore_patterns("__pycache__")
    for path in PACKAGE.iterdir():
        if path.name in ANNEXES or path.name == "__pycache__":
            continue
        target = tmp_path / "descend" / path.name
        if path.is_dir():
            shutil.copytree(path, target, ignore=left_out)
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copy(path, target)
    (tmp_path / "table.csv").write_text("a,b\n1,2\n3,4\n")
    words = [sys.executable, "-c", CODE, str(tmp_path / "run"), str(tmp_path / "table.csv")]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(tmp_path)}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(tmp_path / "descend" / "__init__.py"), "2"]
    assert (tmp_path / "run" / "metrics.jsonl").exists()
