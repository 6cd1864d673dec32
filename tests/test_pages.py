"""The Python of each page works as it stands, from top to bottom in an empty folder."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ELSEWHERE = {"studies", "training", "zoo"}  # have tests of their own
PAGES = sorted({path.stem for path in (ROOT / "docs").glob("*.md") if "```python\n" in path.read_text()} - ELSEWHERE)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_python(page, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL)
    program = "\n".join([f"import sys; sys.path.insert(0, {str(ROOT)!r})", *blocks])
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
