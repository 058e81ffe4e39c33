"""Executed notebook -> one HTML page: words and outputs, no code of the notebook, nothing outside the file."""

import warnings

from nbformat import NotebookNode
from traitlets.config import Config

from dsnb.run_folder import paths


def to_html(content: NotebookNode, resources: dict[str, str]) -> str:
    """Give a notebook's words and outputs as a page.

    Parameters
    ----------
    content
        The notebook, with its outputs.
    resources
        What the template puts around them: `dsnb_title`, `dsnb_policy`, `dsnb_style`, `dsnb_script`.
    """
    from nbconvert import HTMLExporter

    config = Config()
    config.TemplateExporter.extra_template_basedirs = [str(paths.templates())]
    config.HTMLExporter.embed_images = True
    exporter = HTMLExporter(config=config, template_name="report", exclude_input=True, exclude_input_prompt=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        content.metadata.pop("widgets", None)
        page, _ = exporter.from_notebook_node(content, resources=resources)
    return str(page)
