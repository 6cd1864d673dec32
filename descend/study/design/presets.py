"""Studies ready made: the designs of the source paper in form, and two that test the tool itself.

table2        two optimizers, tuned from scratch with a stringent budget; then `swap` on the warm-up power
table4        rule of the weights × rule of biases and normalization, a dull schedule, rate and decay tuned
tunability    a grid of 100 points over two decades of rate and of decay, for figure 2
scaling       steps to a target against the batch size
aa            one optimizer under two names, drawn independently: ranked in 5 % of studies
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from descend.arguments import check_choice, require
from descend.study.design.arm import Arm, arm
from descend.study.design.space import choice, log, one_minus_log
from descend.study.design.study import Study, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["PRESETS", "preset"]

_BY_MOMENTUM = {"momentum": one_minus_log(5e-3, 0.3)}
_VECTORS = "roles.vectors"


def _undecayed(fixed: dict[str, Any]) -> dict[str, Any]:
    """Biases and normalization without weight decay, as both pipelines of the source have it."""
    return {**fixed, f"{_VECTORS}.weight_decay": 0.0}


def _over(fields: dict[str, Any], **usual: Any) -> dict[str, Any]:
    """What a preset says unless the user says otherwise."""
    return usual | fields


def table2(workload: Any, batch_size: int, steps: int, **fields: Any) -> Study:
    """Nesterov against LARS with the same five numbers tuned: the confirmatory design."""
    common = {
        "weight_decay": log(1e-4, 1e-1),
        f"{_VECTORS}.lr_mult": log(0.01, 1.0),
        "schedule.warmup_power": choice(1, 2),
        **_BY_MOMENTUM,
    }
    fixed = _undecayed({"schedule.warmup_fraction": 0.28})
    arms = {
        "nesterov": Arm("SGD", {"lr": log(0.01, 10), **common}, {"nesterov": True, **fixed}, "polynomial"),
        "lars": Arm("LARS", {"lr": log(1, 1000), **common}, {f"{_VECTORS}.optimizer": "SGD", **fixed}, "polynomial"),
    }
    return Study(workload=workload, batch_sizes=(batch_size,), steps=(steps,), arms=arms, **_over(fields, trials=32))


def table4(workload: Any, batch_size: int, steps: int, **fields: Any) -> Study:
    """Every pair of a rule for the weights and one for biases and normalization that the source tries."""
    decay = {"weight_decay": log(1e-4, 1.0)}
    sgd, lars, adam = {"lr": log(1e-3, 10)}, {"lr": log(0.03, 300)}, {"lr": log(1e-4, 1.0)}
    rows: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
        "nesterov": ("SGD", sgd, {"momentum": 0.98, "nesterov": True}),
        "lars/momentum": ("LARS", lars, {"momentum": 0.929, f"{_VECTORS}.optimizer": "SGD"}),
        "lars": ("LARS", lars, {"momentum": 0.929}),
        "adam-1e-8": ("AdamW", adam, {"eps": 1e-8}),
        "adam-1e-6": ("AdamW", adam, {"eps": 1e-6}),
        "lamb": ("LAMB", adam, {}),
        "lamb/adam-1e-8": ("LAMB", adam, {f"{_VECTORS}.optimizer": "AdamW", f"{_VECTORS}.eps": 1e-8}),
        "lamb/adam-1e-6": ("LAMB", adam, {f"{_VECTORS}.optimizer": "AdamW", f"{_VECTORS}.eps": 1e-6}),
    }
    arms = {
        name: Arm(rule, {**space, **decay}, _undecayed(fixed), "cosine") for name, (rule, space, fixed) in rows.items()
    }
    return Study(workload=workload, batch_sizes=(batch_size,), steps=(steps,), arms=arms, **_over(fields, trials=16))


def tunability(workload: Any, batch_size: int, steps: int, **fields: Any) -> Study:
    """A grid over rate and decay, for the fraction of the space that reaches a target."""
    arms = {
        "nesterov": Arm(
            "SGD", {"lr": log(0.1, 10), "weight_decay": log(1e-4, 1e-2)}, {"momentum": 0.98, "nesterov": True}, "cosine"
        ),
        "lars": Arm("LARS", {"lr": log(1, 100), "weight_decay": log(1e-4, 1e-2)}, {"momentum": 0.929}, "cosine"),
    }
    given = _over(fields, trials=100, sampler="grid", searches=1)
    return Study(workload=workload, batch_sizes=(batch_size,), steps=(steps,), arms=arms, **given)


def scaling(
    workload: Any,
    batch_sizes: Sequence[int],
    steps: dict[int, int],
    target: float,
    arms: Sequence[str] = ("SGD", "nesterov", "Adam"),
    **fields: Any,
) -> Study:
    """Steps to a target against the batch size, every arm tuned separately at each."""
    given = _over(fields, metric="loss", evaluations=50)
    return Study(
        workload=workload,
        batch_sizes=tuple(batch_sizes),
        steps=steps,
        arms={name: arm(name) for name in arms},
        target=Target(value=target),
        select="steps",
        **given,
    )


def aa(workload: Any, batch_size: int, steps: int, optimizer: str = "nesterov", **fields: Any) -> Study:
    """One optimizer under two names, each with points and seeds of its own; ranked by accident in 5 % of studies."""
    arms = {f"{optimizer}-1": arm(optimizer), f"{optimizer}-2": arm(optimizer)}
    given = _over(fields, common_random_numbers=False)
    return Study(workload=workload, batch_sizes=(batch_size,), steps=(steps,), arms=arms, **given)


PRESETS: dict[str, Callable[..., Study]] = {
    "table2": table2,
    "table4": table4,
    "tunability": tunability,
    "scaling": scaling,
    "aa": aa,
}


def preset(name: str, workload: Any, **given: Any) -> Study:
    """A study by the name of its design.

    Raises:
        ConfigurationError: there is no such design.
    """
    require(check_choice("name of a preset", name, PRESETS))
    return PRESETS[name](workload, **given)
