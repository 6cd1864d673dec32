"""The page of a run is written at its end, whatever end that is, and never fails it."""

import functools
import json
import re
from types import SimpleNamespace

import pytest
import torch
from system_needs import library

import descend
from descend.errors import ConfigurationError, NumericalError
from descend.pages.run import write, write_run_page

DATA = torch.randn(40, 4), torch.arange(40) % 3


def fit(folder, **more):
    sgd = functools.partial(torch.optim.SGD, lr=0.1)
    stop = descend.Epochs(2)
    return descend.fit(
        torch.nn.Linear(4, 3), "cross_entropy", DATA, optimizer=sgd, batch_size=10, stop=stop, run_dir=folder, **more
    )


def test_every_run_directory_has_a_page_that_asks_for_nothing(tmp_path):
    fit(tmp_path / "run", verbose=False)
    text = (tmp_path / "run" / "report.html").read_text()
    assert "Finished after 8 updates" in text
    assert "descend report run" in text
    assert "<svg" not in text  # a short run does not wait for charts
    assert not re.search(r'https?://(?!www\.w3\.org)|src=|href="(?!#|data:,")|@import|url\((?!#)', text)


def test_the_page_again_has_charts_and_the_same_bytes_for_the_same_files(tmp_path):
    library("vl_convert", "vl-convert-python")
    fit(tmp_path / "run", verbose=False)
    page = write_run_page(tmp_path / "run")
    first = page.read_bytes()
    assert first.count(b"<svg") == first.count(b"<figure") > 2
    assert write_run_page(tmp_path / "run").read_bytes() == first


def test_a_run_of_layers_lists_them_with_their_graph(tmp_path):
    experiment = descend.zoo.demo_experiment("digits")
    trainer, model = experiment.trainer, experiment.model
    descend.run(trainer, model, experiment.data_reader, experiment.optimizer, run_dir=tmp_path / "run")
    text = (tmp_path / "run" / "report.html").read_text()
    assert "conv1" in text
    assert 'aria-label="Graph of the layers"' in text
    assert "descend resume run" in text


def test_a_run_that_ends_in_an_error_has_a_page_that_says_so(tmp_path):
    def loss(output, target):
        return output.sum() * float("nan")

    sgd = functools.partial(torch.optim.SGD, lr=0.1)
    with pytest.raises(NumericalError):
        descend.fit(
            torch.nn.Linear(4, 3), loss, DATA, optimizer=sgd, batch_size=10, stop=descend.Epochs(1),
            run_dir=tmp_path / "run",
        )  # fmt: skip
    text = (tmp_path / "run" / "report.html").read_text()
    assert "Ended with exit code 4" in text
    assert "Error: " in text


def test_a_page_that_cannot_be_written_is_a_line_of_the_log(tmp_path, monkeypatch):
    def broken(*given, **more):
        raise RuntimeError("no page today")

    monkeypatch.setattr(write, "run_page", broken)
    result = fit(tmp_path / "run", verbose=False)
    assert result.steps == 8
    assert "report.html could not be written: RuntimeError: no page today" in (tmp_path / "run" / "log.txt").read_text()


def test_long_runs_have_their_charts_drawn_at_the_end(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(write, "run_page", lambda run, plan, **more: asked.append(more["charts"]) or "")
    for seconds in (1.0, 11.0):
        (tmp_path / "run.json").write_text("{}")
        row = {"mode": "train", "epoch": 1, "step": 1, "seconds": seconds}
        (tmp_path / "metrics.jsonl").write_text(json.dumps(row))
        write.write_after_run(SimpleNamespace(path=tmp_path, log=pytest.fail, write_text=lambda name, text: None))
    assert asked == [False, True]


def test_several_trainers_have_a_page_of_the_whole_with_their_lineage(tmp_path):
    exchange = descend.RegularizedEvolution("objective", 0, sample_size=1)
    algorithm = descend.LTFB(metalearning=exchange, metalearning_steps=2)
    fit(tmp_path / "run", tournament=DATA, algorithm=algorithm, trainers=2, verbose=False)
    text = (tmp_path / "run" / "report.html").read_text()
    assert 'aria-label="Lineage of the models"' in text
    assert (tmp_path / "run" / "trainer1" / "report.html").is_file()


def test_a_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="name the directory of a run"):
        write_run_page(tmp_path)
