"""Pages as a person meets them: in Chromium, wide and narrow, light and dark, by keys alone.

Checked are errors on the console, requests to anybody, text that would be markup, width, contrast, and what axe-core
(https://github.com/dequelabs/axe-core, rules of WCAG 2 A and AA) calls serious or critical.
"""

import json
import threading

import pytest
from system_needs import CHROMIUM, library, needs_browser

from descend.pages.run import write_run_page
from descend.study.design import Arm, Study, log
from descend.study.results import compare_records
from descend.view.server import ViewServer
from descend.view.subjects import subjects

library("vl_convert", "vl-convert-python")
playwright = library("playwright.sync_api", "playwright")
axe = library("axe_playwright_python.sync_playwright", "axe-playwright-python")
from study_tasks import fabricated  # noqa: E402  # after what may be missing

pytestmark = [pytest.mark.slow, needs_browser]
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run", "--disable-sync"]
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=alert(1)>"
WIDTHS = (1280, 390)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield browser
        browser.close()


def make_run(folder, epochs=6):
    folder.mkdir(parents=True)
    rows = []
    for epoch in range(1, epochs + 1):
        common = {"epoch": epoch, "step": 10 * epoch}
        rows.append({"mode": "train", **common, "objective": 3 * 0.4**epoch, HOSTILE: 0.1 * epoch, "samples": 100})
        rows[-1] |= {"seconds": 0.5, "learning_rate/body": 0.1 / epoch, f"learning_rate/{HOSTILE}": 0.2 / epoch}
        rows.append({"mode": "validation", **common, "objective": 3 * 0.5**epoch, "samples": 50, "seconds": 0.1})
        rows.append({"mode": "train", **common, "gradient_norm": 1.0 / epoch})
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    settings = {"optimizer": HOSTILE, "batch_size": 8}
    end = {"exit_code": 4, "error": [HOSTILE], "reason": HOSTILE, "save_seconds": 0.1}
    facts = {"command": ["train.py", HOSTILE], "settings": settings, "end": end, "torch": "2"}
    (folder / "run.json").write_text(json.dumps(facts))
    (folder / "log.txt").write_text(f"warning: {HOSTILE}\n")
    return folder


def make_study():
    space = {"lr": log(0.05, 1.0), "weight_decay": log(1e-4, 1e-1)}
    study = Study(
        name=HOSTILE,
        workload="t.py:t",
        batch_sizes=(32, 128),
        steps=(20,),
        arms={HOSTILE: Arm("SGD", space), "b": Arm("SGD", space, {}, "cosine")},
        trials=8,
        searches=2,
        shortlist=1,
        confirmation_seeds=6,
        target={"value": 0.7},
    )
    return compare_records(study, fabricated(study, lambda trial: 0.9 - (trial.configuration["lr"] - 0.2) ** 2))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files of a page of each kind."""
    folder = tmp_path_factory.mktemp("pages")
    return {"run": write_run_page(make_run(folder / "run")), "study": make_study().report(folder / "study")}


class Opened:
    """A page with everything that went wrong in it."""

    def __init__(self, browser, url, width, scheme="light"):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.wrong, self.asked = [], []
        self.page.on("console", lambda said: self.wrong.append(said.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: self.wrong.append("a dialog was opened"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.context.close()


def serious(page):
    """What axe-core finds, a line each."""
    options = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
    found = axe.Axe().run(page, options=options).response["violations"]
    return [
        f"{one['impact']} {one['id']}: {one['nodes'][0]['html'][:200]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


# Every pair of a kind, a width and a scheme.
@pytest.mark.parametrize(
    ("kind", "width", "scheme"),
    [("run", 1280, "light"), ("run", 390, "dark"), ("study", 1280, "dark"), ("study", 390, "light")],
)
def test_a_page_is_sound_at_every_width_and_in_both_schemes(browser, files, kind, width, scheme):
    with Opened(browser, files[kind].as_uri(), width, scheme) as opened:
        page = opened.page
        assert not serious(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert opened.asked == [files[kind].as_uri()]
        assert opened.wrong == []
        assert page.title() != "owned"
        assert page.locator("img").count() == 0
        assert page.locator("script").count() == 1
        assert "<script>document" in page.inner_text("body")
        ink, paper = page.evaluate(
            "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
        )
        assert (brightness(ink) > brightness(paper)) is (scheme == "dark")
        labels = page.locator(".chart svg text").evaluate_all("all => all.map(one => getComputedStyle(one).fill)")
        assert set(labels) == {ink}  # text of charts follows the scheme


def brightness(colour):
    return sum(int(part) for part in colour.partition("(")[2].rstrip(")").split(",")[:3])


@pytest.mark.parametrize("width", WIDTHS)
def test_text_of_charts_is_large_enough_to_read(browser, files, width):
    """10 CSS pixels at least, once a picture is scaled to its place."""
    with Opened(browser, files["run"].as_uri(), width) as opened:
        heights = opened.page.locator(".chart svg").evaluate_all(
            "all => all.map(svg => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width * 10.5)"
        )
        assert heights
        assert min(heights) >= 9.5


def test_everything_is_reached_by_keys(browser, files):
    """Tab goes to the link past the navigation; Enter on a head sorts; wide tables take the focus to scroll."""
    with Opened(browser, files["run"].as_uri(), 390) as opened:
        page = opened.page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
        heads = page.locator("th button")
        heads.nth(0).focus()
        before = page.locator("tbody").nth(0).inner_text().split("\n")
        page.keyboard.press("Enter")
        page.keyboard.press("Enter")
        after = page.locator("tbody").nth(0).inner_text().split("\n")
        assert after == before[::-1]
        assert page.locator("th[aria-sort=descending]").count() == 1
        unreachable = page.locator(".scroll").evaluate_all("all => all.filter(one => one.tabIndex < 0).length")
        assert unreachable == 0


def test_a_point_says_its_numbers_under_the_pointer(browser, files):
    with Opened(browser, files["run"].as_uri(), 1280) as opened:
        page = opened.page
        page.locator(".chart svg path[aria-label]").first.hover()
        assert page.locator("#tip").is_visible()
        assert page.locator("#tip").inner_text().startswith("train: updates 10, Objective function 1.2")


def test_a_series_is_singled_out_by_keys(browser, files):
    """Space on a series fades the others, a second one joins it, and the same key takes it back."""

    def faded(figure):
        return figure.locator(".chart svg .quiet").evaluate_all("all => all.map(one => getComputedStyle(one).opacity)")

    with Opened(browser, files["run"].as_uri(), 390) as opened:
        page = opened.page
        figure = page.locator("figure", has=page.locator(".legend")).first
        buttons = figure.locator(".legend button")
        assert buttons.all_inner_texts() == ["train", "validation"]
        assert buttons.evaluate_all("all => Math.min(...all.map(one => one.getBoundingClientRect().height))") >= 24
        assert faded(figure) == []
        buttons.nth(0).focus()
        page.keyboard.press("Space")
        assert buttons.nth(0).get_attribute("aria-pressed") == "true"
        assert "0.1" in faded(figure)
        assert not serious(page)
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert faded(figure) == []  # both are pressed
        page.keyboard.press("Enter")
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Space")
        assert faded(figure) == []


def test_on_paper_there_is_no_navigation_and_the_ink_is_black(browser, files):
    with Opened(browser, files["study"].as_uri(), 800, "dark") as opened:
        opened.page.emulate_media(media="print")
        assert not opened.page.locator("nav").is_visible()
        assert opened.page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"


def test_a_page_that_is_served_follows_the_run(browser, tmp_path):
    """A row that is written while the page is open stands on it without a reload; then the server ends."""
    folder = make_run(tmp_path / "run")
    make_run(tmp_path / "other")
    with ViewServer(subjects([tmp_path])) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        with Opened(browser, server.url, 1280) as opened:
            page = opened.page
            assert not serious(page)
            page.get_by_role("link", name="run: run").click()
            page.wait_for_selector("text=after 60 updates")
            page.evaluate("window.mark = 1")
            page.locator(".legend button").first.click()
            row = {"mode": "train", "epoch": 7, "step": 70, "objective": 0.001}
            with (folder / "metrics.jsonl").open("a") as file:
                file.write(f"{json.dumps(row)}\n")
            page.wait_for_selector("text=after 70 updates", timeout=60_000)
            assert page.evaluate("window.mark") == 1
            assert page.locator(".legend [aria-pressed=true]").count() == 1  # what was singled out still is
            assert page.locator(".chart .quiet").count() > 0
            assert not serious(page)
            assert all(url.startswith(server.url) for url in opened.asked)
            assert opened.wrong == []
            server.shutdown()
            server.server_close()
            page.wait_for_selector("text=descend view has ended", timeout=30_000)
        thread.join()
