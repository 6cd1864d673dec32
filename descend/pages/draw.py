"""Draws Vega-Lite specifications as SVG: vl-convert, offline, in a process of its own.

The process keeps the 100 MB of its JavaScript engine, and its threads, out of the one that trains, and ends whatever
may go wrong in it. Pictures that were drawn once are remembered, so a page that is written again costs little.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import subprocess
import sys
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr

from descend.errors import DescendError, Unsupported, missing_library
from descend.terminal.display import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["MISSING", "draw", "drawn_or_nothing", "is_installed"]

MISSING = missing_library("a chart", "vl_convert")
_VERSION = "6.4"  # of Vega-Lite, which vl-convert carries in several versions
_PROGRAM = f"""
import json, sys
import vl_convert
for line in sys.stdin.buffer:
    print(json.dumps(vl_convert.vegalite_to_svg(line.decode(), vl_version="{_VERSION}")), flush=True)
"""
_REMEMBERED = 16_000_000  # characters of pictures, which have 20,000 each, and more where they have many series
_drawn: OrderedDict[bytes, str] = OrderedDict()
_using = threading.Lock()  # of the pictures that are remembered, not of drawing


def is_installed() -> bool:
    """Whether charts can be drawn."""
    return importlib.util.find_spec("vl_convert") is not None


def draw(specs: Sequence[Mapping[str, Any]], labels: Sequence[str] = (), *, seconds: float = 120.0) -> list[str]:
    """The SVG of each specification, the same text for the same one.

    Args:
        specs: Vega-Lite.
        labels: What each picture shows, for readers who do not see it.
        seconds: The longest time that drawing all of them may take.

    Raises:
        Unsupported: vl-convert is not installed, or could not draw one of them.
    """
    if not is_installed():
        raise Unsupported(MISSING)
    texts = [json.dumps(spec, sort_keys=True, allow_nan=False) for spec in specs]
    names = [hashlib.sha256(text.encode()).digest() for text in texts]
    with _using:
        found = {name: _drawn[name] for name in names if name in _drawn}
    if missing := {name: text for name, text in zip(names, texts, strict=True) if name not in found}:
        made = dict(zip(missing, _converted([*missing.values()], seconds), strict=True))
        found |= made
        _remember(made)
    return [_labelled(found[name], label) for name, label in zip(names, labels or [""] * len(names), strict=True)]


def _remember(made: Mapping[bytes, str]) -> None:
    with _using:
        _drawn.update(made)
        while sum(map(len, _drawn.values())) > _REMEMBERED:
            _drawn.popitem(last=False)


def drawn_or_nothing(
    specs: Sequence[Mapping[str, Any]], labels: Sequence[str], seconds: float = 120.0
) -> tuple[list[str], str]:
    """The same, or empty texts and the reason why there are no pictures."""
    try:
        return draw(specs, labels, seconds=seconds), ""
    except DescendError as error:
        return [""] * len(specs), str(error)


def _converted(texts: Sequence[str], seconds: float) -> list[str]:
    given = "".join(f"{text}\n" for text in texts)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            input=given.encode(),
            capture_output=True,
            timeout=seconds,
            check=False,
            start_new_session=True,  # Ctrl-C is for the process that waits, which ends this one
        )
    except subprocess.TimeoutExpired:
        raise Unsupported(f"charts were not drawn: vl-convert had not ended after {seconds:g} s") from None
    except OSError as error:
        raise Unsupported(f"charts were not drawn: {error}") from None
    lines = done.stdout.decode(errors="replace").splitlines()
    if done.returncode != 0 or len(lines) != len(texts):
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise Unsupported(f"charts were not drawn: vl-convert ended with {done.returncode}: {' '.join(last):.300}")
    return [_compact(json.loads(line), text) for line, text in zip(lines, texts, strict=True)]


def _compact(svg: str, text: str) -> str:
    """With names of its own for clip paths, of which a page has several, and without what shows nothing."""
    own = hashlib.sha256(text.encode()).hexdigest()[:10]
    svg = re.sub(r'(id="|url\(#)(clip\d+)', rf"\1c{own}-\2", svg)
    svg = svg.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "").replace(' version="1.1"', "")
    svg = re.sub(r'<path class="(?:background|foreground)" aria-hidden="true" d="(?:M0,0h0v0h0Z)?"[^>]*/>', "", svg)
    svg = re.sub(r"<text[^>]*/>", "", svg)  # labels that were left out, to keep others apart
    return re.sub(r' (?:transform|d)="[^"]*"', _rounded, svg)


def _rounded(attribute: re.Match[str]) -> str:
    """Places in hundredths of a pixel."""
    return re.sub(
        r"\d+\.\d{3,}", lambda found: f"{float(found.group()):.2f}".rstrip("0").rstrip("."), attribute.group()
    )


def _labelled(svg: str, label: str) -> str:
    """An image with a name, scaled to where it stands; Vega's own roles are for a drawing that is explored by keys."""
    attributes = f'<svg role="img" aria-label={quoteattr(printable(label))} ' if label else "<svg "
    return svg.replace("<svg ", attributes, 1)
