"""Layers of a model as a float64 function of its inputs."""

import torch

import descend
from descend.graph import check
from descend.lower import lower
from descend.runtime import generator


def lowered(make, *shapes):
    """The module of `make(*inputs)`, a function from tensors to the squared norm of its output, and the plan."""
    inputs = [descend.Input(data_field=f"x{i}", name=f"input{i}") for i in range(len(shapes))]
    y = make(*inputs)
    model = descend.Model(1, objective_function=descend.Reduction(y, name="total"))
    plan = check(model, {f"x{i}": shape for i, shape in enumerate(shapes)})
    # The output itself: a metric of each of its entries would be one number only.
    module = lower(plan, lambda name: generator(1, name), [y.name]).double()

    def call(*xs):
        return module({f"x{i}": x for i, x in enumerate(xs)})[y.name]

    return module, call, plan


def random(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
