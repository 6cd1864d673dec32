"""Files of tensors: those of the safetensors library, with checksums, and nothing allocated by a forged header."""

import hashlib
import json
import struct

import pytest
import torch
from safetensors.torch import load_file

from descend.errors import StorageError, Unsupported
from descend.runtime.safetensors_io import TensorFiles, check_layout, damaged_tensors, require_storable, write_tensors

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8),
]


def tensors():
    draw = torch.Generator().manual_seed(0)
    values = torch.randint(0, 100, (3, 2), generator=draw)
    return {f"t{i}": values.to(dtype) for i, dtype in enumerate(DTYPES)}


def read_tensors(path):
    files = TensorFiles({path: None})
    return {name: files.read(name) for name in files}


def test_the_library_reads_what_is_written_with_every_dtype(tmp_path):
    some = {
        **tensors(),
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "turned": torch.arange(6.0).view(2, 3).t(),
    }
    facts = write_tensors(tmp_path / "a", some)
    data = (tmp_path / "a").read_bytes()
    assert facts["bytes"] == len(data)
    assert facts["sha256"] == hashlib.sha256(data).hexdigest()
    for found in (load_file(tmp_path / "a"), read_tensors(tmp_path / "a")):
        assert found.keys() == some.keys()
        for name, tensor in some.items():
            assert found[name].dtype == tensor.dtype
            assert found[name].equal(tensor)


def test_every_tensor_is_aligned_and_the_file_does_not_depend_on_the_order_of_names(tmp_path):
    some = tensors()
    facts = write_tensors(tmp_path / "a", some)["tensors"]
    assert all(begin % some[name].element_size() == 0 for name, (begin, _, _) in facts.items())
    assert all(end - begin == some[name].nbytes for name, (begin, end, _) in facts.items())
    write_tensors(tmp_path / "b", dict(reversed(some.items())))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_file_that_is_there_is_not_written_over(tmp_path):
    (tmp_path / "a").write_text("mine")
    with pytest.raises(FileExistsError):
        write_tensors(tmp_path / "a", tensors())
    assert (tmp_path / "a").read_text() == "mine"


def test_the_damaged_tensor_is_the_one_that_is_named(tmp_path):
    some = {"body/a": torch.arange(4.0), "b%2Fc": torch.arange(3)}
    facts = write_tensors(tmp_path / "a", some)["tensors"]
    assert damaged_tensors(tmp_path / "a", facts) == []
    data = bytearray((tmp_path / "a").read_bytes())
    for place in (facts["b%2Fc"][0], facts["b%2Fc"][1] - 1):
        data[place] ^= 1
        (tmp_path / "a").write_bytes(data)
        assert damaged_tensors(tmp_path / "a", facts) == ["b/c"]
        data[place] ^= 1


SPARSE = torch.eye(2).to_sparse()


def test_what_no_file_can_hold_is_refused_before_and_while_writing(tmp_path):
    require_storable({"a": torch.zeros(2)})
    with pytest.raises(Unsupported, match=r"'s' \(torch.float32, torch.sparse_coo\), 'c' \(torch.complex128"):
        require_storable({"s": SPARSE, "a": torch.zeros(2), "c": torch.zeros(1, dtype=torch.complex128)})
    with pytest.raises(StorageError, match="'s' is of a type that no checkpoint can hold"):
        write_tensors(tmp_path / "a", {"s": SPARSE})
    assert not (tmp_path / "a").exists()


def forged(entries, payload=b"", length=None):
    text = json.dumps(entries).encode() if not isinstance(entries, bytes) else entries
    return struct.pack("<Q", len(text) if length is None else length) + text + payload


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "claims a header of 0 bytes, and the file has 0"),
        (b"\x02\x00\x00", "claims a header of 0 bytes"),
        (forged({}, length=1), "claims a header of 1 bytes"),
        (forged({}, length=2**62), "claims a header of 4,611,686,018,427,387,904 bytes"),
        (forged({}, length=3), "claims a header of 3 bytes, and the file has 10"),
        (forged(b"[1, 2]"), r"no valid safetensors header \(AttributeError\)"),
        (forged(b"\xff\xfe\x00{"), "no valid safetensors header"),
        (forged({"a": {**ENTRY, "dtype": "X9"}}, bytes(8)), r"\(KeyError\)"),
        (forged({"a": {**ENTRY, "shape": [3]}}, bytes(8)), r"\(ValueError\)"),
        (forged({"a": {**ENTRY, "data_offsets": [-4, 4]}}, bytes(8)), r"\(ValueError\)"),
        (forged({"a": {**ENTRY, "shape": [-1, -2]}}, bytes(8)), r"\(ValueError\)"),
        (forged({"a": ENTRY}, bytes(7)), "claims 8 bytes of tensors and has 7"),
        (forged({"a": ENTRY}, bytes(9)), "claims 8 bytes of tensors and has 9"),
        (forged({}, bytes(1)), "claims 0 bytes of tensors and has 1"),
    ],
)
def test_a_header_that_does_not_fit_its_file(tmp_path, data, message):
    (tmp_path / "a").write_bytes(data)
    for read in (check_layout, read_tensors):
        with pytest.raises(StorageError, match=message):
            read(tmp_path / "a")


def test_metadata_of_other_writers_is_allowed(tmp_path):
    (tmp_path / "a").write_bytes(forged({"__metadata__": {"format": "pt"}, "a": ENTRY}, bytes(8)))
    check_layout(tmp_path / "a")
    assert read_tensors(tmp_path / "a")["a"].tolist() == [0.0, 0.0]
