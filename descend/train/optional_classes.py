"""Whether a value is of a class that most runs do without; asking imports none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.lazy import instance_check

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import TypeIs

    from descend.optim import Optimizer, Rule
    from descend.optim.schedules import Schedule
    from descend.train.optimizers.phased import PhasedOptimizer
    from descend.train.population.ltfb import LTFB
    from descend.train.strategies.zero import ZeroRedundancyOptimizer
    from descend.train.transforms.kfac import KFAC

__all__ = [
    "is_averaging",
    "is_kfac",
    "is_ltfb",
    "is_own_optimizer",
    "is_phased_optimizer",
    "is_rule",
    "is_schedule",
    "is_sharded_optimizer",
]

is_kfac: Callable[[object], TypeIs[KFAC]] = instance_check("descend.train.transforms.kfac", "KFAC")
is_ltfb: Callable[[object], TypeIs[LTFB]] = instance_check("descend.train.population.ltfb", "LTFB")
is_own_optimizer: Callable[[object], TypeIs[Optimizer]] = instance_check("descend.optim.optimizer", "Optimizer")
is_phased_optimizer: Callable[[object], TypeIs[PhasedOptimizer]] = instance_check(
    "descend.train.optimizers.phased", "PhasedOptimizer"
)
is_rule: Callable[[object], TypeIs[Rule]] = instance_check("descend.optim.rules.base", "Rule")
is_schedule: Callable[[object], TypeIs[Schedule]] = instance_check("descend.optim.schedules", "Schedule")
is_sharded_optimizer: Callable[[object], TypeIs[ZeroRedundancyOptimizer]] = instance_check(
    "descend.train.strategies.zero", "ZeroRedundancyOptimizer"
)


def is_averaging(rule: object) -> bool:
    """Whether a rule trains at another point than the average that it is evaluated at, as schedule-free rules do."""
    if not is_rule(rule):
        return False
    from descend.optim.engine.evaluation import averages

    return averages(rule)
