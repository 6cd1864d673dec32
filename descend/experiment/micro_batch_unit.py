"""The unit of micro-batches: how many samples of a mini-batch must stay together, from descriptions alone.

The unit of a torch module is computed with the same functions and needs no graph.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from descend.arguments.leniency import Deviation
from descend.errors import ConfigurationError, warn
from descend.train.micro_batch import part_size

if TYPE_CHECKING:
    from descend.graph import Plan, PlannedLayer

__all__ = ["GROUP", "evaluation_unit", "graph_unit", "last_group", "tell_of_whole_groups"]

GROUP = "declare how many samples share statistics, as in batch_norm_group_size="


def last_group(size: int, group_size: int | None) -> int:
    """Size of the last group of a mini-batch, which is one group if no group size is given."""
    return size % group_size or min(size, group_size) if group_size else size


def tell_of_whole_groups(micro_batch_size: int, unit: int | None) -> None:
    """Warn if micro-batches cannot have the requested size."""
    size = part_size(micro_batch_size, micro_batch_size, unit)
    if unit is not None and size != micro_batch_size:
        warn(
            f"micro_batch_size={micro_batch_size}: micro-batches consist of whole batch-norm groups of {unit} samples, "
            f"so their size is {size}"
        )


def graph_unit(plan: Plan, sizes: set[int], micro_batch_size: int) -> int | None:
    """The unit of a graph's micro-batches in samples; None if its mini-batch cannot be split.

    Args:
        plan: The checked graph.
        sizes: Sizes of its training mini-batches.
        micro_batch_size: Requested size of a micro-batch; 0 if not set.

    Raises:
        ConfigurationError: a layer does not allow micro-batches; a group size is set and not used; a group has only one
            value for its statistics.
    """
    from descend.graph import BatchNormalization, BatchwiseReduceSum, EntrywiseBatchNormalization

    norms = [
        layer for layer in plan.layers if isinstance(layer.layer, (BatchNormalization, EntrywiseBatchNormalization))
    ]
    over_all = [layer for layer in plan.layers if isinstance(layer.layer, BatchwiseReduceSum)]
    group = plan.batch_norm_group_size
    if group and not norms:
        raise ConfigurationError(f"batch_norm_group_size={group}: the model has no batch normalization; leave it out")
    if problems := [problem for layer in norms for problem in _starved(layer, sizes, group)]:
        raise ConfigurationError(problems)
    whole = [*over_all, *(() if group else norms)]
    if whole and 0 < micro_batch_size < max(sizes):
        raise ConfigurationError([_refused(layer, micro_batch_size) for layer in whole])
    unit = None if whole else group or 1
    if micro_batch_size:
        tell_of_whole_groups(micro_batch_size, unit)
    return unit


def evaluation_unit(plan: Plan) -> int | None:
    """The same for a graph that is only evaluated, where batch normalization uses its running statistics."""
    from descend.graph import BatchwiseReduceSum

    return None if any(isinstance(layer.layer, BatchwiseReduceSum) for layer in plan.layers) else 1


def _starved(planned: PlannedLayer, sizes: set[int], group: int) -> list[str]:
    from descend.graph import EntrywiseBatchNormalization
    from descend.graph.layer import refuses

    entrywise = isinstance(planned.layer, EntrywiseBatchNormalization)
    entries = 1 if entrywise else math.prod(planned.output_shape[1:])
    found = [
        f"would compute statistics of 1 value: a mini-batch of {size} leaves a group of 1 sample"
        for size in sorted(sizes)
        if entries == 1 and last_group(size, group or None) == 1
    ]
    remedy = f"choose mini_batch_size{' or batch_norm_group_size' if group else ''} without such a remainder"
    return [
        f"layer '{planned.name}' ({type(planned.layer).__name__}) {problem}; {remedy}"
        for problem in found
        if refuses(planned.layer, Deviation.ONE_SAMPLE_STATISTICS, problem)
    ]


def _refused(planned: PlannedLayer, micro_batch_size: int) -> str:
    from descend.graph import BatchwiseReduceSum

    remedy = (
        "leave micro_batch_size out" if isinstance(planned.layer, BatchwiseReduceSum) else f"{GROUP}{micro_batch_size}"
    )
    return (
        f"layer '{planned.name}' ({type(planned.layer).__name__}) needs the whole mini-batch, which "
        f"micro_batch_size={micro_batch_size} would split: {remedy}"
    )
