"""Which optimizers can be examined, which checks are made, and what the caller gets wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType

import pytest
import torch
from faulty_optimizers import CASES, ROOT, Toy, assert_only_the_broken_one_fails, finding
from system_needs import require
from torch.optim.optimizer import required

import descend.optim
from descend.conformance import PUBLISHED, Verdict, examine, survey
from descend.errors import RuleError


def test_a_step_that_raises_is_a_failure():
    assert_only_the_broken_one_fails("takes a step")


def test_every_check_has_a_case():
    names = {found.check for found in examine(descend.optim.SGD).findings}
    assert names == set(CASES)


def test_only_the_named_checks_are_made():
    report = examine(Toy, checks=("closure", "frozen"))
    assert [found.check for found in report.findings] == ["takes a step", "frozen", "closure"]
    assert examine(Toy, checks=("published rule with decay",))["takes a step"].verdict is Verdict.OK  # no such rule
    with pytest.raises(RuleError, match="no check 'frozn'; did you mean 'frozen'"):
        examine(Toy, checks=("frozn",))


def test_mistakes_of_the_caller_are_errors():
    with pytest.raises(RuleError, match="did you mean 'betas'"):
        examine(torch.optim.Adam, beta=(0.9, 0.99))
    with pytest.raises(RuleError, match="did you mean 'LAMB'"):
        examine(torch.optim.Adam, rule="lambda")


FAIR_PART = ("adamw", "lamb", "sgd", "sgld")


def test_a_function_that_builds_one_is_examined_by_the_name_of_what_it_builds():
    found = finding(lambda params: torch.optim.Adam(params, lr=0.02, betas=(0.8, 0.99)), "published rule")
    assert found.verdict is Verdict.OK
    assert found.expected.startswith("Adam:")


def test_what_cannot_be_examined_is_said():
    assert examine(torch.optim.LBFGS).findings[0].verdict is Verdict.NOT_APPLICABLE
    assert examine(torch.optim.SparseAdam).findings[0].seen == "not examined: a step of it needs sparse gradients"


class WantsClosure(Toy):
    def step(self, closure=None):
        if closure is None:
            raise ValueError("this optimizer wants a closure")
        return super().step(closure)


class WantsGraph(Toy):
    def move(self, p, g, group, i):
        p.sub_(group["lr"] * torch.autograd.grad(g.sum(), p, retain_graph=True)[0])

    def step(self, closure=None):
        with torch.enable_grad():
            return super().step(closure)


class WantsALoss(Toy):
    """Takes the loss alone from its closure, after the backward pass."""

    def step(self, closure=None):
        if closure is None:
            raise ValueError("this optimizer wants a closure")
        with torch.no_grad():
            closure()
        return super().step()


class Never(Toy):
    def step(self, closure=None):
        raise ValueError("never")


def test_a_step_that_needs_more_than_gradients_is_distinguished_from_one_that_fails():
    assert examine(WantsClosure).findings[0].seen == "not examined: a step of it needs a closure"
    assert examine(WantsClosure).passed
    assert examine(WantsALoss).findings[0].seen == "not examined: a step of it needs a closure"
    assert examine(Never).findings[0].verdict is Verdict.FAIL
    assert "never" in examine(Never).findings[0].seen


def test_what_builds_nothing_to_examine_is_an_error():
    class Needs(Toy):
        def __init__(self, params, must, *, other):
            super().__init__(params)

    class Stubborn(Toy):
        def __init__(self, params):
            raise ValueError("no luck")

    with pytest.raises(RuleError, match="Needs cannot be built without other: "):
        examine(Needs, must=1)
    assert finding(Needs, "takes a step", must=1, other=2).verdict is Verdict.OK
    with pytest.raises(RuleError, match="Stubborn cannot be built over a list of one matrix: ValueError: no luck"):
        examine(Stubborn)
    with pytest.raises(RuleError, match=r"Adam\(lr=-1.0\) cannot be built"):
        examine(torch.optim.Adam, lr=-1.0)
    with pytest.raises(RuleError, match=r"list builds a list, which is not a torch.optim.Optimizer"):
        examine(list)


def test_a_rate_that_is_marked_as_required_is_given():
    class Marked(Toy):
        def __init__(self, params, lr=required):
            torch.optim.Optimizer.__init__(self, params, {"lr": lr, "weight_decay": 0.0})

    assert finding(Marked, "takes a step").verdict is Verdict.OK


def test_what_an_optimizer_prints_stays_out_of_the_table(capsys):
    class Talks(Toy):
        def __init__(self, params, lr=0.01):
            sys.stdout.write("hello")
            super().__init__(params, lr)

        def move(self, p, g, group, i):
            sys.stdout.write("moving")
            super().move(p, g, group, i)

    examine(Talks, checks=("closure",))
    assert capsys.readouterr().out == ""


def test_every_rule_of_ours_has_an_independent_reference():
    assert set(PUBLISHED) == set(descend.optim.names())


def test_nothing_global_is_touched():
    before = torch.random.get_rng_state()
    examine(torch.optim.SGD)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_survey_takes_every_class_of_a_module_once():
    module = ModuleType("mine")
    module.Toy = module.Alias = Toy
    module.NeedsMore = type("NeedsMore", (Toy,), {"__init__": lambda self, params, model: None})
    module.Optimizer = torch.optim.Optimizer
    toy, needs = sorted(survey(module), key=lambda report: report.title == "NeedsMore")
    assert toy.title == "Toy"
    assert needs.line.startswith("NeedsMore: not examined: NeedsMore cannot be built without model")
    assert needs.passed


def _our_report(name):
    report = examine(type(descend.optim.create(name, [torch.zeros(1)])))
    assert {found.verdict for found in report.findings} <= {Verdict.OK, Verdict.NOT_APPLICABLE}, f"\n{report}"


@pytest.mark.parametrize("name", FAIR_PART)
def test_ours_conform(name):
    _our_report(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in descend.optim.names() if name not in FAIR_PART])
def test_all_others_of_ours_conform(name):
    _our_report(name)


def _python_with_pytorch_optimizer():
    """An interpreter that has it: `DESCEND_PYTORCH_OPTIMIZER`, or this one."""
    python = os.environ.get("DESCEND_PYTORCH_OPTIMIZER", sys.executable)
    found = subprocess.run([python, "-c", "import pytorch_optimizer"], capture_output=True, check=False)
    require("pytorch_optimizer", found.returncode == 0, "set DESCEND_PYTORCH_OPTIMIZER to a Python that has it")
    return python


@pytest.mark.slow
def test_the_lamb_of_pytorch_optimizer_takes_a_first_step_10_times_too_long():
    command = [_python_with_pytorch_optimizer(), "-m", "descend", "conformance", "pytorch_optimizer:Lamb"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    line = next(line for line in done.stdout.splitlines() if line.startswith("length of the first step"))
    assert "4x3: 10," in line
    assert line.endswith("FAIL")
