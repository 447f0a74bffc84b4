"""Every page of `site/` in a real browser, from disk: it asks nobody for anything, and nothing in it fails."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pytest

SITE = Path(__file__).parent.parent.parent / "site"
PAGES = sorted(SITE.glob("*.html"))


@pytest.fixture
def watched(chromium):
    """A page, and the list of what went wrong in it."""
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    wrong: list[str] = []

    def on_request(request):
        if not request.url.startswith(("file:", "data:", "blob:", "about:")):
            wrong.append(f"asks for {request.url}")

    page.on("request", on_request)
    page.on("requestfailed", lambda request: wrong.append(f"does not get {request.url}"))
    page.on("pageerror", lambda error: wrong.append(f"script error: {error}"))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    yield page, wrong
    page.close()


def test_there_is_a_report():
    assert SITE / "index.html" in PAGES, "no site/: make report"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_page(watched, screenshots, path):
    page, wrong = watched
    page.goto(path.as_uri())
    page.screenshot(path=screenshots / f"{path.stem}.png", full_page=True)
    assert wrong == []
    assert page.locator("footer dt").all_inner_texts()[0] == "GPU"
    broken = page.evaluate("() => [...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.alt)")
    assert broken == []
    too_wide = page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert too_wide <= 0, f"{too_wide} pixels wider than the window"
    assert "Traceback" not in page.locator("main").inner_text()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_links_between_pages_lead_somewhere(watched, path):
    page, _ = watched
    page.goto(path.as_uri())
    for link in page.evaluate("() => [...document.links].map(a => a.href)"):
        if link.startswith("file:"):
            target, _, anchor = unquote(link.removeprefix("file://")).partition("#")
            assert Path(target).exists(), link
            if anchor and Path(target) == path:
                assert page.locator(f'[id="{anchor}"]').count(), link


def test_a_card_leads_to_its_page_and_the_page_back(watched):
    page, _ = watched
    page.goto((SITE / "index.html").as_uri())
    if not page.locator(".card").count():
        pytest.skip("the report has no pages")
    title = page.locator(".card h2").first.inner_text()
    page.locator(".card").first.click()
    assert title in page.title()
    page.locator(".home").click()
    assert page.url.endswith("index.html")
