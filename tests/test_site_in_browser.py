"""The look at the site finds what is wrong with a page, and nothing on one that is sound."""

import sys

import pytest
from system_needs import library, needs_browser

from tools import site_in_browser

SOUND = '<!doctype html><html lang="en"><head><title>t</title></head><body><main><h1>t</h1>{}</main></body></html>'
WRONG = (
    '<img src="https://example.invalid/x.png"><p style="color:#aaa;background:#fff">pale</p>'
    '<div style="width:2000px">wide</div><script>missing()</script>'
)


def test_without_a_browser_nothing_is_looked_at(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    assert site_in_browser.main([str(tmp_path)]) == 0
    assert "was not looked at" in capsys.readouterr().out


@pytest.mark.slow
@needs_browser
def test_faults_are_found(tmp_path):
    library("playwright.sync_api", "playwright")
    library("axe_playwright_python.sync_playwright", "axe-playwright-python")
    (tmp_path / "sound.html").write_text(SOUND.format(""))
    (tmp_path / "wrong.html").write_text(SOUND.format(WRONG))
    assert site_in_browser.look(tmp_path, ["sound"]) == []
    found = "\n".join(site_in_browser.look(tmp_path, ["wrong"]))
    for part in ("asks for https://example.invalid", "pixels wide", "color-contrast", "image-alt", "error: missing"):
        assert part in found, found
