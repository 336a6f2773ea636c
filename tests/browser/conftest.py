"""A real Chromium on the dashboard of a real gateway. Nothing may reach its console as an error unless a test says so.

Without Playwright or Chromium (`make test-browser` installs both where it can) the tests skip themselves and say so."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import stage, start  # noqa: F401  fixtures

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LIVE = "#live[data-state=live]"
WIDE, PHONE = {"width": 1440, "height": 1000}, {"width": 390, "height": 844}


def chromium() -> str | None:
    named = os.environ.get("CHROMIUM")
    return next((found for name in (named, *NAMES) if name and (found := shutil.which(name))), None)


def _missing(what: str) -> None:
    pytest.skip(f"{what} is missing: make test-browser installs it")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _missing("playwright")
    path = chromium()
    if path is None:
        _missing("Chromium")
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield made
        made.close()


class Tab:
    """A page with what it said on its console. `allowed`: parts of messages that the test provokes."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.page = context.new_page()
        self.allowed: list[str] = []
        self.said: list[str] = []
        self.page.on("console", lambda m: self.said.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.said.append(str(error)))

    def open(self, url: str, *, live: bool = True) -> Any:
        self.page.goto(f"{url}/dashboard")
        if live:
            self.page.wait_for_selector(LIVE)
        return self.page

    def close(self) -> None:
        self.context.close()
        left = [text for text in self.said if not any(part in text for part in self.allowed)]
        assert not left, left


@pytest.fixture
def tab(browser: Any) -> Iterator[Callable[..., Tab]]:
    """`tab(viewport=PHONE, color_scheme="dark")` opens one; all must end without an error on their consoles."""
    opened: list[Tab] = []

    def make(viewport: dict[str, int] | None = None, **options: Any) -> Tab:
        opened.append(Tab(browser.new_context(viewport=viewport or WIDE, **options)))
        opened[-1].page.set_default_timeout(15_000)
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def shot(tmp_path: Path) -> Callable[[Any, str], Path]:
    """Where SHOTS names a folder, pictures for the eye are left there."""
    folder = Path(os.environ.get("SHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)

    def take(page: Any, name: str, **options: Any) -> Path:
        path = folder / f"{name}.png"
        page.screenshot(path=str(path), **options)
        return path

    return take
