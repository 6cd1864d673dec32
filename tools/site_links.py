"""Checks a built site: python tools/site_links.py FOLDER

Every link and image inside leads to a file and an anchor that are there, and no page asks another host for anything.
Links to other hosts that a reader may follow are not tried. Only the standard library is used.

Exit codes: 0 all is well, 1 something is not, 2 there is no site.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["main", "problems"]

_FETCHED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"), ("video", "src")}
_NOT_FETCHED = {"canonical", "author", "license", "search", "index", "next", "prev"}  # values of a link's `rel`


class _Page(HTMLParser):
    """Anchors and addresses of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[tuple[str, bool]] = []  # address, and whether a browser fetches it by itself

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Of `HTMLParser`."""
        given = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := given.get(name))}
        for name in ("href", "src"):
            if value := given.get(name):
                fetched = (tag, name) in _FETCHED and not set((given.get("rel") or "").split()) & _NOT_FETCHED
                self.links.append((value, fetched))


def problems(folder: Path) -> list[str]:
    """What is wrong with the pages below `folder`, a line each."""
    pages: dict[Path, _Page] = {}
    for path in sorted(folder.rglob("*.html")):
        page = pages[path.resolve()] = _Page()
        page.feed(path.read_text(encoding="utf-8"))
    found: list[str] = []
    for path, page in pages.items():
        for address, fetched in page.links:
            if trouble := _trouble(path, address, fetched, pages):
                found.append(f"{path.relative_to(folder.resolve())}: {address}: {trouble}")
    return found


def _trouble(path: Path, address: str, fetched: bool, pages: dict[Path, _Page]) -> str:
    parts = urlsplit(address)
    if parts.scheme == "data":
        return ""
    if parts.scheme or parts.netloc:
        return "is fetched from another host" if fetched else ""
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_file():
        return "there is no such file"
    page = pages.get(target)
    if parts.fragment and page is not None and unquote(parts.fragment) not in page.anchors:
        return "there is no such anchor"
    return ""


def main(arguments: list[str]) -> int:
    """Print the problems of the site in a folder."""
    folder = Path(*arguments[:1])
    if len(arguments) != 1 or not (folder / "index.html").is_file():
        sys.stderr.write("usage: python tools/site_links.py FOLDER, which has an index.html\n")
        return 2
    found = problems(folder)
    sys.stdout.write("".join(f"{line}\n" for line in found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
