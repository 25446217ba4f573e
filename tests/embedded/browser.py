"""A real browser for the tests of the page, without a window."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from dcp.embedded import Cluster

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
# Milliseconds: longer than anything takes unless it fails.
TIMEOUT = 30_000


def find_browser() -> str:
    """Return the path of a browser. Skip the test where there is none, except in CI, which installs one."""
    pytest.importorskip("playwright", reason="needs playwright, of the dependency group browser")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None and not os.environ.get("CI"):
        pytest.skip(f"needs a browser: {', '.join(NAMES)}")
    assert found, f"CI needs one of {', '.join(NAMES)}"
    return found


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Start the browser, and end it."""
    path = find_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Browser, cluster: Cluster, url: str = "", **options: Any) -> Iterator[Page]:
    """Open the page of a cluster as its user; the page is live. Errors of the page fail the test."""
    user = cluster.credentials
    login = {"username": user.username, "password": user.password}
    context = browser.new_context(http_credentials=login, **options)  # type: ignore[arg-type]
    try:
        page = context.new_page()
        page.set_default_timeout(TIMEOUT)
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url or cluster.page_url)
        page.locator("#live[data-state=good]").wait_for()
        page.locator("#nodes tr").first.wait_for()
        page.locator("form[data-operation=fault]").wait_for(state="attached")
        yield page
        assert errors == []
    finally:
        context.close()
