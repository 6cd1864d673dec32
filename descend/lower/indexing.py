"""Layers that pick, place, order and repeat entries."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import torch
from torch.nn import functional

from descend.errors import DataError
from descend.graph import (
    Argmax,
    Argmin,
    Crop,
    DistEmbedding,
    Embedding,
    Gather,
    InTopK,
    OneHot,
    Scatter,
    Sort,
    TensorPermute,
    Tessellate,
    UniformHash,
    Upsample,
)
from descend.lower.registry import lowers

if TYPE_CHECKING:
    from torch import Tensor

    from descend.graph import PlannedLayer
    from descend.lower.registry import Forward

__all__ = ["whole_indices"]


def whole_indices(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Indices that came as numbers, rounded down, and whether each is one of 0 to count − 1; 0 where it is not."""
    floor = x.detach().floor()
    valid = (floor >= 0) & (floor < count)  # false for NaN
    return floor.where(valid, 0).long(), valid


@lowers(Argmax)
def argmax(planned: PlannedLayer) -> Forward:
    """Place of the first largest entry."""
    return lambda x: x.detach().argmax(1, keepdim=True).to(x.dtype)


@lowers(Argmin)
def argmin(planned: PlannedLayer) -> Forward:
    """Place of the first smallest entry."""
    return lambda x: x.detach().argmin(1, keepdim=True).to(x.dtype)


@lowers(InTopK)
def in_top_k(planned: PlannedLayer) -> Forward:
    """1 at the k largest entries, at none of a sample with NaN; a stable order lets the smaller index win a tie."""
    k = cast("InTopK", planned.layer).k

    def forward(x: Tensor) -> Tensor:
        entries = x.detach().flatten(1)
        values, order = entries.sort(dim=1, descending=True, stable=True)  # NaN counts as the largest
        is_number = (values[:, :1] == values[:, :1]).to(x.dtype)
        return (
            torch.zeros_like(entries).scatter(1, order[:, :k], is_number.expand(-1, min(k, order.shape[1]))).view_as(x)
        )

    return forward


@lowers(OneHot)
def one_hot(planned: PlannedLayer) -> Forward:
    """1 at the index."""
    size = cast("OneHot", planned.layer).size

    def forward(x: Tensor) -> Tensor:
        index, valid = whole_indices(x.reshape(-1), size)
        return functional.one_hot(index, size).to(x.dtype) * valid.unsqueeze(1)

    return forward


@lowers(Sort)
def sort(planned: PlannedLayer) -> Forward:
    """In rising or falling order."""
    descending = cast("Sort", planned.layer).descending
    return lambda x: x.sort(dim=1, descending=descending, stable=True).values


@lowers(Crop)
def crop(planned: PlannedLayer) -> Forward:
    """A part of the sample, dimension after dimension."""

    def forward(x: Tensor, place: Tensor) -> Tensor:
        place = place.detach()
        if not bool(((place >= 0) & (place <= 1)).all()):
            raise DataError(f"layer '{planned.name}' (Crop): a position is outside [0, 1]; expected numbers in [0, 1]")
        for dim, size in enumerate(planned.output_shape, 1):
            free = x.shape[dim] - size
            begin = (place[:, dim - 1] * (free + 1)).long().clamp_max(free)
            x = _picked(x, dim, begin[:, None] + torch.arange(size, device=x.device))
        return x

    return forward


def _along(index: Tensor, x: Tensor, dim: int) -> Tensor:
    """A tensor (samples, size) along a dimension of x, shaped to meet x."""
    return index.view(len(index), *(1,) * (dim - 1), index.shape[1], *(1,) * (x.dim() - dim - 1))


def _picked(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """x at index (samples, size) along a dimension."""
    shape = (*x.shape[:dim], index.shape[1], *x.shape[dim + 1 :])
    return x.gather(dim, _along(index, x, dim).expand(shape))


@lowers(Gather)
def gather(planned: PlannedLayer) -> Forward:
    """Entries at indices; 0 for those out of range."""
    dim = (cast("Gather", planned.layer).axis or 0) + 1

    def forward(x: Tensor, indices: Tensor) -> Tensor:
        index, valid = whole_indices(indices, x.shape[dim])
        y = _picked(x, dim, index)
        return y.where(_along(valid, y, dim), y.new_zeros(()))  # a fraction would make fractions of integers

    return forward


@lowers(Scatter)
def scatter(planned: PlannedLayer) -> Forward:
    """Entries added at indices; those out of range are left out."""
    dim, shape = (cast("Scatter", planned.layer).axis or 0) + 1, planned.output_shape

    def forward(x: Tensor, indices: Tensor) -> Tensor:
        index, valid = whole_indices(indices, shape[dim - 1])
        kept = x.where(_along(valid, x, dim), x.new_zeros(()))
        return x.new_zeros(len(x), *shape).scatter_add(dim, _along(index, x, dim).expand_as(x), kept)

    return forward


@lowers(Tessellate)
def tessellate(planned: PlannedLayer) -> Forward:
    """Repeated in every dimension."""

    def forward(x: Tensor) -> Tensor:
        for dim, size in enumerate(planned.output_shape, 1):
            if size != x.shape[dim]:
                x = x.index_select(dim, torch.arange(size, device=x.device) % x.shape[dim])
        return x

    return forward


@lowers(TensorPermute)
def tensor_permute(planned: PlannedLayer) -> Forward:
    """The axes in another order."""
    axes = [0, *(axis + 1 for axis in cast("TensorPermute", planned.layer).axes)]
    return lambda x: x.permute(axes)


@lowers(Upsample)
def upsample(planned: PlannedLayer) -> Forward:
    """Each entry repeated."""
    factors = cast("Upsample", planned.layer).factors()

    def forward(x: Tensor) -> Tensor:
        for dim, factor in enumerate(factors, 2):
            x = x.repeat_interleave(factor, dim)
        return x

    return forward


@lowers(UniformHash)
def uniform_hashes(planned: PlannedLayer) -> Forward:
    """A number in [0, 1) from the bytes of each entry."""
    return lambda x: uniform_hash(x.detach())


# ---- layers that look vectors up in a table


@lowers(Embedding)
@lowers(DistEmbedding)
def embedding(planned: PlannedLayer) -> Forward:
    """A column of the table for each entry; zeros for an index out of range and for padding_idx."""
    layer = cast("Embedding | DistEmbedding", planned.layer)
    count, padding = layer.num_embeddings, layer.padding_idx if isinstance(layer, Embedding) else None

    def forward(x: Tensor, table: Tensor) -> Tensor:
        index, valid = whole_indices(x, count)
        if padding is not None:
            valid = valid & (index != padding)
        return functional.embedding(index, table.t()).where(valid.unsqueeze(-1), 0.0)

    return forward


# ---- MD5 of many short messages at once
#
#     for each i from 0 to 63, on words of 32 bits:
#         a, b, c, d ← d, b + ((a + F_i(b, c, d) + K_i + M[g_i]) ⋘ s_i), b, c        K_i = ⌊2³² |sin(i + 1)|⌋
#
# Source: RFC 1321, https://www.rfc-editor.org/rfc/rfc1321

_WORD = 2**32 - 1
_START = (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476)
_SINES = [int(abs(math.sin(i + 1)) * 2**32) for i in range(64)]
_TURNS = [turn for four in ((7, 12, 17, 22), (5, 9, 14, 20), (4, 11, 16, 23), (6, 10, 15, 21)) for turn in four * 4]
_ORDER = [(a * i + b) % 16 for a, b in ((1, 0), (5, 1), (3, 5), (7, 0)) for i in range(16)]


def _mixed(i: int, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    if i < 16:
        return (b & c) | (~b & d)
    if i < 32:
        return (d & b) | (~d & c)
    return b ^ c ^ d if i < 48 else c ^ (b | (~d & _WORD))


def _first_words(message: list[Tensor | int]) -> tuple[Tensor, Tensor]:
    """The first two words of the digest of one block of 16 words, each (n,) int64."""
    like = next(word for word in message if isinstance(word, torch.Tensor))
    a, b, c, d = (torch.full_like(like, word) for word in _START)
    for i in range(64):
        turned = (a + _mixed(i, b, c, d) + _SINES[i] + message[_ORDER[i]]) & _WORD
        turned = ((turned << _TURNS[i]) | (turned >> (32 - _TURNS[i]))) & _WORD
        a, b, c, d = d, (b + turned) & _WORD, b, c
    return (a + _START[0]) & _WORD, (b + _START[1]) & _WORD


def uniform_hash(x: Tensor) -> Tensor:
    """A number in [0, 1) from the digest of each entry's bytes, in the format of x."""
    size = x.element_size()
    values = x.contiguous().flatten()
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    bits = values.view(whole).long()
    # The entry's bytes, then a bit of 1, zeros, and the length in bits as a word of 64 bits: one block of 16 words.
    words: list[Tensor | int] = [bits & _WORD, (bits >> 32) & _WORD, 0x80] if size == 8 else [bits & _WORD, 0x80]
    if size == 2:
        words = [(bits & 0xFFFF) | 0x80 << 16]
    low, high = _first_words([*words, *[0] * (14 - len(words)), 8 * size, 0])
    digits = min(53, 1 - round(math.log2(torch.finfo(x.dtype).eps)))
    number = (high << 21) | (low >> 11)  # the upper 53 bits
    return ((number >> (53 - digits)).to(x.dtype) * 2.0**-digits).view_as(x)
