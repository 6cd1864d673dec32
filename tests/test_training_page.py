"""The examples of docs/training.md work as they stand, and what it names exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from descend.experiment.text import classes
from descend.graph import text
from descend.train import AllOf, AnyOf, Epochs, Reached

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "training.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("code", [code for language, code in BLOCKS if language == "python"])
def test_python(code, tmp_path):
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_text_of_a_criterion():
    (block,) = [code for language, code in BLOCKS if not language]
    found = text.to_value(text.parse(block, "page", "SGD"), classes())
    assert found.stop == AnyOf((Epochs(90), AllOf((Epochs(10), Reached("validation/accuracy", 0.9)))))


def test_files_that_are_named_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
    for script in re.findall(r"benchmarks/\w+\.py", PAGE):
        assert (ROOT / script).is_file()
