"""Every code block of the README and the documentation is run, or says why it is not."""

import re

import pytest

from docs.code_blocks import BLOCK, ROOT, blocks, outputs, pages, run_page, runnable
from dsnb.measure.sweep.params import load_sweep
from dsnb.settings.records.columns import STATUSES

PAGES = pages()
RUN = [page for page in PAGES if runnable(page, "sh") or runnable(page, "python")]


def name(page):
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_is_run_or_says_why_not(page):
    for block in blocks(page):
        if block.is_output:
            assert block.language == "text", block.where
        elif block.note:
            assert len(block.reason) > 10, f"{block.where}: write <!-- not run: REASON -->"
        else:
            assert block.language in {"sh", "python", "yaml"}, (
                f"{block.where}: say why it is not run"
            )
    text = page.read_text()  # from whose search no fence escapes
    fences = len(re.findall(r"^\s*(?:```|~~~)", text, re.M))
    assert fences == 2 * len(BLOCK.findall(text))
    assert not re.search(r"\n\n {4}\S", BLOCK.sub("", text)), "an indented code block: use a fence"


@pytest.mark.timeout(900)  # the first page makes the sweep that all use
@pytest.mark.parametrize("page", RUN, ids=name)
@pytest.mark.process
@pytest.mark.docs
def test_blocks_run_and_print_what_the_page_shows(page, home):
    printed = run_page(page, home)
    assert printed
    for block, result in outputs(page, printed):
        assert block.text == result, block.where


def test_yaml_blocks_are_valid_params_files(tmp_path):
    found = [block for page in PAGES for block in runnable(page, "yaml")]
    assert len(found) >= 2
    for block in found:
        path = tmp_path / "my_sweep.yaml"
        path.write_text(block.text)
        assert load_sweep(path).runs, block.where


def test_make_targets_and_files_that_pages_name_exist():
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"\bmake (\w+)  ", page.read_text()):
            assert re.search(rf"^{target}:", makefile, re.M), f"{name(page)} names make {target}"
        for path in re.findall(
            r"`((?:dsnb|docs|params|benchmarks|notebooks)/[\w./-]+\.\w+)`", page.read_text()
        ):
            assert (ROOT / path).is_file() or path == "params/my_sweep.yaml", (
                f"{name(page)} names {path}"
            )


def test_relative_links_outside_the_site_lead_to_files():
    """Sphinx checks those of the site."""
    for page in ("README.md", "CONTRIBUTING.md", "outputs/README.md"):
        text = (ROOT / page).read_text()
        links = re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", text)
        assert [link for link in links if not ((ROOT / page).parent / link).is_file()] == [], page


def test_every_status_says_what_to_do():
    text = (ROOT / "docs" / "how-to" / "statuses.md").read_text()
    assert re.findall(r"^## (\w+)$", text, re.M) == list(STATUSES)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "log").glob("*.md")), ids=name)
def test_the_site_search_leaves_out_the_log_of_experiments(page):
    assert page.read_text().startswith("---\nnosearch: true\n---\n# ")
