"""Random settings of every optimizer of torch.optim that is translated, or of pytorch_optimizer's LARS, recorded.

python torch_cases.py FOLDER SEED CASES [pytorch_optimizer]
"""

import sys

import numpy as np
import torch
from folder import STEPS, Folder

EXACT, SINGLE = (1e-10, 1e-11), (5e-6, 2e-6)
OPTIMIZERS = ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RMSprop", "Adagrad", "Adadelta", "Rprop", "Adafactor", "Muon")


def arguments(f, name):
    """Arguments of an optimizer, drawn."""
    betas = {"betas": lambda: [f.log(0.3, 0.97), f.log(0.6, 0.9999)], "eps": lambda: f.log(1e-8, 1e-1)}
    draws = {
        "SGD": {"momentum": lambda: f.log(0.3, 0.95), "dampening": lambda: f.log(0.05, 0.9)},
        "Adam": {**betas, "amsgrad": lambda: True, "decoupled_weight_decay": lambda: True},
        "AdamW": {**betas, "amsgrad": lambda: True},
        "Adamax": betas,
        "NAdam": {**betas, "momentum_decay": lambda: f.log(1e-3, 1.0), "decoupled_weight_decay": lambda: True},
        "RMSprop": {"alpha": lambda: f.log(0.5, 0.999), "eps": lambda: f.log(1e-3, 1e-1), "centered": lambda: True}
        | {"momentum": lambda: f.log(0.3, 0.95)},
        "Adagrad": {"lr_decay": lambda: f.log(1e-3, 0.5), "initial_accumulator_value": lambda: f.log(1e-3, 1.0)}
        | {"eps": lambda: f.log(1e-10, 1e-1)},
        "Adadelta": {"rho": lambda: f.log(0.5, 0.99), "eps": lambda: f.log(1e-7, 1e-2)},
        "Rprop": {"etas": lambda: [f.log(0.2, 0.8), f.log(1.05, 2.0)], "step_sizes": lambda: [1e-4, f.log(0.01, 1.0)]},
        "Adafactor": {"beta2_decay": lambda: -f.log(0.3, 1.0), "d": lambda: f.log(1.0, 3.0)}
        | {"eps": lambda: [f.pick([None, 1e-8, 1e-3]), f.log(1e-4, 1e-2)]},
        "Muon": {"momentum": lambda: f.log(0.3, 0.97), "nesterov": lambda: False, "ns_steps": lambda: f.pick([1, 3, 6])}
        | {"adjust_lr_fn": lambda: f.pick(["original", "match_rms_adamw"])},
        "lars": {"momentum": lambda: f.pick([0.0, 0.5, 0.9]), "dampening": lambda: f.log(0.05, 0.9)}
        | {"trust_coefficient": lambda: f.log(1e-3, 0.1), "nesterov": lambda: True},
    }[name]
    given = f.maybe(0.5, **draws)
    if name == "SGD" and "momentum" in given and f.chance(0.4):
        given.pop("dampening", None)
        given["nesterov"] = True
    if f.chance(0.85):
        given["lr"] = f.log(0.001, 0.05) if name not in ("Adadelta", "lars") else f.log(0.1, 2.0)
    if name != "Rprop" and f.chance(0.5):
        given["weight_decay"] = f.log(1e-3, 0.5)
    if name != "Muon" and f.chance(0.15):
        given["maximize"] = True
    if name not in ("Muon", "Adafactor", "lars"):
        given.update(f.maybe(0.15, foreach=lambda: f.chance(0.5)))
    return given


def make(case, params):
    """The library's own optimizer."""
    if case["source"] == "pytorch_optimizer":
        import pytorch_optimizer

        return pytorch_optimizer.LARS(params, **case["kwargs"])
    return getattr(torch.optim, case["optimizer"])(params, **case["kwargs"])


def draw(f, name, number, source):
    """One case, recorded."""
    dtype = "float32" if name == "Muon" or f.chance(0.2) else "float64"
    shapes = [f.pick([(), (7,), (1,), (5, 3), (4, 2, 3, 3), (2, 2, 3), (1, 6), (130,)]) for _ in range(f.pick([1, 3]))]
    if name == "Muon":
        shapes = [f.pick([(5, 3), (3, 4), (6, 6), (1, 4)])]
    case = {"id": f"{source}/{name}/{number}", "stream": f"s{number}", "optimizer": name, "source": source}
    case |= {"source_version": torch.__version__, "api": "torch.optim", "dtype": dtype, "kwargs": arguments(f, name)}
    rtol, atol = {"Muon": (0.0, 2e-2), "NAdam": (2e-7, 5e-8)}.get(name, EXACT) if dtype == "float64" else SINGLE
    if name == "Muon":
        rtol, atol = 0.0, 2e-2
    case["tol"] = {"rtol": rtol, "atol": atol}
    if f.chance(0.2):
        case["set_lr"] = {"5": f.log(0.005, 0.05), "13": f.log(0.005, 0.05)}
    if f.chance(0.2):
        case["save_load_at"] = int(f.pick([1, 7, 12]))
    zeros = f.chance(0.2)
    case["arrays"] = f.stream(case["stream"], shapes, dtype, 1, True, zeros, f.chance(0.3))
    record(f, case)


def record(f, case):
    """Run a case and keep what it gave."""
    params = [torch.nn.Parameter(torch.tensor(f.arrays[k])) for k in case["arrays"]["w0"]]
    optimizer, path = make(case, params), []
    for t in range(STEPS):
        if t == case.get("save_load_at"):
            held = optimizer.state_dict()
            optimizer = make(case, params)
            optimizer.load_state_dict(held)
        for group in optimizer.param_groups if str(t) in case.get("set_lr", {}) else ():
            group["lr"] = case["set_lr"][str(t)]
        for p, key in zip(params, case["arrays"]["grads"], strict=True):
            p.grad = torch.tensor(f.arrays[key][t])
        optimizer.step()
        path.append([np.array(p.detach()) for p in params])
    f.case(case, w=list(zip(*path, strict=True)))


def schedule(f, name):
    """Arguments of a scheduler, drawn."""
    return {
        "StepLR": {"step_size": int(f.pick([1, 3, 10])), "gamma": f.log(0.1, 1.2)},
        "MultiStepLR": {"milestones": f.pick([[3, 8], [8, 3, 20], [5, 5]]), "gamma": f.log(0.1, 0.9)},
        "ConstantLR": {"factor": f.log(0.1, 1.0), "total_iters": int(f.pick([0, 1, 7]))},
        "LinearLR": {"start_factor": f.log(0.1, 1.0), "end_factor": f.log(0.1, 1.0)}
        | {"total_iters": int(f.pick([1, 7, 50]))},
        "ExponentialLR": {"gamma": f.log(0.5, 1.0)},
        "PolynomialLR": {"total_iters": int(f.pick([1, 7, 50])), "power": f.pick([0.5, 1.0, 2.0])},
        "CosineAnnealingLR": {"T_max": int(f.pick([3, 10, 60])), "eta_min": f.pick([0.0, 0.01])},
    }[name]


SCHEDULERS = (
    "StepLR", "MultiStepLR", "ConstantLR", "LinearLR", "ExponentialLR", "PolynomialLR", "CosineAnnealingLR",
)  # fmt: skip


def schedules(f, number):
    """Rates of 41 steps; ours of step n is recorded as that of update n + 1."""
    for i in range(number):
        name, lr = SCHEDULERS[i % len(SCHEDULERS)], f.log(0.05, 1.0)
        given = schedule(f, name)
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=lr)
        scheduler, rates = getattr(torch.optim.lr_scheduler, name)(optimizer, **given), []
        for _ in range(41):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        keys = {"num_update": f"lr/{i}/n", "lr_sequence": f"lr/{i}/s"}
        case = {"id": f"torch/lr/{i}", "source": "torch.optim", "arrays": keys}
        f.arrays[keys["num_update"]], f.arrays[keys["lr_sequence"]] = np.arange(1, 42), np.array(rates)
        f.schedules.append(case | {"lr_scheduler": {"type": name, "kwargs": {"lr": lr, **given}}})


def main(path, seed, number, source="torch.optim"):
    """Write a folder."""
    f = Folder(int(seed))
    names = OPTIMIZERS if source == "torch.optim" else ("lars",)
    for i in range(int(number)):
        draw(f, names[i % len(names)], i, source)
    if source == "torch.optim":
        schedules(f, int(number) // 2)
    f.write(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
