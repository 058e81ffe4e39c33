"""A real Chromium without a network, from Debian or Playwright; without either, tests are skipped."""

import os
import shutil
import warnings

import pytest

from dsnb.show.explorer import page
from dsnb.show.explorer.payload import payload

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-sync"]
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The shell comes first: without the rest of a browser, it opens a page in half of the CPU time."""
ROOT = "document.querySelector('.dsnb-explorer').dsnb"


def launch(playwright):
    """Start a Chromium that reaches only files and this machine; without one, skip with a warning."""
    from playwright.sync_api import Error

    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    rules = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    try:
        return playwright.chromium.launch(executable_path=path, args=[*FLAGS, rules])
    except Error as error:
        if os.environ.get("DSNB_REQUIRE_BROWSER"):
            pytest.fail(
                f"no Chromium ({str(error).splitlines()[0]}): install Debian's package chromium-headless-shell"
            )
    warnings.warn(
        "NO BROWSER TEST WAS RUN: install chromium-headless-shell, or run `playwright install chromium`",
        stacklevel=1,
    )
    pytest.skip("no Chromium")


def write_page(path, *explorers):
    """Write a page with these explorers and nothing else: `root(0)` is the first of them."""
    pieces = "".join(page.fragment(payload(one.data, one.state, None)) for one in explorers)
    style = f"@media (prefers-color-scheme: dark) {{ body {{ background: #101214; color: #eee; }} }} {page.style()}"
    head = f"<!doctype html><html lang='en'><meta charset='utf-8'><title>Runs</title><style>{style}</style>"
    body = f"<main><h1>Runs</h1><h2>Explorer</h2>{pieces}</main><script>{page.script()}</script>"
    path.write_text(head + body, encoding="utf-8")
    return path


def root(place):
    return f"document.querySelectorAll('.dsnb-explorer')[{place}].dsnb"


CALM = """async (rest_ms) => {
  await new Promise((done) => setTimeout(done, rest_ms ?? 60));
  for (const _ of [1, 2]) await new Promise((done) => requestAnimationFrame(done));
}"""
"""Wait in the page until it is drawn: timers and frames keep their order on a slow machine."""

OPEN = "document.querySelectorAll('details').forEach((node) => { node.open = true; })"
"""Open all that is folded."""


class Watched:
    """A tab that records requests and messages of its page from the start."""

    def __init__(self, context):
        self.asked, self.said = [], []
        self.tab = context.new_page()
        self.tab.on("request", lambda request: self.asked.append(request.url))
        self.tab.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.tab.on("pageerror", lambda error: self.said.append(f"page error: {error}"))

    def open(self, path):
        """Open a file and wait until its explorer, if it has one, has drawn."""
        self.tab.goto(path.as_uri())
        self.tab.evaluate(CALM)
        return self

    def clear(self):
        """Leave the page and forget its requests and messages."""
        self.tab.goto("about:blank")
        self.asked, self.said = [], []

    @property
    def outside(self):
        """Requests for anything outside the file."""
        return [url for url in self.asked[1:] if not url.startswith(("data:", "blob:"))]


class Tabs:
    """Tabs for reuse: a renderer that has run the scripts of one page needs a third of the time for the next.

    There is one context per set of options other than the window's size and colours, which a tab can change.
    """

    def __init__(self, chromium):
        self._chromium = chromium
        self._free, self._used = {}, []

    def open(self, path, viewport=None, color_scheme="light", **options):
        """Open a file in a free tab."""
        free = self._free.setdefault(tuple(sorted(options.items())), [])
        page = free.pop() if free else Watched(self._chromium.new_context(**options))
        self._used.append((page, free))
        page.tab.set_viewport_size(viewport or {"width": 1280, "height": 1600})
        page.tab.emulate_media(media="null", color_scheme=color_scheme)
        return page.open(path)

    def clear(self):
        """Make the tabs of a test ready for the next one."""
        while self._used:
            page, free = self._used.pop()
            page.clear()
            free.append(page)


def violations(tab):
    """Return the accessibility violations that axe-core finds."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(tab).response["violations"]
    return [(one["id"], [node["target"] for node in one["nodes"]][:3]) for one in found]
