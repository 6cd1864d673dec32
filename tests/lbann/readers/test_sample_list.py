from pathlib import Path

import pytest

from descend.data import Reader
from descend.errors import DataError
from descend.lbann.readers.sample_list import listed_samples

NAMES = {"a": ["s0", "s1", "s2"], "b": ["t0", "t1"]}


@pytest.fixture
def listed(tmp_path):
    """A function: lines of a list → its samples as (file, name)."""
    (tmp_path / "data").mkdir()
    for name in NAMES:
        (tmp_path / "data" / name).write_text("")

    def read(*lines, **fields):
        (tmp_path / "list").write_text("\n".join(lines) + "\n")
        reader = Reader(name="hdf5_data_reader", role="train", data_filedir=str(tmp_path), sample_list="list", **fields)
        return [(one.path.name, one.name) for one in listed_samples(reader, lambda path: NAMES[Path(path).name])]

    return read


def test_inclusion(listed):
    for kind in ("MULTI-SAMPLE_INCLUSION", "CONDUIT_HDF5_INCLUSION"):
        samples = listed(kind, "3 2 2", "data", "b 1 1 t1", "a 2 1 s2 s0")
        assert samples == [("b", "t1"), ("a", "s2"), ("a", "s0")]


def test_exclusion(listed):
    for kind in ("MULTI-SAMPLE_EXCLUSION", "CONDUIT_HDF5_EXCLUSION"):
        assert listed(kind, "4 1 2", "data", "b 2 0", "a 2 1 s1") == [
            ("b", "t0"),
            ("b", "t1"),
            ("a", "s0"),
            ("a", "s2"),
        ]


def test_single(listed):
    assert listed("SINGLE-SAMPLE", "2", "data", "b", "a") == [("b", ""), ("a", "")]
    assert listed("SINGLE-SAMPLE", "2", "data", "b", "a", max_files_to_load=1) == [("b", "")]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["CONDUIT_HDF5_INCLUSIO"], "did you mean 'CONDUIT_HDF5_INCLUSION'?"),
        ([""], "must begin with its kind"),
        (["SINGLE-SAMPLE", "x", "data"], "the number of files"),
        (["MULTI-SAMPLE_INCLUSION", "3", "data"], "the numbers of included samples"),
        (["SINGLE-SAMPLE", "0", "nowhere"], "there is no folder nowhere"),
        (["SINGLE-SAMPLE", "0"], "the third line"),
        (["SINGLE-SAMPLE", "2", "data", "a"], "the counts of the list are 2 and its lines make 1"),
        (["SINGLE-SAMPLE", "1", "data", "c"], ":4: there is no file"),
        (["SINGLE-SAMPLE", "1", "data", "a 1"], "is the name of a file, got also '1'"),
        (["MULTI-SAMPLE_INCLUSION", "1 0 1", "data", "a"], "FILE INCLUDED EXCLUDED"),
        (["MULTI-SAMPLE_INCLUSION", "2 0 1", "data", "a 2 0 s0 s0"], "must name 2 included samples, each once"),
        (["MULTI-SAMPLE_EXCLUSION", "2 1 1", "data", "a 2 1 s9"], "has no sample 's9'"),
        (
            ["MULTI-SAMPLE_EXCLUSION", "1 1 1", "data", "a 1 1 s1"],
            "2 samples that are not excluded, and the line says 1",
        ),
    ],
)
def test_lists_that_are_wrong(listed, lines, words):
    with pytest.raises(DataError) as caught:
        listed(*lines)
    assert words in str(caught.value)


def test_a_mark_of_utf_8_is_no_part_of_the_kind(listed):
    assert listed("\ufeffCONDUIT_HDF5_INCLUSION", "1 2 1", "data", "a 1 2 s2") == [("a", "s2")]
