"""Traces that another process finds on disk: used where they are of the same code, and only where they agree."""

import dataclasses

import pytest
import torch
from study_tasks import mlp, trial
from torch import nn

from descend.study import StudyTask
from descend.study.running import trace_files
from descend.study.running.stack import Stack
from descend.study.running.traced import traced
from descend.study.running.vmapped import run_vmapped


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv("DESCEND_CACHE_DIR", str(tmp_path))
    return tmp_path / "traces"


@pytest.fixture
def made(monkeypatch):
    """How many functions were traced, a call each."""
    calls, trace = [], torch.jit.trace
    monkeypatch.setattr(torch.jit, "trace", lambda *given, **options: (calls.append(1), trace(*given, **options))[1])
    return calls


class Scaled(nn.Module):
    """A layer whose number no `repr` shows."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.scale, self.layer = scale, nn.Linear(4, 3)

    def forward(self, x):
        return self.scale * self.layer(x)


def convolutions():
    """Images of one channel; each operation of a convolution's gradients is in the step."""
    draw = torch.Generator().manual_seed(0)
    samples = torch.randn(40, 1, 6, 6, generator=draw), torch.randint(0, 3, (40,), generator=draw)
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, groups=2, bias=False)]
    return StudyTask(nn.Sequential(*layers, nn.Flatten(), nn.Linear(4, 3)), "cross_entropy", samples, samples)


@pytest.mark.parametrize("of_kind", [lambda: mlp(width=4), convolutions], ids=["products", "convolutions"])
def test_the_next_process_traces_nothing_and_computes_the_same_bits(folder, made, of_kind):
    task, trials = of_kind().prepared(), [trial(i, steps=70) for i in range(2)]

    def scores():
        fresh = dataclasses.replace(task)  # as another process has it: without traces in memory
        return [record.scores for record in run_vmapped(fresh, trials, 2)]

    first, count = scores(), len(made)
    assert count == len(list(folder.iterdir())) > 0
    assert scores() == first
    assert len(made) == count


def test_a_stack_of_another_form_or_rule_has_a_trace_of_its_own(made):
    task = mlp(width=4).prepared()
    for trials in ([trial(i, steps=70) for i in range(2)], [trial(i, steps=70) for i in range(3)]):
        before = len(made)
        Stack(task, trials).trace()
        assert len(made) > before


def test_a_trace_that_computes_something_else_is_made_again(tmp_path, made):
    """As where a number changed in a file that no hash sees."""
    file, x = tmp_path / "one.pt", torch.arange(3.0)
    assert traced(lambda x: [x * 2], x, file=file)(x)[0].tolist() == [0, 2, 4]
    assert traced(lambda x: [x * 2.001], x, file=file)(x)[0].tolist() == pytest.approx([0, 2.001, 4.002])
    assert traced(lambda x: [x * 2.001], x, file=file)(x)[0].tolist() == pytest.approx([0, 2.001, 4.002])
    assert len(made) == 2


@pytest.mark.parametrize("content", [b"", b"not an archive", None])
def test_what_is_damaged_or_of_another_user_is_not_loaded(tmp_path, content, made):
    file, x = tmp_path / "one.pt", torch.ones(3)
    traced(lambda x: [x + 1], x, file=file)
    if content is None:
        file.chmod(0o666)  # anybody may have written it
    else:
        file.write_bytes(content)
    assert trace_files.load(file) is None
    assert traced(lambda x: [x + 1], x, file=file)(x)[0].tolist() == [2, 2, 2]
    assert len(made) == 2
    assert trace_files.load(file) is not None


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path):
    (tmp_path / "blocked").write_text("a file")
    x = torch.ones(2)
    assert traced(lambda x: [x + 1], x, file=tmp_path / "blocked" / "one.pt")(x)[0].tolist() == [2, 2]


def test_the_identity_of_code():
    """The same for equal objects, whatever their weights; another one for another number, class or closure."""
    same = trace_files.identity(Scaled(1.0))
    assert same is not None
    assert trace_files.identity(Scaled(1.0)) == same
    assert trace_files.identity(Scaled(1.0).eval()) == same
    others = {trace_files.identity(one) for one in (Scaled(2.0), Scaled(1), nn.Linear(4, 3), nn.Linear(4, 2))}
    assert len(others | {same}) == 5

    def function(number):
        return lambda x: x * number

    assert trace_files.identity(function(1)) == trace_files.identity(function(1))
    assert trace_files.identity(function(1)) != trace_files.identity(function(2))


def test_code_that_is_in_no_file_is_not_kept():
    names = {}
    exec("def function(x):\n    return x\n", names)  # as in a notebook
    assert trace_files.identity(names["function"]) is None
    assert trace_files.path_of(None, ("form",)) is None
