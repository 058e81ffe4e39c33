"""How Sphinx builds the site: `make docs`. Nothing is fetched; two notebooks are executed, which need no GPU."""

import shutil
import sys
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

from docs import pictures, reference_tables  # noqa: E402
from dsnb.measure.execute.notebook import execute  # noqa: E402
from dsnb.show.calculator import page as calculator  # noqa: E402
from dsnb.version import __version__  # noqa: E402

project, author, release, copyright = (
    "dsnb",
    "the dsnb authors",
    __version__,
    "the dsnb authors; Apache-2.0",
)
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
WIDE = [
    f"reference/{page}"
    for page in ("settings", "columns", "columns_tables", "run_folder", "command_line")
]
WIDE += [f"log/{page.stem}" for page in (DOCS / "log").glob("*.md")]  # LOG.md lists their headings
html_theme = "pydata_sphinx_theme"
html_title = "dsnb"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_use_index = html_domain_indices = False  # no page links to them: the search finds names
html_extra_path = ["_build/extra"]
html_sidebars = {
    page: [] for page in ("index", "tutorial", "questions", "example/findings")
}  # without pages below them
html_theme_options = {
    "navigation_depth": 2,
    "show_prev_next": True,
    "secondary_sidebar_items": {"**": ["page-toc"], **{page: [] for page in WIDE}},
    "footer_start": ["copyright"],
    "footer_end": [],
}
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the notebooks among the pages hold their outputs already
default_role = "code"  # of single backticks in docstrings
toc_object_entries_show_parents = "hide"
napoleon_google_docstring = False
napoleon_use_rtype = False
autodoc_typehints = "none"  # signatures say them
autodoc_member_order = "bysource"
nitpick_ignore_regex = [
    (r"py:.*", r"(?!dsnb\b).*")
]  # other projects' names: there is no network to look them up in


class Generated(SphinxDirective):
    """A table of the reference, by its name in `reference_tables.TABLES`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Parse the table's Markdown in place of the directive."""
        text = reference_tables.TABLES[self.arguments[0]]()
        holder = nodes.section() if text.startswith("#") else nodes.container()
        holder.document = self.state.document
        self.state.nested_parse(
            StringList(text.splitlines(), "generated"), self.content_offset, holder, match_titles=1
        )
        return holder.children


def example_files(app: Sphinx) -> None:
    """Put executed notebooks and pictures among the pages, and the examples' HTML among the files beside them."""
    examples = ROOT / "outputs" / "examples"
    pages, extra = DOCS / "example", DOCS / "_build" / "extra" / "example"
    html = [*examples.glob("*.html"), *examples.glob("quickstart/*.html")]
    for folder, files in ((pages, examples.glob("quickstart/*.ipynb")), (extra, html)):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file in files:
            shutil.copyfile(file, folder / file.name)
    for notebook, page in (("01_zero", "zero"), ("02_findings", "findings")):
        execute(ROOT / "notebooks" / f"{notebook}.ipynb", pages / f"{page}.ipynb", {})
    pictures.make(pages)


def calculator_files(app: Sphinx) -> None:
    """Put the calculator and the models' pages among the files beside the pages."""
    calculator.write_site(DOCS / "_build" / "extra")


def mark_tables(app: Sphinx, page: nodes.document) -> None:
    """Let phones show each row of the reference as a block (`site.css`)."""
    if app.env.docname.startswith("reference/"):
        for table in page.findall(nodes.table):
            table["classes"].append("reference")


def setup(app: Sphinx) -> None:
    """Register what is defined here."""
    app.add_directive("generated", Generated)
    app.connect("doctree-read", mark_tables)
    example_files(app)
    calculator_files(app)
