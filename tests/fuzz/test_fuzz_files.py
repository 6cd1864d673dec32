"""A few damaged files of every other kind that is read; the scripts beside it take 20,000."""

import pytest

from tests.fuzz import (
    fuzz_arrow,
    fuzz_csv,
    fuzz_folders,
    fuzz_hdf5,
    fuzz_idx,
    fuzz_images,
    fuzz_numpy,
    fuzz_pages,
    fuzz_records,
    fuzz_run_directory,
    fuzz_study_file,
    fuzz_tar,
)
from tests.fuzz.harness import run, run_in_processes

SCRIPTS = (
    *(fuzz_csv, fuzz_folders, fuzz_hdf5, fuzz_idx, fuzz_images, fuzz_numpy, fuzz_pages, fuzz_records),
    *(fuzz_run_directory, fuzz_tar),
    fuzz_study_file,
)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__.rpartition(".")[2])
def test_damaged_files_are_read_or_refused_with_an_error_of_ours(script):
    report = run(script.attempt, 100, seed=15)
    assert report.findings == {}
    assert report.refused > 5
    assert report.accepted > 0


@pytest.mark.slow
def test_damaged_arrow_files_end_no_process():
    report = run_in_processes(fuzz_arrow.attempt, 600, seed=15)
    assert report.findings == {}
    assert report.refused > 100
    assert report.accepted > 20
