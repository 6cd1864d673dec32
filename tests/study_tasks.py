"""Workloads for tests: the bundled digits, small and quick."""

import numpy as np
import torch
from torch import nn

import descend
from descend.study.running.plan import pending
from descend.study.running.trial import Record, Trial, evaluation_steps
from descend.study.task import StudyTask


def digits(role):
    reader = descend.open_readers(descend.zoo.digits())[role]
    fields = reader.read(np.arange(len(reader)))
    return torch.as_tensor(fields["samples"]).flatten(1), torch.as_tensor(fields["labels"]).argmax(1)


def mlp(width=32, double=False):
    def model():
        net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
        return net.double() if double else net

    x, y = digits("train")
    x_valid, y_valid = digits("validate")
    if double:
        x, x_valid = x.double(), x_valid.double()
    return StudyTask(model, nn.CrossEntropyLoss(), (x, y), (x_valid, y_valid))


def trial(index=0, *, steps=45, batch_size=32, arm="a", **configuration):
    given = {"optimizer": "SGD", "schedule": "constant", "lr": 0.1, **configuration}
    return Trial(arm, batch_size, steps, 0, "search", index, 0, 100 + index, given)


def fabricated(study, score):
    """Records of a whole study without any training, from `score(trial)`: the last score, or how a trial failed.

    Scores of all splits and metrics go on a straight line from 0 to the last one; the loss is 1 less the score.
    """
    records = {}
    while todo := pending(study, records):
        for one in todo:
            last = score(one)
            at = evaluation_steps(one.steps, study.evaluations)
            if isinstance(last, str):
                begun = {split: {"loss": [1.0], "accuracy": [0.0]} for split in ("train", "validation")}
                records[one.id] = Record(one, last, (0,), begun, failed_at=at[1])
                continue
            rising = [last * step / one.steps for step in at]
            metrics = {"accuracy": rising, "loss": [1 - value for value in rising]}
            records[one.id] = Record(one, "done", at, {"train": metrics, "validation": metrics}, seconds=0.5)
    return records
