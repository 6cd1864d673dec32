"""The example scripts do what they say."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def script(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_gpt_learns_a_text(capsys):
    """From an even guess among the characters to better than the frequencies of single ones, 4.4 bits."""
    assert script("gpt_text").main(steps=60) < 4.4
    assert capsys.readouterr().out.startswith("step 1: 6.")
