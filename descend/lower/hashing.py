"""MD5 of many short messages at once.

    for each i from 0 to 63, on words of 32 bits:
        a, b, c, d ← d, b + ((a + F_i(b, c, d) + K_i + M[g_i]) ⋘ s_i), b, c        K_i = ⌊2³² |sin(i + 1)|⌋

Source: RFC 1321, https://www.rfc-editor.org/rfc/rfc1321
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["uniform_hash"]

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
