"""Residual networks against torch modules of the same mathematics, and against published counts."""

from math import prod

import pytest
import torch
from torch import nn

from descend import zoo
from descend.errors import ConfigurationError
from tests.zoo.lowered import lowered, random


def parameters(plan):
    return sum(prod(weights.shape) for weights in plan.weights.values() if weights.trainable)


# Numbers of parameters as torchvision publishes them for its models of these names.
@pytest.mark.parametrize(
    ("kind", "count"),
    [
        (zoo.ResNet18, 11_689_512),
        (zoo.ResNet34, 21_797_672),
        (zoo.ResNet50, 25_557_032),
        pytest.param(zoo.ResNet101, 44_549_160, marks=pytest.mark.slow),
        pytest.param(zoo.ResNet152, 60_192_808, marks=pytest.mark.slow),
        pytest.param(zoo.WideResNet50_2, 68_883_240, marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_number_of_parameters_is_the_published_one(kind, count):
    import descend
    from descend.graph import check

    y = kind(1000)(descend.Input(data_field="x"))
    plan = check(descend.Model(1, objective_function=descend.L2Norm2(y)), {"x": (3, 224, 224)})
    assert parameters(plan) == count


class Block(nn.Module):
    def __init__(self, before, inner, outer, stride, bottleneck):
        super().__init__()
        kernels = (
            [(inner, 1, 1), (inner, 3, stride), (outer, 1, 1)] if bottleneck else [(inner, 3, stride), (outer, 3, 1)]
        )
        parts = []
        width = before
        for channels, kernel, step in kernels:
            parts += [
                nn.Conv2d(width, channels, kernel, step, kernel // 2, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU(),
            ]
            width = channels
        self.branch = nn.Sequential(*parts[:-1])
        same = stride == 1 and before == outer
        self.short = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(before, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))
        )

    def forward(self, x):
        return torch.relu(self.branch(x) + self.short(x))


def twin(blocks, bottleneck, classes):
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for stage, count in enumerate(blocks):
        inner = 64 * 2**stage
        outer = 4 * inner if bottleneck else inner
        for i in range(count):
            layers.append(Block(before, inner, outer, 2 if i == 0 and stage else 1, bottleneck))
            before = outer
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)).double()


@pytest.mark.parametrize(
    ("kind", "blocks", "bottleneck"), [(zoo.ResNet18, (2, 2, 2, 2), False), (zoo.ResNet50, (3, 4, 6, 3), True)]
)
def test_a_resnet_in_evaluation_is_torchs(kind, blocks, bottleneck):
    model = kind(7, zero_init_residual=False, name="r")
    module, call, _ = lowered(lambda x: model(x), (3, 64, 64))
    other = twin(blocks, bottleneck, 7)
    # Both name their tensors in order of use but for shortcuts, so tensors are matched by walking the blocks.
    theirs = [m for m in other.modules() if isinstance(m, (nn.Conv2d, nn.BatchNorm2d, nn.Linear))]
    ours = []
    for part in (
        model.stem,
        *(p for block in model.blocks for p in (*block.branch, *([block.short] if block.short else []))),
    ):
        ours += [part.convolution, part]
    ours.append(model.fc)
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for mine, yours in zip(ours, theirs, strict=True):
            tensors = [yours.weight] + ([] if yours.bias is None else [yours.bias])
            tensors += [yours.running_mean, yours.running_var] if isinstance(yours, nn.BatchNorm2d) else []
            for weights, tensor in zip(mine.weights, tensors, strict=True):
                own = module.named_weights()[weights.name]
                if isinstance(yours, nn.BatchNorm2d):
                    own.uniform_(0.5, 1.0, generator=draw)
                tensor.copy_(own)
    module.eval()
    other.eval()
    x = random(2, 3, 64, 64)
    torch.testing.assert_close(call(x), other(x), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("options", "scale"), [({}, 0.0), ({"zero_init_residual": False}, 1.0), ({"gamma_0": 0.4}, 0.4)]
)
def test_the_last_scale_of_a_block_has_the_requested_initial_value(options, scale):
    model = zoo.ResNet18(5, name="r", small_images=True, **options)
    module, call, plan = lowered(lambda x: model(x), (3, 8, 8))
    weights = module.named_weights()
    assert weights["r_stage2_block1_branch2_bn_scale"].unique().tolist() == pytest.approx([scale])
    assert weights["r_stage2_block1_branch1_bn_scale"].unique().tolist() == [1.0]
    assert not plan.weights["r_stem_bn_running_mean"].trainable
    assert call(random(2, 3, 8, 8)).shape == (2, 5)


def test_sizes_that_are_none_are_refused():
    with pytest.raises(ConfigurationError, match="ResNet18 'r' has output_size 0 and width 1; both must be at least 1"):
        zoo.ResNet18(0, name="r")
