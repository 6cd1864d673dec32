"""The page that `make cuda` writes, from a report as pytest writes it."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from system_needs import needs

TOOL = Path(__file__).parents[1] / "tools" / "cuda_page.py"
REPORT = """<testsuites><testsuite>
<testcase name="test_01_host"/>
<testcase name="test_03_runners_agree[Adam]"/>
<testcase name="test_03_runners_agree[LAMB]"><failure message="AssertionError: plain of LAMB&#10;more"/></testcase>
<testcase name="test_05_graph"><error message="CUDA error"/></testcase>
<testcase name="test_08_waits"><skipped/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("cuda_page", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_failed_is_named_and_the_rest_counted(tool, tmp_path):
    report = tmp_path / "checks.xml"
    report.write_text(REPORT)
    lines = tool._counted(tool._outcomes(report))
    assert lines == [
        "- 01_host: 1 of 1 ok",
        "- 03_runners_agree: 1 of 2 ok",
        "  - `03_runners_agree[LAMB]`: AssertionError: plain of LAMB",
        "- 05_graph: 0 of 1 ok",
        "  - `05_graph`: CUDA error",
        "- 08_waits: 0 of 1 ok",
        "  - `08_waits`: skipped",
    ]
    assert tool._outcomes(tmp_path / "missing.xml") == []


def test_the_page_names_the_device_and_keeps_the_sections_that_were_not_run(tool, tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    tool._write(page, "H200", {"Checks": tool._section("Checks", ["- 01_host: 1 of 1 ok"])})
    monkeypatch.setattr(
        tool, "_run", lambda command, seconds, **more: (124, "row " * 100 + "\n\nstopped after 3 seconds")
    )
    code, written = tool._benchmark("Optimizer steps", 3, "optimizer_step.py --device cuda " + "--rounds 9 " * 12)
    assert code == 124
    tool._write(page, "H200", tool._sections(page.read_text()) | written)
    text = page.read_text()
    assert "# Speed on H200\n" in text
    assert text.index("- 01_host: 1 of 1 ok") < text.index("## Optimizer steps") < text.index("stopped after 3 seconds")
    assert max(map(len, text.splitlines())) <= 100
    assert list(tool._sections(text)) == ["Checks", "Optimizer steps"]
    assert [each.name for each in tmp_path.iterdir()] == ["page.md"]


def test_a_command_that_takes_too_long_is_stopped_and_what_it_said_kept(tool):
    code, said = tool._run([sys.executable, "-c", "print('begun'); import time; time.sleep(60)"], 3)
    assert code == 124
    assert said.startswith("begun")


@needs("a machine without a GPU", not torch.cuda.is_available())
def test_without_a_gpu_nothing_is_written(tmp_path):
    page = tmp_path / "page.md"
    command = [sys.executable, str(TOOL), "--page", str(page)]
    done = subprocess.run(command, text=True, capture_output=True, check=False, timeout=200)
    assert done.returncode == 2
    assert "needs a GPU" in done.stderr
    assert not page.exists()
