"""Faults in gradients, weights and settings: found before they change anything, and named."""

import functools
import itertools
import json
import math

import pytest
import torch
from faults.doors import SGD, X, Y, fault, fit, is_unchanged, net, snapshot
from safetensors.torch import load_file
from torch import nn

import descend
from descend.errors import ConfigurationError, NumericalError

OPTIMIZERS = {
    "sgd": SGD,
    "adam": functools.partial(torch.optim.Adam, lr=0.01),
    "our adam": functools.partial(descend.optim.Adam, lr=0.01),
    "our lamb": functools.partial(descend.optim.LAMB, lr=0.01),
}


class Poison(descend.Callback):
    """Puts a value into one element of a gradient, in given mini-batches, counted from 1."""

    def __init__(self, value, batches):
        self.value, self.batches, self.seen = value, batches, 0

    def after_backward(self, step):
        self.seen += 1
        if self.seen in self.batches:
            step.module[0].weight.grad[1, 2] = self.value


class Weights(descend.Callback):
    """What weights, buffers and moments were after each step."""

    def __init__(self):
        self.after = {}

    def after_step(self, step):
        moments = [
            value.clone()
            for entry in step.optimizer.state.values()
            for value in entry.values()
            if isinstance(value, torch.Tensor)
        ]
        self.after[step.step] = (snapshot(step.module), moments)


# ---- a gradient that is not finite


SETTINGS = [{}, {"micro_batch_size": 3}, {"clip_global_norm": 0.1}, {"dtype": torch.float64}]
# Each optimizer with each setting; which value is not finite is in turn.
NOT_FINITE = [
    pytest.param(value, OPTIMIZERS[name], settings, id=f"{value}, {name}, {settings}")
    for (name, settings), value in zip(
        itertools.product(OPTIMIZERS, SETTINGS), itertools.cycle([math.nan, math.inf, -math.inf]), strict=False
    )
]


@pytest.mark.parametrize(("value", "optimizer", "settings"), NOT_FINITE)
@pytest.mark.filterwarnings("ignore:.*normalizes over", "ignore:a part of a batch")
def test_a_gradient_that_is_not_finite(tmp_path, value, optimizer, settings):
    """The loss is finite, one element of a gradient is not: exit 4; step, weights and samples are named; weights,
    buffers and moments are those before the step, and so is the checkpoint."""
    dtype = settings.get("dtype", torch.float32)
    given = {name: value for name, value in settings.items() if name != "dtype"}
    if "micro_batch_size" in given:
        given = {"micro_batch_size": 5, "batch_norm_group_size": 5}
    module, watcher = net(dtype), Weights()
    poison = Poison(value, [6])
    said = fault(
        lambda: fit(
            module,
            data=(X.to(dtype), Y),
            optimizer=optimizer,
            callbacks=[watcher, poison],
            run_dir=tmp_path,
            stop=descend.Steps(9),
            **given,
        ),
        4,
        "step 6",
        "'0.weight'",
        "epoch 2, mini-batch 2",
        "their numbers are",
        "on_nonfinite='skip'",
        "step-5",
    )
    assert "rate" in said
    before, _ = watcher.after[5]
    assert is_unchanged(module, before)
    saved = load_file(tmp_path / "checkpoints/step-5/weights.safetensors")
    assert all(torch.equal(saved[name], tensor) for name, tensor in before.items())
    again = fit(data=(X.to(dtype), Y), module=net(dtype), optimizer=optimizer, run_dir=tmp_path, resume=True, **given)
    assert again.steps == 6


def test_steps_that_are_left_out():
    """`skip`: not applied, counted, moments and schedule where they were, and ten in a row are too many."""
    watcher = Weights()
    result = fit(callbacks=[Poison(math.nan, [3]), watcher], on_nonfinite="skip", stop=descend.Epochs(1), optimizer=SGD)
    assert result.steps == 3
    assert result.history[0]["skipped_steps"] == 1
    assert sorted(watcher.after) == [1, 2, 3]
    said = fault(
        lambda: fit(callbacks=[Poison(math.nan, range(1, 99))], on_nonfinite="skip", stop=descend.Epochs(9)),
        4,
        "10 steps",
    )
    assert "'0.weight'" in said


def test_weights_that_are_not_finite_are_never_the_last_good_checkpoint(tmp_path):
    """With on_nonfinite='allow' checkpoints say so; the next run continues from the last good one."""

    class Break(descend.Callback):
        def after_step(self, step):
            if step.step == 5:
                step.module[0].weight.data[0, 0] = math.nan

    with pytest.warns(UserWarning, match="not finite"):
        fit(
            callbacks=[Break(), descend.Checkpoint(every_steps=2, keep=1)],
            on_nonfinite="allow",
            run_dir=tmp_path,
            stop=descend.Steps(8),
        )
    assert (tmp_path / "checkpoints/step-4").is_dir()
    with pytest.warns(UserWarning, match="step-8 holds weights that are not finite"):
        result = fit(run_dir=tmp_path, resume=True, stop=descend.Steps(5))
    assert result.steps == 5
    assert all(bool(torch.isfinite(value).all()) for value in result.weights.values())


def test_an_error_of_a_callback_within_a_step_leaves_the_state_before_it(tmp_path):
    """Running statistics have moved in the forward pass of the step that is not made, and are put back."""

    class Refuse(descend.Callback):
        def after_backward(self, step):
            if step.step == 4:
                raise NumericalError("not like this")

    module, watcher = net(), Weights()
    said = fault(lambda: fit(module, callbacks=[watcher, Refuse()], run_dir=tmp_path), 4, "not like this", "step-3")
    assert "the state after 3 updates is saved" in said
    assert is_unchanged(module, watcher.after[3][0])


# ---- gradients that are absent, zero or sparse


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_weight_without_a_gradient(optimizer):
    """Untouched, without state, not decayed; one warning names it after the first epoch."""

    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = net(), nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    module = Half()
    before = snapshot(module.unused)
    made = []

    def make(named):
        made.append(optimizer(named, weight_decay=0.1))
        return made[0]

    with pytest.warns(UserWarning, match="'unused.weight', 'unused.bias'") as reported:
        fit(module, optimizer=make, stop=descend.Epochs(2))
    assert len([w for w in reported if "unused" in str(w.message)]) == 1
    assert is_unchanged(module.unused, before)
    assert not made[0].state.get(module.unused.weight)


class Words(nn.Module):
    """A sparse table and a dense layer; word 0 stands in every sample twice."""

    def __init__(self, sparse):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(2)
            self.table = nn.EmbeddingBag(20, 4, mode="sum", sparse=sparse)
            self.out = nn.Linear(4, 3)

    def forward(self, words):
        return self.out(self.table(words))


OTHERS = torch.randint(0, 20, (40, 3), generator=torch.Generator().manual_seed(3))
WORDS = torch.cat([torch.zeros(40, 2, dtype=torch.int64), OTHERS], 1)


@pytest.mark.parametrize(
    "settings", [{}, {"clip_global_norm": 0.05}, {"clip_norm": 0.05}, {"clip_value": 0.001}], ids=str
)
def test_a_sparse_gradient_gives_the_dense_result(settings):
    """Repeated rows are summed once before they are clipped; micro-batches change nothing."""
    plain = functools.partial(torch.optim.SGD, lr=0.5)
    for micro_batch_size in (None, 4):
        ours, dense = (
            fit(Words(sparse), data=(WORDS, Y), optimizer=plain, micro_batch_size=micro_batch_size, **settings)
            for sparse in (True, False)
        )
        for name in dense.weights:
            torch.testing.assert_close(ours.weights[name], dense.weights[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("optimizer", "remedy"),
    [
        (OPTIMIZERS["adam"], "SparseAdam"),
        (functools.partial(torch.optim.RMSprop, lr=0.1), "SparseAdam"),
        (functools.partial(descend.optim.LAMB, lr=0.1), "SGD, AdaGrad or Adam"),
    ],
)
def test_a_sparse_gradient_that_the_rule_does_not_take(optimizer, remedy):
    """Exit 2 in the first step: the weights and two remedies; nothing has changed."""
    module = Words(sparse=True)
    before = snapshot(module)
    fault(lambda: fit(module, data=(WORDS, Y), optimizer=optimizer), 2, "'table.weight'", "sparse=False", remedy)
    assert is_unchanged(module, before)


# ---- what is trained


def frozen():
    return net().requires_grad_(False)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.out(self.b(self.a(x)))


@pytest.mark.parametrize("door", [SGD, descend.SGD(learn_rate=0.1), OPTIMIZERS["our adam"]], ids=str)
@pytest.mark.parametrize(("module", "words"), [(frozen(), "frozen"), (nn.ReLU(), "no weights")])
def test_nothing_to_train(door, module, words):
    """No weights, or all of them frozen: exit 2 before anything starts."""
    fault(lambda: fit(module, optimizer=door), 2, "nothing to train", type(module).__name__, words)


def test_an_empty_group_is_allowed():
    assert fit(
        optimizer=lambda named: torch.optim.SGD([{"params": [p for _, p in named]}, {"params": []}], lr=0.1)
    ).steps


def test_the_same_weights_in_two_places(tmp_path):
    """Twice in a group or in two groups: exit 2. Tied under two names: one owner, one state, saved once."""
    fault(lambda: fit(optimizer=lambda named: SGD([named[0][1], *(p for _, p in named)])), 2, "'0.weight'", "twice")
    two = [{"params": list(net().parameters())}] * 2
    fault(lambda: fit(optimizer=lambda named: torch.optim.SGD(two, lr=0.1)), 2, "more than one parameter group")
    p = nn.Parameter(torch.zeros(2))
    with pytest.raises(ConfigurationError, match=r"'a' \(group 0\) and 'b' \(group 1\)"):
        descend.optim.SGD([{"params": [("a", p)]}, {"params": [("b", p)]}], lr=0.1)
    fit(Tied(), run_dir=tmp_path)
    assert sorted(load_file(tmp_path / "checkpoints/step-6/weights.safetensors")) == [
        "a.bias",
        "a.weight",
        "b.bias",
        "out.bias",
        "out.weight",
    ]


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_weights_that_are_frozen_and_thawed(optimizer):
    """Frozen: the same bits from that step on, state kept. Thawed: it continues from there with its own step count."""

    class Freeze(descend.Callback):
        def before_step(self, step):
            step.module[0].weight.requires_grad_(not 3 <= step.step <= 5)

    watcher, made = Weights(), []

    def make(named):
        made.append(optimizer(named))
        return made[0]

    module = net()
    fit(module, optimizer=make, callbacks=[Freeze(), watcher], stop=descend.Steps(8))
    values = {step: watcher.after[step][0]["0.weight"] for step in watcher.after}
    assert all(torch.equal(values[2], values[step]) for step in (3, 4, 5))
    assert not torch.equal(values[5], values[6])
    state = made[0].state[module[0].weight]
    if "step" in state:
        assert int(state["step"]) == 5


class Odd(nn.Module):
    """A number, nothing, and a matrix that lies transposed in memory."""

    def __init__(self, transposed, dtype=torch.float64):
        super().__init__()
        matrix = torch.arange(15, dtype=dtype).reshape(5, 3) / 10
        self.scale = nn.Parameter(torch.tensor(1.0, dtype=dtype))
        self.empty = nn.Parameter(torch.zeros(0, 3, dtype=dtype))
        self.matrix = nn.Parameter(matrix.t().contiguous().t() if transposed else matrix)

    def forward(self, x):
        return (x.to(self.matrix.dtype) @ self.matrix) * self.scale + self.empty.sum()


@pytest.mark.parametrize("name", ["SGD", "Adam", "LAMB", "LARS", "AdaGrad", "Lion"])
def test_weights_of_odd_shapes(tmp_path, name):
    """Without dimensions, without elements, not contiguous: the result of contiguous ones, also after a restart."""
    rule = functools.partial(getattr(descend.optim, name), lr=0.01)
    plain = fit(Odd(False), optimizer=rule)
    fit(Odd(True), optimizer=rule, run_dir=tmp_path, stop=descend.Steps(3))
    odd = fit(Odd(True), optimizer=rule, run_dir=tmp_path, resume=True)
    for key, value in plain.weights.items():
        torch.testing.assert_close(odd.weights[key], value, rtol=1e-12, atol=1e-14)
        assert bool(torch.isfinite(value).all())


def test_weights_whose_elements_share_memory():
    module = nn.Linear(5, 3)
    module.weight = nn.Parameter(torch.zeros(1, 5).expand(3, 5))
    for optimizer in (SGD, OPTIMIZERS["our adam"], descend.SGD(learn_rate=0.1)):
        fault(lambda optimizer=optimizer: fit(module, optimizer=optimizer), 2, "'weight'", "share memory", ".clone()")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_types_of_weights(tmp_path, dtype):
    """Half precision keeps float32 masters in our rules; stopped and continued is the same bits in every type."""
    rule, data = OPTIMIZERS["our adam"], (X.to(dtype), Y)
    whole = fit(net(dtype), data=data, optimizer=rule)
    fit(net(dtype), data=data, optimizer=rule, run_dir=tmp_path, stop=descend.Steps(3))
    parts = fit(net(dtype), data=data, optimizer=rule, run_dir=tmp_path, resume=True)
    assert all(torch.equal(parts.weights[name], value) for name, value in whole.weights.items())
    state = load_file(tmp_path / "checkpoints/step-6/training/optimizer.safetensors")
    masters = [name for name in state if name.endswith("/master")]
    assert bool(masters) == (dtype != torch.float64)


def test_types_that_cannot_be():
    """Complex weights: refused by name by our rules."""

    class Waves(nn.Module):
        def __init__(self, dtype):
            super().__init__()
            self.w = nn.Parameter(torch.ones(5, 3, dtype=dtype))

        def forward(self, x):
            return (x.to(self.w.dtype) @ self.w).abs()

    fault(lambda: fit(Waves(torch.complex64), optimizer=OPTIMIZERS["our adam"]), 2, "'w'", "complex64", "view_as_real")
    assert fit(Waves(torch.complex64)).steps == 6


def test_a_type_that_no_checkpoint_holds_is_found_before_the_run(tmp_path):
    module = net()
    module.register_buffer("table", torch.zeros(2, dtype=torch.complex128))
    fault(lambda: fit(module, run_dir=tmp_path / "run"), 2, "'table'", "complex128")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["LARS", "LAMB", "LANS", "LBSGD"])
def test_norms_of_zero(name):
    """A layer that begins with zeros moves in the first step, and a gradient of zeros makes no NaN."""
    module = nn.Linear(5, 3)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    fit(module, optimizer=functools.partial(getattr(descend.optim, name), lr=0.1), stop=descend.Steps(1))
    assert bool((module.weight != 0).any())
    silent = fit(
        nn.Linear(5, 3),
        lambda output, y: (output.sum() * 0, torch.tensor(1.0)),
        optimizer=functools.partial(getattr(descend.optim, name), lr=0.1),
    )
    assert all(bool(torch.isfinite(value).all()) for value in silent.weights.values())


# ---- settings


BAD_RATES = [math.nan, math.inf, -math.inf, -1.0, "0.1", None]


@pytest.mark.parametrize("rate", BAD_RATES, ids=str)
@pytest.mark.parametrize(
    "make",
    [
        lambda rate: functools.partial(torch.optim.SGD, lr=rate),
        lambda rate: lambda named: torch.optim.AdamW([{"params": [p for _, p in named], "lr": rate}]),
        lambda rate: functools.partial(descend.optim.Adam, lr=rate),
        lambda rate: lambda named: descend.optim.Adam([{"params": named, "lr": rate}], lr=0.1),
        lambda rate: descend.SGD(learn_rate=rate),
    ],
    ids=["torch", "torch group", "ours", "our group", "description"],
)
def test_a_rate_that_is_none(rate, make):
    """Not finite, negative, of another type, for all or for one group: exit 2 before the first step."""
    module = net()
    before = snapshot(module)
    fault(lambda: fit(module, optimizer=make(rate)), 2)
    assert is_unchanged(module, before)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weight_decay": math.nan}, "weight_decay"),
        ({"weightdecay": 0.1}, "weight_decay"),
        ({"betas": (0.9, 1.0)}, "beta"),
        ({"betas": (math.nan, 0.9)}, "beta"),
        ({"eps": -1.0}, "eps"),
    ],
)
@pytest.mark.parametrize("kind", [torch.optim.AdamW, descend.optim.AdamW])
@pytest.mark.parametrize("where", ["all", "group"])
def test_options_that_are_none(kind, where, options, words):
    module = net()
    before = snapshot(module)

    def make(named):
        if where == "all":
            return kind(named, lr=0.1, **options)
        return kind([{"params": named, **options}], lr=0.1)

    said = fault(lambda: fit(module, optimizer=make), 2)
    assert words in said
    assert is_unchanged(module, before)


@pytest.mark.parametrize("rate", [math.nan, math.inf, -0.1])
@pytest.mark.parametrize("optimizer", [SGD, OPTIMIZERS["our adam"]])
def test_a_rate_that_becomes_none_in_a_run(rate, optimizer):
    """A schedule that a callback follows: found before the step that would use it."""

    class Follow(descend.Callback):
        def before_step(self, step):
            if step.step == 3:
                step.run.control.set_rate(rate)

    watcher, module = Weights(), net()
    fault(lambda: fit(module, optimizer=optimizer, callbacks=[Follow(), watcher]), 2, "group 0", repr(rate))
    parameters = {name: p for name, p in watcher.after[2][0].items() if "running" not in name and "num_b" not in name}
    assert all(torch.equal(module.state_dict()[name], value) for name, value in parameters.items())


def test_a_misspelt_keyword_of_fit_is_answered_with_the_nearest():
    fault(lambda: fit(batchsize=3), 2, "fit has no option 'batchsize'", "did you mean 'batch_size'")


def test_the_count_of_failures_is_in_the_log(tmp_path):
    """A NaN loss is logged as NaN, and the row counts the steps that were left out."""
    fit(callbacks=[Poison(math.nan, [2])], on_nonfinite="skip", run_dir=tmp_path, stop=descend.Epochs(1))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["skipped_steps"] == 1


# ---- an objective that is not finite, although every gradient is


def infinite(output, target):
    return output.mean() + math.inf


UNDEFINED = {
    "infinite loss": ({"loss": infinite}, "the training objective of the last epoch is inf"),
    "nothing counted": (
        {"loss": lambda o, t: (-o.abs().sum(), 0.0)},
        "the training objective of the last epoch is -inf",
    ),
    "validation": (
        {"valid": (X * math.nan, Y)},
        "the last validation objective is nan: look at the validation samples",
    ),
    "test": ({"test": (X * math.inf, Y)}, "the last test objective is nan: look at the test samples"),
}


@pytest.mark.parametrize("what", UNDEFINED)
def test_a_run_does_not_end_well_with_an_objective_that_is_not_finite(tmp_path, what):
    settings, words = UNDEFINED[what]
    fault(lambda: fit(nn.Linear(5, 3), run_dir=tmp_path / "run", **settings), 4, words, "step-6")
    assert fit(nn.Linear(5, 3), on_nonfinite="allow", **settings).steps == 6


def test_an_objective_of_nothing_is_a_warning():
    ignored = torch.full_like(Y, -100)
    for mode, settings in {"train": {"data": (X, ignored)}, "validation": {"valid": (X, ignored)}}.items():
        with pytest.warns(UserWarning, match=f"no {mode} target counted, as where a loss ignores all of them"):
            fit(nn.Linear(5, 3), **settings)
