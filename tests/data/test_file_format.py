"""What a file format gives to `read`: options that are checked, formats of a program, and optional libraries."""

import pytest

from descend.data import file_format
from descend.data.file_format import (
    FileFormat,
    ReadOptions,
    file_formats,
    options_of,
    parsed_options,
    register,
)
from descend.errors import ConfigurationError, MissingExtra, library


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lable": "y"}, "there is no option 'lable'.*did you mean 'label'"),
        ({"target": "y"}, "there is no option 'target'"),
        ({"label": 3}, "label must be"),
        ({"label": ["a", 3]}, "label must be"),
        ({"header": "yes"}, "header must be True or False"),
        ({"length": 0}, "length must be an integer >= 1"),
        ({"separator": 3}, "separator must be a character, or several in a text, got 3"),
        ({"image_size": (3, 0)}, "image_size must be one or two integers from 1 to 65,536"),
        ({"image_size": (1, 2, 3)}, "image_size must be one or two integers"),
        ({"image_size": 65_537}, "image_size must be one or two integers"),
        ({"columns": "abc"}, "columns must be a list of names or a mapping, got 'abc'"),
    ],
)
def test_wrong_options_are_refused_by_name(given, message):
    with pytest.raises(ConfigurationError, match=f"read: {message}"):
        options_of("train", None, given)


@pytest.mark.parametrize("target", [3, ["y", 3], [None]])
def test_a_target_that_is_no_name_is_refused(target):
    with pytest.raises(ConfigurationError, match="read: target must be the name of a field or a list of names, got"):
        options_of("train", target, {})


def test_all_wrong_values_are_reported_at_once():
    with pytest.raises(ConfigurationError) as caught:
        options_of("train", None, {"header": 1, "length": 0, "separator": ""})
    assert [problem.split()[1] for problem in caught.value.problems] == ["header", "length", "separator"]


@pytest.mark.parametrize(
    ("target", "given", "expected"),
    [
        (None, {}, ()),
        ("y", {}, ("y",)),
        (["y", "z"], {}, ("y", "z")),
        (None, {"label": "c"}, ("c",)),
        ("y", {"label": "c"}, ("y",)),
    ],
)
def test_targets_are_those_named_or_the_label(target, given, expected):
    assert options_of("test", target, given).target == expected


def test_classes_are_those_of_the_field_or_of_all():
    options = ReadOptions(label="c", target=("y",), classes=["a", "b"])
    assert [options.is_class(name) for name in ("c", "y", "x")] == [True, True, False]
    assert options.classes_of("c") == options.classes_of("x") == ["a", "b"]
    options = ReadOptions(classes={"c": ("a", "b")})
    assert (options.classes_of("c"), options.classes_of("x")) == (["a", "b"], None)
    assert ReadOptions().classes_of("c") is None


@pytest.mark.parametrize(("size", "pair"), [(None, None), (5, (5, 5)), ((3, 4), (3, 4)), ([3, 4], (3, 4))])
def test_one_number_is_height_and_width(size, pair):
    assert ReadOptions(image_size=size).height_and_width == pair


def own(name="own", uses=("length",)):
    return FileFormat(name, (".own",), lambda paths, options: None, frozenset(uses))


def test_an_option_that_a_format_does_not_use_is_refused_with_those_it_uses():
    own().check(ReadOptions(role="test", target=("y",), label="y", classes=["a"], length=3))
    with pytest.raises(ConfigurationError, match=r"key='x' is set and the format 'own' does not use it; .*: length\)"):
        own().check(ReadOptions(key="x"))
    with pytest.raises(ConfigurationError, match=r"header=False is set .*\(its options: none\)"):
        own(uses=()).check(ReadOptions(header=False))


def test_formats_of_a_program_come_first_and_once(monkeypatch):
    monkeypatch.setattr(file_format, "_ADDED", [])
    shipped = file_formats()
    added = register(own())
    assert file_formats() == [added, *shipped]
    with pytest.raises(ConfigurationError, match="there is a file format 'own' already; choose another name"):
        register(own(uses=()))
    with pytest.raises(ConfigurationError, match=f"'{shipped[0].name}' already"):
        register(own(shipped[0].name))


def test_shipped_formats_have_names_and_endings_of_their_own():
    shipped = file_formats()
    assert len({one.name for one in shipped}) == len(shipped)
    assert all(ending.startswith(".") and ending == ending.lower() for one in shipped for ending in one.endings)
    options = set(ReadOptions.__dataclass_fields__)
    assert all(one.uses <= options for one in shipped)


def test_a_missing_library_is_named(monkeypatch):
    import json.decoder

    assert library("json.decoder", "this") is json.decoder
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(MissingExtra, match=r"a\.h5 needs the library h5py: pip install h5py"):
        library("h5py", "a.h5")
    with pytest.raises(MissingExtra, match="a figure needs the library h5py: pip install h5py"):
        library("h5py.inner", "a figure")


# ---- options of `read` from words


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
