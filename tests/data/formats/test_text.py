"""Files of text: bytes, compressed bytes, and what else ends in .txt."""

import gzip

import pytest
import torch
from data.files import refusal
from data.test_packed_text import packed, same
from torch import nn

import descend
from descend.data import read
from descend.data.formats import text

FIRST, SECOND = "Once upon a time, ä cat.\n".encode(), b"There was a dog.\nIt ran.\n"


@pytest.mark.parametrize("length", [1, 5, 1000])
def test_files_are_documents(tmp_path, length):
    (tmp_path / "a.txt").write_bytes(FIRST)
    (tmp_path / "b.txt").write_bytes(b"")
    (tmp_path / "c.txt").write_bytes(SECOND)
    reader = read(tmp_path, length=length)
    same(reader, packed([FIRST, SECOND], length, 256))
    assert reader.vocabulary == 257
    assert reader.source.place(0) == str(tmp_path / "a.txt")


def test_documents_in_a_file_and_compressed_files(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(FIRST + b"<|end|>" + SECOND))
    same(read(tmp_path, length=9, separator="<|end|>"), packed([FIRST, SECOND], 9, 256))
    same(read(tmp_path, length=9), packed([FIRST + b"<|end|>" + SECOND], 9, 256))
    reader = read(tmp_path, length=9, separator="<|end|>")
    assert reader.source.place(len(reader) - 1) == f"{tmp_path / 'a.txt.gz'}, byte {len(FIRST) + 7}"


def test_prose_and_lists_of_images_are_distinguished_by_content(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("See also cat.jpg\nIt shows a cat.\n")
    assert read(path).format == "text"
    path.write_text("cat.jpg 1\ndog.jpg 0\n")
    assert "there is no file" in refusal(path)
    assert read(path, format="text").format == "text"


def test_damaged_and_hostile_files(tmp_path, monkeypatch):
    path = tmp_path / "a.txt.gz"
    content = gzip.compress(b"a b c\n" * 1000)
    path.write_bytes(content[:-20])
    assert "damaged or was cut off" in refusal(path)
    path.write_bytes(content)
    monkeypatch.setattr(text, "MAX_DECOMPRESSED_BYTES", 4096)
    assert "more than 4,096 bytes when decompressed" in refusal(path)
    (tmp_path / "b.txt").write_bytes(b"")
    assert "is empty" in refusal(tmp_path / "b.txt")
    (tmp_path / "c.txt").write_bytes(b"\n")
    assert "0 samples" in refusal(tmp_path / "c.txt", separator="#")


class Bigram(nn.Module):
    def __init__(self, separate=False):
        super().__init__()
        self.table = nn.Embedding(257, 257)
        self.forward = self.by_document if separate else self.alone
        self.seen = []

    def alone(self, tokens):
        return self.table(tokens).transpose(1, 2)

    def by_document(self, input, document):  # noqa: A002 - the name of the field
        self.seen.append(document)
        return self.table(input).transpose(1, 2)


def test_fit_learns_the_next_byte(tmp_path):
    (tmp_path / "a.txt").write_text("abcabcabc" * 120)
    module = Bigram(separate=True)
    descend.fit(
        module,
        "cross_entropy",
        tmp_path / "a.txt",
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=300.0),
        batch_size=4,
        stop=descend.Epochs(1),
    )
    assert module.table.weight.argmax(1)[[97, 98, 99]].tolist() == [98, 99, 97]
    assert set(torch.unique(torch.cat(module.seen)).tolist()) == {-1, 0}
    assert descend.predict(Bigram(), read(tmp_path / "a.txt", length=32)).shape[1:] == (257, 32)


def test_the_mark_of_utf_8_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfabc")
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbf")
    for options in ({}, {"separator": "|"}):
        reader = read(tmp_path, length=3, **options)
        assert reader.read([0])["input"].tolist() == [[97, 98, 99]]
    (tmp_path / "c.txt").write_bytes("abc".encode("utf-16"))
    assert f"{tmp_path / 'c.txt'} is in UTF-16" in refusal(tmp_path)
