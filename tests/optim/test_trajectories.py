"""Optimizers of other libraries, step by step, against what those libraries computed.

The folder of `DESCEND_TRAJECTORIES` holds `index.json` and `trajectories.npz`; without it, and without the default
folder beside the repository, these tests are skipped. What is not copied is left out by kind, from the table in
`descend.compat.known_deviations`, never by the name of a case.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from system_needs import recorded, require

from descend.compat import from_library, schedule_from_library
from descend.compat.known_deviations import NOT_COPIED
from descend.compat.mxnet.gluon import GluonTrainer
from descend.optim.rules.lbsgd import LBSGD
from descend.optim.rules.sgld import SGLD

HERE = Path(__file__).resolve()
FOLDER = Path(os.environ.get("DESCEND_TRAJECTORIES", HERE.parents[2].parent / "shared/data/optimizer_trajectories"))
INDEX: dict[str, Any] = (
    json.loads((FOLDER / "index.json").read_text())
    if (FOLDER / "index.json").is_file()
    else {"cases": [], "schedules": []}
)
pytestmark = pytest.mark.filterwarnings("ignore:MXNet .* lets the optimizer's default rate")


class Numbers:
    """The recorded arrays by key; each is decompressed once."""

    @functools.cached_property
    def file(self) -> Any:
        return np.load(FOLDER / "trajectories.npz")

    @functools.cache  # noqa: B019  # as long as the tests
    def __getitem__(self, key: str) -> Any:
        return self.file[key]


NUMBERS = Numbers()


def library(case: dict[str, Any]) -> str:
    """The library of a case in the words of `from_library`."""
    source = case["source"]
    if source == "mxnet":
        return "mxnet-1.9" if case["source_version"].startswith("1.") else "mxnet-2.0"
    return {"torch.optim": "torch", "lbann-formula": "lbann"}.get(source, source)


def defect(case: dict[str, Any]) -> str:
    """The defect that a case shows; "as sgd/mom" stands for the words of that other case."""
    text = case.get("reference_defect", "")
    if text.startswith("as "):
        other = text.removeprefix("as ").split()[0].rstrip(".,;")
        for candidate in INDEX["cases"]:
            words = candidate.get("reference_defect", "")
            if candidate["id"].endswith(f"/{other}") and words and not words.startswith("as "):
                return f"{words} {text}"
        return elsewhere(case, other, text)
    return text


def elsewhere(case: dict[str, Any], other: str, text: str) -> str:
    """The words of a defect that is described in a case of another folder: those of the same optimizer's row."""
    rows = [row for row in NOT_COPIED if row.optimizer == other.split("/")[0] == case["optimizer"].lower()]
    return " ".join([text, *(word for row in rows for word in row.words)])


def left_out(case: dict[str, Any]) -> str | None:
    """Why a case is not copied, or None."""
    text = defect(case)
    rows = [row for row in NOT_COPIED if row.covers(library(case), case["optimizer"], text)]
    return f"{rows[0].defect}. {rows[0].instead}" if rows else None


def arguments(case: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `from_library` for a case."""
    given = dict(case["kwargs"])
    if "lr_scheduler" in case:
        given["lr_scheduler"] = (case["lr_scheduler"]["type"], case["lr_scheduler"]["kwargs"])
    return given


def loose_arguments(case: dict[str, Any]) -> dict[str, Any]:
    """What an MXNet program sets by calls on the optimizer."""
    given = {name: case[name] for name in ("lr_mult", "wd_mult") if name in case}
    if "names" in case and case["api"] != "trainer":
        given["param_idx2name"] = dict(enumerate(case["names"]))
    return given


class Run:
    """One case: weights, and an optimizer or a trainer over them."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        dtype = getattr(torch, case["dtype"])
        self.params = [torch.nn.Parameter(torch.tensor(NUMBERS[key]).to(dtype)) for key in case["arrays"]["w0"]]
        self.grads = [NUMBERS[key] for key in case["arrays"]["grads"]]
        self.replicas = int(INDEX["streams"][case["stream"]].get("replicas", 1))
        self.trainer: GluonTrainer | None = None
        self.make()

    def make(self) -> None:
        case = self.case
        if case["api"] == "trainer":
            self.trainer = GluonTrainer(
                self.params,
                case["optimizer"],
                arguments(case),
                compression_params=case.get("compression_params"),
                update_on_kvstore=case.get("update_on_kvstore"),
                library=library(case),
                **loose_arguments(case),
            )
            self.optimizer = self.trainer.optimizer
        else:
            given = {**arguments(case), **loose_arguments(case)}
            self.optimizer = from_library(library(case), case["optimizer"], self.params, **given)
        if "random draws are replaced by zeros" in case.get("note", ""):
            for group in self.optimizer.param_groups:
                group["temperature"] = 0.0

    def save_and_load(self, folder: Path) -> None:
        """Into a fresh optimizer over the same weights."""
        if self.trainer is not None:
            self.trainer.save_states(folder / "states")
            self.make()
            self.trainer.load_states(folder / "states")
            return
        saved = self.optimizer.state_dict()
        self.make()
        self.optimizer.load_state_dict(saved)

    def set_rate(self, rate: float) -> None:
        if self.trainer is not None:
            self.trainer.set_learning_rate(rate)
        else:
            for group in self.optimizer.param_groups:
                group["lr"] = rate

    def gradient(self, tensor: int, step: int, replica: int) -> torch.Tensor:
        g = self.grads[tensor][replica][step] if self.replicas > 1 else self.grads[tensor][step]
        g = np.array(g)
        for at, element in self.case.get("nonfinite", []):
            if tensor == 0 and at == step:
                g.reshape(-1)[element] = np.inf
        return torch.tensor(g, dtype=self.params[tensor].dtype)

    def step(self, step: int) -> None:
        copies = [[self.gradient(i, step, r) for i in range(len(self.params))] for r in range(self.replicas)]
        if self.trainer is not None and self.replicas > 1:
            self.trainer.reduce(copies)
        else:
            for p, *gs in zip(self.params, *copies, strict=True):
                p.grad = torch.stack(gs).sum(0)
        for key, p in zip(self.case["arrays"].get("reduced_grad", []), self.params, strict=False):
            np.testing.assert_allclose(p.grad.numpy(), NUMBERS[key][step], rtol=1e-6, atol=1e-7)
        before = [p.grad.clone() for p in self.params]
        if self.trainer is not None:
            self.trainer.step(self.case["batch_size"])
        else:
            self.optimizer.step()
        for p, g in zip(self.params, before, strict=True):
            assert torch.equal(p.grad, g), "the caller's gradient was written to"


def close(have: torch.Tensor, want: Any, tol: dict[str, float], what: str) -> None:
    np.testing.assert_allclose(have.detach().double().numpy(), want, rtol=tol["rtol"], atol=tol["atol"], err_msg=what)


def rounded(have: torch.Tensor, master: torch.Tensor, want: Any, tol: dict[str, float], what: str) -> None:
    """float16 weights: exactly the rounded copy, and within one unit of the library's beyond the copy's tolerance."""
    assert torch.equal(have, master.to(have.dtype)), what
    want16 = np.asarray(want, dtype=np.float16)
    allowed = np.spacing(np.abs(want16)).astype(np.float64) + tol["atol"] + tol["rtol"] * np.abs(want)
    off = np.abs(have.detach().double().numpy() - want16.astype(np.float64))
    assert (off <= allowed).all(), f"{what}: off by {(off / allowed).max()} times what is allowed"


def compare(run: Run, step: int) -> None:
    case, tol = run.case, run.case["tol"]
    for i, p in enumerate(run.params):
        want = NUMBERS[case["arrays"]["w"][i]][step]
        what = f"{case['id']}: tensor {i} after step {step}"
        if "master" in case["arrays"]:
            master = run.optimizer.state[p]["master"]
            close(master, NUMBERS[case["arrays"]["master"][i]][step], tol, what)
            rounded(p, master, want, tol, what)
        else:
            close(p, want, tol, what)


def compare_rate(run: Run, step: int) -> None:
    """The rate shown after each step: one for the optimizer, or one for each tensor."""
    key = run.case["arrays"].get("lr")
    if key is None or (library(run.case), run.case["optimizer"]) == ("mxnet-1.9", "adadelta"):  # it reads no rate
        return
    want = NUMBERS[key][step] if isinstance(key, str) else [NUMBERS[k][step] for k in key]
    if np.ndim(want) == 0:
        shown = run.trainer.learning_rate if run.trainer else run.optimizer.param_groups[0]["lr"]
        assert shown == pytest.approx(float(want), rel=1e-9)
        return
    states = [run.optimizer.state[p]["a"] for p in run.params]
    have = [run.optimizer.param_groups[0]["lr"] + float(a) for a in states]
    np.testing.assert_allclose(have, want, rtol=1e-9)


@pytest.mark.parametrize("case", recorded(INDEX["cases"], FOLDER, "DESCEND_TRAJECTORIES"))
def test_every_step_is_that_of_the_library(case: dict[str, Any], tmp_path: Path):
    reason = left_out(case)
    require("a defect of the library that is not copied", reason is None, reason or "")
    run = Run(case)
    steps = len(NUMBERS[case["arrays"]["w"][0]])
    for step in range(steps):
        if step == case.get("save_load_at"):
            run.save_and_load(tmp_path)
        if str(step) in case.get("set_lr", {}):
            run.set_rate(case["set_lr"][str(step)])
        run.step(step)
        compare(run, step)
        compare_rate(run, step)


@pytest.mark.parametrize("case", recorded(INDEX.get("schedules", []), FOLDER, "DESCEND_TRAJECTORIES"))
def test_every_rate_is_that_of_the_library(case: dict[str, Any]):
    arrays = {name: NUMBERS[key] for name, key in case["arrays"].items()}
    if "multiplier" in arrays:
        names = ("warmup_strategy", "batch_scale", "updates_per_epoch", "warmup_epochs")
        schedule = schedule_from_library(library(case), "LBSGD", **{name: case[name] for name in names})
        want = arrays["multiplier"]
    else:
        given = dict(case["lr_scheduler"]["kwargs"])
        if "optimizer_learning_rate" in case:
            given["optimizer_learning_rate"] = case["optimizer_learning_rate"]
        schedule = schedule_from_library(library(case), case["lr_scheduler"]["type"], **given)
        want = arrays["lr_sequence"]
    have = [schedule(int(n) - 1) for n in arrays["num_update"]]
    np.testing.assert_allclose(have, want, rtol=1e-12, atol=1e-15)


WARM = [case for case in INDEX.get("schedules", []) if "warmup_strategy" in case]


@pytest.mark.parametrize("case", recorded(WARM, FOLDER, "DESCEND_TRAJECTORIES"))
def test_the_rule_has_the_factor_of_the_schedule(case: dict[str, Any]):
    """LBSGD inside the rule and as a schedule are one thing, except for the strategy that is a ratio of norms."""
    names = ("batch_scale", "updates_per_epoch", "warmup_epochs", "warmup_strategy")
    rule = LBSGD(**{name: case[name] for name in names})
    n = torch.tensor(NUMBERS[case["arrays"]["num_update"]], dtype=torch.float64)
    np.testing.assert_allclose(rule.factor(n).numpy(), NUMBERS[case["arrays"]["multiplier"]], rtol=1e-12)


@pytest.mark.parametrize("fact", recorded(INDEX.get("facts", []), FOLDER, "DESCEND_TRAJECTORIES"))
def test_sgld_noise_has_the_recorded_moments(fact: dict[str, Any]):
    """Mean and spread of one step from zero weights with a zero gradient, over as many draws as were recorded."""
    name = "mxnet-1.9" if fact["id"].startswith("mx191") else "mxnet-2.0"
    p = torch.nn.Parameter(torch.zeros(fact["samples"], dtype=torch.float64))
    optimizer = from_library(name, "sgld", [p], rescale_grad=0.125, clip_gradient=0.5, **fact["kwargs"])
    assert isinstance(optimizer.param_groups[0]["rule"], SGLD)
    p.grad = torch.zeros_like(p)
    optimizer.step()
    drawn = p.detach().numpy()
    error = fact["expected_std"] / np.sqrt(fact["samples"])
    assert abs(drawn.mean() - fact["expected_mean"]) < 4 * error
    assert abs(drawn.std() / fact["expected_std"] - 1) < 5e-3
    assert abs(((drawn / drawn.std()) ** 4).mean() - 3) < 0.05
