"""Docstrings of the package as reStructuredText, for the site.

Docstrings are Google style with a little Markdown: `names`, tables, fenced code, links; indented blocks are equations
or code, and paragraphs such as "Shapes: ..." are labelled. Sections (Args, Raises, ...) stay as they are, for napoleon.
"""

from __future__ import annotations

import ast
import re
import textwrap
from typing import TYPE_CHECKING

from tools.equations import is_equation, mathml

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["inline", "rst", "table"]

_SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields|Warns|Example|Examples|Note|Notes):$")
_LABEL = re.compile(r"(Shapes|Units|Source|Runs|Reads|Costs|Files|Fields):\s+(?=\S)")
_ITEM = re.compile(r"([-*] |\d+\. )")
_PIECE = re.compile(
    r"(``?)(?P<code>.+?)\1|\[(?P<text>[^\]]+)\]\((?P<target>[^)\s]+)\)|(?P<address>https?://[^\s)>,]+)", re.DOTALL
)


def rst(text: str) -> list[str]:
    """A docstring without its common indentation, as lines of reStructuredText."""
    lines: list[str] = []
    in_section = False
    for block in _blocks(text.splitlines()):
        indented = all(line.startswith("    ") or not line.strip() for line in block)
        if _SECTION.match(block[0]):
            in_section = True
            lines += [block[0], *_section(block[1:])]
        elif indented and in_section:
            lines += _section(block)
        else:
            in_section = False
            lines += _block(block, indented)
        lines.append("")
    return lines


def _blocks(lines: Sequence[str]) -> Iterator[list[str]]:
    """Parts between empty lines; fenced code is one part, and so are indented parts that follow each other."""
    block: list[str] = []
    fenced = False
    for at, line in enumerate(lines):
        fenced ^= line.strip().startswith("```")
        following = next((later for later in lines[at + 1 :] if later.strip()), "")
        inside = bool(block) and block[0].startswith("    ") and following.startswith("    ")
        if line.strip() or fenced or inside:
            if block and not fenced and line.strip() and _starts_section(line) and not block[0].startswith("```"):
                yield block
                block = []
            block.append(line)
        elif block:
            yield block
            block = []
    if block:
        yield block


def _starts_section(line: str) -> bool:
    return bool(_SECTION.match(line))


def _block(block: list[str], indented: bool) -> list[str]:
    """A part outside of sections."""
    if block[0].startswith("```"):
        return ["", f".. code-block:: {block[0][3:].strip() or 'text'}", "", *_shifted(block[1:-1]), ""]
    if block[0].startswith("|") and len(block) > 1:
        return table(block)
    if indented:
        return _verbatim("\n".join(block))
    return _paragraphs(block)


def _verbatim(text: str) -> list[str]:
    """Equations, or a program."""
    body = textwrap.dedent(text)
    if is_equation(body) and not _is_program(body):
        return [".. raw:: html", "", f"   <div class='equations'>{mathml(body)}</div>"]
    kind = "python" if _is_program(body) else "text"
    return [f".. code-block:: {kind}", "", *_shifted(body.splitlines())]


def _shifted(lines: Sequence[str]) -> list[str]:
    return [f"   {line}".rstrip() for line in lines]


def _is_program(text: str) -> bool:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return False
    return any(isinstance(node, ast.Call | ast.Import | ast.With) for node in ast.walk(tree))


def _paragraphs(block: list[str]) -> list[str]:
    """Running text; labelled paragraphs become fields, and lists get the empty line that they need."""
    lines: list[str] = []
    labelled = False
    for line in inline("\n".join(block)).splitlines():
        label = _LABEL.match(line)
        item = _ITEM.match(line)
        if label or item:
            if lines and not (labelled if label else _ITEM.match(lines[-1]) or lines[-1].startswith("  ")):
                lines.append("")
            lines.append(f":{label[1]}: {line[label.end() :]}" if label else line)
            labelled = bool(label)
        elif labelled:
            lines.append("    " + line.strip())
        else:
            lines.append(line)
    return lines


def _section(lines: Sequence[str]) -> list[str]:
    """Below a heading such as "Args:" the names before a colon stay as they are."""
    found = []
    for line in inline("\n".join(lines)).splitlines():
        found.append(re.sub(r"^(\s{4})((?:\\\*){1,2})(\w+:)", lambda m: m[1] + m[2].replace("\\", "") + m[3], line))
    return found


def table(rows: Sequence[str]) -> list[str]:
    """A table of Markdown."""
    inner = [row.strip().removeprefix("|").removesuffix("|") for row in rows if row.strip("|:- ")]
    body = [[cell.strip() for cell in re.split(r"\s\|\s", f" {row} ")] for row in inner]
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in body:
        padded = [*row, *[""] * (len(body[0]) - len(row))]
        lines += [f"   {'* -' if not at else '  -'} {inline(cell)}".rstrip() for at, cell in enumerate(padded)]
    return [*lines, ""]


def inline(text: str) -> str:
    """Text with names in backticks, links and addresses; everything else means itself."""
    parts: list[str] = []
    end = 0
    for found in _PIECE.finditer(text):
        parts.append(_escaped(text[end : found.start()]))
        before, after = text[found.start() - 1 : found.start()], text[found.end() : found.end() + 1]
        glue = "\\ " if before and (before.isalnum() or before in "/") else ""
        if found["code"] is not None:
            parts.append(f"{glue}``{' '.join(found['code'].split())}``")
        elif found["text"] is not None:
            parts.append(f"{glue}{_escaped(found['text'])}")
        else:
            parts.append(f"{glue}{found['address'].rstrip('.;:')}")
            end = found.start() + len(found["address"].rstrip(".;:"))
            continue
        if after and (after.isalnum() or after in "(_"):
            parts.append("\\ ")
        end = found.end()
    return "".join([*parts, _escaped(text[end:])])


def _escaped(text: str) -> str:
    text = text.replace("\\|", "|").replace("\\", "\\\\")
    return re.sub(r"(?<=\w)_(?!\w)|[*|`]", lambda found: "\\" + found[0], text)
