"""SOAP against Adam where nothing is rotated, against rotated Adam where the basis is known, and on a skewed valley."""

import numpy as np
import torch

from descend.optim.engine.plain import call
from descend.optim.rules import SOAP, Adam


def adam(b1, b2, eps):
    def make():
        m = v = 0.0

        def step(w, g, t, lr, decay):
            nonlocal m, v
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
            return w - lr * np.sqrt(1 - b2**t) / (1 - b1**t) * m / (np.sqrt(v) + eps)

        return step

    return make


def test_sides_that_are_too_long_are_adam(agree):
    agree(SOAP(0.9, 0.98, eps=1e-3, max_side=0), adam(0.9, 0.98, 1e-3))


def test_one_refresh_then_rotated_adam(path):
    """With frequency beyond the run the bases are the eigenvectors of the first gradient's Gram matrices."""
    random = np.random.default_rng(0)
    w, grads = random.normal(size=(4, 3)), random.normal(size=(12, 4, 3))
    ours = path(SOAP(0.9, 0.98, 0.95, 1e-3, 1000), torch.tensor(w), [torch.tensor(g) for g in grads], [0.1] * 12, 0.0)
    left, right = np.eye(4), np.eye(3)
    m, v = np.zeros((4, 3)), np.zeros((4, 3))
    for t, (g, p) in enumerate(zip(grads, ours, strict=True), 1):
        m = 0.9 * m + 0.1 * g
        v = 0.98 * v + 0.02 * (left.T @ g @ right) ** 2
        step = np.sqrt(1 - 0.98**t) / (1 - 0.9**t) * (left.T @ m @ right) / (np.sqrt(v) + 1e-3)
        w = w - 0.1 * left @ step @ right.T
        np.testing.assert_allclose(p.numpy(), w, rtol=1e-9, atol=1e-9)
        if t == 1:
            left = np.linalg.eigh(g @ g.T)[1][:, ::-1]
            right = np.linalg.eigh(g.T @ g)[1][:, ::-1]


def test_bases_stay_orthonormal_and_follow_the_gradients(path):
    rule, random = SOAP(frequency=2), torch.Generator().manual_seed(0)
    axes = torch.linalg.qr(torch.randn(5, 5, generator=random, dtype=torch.float64))[0]
    sizes = torch.tensor([10.0, 5.0, 2.0, 1.0, 0.5], dtype=torch.float64)
    p, s = torch.zeros(5, 7, dtype=torch.float64), rule.init(torch.zeros(5, 7, dtype=torch.float64))
    for t in range(1, 200):
        g = axes @ (sizes[:, None] * torch.randn(5, 7, generator=random, dtype=torch.float64))
        _, s = rule.direction(g, s, torch.tensor(float(t), dtype=torch.float64), g.shape)
    torch.testing.assert_close(s.QL.T @ s.QL, torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-10)
    # the leading axis of the gradients is the first of the basis
    assert abs((axes[:, 0] * s.QL[:, 0]).sum().item()) > 0.95
    assert p.shape == s.M.shape


def test_refreshed_bases_serve_the_mean_of_the_gradients_themselves(path):
    """Against the paper's text: the mean is kept as it is and rotated at each update, with both products of QᵀPQ."""
    random = np.random.default_rng(1)
    w, grads = random.normal(size=(5, 4)), random.normal(size=(15, 5, 4))
    ours = path(SOAP(0.9, 0.98, 0.9, 1e-3, 3), torch.tensor(w), [torch.tensor(g) for g in grads], [0.1] * 15, 0.0)
    bases, grams = [np.eye(5), np.eye(4)], [np.zeros((5, 5)), np.zeros((4, 4))]
    m = v = np.zeros((5, 4))
    for t, (g, p) in enumerate(zip(grads, ours, strict=True), 1):
        left, right = bases
        m = 0.9 * m + 0.1 * g
        v = 0.98 * v + 0.02 * (left.T @ g @ right) ** 2
        step = np.sqrt(1 - 0.98**t) / (1 - 0.9**t) * (left.T @ m @ right) / (np.sqrt(v) + 1e-3)
        w = w - 0.1 * left @ step @ right.T
        np.testing.assert_allclose(p.numpy(), w, rtol=1e-8, atol=1e-8)
        grams = [0.9 * gram + 0.1 * square for gram, square in zip(grams, (g @ g.T, g.T @ g), strict=True)]
        if t == 1:
            bases = [np.linalg.eigh(gram)[1][:, ::-1] for gram in grams]
        elif t % 3 == 0:
            for i, gram in enumerate(grams):
                order = np.argsort(-np.diag(bases[i].T @ gram @ bases[i]))
                v = np.take(v, order, axis=i)
                bases[i] = np.linalg.qr(gram @ bases[i][:, order])[0]


def test_a_skewed_valley_is_crossed_faster_than_by_adam(path):
    """The loss ½ tr(Wᵀ H W) with H far from diagonal."""
    random = torch.Generator().manual_seed(0)
    Q = torch.linalg.qr(torch.randn(6, 6, generator=random, dtype=torch.float64))[0]
    H = Q @ torch.diag(torch.logspace(0, 3, 6, dtype=torch.float64)) @ Q.T
    left = {}
    for rule in (SOAP(0.9, 0.95, frequency=1), Adam(0.9, 0.95)):
        w = 0.3 * torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        s = rule.init(w)
        for t in range(1, 120):
            number = torch.tensor(float(t), dtype=torch.float64)
            d, s = call(rule, {"g": H @ w, "s": s, "t": number, "shape": w.shape})
            w = w - 0.03 * (1 - t / 120) * d
        left[type(rule).__name__] = (w * (H @ w)).sum().item()
    assert left["SOAP"] < 0.5 * left["Adam"]
