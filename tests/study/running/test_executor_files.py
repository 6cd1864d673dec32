"""Which executor runs a kind of trials: the first choice holds for all processes."""

import os

import pytest

from descend.errors import StorageError
from descend.study.running.executor_files import ExecutorFiles


@pytest.mark.parametrize("links", [True, False])
def test_the_first_choice_holds(tmp_path, monkeypatch, links):
    if not links:  # as on some network file systems

        def refused(*_):
            raise OSError("no links here")

        monkeypatch.setattr(os, "link", refused)
    one, other = (ExecutorFiles(tmp_path / "executors") for _ in range(2))
    assert one.way("a/b32") is None
    assert one.decide("a/b32", "together") == "together"
    assert other.way("a/b32") == "together"
    if links:
        assert other.decide("a/b32", "one") == "together"
    assert other.way("a/b64") is None
    assert len(list(one.folder.iterdir())) == 1


def test_a_damaged_choice_is_named_with_its_remedy(tmp_path):
    files = ExecutorFiles(tmp_path)
    files.decide("a", "one")
    (file,) = tmp_path.iterdir()
    file.write_text("{}")
    with pytest.raises(StorageError, match="remove it, and executors are measured again"):
        files.way("a")
