"""Studies: which optimizer, which rate, which batch size, fairly, and "cannot rank" when that is the truth.

analysis    the statistics, pure functions over numbers
simulate    the noisy quadratic model, whose answers are known
"""

from descend.study import analysis

__all__ = ["analysis"]
