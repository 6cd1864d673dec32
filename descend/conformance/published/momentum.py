"""Published rules that follow the gradient, a sum of gradients, or their signs."""

from __future__ import annotations

import numpy as np

from descend.conformance.published.base import Array, Constants, Published, Step, zeros

__all__ = ["MOMENTUM"]

_COUPLED = {"decay_form": "coupled"}
_DECOUPLED = {"decay_form": "decoupled"}
_VARIANTS_OF_DECAY = {"decay in the gradient": _COUPLED, "decoupled decay": _DECOUPLED}


def _sgd(h: Constants, w: Array) -> Step:
    (b,) = zeros(w, 1)

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        mu = h["momentum"]
        u = lr * g if h["rate_inside"] else g
        b[...] = u if t == 1 and h["first_whole"] else mu * b + (1 - h["dampening"]) * u
        d = u + mu * b if h["nesterov"] else b
        return w - (d if h["rate_inside"] else lr * d)

    return step


def _sign(h: Constants, w: Array) -> Step:
    (m,) = zeros(w, 1)

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        m[...] = h["momentum"] * m + (1 - h["momentum"]) * g
        return w - lr * (np.sign(m) + h["wd_lh"] * w)

    return step


def _lion(h: Constants, w: Array) -> Step:
    (m,) = zeros(w, 1)

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        c = h["beta1"] * m + (1 - h["beta1"]) * g
        m[...] = h["beta2"] * m + (1 - h["beta2"]) * g
        return w - lr * np.sign(c)

    return step


def _dcasgd(h: Constants, w: Array) -> Step:
    q, (b,) = w.copy(), zeros(w, 1)

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        whole = g + decay * w
        squared = (whole if h["decay_in_square"] else g) ** 2
        b[...] = h["momentum"] * b + lr * (whole + h["lamda"] * squared * (w - q))
        q[...] = w
        return w - b

    return step


def _lbsgd(h: Constants, w: Array) -> Step:
    a, b = zeros(w, 2)

    def factor(n: float, mean: Array, w: Array, decay: float) -> float:
        big, length = h["batch_scale"], h["warmup_epochs"] * h["updates_per_epoch"]
        if h["warmup_strategy"] == "lars":
            p2, g2 = float((w * w).sum()), float((mean * mean).sum())
            return float(np.clip(np.sqrt(p2 / (g2 + decay * p2 + 1e-18)), 0.01, 100))
        if n >= length:
            return big
        power = {"linear": 1.0, "power2": 2.0, "sqrt": 0.5}.get(h["warmup_strategy"])
        return 1.0 if length <= 1 or power is None else 1 + (big - 1) * (n / length) ** power

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        n = h["begin_epoch"] * h["updates_per_epoch"] + t
        a[...] += g
        if n % h["batch_scale"]:
            return w
        mean = a / h["batch_scale"]
        a[...] = 0
        b[...] = h["momentum"] * b + lr * factor(n, mean, w, decay) * (mean + decay * w)
        return w - b

    return step


def _sgld(h: Constants, w: Array) -> Step:
    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        return w - lr / 2 * g

    return step


def _rprop(h: Constants, w: Array) -> Step:
    before, delta = zeros(w, 2)

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        if t == 1:
            delta[...] = lr
        turn = np.sign(g * before)
        delta[...] = np.clip(
            delta * np.choose(turn.astype(int) + 1, (h["eta_minus"], 1.0, h["eta_plus"])), h["step_min"], h["step_max"]
        )
        before[...] = np.where(turn < 0, 0.0, g)
        return w - np.sign(before) * delta

    return step


_SGD = {
    "momentum": 0.0,
    "dampening": 0.0,
    "nesterov": False,
    "rate_inside": False,
    "first_whole": True,
    **_COUPLED,
}
_SGD_VARIANTS = {
    "rate inside the momentum buffer": {"rate_inside": True},
    "rate outside the momentum buffer": {"rate_inside": False},
    "dampening on the first gradient too": {"first_whole": False},
    "heavy ball, no look-ahead": {"nesterov": False},
    "decoupled decay": _DECOUPLED,
}

MOMENTUM: tuple[Published, ...] = (
    Published("SGD", "Polyak 1964; Sutskever et al. 2013", _sgd, _SGD, _SGD_VARIANTS),
    Published(
        "NAG",
        "Sutskever et al. 2013, eq. 3-4, at the point of the gradient",
        _sgd,
        {**_SGD, "momentum": 0.9, "nesterov": True, "rate_inside": True},
        _SGD_VARIANTS,
    ),
    Published(
        "SignSGD",
        "Bernstein et al. 2018",
        _sign,
        {"momentum": 0.0, "wd_lh": 0.0, **_DECOUPLED},
        _VARIANTS_OF_DECAY,
    ),
    Published(
        "Signum",
        "Bernstein et al. 2018, Algorithm 2",
        _sign,
        {"momentum": 0.9, "wd_lh": 0.0, **_COUPLED},
        _VARIANTS_OF_DECAY,
    ),
    Published(
        "Lion",
        "Chen et al. 2023, Algorithm 2",
        _lion,
        {"beta1": 0.9, "beta2": 0.99, **_DECOUPLED},
        _VARIANTS_OF_DECAY,
    ),
    Published(
        "DCASGD",
        "Zheng et al. 2017, eq. 10",
        _dcasgd,
        {"lamda": 0.04, "momentum": 0.0, "decay_in_square": True, "decay_form": "own"},
        {"decay outside the square (MXNet 1.9)": {"decay_in_square": False}},
    ),
    Published(
        "LBSGD",
        "MXNet 1.9",
        _lbsgd,
        {
            "momentum": 0.0,
            "batch_scale": 1,
            "warmup_strategy": "linear",
            "warmup_epochs": 5,
            "updates_per_epoch": 32,
            "begin_epoch": 0,
            "decay_form": "own",
        },
    ),
    Published("SGLD", "Welling and Teh 2011, eq. 4", _sgld, {"temperature": 1.0, **_COUPLED}, noisy=True),
    Published(
        "Rprop",
        "Riedmiller and Braun 1993, without weight backtracking",
        _rprop,
        {"eta_minus": 0.5, "eta_plus": 1.2, "step_min": 1e-6, "step_max": 50.0, **_COUPLED},
    ),
)
