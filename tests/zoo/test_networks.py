"""Networks against torch modules of the same mathematics."""

import torch
from torch import nn

import descend
from descend import zoo
from descend.graph import check
from tests.zoo.lowered import lowered, random


def copy_into(other, module, names):
    theirs = [m for m in other.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    with torch.no_grad():
        for name, one in zip(names, theirs, strict=True):
            kind = "kernel" if isinstance(one, nn.Conv2d) else "matrix"
            one.weight.copy_(module.get_parameter(f"{name}_{kind}"))
            one.bias.copy_(module.get_parameter(f"{name}_bias").normal_(std=0.1))


def test_lenet_is_torchs():
    module, call, _ = lowered(lambda x: zoo.LeNet(10, name="n")(x), (1, 28, 28))
    stage = lambda a, b: [nn.Conv2d(a, b, 5), nn.ReLU(), nn.MaxPool2d(2)]  # noqa: E731
    dense = [nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    other = nn.Sequential(*stage(1, 6), *stage(6, 16), nn.Flatten(), *dense).double()
    copy_into(other, module, ["n_conv1", "n_conv2", "n_fc1", "n_fc2", "n_fc3"])
    x = random(3, 1, 28, 28)
    torch.testing.assert_close(call(x), other(x), rtol=1e-9, atol=1e-11)


def test_alexnet_has_its_published_shapes():
    y = zoo.AlexNet(1000, name="n")(descend.Input(data_field="x"))
    for size in (224, 227):
        plan = check(descend.Model(1, objective_function=descend.L2Norm2(y)), {"x": (3, size, size)})
        shapes = {layer.name: layer.output_shape for layer in plan.layers}
        assert shapes["n_conv1"] == ((96, 54, 54) if size == 224 else (96, 55, 55))
        assert shapes["n_pool5"] == ((256, 5, 5) if size == 224 else (256, 6, 6))
        assert shapes["n_fc8"] == (1000,)
        assert {"n_norm1", "n_norm2", "n_drop6", "n_drop7"} <= shapes.keys()


def test_an_mlp_is_torchs_and_drops_between_its_layers():
    module, call, plan = lowered(lambda x: zoo.MLP([5, 4, 2], descend.Tanh, dropout=0.25, name="n")(x), (3,))
    assert {layer.name: layer.layer.keep_prob for layer in plan.layers if "drop" in layer.name} == {
        "n_drop1": 0.75,
        "n_drop2": 0.75,
    }
    other = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    copy_into(other, module, ["n_fc1", "n_fc2", "n_fc3"])
    module.eval()
    x = random(6, 3)
    torch.testing.assert_close(call(x), other(x), rtol=1e-10, atol=1e-12)
