"""The report and the notebooks around it, on real and on hostile folders, and in a real browser."""

import re
import shutil
from html.parser import HTMLParser

import pytest

import dsnb
from dsnb.base.errors import LaunchError, SettingsError
from dsnb.base.files import json_files
from dsnb.measure.execute import notebook
from dsnb.prediction import traces
from dsnb.show.report import write_report
from tests.prediction.made_up import keep_traces
from tests.support.browser import violations
from tests.support.notebooks import execute, run_cells
from tests.support.small_sweep import NAMES

ANSWER = re.compile("[Nn]o advice below 5|No measured setting trains gpt2-tiny in reasonable time")
"""The second on a machine that makes less than 3,171 tokens/s of these tiny batches."""


@pytest.fixture(scope="module")
def folder(swept, tmp_path_factory):
    """A real sweep with one run that fails with a hostile cause."""
    home = tmp_path_factory.mktemp("sweep")
    shutil.copytree(swept, home / "out", ignore=shutil.ignore_patterns("run2"))
    bad = home / "out" / "zs9_bad" / "run1"
    shutil.copytree(home / "out" / NAMES[0] / "run1", bad)
    cause = (
        "<script>document.title='hacked'</script><img src=x onerror=\"document.title='hacked'\">"
    )
    result = json_files.read_json(bad / "result.json")
    json_files.write_json(bad / "result.json", {**result, "status": "failed", "cause": cause})
    return home / "out"


@pytest.fixture(scope="module", autouse=True)
def without_kernel():
    """Execute notebooks in this process; `test_release.py` reports with a kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(notebook, "execute", execute)
        yield


@pytest.fixture(scope="module")
def page(folder, swept, without_kernel):
    return write_report(folder, compare_with=swept).read_text(encoding="utf-8")


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


def test_the_page_is_one_file_that_fetches_nothing(page):
    found = Links(page)
    assert (
        found.scripts == 2
    )  # the explorer's data, and the one script that the policy names by its hash
    assert page.count("'sha256-") == 1
    assert found.links
    assert all(link.startswith(("data:image/svg+xml,", "#")) for link in found.links)
    assert "default-src 'none'" in page
    assert "url(" not in page.partition("</style>")[0]
    assert len(page) < 1_500_000


def test_the_page_says_what_was_found(page):
    text = re.sub(r"<[^>]+>", "", page)
    for words in (
        "Does it resume?",
        "1 of 3 runs are not ok: 1 failed.",
        NAMES[0],
        "tokens/s",
        "torch",
    ):
        assert words in text
    assert ANSWER.search(text)
    assert len([alt for alt in Links(page).images if alt]) == 1
    assert "Compared with" in text
    assert "Both ran in the same recorded environment" in text
    assert "too few runs" in text
    assert "Only after: zs9_bad" not in text  # its settings are those of another one
    assert "Traceback" not in text


def test_the_comparison_notebook_runs_and_folders_without_runs_are_refused(folder, tmp_path):
    assert ANSWER.search("".join(run_cells("20_compare", sweep_dir=str(folder))))
    with pytest.raises(SettingsError, match="contains no runs: none of 0 files is a run"):
        write_report(tmp_path)
    with pytest.raises(SettingsError, match="contains no runs"):
        write_report(folder, compare_with=tmp_path)


def test_only_failed_runs_are_reported_too(folder, tmp_path):
    shutil.copytree(folder / "zs9_bad", tmp_path / "out" / "zs9_bad")
    (tmp_path / "out" / "zs9_bad" / "run1" / "steps.jsonl").unlink()
    text = write_report(tmp_path / "out", tmp_path / "page.html").read_text()
    assert "1 of 1 runs are not ok: 1 failed." in text
    assert text.count("<img ") == 1
    assert (tmp_path / "page.html.ipynb").is_file()
    with pytest.raises(
        LaunchError, match="cannot be written: Is a directory; choose another --output"
    ):
        write_report(tmp_path / "out", tmp_path)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_browser_shows_it_to_everyone_without_any_request(folder, page, watched, width, scheme):
    viewport = {"width": width, "height": 900}
    report = watched(
        folder / "report.html", viewport=viewport, color_scheme=scheme, bypass_csp=True
    )
    tab = report.tab
    assert tab.title() == "out"
    assert tab.get_by_role("heading", name="The answer").is_visible()
    assert tab.locator("table:visible").count() >= 4
    (drawn,) = tab.evaluate(
        "[...document.images].map(image => image.complete && image.naturalWidth)"
    )
    assert drawn > 500
    # the page itself never scrolls sideways: wide tables do so in their boxes
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert "3 of 3 runs" in tab.locator(".dsnb-count").inner_text()
    assert len(re.findall(rb"/Type /Page\b", tab.pdf(format="A4"))) <= 2
    assert violations(tab) == []
    assert (report.outside, report.said) == ([], [])


def test_without_scripts_answer_figures_and_tables_are_there(folder, page, chromium):
    context = chromium.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto((folder / "report.html").as_uri())
    assert tab.get_by_text(ANSWER).first.is_visible()
    assert tab.get_by_text("The explorer needs JavaScript").is_visible()
    assert tab.locator("table").count() >= 4
    assert all(table.is_visible() for table in tab.locator("table").all())
    assert all(image.is_visible() for image in tab.locator("img").all())
    assert tab.locator("img").count() == 1
    context.close()


@pytest.fixture(scope="module")
def on_gpus(swept, tmp_path_factory):
    """A sweep whose records say that it ran on an H200, with a setting that is still to come."""
    home = tmp_path_factory.mktemp("gpus") / "out"
    shutil.copytree(swept, home)
    for path in home.glob("*/run*/environment.json"):
        gpus = [{"name": "NVIDIA H200", "memory_gib": 139.8}]
        json_files.write_json(path, {**json_files.read_json(path), "gpus": gpus})
    (home / "params.yaml").write_text(
        "name: out\n"
        "defaults: {model: gpt2-tiny, data: stdlib, precision: fp32, micro_batch_size: 2, seq_len: 32, gpus: 2}\n"
        "grid: {zero_stage: [0, 1, 2, 3]}\n"
    )
    return home


@pytest.mark.process
def test_predictions_are_in_a_section_and_beside_the_runs_or_refused(
    folder, on_gpus, watched, tmp_path, monkeypatch
):
    keep_traces(monkeypatch, tmp_path)
    settings = {
        "model": "gpt2-tiny",
        "precision": "fp32",
        "seq_len": 32,
        "micro_batch_size": 2,
        "device": "cuda",
    }
    if traces.can_trace():
        traces.traces([dsnb.Experiment(**settings)])
    page = watched(write_report(on_gpus, predict=on_gpus))
    text = page.tab.locator("body").inner_text()
    assert "Predicted and measured" in text
    assert "Here, step times are predicted with a mean error of" in text
    assert "Predicted for NVIDIA H200" in text
    explorer = "document.querySelector('.dsnb-explorer').dsnb"
    assert page.tab.evaluate(f"{explorer}.model.runs") == len(dsnb.load_runs(on_gpus))
    assert page.tab.evaluate(f"{explorer}.model.predictions.names.length") > 0
    pictures = [
        alt
        for alt in Links((on_gpus / "report.html").read_text()).images
        if "on the diagonal" in alt
    ]
    assert len(pictures) == 1
    assert violations(page.tab) == []
    assert (page.outside, page.said) == ([], [])
    with pytest.raises(
        SettingsError, match="predict: no run has succeeded, or run out of memory, on a GPU"
    ):
        write_report(folder, predict=on_gpus)
    with pytest.raises(SettingsError, match=r"params file .*nothing\.yaml' cannot be read"):
        write_report(on_gpus, predict=[tmp_path / "nothing.yaml"])
