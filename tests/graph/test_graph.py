"""The package of graphs as a whole: its public names, and what importing it loads."""

import subprocess
import sys

import descend.graph as g
from tests.graph.models import lenet


def test_public_names_are_there_and_name_one_thing_each():
    assert len(set(g.__all__)) == len(g.__all__)
    assert [name for name in g.__all__ if not hasattr(g, name)] == []
    kinds = {message for message in g.CLASSES if message.startswith("Layer.")}
    assert len(kinds) == 82
    operators = {message for message in g.CLASSES if message.endswith("Operator")}
    assert len(operators) == 75


def test_reading_and_checking_need_no_torch():
    source = g.to_text(lenet())
    program = (
        "import sys, descend.graph as g\n"
        "model = g.from_text(sys.stdin.read())\n"
        "g.check(model, {'samples': (1, 28, 28), 'labels': (10,)})\n"
        "g.to_text(model)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], input=source, text=True, check=True)


def test_text_is_not_loaded_before_it_is_needed():
    program = "import sys, descend.graph; assert not any(name.startswith('google') for name in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
