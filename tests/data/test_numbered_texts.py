"""Text that names classes: one number for each class, in all roles of a data set, in evaluations and predictions."""

import copy
import gzip
import io
import json
import shutil
import tarfile
from functools import partial

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch

import descend
from descend.data import read
from descend.errors import ConfigurationError, DataError

LABELS = np.array(["dog", "cat", "owl", "cat"])


@pytest.mark.parametrize("labels", [LABELS, LABELS.astype("S")])
def test_classes_are_numbered_in_the_order_of_the_alphabet(tmp_path, labels, monkeypatch):
    monkeypatch.setattr("descend.data.numbered_texts._READ_AT_ONCE", 3)
    np.savez(tmp_path / "a.npz", x=np.arange(4.0), y=labels)
    reader = copy.deepcopy(read(tmp_path / "a.npz", target="y"))  # by the methods that send it to a worker
    assert reader.classes == {"y": ["cat", "dog", "owl"]}
    assert reader.fields["y"].dtype == np.int64
    assert reader.read(np.array([3, 0, 2]))["y"].tolist() == [0, 1, 2]
    assert reader.column("y").tolist() == [1, 0, 2, 0]
    assert read(tmp_path / "a.npz").fields["y"].dtype == labels.dtype


def test_classes_that_are_given_keep_their_order(tmp_path):
    np.save(tmp_path / "a.npy", np.array([("dog", 1), ("cat", 2)], dtype=[("kind", "U3"), ("n", "i4")]))
    reader = read(tmp_path / "a.npy", label="kind", classes=["dog", "cat"])
    assert reader.read(np.arange(2))["kind"].tolist() == [0, 1]
    reader = read(tmp_path / "a.npy", label="kind", classes=["dog"])
    with pytest.raises(DataError, match=r"sample 1 .*'cat' in 'kind' is none of its classes: dog"):
        reader.read(np.arange(2))


def test_a_module_learns_them(tmp_path):
    """Numbers of 128 bits, which torch does not have, beside them."""
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 3), np.longdouble), y=LABELS)
    module = torch.nn.Linear(3, 3)
    torch.nn.init.zeros_(module.bias)
    descend.fit(
        module,
        "cross_entropy",
        tmp_path / "a.npz",
        targets=["y"],
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        batch_size=4,
        stop=descend.Epochs(1),
    )
    assert int(module.bias.argmax()) == 0  # "cat", which is half of them


# ---- other roles

TRAIN, TEST = ["dog", "cat", "owl", "cat"], ["owl", "cat", "owl"]  # as numbers: 1 0 2 0, and 2 0 2


def csv(path, kinds):
    pyarrow.csv.write_csv(pa.table({"x": np.arange(len(kinds)) / 2, "kind": kinds}), path)


def packed(path, kinds):
    path.write_bytes(gzip.compress("".join(["x,kind\n", *(f"{i},{kind}\n" for i, kind in enumerate(kinds))]).encode()))


def parquet(path, kinds):
    pq.write_table(pa.table({"x": np.arange(len(kinds)) / 2, "kind": kinds}), path)


def feather(path, kinds):
    codes, names = pa.array(kinds).dictionary_encode(), sorted(set(kinds), reverse=True)
    codes = pa.DictionaryArray.from_arrays(pa.array([names.index(kind) for kind in kinds]), names, ordered=True)
    pyarrow.feather.write_feather(pa.table({"x": np.arange(len(kinds)) / 2, "kind": codes}), str(path))


def jsonl(path, kinds):
    path.write_text("".join(json.dumps({"x": i / 2, "kind": kind}) + "\n" for i, kind in enumerate(kinds)))


def npz(path, kinds):
    np.savez(path, x=np.arange(len(kinds)) / 2, kind=np.array(kinds))


def hdf5(path, kinds):
    with h5py.File(path, "w") as file:
        file["x"], file["kind"] = np.arange(len(kinds)) / 2, kinds


def enumeration(path, kinds):
    numbers = {kind: number for number, kind in enumerate(sorted(set(kinds), reverse=len(kinds) < len(TRAIN)))}
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(len(kinds)) / 2
        file.create_dataset("kind", data=[numbers[kind] for kind in kinds], dtype=h5py.enum_dtype(numbers, "i1"))


def tar(path, kinds, ending="cls"):
    with tarfile.open(path, "w") as file:
        for i, kind in enumerate(kinds):
            for name, content in ((ending, f"{kind}\n" if i % 2 else kind), ("json", json.dumps({"x": i / 2}))):
                member = tarfile.TarInfo(f"{i:04}.{name}")
                member.size = len(content)
                file.addfile(member, io.BytesIO(content.encode()))


FORMATS = [
    (csv, "csv", "kind"),
    (packed, "csv.gz", "kind"),
    (parquet, "parquet", "kind"),
    (feather, "feather", "kind"),
    (jsonl, "jsonl", "kind"),
    (npz, "npz", "kind"),
    (hdf5, "h5", "kind"),
    (enumeration, "h5", "kind"),
    (tar, "tar", "cls"),
    (partial(tar, ending="txt"), "tar", "txt"),
]


@pytest.mark.parametrize(("write", "ending", "name"), FORMATS)
@pytest.mark.parametrize("place", ["roles", "folders", "beside", "list"])
def test_each_role_has_the_class_numbers_of_training(tmp_path, write, ending, name, place):
    if place == "folders":
        for role, kinds in (("train", TRAIN), ("test", TEST)):
            (tmp_path / role).mkdir()
            write(tmp_path / role / f"a.{ending}", kinds)
        source = tmp_path
    else:
        write(tmp_path / f"train.{ending}", TRAIN)
        write(tmp_path / f"test.{ending}", TEST)
        source = {"roles": tmp_path, "beside": tmp_path / f"test.{ending}", "list": [tmp_path / f"test.{ending}"]}[
            place
        ]
    for reader in (read(source, role="test", target=name), read(source, role="test", target=name, skip_bad=1)):
        reader = copy.deepcopy(reader)
        assert list(reader.classes[name]) == ["cat", "dog", "owl"]
        assert reader.read(np.arange(3))[name].tolist() == [2, 0, 2]
        assert reader.column(name).tolist() == [2, 0, 2]
        assert any("classes have the numbers" in note for note in reader.notes) == (place in ("beside", "list"))


@pytest.mark.parametrize(("write", "ending", "name"), FORMATS)
def test_a_class_that_training_does_not_have_is_an_error_of_its_sample(tmp_path, write, ending, name):
    write(tmp_path / f"train.{ending}", TRAIN)
    write(tmp_path / f"test.{ending}", ["cat", "cat", "bat"])
    reader = read(tmp_path, role="test", target=name)
    assert reader.read(np.arange(2))[name].tolist() == [0, 0]
    with pytest.raises(
        DataError, match=rf"sample 2 of .*test.{ending}.*'bat' in '{name}' is none of its classes: cat, dog"
    ):
        reader.read(np.arange(3))


@pytest.mark.parametrize(("write", "ending", "name"), [row for row in FORMATS if row[0] is not enumeration])
def test_an_empty_text_is_a_missing_class(tmp_path, write, ending, name):
    write(tmp_path / f"a.{ending}", ["b", "", "a"])
    reader = read(tmp_path / f"a.{ending}", target=name)
    assert reader.classes[name] == ["a", "b"]
    assert reader.read(np.array([0, 2]))[name].tolist() == [1, 0]
    with pytest.raises(DataError, match=f"sample 1 .*'{name}' names a class, and is missing"):
        reader.read(np.arange(3))


@pytest.mark.parametrize(
    ("train", "test", "numbers"),
    [
        ("1 2 b c d", "2 1", [1, 0]),  # integers, to a parser that sees the test file alone
        ("-1 2 b c d", "2 -1", [1, 0]),
        ("True False maybe", "True False", [1, 0]),
        ("true false maybe", "TRUE false", [2, 0]),
    ],
)
def test_values_that_look_like_others_in_another_role_are_the_texts_that_they_are(tmp_path, train, test, numbers):
    for role, kinds in (("train", train), ("test", test)):
        (tmp_path / f"{role}.csv").write_text("".join(["x,k\n", *(f"1,{kind}\n" for kind in kinds.split())]))
    reader = read(tmp_path, role="test", target="k")
    assert [read(tmp_path, target="k").classes["k"][number] for number in numbers] == [
        next(name for name in train.split() if name.casefold() == kind.casefold()) for kind in test.split()
    ]
    assert reader.read(np.arange(len(numbers)))["k"].tolist() == numbers


def test_texts_where_training_has_numbers_are_refused(tmp_path):
    (tmp_path / "train.csv").write_text("x,k\n1,1\n2,2\n")
    (tmp_path / "test.csv").write_text("x,k\n1,a\n2,b\n")
    with pytest.raises(DataError, match="'k' must be numbers for 'test' as it is for 'train', got texts"):
        read(tmp_path, role="test", target="k")


def test_a_mapping_of_fields_to_files_has_the_numbers_of_training(tmp_path):
    folders = [tmp_path / "train", tmp_path / "test"]
    for folder, kinds in zip(folders, (TRAIN, TEST), strict=True):
        folder.mkdir()
        np.save(folder / "x.npy", np.arange(len(kinds)))
        np.save(folder / "y.npy", np.array(kinds))
    reader = read({name: folders[1] / f"{name}.npy" for name in "xy"}, role="test", target="y")
    assert reader.read(np.arange(3))["y"].tolist() == [2, 0, 2]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("x,k\n1,a\n2,b\n", {"classes": ["a", "b"]}, "got those of no field: .*those of classes none"),
        ("x,k\n1,a\n2,b\n", {"target": "k", "classes": {"kk": ["a", "b"]}}, "got those of kk; did you mean 'k'"),
        ("x,k\n1,a\n2,b\n", {"target": "k", "classes": {"k": ["a", "b"], "x": ["c"]}}, "got those of x"),
        ("x,k\n1,.5\n2,.25\n", {"target": "k", "classes": ["a", "b"]}, "got those of no field"),
    ],
)
def test_classes_of_no_field_are_refused(tmp_path, text, options, message):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ConfigurationError, match=f"classes= must be of fields that are classes, {message}"):
        read(tmp_path / "a.csv", **options)


@pytest.mark.parametrize("classes", ["cat", ["a", "a"], {"k": ["a", "b", "a"]}, [0, 1], {"k": "ab"}, 5])
def test_classes_are_different_texts(tmp_path, classes):
    (tmp_path / "a.csv").write_text("x,k\n1,a\n2,b\n")
    with pytest.raises(ConfigurationError, match="read: classes must be different texts in a list, got "):
        read(tmp_path / "a.csv", target="k", classes=classes)


def test_classes_of_integers_are_their_names(tmp_path):
    (tmp_path / "a.csv").write_text("x,k\n1,0\n2,1\n")
    reader = read(tmp_path / "a.csv", target="k", classes=["no", "yes"])
    assert reader.classes == {"k": ["no", "yes"]}
    assert reader.read(np.arange(2))["k"].tolist() == [0, 1]
    reader = read(tmp_path / "a.csv", target="k", classes=["1", "0"])  # these are texts of the integers
    assert reader.read(np.arange(2))["k"].tolist() == [1, 0]


# ---- fit, evaluate, predict


def fitted(train, **options):
    module = torch.nn.Linear(1, 3)
    how = {"optimizer": partial(torch.optim.SGD, lr=0.1), "batch_size": 4, "stop": descend.Epochs(1), "verbose": False}
    return descend.fit(module, "cross_entropy", train, **how, **options)


def loss_of(module, numbers):
    inputs = torch.arange(len(numbers))[:, None] / 2
    return torch.nn.functional.cross_entropy(module(inputs), torch.tensor(numbers)).item()


@pytest.mark.parametrize("train", ["path", "folder", "reader"])
@pytest.mark.parametrize("other", ["path", "list", "reader", "reader of another order"])
def test_validation_and_test_data_from_elsewhere_have_the_numbers_of_training(tmp_path, train, other):
    (tmp_path / "a").mkdir()
    csv(tmp_path / "a" / "train.csv", TRAIN)
    csv(tmp_path / "others.csv", TEST)
    path = tmp_path / "a" / "train.csv"
    data = {"path": path, "folder": tmp_path / "a", "reader": read(path, target="kind")}[train]
    elsewhere = tmp_path / "others.csv"
    valid = {
        "path": elsewhere,
        "list": [elsewhere],
        "reader": read(elsewhere, target="kind"),
        "reader of another order": read(elsewhere, target="kind", classes=["owl", "dog", "cat"]),
    }[other]
    targets = None if train == "reader" else ["kind"]
    result = fitted(data, valid=valid, test=valid, targets=targets)
    truth = loss_of(result.module, [2, 0, 2])
    rows = {row["mode"]: row["objective"] for row in result.history}
    assert rows["validation"] == pytest.approx(truth, rel=1e-6)
    assert rows["test"] == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize("known", ["result", "run directory", "checkpoint"])
@pytest.mark.parametrize("data", ["path", "reader"])
def test_evaluations_have_the_numbers_that_the_module_was_trained_with(tmp_path, known, data):
    csv(tmp_path / "animals.csv", TRAIN)
    csv(tmp_path / "others.csv", TEST)
    result = fitted(tmp_path / "animals.csv", targets=["kind"], run_dir=tmp_path / "run")
    module = result.module
    if known != "result":
        module = torch.nn.Linear(1, 3)
        checkpoint = descend.load_weights(module, tmp_path / "run", which="last")
        if known == "checkpoint":
            descend.load_weights(module := torch.nn.Linear(1, 3), checkpoint)
    others = tmp_path / "others.csv"
    data = {"path": others, "reader": read(others, target="kind")}[data]
    targets = ["kind"] if data is others else None
    found = descend.evaluate(module, "cross_entropy", data, targets=targets)
    assert found["objective"] == pytest.approx(loss_of(module, [2, 0, 2]), rel=1e-6)
    torch.testing.assert_close(descend.predict(module, data, targets=targets), module(torch.arange(3)[:, None] / 2))


def test_texts_whose_numbers_are_not_known_are_refused_with_a_remedy_that_numbers_no_part(tmp_path, capsys):
    csv(tmp_path / "others.csv", TEST)
    module = torch.nn.Linear(1, 3)
    with pytest.raises(DataError, match=r"'kind' holds text, .* not known: .*target='kind', classes=\[...\]"):
        descend.evaluate(module, "cross_entropy", tmp_path / "others.csv", targets=["kind"])
    with pytest.raises(DataError, match=r"'kind' holds text, .*target='kind', classes=\[...\]\) if it is a class"):
        descend.evaluate(module, "cross_entropy", tmp_path / "others.csv")
    torch.testing.assert_close(
        descend.predict(module, tmp_path / "others.csv", targets=["kind"]), module(torch.arange(3)[:, None] / 2)
    )
    descend.evaluate(module, "cross_entropy", read(tmp_path / "others.csv", target="kind"))
    assert "the classes of kind are numbered by these samples alone" in capsys.readouterr().out
    known = read(tmp_path / "others.csv", target="kind", classes=["cat", "dog", "owl"])
    found = descend.evaluate(module, "cross_entropy", known)
    assert found["objective"] == pytest.approx(loss_of(module, [2, 0, 2]), rel=1e-6)
    assert "numbered" not in capsys.readouterr().out
    for train in ((torch.ones(4, 1), torch.tensor([0, 1, 2, 0])), read(numbers_of(tmp_path), target="kind")):
        with pytest.raises(DataError, match="'kind' holds text, and which class of training has which number is not"):
            fitted(train, valid=tmp_path / "others.csv", targets=None if hasattr(train, "read") else ["kind"])


def numbers_of(folder):
    csv(folder / "numbers.csv", [0, 1, 2, 0])
    return folder / "numbers.csv"


def test_a_run_is_not_continued_with_classes_in_another_order(tmp_path):
    csv(tmp_path / "animals.csv", TRAIN)
    fitted(read(tmp_path / "animals.csv", target="kind"), run_dir=tmp_path / "run")
    other = read(tmp_path / "animals.csv", target="kind", classes=["owl", "dog", "cat"])
    with pytest.raises(ConfigurationError, match=r"classes: .* refused: outputs would mean other classes"):
        fitted(other, run_dir=tmp_path / "run", resume=True)
    shutil.rmtree(tmp_path / "run")
    fitted(other, run_dir=tmp_path / "run")
    fitted(other, run_dir=tmp_path / "run", resume=True)
