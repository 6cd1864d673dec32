"""Random settings of LBANN's optimizers, from its rules written out once more in NumPy, recorded.

python lbann_cases.py FOLDER SEED CASES
"""

import sys

import numpy as np
from folder import STEPS, Folder


def sgd(w, g, s, learn_rate, momentum=0.0, nesterov=False):
    """Sum of gradients, and the gradient once more with Nesterov."""
    if momentum == 0:
        return w - learn_rate * g
    s["v"] = momentum * s.get("v", 0.0) + g
    return w - learn_rate * (momentum * s["v"] + g if nesterov else s["v"])


def adagrad(w, g, s, learn_rate, eps=1e-8):
    """Root of the sum of squares, plus eps."""
    s["h"] = s.get("h", 0.0) + g * g
    return w - learn_rate * g / (np.sqrt(s["h"]) + eps)


def rmsprop(w, g, s, learn_rate, decay_rate, eps=1e-8):
    """Root of the mean of squares, plus eps."""
    s["n"] = decay_rate * s.get("n", 0.0) + (1 - decay_rate) * g * g
    return w - learn_rate * g / (np.sqrt(s["n"]) + eps)


def adam(w, g, s, learn_rate, beta1=0.9, beta2=0.99, eps=1e-8, adamw_weight_decay=0.0):
    """Entries that are not finite are left out, decay and all; the correction counts them."""
    s["t"] = s.get("t", 0) + 1
    rate = learn_rate * np.sqrt(1 - beta2 ** s["t"]) / (1 - beta1 ** s["t"])
    m, v = s.get("m", np.zeros_like(w)), s.get("v", np.zeros_like(w))
    fit = np.isfinite(g)
    g = np.where(fit, g, 0.0)
    s["m"] = np.where(fit, beta1 * m + (1 - beta1) * g, m)
    s["v"] = np.where(fit, beta2 * v + (1 - beta2) * g * g, v)
    move = rate * s["m"] / (np.sqrt(s["v"]) + eps) + learn_rate * adamw_weight_decay * w
    return np.where(fit, w - move, w)


def hypergradient_adam(w, g, s, init_learning_rate=1e-3, hyper_learning_rate=1e-7, beta1=0.9, beta2=0.99, eps=1e-8):
    """The rate grows with the product of gradient and last direction; then eps is added to the gradient."""
    s["t"] = s.get("t", 0) + 1
    s["lr"] = s.get("lr", init_learning_rate) + hyper_learning_rate * float((g * s.get("d", np.zeros_like(w))).sum())
    g = g + eps
    s["m"] = beta1 * s.get("m", 0.0) + (1 - beta1) * g
    s["v"] = beta2 * s.get("v", 0.0) + (1 - beta2) * g * g
    s["d"] = np.sqrt(1 - beta2 ** s["t"]) / (1 - beta1 ** s["t"]) * s["m"] / (np.sqrt(s["v"]) + eps)
    return w - s["lr"] * s["d"]


RULES = {
    "sgd": sgd,
    "adagrad": adagrad,
    "rmsprop": rmsprop,
    "adam": adam,
    "hypergradient_adam": hypergradient_adam,
}


def arguments(f, name):
    """Arguments of an optimizer, drawn."""
    betas = {"beta1": lambda: f.log(0.3, 0.97), "beta2": lambda: f.log(0.6, 0.9999), "eps": lambda: f.log(1e-8, 1e-2)}
    if name == "hypergradient_adam":
        hyper = {"init_learning_rate": lambda: f.log(1e-3, 0.05), "hyper_learning_rate": lambda: f.log(1e-7, 1e-3)}
        return f.maybe(0.6, **hyper, **betas)
    given = {"learn_rate": f.log(0.005, 0.1)}
    if name == "sgd":
        return {**given, **f.maybe(0.6, momentum=lambda: f.pick([0.0, 0.5, 0.9]), nesterov=lambda: True)}
    if name == "adam":
        return {**given, **f.maybe(0.6, adamw_weight_decay=lambda: f.log(1e-3, 0.5), **betas)}
    if name == "rmsprop":
        given["decay_rate"] = f.log(0.5, 0.99)
    return {**given, **f.maybe(0.6, eps=lambda: f.log(1e-8, 1e-2))}


def draw(f, name, number):
    """One case, recorded."""
    shapes = [f.pick([(), (7,), (1,), (5, 3), (4, 2, 3, 3)]) for _ in range(f.pick([1, 3]))]
    case = {"id": f"lbann/{name}/{number}", "stream": f"s{number}", "optimizer": name, "dtype": "float64"}
    case.update(source="lbann-formula", api="numpy re-statement", kwargs=arguments(f, name))
    case["tol"] = {"rtol": 1e-10, "atol": 1e-11}
    case["arrays"] = f.stream(case["stream"], shapes, "float64", 1, True, f.chance(0.2), f.chance(0.3))
    if name == "adam" and f.chance(0.3):
        case["nonfinite"] = [[2, 0], [int(f.pick([5, 9])), int(np.prod(shapes[0], dtype=int)) - 1]]
    ws, memories, path = [f.arrays[k] for k in case["arrays"]["w0"]], [{} for _ in shapes], []
    for t in range(STEPS):
        grads = [np.array(f.arrays[k][t]) for k in case["arrays"]["grads"]]
        for at, element in case.get("nonfinite", ()):
            if at == t:
                grads[0].reshape(-1)[element] = np.inf
        ws = [RULES[name](w, g, s, **case["kwargs"]) for w, g, s in zip(ws, grads, memories, strict=True)]
        path.append(ws)
    f.case(case, w=list(zip(*path, strict=True)))


def main(path, seed, number):
    """Write a folder."""
    f = Folder(int(seed))
    for i in range(int(number)):
        draw(f, sorted(RULES)[i % len(RULES)], i)
    f.write(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
