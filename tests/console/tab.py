"""A page of Chromium on the console, and what the browser complained about."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
MILLISECONDS = 20_000
WIDE, NARROW = (1280, "light"), (390, "dark")
# Says in the page's own words what its policy kept out.
WATCH_POLICY = """
window.refused = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.refused.push(event.violatedDirective + " " + event.blockedURI);
});
"""

OVERFLOW = """() => document.documentElement.scrollWidth <= innerWidth ? [] :
  [...document.body.querySelectorAll("*")]
  .filter((each) => each.getBoundingClientRect().right > innerWidth)
  .map((each) => each.outerHTML.slice(0, 200))"""


class Tab:
    """A page of the browser at the console of ``url``, and what it complained about."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        page.set_default_timeout(MILLISECONDS)
        page.add_init_script(WATCH_POLICY)
        page.on("console", lambda said: self._note(said.type, said.text))
        page.on("pageerror", lambda error: self._note("error", str(error)))

    def _note(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"}:
            self.complaints.append(text)

    def open(self, path: str) -> Any:
        answer = self.page.goto(self.url + path)
        assert self.page.evaluate("window.refused") == []
        return answer

    def sign_in(self, key: str) -> None:
        self.open("/sign-in")
        self.page.fill("#key", key)
        self.page.click("main button")
        self.page.wait_for_url(self.url)

    def text(self) -> str:
        return str(self.page.inner_text("main"))

    def find_overflow(self) -> list[str]:
        """Return what of the page sticks out of the window; empty if the page does not scroll sideways."""
        return list(self.page.evaluate(OVERFLOW))

    def press_until(self, text: str = "", *, at: str = "*", most: int = 60) -> None:
        """Press the tabulator until the focus is at what ``at`` selects, with this text where one is given."""
        look = """([at, text]) => {
          const on = document.activeElement;
          return [on.matches(at) && (!text || on.textContent.trim() === text), on.outerHTML.slice(0, 60)];
        }"""
        seen: list[str] = []
        while True:
            self.page.keyboard.press("Tab")
            is_there, on = self.page.evaluate(look, [at, text])
            if is_there:
                return
            seen.append(on)
            assert len(seen) < most, f"{text or at} is not reached within {most} keys: {seen}"


@contextmanager
def calm(tab: Tab) -> Iterator[None]:
    """Nothing in the block makes the browser complain."""
    yield
    assert tab.complaints == [], tab.complaints
    assert tab.page.evaluate("window.refused") == []


@contextmanager
def start_chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()
