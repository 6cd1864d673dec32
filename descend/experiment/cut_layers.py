"""Layers with a model-parallel layout: their weights are cut over the ranks of a trainer.

    weights, gradients, optimizer state     rank r holds rows r of FullyConnected, ChannelwiseFullyConnected, Embedding
                                            and DistEmbedding, and of weights that are `sharded`
    a forward pass                          gathers the rows of all ranks, and frees them again
    a backward pass                         sums gradients over ranks, and each keeps its own rows

torch's `fully_shard` does it, with DTensors. The numbers are those of whole weights. Where something in a run needs
whole weights they stay whole, and a line says what.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from descend.graph import ChannelwiseFullyConnected, DistEmbedding, Embedding, FullyConnected
from descend.terminal.display import printable
from descend.train import BatchedIterativeOptimizer

if TYPE_CHECKING:
    from descend.experiment.experiment import Experiment
    from descend.graph import Plan
    from descend.lower.module import LoweredModel
    from descend.runtime import Communicator

__all__ = ["cut", "cut_weights", "needs_whole", "rank_memory"]

_KINDS = (ChannelwiseFullyConnected, DistEmbedding, Embedding, FullyConnected)
_BYTES = 4  # of a float32


def cut_weights(plan: Plan, ranks: int) -> list[str]:
    """Names of the trainable weights that so many ranks divide among themselves; each rank has at least one row."""
    asked = {
        name
        for planned in plan.layers
        if planned.layer.data_layout == "model_parallel" and isinstance(planned.layer, _KINDS)
        for name in planned.weights
    }
    asked |= {
        name
        for planned in plan.layers
        for name, given in zip(planned.weights, planned.layer.weights, strict=False)  # the rest was made by the layer
        if getattr(given, "sharded", None)
    }
    return [
        name
        for name, weights in plan.weights.items()
        if weights.trainable and name in asked and weights.shape and weights.shape[0] >= ranks > 1
    ]


def needs_whole(experiment: Experiment, plan: Plan, names: list[str], several: bool) -> str | None:
    """What in a run needs whole weights; None where nothing does.

    Args:
        experiment: The description.
        plan: The checked graph.
        names: The weights that would be cut.
        several: Whether the trainer is one of several.
    """
    trainer, model = experiment.trainer, experiment.model
    if several:
        return "several trainers"
    if not isinstance(trainer.training_algo or BatchedIterativeOptimizer(), BatchedIterativeOptimizer):
        return f"the algorithm {type(trainer.training_algo).__name__}"
    if model.compile or (model.amp and model.amp.enabled):
        return "compile" if model.compile else "mixed precision"
    if any(name in term.weights for term in plan.objective.l2 for name in names):
        return "L2 regularization of these weights"
    looking = [one for one in (*trainer.callbacks, *model.callbacks) if one.reads_weights and not one.saves]
    return f"the callback {type(looking[0]).__name__}" if looking else None


def cut(module: LoweredModel, names: list[str], world: Communicator) -> None:
    """Cut these parameters of a module over the ranks, in place. All ranks call it together."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(world.device.type, (world.world_size,))
    whole: set[Any] = {p for name, p in module.named_parameters() if name not in names}
    fully_shard(module, mesh=mesh, reshard_after_forward=True, ignored_params=whole)


def rank_memory(plan: Plan, ranks: int) -> str:
    """Sentences about what each of so many ranks holds; of rows that cannot be divided evenly, what the first holds."""
    names = cut_weights(plan, ranks)
    trained = {name: weights.shape for name, weights in plan.weights.items() if weights.trainable}
    whole = sum(prod(shape) for name, shape in trained.items() if name not in names)
    shares = {name: -(-trained[name][0] // ranks) * prod(trained[name][1:]) for name in names}
    held, all_of_them = (whole + sum(shares.values())) * _BYTES, sum(map(prod, trained.values())) * _BYTES
    lines = [
        f"each of {ranks:,} ranks holds {held:,} of {all_of_them:,} bytes of trainable weights, as many of gradients, "
        "and as many for each number that the optimizer keeps of a weight"
    ]
    lines += [f"  {printable(name)}: {shares[name] * _BYTES:,} of {prod(trained[name]) * _BYTES:,}" for name in names]
    if not names:
        lines.append(
            "  no weights are cut: no layer that can be has data_layout 'model_parallel', and none are sharded"
        )
    return "\n".join(lines)
