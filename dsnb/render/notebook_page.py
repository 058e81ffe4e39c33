"""Executed notebook -> one self-contained HTML page with its text and outputs, without its code."""

import functools
import warnings
from typing import Any

from nbformat import NotebookNode
from traitlets.config import Config

from dsnb.run_folder import paths


def to_html(content: NotebookNode, resources: dict[str, str]) -> str:
    """Convert a notebook's text and outputs to a page.

    Parameters
    ----------
    content
        The notebook, with its outputs.
    resources
        The parts of the page around them: `dsnb_title`, `dsnb_policy`, `dsnb_style`, `dsnb_script`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        content.metadata.pop("widgets", None)
        page, _ = _exporter().from_notebook_node(content, resources=resources)
    return str(page)


@functools.cache
def _exporter() -> Any:
    """Keep one for all pages: it compiles its templates at the first one."""
    from nbconvert import HTMLExporter

    config = Config()
    config.TemplateExporter.extra_template_basedirs = [str(paths.TEMPLATES)]
    config.HTMLExporter.embed_images = True
    return HTMLExporter(config=config, template_name="report", exclude_input=True, exclude_input_prompt=True)
