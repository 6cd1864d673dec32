"""gluon.Trainer's form: weights, an optimizer's name and its arguments; a step divides by the batch size.

    trainer = GluonTrainer(model.named_parameters(), "adam", {"learning_rate": 1e-3})
    loss.sum().backward()
    trainer.step(batch_size)          # or allreduce_grads(), then update(batch_size)

Gradients of several copies of a model are summed, in this process (`reduce`) and over the ranks of torch.distributed.
There is no parameter server, so `kvstore` and `update_on_kvstore` change nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from descend.compat import from_library
from descend.compat.translation import TranslatedGroup, members
from descend.errors import RuleError, StorageError, Unsupported
from descend.optim.engine import parameter_checks as ownership
from descend.optim.engine.settings import number
from descend.optim.optimizer import Optimizer

__all__ = ["GluonTrainer", "TwoBit"]

FORMAT = "descend-gluon-states-1"


@dataclass
class TwoBit:
    """MXNet's two-bit compression of one sender: −threshold, 0 or threshold is sent, the rest kept for its next step.

    Args:
        threshold: What is sent, above 0, in units of the gradient.
    """

    threshold: float = 0.5
    kept: dict[int, Tensor] = field(default_factory=dict[int, Tensor])

    def send(self, index: int, g: Tensor) -> Tensor:
        """What is sent of the gradient of tensor `index`."""
        have = g + self.kept[index] if index in self.kept else g
        sent = self.threshold * ((have >= self.threshold).to(g.dtype) - (have <= -self.threshold).to(g.dtype))
        self.kept[index] = have - sent
        return sent


def _compression(params: Mapping[str, Any] | None) -> float | None:
    if params is None:
        return None
    given: Any = params
    if not isinstance(given, Mapping) or set(given) - {"type", "threshold"}:
        raise RuleError(f"compression_params must be a dict with 'type' and perhaps 'threshold', got {given!r}")
    kind = params.get("type")
    if kind != "2bit":
        raise Unsupported(f"compression of type {kind!r}: only MXNet's '2bit' is had here")
    threshold = number(params.get("threshold", 0.5), "threshold", "compression_params")
    if not threshold > 0:
        raise RuleError(f"compression_params: threshold must be a number > 0, got {threshold!r}")
    return threshold


def _arguments(name: object, given: object) -> dict[str, Any]:
    """MXNet's arguments of an optimizer given by name."""
    if not isinstance(name, str):
        raise RuleError(f"optimizer must be MXNet's name of one, or an optimizer of descend.optim, got {name!r}")
    if given is not None and not isinstance(given, Mapping):
        raise RuleError(f"optimizer_params must be a dict of MXNet's arguments, got {given!r}")
    arguments = dict(cast("Mapping[str, Any]", given or {}))
    for key, remedy in (("batch_size", "step"), ("lr_mult", "GluonTrainer itself"), ("wd_mult", "GluonTrainer itself")):
        if key in arguments:
            raise RuleError(f"{key} is not an argument of MXNet's optimizers; give it to {remedy}")
    return arguments


def _ranks() -> int:
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


class GluonTrainer:
    """Applies an optimizer to a set of weights, as MXNet's gluon.Trainer does.

    Args:
        params: Tensors, (name, tensor) pairs, or a dict by name, which is taken in the order of its keys.
        optimizer: An MXNet name such as "adam", or an optimizer of ours.
        optimizer_params: MXNet's arguments of the optimizer; None with an optimizer of ours.
        kvstore: Accepted; there is no store.
        compression_params: {"type": "2bit", "threshold": 0.5}; it acts where there is more than one sender.
        update_on_kvstore: Accepted; there is no store.
        library: "mxnet-2.0" or "mxnet-1.9".
        lr_mult: A factor on the rate for each tensor, as gluon's Parameter.lr_mult.
        wd_mult: A factor on the decay for each tensor, as gluon's Parameter.wd_mult.

    Raises:
        RuleError: As `from_library`; or an optimizer of ours together with optimizer_params.
    """

    def __init__(
        self,
        params: Iterable[Any] | Mapping[str, Tensor],
        optimizer: str | Optimizer,
        optimizer_params: Mapping[str, Any] | None = None,
        kvstore: object = "device",
        compression_params: Mapping[str, Any] | None = None,
        update_on_kvstore: bool | None = None,
        *,
        library: str = "mxnet-2.0",
        lr_mult: Sequence[float] | Mapping[Any, float] | None = None,
        wd_mult: Sequence[float] | Mapping[Any, float] | None = None,
    ) -> None:
        if not str(library).startswith("mxnet"):
            raise RuleError(f"library must be 'mxnet-2.0' or 'mxnet-1.9', got {library!r}")
        listed = _once(params)
        if isinstance(optimizer, Optimizer):
            if optimizer_params:
                raise RuleError(
                    "optimizer_params belong to an optimizer given by name; set them on the optimizer itself"
                )
            if lr_mult is not None or wd_mult is not None:
                raise RuleError("lr_mult and wd_mult belong to an optimizer given by name; give this one groups")
            if {id(m.tensor) for m in listed} != {id(p) for group in optimizer.param_groups for p in group["params"]}:
                raise RuleError("the optimizer is over other weights than params; give both the same")
            self.optimizer = optimizer
        else:
            arguments = {"lr_mult": lr_mult, "wd_mult": wd_mult, **_arguments(optimizer, optimizer_params)}
            arguments["batch_size"] = 1
            given = [m.tensor if m.name is None else (m.name, m.tensor) for m in listed]
            self.optimizer = from_library(library, optimizer, given, **arguments)
        self._params = [m.tensor for m in listed]
        self._scales = [group["rescale_grad"] for group in self.optimizer.param_groups]
        self._threshold = _compression(compression_params)
        self._senders: list[TwoBit] = []

    # ---- the rate

    @property
    def learning_rate(self) -> float:
        """The rate as MXNet shows it: of the last update, and before any of none at all."""
        group = self.optimizer.param_groups[0]
        return group["lr"] if group["schedule"] is None else float(group["schedule"](self.optimizer.updates - 1))

    def set_learning_rate(self, lr: float) -> None:
        """Use another rate from the next update on.

        Raises:
            RuleError: A schedule decides the rate, or it is not a number of at least 0.
        """
        number(lr, "learning rate", "set_learning_rate")
        if any(group["schedule"] is not None for group in self.optimizer.param_groups):
            raise RuleError("a learning-rate schedule decides the rate of this trainer; it cannot be set by hand")
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    # ---- the step

    def step(self, batch_size: float, ignore_stale_grad: bool = False) -> None:
        """Sum the gradients over all ranks, divide by `batch_size` and update.

        Args:
            batch_size: Samples in the whole batch, all ranks together.
            ignore_stale_grad: Leave weights without a gradient as they are instead of raising.
        """
        self.allreduce_grads()
        self.update(batch_size, ignore_stale_grad)

    def allreduce_grads(self) -> None:
        """Sum the gradients over all ranks, for those who clip between this and `update`."""
        if _ranks() > 1:
            self.reduce([[p.grad for p in self._params]])

    def reduce(self, copies: Sequence[Sequence[Tensor | None]]) -> None:
        """Put the sum of the gradients of several copies of the model, on all ranks, into the weights' `grad`.

        Args:
            copies: For each copy on this rank the gradients of the weights, in their order; None for a frozen one.

        Raises:
            RuleError: There is no copy, or one has other gradients than one of its shape, or None, for each tensor.
        """
        wanted = [tuple(p.shape) for p in self._params]
        for k, given in enumerate(copies):
            shapes = [shape if g is None else _shape(g) for g, shape in zip(given, wanted, strict=False)]
            if len(given) != len(wanted) or shapes != wanted:
                raise RuleError(
                    f"reduce: copy {k} holds {len(given)} gradients of the shapes {shapes} and the weights are {wanted}"
                )
        if not copies:
            raise RuleError("reduce: there must be at least one copy")
        while len(self._senders) < len(copies) and self._threshold is not None:
            self._senders.append(TwoBit(self._threshold))
        several = len(copies) * _ranks() > 1
        for index, p in enumerate(self._params):
            grads = [copy[index] for copy in copies]
            if not p.requires_grad or any(g is None for g in grads):
                continue
            sent = [
                self._senders[k].send(index, g) if self._senders and several else g
                for k, g in enumerate(g for g in grads if g is not None)
            ]
            p.grad = torch.stack(sent).sum(0) if len(sent) > 1 else sent[0].clone()
            if _ranks() > 1:
                torch.distributed.all_reduce(p.grad)

    def update(self, batch_size: float, ignore_stale_grad: bool = False) -> None:
        """Divide by `batch_size` and update, without summing over ranks.

        Raises:
            RuleError: batch_size is not above 0, or a tensor has no gradient and ignore_stale_grad is False.
        """
        if not number(batch_size, "batch_size", "update") > 0:
            raise RuleError(f"batch_size must be a number > 0, got {batch_size!r}")
        if not isinstance(cast("object", ignore_stale_grad), bool):
            raise RuleError(f"ignore_stale_grad must be True or False, got {ignore_stale_grad!r}")
        stale = [i for i, p in enumerate(self._params) if p.requires_grad and p.grad is None]
        if stale and not ignore_stale_grad:
            raise RuleError(
                f"weights {', '.join(map(str, stale))} have no gradient since the last step; run backward, or pass "
                "ignore_stale_grad=True to leave them as they are"
            )
        for group, scale in zip(self.optimizer.param_groups, self._scales, strict=True):
            group["rescale_grad"] = scale / batch_size
            if "norm_scale" in group and scale:
                group["norm_scale"] = batch_size / scale  # LBSGD takes its norm before it rescales
        self.optimizer.step()

    # ---- saving

    def save_states(self, file: str | Path) -> None:
        """Write step counts, moments and float32 copies as safetensors, with the options as JSON in its header."""
        packed = self.optimizer.state_dict()
        tensors = {
            f"{key}.{name}": value.detach().contiguous()
            for key, entry in packed["state"].items()
            for name, value in entry.items()
        }
        header = {"format": FORMAT, "groups": json.dumps(packed["param_groups"])}
        try:
            save_file(tensors or {"none": torch.zeros(0)}, file, metadata=header)
        except (SafetensorError, OSError) as problem:
            raise StorageError(f"{file} cannot be written: {problem}") from None

    def load_states(self, file: str | Path) -> None:
        """Continue from what `save_states` wrote. The file's rate, decay and counts win over the constructor's.

        Raises:
            StorageError: The file is not one of these, or broken.
            RuleError: It is of another optimizer, of other weights or other shapes.
        """
        if not Path(file).is_file():
            raise StorageError(f"{file} does not exist")
        try:
            with safe_open(str(file), framework="pt") as held:
                header = held.metadata() or {}
                tensors = {key: held.get_tensor(key) for key in held.keys()}  # noqa: SIM118  # not a dict
        except Exception as problem:
            raise StorageError(f"{file} cannot be read as safetensors: {problem}") from None
        if header.get("format") != FORMAT:
            raise StorageError(
                f"{file} holds no trainer states: its format is {header.get('format')!r}, not {FORMAT!r}"
            )
        state: dict[int, dict[str, Tensor]] = {}
        try:
            for key, value in tensors.items():
                place, _, name = key.partition(".")
                if name:
                    state.setdefault(int(place), {})[name] = value
            groups = _tuples(json.loads(header["groups"]))
        except (KeyError, ValueError, AttributeError) as problem:
            raise StorageError(f"{file} is broken: {problem!r}") from None
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})


def _shape(g: object) -> tuple[int, ...] | str:
    return tuple(g.shape) if isinstance(g, Tensor) else type(g).__name__


def _once(params: Iterable[Any] | Mapping[str, Tensor]) -> list[TranslatedGroup]:
    """Each tensor once: shared weights are listed by every layer that has them."""
    given = sorted(params.items(), key=lambda item: item[0]) if isinstance(params, Mapping) else params
    found = members({"params": ownership.listed(given, "gluon.Trainer")}, "gluon.Trainer")
    first = {id(member.tensor): member for member in reversed(found)}
    return [member for member in found if first[id(member.tensor)] is member]


def _tuples(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """JSON has no tuples; options that are several numbers are tuples."""
    listed = ("params", "param_names")
    return [
        {key: tuple(value) if isinstance(value, list) and key not in listed else value for key, value in group.items()}
        for group in groups
    ]
