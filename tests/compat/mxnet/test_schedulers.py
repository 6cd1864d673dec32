"""MXNet's schedulers against a re-statement with their memory, asked for num_update 0, 1, 2, ... in order."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from descend.errors import RuleError
from descend.optim import schedule_from_library


class Reference:
    """One scheduler object: base_lr falls as it is asked."""

    def __init__(self, base_lr=0.01, warmup_steps=0, warmup_begin_lr=0.0, warmup_mode="linear", attached=None, **own):
        self.base_lr, self.final, self.own = base_lr, base_lr, own
        self.warmup_steps, self.begin, self.mode = warmup_steps, warmup_begin_lr, warmup_mode
        self.count, self.passed = 0, 0
        if attached is not None:
            self.base_lr = attached

    def __call__(self, n):
        if n < self.warmup_steps:
            rise = (self.final - self.begin) * n / self.warmup_steps
            return self.begin + (rise if self.mode == "linear" else 0.0)
        return self.after(n)

    def after(self, n):
        if "max_update" in self.own:
            if n <= self.own["max_update"]:
                x = (n - self.warmup_steps) / (self.own["max_update"] - self.warmup_steps)
                part = (1 - x) ** self.own["pwr"] if "pwr" in self.own else (1 + math.cos(math.pi * x)) / 2
                self.base_lr = self.own["final_lr"] + (self.final - self.own["final_lr"]) * part
            return self.base_lr
        if isinstance(self.own["step"], list):
            while self.passed < len(self.own["step"]) and n > self.own["step"][self.passed]:
                self.base_lr *= self.own["factor"]
                self.passed += 1
            return self.base_lr
        while n > self.count + self.own["step"]:
            self.count += self.own["step"]
            self.base_lr = max(self.base_lr * self.own["factor"], self.own["stop_factor_lr"])
        return self.base_lr


RATE = st.floats(0.01, 2.0)
WARM = st.fixed_dictionaries(
    {
        "base_lr": RATE,
        "warmup_steps": st.integers(0, 9),
        "warmup_begin_lr": st.floats(0.0, 0.01),
        "warmup_mode": st.sampled_from(["linear", "constant"]),
    }
)
FACTOR = st.fixed_dictionaries(
    {"step": st.integers(1, 9), "factor": st.floats(0.1, 1.0), "stop_factor_lr": st.floats(1e-8, 0.009)}
)
BETWEEN = st.integers(1, 30).map(lambda n: n + 0.5)  # MXNet takes them: the fall is at the first update past it
STEPS = st.lists(st.integers(1, 30), min_size=1, max_size=4, unique=True).map(sorted) | st.tuples(BETWEEN).map(list)
MULTI = st.fixed_dictionaries({"step": STEPS, "factor": st.floats(0.1, 1.0)})
END = st.integers(1, 30)
POLY = st.fixed_dictionaries(
    {"max_update": END, "pwr": st.just(0) | st.floats(0.5, 3.0), "final_lr": st.floats(0.0, 0.01)}
)
COSINE = st.fixed_dictionaries({"max_update": END, "final_lr": st.floats(0.0, 0.01)})


@given(
    st.one_of(
        st.tuples(st.just("FactorScheduler"), FACTOR),
        st.tuples(st.just("MultiFactorScheduler"), MULTI),
        st.tuples(st.just("PolyScheduler"), POLY),
        st.tuples(st.just("CosineScheduler"), COSINE),
    ),
    WARM,
    st.one_of(st.none(), RATE),
    st.sampled_from(["mxnet-1.9", "mxnet-2.0"]),
)
def test_every_rate_in_order(named, warm, attached, library):
    name, own = named
    assume(own.get("max_update") != warm["warmup_steps"])  # refused: MXNet divides by their difference
    ours = schedule_from_library(library, name, optimizer_learning_rate=attached, **own, **warm)
    reference = Reference(attached=attached, **own, **warm)
    for n in range(45):
        assert math.isclose(ours(n - 1), reference(n), rel_tol=1e-9, abs_tol=1e-12), f"num_update {n}"


@pytest.mark.parametrize(
    ("name", "kwargs", "words"),
    [
        ("MultiFactorScheduler", {"step": 5}, "step must be a list of at least one number, got 5"),
        ("MultiFactorScheduler", {"step": []}, "step must be a list of at least one number"),
        ("MultiFactorScheduler", {"step": [3, None]}, "step must be a list of at least one number"),
        ("MultiFactorScheduler", {"step": [3, 3]}, "must rise"),
        ("FactorScheduler", {"step": None}, "step must be a number, got None"),
        ("FactorScheduler", {"step": 3, "base_lr": "a"}, "base_lr must be a number, got 'a'"),
        ("FactorScheduler", {"step": 3, "factor": math.nan}, "factor must be a number"),
        ("FactorScheduler", {"step": 3, "warmup_steps": 3.0}, "warmup_steps must be an integer"),
        ("FactorScheduler", {"step": 3, "warmup_steps": -1}, "warmup_steps must be an integer >= 0"),
        ("PolyScheduler", {"max_update": 0}, "max_update must be an integer >= 1"),
        ("PolyScheduler", {"max_update": 7.5}, "max_update must be an integer"),
        ("PolyScheduler", {"max_update": 9, "pwr": -1}, "pwr must be a number >= 0"),
        ("CosineScheduler", {"max_update": None}, "max_update must be an integer"),
        ("CosineScheduler", {"max_update": 5, "warmup_steps": 5}, "leaves none of max_update=5"),
        ("CosineScheduler", {"max_update": 5, "base_lr": math.inf}, "base_lr must be a number"),
        ("CosineScheduler", {"max_update": 5, "pwr": 2}, "has no argument 'pwr'"),
    ],
)
def test_what_mxnet_asserts_or_breaks_on_is_an_error(name, kwargs, words):
    with pytest.raises(RuleError, match=words):
        schedule_from_library("mxnet-2.0", name, **kwargs)


@pytest.mark.parametrize(
    ("name", "kwargs", "words"),
    [
        ("FactorSchedule", {"step": 3}, "did you mean 'FactorScheduler'"),
        ("FactorScheduler", {"step": 3, "factor": 2.0}, "factor must be a number <= 1"),
        ("FactorScheduler", {"step": 3, "base_lr": 0.1, "warmup_steps": 2, "warmup_begin_lr": 0.5}, "above base_lr"),
        ("FactorScheduler", {"step": 3, "warmup_steps": 2, "warmup_mode": "liner"}, "did you mean 'linear'"),
        ("MultiFactorScheduler", {"step": [5, 3]}, "must rise"),
        ("CosineScheduler", {}, "needs max_update"),
    ],
)
def test_schedulers_that_mxnet_refuses(name, kwargs, words):
    with pytest.raises(RuleError, match=words):
        schedule_from_library("mxnet-2.0", name, **kwargs)
