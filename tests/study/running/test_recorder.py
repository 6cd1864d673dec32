"""What is recorded is what torch's `make_fx` records, which takes a second to import."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from study_tasks import mlp, trial
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from descend.study import StudyTask
from descend.study.running import traced
from descend.study.running.cpu_kernels import decompositions
from descend.study.running.recorder import recorded
from descend.study.running.stack import Stack

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
def test_steps_and_scores_are_recorded_as_make_fx_records_them(monkeypatch, tmp_path, model, x, optimizer):
    monkeypatch.setenv("DESCEND_CACHE_DIR", str(tmp_path))  # no trace is there yet
    compared = []

    def both(function, example, table):
        ours = recorded(function, example, table)
        theirs = make_fx(function, decomposition_table=table)(*example)
        for module in (ours, theirs):
            module.graph.eliminate_dead_code()
        compared.append((listed(ours), listed(theirs)))
        return ours

    monkeypatch.setattr(traced, "recorded", both)
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
    assert made.stdout.startswith("[] a step of a trial takes")
