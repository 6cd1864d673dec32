"""What both releases of MXNet share: the base optimizer's arguments, multipliers, clipping and learning-rate schedules.

num_update, which MXNet's schedules are asked with, is 1 for the first update; our step is one less.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch

from descend.arguments import is_finite
from descend.compat.mxnet.schedulers import scheduler
from descend.compat.translation import TranslatedGroup, Translation, check_kinds
from descend.errors import RuleError, Unsupported, nearest, warn
from descend.optim.engine.settings import number
from descend.optim.schedules import Constant, Schedule

if TYPE_CHECKING:
    from descend.optim.rules.base import Rule

__all__ = ["EXEMPT", "Common", "needs_matrix", "recipe", "scale_of"]

ENDING = ("PolyScheduler", "CosineScheduler")  # schedules that fall until max_update
BASE_RATE = 0.01  # where the base class is given none
WITHOUT_KERNEL = ("adadelta", "adamax", "nadam", "dcasgd", "sgld")  # in 2.0
NEW = ("aggregate_num", "use_fused_step")  # arguments of 2.0
EXEMPT = ("gamma", "beta", "bias")  # endings of the names that LARS does not scale


@dataclass(frozen=True)
class LearningRate:
    """The learning rate that an optimizer of MXNet uses, from its arguments.

    Attributes:
        version: "1.9" or "2.0".
        given: learning_rate, None when it was not given.
        schedule: lr_scheduler: (class name, arguments), a schedule of ours, or None.
        begin: begin_num_update.
        base_default: Whether learning_rate=None was given, which MXNet's base class replaces by its own default, or by
            the schedule's.
    """

    version: str
    given: float | None
    schedule: Any
    begin: int
    base_default: bool

    def rate(self, default: float, *, overwrites: bool) -> float | Schedule:
        """The learning rate in force.

        Args:
            default: The constructor's default.
            overwrites: Whether a rate that was not given replaces the schedule's own, as in MXNet where the
                constructor has a default.
        """
        given = self.given
        if self.base_default:
            default, overwrites = BASE_RATE, False
        if self.schedule is None:
            return default if given is None else given
        if isinstance(self.schedule, Schedule):
            return self.schedule
        name, arguments = self._scheduler()
        if given is None and overwrites:
            warn(
                f"MXNet {self.version} lets the optimizer's default rate {default} replace the base_lr of {name}; this "
                "is copied. Give learning_rate to say which one is meant"
            )
            given = default
        if name in ENDING and self.begin >= arguments.get("max_update", math.inf):
            return self._past_the_end(name, float(arguments.get("base_lr", 0.01) if given is None else given))
        return scheduler(name, optimizer_learning_rate=given, **arguments)

    def unattached(self, default: float) -> float | Schedule:
        """The rate where MXNet's optimizer keeps its own beside that of a schedule, as Ftrl does in 1.9."""
        if self.schedule is None:
            return self.rate(default, overwrites=False)
        return replace(self, given=None).rate(default, overwrites=False)

    def _past_the_end(self, name: str, rate: float) -> Schedule:
        """MXNet's rate where a schedule is first evaluated after its end: the full one, as it remembers no decrease."""
        warn(
            f"MXNet's {name} goes back to the full rate {rate} where begin_num_update is at or past its max_update; "
            "this is copied. Give final_lr as the learning_rate, without a scheduler, to go on with what it promises"
        )
        return Constant(rate)

    def _scheduler(self) -> tuple[str, Mapping[str, Any]]:
        pair = self.schedule
        if isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[1], Mapping):
            return str(pair[0]), pair[1]
        raise RuleError(f"lr_scheduler is (class name, arguments), or a schedule of descend.optim; got {pair!r}")


@dataclass(frozen=True)
class Multipliers:
    """MXNet's factors on the learning rate and the decay of each parameter.

    Attributes:
        version: "1.9" or "2.0".
        on_rate: lr_mult: a list, or a dict by index or name.
        on_decay: wd_mult, likewise.
        all_names: param_idx2name.
        names: The same where names count; empty for gluon.Trainer, which ignores them.
    """

    version: str
    on_rate: Any
    on_decay: Any
    all_names: Mapping[int, str]
    names: Mapping[int, str]

    def name(self, index: int) -> str | None:
        """The name that param_idx2name gives to a parameter."""
        return self.names.get(index)

    def rate(self, member: TranslatedGroup) -> float:
        """The factor on a parameter's learning rate."""
        return _multiplier("lr_mult", self.on_rate, member.index, self._called(member), 1.0)

    def decay(self, member: TranslatedGroup, weight_names: tuple[str, ...]) -> float:
        """The factor on a parameter's decay; in 1.9, 0 for names without one of these endings."""
        name = self.name(member.index)
        decayed = self.version != "1.9" or name is None or name.endswith(weight_names)
        return _multiplier("wd_mult", self.on_decay, member.index, self._called(member), float(decayed))

    def _called(self, member: TranslatedGroup) -> str | None:
        name = self.name(member.index)
        return member.name if name is None else name

    def unused(self, found: Sequence[TranslatedGroup]) -> list[str]:
        """Sentences about factors that belong to no parameter."""
        return [
            problem
            for what, given in (("lr_mult", self.on_rate), ("wd_mult", self.on_decay))
            for problem in _unused(what, given, found, self.all_names.values())
        ]


@dataclass(frozen=True)
class Common:
    """The arguments of MXNet's base optimizer.

    Attributes:
        version: "1.9" or "2.0".
        learning_rate: As given; None when it was not.
        lr_scheduler: (class name, arguments), one of our schedules, or None.
        wd: Weight decay.
        rescale_grad: Factor on the gradient.
        clip_gradient: Bound on each element, after rescaling.
        param_idx2name: Names by index. In 1.9 they decide which parameters have weight decay.
        begin_num_update: Updates that count as applied before.
        multi_precision: float16 weights have a float32 copy.
        lr_mult: Factors on the learning rate: a list, or a dict by index or name.
        wd_mult: Factors on the decay, likewise.
        batch_size: Given for gluon.Trainer's form: divides the gradient; names are then ignored.
        no_rate: Whether learning_rate=None was given; MXNet's base class then takes BASE_RATE, or the schedule's own.
        reads_rate: Whether the update has a learning rate; if not, lr_mult does nothing.
    """

    version: str
    learning_rate: float | None = None
    lr_scheduler: Any = None
    wd: float = 0.0
    rescale_grad: float = 1.0
    clip_gradient: float | None = None
    param_idx2name: Mapping[int, str] | None = None
    begin_num_update: int = 0
    multi_precision: bool = False
    lr_mult: Any = None
    wd_mult: Any = None
    batch_size: float | None = None
    sym: None = None
    param_dict: None = None
    aggregate_num: int | None = None
    use_fused_step: bool | None = None
    no_rate: bool = False
    reads_rate: bool = True

    def __post_init__(self) -> None:
        if self.sym is not None or self.param_dict is not None:
            raise Unsupported("MXNet's sym and param_dict are objects of MXNet; give lr_mult and wd_mult instead")
        for name in ("learning_rate", "wd", "rescale_grad", "clip_gradient", "batch_size"):
            value = getattr(self, name)
            if not (is_finite(value) or (value is None and name not in ("wd", "rescale_grad"))):
                raise RuleError(f"{name} must be a number, got {value!r}")
        begin: Any = self.begin_num_update
        if isinstance(begin, bool) or not isinstance(begin, int) or begin < 0:
            raise RuleError(f"begin_num_update must be an integer >= 0, got {begin!r}")
        names: Any = self.param_idx2name
        if names is not None and not (
            isinstance(names, Mapping) and all(isinstance(k, Integral) and isinstance(v, str) for k, v in names.items())
        ):
            raise RuleError(f"param_idx2name must be dict[int, str], got {names!r}")
        if self.batch_size is not None and self.batch_size <= 0:
            raise RuleError(f"batch_size must be a number > 0, got {self.batch_size!r}")

    @property
    def fused(self) -> bool:
        """Whether the update is a kernel, for optimizers that have one."""
        return self.use_fused_step is not False

    @property
    def rescale(self) -> float:
        """The factor on the gradient, the batch size in it."""
        return self.rescale_grad / (self.batch_size or 1.0)

    @property
    def schedule(self) -> LearningRate:
        """The learning rate that these arguments give."""
        return LearningRate(
            self.version, self.learning_rate, self.lr_scheduler, self.begin_num_update, base_default=self.no_rate
        )

    @property
    def multipliers(self) -> Multipliers:
        """The factors of each parameter on learning rate and decay."""
        known = self.param_idx2name if self.batch_size is None else None
        return Multipliers(self.version, self.lr_mult, self.wd_mult, self.param_idx2name or {}, known or {})

    def without_rate(self) -> Common:
        """These arguments for an optimizer that reads no rate; a schedule and factors are looked at all the same."""
        self.schedule.rate(BASE_RATE, overwrites=False)
        return replace(self, learning_rate=None, lr_scheduler=None, reads_rate=False)

    def sign_alone(self) -> Common:
        """These arguments for an optimizer that takes the sign of the gradient as it comes, whatever its factor."""
        return replace(self, rescale_grad=1.0, clip_gradient=None)

    def refuse_negative_factor(self, title: str) -> None:
        """Raise Unsupported if the gradient is turned round where a norm takes the factor with its sign."""
        if self.rescale_grad < 0:
            raise Unsupported(
                f"MXNet's {title} multiplies a norm by rescale_grad {self.rescale_grad!r}, which is negative"
            )

    def bounds(self, lower: float | None, upper: float | None) -> tuple[float | None, float | None]:
        """Bounds of a norm. Kernels take 0 for none, the plain path at its word; where they cross, the upper wins."""
        if self.fused:
            lower, upper = lower or None, upper or None
        return (upper if lower is not None and upper is not None and lower > upper else lower), upper

    def refuse_decay(self, title: str) -> None:
        """Raise Unsupported if a decay is given."""
        if self.wd:
            raise Unsupported(f"MXNet's {title} refuses weight decay; wd is {self.wd!r}")

    def clip(self, *, kernel: bool) -> float | None:
        """The bound in force: kernels take 0 and less for none, the plain path takes 0 at its word.

        Raises:
            Unsupported: A negative bound on the plain path, where MXNet's clip is undefined.
        """
        bound = self.clip_gradient
        if bound is None or (kernel and bound <= 0):
            return None
        if bound < 0:
            raise Unsupported(
                f"clip_gradient {bound!r} has lower and upper bound swapped here; give None for no clipping"
            )
        return bound

    def recipe(
        self,
        rule: Rule,
        lr: float | Schedule,
        *,
        kernel: bool,
        decay: str = "coupled",
        clip_inside: bool = False,
        more_decay: float = 0.0,
        weight_names: tuple[str, ...] = ("_weight", "_gamma"),
        exempt: tuple[str, ...] = (),
        begin_state: bool = True,
        by_rows: bool = False,
        refuse: Callable[[TranslatedGroup], str | None] = lambda member: None,
    ) -> Translation:
        """The recipe of an optimizer with these common arguments.

        Args:
            rule: The rule.
            lr: The rate, from `rate`.
            kernel: Whether MXNet's update is a kernel, see `clip`.
            decay: Form of the decay, for rules that do not apply it themselves.
            clip_inside: Whether the rule clips by itself.
            more_decay: Added to the decay after its multiplier.
            weight_names: Endings of the names that 1.9 decays.
            exempt: Endings of the names that are not scaled to the layer.
            begin_state: Whether begin_num_update counts for the tensors.
            by_rows: lazy_update, for those that go by the rows of a sparse gradient.
            refuse: Why a tensor cannot be had.
        """
        bound = None if clip_inside else self.clip(kernel=kernel)
        erased = bound == 0  # MXNet then takes every gradient for 0; so does a factor of 0

        return Translation(
            rule,
            lr,
            weight_decay=self.wd + more_decay,
            decay=decay,
            rescale_grad=0.0 if erased else abs(self.rescale),
            clip_value=None if erased else bound,
            maximize=self.rescale < 0,  # the bound is the same on both sides
            begin=self.begin_num_update,
            begin_state=begin_state,
            by_rows=by_rows,
            own=lambda member: _options(self, member, more_decay, weight_names, exempt),
            refuse=lambda member: _float16_refusal(self, member) or refuse(member),
            check=self.multipliers.unused,
        )


def _options(
    common: Common, member: TranslatedGroup, more_decay: float, weight_names: tuple[str, ...], exempt: tuple[str, ...]
) -> dict[str, Any]:
    """The options of one parameter that follow from its index and name."""
    factors = common.multipliers
    name = factors.name(member.index)
    return {
        "lr_mult": factors.rate(member) if common.reads_rate else 1.0,
        "weight_decay": more_decay + common.wd * factors.decay(member, weight_names),
        "scaled": not (exempt and name is not None and name.endswith(exempt)),
    }


def _float16_refusal(common: Common, member: TranslatedGroup) -> str | None:
    if member.tensor.dtype == torch.float16 and not common.multi_precision:
        return "arithmetic in float16 throughout is not available here; MXNet's multi_precision=True is"
    return None


def needs_matrix(member: TranslatedGroup) -> str | None:
    """Why GroupAdaGrad does not take a tensor that is not a matrix."""
    shape = tuple(member.tensor.shape)
    return None if len(shape) == 2 else f"MXNet's GroupAdaGrad takes matrices only and this one is {shape}"


def scale_of(rescale: float) -> float:
    """What undoes a rescaling of the gradient's norm; 1 where there is nothing left to undo."""
    return 1.0 / abs(rescale) if rescale else 1.0


def recipe(
    version: str, table: Mapping[str, Callable[..., Translation]], name: str, kwargs: Mapping[str, Any]
) -> Translation:
    """The recipe of one optimizer of a release.

    Raises:
        RuleError: An argument is unknown to the optimizer and to MXNet's base class.
    """
    base = {f.name for f in fields(Common)} - {"version", "no_rate", "reads_rate", *(NEW if version == "1.9" else ())}
    make = table[name]
    own = [key for key in inspect.signature(make).parameters if key != "common"]
    wrong = [key for key in kwargs if key not in base and key not in own]
    if wrong:
        title, known = f"MXNet {version}'s {name}", [*own, *sorted(base)]
        raise RuleError(
            [f"{title} has no argument '{key}'{_remark(key, known)} It takes {', '.join(known)}" for key in wrong]
        )
    for key, p in inspect.signature(make).parameters.items():
        if p.default is not None and key in kwargs and kwargs[key] is None:
            raise RuleError(f"MXNet {version}'s {name}: {key} is None and must be given, or left out for {p.default!r}")
    for kind in (Common, make):
        check_kinds(f"MXNet {version}'s {name}", kind, kwargs)
    if kwargs.get("use_fused_step") and name in WITHOUT_KERNEL:
        raise RuleError(f"MXNet {version}'s {name} has no fused step; leave use_fused_step out")
    no_rate = "learning_rate" in kwargs and kwargs["learning_rate"] is None
    common = Common(version, no_rate=no_rate, **{key: value for key, value in kwargs.items() if key in base})
    return make(common, **{key: value for key, value in kwargs.items() if key in own})


def _remark(key: str, known: Sequence[str]) -> str:
    return ", which is one of the arguments of MXNet 2.0." if key in NEW else nearest(key, known) or ";"


def _multiplier(what: str, given: Any, index: int, name: str | None, default: float) -> float:
    """MXNet's order: by index, then by name."""
    if given is None:
        return default
    if isinstance(given, Mapping):
        found = given.get(index, given.get(name, default) if name is not None else default)
    elif isinstance(given, (list, tuple)) and index < len(given):
        found = given[index]
    else:
        raise RuleError(f"{what} is a factor for each tensor or a dict; got {given!r} for tensor {index}")
    return number(found, what, f"tensor {index if name is None else name}", negative=True)


def _unused(what: str, given: Any, found: Sequence[TranslatedGroup], named: Iterable[str]) -> list[str]:
    """Sentences about factors that belong to none of the tensors; `named` are the names in param_idx2name."""
    if isinstance(given, Mapping):
        names = [*named, *(m.name for m in found if m.name is not None)]
        known = {m.index for m in found} | set(names)
        return [f"{what}: no tensor is called {key!r}{nearest(str(key), names)}" for key in given if key not in known]
    if given is not None and len(given) > len(found):
        return [f"{what} holds {len(given)} factors and there are {len(found)} tensors"]
    return []
