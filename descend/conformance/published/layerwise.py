"""Published rules that look at a whole tensor: its norms, its rows and columns, its matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from descend.conformance.published.adaptive import adam_direction
from descend.conformance.published.base import Array, Constants, Published, Step, zeros

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LAYERWISE"]


def _norm(x: Array) -> float:
    return float(np.sqrt((x * x).sum()))


def _scaled(w: Array, h: Constants, decay: float) -> bool:
    """Whether layer-wise scaling applies to this tensor."""
    return not ((h["exclude_vectors"] and w.ndim < 2) or (h["exclude_undecayed"] and decay == 0.0))


def _decayed(w: Array, h: Constants, decay: float) -> float:
    return 0.0 if h["undecay_vectors"] and w.ndim < 2 else decay


def _stretch(u: Array, w: Array, h: Constants, decay: float) -> Array:
    """u at the length φ(‖w‖); as it is where one of both norms is 0 or the tensor is left out."""
    low, high = h["lower_bound"], h["upper_bound"]
    length = float(np.clip(_norm(w), 0.0 if low is None else low, np.inf if high is None else high))
    size = _norm(u)
    return u * (length / size) if length > 0 and size > 0 and _scaled(w, h, decay) else u


def _lamb(h: Constants, w: Array) -> Step:
    m, v = zeros(w, 2)

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        m[...] = h["beta1"] * m + (1 - h["beta1"]) * g
        v[...] = h["beta2"] * v + (1 - h["beta2"]) * g**2
        own = _decayed(w, h, decay)
        return w - lr * _stretch(adam_direction(m, v, h, t) + own * w, w, h, own)

    return step


def _lans(h: Constants, w: Array) -> Step:
    m, v = zeros(w, 2)

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        g = g / _norm(g) if _norm(g) > 0 else g
        m[...] = h["beta1"] * m + (1 - h["beta1"]) * g
        v[...] = h["beta2"] * v + (1 - h["beta2"]) * g**2
        own = _decayed(w, h, decay)
        root = np.sqrt(v / (1 - h["beta2"] ** t)) + h["eps"]
        first = _stretch(m / (1 - h["beta1"] ** t) / root + own * w, w, h, own)
        second = _stretch(g / root + own * w, w, h, own)
        return w - lr * (h["beta1"] * first + (1 - h["beta1"]) * second)

    return step


def _lars(h: Constants, w: Array) -> Step:
    (b,) = zeros(w, 1)

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        own = _decayed(w, h, decay)
        length = _norm(w)
        size = _norm(g + own * w) if h["ratio_of"] == "sum" else _norm(g) + own * length
        ratio = h["trust"] * length / (size + h["eps"]) if length > 0 and _norm(g) > 0 and _scaled(w, h, own) else 1.0
        u = ratio * (g + own * w)
        u = lr * u if h["rate_inside"] else u
        b[...] = h["momentum"] * b + (1 - h["dampening"]) * u
        d = u + h["momentum"] * b if h["nesterov"] else b
        return w - (d if h["rate_inside"] else lr * d)

    return step


def _adafactor(h: Constants, w: Array) -> Step:
    factored = w.ndim > 1 and min(w.shape[-2:]) >= h["least_side"]
    row = np.zeros((*w.shape[:-1], 1) if factored else w.shape)
    column = np.zeros((*w.shape[:-2], 1, w.shape[-1])) if factored else None
    (m,) = zeros(w, 1)
    tiny = np.finfo(np.float64).eps if h["eps1"] is None else h["eps1"]

    def rms(x: Array) -> float:
        return float(np.sqrt((x * x).mean()))

    def second(g: Array, beta: float) -> Array:
        square = g**2 + (0.0 if h["eps1_limits"] else tiny)
        if column is None:
            row[...] = beta * row + (1 - beta) * square
            return row
        row[...] = beta * row + (1 - beta) * square.mean(-1, keepdims=True)
        column[...] = beta * column + (1 - beta) * square.mean(-2, keepdims=True)
        return row * column / row.mean(-2, keepdims=True)

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        size = max(h["eps2"], rms(w)) * min(0.01 if h["relative_step"] else lr, t**-0.5)
        u = g / np.maximum(np.sqrt(second(g, 1 - t ** h["beta2_decay"])), tiny if h["eps1_limits"] else 0.0)
        m[...] = h["first_moment"] * m + (1 - h["first_moment"]) * size * u / max(1.0, rms(u) / h["d"])
        return (1 - (size if h["decay_by_step"] else lr) * decay) * w - m

    return step


def _muon(h: Constants, w: Array) -> Step:
    (b,) = zeros(w, 1)
    rows, columns = (w.shape[0], w[0].size) if w.ndim > 1 else (1, w.size)
    precision = torch.bfloat16 if h["bfloat16"] else torch.float64
    scale = 0.2 * max(rows, columns) ** 0.5 if h["adjust"] == "match_rms_adamw" else max(1.0, rows / columns) ** 0.5

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        mu = h["momentum"]
        b[...] = mu * b + (1 - mu) * g
        u = (1 - mu) * g + mu * b if h["nesterov"] else b
        x = torch.from_numpy(np.array(u)).reshape(rows, columns).to(precision)
        x = x.T if rows > columns else x
        x = x / x.norm().clamp(min=h["eps"])
        p, q, r = h["ns_coefficients"]
        for _ in range(h["ns_steps"]):
            A = x @ x.T
            x = torch.addmm(x, torch.addmm(A, A, A, beta=q, alpha=r), x, beta=p)
        x = x.T if rows > columns else x
        return w - lr * scale * x.to(torch.float64).numpy().reshape(w.shape)

    return step


def _basis(P: Array, Q: Array, first: bool) -> tuple[Array, Callable[[Array], Array]]:
    """The next eigenbasis by one power iteration, and how it permutes the columns of the old one."""
    if first:
        return np.linalg.eigh(P)[1][:, ::-1], lambda x: x
    order = np.argsort(-np.diag(Q.T @ P @ Q), kind="stable")
    return np.linalg.qr(P @ Q[:, order])[0], lambda x: x[order]


def _soap(h: Constants, w: Array) -> Step:
    matrix = w.ndim > 1
    shape = (w.shape[0], w[0].size) if matrix else (1, w.size)
    m, V = zeros(np.zeros(shape), 2)
    L, R, QL, QR = (make(side) for make in (lambda n: np.zeros((n, n)), np.eye) for side in shape)

    def step(w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
        G = g.reshape(shape)
        m[...] = h["beta1"] * m + (1 - h["beta1"]) * G
        V[...] = h["beta2"] * V + (1 - h["beta2"]) * (QL.T @ G @ QR) ** 2
        c = np.sqrt(1 - h["beta2"] ** t) / (1 - h["beta1"] ** t)
        d = QL @ (c * (QL.T @ m @ QR) / (np.sqrt(V) + h["eps"])) @ QR.T
        if matrix:
            L[...] = h["shampoo_beta"] * L + (1 - h["shampoo_beta"]) * G @ G.T
            R[...] = h["shampoo_beta"] * R + (1 - h["shampoo_beta"]) * G.T @ G
            if t == 1 or t % h["frequency"] == 0:
                QL[...], rows = _basis(L, QL, t == 1)
                QR[...], columns = _basis(R, QR, t == 1)
                V[...] = columns(rows(V).T).T
        return w - lr * d.reshape(w.shape)

    return step


_SCALING = {"exclude_vectors": False, "undecay_vectors": False, "exclude_undecayed": False, "decay_form": "own"}
_SCALING_VARIANTS = {
    "vectors are not scaled": {"exclude_vectors": True},
    "vectors are not decayed": {"undecay_vectors": True},
    "vectors are neither scaled nor decayed": {"exclude_vectors": True, "undecay_vectors": True},
    "tensors without decay are not scaled (timm)": {"exclude_undecayed": True},
    "the norm of all gradients is clipped to 1 first (timm, NVIDIA)": {"max_total_norm": 1.0},
    "decay in the gradient": {"decay_form": "coupled"},
    "decoupled decay": {"decay_form": "decoupled"},
}
_BOUNDS = {"lower_bound": None, "upper_bound": None}
_ADAM = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-6}

LAYERWISE: tuple[Published, ...] = (
    Published(
        "LAMB",
        "You et al. 2020, Algorithm 2",
        _lamb,
        {**_ADAM, "bias_correction": True, **_BOUNDS, **_SCALING},
        {"no bias correction": {"bias_correction": False}, **_SCALING_VARIANTS},
    ),
    Published("LANS", "Zheng et al. 2020, Algorithm 2", _lans, {**_ADAM, **_BOUNDS, **_SCALING}, _SCALING_VARIANTS),
    Published(
        "LARS",
        "You, Gitman and Ginsburg 2017, Algorithm 1",
        _lars,
        {
            "momentum": 0.9,
            "trust": 1e-3,
            "eps": 0.0,
            "rate_inside": True,
            "nesterov": False,
            "dampening": 0.0,
            "ratio_of": "parts",
            **_SCALING,
        },
        {
            "rate outside the momentum buffer": {"rate_inside": False},
            "divides by ‖g + λw‖ (optax)": {"ratio_of": "sum"},
            **_SCALING_VARIANTS,
        },
    ),
    Published(
        "Adafactor",
        "Shazeer and Stern 2018, Algorithms 4 and 5",
        _adafactor,
        {
            "beta2_decay": -0.8,
            "eps1": 1e-30,
            "eps2": 1e-3,
            "d": 1.0,
            "first_moment": 0.0,
            "relative_step": False,
            "eps1_limits": False,
            "least_side": 1,
            "decay_by_step": False,
            "decay_form": "own",
        },
        {
            "ε₁ limits √V from below (torch)": {"eps1_limits": True},
            "small matrices are not factored (timm, optax)": {"least_side": 16},
            "decay at the relative step (fairseq)": {"decay_by_step": True},
            "decay in the gradient": {"decay_form": "coupled"},
        },
    ),
    Published(
        "Muon",
        "Jordan et al. 2024; Liu et al. 2025 for the scale",
        _muon,
        {
            "momentum": 0.95,
            "nesterov": True,
            "ns_steps": 5,
            "ns_coefficients": (3.4445, -4.7750, 2.0315),
            "eps": 1e-7,
            "adjust": "original",
            "bfloat16": False,
            "decay_form": "decoupled",
        },
        {"iterates in bfloat16": {"bfloat16": True}, "scaled to AdamW's rate": {"adjust": "match_rms_adamw"}},
    ),
    Published(
        "SOAP",
        "Vyas et al. 2024, Algorithm 3",
        _soap,
        {
            "beta1": 0.95,
            "beta2": 0.95,
            "shampoo_beta": 0.95,
            "eps": 1e-8,
            "frequency": 10,
            "decay_form": "decoupled",
        },
    ),
)
