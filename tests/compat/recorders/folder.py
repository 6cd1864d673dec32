"""A folder of recorded trajectories: `index.json` and `trajectories.npz`, as test_trajectories.py reads them.

Python 3.8 and NumPy alone, since it runs inside the environments of old libraries.
"""

# ruff: noqa: B905, UP  # zip has no strict in Python 3.8
import json
import pathlib

import numpy as np

STEPS = 20


class Folder:
    """Collects streams, cases and schedules, and writes them.

    Args:
        seed: Everything drawn is a function of it.
    """

    def __init__(self, seed):
        self.random = np.random.RandomState(seed)
        self.arrays = {}
        self.streams = {}
        self.cases = []
        self.schedules = []

    # ---- draws

    def chance(self, p):
        """Whether something happens that has probability p."""
        return self.random.rand() < p

    def pick(self, values):
        """One of some values."""
        return values[self.random.randint(len(values))]

    def log(self, low, high):
        """A float32 number between two, evenly in its logarithm."""
        return float(np.float32(np.exp(self.random.uniform(np.log(low), np.log(high)))))

    def maybe(self, p, **draws):
        """Some of the arguments, each with probability p."""
        return {name: draw() for name, draw in sorted(draws.items()) if self.chance(p)}

    # ---- what is written

    def stream(self, name, shapes, dtype, replicas=1, zero_step=True, zero_weights=False, tiny=False):
        """Weights and 20 gradients for each shape; one step of zeros, one large, perhaps one tiny."""
        at = self.random.permutation(np.arange(1, STEPS))[:3]
        kind = np.float64 if dtype == "float64" else np.float32
        w0, grads = [], []
        for i, shape in enumerate(shapes):
            w = self.random.standard_normal(shape) * 0.6
            g = self.random.standard_normal(((replicas,) if replicas > 1 else ()) + (STEPS, *shape)) * 0.5
            steps = g.reshape((replicas, STEPS, *shape))
            steps[:, at[0]] *= 0.0 if zero_step else 1.0
            steps[:, at[1]] *= 20.0
            steps[:, at[2]] *= 1e-4 if tiny else 1.0
            if zero_weights and i == len(shapes) - 1:
                w = w * 0.0
            if dtype == "float16":
                w, g = w.astype(np.float16), g.astype(np.float16)
            w0.append(f"stream/{name}/w0/{i}")
            grads.append(f"stream/{name}/grad/{i}")
            self.arrays[w0[-1]], self.arrays[grads[-1]] = w.astype(kind), g.astype(kind)
        self.streams[name] = {"shapes": [list(s) for s in shapes], "dtype": dtype, "replicas": replicas}
        return {"w0": w0, "grads": grads}

    def case(self, case, **series):
        """Add a case; `series` are per-tensor lists of arrays by step, or `lr`, one array."""
        for name, values in series.items():
            if values is None:
                continue
            if name == "lr":
                key = "case/{}/lr".format(case["id"])
                self.arrays[key], case["arrays"]["lr"] = np.array(values, np.float64), key
                continue
            keys = [f"case/{case['id']}/{name}/{i}" for i in range(len(values))]
            self.arrays.update(zip(keys, [np.stack(v) for v in values]))
            case["arrays"][name] = keys
        if all(np.isfinite(self.arrays[key]).all() for key in case["arrays"]["w"]):
            self.cases.append(case)

    def write(self, path):
        """Write the folder."""
        path = pathlib.Path(path)
        path.mkdir(parents=True, exist_ok=True)
        index = {"streams": self.streams, "cases": self.cases, "schedules": self.schedules, "facts": []}
        (path / "index.json").write_text(json.dumps(index, indent=1))
        np.savez(path / "trajectories.npz", **self.arrays)
