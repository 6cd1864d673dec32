import multiprocessing
import os
import signal
import time
from dataclasses import replace

import pytest
from callback_runs import Watcher, follow, graph_run, in_one_go_and_in_two, work
from run_builder import execute
from system_needs import needs_library

from descend.callbacks import (
    CategoricalAccuracyStrategy,
    Checkpoint,
    MatchType,
    SummarizeImages,
    Summary,
    TrackSampleIDsStrategy,
)
from descend.errors import ConfigurationError, MissingExtra, Unsupported
from descend.train import Callback

needs_tensorboard = needs_library("tensorboard")


def read(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0, "images": 0})
    events.Reload()
    return events


@pytest.mark.parametrize("kind", ["summary", "images"])
def test_without_tensorboard_it_is_named(kind, monkeypatch):
    monkeypatch.setattr("descend.callbacks.tensorboard.find_spec", lambda name: None)
    strategy = CategoricalAccuracyStrategy("accuracy_layer")
    callback = Summary() if kind == "summary" else SummarizeImages(strategy, "images")
    with pytest.raises(MissingExtra, match="needs the library tensorboard: pip install tensorboard"):
        follow(callback)


@needs_tensorboard
def test_scalars_are_those_of_the_history(tmp_path):
    result = graph_run(tmp_path, watcher := Watcher(), Summary(batch_interval=2, mat_interval=3))
    events = read(tmp_path / "run" / "tensorboard")
    for mode in ("train", "validation"):
        rows = [row for row in result.history if row["mode"] == mode]
        for name in ("objective", "accuracy"):
            seen = [(event.step, event.value) for event in events.Scalars(f"{mode}/{name}")]
            assert seen == [(row["step"], pytest.approx(row[name])) for row in rows]
    rate = events.Scalars("learning_rate")
    assert [event.step for event in rate] == [2, 4, 6]
    assert len(watcher.rates) == 6
    assert [event.step for event in events.Histograms("weights/fc2_bias_weights")] == [3, 6]
    assert [event.step for event in events.Histograms("gradients/fc2_bias_weights")] == [3, 6]


@needs_tensorboard
def test_a_series_has_every_step_once_after_restarts(tmp_path):
    in_one_go_and_in_two(tmp_path, lambda: [Summary(batch_interval=1)])
    whole, parts = (
        [(event.step, event.value) for event in read(tmp_path / name / "tensorboard").Scalars("train/step_objective")]
        for name in ("whole", "parts")
    )
    assert whole == parts
    assert [step for step, _ in parts] == list(range(1, 25))


@needs_tensorboard
@pytest.mark.parametrize("match", list(MatchType))
def test_pictures_are_selected_by_the_accuracy(tmp_path, match):
    strategy = CategoricalAccuracyStrategy("accuracy_layer", match, num_images_per_epoch=5)
    result = graph_run(tmp_path, SummarizeImages(strategy, "images"), epochs=1)
    accuracy = next(row["accuracy"] for row in result.history if row["mode"] == "validation")
    right = round(12 * accuracy)
    expected = min(5, {MatchType.MATCH: right, MatchType.NOMATCH: 12 - right, MatchType.ALL: 12}[match])
    events = read(tmp_path / "run" / "tensorboard")
    assert len(events.Tags()["images"]) == expected
    assert all(events.Images(tag)[0].width == events.Images(tag)[0].height == 4 for tag in events.Tags()["images"])


@needs_tensorboard
def test_pictures_beside_numbers_take_nothing_back(tmp_path):
    strategy = CategoricalAccuracyStrategy("accuracy_layer", MatchType.ALL, num_images_per_epoch=3)
    graph_run(tmp_path, Summary(batch_interval=1), SummarizeImages(strategy, "images"))
    events = read(tmp_path / "run" / "tensorboard")
    assert [event.step for event in events.Scalars("train/step_objective")] == list(range(1, 7))
    assert len(events.Tags()["images"]) == 3


class Kill(Callback):
    """Kills the process after a step, before anything that waits in memory is written."""

    def __init__(self, step):
        self.step = step

    def after_step(self, step):
        if step.step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def killed_run(folder, step):
    execute(work(Summary(batch_interval=1), Kill(step), Checkpoint(every_steps=5)), folder, resume=True)


@needs_tensorboard
@pytest.mark.slow
def test_a_series_has_every_step_once_after_the_process_was_killed(tmp_path):
    for step in (7, 13, 19):
        process = multiprocessing.get_context("spawn").Process(target=killed_run, args=(tmp_path / "run", step))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    execute(work(Summary(batch_interval=1), Checkpoint(every_steps=5)), tmp_path / "run", resume=True)
    series = read(tmp_path / "run" / "tensorboard").Scalars("train/step_objective")
    assert [event.step for event in series] == list(range(1, 25))


@needs_tensorboard
def test_a_run_that_goes_on_within_the_second_of_its_forerunner_comes_after_it(tmp_path):
    folder = tmp_path / "events"
    folder.mkdir()
    forerunner = folder / f"events.out.tfevents.{int(time.time()) + 1:010d}.host.99999999.0"
    forerunner.touch()
    execute(replace(work(Summary()), summary_dir=str(folder)), tmp_path / "run")
    assert sorted(folder.iterdir())[0] == forerunner


@needs_tensorboard
def test_a_forerunner_of_tomorrow_is_reported(tmp_path):
    folder = tmp_path / "events"
    folder.mkdir()
    (folder / f"events.out.tfevents.{int(time.time()) + 86400:010d}.host.1.0").touch()
    with pytest.warns(UserWarning, match=r"host\.1\.0 was begun later than it is now.*another summary_dir"):
        execute(replace(work(Summary()), summary_dir=str(folder)), tmp_path / "run")


def test_a_strategy_that_lbann_itself_dropped_is_refused():
    with pytest.raises(Unsupported, match="CategoricalAccuracyStrategy"):
        TrackSampleIDsStrategy()
    with pytest.raises(ConfigurationError, match="selection_strategy"):
        SummarizeImages(image_source_layer_name="images")
