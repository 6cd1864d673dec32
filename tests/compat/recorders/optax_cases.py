"""Random settings of every optimizer and schedule of optax that is translated, run in double precision and recorded.

python optax_cases.py FOLDER SEED CASES        with a Python that has optax
"""

import sys

import jax
import numpy as np
import optax
from folder import STEPS, Folder

jax.config.update("jax_enable_x64", True)

OPTIMIZERS = (
    "sgd", "adam", "adamw", "adagrad", "rmsprop", "adadelta", "adamax", "adamaxw", "lion", "lamb", "lars", "adabelief",
    "sign_sgd", "signum",
)  # fmt: skip


def arguments(f, name):
    """Arguments of an optimizer, drawn."""
    betas = {"b1": lambda: f.log(0.3, 0.97), "b2": lambda: f.log(0.6, 0.9999)}
    eps = {"eps": lambda: f.log(1e-8, 1e-1)}
    decay = {"weight_decay": lambda: f.log(1e-3, 0.5)}
    momentum = {"momentum": lambda: f.pick([0.0, 0.5, 0.9]), "nesterov": lambda: True}
    draws = {
        "sgd": momentum,
        "adam": {**betas, **eps},
        "adamw": {**betas, **eps, **decay},
        "adagrad": {"initial_accumulator_value": lambda: f.log(1e-3, 1.0), **eps},
        "rmsprop": {
            "decay": lambda: f.log(0.5, 0.99),
            "eps": lambda: f.log(1e-3, 1e-1),
            "eps_in_sqrt": lambda: False,
            "centered": lambda: True,
            "momentum": lambda: f.pick([0.5, 0.9]),
        },
        "adadelta": {"rho": lambda: f.log(0.5, 0.97), **eps, **decay},
        "adamax": {**betas, **eps},
        "adamaxw": {**betas, **eps, **decay},
        "lion": {**betas, **decay},
        "lamb": {**betas, **eps, **decay},
        "lars": {"trust_coefficient": lambda: f.log(1e-3, 0.1), **momentum, **decay, **eps},
        "adabelief": betas,
        "sign_sgd": {},
        "signum": {"beta": lambda: f.log(0.3, 0.97)},
    }[name]
    given = f.maybe(0.5, learning_rate=lambda: 0.0, **draws)
    given["learning_rate"] = f.log(0.002, 0.05) if name not in ("adadelta", "lars") else f.log(0.1, 2.0)
    if name in ("adam", "adamw") and f.chance(0.3):
        given.update(eps=0.0, eps_root=f.log(1e-8, 1e-2))
    if name == "adabelief" and f.chance(0.5):
        given["eps"] = given["eps_root"] = f.log(1e-16, 1e-6)
    return given


def draw(f, name, number):
    """One case, recorded."""
    shapes = [f.pick([(), (7,), (1,), (5, 3), (4, 2, 3, 3), (1, 6)]) for _ in range(f.pick([1, 3]))]
    case = {"id": f"optax/{name}/{number}", "stream": f"s{number}", "optimizer": name, "source": "optax"}
    case.update(source_version=optax.__version__, api="optax", dtype="float64", kwargs=arguments(f, name))
    case["tol"] = {"rtol": 1e-9, "atol": 1e-10}
    case["arrays"] = f.stream(case["stream"], shapes, "float64", 1, True, f.chance(0.2), f.chance(0.3))
    params = [jax.numpy.array(f.arrays[k]) for k in case["arrays"]["w0"]]
    transform, path = getattr(optax, name)(**case["kwargs"]), []
    state = transform.init(params)
    for t in range(STEPS):
        grads = [jax.numpy.array(f.arrays[k][t]) for k in case["arrays"]["grads"]]
        updates, state = transform.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        path.append([np.asarray(p) for p in params])
    f.case(case, w=list(zip(*path, strict=True)))


def schedule(f, name):
    """Arguments of a schedule, drawn."""
    start = {"init_value": f.log(0.01, 0.5)}
    length = int(f.pick([3, 10, 25]))
    warm = {**start, "peak_value": f.log(0.5, 1.0), "warmup_steps": int(f.pick([1, 4, 8]))}
    end, begin = {"end_value": f.log(0.001, 0.01)}, f.maybe(0.5, transition_begin=lambda: int(f.pick([2, 7])))
    return {
        "constant_schedule": {"value": f.log(0.01, 1.0)},
        "linear_schedule": {**start, **end, "transition_steps": length, **begin},
        "polynomial_schedule": {**start, **end, "power": f.pick([1, 2, 3]), "transition_steps": length, **begin},
        "cosine_decay_schedule": {**start, "decay_steps": length, **f.maybe(0.5, alpha=lambda: f.log(0.01, 0.5))},
        "exponential_decay": {**start, "transition_steps": length, "decay_rate": f.log(0.1, 0.9), **begin}
        | f.maybe(0.5, staircase=lambda: True, end_value=lambda: f.log(0.001, 0.01)),
        "piecewise_constant_schedule": {**start, "boundaries_and_scales": {length: 0.5, length + 3: 0.5}},
        "warmup_constant_schedule": warm,
        "warmup_cosine_decay_schedule": {**warm, "decay_steps": 10 + length} | f.maybe(0.5, end_value=lambda: 0.01),
    }[name]


SCHEDULES = (
    "constant_schedule", "linear_schedule", "polynomial_schedule", "cosine_decay_schedule", "exponential_decay",
    "warmup_constant_schedule", "warmup_cosine_decay_schedule",
)  # fmt: skip


def schedules(f, number):
    """Rates for the counts 0 to 40; ours of step n is recorded as that of update n + 1."""
    for i in range(number):
        name = SCHEDULES[i % len(SCHEDULES)]
        given = schedule(f, name)
        case = {"id": f"optax/lr/{i}", "source": "optax", "lr_scheduler": {"type": name, "kwargs": given}}
        made = getattr(optax, name)(**given)
        case["arrays"] = {"num_update": f"lr/{i}/n", "lr_sequence": f"lr/{i}/s"}
        f.arrays[f"lr/{i}/n"] = np.arange(1, 42)
        f.arrays[f"lr/{i}/s"] = np.array([made(np.float64(n)) for n in range(41)], np.float64)
        f.schedules.append(case)


def main(path, seed, number):
    """Write a folder."""
    f = Folder(int(seed))
    for i in range(int(number)):
        draw(f, OPTIMIZERS[i % len(OPTIMIZERS)], i)
    schedules(f, int(number) // 2)
    f.write(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
