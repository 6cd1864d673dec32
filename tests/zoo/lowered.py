"""Layers of a model as a float64 function of its inputs."""

import torch

import descend
from descend.graph import check
from descend.lower import lower
from descend.lower.initialize import initial_values
from descend.runtime import generator


def lowered(make, *shapes):
    """The module of `make(*inputs)`, a function from tensors to the squared norm of its output, and the plan."""
    inputs = [descend.Input(data_field=f"x{i}", name=f"input{i}") for i in range(len(shapes))]
    y = make(*inputs)
    model = descend.Model(1, objective_function=descend.Reduction(y, name="total"))
    plan = check(model, {f"x{i}": shape for i, shape in enumerate(shapes)})
    # The output itself: a metric of each of its entries would be one number only.
    module = lower(plan, lambda name: generator(1, name), [y.name]).double()
    with torch.no_grad():  # first values are made in float32
        for name, tensor in module.named_weights().items():
            tensor.copy_(initial_values(plan.weights[name], generator(1, name), torch.float64))

    def call(*xs):
        return module({f"x{i}": x for i, x in enumerate(xs)})[y.name]

    return module, call, plan


def random(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def agree(make, twin, *xs, rtol=1e-9, atol=1e-10):
    """The layers of `make(*inputs)` against `twin(get, *xs)`, in values and in gradients for inputs and weights.

    `get(name)` gives the twin a parameter as a torch tensor; all trainable ones have random values.
    """
    module, call, plan = lowered(make, *(tuple(x.shape[1:]) for x in xs))
    module.train()
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(random(*p.shape, seed=1000 + i))
    own = {name: p.detach().clone().requires_grad_() for name, p in module.named_parameters()}
    used = set()

    def get(name):
        used.add(name)
        return own[name]

    ours, theirs = ([x.detach().clone().requires_grad_() for x in xs] for _ in range(2))
    y, want = call(*ours), twin(get, *theirs)
    torch.testing.assert_close(y, want, rtol=rtol, atol=atol)
    assert used == own.keys(), "the twin leaves out weights"
    along = random(*y.shape, seed=99)
    names = list(own)
    got = torch.autograd.grad(
        (y * along).sum(), [*ours, *(module.get_parameter(name) for name in names)], allow_unused=True
    )
    wanted = torch.autograd.grad((want * along).sum(), [*theirs, *own.values()], allow_unused=True)
    for mine, one, like in zip(got, wanted, [*theirs, *own.values()], strict=True):
        zero = torch.zeros_like(like)
        torch.testing.assert_close(zero if mine is None else mine, zero if one is None else one, rtol=rtol, atol=atol)
    return plan
