"""One layer alone: checked and lowered as in a model, then called with tensors."""

import numpy as np
import torch

import descend
from descend.graph import check
from descend.lower.forward_context import ForwardContext
from descend.lower.initialize import initial_values
from descend.lower.registry import lowering
from descend.runtime import generator


class Single:
    """The layer that `make` makes of one Input for each shape, in float64."""

    def __init__(self, make, *shapes):
        inputs = [descend.Input(data_field=f"x{i}", name=f"p{i}") for i in range(len(shapes))]
        layer = make(*inputs)
        objective = descend.Input(data_field="objective", name="objective")
        model = descend.Model(1, layers=[layer, *inputs], objective_function=objective)
        self.plan = check(model, {"objective": (1,)} | {f"x{i}": shape for i, shape in enumerate(shapes)})
        self.planned = next(planned for planned in self.plan.layers if planned.name == layer.name)
        self.shape = self.planned.output_shape
        self.forward, self.with_pass = lowering(self.planned)
        self.weights = {
            name: initial_values(self.plan.weights[name], generator(1, name), torch.float64)
            for name in self.planned.weights
        }
        for name, tensor in self.weights.items():
            tensor.requires_grad_(self.plan.weights[name].trainable)

    def __call__(self, *xs, training=True, seed=0, position=0, samples=None, batch_size=None):
        samples = len(xs[0]) if xs else samples
        at = ForwardContext(
            training, seed, position, samples, batch_size or samples, torch.float64, torch.device("cpu")
        )
        given = (*xs, *self.weights.values())
        y = self.forward(at, *given) if self.with_pass else self.forward(*given)
        for one, shape in zip(y if isinstance(y, tuple) else (y,), self.planned.output_shapes, strict=True):
            assert tuple(one.shape) == (samples, *shape)
        return y


def random(*shape, seed=0, low=-2.0, high=2.0):
    """Float64 numbers that are no ties and want a gradient."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.empty(shape, dtype=torch.float64).uniform_(low, high, generator=draw)
    return x.requires_grad_()


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


def check_against(make, expression, *xs, smooth=True):
    """The layer gives what a NumPy expression of its inputs gives, and its gradients are finite differences."""
    layer = Single(make, *(tuple(x.shape[1:]) for x in xs))
    want = expression(*(x.detach().numpy() for x in xs))
    np.testing.assert_allclose(layer(*xs).detach(), want, rtol=1e-11, atol=1e-12)
    if smooth:
        assert torch.autograd.gradcheck(lambda *z: layer(*z), xs)
    return layer


def gradients(layer, *xs):
    """Gradients of the sum of a layer's output for its inputs; zeros where none comes."""
    xs = [x.detach().clone().requires_grad_() for x in xs]
    y = layer(*xs)
    if y.requires_grad:
        y.sum().backward()
    return [torch.zeros_like(x) if x.grad is None else x.grad for x in xs]
