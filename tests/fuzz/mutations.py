"""Mutations of bytes and of JSON that several fuzzing scripts make."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping
    from pathlib import Path

    Mutation = Callable[[bytes, random.Random], bytes]

NUMBERS = (0, 1, -1, 2, 7, 1000, 2**31, 2**63, -(2**63), 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf"))
WORDS = ("", "x", "lr", "0", "\0", "\x1b[2J", "../x", "/etc/passwd", "\u202e", "a b", "é", "=1+1", "-inf", "x" * 3000)


def other_bytes(content: bytes, draw: random.Random) -> bytes:
    """A few bytes changed, left out, repeated, or all from some place on cut off."""
    data = bytearray(content)
    for _ in range(draw.randint(1, 6)):
        if not data:
            return b""
        place = draw.randrange(len(data))
        match draw.randrange(5):
            case 0:
                data[place] = draw.randrange(256)
            case 1:
                data[place] ^= 1 << draw.randrange(8)
            case 2:
                del data[place : place + draw.randint(1, 8)]
            case 3:
                data[place:place] = data[place : place + draw.randint(1, 16)]
            case _:
                if draw.random() < 0.2:
                    del data[place:]
    return bytes(data)


def other_value(draw: random.Random) -> Any:
    """A value of any type that JSON has, sometimes deeply nested or long."""
    match draw.randrange(9):
        case 0 | 1:
            return draw.choice(NUMBERS)
        case 2:
            return draw.choice(WORDS)
        case 3:
            return draw.choice((None, True, False))
        case 4:
            return [draw.choice(NUMBERS) for _ in range(draw.randint(0, 5))]
        case 5:
            return {draw.choice(WORDS): draw.choice(NUMBERS) for _ in range(draw.randint(0, 3))}
        case 6:
            return [[]] * draw.choice((1, 1000))
        case 7:
            return {draw.choice(WORDS): {draw.choice(WORDS): [draw.choice(NUMBERS)]}}
        case _:
            nested: Any = 1
            for _ in range(draw.choice((3, 400))):
                nested = [nested]
            return nested


def other_json(value: Any, draw: random.Random) -> Any:
    """Walk down to a random place, and put another value there, leave it out, or repeat it."""
    if not isinstance(value, (dict, list)) or not value or draw.random() < 0.08:
        return other_value(draw)
    if isinstance(value, dict):
        name = draw.choice(list(value))
        changed: Any = dict(value)
        match draw.randrange(8):
            case 0:
                del changed[name]
            case 1:
                changed[draw.choice((*WORDS, *value))] = changed[name]
            case _:
                changed[name] = other_json(value[name], draw)
        return changed
    place = draw.randrange(len(value))
    changed = list(value)
    match draw.randrange(8):
        case 0:
            del changed[place]
        case 1:
            changed.insert(place, changed[place])
        case _:
            changed[place] = other_json(value[place], draw)
    return changed


def other_json_text(text: str, draw: random.Random) -> bytes:
    """A text of JSON with one to three values changed, or else bytes of it; now and then a text deeper than any."""
    if draw.random() < 0.02:
        return b"[" * draw.choice((100, 100_000))
    if draw.random() < 0.2:
        return other_bytes(text.encode(), draw)
    value = json.loads(text)
    for _ in range(draw.choice((1, 1, 2, 3))):
        value = other_json(value, draw)
    return json.dumps(value).encode("utf-8", "surrogatepass")


def mutate_file(path: Path, draw: random.Random, mutations: Mapping[str, Mutation]) -> None:
    """Change a file by the mutation of its suffix, or remove it, or put a directory in its place.

    Args:
        path: The file.
        draw: Where choices come from.
        mutations: By suffix, beside those of `.json`; bytes of any other file are changed.
    """
    match draw.randrange(25):
        case 0:
            path.unlink()
            return
        case 1:
            path.unlink()
            path.mkdir()
            return
        case _:
            pass
    known: dict[str, Mutation] = {".json": lambda content, draw: other_json_text(content.decode(), draw), **mutations}
    path.write_bytes(known.get(path.suffix, other_bytes)(path.read_bytes(), draw))
