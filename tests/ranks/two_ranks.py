"""Everything that the tests of every run ask of two ranks, in one start of them; run by test_two_ranks.py."""

from __future__ import annotations

from ranks import cases, shared, sums, vote, wrapped
from ranks.start import leave

import descend

EXACT = ("ignored on one rank", "partial batch", "fewer samples than ranks", "validation", "batch norm")
EXACT += ("phases", "phases with a metric and accumulation")
EXACT += ("batch norm in few groups", "K-FAC where ranks come through other layers")
SHARED = ("unused weights", "weights that are frozen and thawed, sharded", "memory runs out on the second rank")
SHARED += ("sparse gradients",)
FSDP = ("ignored on one rank", "fewer samples than ranks", "clipping, Adam and decay")


def everything() -> None:
    found: dict[str, object] = {"exact": {name: cases.outcome(name) for name in EXACT}}
    found["sums"] = sums.counted_steps()
    found["vote"] = vote.vote(0, {})
    with shared.forced("shared"):
        found["shared"] = {name: cases.outcome(name) for name in SHARED}
    found["seen"] = shared.seen
    found["fsdp"] = {name: wrapped.outcome(name) for name in FSDP}  # last: it makes a process group that stays
    leave(found)


if __name__ == "__main__":
    descend.main(everything)
