"""The notebook of `examples` runs from its first cell to its last in an empty folder, and shows what it says."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from system_needs import library

NOTEBOOK = json.loads((Path(__file__).parent.parent / "examples" / "notebook.ipynb").read_text())


def cells(kind):
    return ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == kind]


def run_cell(text, names, shown):
    """As a notebook does: lines after `!` are commands, and the value of a last expression is shown."""
    if text.startswith("!"):
        words = text[1:].split()
        assert words[0] == "descend"
        subprocess.run([sys.executable, "-m", *words], check=True, capture_output=True)
        return
    tree = ast.parse(text)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "notebook", "exec"), names)
    if last is not None:
        shown.append(eval(compile(ast.Expression(last.value), "notebook", "eval"), names))


@pytest.mark.slow
def test_every_cell_runs(tmp_path, monkeypatch, capsys):
    library("vl_convert", "vl-convert-python")
    monkeypatch.chdir(tmp_path)
    names, shown = {"__name__": "__main__"}, []
    for text in cells("code"):
        run_cell(text, names, shown)
    counts, found, result, report = shown[0], shown[1], shown[2], shown[-1]
    assert counts["train"] > 1000
    assert found._repr_svg_().startswith("<svg")
    assert result.history[-1]["accuracy"] > 0.6
    assert "<svg" in (tmp_path / "digits" / "report.html").read_text()
    assert report is None or Path(report).is_file()
    assert "batch 50" in capsys.readouterr().out


def test_it_is_kept_without_outputs():
    """Whose numbers would be of another machine, and of another day."""
    assert all(
        not cell["outputs"] and cell["execution_count"] is None for cell in NOTEBOOK["cells"] if "outputs" in cell
    )
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])
