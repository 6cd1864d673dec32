"""Does it do what its name says: the published rule, single precision, and the length of a first layer-wise step."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from descend.conformance.candidate import Candidate, CandidateRun, OptionRefused, draw, gap
from descend.conformance.report import CheckOutcome, Verdict, deviation, fail, not_applicable, ok

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from descend.conformance.published import Array, Constants, Published

__all__ = ["first_length", "follows_rule", "single_precision"]

STEPS = 12  # more than one refresh of SOAP's bases
SHORT = 5  # displacement is judged here, before the rate changes
EXACT = 1e-9  # relative; double precision leaves about 1e-15 a step, and cancellation costs some of it
ROUNDED = 2e-5  # what single precision somewhere inside leaves
LOW_PRECISION = 3e-2  # what bfloat16 somewhere inside leaves
NUDGE = 1e-6  # relative; far below the spacing of float16 and bfloat16, so these answer it by nothing or by a jump
LARGER_EPS = 0.01
LARGE = 100.0  # a norm above 10, where some limit it
ANSWERED = 0.2  # how far such an answer is off at least, relative


def rates(lr: float) -> list[float]:
    """Constant, and then half, so that it shows whether the rate is inside a momentum buffer."""
    return [lr if t < SHORT else lr / 2 for t in range(STEPS)]


def _gradients(subject: Candidate, t: int, nudge: float) -> list[Tensor]:
    """The gradients of step t, each element moved by a part of itself of about the size `nudge`."""
    plain = subject.gradients(t)
    moved = [draw(tuple(g.shape), 50_000 + 1000 * t + i) for i, g in enumerate(plain)] if nudge else []
    return [g * (1 + nudge * x) for g, x in zip(plain, moved, strict=True)] if nudge else plain


def _path(subject: Candidate, more: Mapping[str, Any], nudge: float = 0.0) -> list[list[Tensor]]:
    """The weights after each step."""
    trial = CandidateRun(subject, subject.weights(), **more)
    values: list[list[Tensor]] = []
    for t, lr in enumerate(rates(subject.lr), start=1):
        trial.set_rate(lr)
        trial.step(*_gradients(subject, t, nudge))
        values.append(trial.values)
    return values


def published_path(
    rule: Published, h: Constants, subject: Candidate, decay: float, nudge: float = 0.0, ahead: int = 0
) -> list[list[Tensor]]:
    """The weights after each step by the published rule with constants h, its count of updates so much ahead."""
    weights = [w.numpy().copy() for w in subject.weights()]
    steps = [rule.start(h, w) for w in weights]
    values: list[list[Tensor]] = []
    for t, lr in enumerate(rates(subject.lr), start=1):
        sign = -1.0 if subject.options.get("maximize") else 1.0
        gradients = _limited([sign * g.numpy() for g in _gradients(subject, t, nudge)], h.get("max_total_norm"))
        with np.errstate(all="ignore"):  # a variant may divide by 0; it is infinitely far off then
            weights = [
                _decayed_step(step, h["decay_form"], w, g, t + ahead, lr, decay)
                for step, w, g in zip(steps, weights, gradients, strict=True)
            ]
        values.append([torch.from_numpy(np.array(w)) for w in weights])
    return values


def _limited(gradients: list[Array], largest: float | None) -> list[Array]:
    """Gradients with the norm of all of them limited."""
    if largest is None:
        return gradients
    norm = float(np.sqrt(sum(float((g * g).sum()) for g in gradients)))
    return [g * min(1.0, largest / norm) for g in gradients]


def _decayed_step(step: Any, form: str, w: Array, g: Array, t: int, lr: float, decay: float) -> Array:
    if form == "own":
        return step(w, g, t, lr, decay)
    if form == "decoupled":
        return step(w * (1 - lr * decay), g, t, lr, 0.0)
    if form == "of the moved":
        return step(w, g, t, lr, 0.0) * (1 - lr * decay)
    return step(w, g + decay * w, t, lr, 0.0)


def _forms(rule: Published, h: Constants) -> Iterator[tuple[str, Constants]]:
    """Known other forms that differ from h, one at a time and then two together."""
    single = [(words, changes) for words, changes in rule.variants.items() if {**h, **changes} != h]
    yield from ((words, {**h, **changes}) for words, changes in single)
    for (one, first), (two, second) in itertools.combinations(single, 2):
        if not first.keys() & second.keys():
            yield f"{one}; {two}", {**h, **first, **second}


def follows_rule(subject: Candidate, rule: Published | None, more: Mapping[str, Any]) -> CheckOutcome:
    """Whether the weights follow the published rule, in double precision, at a rate that changes once."""
    if rule is None:
        return not_applicable("no published rule known by this name")
    options = {**subject.options, **more}
    h, decay = constants_of(rule, options), float(options.get("weight_decay") or 0.0)
    if rule.noisy:
        return _follows_in_the_mean(subject, h, decay, more)
    paths = Paths(_path(subject, more), published_path(rule, h, subject, decay), subject.weights())
    if paths.error <= EXACT:
        return ok(f"{rule.source}: equal to {_power(paths.error)}")
    if paths.error <= ROUNDED and (larger := _with_larger_eps(subject, more)) is not None:
        # A small ε at a wrong place looks like single precision. With a larger one it does not.
        seen = follows_rule(larger, rule, more)
        if seen.verdict is Verdict.FAIL or "known variant" in seen.seen:
            return replace(seen, seen=f"{seen.seen}; with eps={LARGER_EPS}")
    exact_first = (EXACT, ROUNDED)
    variants, mistakes = _variants(paths, subject, rule, h, decay), _mistakes(paths, subject, rule, h, decay)
    return (
        next(filter(None, (_explained(paths, rule, variants, mistakes, limit) for limit in exact_first)), None)
        or _rounded(paths, subject, rule, h, decay, more)
        or fail(paths.difference())
    )


def _with_larger_eps(subject: Candidate, more: Mapping[str, Any]) -> Candidate | None:
    """The same with an ε that shows, where it has one number of that name and takes another."""
    name = next((name for name in ("eps", "epsilon") if isinstance(subject.options.get(name), float)), None)
    if name is None or name in more or not 0 < subject.options[name] < LARGER_EPS:
        return None
    larger = Candidate(subject.build, {**subject.args, name: LARGER_EPS}, subject.noisy_rule)
    try:
        taken = larger.options.get(name) == LARGER_EPS
    except OptionRefused:
        return None
    return larger if taken else None


Errors = list[tuple[str, float]]  # words, and how far the path is from what they say


def _explained(paths: Paths, rule: Published, variants: Errors, mistakes: Errors, limit: float) -> CheckOutcome | None:
    """The form of the rule, or the mistake, that fits as closely as this, the simple ones first."""
    if paths.error <= limit:
        return deviation(f"{rule.source}, with single precision somewhere: equal to {_power(paths.error)}")
    for words, error in variants:
        if error <= limit:
            return deviation(f"known variant: {words} (equal to {_power(error)}); {paths.difference()}")
    for words, error in mistakes:
        if error <= limit:
            return fail(f"{words}; {paths.difference()}")
    return None


def _variants(paths: Paths, subject: Candidate, rule: Published, h: Constants, decay: float) -> Errors:
    """Known other forms."""
    return [
        (words, replace(paths, wanted=published_path(rule, changed, subject, decay)).error)
        for words, changed in _forms(rule, h)
    ]


def _mistakes(paths: Paths, subject: Candidate, rule: Published, h: Constants, decay: float) -> Errors:
    """Known ways to get it wrong."""
    ignored = published_path(rule, h, subject, 0.0)
    found = [("the weight decay is ignored", replace(paths, wanted=ignored).error)] if decay else []
    for words, changes, ahead in _known_mistakes(rule, h, decay):
        wanted = published_path(rule, {**h, **changes}, subject, decay, ahead=ahead)
        found.append((words, replace(paths, wanted=wanted).error))
    return found


def _known_mistakes(rule: Published, h: Constants, decay: float) -> Iterator[tuple[str, Constants, int]]:
    """Words, the constants that a mistake amounts to, and by how much its count of the updates is ahead."""
    yield from ((words, changes, 0) for words, changes in rule.mistakes.items())
    yield "the count of updates is one ahead", {}, 1
    if "beta1" in h and "beta2" in h:
        yield "beta1 and beta2 stand for each other", {"beta1": h["beta2"], "beta2": h["beta1"]}, 0
    if h.get("momentum") and "dampening" in h:
        yield "the momentum takes 1 - momentum of the gradient", {"dampening": h["momentum"], "first_whole": False}, 0
    if decay and h["decay_form"] == "decoupled":
        yield "the decay is taken of the weights that have moved", {"decay_form": "of the moved"}, 0


def _rounded(
    paths: Paths, subject: Candidate, rule: Published, h: Constants, decay: float, more: Mapping[str, Any]
) -> CheckOutcome | None:
    """Low precision, which answers a change below its spacing by nothing or a jump; a mistake follows smoothly."""
    if paths.error > LOW_PRECISION:
        return None
    nudged = _path(subject, more, NUDGE), published_path(rule, h, subject, decay, NUDGE)
    theirs, wanted = (
        torch.cat([(a - b).flatten() for a, b in zip(moved[SHORT - 1], plain[SHORT - 1], strict=True)])
        for moved, plain in zip(nudged, (paths.theirs, paths.wanted), strict=True)
    )
    if float((theirs - wanted).norm()) <= ANSWERED * float(wanted.norm()):
        return None
    return deviation(f"{rule.source}, with low precision somewhere: {paths.difference()}")


def _power(error: float) -> str:
    return "the last bit" if error == 0 else f"{error:.0e}"


@dataclass(frozen=True)
class Paths:
    """The weights after each step: of the optimizer, of the published rule, and where both started."""

    theirs: list[list[Tensor]]
    wanted: list[list[Tensor]]
    starts: list[Tensor]

    @property
    def error(self) -> float:
        """The largest relative error in displacement after any step."""
        return max(gap(a, b, self.starts) for a, b in zip(self.theirs, self.wanted, strict=True))

    def apart(self, t: int) -> list[float]:
        """The same for each tensor after step t, counted from 0."""
        return [gap([a], [b], [w]) for a, b, w in zip(self.theirs[t], self.wanted[t], self.starts, strict=True)]

    def difference(self) -> str:
        """By how much, from which step on, and for which tensors."""
        first = next(t for t in range(STEPS) if max(self.apart(t)) > EXACT)
        judged = SHORT if first < SHORT else STEPS
        errors = self.apart(judged - 1)
        text = f"{_span([error for error in errors if error > EXACT])} off in displacement after {judged} steps"
        text += f"; first differs at step {first + 1}" + (", after the rate changed" if first >= SHORT else "")
        text += f", {self._ratios()} x as long" if first == 0 else ""
        agree = ["x".join(map(str, w.shape)) for w, error in zip(self.starts, errors, strict=True) if error <= EXACT]
        return text + (f"; {', '.join(agree)} agree" if agree else "")

    def _ratios(self) -> str:
        """The length of the first step over that of the published one."""
        first = zip(self.theirs[0], self.wanted[0], self.starts, strict=True)
        lengths = [float((a - w).norm() / (b - w).norm()) for a, b, w in first]
        low, high = min(lengths), max(lengths)
        return f"{high:.4g}" if high - low <= 1e-3 * high else f"{low:.4g} to {high:.4g}"


def _span(errors: list[float]) -> str:
    low, high = min(errors, default=0.0), max(errors, default=0.0)
    if high >= 10:
        return f"up to {high:,.0f} times"
    texts = [f"{100 * error:.3g}" for error in (low, high)]
    return f"{texts[0]} %" if texts[0] == texts[1] else f"{texts[0]} to {texts[1]} %"


def _follows_in_the_mean(subject: Candidate, h: Constants, decay: float, more: Mapping[str, Any]) -> CheckOutcome:
    """For a rule with noise: mean and spread of the first step over many weights."""
    count = 20_000
    w, g = draw((count,), 1), draw((count,), 2)
    trial = CandidateRun(subject, [w], **more)
    trial.step(g)
    lr = subject.lr
    kick = (trial.values[0] - w + lr / 2 * (g + decay * w)) / lr**0.5
    mean, spread, wanted = float(kick.mean()), float(kick.std()), float(h["temperature"]) ** 0.5
    near = abs(mean) < 5 * wanted / count**0.5 and abs(spread - wanted) < 5 * wanted / (2 * count) ** 0.5
    seen = f"noise of mean {mean:.3f} and standard deviation {spread:.3f} in units of the root of the rate"
    return ok(seen) if near else fail(seen)


def single_precision(subject: Candidate) -> CheckOutcome:
    """Whether float32 weights follow the path of float64 ones."""
    if subject.noisy:
        return not_applicable("it draws random numbers")
    ends: list[list[Tensor]] = []
    for dtype in (torch.float64, torch.float32):
        # The same values in both, rounded once, so that a sign or a clipped entry is the same in both.
        trial = CandidateRun(subject, [w.float().to(dtype) for w in subject.weights()])
        for t in range(1, SHORT + 1):
            trial.step(*(g.float().to(dtype) for g in subject.gradients(t)))
        ends.append(trial.values)
    error = gap(ends[1], ends[0], [w.float() for w in subject.weights()])
    seen = f"{error:.0e} apart in displacement after {SHORT} steps"
    # A weight near 1 is stored to 6e-8, so a displacement is known to no more than that over its own size.
    moved = min(float((a - b.float()).norm() / b.norm()) for a, b in zip(ends[0], subject.weights(), strict=True))
    if error <= 1e-4:
        return ok(seen)
    if error <= 1e-6 / max(moved, 1e-30):
        return ok(f"{seen}, and so small a step is not held better")
    return deviation(f"{seen}: low precision inside") if error <= LOW_PRECISION else fail(seen)


def first_length(subject: Candidate, rule: Published | None) -> CheckOutcome:
    """Whether the first step of LAMB or LARS has the length that defines the rule."""
    if rule is None or rule.name not in ("LAMB", "LARS"):
        return not_applicable("only for LAMB and LARS")
    plain = _first_lengths(subject, rule, subject.without_decay(), 0.0)
    seen = ", ".join(
        f"{'x'.join(map(str, shape))}: {length:.4g}" for shape, length in zip(subject.shapes, plain, strict=True)
    )
    if not _wrong(subject, plain):
        large = _first_lengths(subject, rule, subject.without_decay(), 0.0, scale=LARGE)
        if _wrong(subject, large):
            texts = ", ".join(f"{length:.4g}" for length in large)
            return deviation(f"1 x, but for weights {LARGE:g} times as large {texts}: their norm is limited")
        return ok(f"1 x for every tensor ({seen})")
    if max(_wrong(subject, plain)) < 2:
        return deviation(f"vectors are left out ({seen})")
    if subject.takes_decay and not _wrong(subject, _first_lengths(subject, rule, subject.with_decay(), 0.01)):
        return deviation(f"1 x with weight decay; tensors without it are not scaled ({seen})")
    return fail(f"times the expected length: {seen}")


def _first_lengths(
    subject: Candidate, rule: Published, more: Mapping[str, Any], decay: float, scale: float = 1.0
) -> list[float]:
    """How far each tensor, its weights times `scale`, moves in its first step, in units of what the rule says."""
    trial = CandidateRun(subject, [scale * w for w in subject.weights()], **more)
    gradients = subject.gradients(1)
    trial.step(*gradients)
    h = constants_of(rule, subject.options)
    if rule.name == "LARS":
        trust = float(h["trust"])
        parts = [
            subject.lr * trust * float((g + decay * w).norm() / (g.norm() + decay * w.norm()))
            for g, w in zip(gradients, trial.starts, strict=True)
        ]
    else:
        norms = [float(w.norm()) for w in trial.starts]
        low, high = h["lower_bound"] or 0.0, math.inf if h["upper_bound"] is None else h["upper_bound"]
        parts = [subject.lr * min(max(norm, low), high) / norm for norm in norms]
    moved = zip(trial.values, trial.starts, parts, strict=True)
    return [float((value - start).norm() / (part * start.norm())) for value, start, part in moved]


def _wrong(subject: Candidate, lengths: list[float]) -> list[int]:
    """Numbers of dimensions of the tensors whose first step is not as long as the rule says."""
    return [len(shape) for shape, length in zip(subject.shapes, lengths, strict=True) if abs(length - 1) > 1e-3]


# ---- from the option names of an optimizer's author to the constants of the published rule

# Constant of a published rule: names it goes by, the first that is there counts. "betas 0" is the first of betas.
SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "beta1": ("beta1", "betas 0", "b1", "momentum"),
    "beta2": ("beta2", "betas 1", "b2"),
    "beta": ("beta", "betas 0", "momentum"),
    "eps": ("eps", "epsilon", "eps_value"),
    "rho": ("rho", "alpha", "beta2"),
    "momentum": ("momentum", "betas 0", "beta"),
    "trust": ("trust", "trust_coefficient", "trust_coeff", "eta"),
    "psi": ("schedule_decay", "momentum_decay"),
    "initial": ("initial", "initial_accumulator_value"),
    "amsgrad": ("amsgrad", "ams_bound"),
    "eta_minus": ("eta_minus", "etas 0"),
    "eta_plus": ("eta_plus", "etas 1"),
    "step_min": ("step_min", "step_sizes 0"),
    "step_max": ("step_max", "step_sizes 1"),
    "eps1": ("eps1", "eps 0"),
    "eps2": ("eps2", "eps 1"),
    "shampoo_beta": ("shampoo_beta", "betas 1"),
    "beta2_decay": ("beta2_decay", "decay_rate"),
    "d": ("d", "clip_threshold"),
    "frequency": ("frequency", "precondition_frequency"),
    "first_moment": ("betas 0",),
    "adjust": ("adjust", "adjust_lr_fn"),
    "lamda1": ("lamda1", "lambda_1", "l1"),
    "hyper_learning_rate": ("hyper_learning_rate", "hypergrad_lr"),
}
_MAY_BE_NONE = ("eps1",)  # the machine precision then; any other None leaves the authors' value
_DECOUPLED = ("decoupled_weight_decay", "weight_decouple", "decoupled_decay", "decouple")


def constants_of(rule: Published, options: Mapping[str, Any]) -> dict[str, Any]:
    """The rule's constants as an optimizer's options say them; where they say nothing, the authors' own."""
    found = {name: _value(name, default, options) for name, default in rule.constants.items()}
    return {**found, "decay_form": _decay_form(str(rule.constants["decay_form"]), options)}


def _value(name: str, default: Any, options: Mapping[str, Any]) -> Any:
    for spelling in SPELLINGS.get(name, (name,)):
        word, _, place = spelling.partition(" ")
        if word not in options:
            continue
        value = options[word]
        if place and isinstance(value, (tuple, list)):
            value = value[int(place)]
        elif place or isinstance(value, (tuple, list)) != isinstance(default, tuple):
            continue
        if value is not None or default is None or name in _MAY_BE_NONE:
            return value
    return default


def _decay_form(default: str, options: Mapping[str, Any]) -> str:
    """Where weight decay stands: as an option says, else as in the published rule."""
    said = options.get("decay")
    if default == "own":
        return "own"
    if isinstance(said, str):
        return "decoupled" if said == "decoupled" else "coupled"
    stated = [bool(options[word]) for word in _DECOUPLED if word in options]
    return default if not stated else "decoupled" if stated[0] else "coupled"
