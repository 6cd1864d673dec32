"""The model: descend's, with what scripts change after they have made it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from descend import graph
from descend.graph import ObjectiveFunction, SubGraphCommunication
from descend.lazy import hook

__all__ = ["Model", "SubgraphCommunication"]

SubgraphCommunication = SubGraphCommunication  # the front end's spelling beside that of the schema


class Model(graph.Model):
    """What is trained. Its layers are collected when it is made, and again when it is written.

    Args:
        epochs: Passes over the data where the trainer has no algorithm that says otherwise; 0 makes no update: the run
            says so, and evaluates validation and test samples.
        layers: Any of its layers.
        weights: Weights in an order of one's own; those of the layers follow.
        objective_function: A layer, a term, a list of them, or an ObjectiveFunction.
        metrics: What is reported.
        callbacks: What watches the run.
        name: model0 without one.
        summary_dir: Where TensorBoard files go.
        subgraph_communication: How sub-graphs exchange tensors.
        subgraph_topology: Whether sub-graphs are placed by the network's topology.
        subgraph_num_common_resources: Processes of the parent grid.
        amp: Automatic mixed precision, or a dictionary of its fields.
        options: Other options of `descend.Model`.

    Raises:
        ConfigurationError: an unknown keyword, a ValueError as well.
        WrongType: a value of a wrong type, a TypeError as well.
    """

    def __init__(
        self,
        epochs: int = 0,
        layers: Any = (),
        weights: Any = (),
        objective_function: Any = None,
        metrics: Any = (),
        callbacks: Any = (),
        name: str | None = None,
        summary_dir: str | None = None,
        subgraph_communication: SubGraphCommunication | int | str = SubGraphCommunication.PT2PT,
        subgraph_topology: bool = False,
        subgraph_num_common_resources: int = 0,
        amp: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(
            epochs,
            layers or (),
            weights or (),
            objective_function,
            _each(metrics),
            _each(callbacks),
            name,
            summary_dir,
            subgraph_communication,
            bool(subgraph_topology),
            int(subgraph_num_common_resources),
            amp,
            **options,
        )

    def to_fields(self) -> dict[str, Any]:
        """The fields as the text has them, with all layers and weights that belong to the model by now."""
        assigned: Any = self.objective_function  # scripts assign layers
        if assigned is not None and not isinstance(assigned, ObjectiveFunction):
            self.objective_function = ObjectiveFunction(assigned)
        self.layers = self._all_layers(self.layers)
        self.weights = self._all_weights(self.weights)
        return super().to_fields()

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """Evaluate this model on inputs; see `evaluate`."""
        return hook("lbann_evaluate")(self, inputs, **options)


def _each(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, Iterable) else [given]
