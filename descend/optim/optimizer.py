"""Every rule as a `torch.optim.Optimizer`.

    opt = descend.optim.Adam(model.named_parameters(), lr=1e-3)      # one line changes in a torch script
    loss.backward(); opt.step(); opt.zero_grad()

A step, in order:

    groups      which parameters the groups hold             engine/parameter_checks.py
    settings    the options of each group, checked          engine/settings.py
    updates     parameters with a gradient, not frozen      engine/step_inputs.py
    finite      no NaN or infinity in any gradient          engine/finite.py
    update      the rule, in the way of its kind            engine/plain.py, and engine/ways.py for speed
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import torch

from descend.arguments import check_choice, require
from descend.errors import RuleError, warn
from descend.optim.engine import finite, parameter_checks, step_inputs
from descend.optim.engine import state_dict as saved
from descend.optim.engine.arena_manager import RUNNERS, ArenaManager
from descend.optim.engine.evaluation import EvaluationMode, averages, averaging_updates
from descend.optim.engine.finite import update_on_device
from descend.optim.engine.parameter_checks import GroupTracker
from descend.optim.engine.settings import (
    COMMON_KEYS,
    OPTIONS,
    GroupSettings,
    GroupSettingsReader,
    Schedule,
    constants,
    resolve,
    unread_keys,
)
from descend.optim.engine.state import State
from descend.optim.engine.ways import update_outside
from descend.optim.rule_check import check_rule
from descend.optim.rules.base import Rule
from descend.torch_private import dynamo_is_imported, mark_outside_graphs, plain_state_dict, step_is_observed

if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["Optimizer"]

Params = Iterable[Any]
OnNonfinite = Literal["raise", "skip", "allow"]


def _outside_graphs(method: Callable[..., Any]) -> Callable[..., Any]:
    """Keep torch.compile, where it is used around the loop, from tracing into `method`.

    Only such a loop has imported torch._dynamo; importing it always would cost two seconds.
    """

    reason = "descend's optimizers bring compiled kernels of their own; leave the step out of whole graphs"
    disabled = functools.cache(lambda: torch.compiler.disable(method, reason=reason))

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if dynamo_is_imported():
            return disabled()(*args, **kwargs)
        return method(*args, **kwargs)

    mark_outside_graphs(call, reason)
    return call


def _outside_inference_mode(method: Callable[..., Any]) -> Callable[..., Any]:
    """Leave inference mode within `method`: tensors made there can be neither written nor saved outside of it."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(mode=False):
                return method(*args, **kwargs)
        return method(*args, **kwargs)

    return call


def _with_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's wrapper around an optimizer's step, entered where there are hooks or a profiler.

    It opens a profiler's record at each step, which takes as long as updating a small net.
    """
    wrapped = torch.optim.Optimizer.profile_hook_step(step)

    @functools.wraps(step)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (wrapped if step_is_observed(self) else step)(self, *args, **kwargs)

    cast("Any", call).hooked = True  # torch's own mark: it does not wrap this again
    return call


class Optimizer(torch.optim.Optimizer):
    """Applies a rule to weights, in any torch loop.

    Args:
        params: Tensors, `(name, tensor)` pairs as from `named_parameters()`, or groups: dicts with "params" and any
            of the options below, of the rule's fields, or a "rule" of their own.
        rule: The rule of every group that names none.
        lr: Rate in units of the rule, or a schedule: a function from the number of updates applied so far to the rate.
            While a schedule decides, another rate in the group is an error; but 0 holds as long as it is there.
        weight_decay: λ, at least 0.
        decay: "coupled" (g ← clip(r g) + λ p), "clipped" (g ← clip(r g + λ p)) or "decoupled" (p ← p − lr λ p first);
            None means coupled. A rule whose equations hold λ (LAMB, LARS, AdamW, ...) applies it as they say, and takes
            no other form.
        rescale_grad: r, a factor on every gradient.
        clip_value: Bound on the magnitude of each element of the gradient; None means none.
        maximize: Ascend instead of descend.
        lr_mult: Factor on the rate, also on a scheduled one; useful in groups.
        scaled: Whether layer-wise scaling (LARS, LAMB) applies; useful in groups.
        runner: "auto", "compiled", "blocks" or "plain". "plain" updates one tensor at a time, the meaning of an update;
            "blocks" all together, without a compiler; "compiled" by compiled kernels from the first step on, for which
            it waits where the cache has none. "auto" begins as "blocks" and goes over to compiled kernels when they
            are there, at a time that no seed decides. On a CPU the two agree to the last bit for every rule here, so a
            run repeats; rules of one's own that take exponentials, logarithms or powers may differ by rounding, as all
            may on CUDA, and there "blocks" and "compiled" repeat. Rules with means over rows and columns (Adafactor)
            run as "plain" under "blocks", and the first step of "auto" waits for their kernel.
        on_nonfinite: What a NaN or an infinity in a gradient does before anything changed: "raise" a NumericalError,
            "skip" the step and count it in `skipped`, or "allow" it without a check. On a GPU compiled kernels find it
            out there and change nothing; the host waits for no answer, and raises or counts when the next step begins.
        seed: Start of the noise, for rules that draw any.

    Attributes:
        updates: Steps applied so far; schedules are read at this number.
        skipped: Steps left out because of a non-finite gradient.

    Raises:
        RuleError: No weights; the same weights twice; weights that cannot be trained (integer, complex, overlapping
            memory); an option that is unknown or out of range.
    """

    rule_class: ClassVar[type[Rule] | None] = None

    def __init__(
        self,
        params: Params,
        rule: Rule,
        *,
        lr: float | Schedule,
        weight_decay: float = 0.0,
        decay: str | None = None,
        rescale_grad: float = 1.0,
        clip_value: float | None = None,
        maximize: bool = False,
        lr_mult: float = 1.0,
        scaled: bool = True,
        runner: str = "auto",
        on_nonfinite: OnNonfinite = "raise",
        seed: int = 0,
    ) -> None:
        self.title = type(self).__name__ if type(self) is not Optimizer else type(rule).__name__
        self.runner = _one_of(runner, RUNNERS, "runner", self.title)
        self.on_nonfinite = _one_of(on_nonfinite, finite.POLICIES, "on_nonfinite", self.title)
        self.seed = seed
        self.updates = 0
        self.skipped = 0
        self._decay_given = decay is not None
        self._make_parts()
        given = {
            "lr": lr,
            "weight_decay": weight_decay,
            "decay": "coupled" if decay is None else decay,
            "rescale_grad": rescale_grad,
            "clip_value": clip_value,
            "maximize": maximize,
            "lr_mult": lr_mult,
            "scaled": scaled,
        }
        listed = parameter_checks.listed(params, self.title)
        with torch.no_grad(), self._groups.adding_many():
            super().__init__(listed, {**given, **constants(rule), "rule": rule})
        self._groups.check_added(self.param_groups)

    def _make_parts(self, names: Sequence[list[str]] = ()) -> None:
        self._evaluation = EvaluationMode()
        self._arenas = ArenaManager(self.runner)
        common = {name: getattr(self, name) for name in sorted(COMMON_KEYS)}
        self._groups = GroupTracker(self.title, GroupSettingsReader(self.title, common), names)

    # ---- groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters with options of its own.

        Args:
            param_group: `{"params": ..., "lr": ..., "rule": ..., ...}`; what it leaves out is as for the optimizer.

        Raises:
            RuleError: As for the optimizer. Nothing is added then.
        """
        i = len(self.param_groups)
        where = f"{self.title}, group {i}"
        group = parameter_checks.unpack(param_group, where)
        rule = group.get("rule", self.defaults["rule"])
        if isinstance(rule, Rule) and "decay" in rule.needs and ("rule" in group or not self._decay_given):
            group.setdefault("decay", rule.default_decay)
        for name in ("rule", *OPTIONS):
            group.setdefault(name, self.defaults[name])
        if isinstance(group["rule"], Rule):
            for name, value in constants(group["rule"]).items():
                group.setdefault(name, value)
        group["schedule"] = group["lr"] if callable(group["lr"]) else group.get("schedule")
        if group["schedule"] is not None:
            self._groups.settings.start_schedule(i, group, self.updates)
        self._groups.settings.check_common(group, where)
        rule = resolve(group, where).rule
        check_rule(rule)
        for key in unread_keys(group, rule):
            warn(f"{where}: nothing here reads {key!r}; that is right if a wrapper keeps it there")
        self._groups.check_added([*self.param_groups, group])
        if not group["params"]:
            warn(f"{where} holds no weights")
        saved.write_counters(self, [group], evaluating=False)
        self.param_groups.append(group)

    @property
    def is_compiled(self) -> bool:
        """Whether compiled kernels update the parameters by now, all that can be updated so."""
        return self._arenas.is_compiled

    def regrouped(self) -> None:
        """Call this after splitting or joining groups in `param_groups`; parameters and state stay as they are."""
        self._groups.rename(self.param_groups)
        self._arenas.clear()

    def begin_at(self, updates: int) -> None:
        """Count so many updates as applied: schedules go on from there. Step counts of parameters stay as they are.

        Args:
            updates: At least 0.
        """
        self.settle()
        self.updates = updates
        self._groups.settings.forget_schedules()
        self._groups.settings.read(self.param_groups, updates)

    # ---- the step

    @_with_hooks
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Apply one update to all parameters that have a gradient.

        Args:
            closure: Computes the loss again with gradients, as torch has it.

        Returns:
            What the closure returned, or None.

        Raises:
            NumericalError: A gradient is not finite and `on_nonfinite` is "raise". Nothing has changed. On a GPU, where
                compiled kernels check, it is raised by the next step or by `settle`; weights are untouched until then.
            RuleError: A group was given a wrong value since the last step. Nothing has changed.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._update()
        return loss

    # GradScaler then leaves gradients scaled, fp16 ones too, and says so by `grad_scale` and `found_inf`.
    _step_supports_amp_scaling = True

    @_outside_graphs
    @_outside_inference_mode
    def _update(self) -> None:
        self._evaluation.require_training(self.title, "a step")
        self.settle()
        arenas = self._arenas
        if not self._groups.follow(self.param_groups, arenas.scanner):
            self._groups.remember(self.param_groups)
            arenas.clear()
        settings = self._groups.settings.read(self.param_groups, self.updates)
        state = self.state = self.state if isinstance(self.state, State) else State(self.state)
        found_inf = getattr(self, "found_inf", None)  # from torch's GradScaler, which has checked the gradients
        try:
            if update_on_device(self, arenas, settings, state, self._groups.meshes):
                state.changes.seen = True
                self.updates += not arenas.is_recorded
                return
            settings = _unscaled(self, settings)
            active = arenas.begin_step(settings, state)
            outside = arenas.others(self.param_groups, settings, self._groups.names, state)
            arenas.refuse_capture(outside)
            if found_inf is not None:
                skip = bool(found_inf)
            elif self.on_nonfinite == "allow":
                skip = False
            else:
                every = functools.partial(
                    step_inputs.tasks_of, self.param_groups, settings, self._groups.names, self.state
                )
                bad = finite.offenders(outside, [*active, *arenas.matrices], self._groups.meshes, every)
                if bad and self.on_nonfinite == "raise":
                    raise finite.nonfinite_gradients(f"step {self.updates + 1} of {self.title}", bad)
                skip = bool(bad)
            if skip:
                self.skipped += 1
                return
            active += update_outside(arenas, outside, settings, self._groups.lists, self.seed)
            arenas.step(active, settings, self.seed)
            state.changes.seen = True
            self.updates += 1
        finally:
            arenas.end_step()

    @_outside_inference_mode
    def settle(self) -> None:
        """Bring `updates`, `skipped` and step counts up to date with a GPU, and raise what its last step has found.

        On a GPU compiled kernels check the gradients there: a step whose gradients are not finite changes nothing,
        and the host learns of it when the next step begins, or here. `state_dict()` calls this.

        Raises:
            NumericalError: A gradient of the last step was not finite and `on_nonfinite` is "raise". That step has
                changed nothing.
        """
        report, self._arenas.report = self._arenas.report, None
        if not self._arenas.is_capturing:  # while a CUDA graph is captured nothing may wait for the device
            self.updates += self._arenas.catch_up()
        if report is None or report.applied():
            return
        self.updates -= 1
        if self.on_nonfinite == "raise" and not report.scaled:
            raise finite.nonfinite_gradients(f"step {self.updates + 1} of {self.title}", report.offenders())
        self.skipped += 1

    # ---- what is evaluated

    @contextlib.contextmanager
    def averaged(self) -> Generator[None]:
        """Within `with optimizer.averaged():` the parameters are those to evaluate and to export.

        Schedule-free rules train at another point than the average that they are about; afterwards, also after an
        error, the parameters are the same bits as before. For other rules, and for parameters that were not updated
        yet, nothing changes. Inside another such block, or after `eval()`, this one does nothing.

        Raises:
            RuleError: A step is taken, or a state loaded, within the block.
        """
        if self._evaluation.in_block or self._evaluation.is_on:
            yield
            return
        with self._evaluation.block(_averaging_updates(self, self._groups, self._arenas)):
            yield

    @_outside_inference_mode
    def eval(self) -> None:
        """Exchange the parameters for those to evaluate and to export, until `train()`.

        As `averaged()`, for loops that call the optimizer's `eval()` and `train()` beside the model's, such as those
        of Hugging Face's Trainer. For rules that evaluate what they train, and when called again, it does nothing. A
        `state_dict()` of this mode holds the training point too, and an optimizer that loads it is in this mode.
        """
        mode = self._evaluation
        if mode.in_block or mode.is_on:
            return
        if any(averages(settings.rule) for settings in self._groups.settings.read(self.param_groups, self.updates)):
            mode.turn_on(_averaging_updates(self, self._groups, self._arenas))

    @_outside_inference_mode
    def train(self) -> None:
        """Put the point of training back that `eval()` replaced, to the same bits; otherwise do nothing.

        Parameters that were written between `eval()` and `train()`, as by `load_state_dict`, keep what was written,
        with a warning.

        Raises:
            RuleError: Within `averaged()`.
        """
        if self._evaluation.is_on:
            self._evaluation.turn_off(_averaging_updates(self, self._groups, self._arenas), self.title)
        self._evaluation.require_training(self.title, "train()")

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on beside the parameters, in torch's structure.

        `state` holds the step count, the rule's entries and float32 masters by number of the parameter, after `eval()`
        also its training point; `param_groups` the options, the numbers, the names where they were given, the rule by
        name, `updates`, `skipped` and `seed` (the noise is a function of seed, name and step count). Schedules are
        functions and are not saved.
        """
        self.settle()
        held = self.state
        saved.write_counters(self, self.param_groups, evaluating=bool(self._evaluation.trained))
        try:
            self.state = saved.saved_state(held, self.param_groups, self._evaluation.trained)
            return saved.pack(self, plain_state_dict(self))
        finally:
            self.state = held

    @_outside_inference_mode
    def load_state_dict(self, state_dict: Mapping[str, Any], *, strict: bool = True) -> None:
        """Continue from a saved state. Where both sides have names, state follows the name, else the position.

        Args:
            state_dict: What `state_dict()` returned.
            strict: Whether names that are missing or extra are refused; with False their parameters start over.

        Raises:
            RuleError: The state is of another rule, of other parameters or other shapes; the message is a table of
                parameters, expected and found. Nothing was copied then.
        """
        self._evaluation.require_training(self.title, "load_state_dict")
        self._arenas.report = None
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = hook(self, cast("dict[str, Any]", state_dict)) or state_dict
        self._groups.follow(self.param_groups, self._arenas.scanner)
        self._evaluation.resume(saved.load(self, state_dict, self._groups.names, strict=strict))
        self._groups.names = [
            group.get("param_names", known) for group, known in zip(self.param_groups, self._groups.names, strict=True)
        ]
        saved.write_counters(self, self.param_groups, evaluating=bool(self._evaluation.trained))
        self._groups.settings.forget_schedules()
        self._arenas.clear()
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    @_outside_inference_mode
    def load_torch_state(self, state_dict: Mapping[str, Any]) -> None:
        """Take over the moments and step counts of torch's own optimizer of the same rule (SGD, Adam, AdamW, ...).

        Options such as lr stay as they are here.

        Raises:
            RuleError: The state does not hold what this rule needs, or has other shapes. Nothing was copied then.
        """
        self._evaluation.require_training(self.title, "load_torch_state")
        self._arenas.report = None
        self._groups.follow(self.param_groups, self._arenas.scanner)
        saved.load_torch(self, state_dict, self._groups.names)
        self._arenas.clear()

    def __getstate__(self) -> dict[str, Any]:
        self.settle()
        own = ("title", "runner", "on_nonfinite", "seed", "updates", "skipped", "_decay_given")
        held = {**super().__getstate__(), **{name: getattr(self, name) for name in own}}
        return {**held, "names": self._groups.names, "trained": self._evaluation.trained}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({key: value for key, value in state.items() if key not in ("names", "trained")})
        self._make_parts(state.get("names", ()))
        self._evaluation.resume(state.get("trained", {}))


def _unscaled(optimizer: Optimizer, settings: list[GroupSettings]) -> list[GroupSettings]:
    """The settings with torch's GradScaler's factor taken out of the gradients, where one calls this step."""
    scale = getattr(optimizer, "grad_scale", None)
    return settings if scale is None else [s.rescaled(1.0 / float(scale)) for s in settings]


def _averaging_updates(
    optimizer: Optimizer, tracker: GroupTracker, arenas: ArenaManager
) -> list[step_inputs.TensorUpdate]:
    tracker.follow(optimizer.param_groups, arenas.scanner)
    settings = tracker.settings.read(optimizer.param_groups, optimizer.updates)
    return averaging_updates(optimizer.param_groups, settings, tracker.names, optimizer.state)


def _one_of(value: str, options: Sequence[str], name: str, title: str) -> Any:
    require(check_choice(name, value, options), where=title, error=RuleError)
    return value
