"""Checks of a run: what it did not do, and whether the weights of its ranks have drifted apart.

`UpdateCheck` tells of updates, trained parameters, callbacks whose time never comes:

check_plan   before training: what the limits of the run rule out
begin        where training begins, or goes on
after_epoch  parameters that the optimizer does not update, because they were thawed or replaced meanwhile
end          no update, updates that changed no weight, mini-batches whose gradient was kept for an update to come
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

import torch

from descend.data.nested_fields import spread
from descend.errors import ConfigurationError, DataError, warn
from descend.runtime.dtensor import is_sharded, local_shard
from descend.train.algorithms import BatchedIterativeOptimizer
from descend.train.module_state import bits_sum
from descend.train.optional_classes import is_averaging, is_kfac, is_schedule
from descend.train.param_groups import options_of
from descend.train.progress import Mode
from descend.train.stopping import limit_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.optim.schedules import Schedule
    from descend.train.run import Run
    from descend.train.stopping import Stop

__all__ = ["ReplicaCheck", "RunChecks", "UpdateCheck"]

_SHOWN = 3
_LOOKS = 64  # at a schedule


class UpdateCheck:
    """Checks that a run trains what it was set to train. Nothing of it runs in a step.

    Args:
        run: The run.

    Attributes:
        last_withheld: Why the newest mini-batch that was skipped made no update.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._named = set[str]()  # parameters that were warned of
        self._idle = set[int]()  # callbacks that were warned of, by their `id`
        self.last_withheld = ""
        self.only_evaluates = self._is_frozen = False
        self._step, self._sums, self._rates = 0, None, ""

    # ---- before training

    def check_plan(self) -> None:
        """Look for updates and callbacks that the limits of the run rule out.

        Raises:
            ConfigurationError: all mini-batches of the run together are too few for its first update.

        Warns:
            UserWarning: the run makes no update; a callback acts for the first time after its end.
        """
        self._check_running_statistics()
        stop = self._criterion()
        if stop is None:
            return
        limit, window = limit_of(stop), self._run.transforms.window()
        if 0 in limit:
            self.only_evaluates = True
            warn(f"stop={stop!r}: this run makes no update, it only evaluates")
            return
        feed = self._run.data.get(Mode.TRAIN)
        per_epoch = None if feed is None else feed.steps_per_epoch
        batches = None if limit.epochs is None or per_epoch is None else limit.epochs * per_epoch
        if batches is not None and batches < window.first:
            all_of_them = _counted(batches, "mini-batch", "es")
            raise ConfigurationError(
                f"{window.setting or 'training'} makes no update in this run of {all_of_them} "
                f"({_counted(limit.epochs or 0, 'epoch')} of {per_epoch:,}): set it to {batches:,} or less, or train "
                "for longer"
            )
        steps, epochs = limit
        if window.every is not None and per_epoch:
            steps = _least(steps, None if epochs is None else epochs * per_epoch // window.every)
            epochs = _least(epochs, None if steps is None else -(-steps * window.every // per_epoch))
        self._check_beginnings({"updates": steps, "epochs": epochs})
        if steps:
            self._check_schedules(steps)

    def _check_beginnings(self, most: Mapping[str, int | None]) -> None:
        for callback in self._run.callbacks.all:
            beginning = callback.beginning
            if beginning is None or (limit := most[beginning.unit]) is None or limit >= beginning.after:
                continue
            self._idle.add(id(callback))
            warn(
                f"{type(callback).__name__}: {beginning.setting} has no effect, it acts for the first time after "
                f"{_counted(beginning.after, beginning.unit[:-1])} and this run ends after {limit:,}"
            )

    def _check_schedules(self, steps: int) -> None:
        """Warn of a rate that has its highest value in the last update: the warm-up is longer than the run."""
        by_callbacks = [(one, rate) for one in self._run.callbacks.all if (rate := one.rate_of_step)]
        for named, schedule in [*((one, one) for one in self._schedules()), *by_callbacks]:
            before = [schedule(step) for step in spread(max(steps - 1, 1), _LOOKS).tolist()]
            if max(before) < schedule(steps - 1) < schedule(steps):
                warn(
                    f"the learning rate still rises in the last of {_counted(steps, 'update')}, from "
                    f"{schedule(0):.3g} to {schedule(steps - 1):.3g}: the warm-up of {named} is longer than the run"
                )

    def _schedules(self) -> list[Schedule]:
        found = [one for group in self._run.optimizer.param_groups if is_schedule(one := group.get("schedule"))]
        return list({id(one): one for one in found}.values())

    def _check_running_statistics(self) -> None:
        """Warn where running statistics are of other weights than those that are evaluated."""
        rules = [group.get("rule") for group in self._run.optimizer.param_groups]
        averaging = [type(rule).__name__ for rule in rules if is_averaging(rule)]
        layers = [name for name, _ in self._run.task.module.named_buffers() if name.endswith("running_mean")]
        if averaging and layers:
            more = f" and {len(layers) - 1} more are" if len(layers) > 1 else " is"
            warn(
                f"{averaging[0]} is evaluated at an average of the weights, and '{layers[0]}'{more} of the weights in "
                "training; for statistics of the average call torch.optim.swa_utils.update_bn(loader, result.module) "
                "after the run"
            )

    def _criterion(self) -> Stop | None:
        """The criterion of one pass of mini-batch descent; None for algorithms that train in another way."""
        algorithm = self._run.config.algorithm
        inner = algorithm.first_order_optimizer if is_kfac(algorithm) else algorithm
        return inner.stopping(self._run.epochs or 0) if isinstance(inner, BatchedIterativeOptimizer) else None

    # ---- while it trains

    def begin(self) -> None:
        """Note where training begins: the count of updates and the weights."""
        self._step, self._sums = self._run.state.step, self._sums_of_trained()
        self._rates = _rates(self._run.optimizer)

    def after_epoch(self) -> None:
        """Warn of parameters that require a gradient and that the optimizer does not update, each once."""
        held = options_of(self._run.optimizer, "lr")
        named = list(self._run.task.module.named_parameters())
        idle = [name for name, p in named if p.requires_grad and id(p) not in held and name not in self._named]
        if idle:
            self._named.update(idle)
            more = f" and {len(idle) - _SHOWN} more" if len(idle) > _SHOWN else ""
            warn(
                f"{', '.join(map(repr, idle[:_SHOWN]))}{more}: not updated by the optimizer, because a callback thawed "
                "or replaced it within the run: end the run there and call fit again, which trains what requires a "
                "gradient"
            )
        if held and not self._is_frozen and not any(p.requires_grad and id(p) in held for _, p in named):
            self._is_frozen = True
            warn("no weights are trained any more: a callback froze or replaced all of them within the run")

    # ---- after training

    def end(self, reason: str) -> str:
        """Warn of what had no effect.

        Args:
            reason: Why training ended.

        Returns:
            The reason, which says so where no update was made.
        """
        run = self._run
        self.after_epoch()
        if run.state.step == 0:
            cause = self._cause()
            if not self.only_evaluates:
                warn(f"no update was made, and all weights are what they were: {cause}")
            return f"{reason}, without an update: {cause}"
        if run.state.step == self._step and run.config.resume:
            run.say(f"no update was made: the run that is continued had come to its end, {reason}")
        if kept := run.transforms.kept():
            run.say(f"{kept} and make no update, unless the run is continued")
        if run.state.step > self._step and self._is_unchanged():
            warn(
                f"{_counted(run.state.step - self._step, 'update')} changed no weight: look at the learning rate "
                f"({_rates(run.optimizer)} at the end), at what makes gradients 0, and at the precision of the weights"
            )
        self._check_torch_schedules()
        self._check_monitors()
        for callback in run.control.evaluated.not_begun():
            if id(callback) not in self._idle:
                warn(
                    f"{type(callback).__name__} had no effect: no weights were averaged before the run ended after "
                    f"{_counted(run.state.step, 'update')} and {_counted(run.state.epochs_done, 'epoch')}"
                )
        return reason

    def _check_torch_schedules(self) -> None:
        """Warn of a schedule of torch that was made with the optimizer and that nothing has stepped."""
        run, rates = self._run, _rates(self._run.optimizer)
        scheduled = any("initial_lr" in group for group in run.optimizer.param_groups)  # which only they set
        if scheduled and run.state.step > self._step + 1 and rates == self._rates:
            warn(
                f"a schedule of torch was made for the optimizer and had no effect: the learning rate stayed {rates}. "
                "fit steps no schedule; a callback that does is under 'Learning rate schedules' of docs/fit.md"
            )

    def _check_monitors(self) -> None:
        """Warn of callbacks that choose the best epoch by what was never a number."""
        for callback in self._run.callbacks.all:
            if (monitored := callback.monitored) is None:
                continue
            mode, _, name = monitored.metric.partition("/")
            values = [row.get(name) for row in self._run.state.history if row["mode"] == mode]
            if not any(isinstance(value, (int, float)) and not math.isnan(value) for value in values):
                warn(
                    f"{type(callback).__name__}: '{monitored.metric}' was a number after none of "
                    f"{_counted(self._run.state.epochs_done, 'epoch')}, so no epoch was chosen as the best"
                )

    def _cause(self) -> str:
        run = self._run
        if not run.state.training.samples:
            return "no mini-batch was trained on"
        skipped = sum(int(row.get("skipped_steps", 0)) for row in run.state.history if row["mode"] == Mode.TRAIN)
        if skipped:
            last = f", the last one because of this: {self.last_withheld}" if self.last_withheld else ""
            return f"{_counted(skipped, 'mini-batch', 'es')} skipped{last}"
        return run.transforms.kept() or "no mini-batch was complete"

    def _is_unchanged(self) -> bool:
        """Whether all weights have the bits that they began with, on all ranks that share them."""
        now = self._sums_of_trained()
        if self._sums is None or now is None or now.shape != self._sums.shape:
            return False
        changed = (now != self._sums).any().double().reshape(1).cpu()
        if any(is_sharded(p) for p in self._run.parameters.values()):
            own = self._run.communicator
            changed = own.all_reduce(changed.to(own.agreements)).cpu()
        return not changed.item()

    def _sums_of_trained(self) -> torch.Tensor | None:
        """Sums of the bits of what the optimizer updates; the host does not wait for a device."""
        sums = [bits_sum(local_shard(p)) for p in self._run.control.trained.values()]
        if len({one.device for one in sums}) > 1:
            sums = [one.cpu() for one in sums]
        return torch.stack(sums) if sums else None


def _least(*values: int | None) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _counted(count: int, what: str, plural: str = "s") -> str:
    return f"{count:,} {what}{plural * (count != 1)}"


def _rates(optimizer: torch.optim.Optimizer) -> str:
    rates = {f"{float(group['lr']):g}" for group in optimizer.param_groups if "lr" in group}
    return " and ".join(sorted(rates)) or "an unknown value"


# ---- compares the weights of ranks that hold copies of them, now and then, so that none drifts away unseen
#
#     16, 32, 64, ... 1,024 updates after the run began, then every 1,024, and at the end
#
# A comparison reads the weights once and sends 8 bytes for each parameter. Buffers, such as running statistics, are
# made equal by the strategy; sharded parameters have no copies. Copies that differ by rounding, as where ranks have
# different processors, are said once; more than that is an error.

_FIRST, _LONGEST = 16, 1024  # updates between two comparisons
_ROUNDING = 1e-3  # of the largest element: rounding adds up to less in millions of updates of float32


class ReplicaCheck:
    """Compares the weights of the ranks of a run.

    Args:
        run: The run.

    Attributes:
        due: At how many updates the next comparison is.
        has_copies: Whether ranks hold the same weights after each step, those that are sharded aside; None where it is
            not known, as of a strategy of a user's own, whose ranks are not compared.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._interval, self._said = run, _FIRST, False
        self.due = sys.maxsize
        ours = type(run.strategy).__module__.partition(".")[0] == __name__.partition(".")[0]
        self.has_copies: bool | None = True if ours else None

    def begin(self) -> None:
        """Plan the first comparison, where ranks hold copies and the user has not turned it off."""
        run = self._run
        if run.communicator.world_size > 1 and self.has_copies and run.config.check_ranks:
            self.due = run.state.step + _FIRST

    def compare(self) -> None:
        """Compare the weights of all ranks, and plan the next comparison. All ranks call it together.

        Raises:
            DataError: they differ by more than rounding; with the rank and the parameter.
        """
        self._interval = min(2 * self._interval, _LONGEST)
        self.due = self._run.state.step + self._interval
        copies = {name: p for name, p in self._run.control.weights.items() if name in self._run.parameters}
        copies = {name: p for name, p in copies.items() if not is_sharded(p)}
        if not copies:
            return
        communicator = self._run.communicator
        sums = torch.stack([bits_sum(p).to(communicator.device) for p in copies.values()])
        of_all = communicator.all_gather_cat(sums[None])
        if bool((of_all == of_all[:1]).all()):
            return
        differs = (of_all != of_all[:1]).any(0).tolist()
        self._report({name: p for (name, p), other in zip(copies.items(), differs, strict=True) if other})

    def end(self) -> None:
        """Compare once more, where any rank may have drifted since the last comparison."""
        if self.due < sys.maxsize:
            self.compare()

    def _report(self, copies: dict[str, torch.Tensor]) -> None:
        """Say by how much copies differ from those of rank 0.

        Raises:
            DataError: by more than rounding.
        """
        communicator, step = self._run.communicator, self._run.state.step
        of_first = [p.detach().clone() for p in copies.values()]
        communicator.broadcast(0, of_first)
        own = [_difference(p.detach(), first) for p, first in zip(copies.values(), of_first, strict=True)]
        by_rank = [dict(zip(copies, parts, strict=True)) for parts in communicator.all_gather_object(own)]
        far = {rank: [name for name, by in parts.items() if not by <= _ROUNDING] for rank, parts in enumerate(by_rank)}
        if ranks := [rank for rank, names in far.items() if names]:
            names = far[ranks[0]]
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            also = f" (and so do those of rank {', '.join(map(str, ranks[1:]))})" if ranks[1:] else ""
            raise DataError(
                f"after {step:,} updates the weights of the ranks have drifted apart: "
                f"{', '.join(map(repr, names[:_SHOWN]))}{more} of rank {ranks[0]} differ from those of rank 0{also}; "
                "look for a callback, a hook or a thread that changes weights on one rank alone, or pass "
                "check_ranks=False"
            )
        if not self._said:
            self._said = True
            most = max(max(parts.values()) for parts in by_rank)
            self._run.say(f"the weights of the ranks differ by rounding, up to {most:.1g} of the largest element")


def _difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference of two tensors as a part of their largest element; NaN where one has a NaN."""
    if not a.numel():
        return 0.0
    wide = torch.complex128 if a.is_complex() else torch.float64
    a, b = a.to(wide), b.to(wide)
    largest = torch.maximum(a.abs().max(), b.abs().max())
    same = (a == b) | (a.isnan() & b.isnan())
    if bool(same.all()):
        return 0.0
    return float(torch.where(same, torch.zeros_like(a.abs()), (a - b).abs()).max() / largest)


# ---- both


class RunChecks:
    """A check between steps, and at the end.

    Args:
        run: The run.

    Attributes:
        updates: Says which updates, weights and callbacks had no effect.
        replicas: Compares the weights of ranks that hold copies of them.
    """

    def __init__(self, run: Run) -> None:
        self.updates, self.replicas = UpdateCheck(run), ReplicaCheck(run)

    def begin(self) -> None:
        """Note where training begins."""
        self.updates.begin()
        self.replicas.begin()

    def end(self, reason: str) -> str:
        """Look once more after training; returns the reason why it ended, with what is to say of it."""
        self.replicas.end()
        return self.updates.end(reason)
