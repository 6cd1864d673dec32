"""Which parameters are in which arena, and when arenas are created again."""

from types import SimpleNamespace

import pytest
import torch
from optimizer_inputs import group_settings

import descend.optim
from descend.errors import ConfigurationError
from descend.optim.engine.arena_manager import RUNNERS, ArenaManager, jobs_of, traces_of
from descend.optim.engine.gradient_scan import TensorList
from descend.optim.engine.state import State
from descend.optim.engine.step_inputs import names_of, open_states, tasks_of
from descend.optim.engine.ways import update_outside
from descend.optim.rules import LAMB, SGD, Adam, Muon


def parameter(*shape, dtype=torch.float32):
    p = torch.nn.Parameter(torch.ones(shape, dtype=dtype))
    p.grad = torch.ones_like(p)
    return p


def added(settings, *groups, runner="blocks"):
    """A manager with these parameters, the updates that remain outside, and what a step needs."""
    manager, listed, state = ArenaManager(runner), [{"params": list(group)} for group in groups], State()
    tasks = tasks_of(listed, settings, names_of(listed), state)
    active = manager.add(tasks, settings, [TensorList(group["params"]) for group in listed])
    outside = [task for task in tasks if id(task.param) not in manager.residents]
    open_states(outside)
    return manager, outside, active, state


def settings(rule, **options):
    return group_settings(rule, lr=0.5, **options)


def test_an_arena_for_each_precision_and_update():
    p, q, low = parameter(3), parameter(4, 4), parameter(5, dtype=torch.bfloat16)
    manager, outside, active, _ = added([settings(SGD()), settings(Adam())], [p, low], [q])
    assert outside == []
    assert [[slot.param for slot in one.arena.layout.slots] for one in active] == [[p], [low], [q]]
    assert len(manager.residents) == 3


def test_groups_that_differ_in_constants_share_an_arena():
    p, q = parameter(3), parameter(3)
    manager, *_ = added([settings(Adam()), settings(Adam(beta1=0.5), decay=0.1)], [p], [q])
    assert len(manager.arenas) == 1


def test_what_fits_no_arena_remains_outside():
    matrix, empty, vector = parameter(4, 4), parameter(0), parameter(3)
    _, outside, *_ = added([settings(Muon()), settings(SGD())], [matrix], [empty, vector])
    assert [task.param for task in outside] == [matrix, empty]
    assert traces_of([settings(Muon())], low=False) == [None]


def test_the_plain_runner_has_no_arenas():
    p = parameter(3)
    held, listed, state = [settings(SGD())], [{"params": [p]}], State()
    manager, tasks = ArenaManager("plain"), tasks_of(listed, held, names_of(listed), state)
    assert update_outside(manager, tasks, held, [TensorList([p])], seed=0) == manager.arenas == []
    assert p.tolist() == [0.5] * 3
    assert "plain" in RUNNERS


@pytest.mark.parametrize("change", ["the state was replaced", "a parameter moved", "the rule is another"])
def test_arenas_that_were_changed_from_outside_are_dropped(change):
    p, held = parameter(3), [settings(SGD(momentum=0.9))]
    manager, _, active, state = added(held, [p])
    manager.step(active, held, seed=0)
    state.changes.seen = True
    assert len(manager.begin_step(held, state)) == 1
    if change == "the state was replaced":
        state[p]["b"] = torch.zeros(3)
    elif change == "a parameter moved":
        p.data = p.data.clone()
    else:
        held = [settings(Adam())]
    assert manager.begin_step(held, state) == []
    assert manager.residents == set()


def test_a_step_updates_the_parameters_of_all_arenas():
    p, q, held = parameter(3), parameter(2, dtype=torch.float64), [settings(SGD())]
    manager, _, active, _ = added(held, [p, q])
    manager.step(active, held, seed=0)
    assert (p.tolist(), q.tolist()) == ([0.5] * 3, [0.5] * 2)


def test_the_jobs_of_an_arena_depend_on_its_update_and_precision():
    keys = set()
    for rule, dtype in (
        (SGD(), torch.float32),
        (SGD(), torch.float64),
        (LAMB(), torch.float32),
        (SGD(), torch.bfloat16),
    ):
        manager, *_ = added([settings(rule)], [parameter(3, dtype=dtype)])
        keys |= {(job.structure, job.dtype, job.low) for job in jobs_of(manager.arenas[0])}
    assert len(keys) == 4


def test_a_capture_that_would_take_numbers_from_the_host_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    p = torch.nn.Parameter(torch.ones(4, 3))
    p.grad = torch.ones(4, 3)
    ours = descend.optim.Adafactor([p], runner="blocks")
    for _ in range(2):
        ours.step()  # on a CPU nothing is captured
    on_gpu = SimpleNamespace(param=SimpleNamespace(device=torch.device("cuda", 0)))
    manager = ArenaManager("compiled")
    manager.refuse_capture([])
    with pytest.raises(ConfigurationError, match="leave rules of whole matrices out of it"):
        manager.refuse_capture([on_gpu])
    layout = SimpleNamespace(device=torch.device("cuda", 0))
    bare, matrices = ArenaManager("blocks"), ArenaManager("compiled")
    bare.arenas = [SimpleNamespace(native=None, layout=layout)]
    matrices.matrices = [SimpleNamespace(layout=layout)]
    for manager in (bare, matrices):
        with pytest.raises(ConfigurationError, match="numbers from the host"):
            manager.refuse_capture([])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    bare.refuse_capture([on_gpu])
