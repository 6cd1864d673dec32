"""Sources and the files that they name."""

import glob
import gzip
import os
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from pyarrow import feather
from system_needs import needs

from descend.data import paths, read
from descend.data.paths import HEAD_BYTES, NO_DATA, SourceFiles, files_of, head, is_path, skipped_line
from descend.errors import ConfigurationError, DataError


@pytest.fixture
def folder(tmp_path):
    def made(*names):
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
        return tmp_path

    return made


def names(paths, root):
    return [str(path.relative_to(root)) for path in paths]


def test_files_folders_patterns_and_lists(folder):
    root = folder("b.csv", "a.csv", "c/d.csv", ".hidden.csv", "_temporary/e.csv")
    assert names(files_of(root / "b.csv"), root) == ["b.csv"]
    assert names(files_of(str(root)), root) == ["a.csv", "b.csv", "c/d.csv"]
    assert names(files_of(f"{root}/*.csv"), root) == ["a.csv", "b.csv"]
    assert names(files_of(f"{root}/**/[ad].csv"), root) == ["a.csv", "c/d.csv"]
    assert names(files_of([root / "b.csv", f"{root}/*.csv"]), root) == ["b.csv", "a.csv"]


def test_braces(folder):
    root = folder(*(f"s-{i:03}.tar" for i in range(12)), "a1.csv", "b1.csv", "b2.csv", "odd{1,2}")
    assert names(files_of(f"{root}/s-{{008..011}}.tar"), root) == [f"s-{i:03}.tar" for i in range(8, 12)]
    assert names(files_of(f"{root}/s-0{{11..09}}.tar"), root) == ["s-011.tar", "s-010.tar", "s-009.tar"]
    assert names(files_of(f"{root}/{{b,a}}{{1,1}}.csv"), root) == ["b1.csv", "a1.csv"]
    assert names(files_of(f"{root}/{{b,a}}?.csv"), root) == ["b1.csv", "b2.csv", "a1.csv"]
    assert names(files_of(f"{root}/odd{{1,2}}"), root) == ["odd{1,2}"]
    with pytest.raises(DataError, match=r"there is no file or folder .*s-012\.tar"):
        files_of(f"{root}/s-{{000..012}}.tar")
    with pytest.raises(ConfigurationError, match="more than 1,048,576 names"):
        files_of(f"{root}/s-{{0..9999999}}.tar")
    with pytest.raises(DataError, match="there is no file"):
        files_of(f"{root}/{{x}}")


@pytest.mark.parametrize(
    ("given", "train", "validate", "test"),
    [
        (("train/1", "val/2", "test/3"), ["train/1"], ["val/2"], ["test/3"]),
        (("train.csv", "test.csv"), ["train.csv"], None, ["test.csv"]),
        (
            ("train-00.pq", "train-01.pq", "validation-00.pq"),
            ["train-00.pq", "train-01.pq"],
            ["validation-00.pq"],
            None,
        ),
        (("batch_1.bin", "batch_2.bin", "test_batch.bin"), ["batch_1.bin", "batch_2.bin"], None, ["test_batch.bin"]),
        (("train-images.gz", "t10k-images.gz"), ["train-images.gz"], None, ["t10k-images.gz"]),
        (("trains/1", "test/2"), ["test/2", "trains/1"], ["test/2", "trains/1"], ["test/2", "trains/1"]),
        (("test.csv", "testimony.csv"), ["testimony.csv"], None, ["test.csv"]),
        (("test.csv",), ["test.csv"], ["test.csv"], ["test.csv"]),
        (("set/train/1", "set/val/2"), ["set/train/1"], ["set/val/2"], None),  # as archives are unpacked
        (("a/train2017/1", "a/val2017/2"), ["a/train2017/1"], ["a/val2017/2"], None),
    ],
)
def test_roles(folder, given, train, validate, test):
    root = folder(*given)
    for role, wanted in (("train", train), ("validate", validate), ("test", test)):
        if wanted is None:
            with pytest.raises(DataError, match=f"none for '{role}'"):
                files_of(root, role)
        else:
            assert names(files_of(root, role), root) == wanted


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("nowhere.csv", "there is no file"),
        ("no*.csv", "no file matches"),
        ("x" * 5000, "cannot be opened"),
        ("https://host/a.csv", "is an address.*: fetch it"),
        ("s3://bucket/a.parquet", "is an address"),
        ("a\0", "no file|cannot"),
    ],
)
def test_what_is_not_there(source, part):
    with pytest.raises(DataError, match=part):
        files_of(source)


def test_what_is_no_file(tmp_path):
    with pytest.raises(DataError, match="has no files"):
        files_of(tmp_path)
    with pytest.raises(DataError, match="neither a file nor a folder"):
        files_of("/dev/null")
    with pytest.raises(ConfigurationError, match="must be a path"):
        files_of(3)
    assert [is_path(one) for one in ("a", Path("a"), ["a", Path("b")], [], 3, [3], {"x": "a"})] == [True] * 3 + [
        False
    ] * 4


def test_the_head_of_a_file(tmp_path):
    content = bytes(range(256)) * 10
    (tmp_path / "plain").write_bytes(content)
    (tmp_path / "packed").write_bytes(gzip.compress(content))
    (tmp_path / "cut").write_bytes(b"\x1f\x8b" + b"no gzip")
    assert head(tmp_path / "plain") == content[:HEAD_BYTES]
    assert content.startswith(head(tmp_path / "packed"))
    assert len(head(tmp_path / "packed")) > 500
    assert head(tmp_path / "cut") == b"\x1f\x8bno gzip"


def test_descriptions_of_saved_data_sets_are_no_data(folder):
    root = folder("set/data-0.arrow", "set/dataset_info.json", "set/state.json", "set/dataset_dict.json")
    assert names(files_of(root), root) == ["set/data-0.arrow"]


@pytest.mark.parametrize("kind", ["npy", "npz", "arrow", "txt", "h5", "bin", "idx"])
def test_a_file_that_is_cut_while_it_is_read(tmp_path, kind):
    """Without the check the process would end by SIGBUS."""
    path = tmp_path / f"a.{kind}"
    values = np.arange(50_000.0)
    if kind == "npy":
        np.save(path, values)
    elif kind == "npz":
        np.savez(path, x=values)
    elif kind == "arrow":
        feather.write_feather(pa.table({"x": values}), path, compression="uncompressed", chunksize=10_000)
    elif kind == "h5":
        with h5py.File(path, "w") as file:
            file["x"] = values
    elif kind == "bin":
        path.write_bytes(bytes(3073) * 20)
    elif kind == "idx":
        path.write_bytes(b"\0\0\x08\x01" + (50_000).to_bytes(4, "big") + bytes(50_000))
    else:
        path.write_bytes(b"some text " * 10_000)
    reader = read(path)
    reader.read(np.array([0]))
    os.truncate(path, 5000)
    last = len(reader) - 1
    with pytest.raises(DataError, match=rf"sample {last} of .*a\.{kind}.* was cut to 5,000 bytes while it was read"):
        reader.read(np.array([last]))


def test_files_that_a_system_puts_into_folders_are_no_data(folder):
    root = folder("images/a/1.png", "images/a/Thumbs.db", "images/b/desktop.ini", "images/b/.DS_Store")
    assert names(files_of(root), root) == ["images/a/1.png"]


def line(source):
    return SourceFiles.found(source).line(source)


def test_links_to_folders_are_entered_as_if_the_files_lay_there(folder):
    root = folder("store/x/1.png", "store/x/deep/2.png", "store/y24/1.csv", "data/y/3.png")
    (root / "data" / "x").symlink_to(root / "store" / "x")
    (root / "data" / "year=2024").symlink_to("../store/y24")
    (root / "data" / "y" / "4.png").symlink_to("3.png")
    found = ["data/x/1.png", "data/x/deep/2.png", "data/y/3.png", "data/y/4.png", "data/year=2024/1.csv"]
    assert names(files_of(root / "data"), root) == found
    (root / "whole").symlink_to("data")
    assert names(files_of(root / "whole"), root) == [one.replace("data", "whole") for one in found]
    assert line(root / "data") == ""


def test_roles_that_are_links_to_folders(folder):
    root = folder("store/train/1.png", "store/val/2.png", "data/README")
    for role in ("train", "val"):
        (root / "data" / role).symlink_to(root / "store" / role)
    assert names(files_of(root / "data"), root) == ["data/train/1.png"]
    assert names(files_of(root / "data", "validate"), root) == ["data/val/2.png"]
    assert names(SourceFiles.found(root / "data").beside_roles(), root) == ["data/README"]


def test_a_link_to_a_folder_that_it_is_in_is_skipped_and_counted(folder):
    root = folder("data/a/1.csv", "data/b/2.csv", "beside.csv")
    for name, target in (("data/a/up", ".."), ("data/a/itself", "."), ("data/out", ".."), ("data/b/other", "../a")):
        (root / name).symlink_to(target)
    assert names(files_of(root / "data"), root) == ["data/a/1.csv", "data/b/2.csv", "data/b/other/1.csv"]
    assert "5 link to a folder that it is in (itself, out, up)" in line(root / "data")
    (root / "data" / "c").mkdir()
    for one, other in ("cd", "dc"):  # a circle of two folders that lead to each other
        (root / "data" / one).mkdir(exist_ok=True)
        (root / "data" / one / other).symlink_to(root / "data" / other)
    assert names(files_of(root / "data"), root)[:2] == ["data/a/1.csv", "data/b/2.csv"]
    assert names(files_of(f"{root}/data/**/*.csv"), root) == ["data/a/1.csv", "data/b/2.csv", "data/b/other/1.csv"]


@pytest.mark.parametrize(
    "pattern",
    [
        "**",
        "**/*",
        "**/*.csv",
        "*/**/*.csv",
        "b/**",
        "**/b/*",
        "**/[!a]*.csv",
        "**/.h/*.csv",
        "a/**/**/1.csv",
        "x/**",
        "*",
    ],
)
def test_patterns_for_any_folders_match_as_those_of_glob(folder, pattern):
    root = folder("1.csv", "a/1.csv", "a/b/2.csv", "b/b/b/3.csv", "a/.h/4.csv", "c/.5.csv", "b/_6.csv", "a/7.txt")
    matches = glob.glob(f"{root}/{pattern}", recursive=True)  # noqa: PTH207
    wanted = sorted(one for one in matches if Path(one).is_file())
    found = [str(one) for one in files_of(f"{root}/{pattern}")] if wanted else []
    assert found == wanted
    if not wanted:
        with pytest.raises(DataError, match="no file matches"):
            files_of(f"{root}/{pattern}")


def test_links_that_multiply_are_refused(folder, monkeypatch):
    """Each folder has two links to the next one: 2 to the power of 30 paths."""
    monkeypatch.setattr(paths, "_MOST_TIMES", 16)
    root = folder("30/1.csv")
    for level in range(30):
        (root / str(level)).mkdir()
        for name in "ab":
            (root / str(level) / name).symlink_to(f"../{level + 1}")
    with pytest.raises(DataError, match=r"lead to the folder .* more than 16 times"):
        files_of(root / "0")


def test_links_that_lead_nowhere_are_errors_that_name_all_of_them(folder):
    root = folder("data/a/1.png")
    for number in range(7):
        (root / "data" / "a" / f"x{number}.png").symlink_to(root / "gone.png")
    with pytest.raises(DataError, match=r"x0\.png is a link to '.*, which is not there: mount") as caught:
        files_of(root / "data")
    assert len(caught.value.problems) == 6
    assert caught.value.problems[-1] == "and 2 links more lead nowhere"
    with pytest.raises(DataError, match=r"x3\.png is a link to"):
        files_of(f"{root}/data/a/*.png")
    with pytest.raises(DataError, match=r"x3\.png is a link to"):
        files_of(root / "data" / "a" / "x3.png")
    for one in (root / "data" / "a").glob("x*"):
        one.unlink()
    (root / "data" / "a" / ".#x").symlink_to("an editor's mark of an open file")
    assert names(files_of(root / "data"), root) == ["data/a/1.png"]
    (root / "data" / "b").symlink_to("b")
    with pytest.raises(DataError, match=r"b is a link to 'b'"):
        files_of(root / "data")


def test_names_that_begin_with_an_underscore_are_data_but_for_known_marks(folder):
    root = folder("a/_DSC0001.jpg", "_background_noise_/1.jpg", "_part.csv", "__x__/2.jpg")
    assert len(files_of(root)) == 4
    folder("_SUCCESS", "_started_123", "__MACOSX/a/._1.jpg", "_delta_log/0.json", "a/Thumbs.db", "_SUCCESS.csv")
    assert len(files_of(root)) == 5
    assert "5 marker (" in line(root)
    assert all(NO_DATA.values())


def test_what_is_skipped_is_counted_and_named(folder):
    root = folder("a.csv", "b.csv", ".hidden", ".git/config", "_SUCCESS", *(f".x{i}" for i in range(9)))
    assert line(root) == (
        f"skipped 12 of 14 files in {root}: 11 hidden (.git, .hidden, .x0, ...), 1 marker (_SUCCESS: Spark's and "
        "Hadoop's mark of a job that has ended)"
    )
    os.mkfifo(root / "pipe.csv")
    (root / "sub").mkdir()
    assert "1 no regular file (pipe.csv)" in line(root)
    assert "1 folder beside files that match (sub)" in line(f"{root}/[abs]*")
    assert line(root / "a.csv") == skipped_line({}, 3, "x") == ""
    assert len(skipped_line({"hidden": (["x" * 5000] * 3, 3)}, 3, "y" * 5000)) < 500
    assert skipped_line({"hidden": ([".a\n\x1b[31m"], 1)}, 1, "files in x\ty").isprintable()


@needs("a user who may not read every folder", os.getuid() != 0)
def test_a_folder_that_cannot_be_read_is_an_error(folder):
    root = folder("a/1.csv", "b/2.csv")
    (root / "b").chmod(0)
    with pytest.raises(DataError, match=r"b cannot be read: Permission denied"):
        files_of(root)


def test_a_table_is_read_once_where_a_linked_folder_has_it_again(folder):
    root = folder()
    for name in ("2024", "2025"):
        (root / name).mkdir()
        (root / name / "1.csv").write_text(f"a,b\n{name},1\n")
    (root / "latest").symlink_to("2025")
    reader = read(root)
    assert sorted(reader.read(np.arange(len(reader)))["a"].tolist()) == [2024, 2025]
    assert "1 in linked folders that are read anyway (1.csv)" in reader.notes[0]


def test_values_of_partitions_tell_linked_folders_apart(folder):
    root = folder()
    (root / "day=1").mkdir()
    pa.parquet.write_table(pa.table({"a": [7]}), root / "day=1" / "1.parquet")
    (root / "day=2").symlink_to("day=1")
    found = read(root)
    assert found.read(np.arange(len(found)))["day"].tolist() == [1, 2]
    assert found.notes == ()


def test_files_of_other_formats_and_of_no_role_are_counted(folder):
    root = folder("train/README.md", "notes.txt")
    for name in ("train", "test"):
        (root / name).mkdir(exist_ok=True)
        for number in range(2):
            (root / name / f"{number}.csv").write_text("a,b\n1,2\n")
    assert "1 of another format (README.md), 1 of no role (notes.txt)" in read(root).notes[0]
    assert "1 of no role (notes.txt)" in read(root, role="test").notes[0]
    assert read(root / "test").notes == ()


def test_what_describes_data_is_not_taken_for_them(folder):
    """As repositories of data have it: one table, and a page about it."""
    root = folder("README.md", "LICENSE")
    pa.parquet.write_table(pa.table({"a": [7, 8]}), root / "train.parquet")
    assert len(reader := read(root)) == 2
    assert "2 of another format (LICENSE, README.md)" in reader.notes[0]
    assert read(root / "README.md").format == "text"


def test_an_empty_path_is_not_the_folder_that_is_worked_in():
    with pytest.raises(ConfigurationError, match="the source must be a path, got ''"):
        files_of("")
