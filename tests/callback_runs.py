"""Small runs for tests of callbacks: a regression in float64 and a graph of a few layers on made-up data."""

import os
import signal
from functools import partial

import numpy as np
import torch
from run_builder import Parts, execute
from toys import Regression, data, run_of

import descend
from descend.data import ArrayReader, Batches
from descend.errors import Stopped
from descend.experiment.build_optimizer import build_graph_optimizer
from descend.experiment.graph_task import GraphTask
from descend.graph import check
from descend.lower import lower
from descend.runtime import generator
from descend.train import BatchedIterativeOptimizer, Callback, Epochs, Event, Mode
from descend.train.evaluation import evaluate
from descend.train.loop import train


class Watcher(Callback):
    """Keeps the rates that each update was made with, and sizes of mini-batches."""

    def after_setup(self, run):
        self.rates, self.sizes = [], []

    def after_step(self, step):
        self.rates.append(step.run.control.rates())
        self.sizes.append(len(step.batch.ids))


def follow(*callbacks, epochs=2, task=None, batches=None, validation=None, stop=None, **settings):
    """A run of 3 mini-batches an epoch (10 samples) with all its events; returns the run."""
    given = run_of(task or Regression(), batches or data(batch_size=4), validation, callbacks=callbacks, **settings)
    given.callbacks.fire(Event.AFTER_SETUP, given.views.of_run())
    given.callbacks.fire(Event.BEFORE_RUN, given.views.of_run())
    reason = train(given, stop or Epochs(epochs))
    given.callbacks.fire(Event.AFTER_TRAINING, given.views.of_run(reason))
    if Mode.TEST in given.data:
        evaluate(given, Mode.TEST)
    given.callbacks.fire(Event.AFTER_RUN, given.views.of_run(reason))
    given.reason, given.history, given.contexts = reason, given.state.history, given.state.contexts
    return given


def work(*callbacks, epochs=4, optimizer=None, **settings):
    """The same as the parts of a run, 6 steps an epoch."""
    task = Regression(decay=0.01)
    modes = {
        Mode.TRAIN: data(samples=23, batch_size=4, shuffle=True),
        Mode.VALIDATION: data(samples=9, batch_size=4),
    }
    made = (optimizer or torch.optim.Adam)(task.module.named_parameters(), lr=0.05)
    algorithm = BatchedIterativeOptimizer(epoch_count=epochs)
    return Parts("toy", task, made, modes, algorithm, 5, callbacks, **settings)


class StopAt(Callback):
    """Asks for an end after a step, by a signal."""

    def __init__(self, step):
        self.step = step

    def after_step(self, step):
        if step.step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def in_one_go_and_in_two(tmp_path, make, at=(4, 9, 12)):
    """The final weights of a run that was left alone and of one that was stopped after each step in `at`.

    Args:
        make: Gives the callbacks, new ones each time.
    """
    whole = execute(work(*make()), tmp_path / "whole")
    for step in at:
        try:
            execute(work(*make(), StopAt(step)), tmp_path / "parts", resume=True)
        except Stopped:
            continue
    parts = execute(work(*make()), tmp_path / "parts", resume=True)
    return whole, parts


def samples(count=20, classes=3, seed=0):
    """Made-up pictures and one-hot labels."""
    draw = np.random.default_rng(seed)
    labels = np.eye(classes, dtype=np.float32)[draw.integers(classes, size=count)]
    return {"samples": draw.normal(size=(count, 1, 4, 4)).astype(np.float32), "labels": labels}


def graph(**model):
    """A softmax classifier with one hidden layer: fc1 (5), relu, fc2 (3), prob, loss, accuracy."""
    images = descend.Input(data_field="samples", name="images")
    labels = descend.Input(data_field="labels", name="labels")
    x = descend.FullyConnected(images, num_neurons=5, has_bias=True, name="fc1")
    x = descend.FullyConnected(descend.Relu(x, name="relu"), num_neurons=3, has_bias=True, name="fc2")
    prob = descend.Softmax(x, name="prob")
    loss = descend.CrossEntropy(prob, labels, name="loss")
    accuracy = descend.CategoricalAccuracy(prob, labels, name="accuracy_layer")
    metrics = [descend.Metric(accuracy, name="accuracy", unit="%")]
    return descend.Model(model.pop("epochs", 2), objective_function=loss, metrics=metrics, name="model0", **model)


def graph_run(tmp_path, *callbacks, optimizer=None, batch_size=8, **model):
    """A run of `graph` on 20 training, 12 validation and 10 test samples."""
    return execute(graph_work(*callbacks, optimizer=optimizer, batch_size=batch_size, **model), tmp_path / "run")


def graph_work(*callbacks, optimizer=None, batch_size=8, **model):
    """The run of `graph` as the parts of a run."""
    return work_of(graph(callbacks=list(callbacks), **model), optimizer, batch_size)


def work_of(described, optimizer=None, batch_size=8):
    """The run of a model on the same samples as the parts of a run."""
    plan = check(described, {"samples": (1, 4, 4), "labels": (3,)})
    module = lower(plan, partial(generator, 1, "weights"))
    modes = {
        mode: Batches(ArrayReader(samples(count, seed=seed)), batch_size, 1, shuffle=mode is Mode.TRAIN)
        for seed, (mode, count) in enumerate(((Mode.TRAIN, 20), (Mode.VALIDATION, 12), (Mode.TEST, 10)))
    }
    rule = build_graph_optimizer(module, plan, optimizer or descend.SGD(learn_rate=0.1, momentum=0.9))
    algorithm = BatchedIterativeOptimizer(epoch_count=described.epochs)
    task = GraphTask(module, plan)
    return Parts("model0", task, rule, modes, algorithm, 1, tuple(described.callbacks))
