"""A survey of data as text for the terminal, as JSON, and as an HTML page with a contact sheet of images."""

from __future__ import annotations

import base64
import html
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from descend.data.images.pictures import png_bytes
from descend.terminal import TextTable, aligned
from descend.terminal.display import printable, shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from descend.data.reader_protocol import Array
    from descend.data.survey import FieldSummary, Problem, Survey

__all__ = ["as_html", "as_json", "as_text", "text_parts"]

_ENTRIES = 16  # of an array that are shown
_CLASSES = 50  # that are listed
_TEXT = 200  # characters
_IMAGE_SIDE = 128  # pixels in the contact sheet
_HEADS = ("field", "shape", "type", "count", "missing", "minimum", "maximum", "mean", "std", "values")
_STYLE = """
:root { color-scheme: light dark; --text: #222; --back: #fff; --line: #ddd; --head: #f4f4f4; --bar: #0072b2; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e6e6; --back: #16191d; --line: #3a4048; --head: #23282e; --bar: #5aa9e6; }
}
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
body { color: var(--text); background: var(--back); overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; overflow-wrap: normal; }
th, td { border: 1px solid var(--line); padding: 3px 8px; text-align: left; }
th { background: var(--head); }
.wide td:last-child { min-width: 7rem; }
h2 { margin-top: 2rem; }
figure { display: inline-block; margin: 4px; font-size: 12px; }
figure img { image-rendering: pixelated; min-width: 96px; display: block; }
pre { white-space: pre-wrap; background: var(--head); }
.bar { background: var(--bar); height: 10px; display: inline-block; }
.problem { border-left: 5px solid #e69f00; padding-left: 1rem; }
"""


# ---- values


def _plain(value: Any) -> Any:
    """A value as JSON has it: numbers that are not finite are null, long arrays their shape and range."""
    if isinstance(value, np.ndarray):
        if value.size > _ENTRIES:
            numbers = value.dtype.kind in "iubf"
            range_of = {"minimum": _plain(value.min()), "maximum": _plain(value.max())} if numbers else {}
            return {"shape": list(value.shape), **range_of}
        return [_plain(one) for one in value]
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return str(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return shortened(value, _TEXT) if isinstance(value, str) else value


def _shown(value: Any) -> str:
    value = _plain(value)
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else printable(str(value))


def _in_sample(name: str, value: Any, found: Survey) -> str:
    """A value of a sample: the name of a class, the shape and range of a long array."""
    plain = _plain(value)
    if isinstance(plain, dict):
        made: dict[str, Any] = plain
        ends = f", {_shown(made['minimum'])} to {_shown(made['maximum'])}" if "minimum" in made else ""
        return " x ".join(map(str, made["shape"])) + ends
    classes = next(iter(found.fields.values()))[name].classes
    return printable(classes[plain]) if type(plain) is int and 0 <= plain < len(classes) else _shown(value)


def _balance(one: FieldSummary) -> list[tuple[str, int]]:
    """The values of a field that has few, with their numbers; classes by their names."""
    if one.values is None or len(one.values) > _CLASSES or not one.values:
        return []
    named = dict(enumerate(one.classes))
    return [
        (printable(shortened(str(named.get(value, value)), _TEXT)), count)
        for value, count in sorted(one.values.items())
    ]


def _field_as_json(one: FieldSummary) -> dict[str, Any]:
    balance = _balance(one)
    return {
        "shape": list(one.shape),
        "dtype": "str" if one.dtype.kind == "U" else str(one.dtype),
        "count": one.count,
        "missing": one.missing,
        "infinite": one.infinite,
        "minimum": _plain(one.minimum),
        "maximum": _plain(one.maximum),
        "mean": _plain(one.mean),
        "deviation": _plain(one.deviation),
        **({"values": dict(balance)} if balance else {}),
        **({"classes": list(one.classes)} if one.classes else {}),
    }


def _problem_as_json(one: Problem) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "message": one.message,
        "role": one.role,
        "field": one.field or None,
        "samples": list(one.samples),
        "count": one.count,
    }


def as_json(found: Survey) -> dict[str, Any]:
    """A survey as what `json.dumps(allow_nan=False)` takes.

    Returns:
        `format`, `counts` and `read` by role, `samples_per_second` and `transformed_per_second`; `fields` by name, of
        the first role, and `roles` with those of each; `samples`, the first ones with their values; `problems`;
        `left_out` and `notes`.
    """
    roles = {role: {n: _field_as_json(one) for n, one in of.items()} for role, of in found.fields.items()}
    texts = [{"text": shortened(text, 10 * _TEXT)} for text in found.texts]
    samples = [{name: _plain(value) for name, value in sample.items()} for sample in found.samples]
    if texts:
        samples = [{**sample, **text} for sample, text in zip(samples, texts, strict=False)]
    return {
        "format": found.format,
        "counts": found.counts,
        "read": found.read,
        "samples_per_second": found.speed,
        "transformed_per_second": found.transformed_speed,
        "fields": next(iter(roles.values())),
        "roles": roles,
        "samples": samples,
        "problems": [_problem_as_json(one) for one in found.problems],
        "left_out": dict(found.left_out),
        "notes": list(found.notes),
    }


# ---- text


def _row(name: str, one: FieldSummary) -> list[str]:
    shape = " x ".join(map(str, one.shape)) or "-"
    numbers = [_shown(number) for number in (one.minimum, one.maximum, one.mean, one.deviation)]
    if one.dtype.kind == "U":  # of text they are lengths
        numbers = [number if number == "-" else f"{number} chars" for number in numbers]
    balance = _balance(one)
    values = ", ".join(f"{value}: {count:,}" for value, count in balance[:6]) + (", ..." if len(balance) > 6 else "")
    return [
        printable(name),
        shape,
        "text" if one.dtype.kind == "U" else str(one.dtype),
        f"{one.count:,}",
        f"{one.missing:,}",
        *numbers,
        values,
    ]


def _head(found: Survey) -> str:
    counts = ", ".join(f"{role} {count:,}" for role, count in found.counts.items())
    part = "" if found.read == found.counts else f" ({sum(found.read.values()):,} of them read)"
    speed = f", {found.speed:,.0f} samples a second" if found.speed else ""
    speed += f", {found.transformed_speed:,.0f} with transforms" if found.transformed_speed else ""
    return f"{found.format}: {counts} samples{part}{speed}"


def as_text(found: Survey) -> str:
    """A survey as plain text."""
    lines: list[str] = []
    for part in text_parts(found):
        lines += aligned(part) if isinstance(part, TextTable) else [part]
    return "\n".join(lines)


def text_parts(found: Survey) -> list[str | TextTable]:
    """The same as lines, and a table of the fields of each role."""
    lines: list[str | TextTable] = [_head(found)]
    for role, fields in found.fields.items():
        lines += ["", *([role] if len(found.fields) > 1 else [])]
        lines.append(TextTable([_HEADS, *(_row(name, one) for name, one in fields.items())]))
    lines += ["", *map(printable, found.notes)]
    lines += [*(f"left out: '{printable(name)}': {printable(why)}" for name, why in found.left_out.items())]
    for number, text in enumerate(found.texts[:3]):
        lines.append(f"sample {number}: {printable(shortened(text, _TEXT))}")
    if not found.texts:
        for number, sample in enumerate(found.samples[:3]):
            values = ", ".join(f"{printable(name)}={_in_sample(name, value, found)}" for name, value in sample.items())
            lines.append(f"sample {number}: {shortened(values, 2 * _TEXT)}")
    return [*lines, "", *_problem_lines(found)]


def _problem_lines(found: Survey) -> list[str]:
    if not found.problems:
        return ["no problems were found"]
    return [f"{len(found.problems)} problems:"] + [
        f"  {one.kind} ({one.role}): {printable(shortened(one.message))}" for one in found.problems
    ]


# ---- HTML


def as_html(found: Survey, title: str) -> str:
    """A survey as a page that needs nothing else."""
    parts = [f"<h1>{_escaped(title)}</h1>", f"<p>{_escaped(_head(found))}</p>", *_sheet(found)]
    for role, fields in found.fields.items():
        parts.append(f"<h2>{_escaped(role)}</h2>")
        parts.append(_table(_HEADS, [_row(name, one) for name, one in fields.items()]))
        parts += [_bars(name, _balance(one)) for name, one in fields.items() if _balance(one)]
    parts.append("<h2>Problems</h2>")
    parts += [f'<p class="problem">{_escaped(line.strip())}</p>' for line in _problem_lines(found)]
    parts += [f"<p>left out: {_escaped(name)}: {_escaped(why)}</p>" for name, why in found.left_out.items()]
    parts += [f"<p>{_escaped(note)}</p>" for note in found.notes]
    parts.append("<h2>Samples</h2>")
    parts += [f"<pre>{_escaped(text, keep=chr(10))}</pre>" for text in found.texts]
    names = list(found.samples[0]) if found.samples else []
    if names and not found.texts:
        parts.append(
            _table(names, [[_in_sample(name, sample[name], found) for name in names] for sample in found.samples])
        )
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head = f'<meta charset="utf-8">{view}<title>{_escaped(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>'


def _escaped(text: str, keep: str = "") -> str:
    return html.escape(printable(text, keep))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(f"<th>{_escaped(head)}</th>" for head in heads)
    lines = ["<tr>" + "".join(f"<td>{_escaped(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return f'<div class="wide" tabindex="0"><table><tr>{cells}</tr>{"".join(lines)}</table></div>'


def _bars(name: str, balance: Sequence[tuple[str, int]]) -> str:
    largest = max(count for _, count in balance)
    rows = [
        f"<tr><td>{_escaped(value)}</td><td>{count:,}</td>"
        f'<td><span class="bar" style="width: {200 * count // largest}px"></span></td></tr>'
        for value, count in balance
    ]
    return f"<h3>{_escaped(name)}</h3><table>{''.join(rows)}</table>"


def _sheet(found: Survey) -> Iterator[str]:
    """The images among the first samples."""
    for number, sample in enumerate(found.samples):
        for name, value in sample.items():
            if (pixels := _pixels(name, value, found)) is None:
                continue
            content = base64.b64encode(png_bytes(pixels)).decode()
            label = ", ".join(f"{n}={_in_sample(n, v, found)}" for n, v in sample.items() if np.ndim(v) == 0)
            image = f'<img alt="" src="data:image/png;base64,{content}">'
            yield f"<figure>{image}<figcaption>{number}: {_escaped(shortened(label, 100))}</figcaption></figure>"


def _pixels(name: str, value: Array, found: Survey) -> Any:
    """An image (height, width) or (height, width, 3) of at most `_IMAGE_SIDE` a side; None for what is none."""
    shape = np.shape(value)
    is_plane = len(shape) == 2 and value.dtype == np.uint8 and min(shape) > 3
    if not is_plane and (name not in found.pixels or len(shape) != 3 or shape[0] not in (1, 3, 4)):
        return None
    planes = value[None] if is_plane else value
    step = -(-max(planes.shape[1:]) // _IMAGE_SIDE)
    planes = planes[:3, ::step, ::step]  # without transparency
    if planes.dtype != np.uint8:
        planes = (planes / np.iinfo(planes.dtype).max * 255).astype(np.uint8)
    return np.ascontiguousarray(planes[0] if len(planes) == 1 else planes.transpose(1, 2, 0))
