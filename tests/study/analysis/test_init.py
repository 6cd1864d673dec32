"""The room of statistics: its public names, without torch."""

import subprocess
import sys

import descend.errors
from descend.study import analysis


def test_every_public_name_is_there_and_has_a_docstring():
    assert analysis.__all__ == sorted(analysis.__all__)
    for name in analysis.__all__:
        assert getattr(analysis, name).__doc__, name
    assert analysis.Refused is descend.errors.Refused


def test_importing_it_takes_neither_torch_nor_scipy():
    code = "import sys, descend.study.analysis; sys.exit(bool({'torch', 'scipy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
