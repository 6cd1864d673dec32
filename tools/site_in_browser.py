"""Looks at a built site in a browser: python tools/site_in_browser.py FOLDER

The main pages at 1280 and 390 pixels, light and dark: no error on the console, no request to another host, no page
wider than the window, nothing that axe-core calls serious or critical; the search finds a word without a network.
`make docs-look` runs it; without playwright, axe or a Chromium it says so and ends.

Exit codes: 0 all is well or nothing to look with, 1 something is not well.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["look", "main"]

PAGES = (
    "index",
    "tutorials/ten_minutes",
    "how-to/run_page",
    "how-to/diagnose_nan",
    "explanation/fair_comparison",
    "reference/index",
    "reference/api/commands",
    "optimizers",
    "studies",
)
LOOKS: tuple[tuple[int, Literal["light", "dark"]], ...] = ((1280, "light"), (390, "dark"))
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run", "--disable-sync"]
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
WORD = "LAMB"


def main(arguments: list[str]) -> int:
    """Look at the site in the folder that is named."""
    try:
        found = look(Path(*arguments).resolve())
    except ImportError as missing:
        sys.stdout.write(f"the site was not looked at in a browser: {missing}\n")
        return 0
    sys.stdout.write("".join(f"{one}\n" for one in found))
    return int(bool(found))


def look(folder: Path, pages: Sequence[str] = PAGES) -> list[str]:
    """What is wrong with these pages and the search, a line each.

    Raises:
        ImportError: There is no playwright, axe or Chromium.
    """
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise ImportError("no Chromium")
    found: list[str] = []
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=OPTIONS)
        for width, scheme in LOOKS:
            context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page = context.new_page()
            said: list[str] = []
            page.on("console", lambda message, to=said: to.append(f"console: {message.text}"))
            page.on("pageerror", lambda error, to=said: to.append(f"error: {error}"))
            page.on("request", lambda request, to=said: to.extend(_elsewhere(request.url)))
            for name in pages:
                said.clear()
                page.goto((folder / f"{name}.html").as_uri())
                found += [f"{name} at {width}, {scheme}: {one}" for one in (*_problems(page, Axe(), width), *said)]
            if (folder / "search.html").exists():
                said.clear()
                found += [f"search at {width}, {scheme}: {one}" for one in (*_search(page, folder), *said)]
            context.close()
        browser.close()
    return found


def _elsewhere(url: str) -> Iterator[str]:
    if not url.startswith(("file:", "data:", "blob:")):
        yield f"asks for {url}"


def _problems(page: Any, axe: Any, width: int) -> Iterator[str]:
    """What is wrong with the page that is open; axe would ask for style sheets, which files refuse each other."""
    shown = page.evaluate("document.documentElement.scrollWidth")
    if shown > width:
        yield f"is {shown} pixels wide"
    for one in axe.run(page, options={"runOnly": RULES, "preload": False}).response["violations"]:
        if one["impact"] in ("serious", "critical"):
            yield f"{one['impact']} {one['id']}: {one['nodes'][0]['html'][:150]}"


def _search(page: Any, folder: Path) -> Iterator[str]:
    """Type a word and press Enter: results stand there, with links into the site."""
    page.goto((folder / "search.html").as_uri())
    box = page.locator("input[name=q]:visible").first
    if box.count() == 0:  # on a narrow window it is in the menu
        page.goto(f"{(folder / 'search.html').as_uri()}?q={WORD}")
    else:
        box.focus()
        page.keyboard.type(WORD)
        page.keyboard.press("Enter")
    results = page.locator("#search-results li a")
    results.first.wait_for(timeout=20_000)
    if results.count() < 3:
        yield f"{results.count()} results for {WORD}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
