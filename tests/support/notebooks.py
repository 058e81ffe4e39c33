"""Runs the cells of a notebook in this process, without the seconds that a kernel needs to start."""

import ast

import nbformat
import nbformat.v4 as nbf

from dsnb.settings.records import paths


def run_cells(name, namespace=None, **parameters):
    """Return the HTML of everything that a notebook displays, one text per output; its variables are in `namespace`."""
    content = nbformat.read(paths.notebook_template(name), as_version=4)
    return [
        text
        for _, texts in cells_run(content, {} if namespace is None else namespace, parameters)
        for text in texts
    ]


def execute(template, path, parameters):
    """Write an executed notebook, as `dsnb.measure.execute.notebook.execute` does with a kernel."""
    content = nbformat.read(template, as_version=4)
    for cell, texts in cells_run(content, {}, parameters):
        cell.outputs = [nbf.new_output("display_data", data={"text/html": text}) for text in texts]
    nbformat.write(content, path)


def cells_run(content, namespace, parameters):
    """Run one code cell after the other; give each with the HTML of what it displays."""
    for cell in (cell for cell in content.cells if cell.cell_type == "code"):
        shown = []
        namespace["display"] = lambda *values, shown=shown: shown.extend(map(_html, values))
        body = ast.parse(cell.source).body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), "cell", "exec"), namespace)
        if (
            last
            and (value := eval(compile(ast.Expression(last.value), "cell", "eval"), namespace))
            is not None
        ):
            shown.append(_html(value))
        if "parameters" in cell.metadata.get("tags", []):
            namespace |= parameters
        yield cell, shown


def _html(value):
    if hasattr(value, "_repr_mimebundle_"):
        return value._repr_mimebundle_()[0].get("text/html", "")
    return value._repr_html_() or "" if hasattr(value, "_repr_html_") else str(value)
