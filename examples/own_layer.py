"""A layer kind of one's own: what it is, how it is computed, and its text. python examples/own_layer.py"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

import descend
from descend.graph.kinds.base import Entrywise
from descend.lower import Forward, lowers

if TYPE_CHECKING:
    from collections.abc import Mapping


class Swish(Entrywise):
    """y = x σ(βx), β 1 unless set. Any shape."""

    defaults: ClassVar[Mapping[str, Any]] = {"beta": 1.0}  # what stands for a field that is not set

    beta: float = 0.0


@lowers(Swish)
def swish(planned: descend.PlannedLayer) -> Forward:
    """x σ(βx)."""
    beta: float = planned.layer.setting("beta")
    return lambda x: x * torch.sigmoid(beta * x)


def main(epochs: int = 3) -> float:
    images, labels = descend.Input(data_field="samples"), descend.Input(data_field="labels")
    hidden = Swish(descend.FullyConnected(images, num_neurons=32, has_bias=True), beta=1.5)
    probabilities = descend.Softmax(descend.FullyConnected(hidden, num_neurons=10, has_bias=True))
    accuracy = descend.Metric(descend.CategoricalAccuracy(probabilities, labels), name="accuracy", unit="%")
    model = descend.Model(epochs, objective_function=descend.CrossEntropy(probabilities, labels), metrics=[accuracy])
    text = descend.graph.to_text(model)
    assert descend.graph.from_text(text) == model  # the text has the layer, too
    print(next(part for part in text.split("layer {") if "Swish" in part))
    trainer = descend.Trainer(mini_batch_size=64, random_seed=1)
    result = descend.run(trainer, model, descend.zoo.digits(), descend.SGD(learn_rate=0.1, momentum=0.9))
    print(f"test accuracy {result.history[-1]['accuracy']:.1%}")
    return result.history[-1]["accuracy"]


if __name__ == "__main__":
    descend.main(main)
