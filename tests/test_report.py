"""The report and the notebooks around it, on real and on hostile folders, and in a real browser."""

import os
import re
import shutil
import warnings
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dsnb import notebooks, paths, records
from dsnb.errors import SettingsError
from dsnb.report import write_report
from dsnb.sweep import run_sweep
from tests.test_sweep import NAMES, PARAMS

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A real sweep with one run that fails with a hostile cause."""
    home = tmp_path_factory.mktemp("sweep")
    (home / "small.yaml").write_text(PARAMS)
    run_sweep(home / "small.yaml", output=home / "out", overrides={"repeats": 1}, progress=False)
    bad = home / "out" / "zs9_bad" / "run1"
    shutil.copytree(home / "out" / NAMES[0] / "run1", bad)
    cause = "<script>document.title='hacked'</script><img src=x onerror=\"document.title='hacked'\">"
    result = records.read_json(bad / "result.json")
    records.write_json(bad / "result.json", {**result, "status": "failed", "cause": cause})
    return home / "out"


@pytest.fixture(scope="module")
def page(folder):
    return write_report(folder).read_text(encoding="utf-8")


class Links(HTMLParser):
    """Collects everything that a browser would fetch or run."""

    def __init__(self, page):
        super().__init__()
        self.links, self.scripts, self.images = [], 0, []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.scripts += tag == "script" or any(name.startswith("on") for name in found)
        self.links += [found[name] for name in ("src", "href", "data", "action") if found.get(name)]
        if tag == "img":
            self.images.append(found.get("alt"))


def test_the_page_is_one_file_that_fetches_and_runs_nothing(page):
    found = Links(page)
    assert found.scripts == 0
    assert found.links
    assert all(link.startswith(("data:image/png;base64,", "#")) for link in found.links)
    assert "default-src 'none'" in page
    assert "url(" not in page
    assert len(page) < 1_500_000


def test_the_page_says_what_was_found(page):
    text = re.sub(r"<[^>]+>", "", page)
    for words in ("Does it resume?", "Fastest: zs", "1 of 3 runs are not ok: 1 failed.", NAMES[0], "tokens/s", "torch"):
        assert words in text
    assert len([alt for alt in Links(page).images if alt]) == 2
    assert "Traceback" not in text


def test_the_comparison_notebook_runs(folder, tmp_path):
    target = tmp_path / "20.ipynb"
    notebooks.execute(paths.notebook_template("20_compare"), target, {"sweep_dir": str(folder)})
    assert "Fastest: " in target.read_text()


def test_a_folder_without_runs(tmp_path):
    with pytest.raises(SettingsError, match="holds no run: give the folder of a sweep, such as outputs/quickstart"):
        write_report(tmp_path)


def test_only_failed_runs_make_a_page_too(folder, tmp_path):
    shutil.copytree(folder / "zs9_bad", tmp_path / "out" / "zs9_bad")
    (tmp_path / "out" / "zs9_bad" / "run1" / "steps.jsonl").unlink()
    text = write_report(tmp_path / "out").read_text()
    assert "1 of 1 runs are not ok: 1 failed." in text
    assert Links(text).scripts == 0
    assert len(Links(text).images) == 2


def test_a_browser_shows_it_without_any_request(folder, page):
    if not BROWSER:
        if os.environ.get("DSNB_REQUIRE_BROWSER"):
            pytest.fail("no Chromium: install Debian's package chromium")
        warnings.warn("NO BROWSER TEST: install chromium to run it", stacklevel=1)
        pytest.skip("no Chromium")
    from playwright.sync_api import sync_playwright

    asked, said = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        for width in (1280, 390):
            tab = browser.new_page(viewport={"width": width, "height": 900})
            tab.on("request", lambda request: asked.append(request.url))
            tab.on("console", lambda message: said.append(message.text))
            tab.goto((folder / "report.html").as_uri())
            assert tab.title() == "out"
            assert tab.get_by_role("heading", name="The answer").is_visible()
            assert tab.locator("table").first.is_visible()
            drawn = tab.evaluate("[...document.images].map(image => image.complete && image.naturalWidth)")
            assert len(drawn) == 2
            assert min(drawn) > 500
            # the page itself never scrolls sideways: wide tables do so in their boxes
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
        browser.close()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert said == []


def test_the_readmes_picture_is_there():
    root = Path(__file__).parents[1]
    for name in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (root / "README.md").read_text()):
        assert (root / name).is_file()
