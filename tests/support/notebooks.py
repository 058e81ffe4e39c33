"""Runs a notebook's cells in this process, which takes none of the seconds of a kernel, and gives what they display."""

import ast

import nbformat

from dsnb.run_folder import paths


def run_cells(name, namespace=None, **parameters):
    """Return the HTML of everything that a notebook displays, one text per output; its variables are in `namespace`."""
    shown = []
    namespace = {} if namespace is None else namespace
    namespace["display"] = lambda *values: shown.extend(map(_html, values))
    for cell in nbformat.read(paths.notebook_template(name), as_version=4).cells:
        if cell.cell_type != "code":
            continue
        body = ast.parse(cell.source).body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), name, "exec"), namespace)
        if last and (value := eval(compile(ast.Expression(last.value), name, "eval"), namespace)) is not None:
            shown.append(_html(value))
        if "parameters" in cell.metadata.get("tags", []):
            namespace |= parameters
    return shown


def _html(value):
    if hasattr(value, "_repr_mimebundle_"):
        return value._repr_mimebundle_()[0].get("text/html", "")
    return value._repr_html_() or "" if hasattr(value, "_repr_html_") else str(value)
