"""Options of `read` from words."""

import pytest

from descend.data.read_options import parsed_options
from descend.errors import ConfigurationError


def test_words_are_values():
    words = [
        "label=kind",
        "length=128",
        "columns=a,b",
        "header=false",
        r"separator=\t",
        "image_size=[4, 5]",
        "role=test",
    ]
    assert parsed_options([*words, 'fields={"x": "a"}']) == {
        "label": "kind",
        "length": 128,
        "columns": ["a", "b"],
        "header": False,
        "separator": "\t",
        "image_size": [4, 5],
        "role": "test",
        "fields": {"x": "a"},
    }


@pytest.mark.parametrize(
    ("words", "part"),
    [(["label"], "NAME=VALUE"), (["lable=a"], "did you mean 'label'"), (["length=1", "length=2"], "given twice")],
)
def test_what_is_wrong_is_said(words, part):
    with pytest.raises(ConfigurationError, match=part):
        parsed_options(words)
