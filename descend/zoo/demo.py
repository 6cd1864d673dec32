"""The experiments of `descend demo`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.callbacks import Print, ProgressBar
from descend.errors import ConfigurationError, nearest
from descend.experiment import Experiment
from descend.graph import SGD, CategoricalAccuracy, CrossEntropy, Input, Metric, Model
from descend.train import BatchedIterativeOptimizer, Trainer
from descend.zoo.datasets import digits, fashion_mnist
from descend.zoo.lenet import lenet, small_lenet

if TYPE_CHECKING:
    from descend.data import DataReader
    from descend.graph import Layer

__all__ = ["demo_experiment"]


def demo_experiment(name: str = "digits") -> Experiment:
    """A network of LeNet's form on real images, by SGD with momentum; 20 epochs of the digits or 5 of Fashion-MNIST.

    Args:
        name: "digits" (8 x 8, in the package) or "fashion-mnist" (28 x 28, see `descend.zoo.fashion_mnist`).

    Raises:
        ConfigurationError: the name is another.
    """
    images, labels = Input(data_field="samples", name="images"), Input(data_field="labels", name="labels")
    if name == "digits":
        return _experiment(
            small_lenet(images), labels, epochs=20, data=digits(), rule=SGD(learn_rate=0.05, momentum=0.9)
        )
    if name == "fashion-mnist":
        rule = SGD(learn_rate=0.01, momentum=0.9)
        return _experiment(lenet(images), labels, epochs=5, data=fashion_mnist(), rule=rule)
    options = ("digits", "fashion-mnist")
    raise ConfigurationError(f"there is no demo '{name}'{nearest(name, options)} The demos are {', '.join(options)}")


def _experiment(probabilities: Layer, labels: Layer, epochs: int, data: DataReader, rule: SGD) -> Experiment:
    accuracy = CategoricalAccuracy(probabilities, labels, name="accuracy")
    model = Model(
        epochs,
        objective_function=CrossEntropy(probabilities, labels, name="cross_entropy"),
        metrics=[Metric(accuracy, name="accuracy", unit="%")],
        callbacks=[Print(), ProgressBar()],
        name="lenet",
    )
    trainer = Trainer(
        mini_batch_size=64, random_seed=1, training_algo=BatchedIterativeOptimizer("descent", epoch_count=epochs)
    )
    return Experiment(trainer, model, data, rule)
