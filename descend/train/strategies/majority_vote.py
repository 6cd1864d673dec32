"""Majority vote, one bit an element: every rank sends the signs of its momentum, and the majority decides.

    mᵣ ← μ mᵣ + (1 − μ) gᵣ            gᵣ: the mean gradient of the samples of rank r
    v = sign(Σᵣ sign(mᵣ))             which the optimizer, SignSGD, takes for the gradient: p ← p − lr v

Signs are sent as packed bits, gathered by all ranks. sign(0) = 0, as a bit cannot say: where a rank has zeros, it adds
which blocks of 64 elements hold some, and a bit for each element of these. A tie of the ranks is 0 as well.

Source: Bernstein et al. 2018, Algorithm 3 (Signum with majority vote), https://arxiv.org/abs/1802.04434; Bernstein et
al. 2019, https://arxiv.org/abs/1810.05291.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from descend.arguments import shown
from descend.arguments.strict_keywords import StrictKeywords
from descend.errors import ConfigurationError, Unsupported
from descend.train.strategies.own_gradients import OwnGradients, OwnGradientsDescription

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.data import Batch
    from descend.runtime import Communicator
    from descend.train.run import Run

__all__ = ["MajorityVote", "MajorityVoting", "pack", "unpack"]

_BLOCK = 64  # elements; a row of zeros costs a 64th of its bits, and a single zero 8 bytes


@dataclass(frozen=True)
class MajorityVote(OwnGradientsDescription, metaclass=StrictKeywords):
    """Signum with majority vote: what several ranks send of their gradients is one bit an element.

    A strategy for `fit`; it belongs to the optimizer SignSGD. With momentum 0 it is SignSGD with majority
    vote; on one rank it is Signum.

    Args:
        momentum: μ of each rank's own running mean, in [0, 1).

    Raises:
        ConfigurationError: μ is out of range.
    """

    why_whole: ClassVar[str] = "SignSGD has no state to shard"
    has_own_weights: ClassVar[bool] = False
    WORD: ClassVar[str] = "sign"  # what the default is called

    momentum: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ConfigurationError(f"MajorityVote: momentum must be in [0, 1), got {self.momentum!r}")

    @classmethod
    def of(cls, wanted: MajorityVote | str | None) -> MajorityVote | None:
        """What a user has asked for by `gradient_compression`.

        Raises:
            ConfigurationError: it is neither "sign", a MajorityVote nor None.
        """
        if wanted is None:
            return None
        named: Any = wanted  # users pass anything
        vote = (
            named
            if isinstance(named, MajorityVote)
            else cls()
            if isinstance(named, str) and named == cls.WORD
            else None
        )
        if vote is not None:
            return vote.given_by(f"gradient_compression={shown(wanted)}")
        raise ConfigurationError(
            f"gradient_compression must be 'sign', descend.MajorityVote(momentum=0.9) or None, got {shown(wanted)}"
        )

    def create(self, world: Communicator) -> MajorityVoting:
        """See `StrategyDescription.create`."""
        return MajorityVoting(self)

    def problems(self, run: Run, world: Communicator, trainers: int) -> list[str]:
        """See `StrategyDescription.problems`."""
        rules = {type(group.get("rule")).__name__ for group in run.optimizer.param_groups}
        problems: list[str] = []
        if rules != {"SignSGD"}:
            named = ", ".join(sorted(rules - {"NoneType"})) or type(run.optimizer).__name__
            problems.append(
                f"{self.written} votes on signs, which SignSGD follows, and the optimizer is {named}: use "
                "descend.optim.SignSGD, and for Signum's momentum descend.MajorityVote(momentum=0.9)"
            )
        return problems + super().problems(run, world, trainers)


class MajorityVoting(OwnGradients):
    """The strategy that `MajorityVote` describes.

    Args:
        rule: What is voted on.

    Attributes:
        sent_bytes: What this rank has sent of votes so far.
    """

    resets_with_optimizer = True

    def __init__(self, rule: MajorityVote) -> None:
        self._rule = rule
        self._momentum: dict[str, torch.Tensor] = {}
        self.sent_bytes = 0

    def optimizer_step(self, batch: Batch) -> None:
        """See `Strategy.optimizer_step`; the optimizer takes the vote for the gradient."""
        self._vote(self.parameters)
        super().optimizer_step(batch)

    def _vote(self, weights: Mapping[str, torch.nn.Parameter]) -> None:
        """Replace gradients by the vote.

        Args:
            weights: By name; those without a gradient, which have none on any rank, take no part.

        Raises:
            Unsupported: a gradient is sparse.
        """
        voting = {name: p for name, p in weights.items() if p.grad is not None}
        if sparse := [name for name, p in voting.items() if p.grad is not None and p.grad.is_sparse]:
            raise Unsupported(f"'{sparse[0]}' has a sparse gradient, and a vote is on all elements: use sparse=False")
        if not voting:
            return
        signs = torch.cat([self._sign(name, p).reshape(-1) for name, p in voting.items()])
        sums = self._sum(signs).sign()
        for p, part in zip(voting.values(), sums.split([p.numel() for p in voting.values()]), strict=True):
            p.grad = part.to(p.dtype).view(p.shape)

    def _sign(self, name: str, p: torch.nn.Parameter) -> torch.Tensor:
        """The sign of this rank's momentum, int8."""
        assert p.grad is not None
        gradient = p.grad.detach()
        if self._rule.momentum:
            held = self._momentum.get(name)
            held = torch.zeros_like(gradient) if held is None else held
            gradient = self._momentum[name] = self._rule.momentum * held + (1 - self._rule.momentum) * gradient
        return gradient.sign().to(torch.int8)

    def _sum(self, signs: torch.Tensor) -> torch.Tensor:
        """(n,) int8 or wider, the signs of all ranks added up."""
        if self._communicator.world_size == 1:
            return signs
        packed = pack(signs)
        self.sent_bytes += packed.numel()
        total = torch.zeros(len(signs), dtype=torch.int16, device=signs.device)
        for part in self._communicator.all_gather(packed):
            total += unpack(part, len(signs))
        return total

    def own_state(self) -> dict[str, Any]:
        """The momenta of all ranks by parameters, on rank zero; (ranks, *shape) each."""
        found = {name: self._communicator.all_gather_cat(held[None]) for name, held in sorted(self._momentum.items())}
        return found if self._communicator.is_rank_zero else {name: torch.zeros(0) for name in found}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Take back this rank's momenta; where there were other ranks, the mean of theirs."""
        ranks, rank = self._communicator.world_size, self._communicator.rank
        self._momentum = {
            name: (held[rank] if len(held) == ranks else held.mean(0)).to(self._communicator.device).clone()
            for name, held in state.items()
        }


def pack(signs: torch.Tensor) -> torch.Tensor:
    """(n,) −1, 0 or 1 as bytes: the bits of what is above 0, and what of the rest is 0 where anything is."""
    zeros = signs == 0
    parts = [_bits(signs > 0)]
    if bool(zeros.any()):
        short = -len(signs) % _BLOCK
        blocks = torch.cat([zeros, zeros.new_zeros(short)]).view(-1, _BLOCK)
        some, all_ = blocks.any(1), blocks.all(1)
        parts += [_bits(some), _bits(all_), _bits(blocks[some & ~all_].reshape(-1))]
    return torch.cat(parts)


def unpack(packed: torch.Tensor, count: int) -> torch.Tensor:
    """(count,) int8, what `pack` was given."""
    first = -(-count // 8)
    signs = _flags(packed[:first], count).to(torch.int8) * 2 - 1
    rest = packed[first:]
    if len(rest):
        number = -(-count // _BLOCK)
        width = -(-number // 8)
        some, all_ = _flags(rest[:width], number), _flags(rest[width : 2 * width], number)
        blocks = all_[:, None].repeat(1, _BLOCK)
        mixed = some & ~all_
        blocks[mixed] = _flags(rest[2 * width :], int(mixed.sum()) * _BLOCK).view(-1, _BLOCK)
        signs[blocks.view(-1)[:count]] = 0
    return signs


def _powers(like: torch.Tensor) -> torch.Tensor:
    return torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=like.device)


def _bits(flags: torch.Tensor) -> torch.Tensor:
    """Truth values as bytes, eight in each; the last one is filled up with zeros."""
    whole = torch.cat([flags, flags.new_zeros(-len(flags) % 8)]).view(-1, 8)
    return (whole.to(torch.uint8) * _powers(flags)).sum(1, dtype=torch.uint8)


def _flags(packed: torch.Tensor, count: int) -> torch.Tensor:
    """The first so many truth values of bytes."""
    return ((packed[:, None] & _powers(packed)) != 0).view(-1)[:count]
