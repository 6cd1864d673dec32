"""Packed text against the sequence of tokens, put together in one list."""

import io
import pickle
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data.files import refusal
from system_needs import library

from descend.data import packed_text, read
from descend.data.packed_text import IGNORED, Piece, TokenFile, Vocabulary, pieces_of, vocabulary_of
from descend.errors import ConfigurationError, DataError


class Words:
    """A tokenizer by its methods: a word is the number of its letters."""

    class Found:
        def __init__(self, ids):
            self.ids = ids

    def to_str(self):
        return "words"

    @classmethod
    def from_str(cls, text):
        assert text == "words"
        return cls()

    def no_truncation(self):
        pass

    no_padding = no_truncation

    def get_vocab_size(self):
        return 100_000

    def token_to_id(self, name):
        return 99_999 if name == "</s>" else None

    def encode_batch(self, texts, add_special_tokens):
        assert not add_special_tokens
        return [self.Found([len(word) for word in text.split()]) for text in texts]

    def decode(self, ids):
        return " ".join("x" * i for i in ids)


def packed(documents, length, end):
    """Inputs, targets and documents of all samples, by their definition."""
    tokens = [(token, number) for number, document in enumerate(documents) for token in [*document, end]]
    pairs = [(a, b if m == n else IGNORED, m) for (a, m), (b, n) in pairwise(tokens)]
    pairs += [(end, IGNORED, -1)] * (-len(pairs) % length)
    inputs, targets, numbers = (np.array(some).reshape(-1, length) for some in zip(*pairs, strict=True))
    return {"input": inputs, "target": targets, "document": numbers}


def same(reader, wanted):
    count = len(wanted["input"])
    assert len(reader) == count
    order = np.random.default_rng(0).permutation(count)
    for copy in (reader, pickle.loads(pickle.dumps(reader))):
        found = copy.read(order)
        for name, values in wanted.items():
            np.testing.assert_array_equal(found[name], values[order])
            assert copy.fields[name].shape == values.shape[1:]


TEXTS = ["one two three", "", "four", "five six " * 40, "seven"]


@pytest.mark.parametrize("length", [1, 7, 64])
def test_rows_of_a_table_are_documents(tmp_path, length):
    pq.write_table(pa.table({"n": range(5), "text": TEXTS}), tmp_path / "a.parquet", row_group_size=2)
    words = [[len(word) for word in text.split()] for text in TEXTS if text]
    reader = read(tmp_path / "a.parquet", tokenizer=Words(), length=length)
    same(reader, packed(words, length, 99_999))
    assert (reader.vocabulary, reader.target, reader.optional) == (100_000, ("target",), {"document"})
    assert reader.source.place(len(reader) - 1).endswith("row 4" if length == 1 else "row 3")
    same(
        read(tmp_path / "a.parquet", tokenizer="bytes", length=length),
        packed([t.encode() for t in TEXTS if t], length, 256),
    )


def test_the_column_of_the_text_is_named_where_it_is_not_clear(tmp_path):
    pq.write_table(pa.table({"a": ["x"], "b": ["y"], "n": [1]}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet", tokenizer="bytes", columns=["b"]).read(np.array([0]))["input"][0, 0] == ord("y")
    for options, part in (({}, "not clear"), ({"columns": ["n"]}, "got 'n'"), ({"columns": ["a", "b"]}, "one column")):
        with pytest.raises(ConfigurationError, match=part):
            read(tmp_path / "a.parquet", tokenizer="bytes", **options)
    (tmp_path / "a.csv").write_text("text\nab\ncd\n")
    same(read(tmp_path / "a.csv", tokenizer="bytes", length=3), packed([b"ab", b"cd"], 3, 256))
    (tmp_path / "a.jsonl").write_text('{"text": "ab"}\n{"text": null}\n{"text": "cd"}\n')
    same(read(tmp_path / "a.jsonl", tokenizer="bytes", length=3), packed([b"ab", b"cd"], 3, 256))
    with pytest.raises(ConfigurationError, match="length= is for text"):
        read(tmp_path / "a.csv", length=3)


def test_long_documents_are_cut_at_lines(monkeypatch):
    monkeypatch.setattr(packed_text, "PIECE_BYTES", 8)
    text = "ab cd\nef gh ij\nklmnopqrstu\nüüüüüüüüüü\n".encode()
    for separator, documents in (
        (None, [text]),
        (b"\n", text.split(b"\n")[:-1]),
        (b"gh ij\nkl", text.split(b"gh ij\nkl")),
    ):
        found = list(pieces_of(io.BytesIO(text), 3, separator))
        whole, begins = [b""], []
        for piece in found:
            piece.content.decode()  # no character is cut
            whole[-1] += piece.content
            if piece.ends:
                begins.append(piece.origin)
                whole.append(b"")
        assert whole == [*documents, b""]
        assert [text[at:].startswith(one) for (_, at), one in zip(begins, documents, strict=True)] == [True] * len(
            documents
        )
    assert [piece.content for piece in pieces_of(io.BytesIO(b"aaa bbb ccc\nddd"), 0, None)] == [
        b"aaa bbb ccc\n",
        b"ddd",
    ]


def test_blank_documents_are_left_out():
    assert [p.content for p in pieces_of(io.BytesIO(b"a##\n##b## "), 0, b"##")] == [b"a", b"b"]
    assert not list(pieces_of(io.BytesIO(b"\n"), 0, None))


def test_tokens_are_written_once_and_removed():
    store = TokenFile([Piece(b"abc", (0, 0), ends=True)], Vocabulary(), str)
    path = store._path
    assert path.stat().st_size == 8
    assert store.tokens(np.array([1, 0]), 3).tolist() == [[98, 99, 256], [97, 98, 99]]
    del store
    assert not path.exists()


def test_what_is_no_tokenizer(tmp_path):
    with pytest.raises(ConfigurationError, match="tokenizer must be 'bytes', the path"):
        vocabulary_of(3)
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    with pytest.raises(ConfigurationError, match="none holds text"):
        read(tmp_path / "a.jsonl", tokenizer="bytes")


# ---- the library itself


@pytest.fixture
def tokenizer(tmp_path):
    tokenizers = library("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(TEXTS, trainer)
    made.enable_truncation(3)
    made.enable_padding(length=9)
    made.save(str(tmp_path / "tokenizer.json"))
    return made


def test_a_file_of_the_library(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("<sep>".join(TEXTS))
    for given in (tmp_path / "tokenizer.json", str(tmp_path / "tokenizer.json"), tokenizer):
        reader = read(tmp_path / "a.txt", tokenizer=given, length=16, separator="<sep>")
        plain = vocabulary_of(tokenizer).tokenizer
        truth = [plain.encode(text, add_special_tokens=False).ids for text in TEXTS if text]
        same(reader, packed(truth, 16, tokenizer.token_to_id("<|endoftext|>")))
        assert reader.vocabulary == tokenizer.get_vocab_size()
    assert reader.source.shown(reader.read(np.array([0]))["input"][0]).startswith("one two three" + "four"[:3])
    assert tokenizer.truncation is not None  # that of the caller is not changed


def test_damaged_files_of_the_library(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9 " * 3)
    assert "a.txt, byte 0: the text that begins there is not UTF-8" in refusal(tmp_path / "a.txt", tokenizer=tokenizer)
    (tmp_path / "b.json").write_text('{"model": 1}')
    assert "not a JSON file of the tokenizers library" in refusal(tmp_path / "a.txt", tokenizer=tmp_path / "b.json")
    with pytest.raises(DataError, match="cannot be read"):
        vocabulary_of(tmp_path / "none.json")
