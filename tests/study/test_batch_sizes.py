"""Batch sizes as text."""

import pytest

from descend.errors import ConfigurationError
from descend.study.batch_sizes import read_batch_sizes


@pytest.mark.parametrize(
    ("text", "sizes"), [("64:4096:x4", [64, 256, 1024, 4096]), ("512, 32,32", [32, 512]), ("8:100:x3", [8, 24, 72])]
)
def test_both_forms(text, sizes):
    assert read_batch_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", "64:4096", "1:8:x1", "0,1", "64:32:x2", "a"])
def test_mistakes(text):
    with pytest.raises(ConfigurationError, match="batch sizes"):
        read_batch_sizes(text)
