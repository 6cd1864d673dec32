"""Published rules that divide by a running size of the gradient, and those that follow a regularised leader."""

from __future__ import annotations

from typing import Any

import numpy as np

from descend.conformance.published.base import Array, Constants, Published, Step, zeros

__all__ = ["ADAPTIVE", "adam_direction"]

_DECAY = {
    "decay in the gradient": {"decay_form": "coupled"},
    "decoupled decay": {"decay_form": "decoupled"},
}


def adam_direction(m: Array, v: Array, h: Constants, t: int) -> Array:
    """m̂ / (√v̂ + ε), with ε at its place and the bias corrected or not."""
    corrected = h.get("bias_correction", True)
    c1 = 1 - h["beta1"] ** t if corrected in (True, "first") else 1.0
    c2 = 1 - h["beta2"] ** t if corrected in (True, "second") else 1.0
    where = h.get("eps_at", "outside")
    if where == "uncorrected":
        return np.sqrt(c2) / c1 * m / (np.sqrt(v) + h["eps"])
    if where == "inside":
        return m / c1 / np.sqrt(v / c2 + h["eps"])
    return m / c1 / (np.sqrt(v / c2) + h["eps"])


def _adam(h: Constants, w: Array) -> Step:
    m, v, top = zeros(w, 3)

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        m[...] = h["beta1"] * m + (1 - h["beta1"]) * g
        v[...] = h["beta2"] * v + (1 - h["beta2"]) * g**2
        top[...] = np.maximum(top, v)
        return w - lr * adam_direction(m, top if h["amsgrad"] else v, h, t)

    return step


def _adabelief(h: Constants, w: Array) -> Step:
    m, s = zeros(w, 2)

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        m[...] = h["beta1"] * m + (1 - h["beta1"]) * g
        s[...] = h["beta2"] * s + (1 - h["beta2"]) * (g - m) ** 2 + (h["eps"] if h["eps_each_step"] else 0.0)
        if h["rectified"]:
            return w - lr * _rectified(m, s, h, t)
        return w - lr * adam_direction(m, s, h, t)

    return step


def _rectified(m: Array, v: Array, h: Constants, t: int) -> Array:
    """RAdam's direction (Liu et al. 2020, Algorithm 2): momentum alone until the variance of 1/√v is finite."""
    m_hat = m / (1 - h["beta1"] ** t)
    largest = 2 / (1 - h["beta2"]) - 1
    rho = largest - 2 * t * h["beta2"] ** t / (1 - h["beta2"] ** t)
    if rho < 5:  # 4 in the paper, 5 in the code that is in use
        return m_hat
    r = ((rho - 4) * (rho - 2) * largest / ((largest - 4) * (largest - 2) * rho)) ** 0.5
    return r * (1 - h["beta2"] ** t) ** 0.5 * m_hat / (np.sqrt(v) + h["eps"])


def _adamax(h: Constants, w: Array) -> Step:
    m, u = zeros(w, 2)

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        m[...] = h["beta1"] * m + (1 - h["beta1"]) * g
        inside, beside = (h["eps"], 0.0) if h["eps_inside"] else (0.0, h["eps"])
        u[...] = np.maximum(h["beta2"] * u, np.abs(g) + inside)
        return w - lr / (1 - h["beta1"] ** t) * m / (u + beside)

    return step


def _nadam(h: Constants, w: Array) -> Step:
    m, v = zeros(w, 2)
    product = np.ones(())

    def mu(t: int) -> float:
        return h["beta1"] * (1 - 0.5 * 0.96 ** (t * h["psi"])) if h["warming"] else h["beta1"]

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        product[...] *= mu(t)
        m[...] = h["beta1"] * m + (1 - h["beta1"]) * g
        v[...] = h["beta2"] * v + (1 - h["beta2"]) * g**2
        ahead = mu(t + 1) * m / (1 - product * mu(t + 1)) + (1 - mu(t)) * g / (1 - product)
        return w - lr * ahead / (np.sqrt(v / (1 - h["beta2"] ** t)) + h["eps"])

    return step


def _hypergradient(h: Constants, w: Array) -> Step:
    m, v, d = zeros(w, 3)
    added = np.zeros(())

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        added[...] += h["hyper_learning_rate"] * np.vdot(g, d)
        g = g + (h["eps"] if h["eps_in_gradient"] else 0.0)
        m[...] = h["beta1"] * m + (1 - h["beta1"]) * g
        v[...] = h["beta2"] * v + (1 - h["beta2"]) * g**2
        d[...] = adam_direction(m, v, h, t)
        return w - (lr + added) * d

    return step


def _ademamix(h: Constants, w: Array) -> Step:
    m, n, v = zeros(w, 3)

    def half_life(beta: float) -> float:
        return float(np.log(0.5) / np.log(beta + 1e-8))

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        part = min(1.0, t / h["beta3_warmup"]) if h["beta3_warmup"] else 1.0
        life = (1 - part) * half_life(h["beta1"]) + part * half_life(h["beta3"])
        slow = 0.5 ** (1 / life) if part < 1 else h["beta3"]
        alpha = h["alpha"] * (min(1.0, t / h["alpha_warmup"]) if h["alpha_warmup"] else 1.0)
        m[...] = h["beta1"] * m + (1 - h["beta1"]) * g
        n[...] = slow * n + (1 - slow) * g
        v[...] = h["beta2"] * v + (1 - h["beta2"]) * g**2
        top = m / (1 - h["beta1"] ** t) + alpha * (n / (1 - slow**t) if h["slow_corrected"] else n)
        return w - lr * (top / (np.sqrt(v / (1 - h["beta2"] ** t)) + h["eps"]) + decay * w)

    return step


def _adopt(h: Constants, w: Array) -> Step:
    m, v = zeros(w, 2)

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        if not h["decoupled"]:
            g = g + decay * w
        old = v.copy()
        v[...] = g**2 if t == 1 else h["beta2"] * v + (1 - h["beta2"]) * g**2
        if t == 1 and h["first_stands"]:
            return w
        root = np.sqrt(old if h["earlier"] else v)
        u = g / (root + h["eps"] if h["eps_added"] else np.maximum(root, h["eps"]))
        if h["clip"]:
            u = np.clip(u, -((t - 1) ** 0.25), (t - 1) ** 0.25)
        m[...] = h["beta1"] * m + (1 - h["beta1"]) * u
        return w - lr * (m + (decay * w if h["decoupled"] else 0.0))

    return step


def _adan(h: Constants, w: Array) -> Step:
    m, n, v, last = zeros(w, 4)

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        change = g - last if t > 1 or h["first_difference"] else 0 * g
        last[...] = g
        m[...] = h["beta1"] * m + (1 - h["beta1"]) * g
        n[...] = h["beta2"] * n + (1 - h["beta2"]) * change
        v[...] = h["beta3"] * v + (1 - h["beta3"]) * (g + h["beta2"] * change) ** 2
        top = m / (1 - h["beta1"] ** t) + h["beta2"] * n / (1 - h["beta2"] ** t)
        u = top / (np.sqrt(v / (1 - h["beta3"] ** t)) + h["eps"])
        return (w - lr * u) / (1 + lr * decay) if h["proximal"] else w - lr * (u + decay * w)

    return step


def _mars(h: Constants, w: Array) -> Step:
    m, v, top, last = zeros(w, 4)

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        first = 0.0 if t == 1 and not h["first_difference"] else 1.0
        c = g + first * h["gamma"] * h["beta1"] / (1 - h["beta1"]) * (g - last)
        last[...] = g
        size = float(np.sqrt((c**2).sum()))
        c = c / size if h["clip"] and size > 1 else c
        m[...] = h["beta1"] * m + (1 - h["beta1"]) * c
        v[...] = h["beta2"] * v + (1 - h["beta2"]) * c**2
        top[...] = np.maximum(top, v)
        d = np.sign(m) if h["base"] == "lion" else adam_direction(m, top if h["amsgrad"] else v, h, t)
        return w - lr * (d + decay * w)

    return step


def _adagrad(h: Constants, w: Array) -> Step:
    total = np.full_like(w, h["initial"])

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        rows = tuple(range(1, g.ndim)) if h["by_row"] else ()
        total[...] += (g**2).mean(axis=rows, keepdims=True) if rows else g**2
        root = np.sqrt(total + h["eps"]) if h["eps_inside"] else np.sqrt(total) + h["eps"]
        return w - lr / (1 + (t - 1) * h["lr_decay"]) * g / root

    return step


def _rmsprop(h: Constants, w: Array) -> Step:
    n, a, b = zeros(w, 3)
    n += h["initial"]

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        n[...] = h["rho"] * n + (1 - h["rho"]) * g**2
        a[...] = h["rho"] * a + (1 - h["rho"]) * g
        spread = n - a**2 if h["centered"] else n
        x = g / (np.sqrt(spread + h["eps"]) if h["eps_inside"] else np.sqrt(spread) + h["eps"])
        b[...] = h["momentum"] * b + (lr * x if h["rate_inside"] else x)
        return w - (b if h["rate_inside"] else lr * b)

    return step


def _adadelta(h: Constants, w: Array) -> Step:
    E, D = zeros(w, 2)

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        E[...] = h["rho"] * E + (1 - h["rho"]) * g**2
        d = g * np.sqrt((D + h["eps"]) / (E + h["eps"]))
        D[...] = h["rho"] * D + (1 - h["rho"]) * d**2
        return w - lr * d

    return step


def _ftrl(h: Constants, w: Array) -> Step:
    z, n = zeros(w, 2)

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        grown = n + g**2
        z[...] += g - (np.sqrt(grown) - np.sqrt(n)) / lr * w
        n[...] = grown
        shrunk = np.sign(z) * np.maximum(np.abs(z) - h["lamda1"], 0)
        return -shrunk / ((h["beta"] + np.sqrt(n)) / lr + decay)

    return step


def _ftml(h: Constants, w: Array) -> Step:
    v, d, z = zeros(w, 3)

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        v[...] = h["beta2"] * v + (1 - h["beta2"]) * g**2
        now = (1 - h["beta1"] ** t) / lr * (np.sqrt(v / (1 - h["beta2"] ** t)) + h["eps"])
        z[...] = h["beta1"] * z + (1 - h["beta1"]) * g - (now - h["beta1"] * d) * w
        d[...] = now
        return -z / d

    return step


def _schedule_free(h: Constants, w: Array) -> Step:
    x, z, (v,) = w.copy(), w.copy(), zeros(w, 1)
    weight_sum, peak = np.zeros(()), np.zeros(())

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        if h["adam"]:
            v[...] = h["beta2"] * v + (1 - h["beta2"]) * g**2
            g = g / (np.sqrt(v / (1 - h["beta2"] ** t)) + h["eps"])
        z[...] -= lr * (g + decay * w)
        peak[...] = max(float(peak), lr)
        share = t ** h["r"] * peak ** h["weight_lr_power"]
        weight_sum[...] += share
        x[...] += share / weight_sum * (z - x)
        return (1 - h["beta"]) * z + h["beta"] * x

    return step


_ADAM: dict[str, Any] = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
_PLACES = {"bias_correction": True, "eps_at": "outside"}
_PLACES_VARIANTS = {
    "ε beside the uncorrected root (MXNet, LBANN)": {"eps_at": "uncorrected"},
    "ε inside the root": {"eps_at": "inside"},
    "no bias correction": {"bias_correction": False},
    **_DECAY,
}
_HALF_CORRECTED = {
    "the first moment is not corrected": {"bias_correction": "second"},
    "the second moment is not corrected": {"bias_correction": "first"},
}
_COUPLED = {"decay_form": "coupled"}
_OWN = {"decay_form": "own"}
_EPS_INSIDE = {"ε inside the root": {"eps_inside": True}, "ε beside the root": {"eps_inside": False}}
_ADAGRAD: dict[str, Any] = {"eps": 1e-6, "eps_inside": False, "lr_decay": 0.0, "initial": 0.0, **_COUPLED}
_FREE: dict[str, Any] = {"beta": 0.9, "r": 0.0, "weight_lr_power": 2.0, **_OWN}

ADAPTIVE: tuple[Published, ...] = (
    Published(
        "Adam",
        "Kingma and Ba 2015, Algorithm 1",
        _adam,
        {**_ADAM, **_PLACES, "amsgrad": False, **_COUPLED},
        _PLACES_VARIANTS,
        _HALF_CORRECTED,
    ),
    Published(
        "AdamW",
        "Loshchilov and Hutter 2019, Algorithm 2",
        _adam,
        {**_ADAM, **_PLACES, "amsgrad": False, "decay_form": "decoupled"},
        {words: changes for words, changes in _PLACES_VARIANTS.items() if words not in _DECAY},
        {"the decay is in the gradient, which is Adam and not AdamW": _COUPLED, **_HALF_CORRECTED},
    ),
    Published(
        "AdaBelief",
        "Zhuang et al. 2020, Algorithm 2",
        _adabelief,
        {**_ADAM, **_PLACES, "eps": 1e-16, "eps_each_step": True, "rectified": False, **_COUPLED},
        {"ε not added to s": {"eps_each_step": False}, "rectified as RAdam": {"rectified": True}, **_PLACES_VARIANTS},
    ),
    Published(
        "AdEMAMix",
        "Pagliardini, Ablin and Grangier 2024, Algorithm 1",
        _ademamix,
        {
            **_ADAM,
            "beta3": 0.9999,
            "alpha": 2.0,
            "alpha_warmup": 0,
            "beta3_warmup": 0,
            "slow_corrected": False,
            **_OWN,
        },
        {"α = 5 (paper)": {"alpha": 5.0}},
        {"the slow mean is corrected": {"slow_corrected": True}},
    ),
    Published(
        "ADOPT",
        "Taniguchi et al. 2024, Algorithm 2",
        _adopt,
        {
            "beta1": 0.9,
            "beta2": 0.9999,
            "eps": 1e-6,
            "clip": True,
            "decoupled": False,
            "first_stands": True,
            "earlier": True,
            "eps_added": False,
            **_OWN,
        },
        {"no clip (the first version)": {"clip": False}, "decoupled decay": {"decoupled": True}},
        {"it divides by the present v": {"earlier": False}, "ε is added to the root": {"eps_added": True}},
    ),
    Published(
        "Adan",
        "Xie et al. 2022, Algorithm 1",
        _adan,
        {
            "beta1": 0.98,
            "beta2": 0.92,
            "beta3": 0.99,
            "eps": 1e-8,
            "proximal": True,
            "first_difference": False,
            **_OWN,
        },
        {"decay before the update": {"proximal": False}},
        {"the first difference is the first gradient": {"first_difference": True}},
    ),
    Published(
        "MARS",
        "Yuan et al. 2024, Algorithms 1 to 3",
        _mars,
        {
            "beta1": 0.95,
            "beta2": 0.99,
            "eps": 1e-8,
            "gamma": 0.025,
            "base": "adamw",
            "amsgrad": False,
            "clip": True,
            "first_difference": True,
            **_OWN,
        },
        {"on Lion": {"base": "lion"}, "no clip": {"clip": False}},
        {"no difference at the first update": {"first_difference": False}},
    ),
    Published(
        "Adamax",
        "Kingma and Ba 2015, Algorithm 2",
        _adamax,
        {**_ADAM, "eps_inside": False, **_COUPLED},
        {"ε inside the maximum (torch, optax)": {"eps_inside": True}, **_DECAY},
    ),
    Published(
        "Nadam",
        "Dozat 2016",
        _nadam,
        {**_ADAM, "psi": 0.004, "warming": True, **_COUPLED},
        {"constant momentum": {"warming": False}, **_DECAY},
    ),
    Published(
        "HypergradientAdam",
        "Baydin et al. 2018, Algorithm 3, with LBANN's ε",
        _hypergradient,
        {
            "beta1": 0.9,
            "beta2": 0.99,
            "eps": 1e-8,
            "eps_at": "uncorrected",
            "hyper_learning_rate": 1e-7,
            "eps_in_gradient": True,
            **_COUPLED,
        },
        {
            "ε not added to the gradient": {"eps_in_gradient": False},
            "ε beside the corrected root": {"eps_at": "outside"},
        },
    ),
    Published(
        "AdaGrad",
        "Duchi, Hazan and Singer 2011",
        _adagrad,
        {**_ADAGRAD, "by_row": False},
        {**_EPS_INSIDE, **_DECAY},
    ),
    Published(
        "GroupAdaGrad",
        "MXNet; one accumulator a row",
        _adagrad,
        {**_ADAGRAD, "by_row": True},
        {**_EPS_INSIDE, **_DECAY},
    ),
    Published(
        "RMSProp",
        "Tieleman and Hinton 2012; Graves 2013, eqs. 38-45",
        _rmsprop,
        {
            "rho": 0.9,
            "eps": 1e-8,
            "eps_inside": False,
            "centered": False,
            "momentum": 0.0,
            "rate_inside": False,
            "initial": 0.0,
            **_COUPLED,
        },
        {
            **_EPS_INSIDE,
            "rate inside the momentum buffer": {"rate_inside": True},
            "first mean square 1 (TensorFlow)": {"initial": 1.0},
            **_DECAY,
        },
    ),
    Published("AdaDelta", "Zeiler 2012, Algorithm 1", _adadelta, {"rho": 0.9, "eps": 1e-6, **_COUPLED}, _DECAY),
    Published(
        "FTRL",
        "McMahan et al. 2013, Algorithm 1",
        _ftrl,
        {"lamda1": 0.01, "beta": 1.0, **_OWN},
        {"decay in the gradient": _COUPLED},
    ),
    Published(
        "FTML",
        "Zheng and Kwok 2017, Algorithm 1",
        _ftml,
        {"beta1": 0.6, "beta2": 0.999, "eps": 1e-8, **_COUPLED},
        _DECAY,
    ),
    Published(
        "ScheduleFreeSGD",
        "Defazio et al. 2024, eqs. 3-5",
        _schedule_free,
        {**_FREE, "adam": False},
        _DECAY,
    ),
    Published(
        "ScheduleFreeAdamW",
        "Defazio et al. 2024, Algorithm 1",
        _schedule_free,
        {**_FREE, "beta2": 0.999, "eps": 1e-8, "adam": True},
        _DECAY,
    ),
)
