"""LBANN's callbacks that do nothing here say so, or are refused."""

import pytest
from callback_runs import follow

from descend.callbacks import CheckInit, GPUMemoryUsage, Hang, SyncLayers


@pytest.mark.parametrize("kind", [Hang, SyncLayers, CheckInit, GPUMemoryUsage])
def test_what_has_no_effect_says_so_once(kind, capsys):
    follow(kind(), epochs=2)
    assert capsys.readouterr().out.count(f"{kind.__name__} has no effect here: ") == 1
