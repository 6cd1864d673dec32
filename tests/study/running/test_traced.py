"""A trace is its function, whatever is left out of it and wherever its results are written."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from study_tasks import mlp, trial
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from descend.study import StudyTask
from descend.study.running import traced as traced_module
from descend.study.running.cpu_kernels import decompositions
from descend.study.running.stack import Stack
from descend.study.running.traced import recorded, traced

UNARY = [torch.exp, torch.neg, torch.relu, lambda x: x.t(), lambda x: x.reshape(3, 3), lambda x: x[:, :1], torch.clone]
BINARY = [torch.add, torch.sub, torch.mul, torch.mm, lambda x, y: x + y.split(1, 1)[1]]


def nine(x):
    """Any value in the shape of all of them."""
    return x if x.shape == (3, 3) else x.expand(3, 3)


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=12))
def test_random_functions_give_the_same_bits(program):
    """Values that are read later, views of them, and the inputs themselves are left alone."""

    def function(*given):
        values = list(given)
        for which, first, second in program:
            x, y = nine(values[first % len(values)]), nine(values[second % len(values)])
            values.append(UNARY[which](x) if which < 7 else BINARY[which - 7](x, y))
        return values[len(given) + len(program) // 2 :]

    torch.manual_seed(0)
    inputs = [0.3 * torch.randn(3, 3, dtype=torch.float64) for _ in range(2)]
    kept = [x.clone() for x in inputs]
    wanted = function(*inputs)
    run = traced(function, *inputs)
    spending = traced(function, *inputs, spent=2)(*[x.clone() for x in inputs])
    for one, other in zip(spending, wanted, strict=True):
        assert torch.equal(one, other) or not other.isfinite().all()
    for _ in range(2):  # what is run again has the same inputs
        for one, other in zip(run(*inputs), wanted, strict=True):
            assert torch.equal(one, other) or not other.isfinite().all()
    assert all(torch.equal(x, other) for x, other in zip(inputs, kept, strict=True))


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=8))
def test_what_is_fused_is_the_same_up_to_rounding(program):
    """Sums and products, over each other and over the inputs, which may be written over."""
    steps = [
        lambda x, y: x + 0.9 * y,
        lambda x, y: x * 0.5 - y,
        lambda x, y: x - x * y,
        lambda x, y: x * y + y,
        lambda x, y: x - 0.1 * y,
        lambda x, y: x[:, :1] * y - x,
    ]

    def function(*given):
        values = list(given)
        for which, first, second in program:
            values.append(steps[which](values[first % len(values)], values[second % len(values)]))
        return values[-2:]

    torch.manual_seed(0)
    inputs = [0.3 * torch.randn(3, 5, dtype=torch.float64) for _ in range(3)]
    wanted = function(*inputs)
    run = traced(function, *inputs, fused=True)
    for _ in range(2):
        for one, other in zip(run(*inputs), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    spending = traced(function, *inputs, spent=2, fused=True)(*[x.clone() for x in inputs])
    for one, other in zip(spending, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_narrow_products_and_what_is_done_with_them():
    """The transpose is computed, and views and reductions of it are those of the product."""

    def function(x, y):
        z = torch.bmm(x, y)
        return [
            z,
            z.reshape(2, -1),
            z.argmax(2),
            z.flatten(0, 1).argmax(0),
            z.sum(1),
            torch.log_softmax(z, 2),
            z.mT @ x,
        ]

    for columns in (1, 10, 15, 16):
        x, y = torch.randn(2, 20, 7, dtype=torch.float64), torch.randn(2, 7, columns, dtype=torch.float64)
        for pair in ((x, y), (x.mT.contiguous().mT, y.mT.contiguous().mT)):
            for one, other in zip(traced(function, *pair)(*pair), function(*pair), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_what_depends_on_no_value_is_computed_once():
    """Ones like a value need not have it computed; constants are neither written over nor given away."""

    def function(x, kept):
        ones = torch.ones_like((x.exp() * 3).mT) * torch.full((3, 1), 2.0)
        return [kept + torch.zeros(3, 2) * 4 + 1, ones, torch.arange(3.0)]

    x, kept = torch.randn(2, 3), torch.zeros(3, 2)
    run = traced(function, kept.mT.contiguous(), kept, spent=0)
    code = run.__self__.code
    assert "exp" not in code
    assert "ones" not in code.replace("computed_ones", "")
    for _ in range(2):
        for one, other in zip(run(x, kept), function(x, kept), strict=True):
            assert torch.equal(one, other)
            assert one.stride() == other.stride()
            one.add_(0)
    spending = traced(lambda kept: [torch.zeros(2) + 3, kept], torch.zeros(2), spent=2)
    assert [spending(torch.ones(2))[0].tolist() for _ in range(2)] == [[3.0, 3.0]] * 2


def test_public_functions_give_the_bits_of_the_operations():
    """Every function that stands for an operation of its name, of the arguments that operations have."""
    x, y = torch.randn(3, 4), torch.rand(3, 4) + 0.5

    def function(x, y):
        index = torch.tensor([2, 0])
        return [
            torch.where(x > 0, x, 2.0), x.clamp(-1, 1), x.clamp_min(0), x.pow(2), 2.0 ** x, y.reciprocal(), y.rsqrt(),
            x.sum(), x.sum(1, keepdim=True), x.mean((0, 1)), x.amax(0), x.amin(1, True), x.argmax(), x.max(),
            *x.max(1), *x.min(0), torch.maximum(x, y), x.index_select(0, index),
            x.gather(1, index[None].expand(3, 2)), x.cumsum(1), x.scatter(1, index[None].expand(3, 2), 1.0), x[:, 1],
            x.unsqueeze(1), x.permute(1, 0), x.t() @ y, x.lerp(y, 0.3), torch.stack([x, y], 1), torch.cat([x, y]),
            x.split([1, 2, 1], 1)[1], 1 - x, x.div(y, rounding_mode='floor'), (x > 0) & (y > 1),
            torch.logical_not(x > 0), (x != 0).any(1), (x > 0).all(), x.to(torch.float64), x.clone(),
            torch.addcmul(x, x, y, value=0.5), torch.addmm(x[:, :3], x, y.t(), alpha=2), x.add(y, alpha=3), y.log(),
            y.sqrt(), torch.linalg.vector_norm(x, 2, dim=1),
            x.abs().sign().neg().exp().sin().cos().tanh().sigmoid().erf(), torch.nn.functional.embedding(index, x),
            torch.nn.functional.layer_norm(x, (4,)), x.le(y), x.ge(0), x.eq(y), x.lt(0), torch.zeros(2),
            torch.ones(2), torch.full((2,), 7), x.relu(),
        ]  # fmt: skip

    run = traced(function, x, y)
    assert len(run(x, y)) == len(function(x, y)) > 50
    for one, other in zip(run(x, y), function(x, y), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert torch.equal(one, other)


def test_results_that_share_memory_are_not_written_over_when_they_come_back():
    """As where a rule keeps the weights, or the number of the update, in its state."""

    def function(p, kept, same, number):
        new = p * 2 + kept
        return [new * number, new + same, new + same + 0 * number, number][:3]

    def keeping(p, kept, number):
        new = p + kept * number
        return [new, new, number]

    def constant(p, kept, number):
        return [p * number + kept, number]

    for made, count in ((function, 3), (keeping, 2), (constant, 2)):
        numbers = torch.full((4, 3), 3.0)
        given = [torch.ones(4, 3) for _ in range(count)]
        wanted = [x.clone() for x in given]
        run = traced(made, *given, numbers, spent=count)
        for _ in range(3):
            given, wanted = run(*given, numbers)[:count], made(*wanted, torch.full((4, 3), 3.0))[:count]
        for one, other in zip(given, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
        assert (numbers == 3).all()


def test_what_writes_by_itself_is_left_as_it_is():
    def function(x):
        mean = torch.zeros(4)
        y = torch.native_batch_norm(x, None, None, mean, torch.ones(4), True, 0.5, 1e-5)[0]
        return [y.exp(), mean.exp(), mean.exp()]

    x = torch.randn(6, 4)
    for one, other in zip(traced(function, x)(x), function(x), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_softmax_agrees_with_that_of_torch():
    x = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)

    def function(x):
        with torch.enable_grad():
            y = torch.log_softmax(x, 1)
            return [y, *torch.autograd.grad((y * torch.arange(7)).sum(), x)]

    for one, other in zip(traced(function, x)(x), function(x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    wide = torch.tensor([[1000.0, 0.0, float("-inf")]])
    (found,) = traced(lambda x: [torch.log_softmax(x, 1)], wide)(wide)
    assert found.tolist() == [[0.0, -1000.0, float("-inf")]]


@pytest.mark.parametrize("shape", [(3, 1, 4), (3, 4, 1), (3, 2, 2)])
def test_one_times_a_part_of_a_row_is_no_operation(shape):
    """As `torch.addmm` scales a bias by 1. Its view lies as the part does, and what is added to it by itself."""

    def function(x, y):
        scaled = x[:, 1:5] * 1
        return [(scaled.view(shape) + y).exp()]

    x, y = torch.randn(3, 7), torch.randn(shape)
    found = traced(function, x, y)(x, y)
    assert torch.equal(found[0], function(x, y)[0])


def test_one_times_what_cannot_be_viewed_is_computed():
    def function(x):
        scaled = torch.ops.aten.mul.Scalar(x.t(), 1).contiguous()
        return [scaled.view(-1) + 1, torch.ops.aten.mul.Scalar(x[:, :2], 1).contiguous().view(-1)]

    x = torch.randn(3, 4)
    for ours, theirs in zip(traced(function, x)(x), function(x), strict=True):
        assert torch.equal(ours, theirs)


_aten = torch.ops.aten


def listed(module):
    """The operations of a graph with their arguments, values numbered in their order, and what each value is like."""
    numbers, found = {}, []

    def plain(x):
        if isinstance(x, torch.fx.Node):
            return numbers[x]
        return [plain(part) for part in x] if isinstance(x, (tuple, list)) else repr(x)

    for node in module.graph.nodes:
        numbers[node] = len(numbers)
        meta = node.meta.get("form", node.meta.get("tensor_meta"))
        form = None if meta is None or node.op == "output" else (tuple(meta.shape), meta.dtype, tuple(meta.stride))
        target = str(node.target) if node.op == "call_function" else ""
        options = sorted((name, plain(x)) for name, x in node.kwargs.items())
        found.append((node.op, target, plain(node.args), options, form))
    return found


def convolutions():
    """Channels, pooling, and statistics that a step writes."""
    first, second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 6, 3)
    layers = (first, nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), second, nn.Flatten(), nn.Dropout(0.3))
    return nn.Sequential(*layers, nn.Linear(24, 3))


class Tokens(nn.Module):
    """A recurrent layer, a norm, and a constant that the forward pass makes."""

    def __init__(self):
        super().__init__()
        self.table, self.cell, self.norm = nn.Embedding(11, 8), nn.RNNCell(8, 6), nn.LayerNorm(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        held = torch.zeros(len(x), 6)
        for token in self.table(x).unbind(1):
            held = self.cell(token, held)
        held = self.norm(held) * torch.tensor([0.5])
        return self.head(held.softmax(-1) @ torch.eye(6))


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3)), torch.randn(70, 8)),
        (convolutions, torch.randn(70, 1, 8, 8)),
        (Tokens, torch.randint(0, 11, (70, 5))),
    ],
)
@pytest.mark.parametrize("optimizer", ["SGD", "LAMB"])
def test_steps_and_scores_are_recorded_as_make_fx_records_them(monkeypatch, model, x, optimizer):
    compared = []

    def both(function, example, table):
        ours = recorded(function, example, table)
        theirs = make_fx(function, decomposition_table=table)(*example)
        for module in (ours, theirs):
            module.graph.eliminate_dead_code()
        compared.append((listed(ours), listed(theirs)))
        return ours

    monkeypatch.setattr(traced_module, "recorded", both)
    y = torch.randint(0, 3, (70,))
    task = StudyTask(model, nn.CrossEntropyLoss(), (x, y), (x, y)).prepared()
    Stack(task, [trial(i, steps=100, optimizer=optimizer) for i in range(3)]).trace()
    assert len(compared) == 2
    assert all(len(ours) > 20 for ours, _ in compared)
    for ours, theirs in compared:
        assert ours == theirs


def test_results_that_are_inputs_lists_and_written_in_place():
    def function(x, y):
        first, second = x.split(1)
        third = (first * y).add_(second)
        return [third.mT, x, third.sum()]

    example = torch.randn(2, 3, 4), torch.randn(4)
    assert listed(recorded(function, example, {})) == listed(make_fx(function, decomposition_table={})(*example))
    for ours, theirs in zip(recorded(function, example, {})(*example), function(*example), strict=True):
        assert torch.equal(ours, theirs)


def test_a_tensor_from_outside_is_a_constant_and_keeps_its_value():
    outside = torch.tensor([1.0, 2.0])
    module = recorded(lambda x: [x + outside, x * torch.tensor(3.0)], [torch.zeros(2)], {})
    assert [x.tolist() for x in module(torch.ones(2))] == [[2.0, 3.0], [3.0, 3.0]]


def test_a_value_that_depends_on_what_is_given_is_not_frozen_into_the_graph():
    with pytest.raises(RuntimeError, match="asks for the value of a tensor"):
        recorded(lambda x: [x * x.sum().item()], [torch.ones(2)], {})
    fixed = recorded(lambda x: [x * (torch.tensor([2.0, 3.0]) + 1).sum().item()], [torch.ones(2)], {})
    assert fixed(torch.ones(2))[0].tolist() == [7.0, 7.0]


def test_what_stands_for_an_operation_may_leave_it_as_it_is():
    table = {_aten.exp.default: lambda x: NotImplemented if x.dtype is torch.float64 else x + 1}
    for dtype, wanted in ((torch.float64, "aten.exp.default"), (torch.float32, "aten.add.Tensor")):
        graph = recorded(lambda x: [x.exp()], [torch.ones(2, dtype=dtype)], table).graph
        assert [str(node.target) for node in graph.nodes if node.op == "call_function"] == [wanted]


def test_a_products_transposes_are_those_of_make_fx():
    """`mT` inside of what stands for an operation comes whole, and is taken apart."""
    example = torch.randn(3, 20, 30), torch.randn(3, 30, 4)
    table = decompositions(example)
    found = [listed(module) for module in (recorded(bmm, example, table), make_fx(bmm, table)(*example))]
    assert found[0] == found[1]
    assert "aten.transpose.int" in [row[1] for row in found[0]]


def bmm(x, y):
    """A product."""
    return [torch.bmm(x, y)]


def test_the_first_study_of_a_process_imports_no_compiler(tmp_path):
    """Torch's compiler and SymPy take a second, in which a small study ends."""
    program = """
import sys
import torch
from study_tasks import mlp, trial
from descend.study.running.executor_choice import choose

task, trials = mlp(width=4).prepared(), [trial(i, steps=70) for i in range(6)]
way = choose(task, trials, 1, "auto", {})
assert len(list(choose(task, trials, 1, "together", {}).run(task, trials, 1, {}))) == 6
print([name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules], way.reason)
"""
    paths = {"PYTHONPATH": str(Path(sys.modules[mlp.__module__].__file__).parent)}
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "DESCEND_CACHE_DIR": str(tmp_path), **paths}
    made = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("[] parameters times the batch size are")


def test_a_number_in_the_place_of_a_tensor_is_left_to_the_operation():
    """As batch norm's statistics have it: torch's functions take no number there."""

    def function(x):
        count = _aten._to_copy.default(3, dtype=torch.float32)
        return [_aten.mul.Tensor(2.0, x), x * count, _aten.add.Tensor(x, 2.5)]

    for one, other in zip(traced(function, torch.randn(3))(x := torch.randn(3)), function(x), strict=True):
        assert torch.equal(one, other)
