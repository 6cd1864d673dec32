import numpy as np
import pytest

from tests.lbann.readers.opening import everything, opened, refusal

VOCABULARY = "<bos> 0\n<eos> 1\n<pad> 2\n<unk> 3\nC 4\nO 5\n= 6\n( 7\n) 8\n"
TOKENS = {"C": 4, "O": 5, "=": 6, "(": 7, ")": 8}
STRINGS = ["CCO", "C(=O)O", "CNC", "", "C" * 20]


def encoded(text, length):
    inner = [TOKENS.get(one, 3) for one in text][: length - 2]
    return ([0, *inner, 1] + [2] * length)[:length]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "vocab.txt").write_text(VOCABULARY)
    (tmp_path / "a.smi").write_text("smiles,name\n" + "".join(f"{s},m{i} x\n" for i, s in enumerate(STRINGS)))
    (tmp_path / "b.smi").write_bytes(b"smiles\nOC\r\nOO")  # no newline at the end
    return tmp_path


OWN = {"vocab_filename": "vocab.txt", "sequence_length": 8, "has_header": True}


def test_tokens(folder):
    reader = opened("smiles", folder, data_filename="a.smi", **OWN)
    assert reader.fields["samples"].shape == (8,)
    np.testing.assert_array_equal(everything(reader)["samples"], [encoded(s, 8) for s in STRINGS])
    np.testing.assert_array_equal(reader.read(np.array([2, 0]))["samples"], [encoded("CNC", 8), encoded("CCO", 8)])
    last = everything(opened("smiles", folder, data_filename="b.smi", **OWN))["samples"]
    np.testing.assert_array_equal(last, [encoded("OC", 8), encoded("OO", 8)])


def test_sample_list(folder):
    (folder / "list").write_text("MULTI-SAMPLE_INCLUSION\n3 4 2\n.\nb.smi 1 1 1\na.smi 2 3 4 0\n")
    found = everything(opened("smiles", folder, sample_list="list", **OWN))["samples"]
    np.testing.assert_array_equal(found, [encoded(s, 8) for s in ("OO", STRINGS[4], STRINGS[0])])
    (folder / "list").write_text("MULTI-SAMPLE_EXCLUSION\n1 1 1\n.\nb.smi 1 1 0\n")
    found = everything(opened("smiles", folder, sample_list="list", **OWN))["samples"]
    np.testing.assert_array_equal(found, [encoded("OO", 8)])
    (folder / "list").write_text("MULTI-SAMPLE_INCLUSION\n1 1 1\n.\nb.smi 1 1 2\n")
    assert "has the lines 0 to 1, and no '2'" in refusal("smiles", folder, sample_list="list", **OWN)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("C 0\n", "has no <bos>, <eos>, <pad>, <unk>"),
        (VOCABULARY + "C 9\n", ":10: 'C' or 9 comes twice"),
        (VOCABULARY + "N 4\n", ":10: 'N' or 4 comes twice"),
        (VOCABULARY + "Cl 9\n", "a token must be a character"),
        ("C\n", "must be TOKEN NUMBER, got 'C'"),
    ],
)
def test_vocabulary_that_is_wrong(folder, content, words):
    (folder / "vocab.txt").write_text(content)
    assert words in refusal("smiles", folder, data_filename="a.smi", **OWN)


def test_what_is_not_set(folder):
    assert "sequence_length must be at least 2" in refusal(
        "smiles", folder, data_filename="a.smi", vocab_filename="vocab.txt"
    )
    assert "set data_filename or sample_list" in refusal("smiles", folder, **OWN)
