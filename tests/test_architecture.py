"""The shape of the project itself: what may import what, what is public, how large things are."""

import ast
import functools
import importlib
import re
import subprocess
import sys
import tomllib

import nbformat
import papermill
import pytest
import yaml

import dsnb
from dsnb.settings.experiment import Experiment
from tests import ROOT

LAYOUT = [
    row for row in (ROOT / "CONTRIBUTING.md").read_text().splitlines() if row.startswith("| `")
]
LAYERS = [
    "__main__",
    *re.findall(r"`(\w+)", "".join(row.split("|")[1] for row in LAYOUT)),
    "version",
]
"""From top to bottom: a module imports only from those after its own, a package also from itself."""
READING = {"show", "prediction", "results"}
MAKING = {"measure"}
MODULES = sorted((ROOT / "dsnb").rglob("*.py"))
OTHER_NAMES = {
    "yaml": "pyyaml",
    "pynvml": "nvidia-ml-py",
    "vl_convert": "vl-convert-python",
    "functorch": "torch",
}
"""Import name -> name of the distribution, where it is another."""
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def layer(path):
    return path.relative_to(ROOT / "dsnb").parts[0].removesuffix(".py")


@functools.cache
def parsed(path):
    return ast.parse(path.read_text())


@functools.cache
def imports(path):
    """Return the dotted names of the modules that a module imports, wherever in it."""
    names = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= (
                {f"dsnb.{alias.name}" for alias in node.names}
                if node.module == "dsnb"
                else {node.module}
            )
    return names


def imported_layers(path):
    return {name.split(".")[1] for name in imports(path) if name.startswith("dsnb.")}


def points_down(path, name):
    importer = layer(path)
    return LAYERS.index(name) > LAYERS.index(importer) or name == importer != path.stem


def test_imports_point_down():
    modules = [path for path in MODULES if layer(path) != "__init__"]
    up = [
        (path, name)
        for path in modules
        for name in imported_layers(path)
        if not points_down(path, name)
    ]
    assert up == []


def test_only_the_commands_and_the_form_use_both_halves():
    """A package imports itself, so that neither half imports the other, either."""
    used = {
        name: set().union(*(imported_layers(path) for path in MODULES if layer(path) == name))
        for name in LAYERS
    }
    assert [name for name in LAYERS if used[name] & READING and used[name] & MAKING] == [
        "cli",
        "show",
    ]


def test_the_listing_of_the_package_is_its_layers():
    # Git leaves a folder of __pycache__ where a package has moved away.
    entries = {
        path.name for path in (ROOT / "dsnb").iterdir() if path.is_file() or any(path.rglob("*.py"))
    }
    entries -= {"__init__.py", "py.typed"}
    assert entries == {
        *(name if (ROOT / "dsnb" / name).is_dir() else f"{name}.py" for name in LAYERS)
    }


def test_modules_are_short_and_say_what_they_are():
    assert [path for path in MODULES if len(path.read_text().splitlines()) > 500] == []
    assert [path for path in MODULES if not ast.get_docstring(parsed(path))] == []


def test_only_models_and_training_import_torch():
    users = [path for path in MODULES if packages(path) & {"torch", "deepspeed", "transformers"}]
    inside = {"models", "train", "record"}  # rooms of code that runs within a training
    assert [path for path in users if not inside.intersection(path.parts)] == []


def packages(path):
    """Return the packages outside dsnb and the standard library that a module imports."""
    return {name.partition(".")[0] for name in imports(path)} - sys.stdlib_module_names - {"dsnb"}


def test_tracing_is_left_to_processes_of_its_own():
    """Predictions load no torch: of models, they import only what names questions and how large chunks are."""
    imported = {name for path in MODULES if layer(path) == "prediction" for name in imports(path)}
    assert {name for name in imported if name.startswith("dsnb.models")} <= {
        "dsnb.models",
        "dsnb.models.chunks",
        "dsnb.models.observe",
    }
    for module in ("observe/__init__.py", "chunks.py"):
        assert not packages(ROOT / "dsnb" / "models" / module)


PUBLIC = {
    name: importlib.import_module(name).__all__
    for name in (
        "dsnb.results.literature",
        "dsnb.results.statistics",
        "dsnb.results.answers",
        "dsnb.prediction",
        "dsnb.show.render",
        "dsnb",
    )
}
"""What notebooks may import from dsnb, and what loads no torch."""
INSIDE = {
    name: importlib.import_module(name).__all__
    for name in ("dsnb.measure.launcher", "dsnb.measure.train", "dsnb.settings.exchange")
}
"""What the notebook about a rank may import besides."""


IN_A_TRAINING = {"adapt", "record", "TrainerCallback"}
"""Public names that scripts which train import: they load torch."""


@pytest.mark.process
def test_what_is_not_needed_is_not_loaded():
    """In one process, from the lightest import up: packages find their public names without loading them before."""
    lines = ["import sys, dsnb", "assert not {'pydantic', 'pandas', 'torch'} & {*sys.modules}"]
    lines += ["import dsnb.measure.launcher.run", "assert not {'pandas', 'torch'} & {*sys.modules}"]
    for package, names in PUBLIC.items():
        lines += [f"assert not [name for name in sys.modules if name.startswith('{package}.')]"] * (
            package != "dsnb"
        )
        lines += [
            f"from {package} import {name}; assert {name}.__doc__"
            for name in names
            if name not in IN_A_TRAINING
        ]
    lines += ["import dsnb.show.report, dsnb.show.render.plots, dsnb.show.explorer.explore"]
    lines += ["assert not {'torch', 'deepspeed', 'transformers'} & {*sys.modules}"]
    lines += [
        "from dsnb import record; assert record.__doc__ and 'transformers' not in sys.modules"
    ]
    lines += ["assert not hasattr(dsnb, 'lunch')"]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_thin_and_clean_and_import_public_names(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    (tagged,) = [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    imported_names = set()
    for cell in cells:
        assert (cell.outputs, cell.execution_count) == ([], None)
        assert not re.search(r"^\s*(def|class) ", cell.source, re.M)
        assert cell is tagged or len(cell.source.splitlines()) <= 8
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.ImportFrom):
                imported_names |= {(node.module, alias.name) for alias in node.names}
            if isinstance(node, ast.Import):
                imported_names |= {(alias.name, None) for alias in node.names}
    assert ("dsnb", None) in imported_names
    shown_with = {("pandas", None), ("seaborn", None)}
    public = {
        ("dsnb", None),
        *shown_with,
        *((module, name) for module in PUBLIC for name in PUBLIC[module]),
    }
    if path.stem == "11_inside":  # what a launcher does: variables of the environment, and a port
        public |= {("os", None), ("socket", None)}
        public |= {(module, name) for module in INSIDE for name in INSIDE[module]}
    assert imported_names <= public


def distribution(name):
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=!]", name)[0]).lower()


def test_requirements_are_the_same_everywhere_pinned_and_all_that_is_imported():
    lines = (ROOT / "environment.yml").read_text()
    conda = yaml.safe_load(lines)["dependencies"]
    wanted = [*PROJECT["dependencies"], *(name for names in EXTRAS.values() for name in names)]
    assert conda[-1]["pip"] == [*wanted, "--editable ."]
    assert f"python{PROJECT['requires-python']}" in conda
    assert all("#" in line for line in lines.splitlines() if line.startswith("      - "))
    pins = {distribution(row) for row in (ROOT / "constraints.txt").read_text().splitlines()}
    assert set(map(distribution, wanted)) <= pins
    declared = {
        distribution(name)
        for name in (*PROJECT["dependencies"], *EXTRAS["train"], *EXTRAS["torchao"])
    }
    direct = {
        distribution(OTHER_NAMES.get(name, name)) for path in MODULES for name in packages(path)
    }
    assert {"numpy", "pyyaml", "torch", "matplotlib"} <= direct <= declared


def test_the_run_notebook_lists_settings_with_their_defaults():
    parameters = papermill.inspect_notebook(str(ROOT / "notebooks" / "10_run.ipynb"))
    assert list(parameters)[-1] == "run_dir"
    for name in [*parameters][:-1]:
        default = Experiment.model_fields[name].default
        if name == "model":  # that of the machine
            default = ""
        assert ast.literal_eval(parameters[name]["default"]) == default
        assert parameters[name]["help"]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "params").glob("*.yaml")), ids=lambda path: path.stem
)
def test_params_files_are_valid_and_say_what_they_ask(path):
    sweep = dsnb.load_sweep(path)
    assert sweep.name == path.stem
    assert sweep.question
