"""LBANN's optimizers through its driver: after six steps the weights are those of its equations in NumPy's float64."""

import numpy as np
import pytest

from tests.lbann.driver.programs import run, write

START = np.float32([0.5, -1.25, 2.0, 0.125]).astype(np.float64)
STEPS = 6


def gradient(w):
    """Of Σ w²."""
    return 2 * w


def sgd(lr, mu=0.0, nesterov=False):
    w, v = START.copy(), np.zeros(4)
    for _ in range(STEPS):
        g = gradient(w)
        v = mu * v + g
        w = w - lr * (g if mu == 0 else mu * v + g if nesterov else v)
    return w


def adam(lr, beta1, beta2, eps, decay=0.0):
    w, m, v = START.copy(), np.zeros(4), np.zeros(4)
    for t in range(1, STEPS + 1):
        g = gradient(w)
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
        c = lr * np.sqrt(1 - beta2**t) / (1 - beta1**t)
        w = w - (c * m / (np.sqrt(v) + eps) + lr * decay * w)
    return w


def adagrad(lr, eps):
    w, s = START.copy(), np.zeros(4)
    for _ in range(STEPS):
        g = gradient(w)
        s = s + g**2
        w = w - lr * g / (np.sqrt(s) + eps)
    return w


def rmsprop(lr, rho, eps):
    w, s = START.copy(), np.zeros(4)
    for _ in range(STEPS):
        g = gradient(w)
        s = rho * s + (1 - rho) * g**2
        w = w - lr * g / (np.sqrt(s) + eps)
    return w


def hypergradient(lr, hyper, beta1, beta2, eps):
    w, m, v, before = START.copy(), np.zeros(4), np.zeros(4), np.zeros(4)
    for t in range(1, STEPS + 1):
        g = gradient(w) + eps
        lr = lr + hyper * float(g @ before)
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
        before = np.sqrt(1 - beta2**t) / (1 - beta1**t) * m / (np.sqrt(v) + eps)
        w = w - lr * before
    return w


RULES = {
    "sgd { learn_rate: 0.1 }": sgd(0.1),
    "sgd { learn_rate: 0.05 momentum: 0.9 }": sgd(0.05, 0.9),
    "sgd { learn_rate: 0.05 momentum: 0.9 nesterov: true }": sgd(0.05, 0.9, True),
    "adam { learn_rate: 0.1 beta1: 0.9 beta2: 0.99 eps: 1e-3 }": adam(0.1, 0.9, 0.99, 1e-3),
    "adam { learn_rate: 0.1 beta1: 0.8 beta2: 0.9 eps: 1e-8 adamw_weight_decay: 0.2 }": adam(0.1, 0.8, 0.9, 1e-8, 0.2),
    "adagrad { learn_rate: 0.3 eps: 1e-2 }": adagrad(0.3, 1e-2),
    "rmsprop { learn_rate: 0.05 decay_rate: 0.7 eps: 1e-2 }": rmsprop(0.05, 0.7, 1e-2),
    "hypergradient_adam { init_learning_rate: 0.05 hyper_learning_rate: 1e-3 beta1: 0.9 beta2: 0.99 eps: 1e-8 }": (
        hypergradient(0.05, 1e-3, 0.9, 0.99, 1e-8)
    ),
    "no_optimizer {}": START,
}
TEXT = """
trainer { mini_batch_size: 2 random_seed: 1 }
model {
  num_epochs: 3
  objective_function { layer_term { scale_factor: 1 layer: "z" } }
  metric { layer_metric { layer: "z" name: "size" } }
  layer { name: "unread" input { data_field: "samples" } }
  layer { name: "w" weights: "own" weights_layer { dims: [4] } }
  layer { name: "z" parents: "w" l2_norm2 {} }
  weights { name: "own" initializer { value_initializer { values: [0.5, -1.25, 2, 0.125] } } OWN }
  callback { check_metric { metric: "size" lower_bound: LOW upper_bound: HIGH error_on_failure: true
    execution_modes: "test" } }
}
optimizer { DEFAULT }
data_reader {
  reader { name: "synthetic" role: "train" num_samples: 4 synth_dimensions: "1" }
  reader { name: "synthetic" role: "test" num_samples: 2 synth_dimensions: "1" }
}
"""


def program(rule: str, own: bool, value: float) -> str:
    text = TEXT.replace("LOW", repr(value * (1 - 2e-6))).replace("HIGH", repr(value * (1 + 2e-6)))
    other = "sgd { learn_rate: 1e-3 }"
    return text.replace("OWN", f"optimizer {{ {rule} }}" if own else "").replace("DEFAULT", other if own else rule)


@pytest.mark.parametrize("own", [False, True], ids=["default", "of the weights"])
@pytest.mark.parametrize("rule", RULES)
def test_six_steps_are_those_of_the_equations(rule, own, capsys, monkeypatch, tmp_path):
    value = float((RULES[rule] ** 2).sum())
    file = f"--prototext={write(tmp_path, program(rule, own, value))}"
    ended = run(capsys, monkeypatch, tmp_path, file)
    assert ended.code == 0, ended.err
    write(tmp_path, program(rule, own, value * 1.0001))
    assert run(capsys, monkeypatch, tmp_path, file).code == 4
