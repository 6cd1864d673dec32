"""Draws the lineage of a tournament from `tournament.jsonl` as an SVG or HTML file.

    rows        trainers
    columns     exchanges, and the end of the run
    boxes       the model of a trainer at an exchange: its score, and its learning rates since the one before
    lines       to the next column: dashed if a trainer keeps its model, else an arrow from the model that it copies
    colours     the trainer of the first column that a model descends from

The tooltip of a box or an arrow has all scores and mutations.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from descend.arguments import shown
from descend.errors import ConfigurationError, StorageError
from descend.files import regular_file
from descend.pages.svg import NAMESPACE, document, text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["ancestors", "read", "save", "svg"]

_COLUMN, _ROW, _BOX_WIDTH, _BOX_HEIGHT, _LEFT, _TOP = 168, 62, 104, 36, 84, 56  # pixels
_COLOURS = ("#a9c8f5", "#f7dfa5", "#b5e3d3", "#f2b8b5", "#e3d3f0", "#d9dee7", "#f5c99b", "#c9e29e")
_LINE, _INK, _BAD = "#8a94a6", "#1f2733", "#b3261e"
_MAX_BYTES = 64_000_000  # of a file of rows
_FORMATS = (".svg", ".html")

Rounds = list[dict[int, dict[str, Any]]]


def read(run_dir: Path) -> Rounds:
    """The rows of a run's tournament: for each exchange, the row of each trainer by its number.

    Raises:
        StorageError: the directory has no tournament, or its file is damaged.
    """
    path = run_dir / "tournament.jsonl"
    rounds: Rounds = []
    try:
        with regular_file(path).open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES:,} bytes")
        for number, line in enumerate(content.splitlines(), 1):
            if line.strip():
                _add(rounds, line, f"line {number}: ")
        for row in (row for rows in rounds for row in rows.values()):
            if row["trainer"] not in rounds[0] or row["took"] not in (None, *rounds[0]):
                raise ValueError(
                    f"exchange {row['round']}: trainer {row['trainer']} or took {row['took']} is no trainer"
                )
    except (FileNotFoundError, NotADirectoryError):
        raise StorageError(
            f"{path} does not exist: {run_dir} is not the directory of a run with several trainers"
        ) from None
    except (OSError, ValueError) as error:
        raise StorageError(f"{path} cannot be read as the rows of a tournament: {error}") from None
    if not rounds:
        raise StorageError(f"{path} has no rows: the run has not reached its first exchange")
    return rounds


class _ExchangeRow(BaseModel):
    """A row of `tournament.jsonl`; what else it may have is not drawn."""

    model_config = ConfigDict(strict=True)

    round: int = Field(ge=0)
    trainer: int = Field(ge=0)
    step: int = Field(ge=0)
    partner: int | None = None
    took: int | None = None
    scores: dict[str, float | None]
    partner_scores: dict[str, float | None] = Field(default_factory=dict[str, float | None])
    changed: dict[str, tuple[Any, Any]] = Field(default_factory=dict[str, tuple[Any, Any]])
    rates: list[float] = Field(default_factory=list[float])  # runs of older versions did not record them


def _add(rounds: Rounds, line: bytes, where: str) -> None:
    """Add a row to the exchange that it is of.

    Raises:
        ValueError: it is none, or of an exchange that does not follow on those before it.
    """
    try:
        row = _ExchangeRow.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        message = f"{place}: {first['msg']}, got {shown(first['input'])}" if place else first["msg"]
        raise ValueError(where + message) from None
    if row.round == len(rounds):
        rounds.append({})
    if row.round != len(rounds) - 1:
        raise ValueError(f"{where}round must be {len(rounds) - 1} or {len(rounds)}, got {row.round:,}")
    rounds[-1][row.trainer] = row.model_dump()


def ancestors(rounds: Rounds) -> list[dict[int, int]]:
    """The trainer that each model descends from: before each exchange, and after the last one."""
    found = [{trainer: trainer for trainer in sorted(rounds[0])}]
    for rows in rounds:
        now = found[-1]
        found.append({t: now[t if t not in rows or rows[t]["took"] is None else rows[t]["took"]] for t in now})
    return found


def save(run_dir: Path, path: Path) -> None:
    """Write the lineage of a run's tournament to a file.

    Raises:
        ConfigurationError: the file's name ends in neither .svg nor .html.
        StorageError: there is nothing to draw, or the file cannot be written.
    """
    if path.suffix.lower() not in _FORMATS:
        raise ConfigurationError(f"{path}: the name must end in {' or '.join(_FORMATS)}")
    text = svg(read(run_dir))
    if path.suffix.lower() == ".html":
        head = f"<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'><title>{_TITLE}</title></head>"
        text = f"{head}\n<body>{text}</body></html>\n"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error}") from None


_TITLE = "Lineage of a tournament"


def svg(rounds: Rounds) -> str:
    """The picture as SVG."""
    trainers = sorted(rounds[0])
    places = {trainer: _TOP + i * _ROW for i, trainer in enumerate(trainers)}
    lines = ancestors(rounds)
    width = _LEFT + len(rounds) * _COLUMN + _BOX_WIDTH + 24
    height = _TOP + len(trainers) * _ROW + 8
    attributes = {"xmlns": NAMESPACE, "width": width, "height": height, "viewBox": f"0 0 {width} {height}"}
    parts = [
        f"<title>{_TITLE}</title>",
        f'<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
        f'<path d="M0,0 L7,3 L0,6 z" fill="{_INK}"/></marker></defs>',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    parts += [_text(8, y + _BOX_HEIGHT / 2 + 4, f"trainer {trainer}") for trainer, y in places.items()]
    heads = [f"exchange {number}" for number in range(len(rounds))] + ["final model"]
    parts += [_text(_LEFT + i * _COLUMN, _TOP - 16, head) for i, head in enumerate(heads)]
    for number, rows in enumerate(rounds):
        parts += [_move(row, number, places) for row in rows.values()]
    for column, origins in enumerate(lines):
        before = rounds[column - 1] if column else {}
        rows = rounds[column] if column < len(rounds) else {}
        parts += [
            _box(_LEFT + column * _COLUMN, places[t], _colour(origin), rows.get(t), before.get(t), origin)
            for t, origin in origins.items()
        ]
    attributes |= {"font-family": "sans-serif", "font-size": 11, "fill": _INK}
    return document(attributes, parts, "\n") + "\n"


def _colour(trainer: int) -> str:
    return _COLOURS[trainer % len(_COLOURS)]


def _text(x: float, y: float, words: str, colour: str = _INK) -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}">{text(words)}</text>'


def _move(row: Mapping[str, Any], column: int, places: Mapping[int, int]) -> str:
    """The line to a trainer's model in the next column, from its own model or the one that it copies."""
    source = row["trainer"] if row["took"] is None else row["took"]
    x, y = _LEFT + column * _COLUMN + _BOX_WIDTH, places[source] + _BOX_HEIGHT / 2
    to_x, to_y = _LEFT + (column + 1) * _COLUMN, places[row["trainer"]] + _BOX_HEIGHT / 2
    if row["took"] is None:
        return f'<line x1="{x}" y1="{y:g}" x2="{to_x}" y2="{to_y:g}" stroke="{_LINE}" stroke-dasharray="3 3"/>'
    middle = (x + to_x) / 2
    curve = f"M{x},{y:g} C{middle:g},{y:g} {middle:g},{to_y:g} {to_x},{to_y:g}"
    title = f"<title>{_events(row)}</title>"
    return f'<path d="{curve}" fill="none" stroke="{_INK}" stroke-width="1.5" marker-end="url(#tip)">{title}</path>'


def _events(row: Mapping[str, Any]) -> str:
    """The outcome of an exchange for a trainer: lines of the content of an SVG element."""
    who, others = f"trainer {row['trainer']}, exchange {row['round']}, step {row['step']}", row["partner_scores"]
    lines = [f"{who}: {_scores(row['scores'])}"]
    if row["partner"] is not None:
        lines.append(f"model of trainer {row['partner']}: {_scores(others)}")
    lines.append("keeps its own model" if row["took"] is None else f"copies the model of trainer {row['took']}")
    lines += [f"{name}: {before} → {after}" for name, (before, after) in row["changed"].items()]
    return "\n".join(map(text, lines))


def _scores(scores: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} {'nothing' if value is None else f'{value:g}'}" for name, value in scores.items())


def _rates(row: Mapping[str, Any] | None) -> str:
    """The learning rates after an exchange; runs of older versions did not record them."""
    rates = (row or {}).get("rates") or []
    if not rates:
        return ""
    return f"rate {rates[0]:.3g}" if len(rates) == 1 else f"rates {rates[0]:.3g} to {rates[-1]:.3g}"


def _box(
    x: float, y: float, colour: str, row: Mapping[str, Any] | None, before: Mapping[str, Any] | None, origin: int
) -> str:
    """A model: its score in the next exchange, and its learning rates since the one before."""
    score = next(iter(row["scores"].values()), math.nan) if row else None
    words = (
        [] if row is None or score is None else [(f"{next(iter(row['scores']), '')} {score:.4g}", math.isnan(score))]
    )
    changed = [f"{name} {_short(after)}" for name, (_, after) in (before or {}).get("changed", {}).items()]
    below = _rates(before) or ", ".join(changed)
    words += [(below, False)] if below else []
    title = _events(row) if row else text(f"trainer {before['trainer']} keeps this model to the end") if before else ""
    texts = [_text(x + 6, y + 14 + 14 * i, _fitted(line), _BAD if bad else _INK) for i, (line, bad) in enumerate(words)]
    ground = f'<rect x="{x}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="5" fill="{colour}"/>'
    return f"<g>{ground}{''.join(texts)}<title>{title}\ndescends from trainer {origin}</title></g>"


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _fitted(line: str, most: int = 17) -> str:
    return line if len(line) <= most else f"{line[: most - 1]}…"
