"""The explorer in a real JupyterLab with a live kernel, driven by a real browser that reaches this machine alone."""

import contextlib
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import nbformat
import nbformat.v4 as nbf
import pytest

from tests.support import made_up
from tests.support.browser import OPEN, Watched
from tests.support.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.process

TOKEN = "a-test"
ROOT = "[...document.querySelectorAll('.dsnb-explorer')].find((root) => root.dsnb).dsnb"


@pytest.fixture
def lab(tmp_path):
    """Serve a folder with a notebook that explores a made-up sweep; give its address."""
    made_up.write_folders(made_up.runs(60), tmp_path / "work" / "outputs" / "made_up")
    sources = [
        "import dsnb\nexplorer = dsnb.explore(dsnb.load_runs('outputs/made_up'))\nexplorer",
        "print('selected', len(explorer.selection), explorer.state['parallelism'], explorer.state['relevance'])",
        "explorer.set(precision='bf16', y='power_w').state['y']",
    ]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    cells = [nbf.new_code_cell(source) for source in sources]
    nbformat.write(nbf.new_notebook(cells=cells, metadata=kernel), tmp_path / "work" / "look.ipynb")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}",
        "--ServerApp.ip=127.0.0.1",
        f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={tmp_path / 'work'}", "--LabApp.news_url=",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]  # fmt: skip
    homes = {
        name: str(tmp_path / "home")
        for name in ("HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR")
    }
    with open(tmp_path / "lab.log", "w") as log:
        server = subprocess.Popen(
            command, env={**os.environ, **homes}, stdout=log, stderr=log, cwd=tmp_path
        )
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until(
            lambda: server.poll() is not None or answers(f"{address}/api?token={TOKEN}"),
            "JupyterLab answers",
        )
        assert server.poll() is None, (tmp_path / "lab.log").read_text()
        yield address
    finally:
        server.terminate()
        server.wait(WAIT_S)


def answers(url):
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
        return True
    return False


def test_the_explorer_lives_in_jupyterlab(lab, chromium):
    context = chromium.new_context(viewport={"width": 1400, "height": 1000})
    watched = Watched(context)
    tab = watched.tab
    tab.goto(f"{lab}/lab/tree/look.ipynb?token={TOKEN}")
    tab.locator(".jp-Notebook").wait_for(timeout=120_000)
    tab.locator(".jp-Notebook .jp-Cell").first.click()
    tab.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=120_000)
    tab.keyboard.press("Shift+Enter")
    tab.locator(".dsnb-explorer table:visible").first.wait_for(timeout=120_000)
    tab.locator(".dsnb-count", has_text="60 of 60 runs").wait_for()

    # axes and labels have a colour
    assert all(tab.evaluate(f"Object.values({ROOT}.scatter.theme)"))

    # the card asks the kernel's question
    card = tab.locator(".dsnb-decision")
    assert card.locator(".dsnb-tiles").inner_text().startswith("Train gpt2 with")

    # JupyterLab floats the terms of lists to the left, but figures stay below their labels
    for tile in card.locator(".dsnb-tiles > div").all():
        label = tile.locator("dt").bounding_box()
        figure = tile.locator("dd").first.bounding_box()
        assert label["y"] + label["height"] <= figure["y"] + 1

    tab.evaluate(OPEN)
    card.get_by_label("Smallest relevant difference (%)").fill("5")
    card.get_by_label("Smallest relevant difference (%)").press("Enter")
    tab.locator(".dsnb-front h3", has_text="differences below 5 % do not count").wait_for()

    # a filter set in the page: the views follow, and the kernel knows
    tab.locator(".dsnb-filters .dsnb-chip", has_text="ZeRO 3").click()
    tab.locator(".dsnb-count:not(:has-text('60 of 60'))").wait_for()
    selected = tab.evaluate(f"{ROOT}.selected.length")
    assert 0 < selected < 60
    tab.locator(".jp-Notebook .jp-Cell").nth(1).click()
    tab.keyboard.press("Shift+Enter")
    tab.get_by_text(f"selected {selected} ['ZeRO 3'] 0.05").wait_for(timeout=120_000)

    # controls set in the kernel: the page follows
    tab.keyboard.press("Shift+Enter")
    tab.get_by_role("heading", name="power against peak memory allocated").wait_for(timeout=120_000)
    assert tab.evaluate(f"{ROOT}.state.precision") == ["bf16"]
    assert tab.locator(".dsnb-filters .dsnb-chip", has_text="bf16").locator("input").is_checked()
    assert tab.evaluate(f"{ROOT}.selected.length") < selected

    # a run opened in the page: the kernel sends its steps
    tab.locator(".dsnb-link").first.click()
    tab.locator(".dsnb-series canvas").first.wait_for(timeout=120_000)
    link = tab.get_by_role("link", name="Executed notebook").get_attribute("href")
    assert link.startswith("/lab/tree/outputs/made_up/")

    inside = (lab, "data:", "blob:", lab.replace("http", "ws"))
    assert [url for url in watched.asked if not url.startswith(inside)] == []
    assert [text for text in watched.said if text.startswith("page error: ")] == []
    context.close()
