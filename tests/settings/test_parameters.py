"""Misspelled parameters of notebooks, which papermill would only warn about."""

import nbformat
import papermill
import pytest

import dsnb
from dsnb.base.errors import SettingsError
from dsnb.measure.execute import notebook
from dsnb.settings.experiment import Experiment
from tests import ROOT
from tests.support.notebooks import cells_run

CELL = "sweep_dir: str = ''  # a folder\npage_dir = ''\n"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def passed(*lines, cell=CELL):
    return {"In": ["", cell, "\n".join(["# Parameters", *lines]), "import dsnb"], "sweep_dir": "x"}


@pytest.mark.parametrize(
    ("names", "problems"),
    [
        ({"swep_dir": "of a script of one's own"}, []),
        ({"In": ["", CELL, "swep_dir = 1"]}, []),
        (passed('sweep_dir = "x"', "page_dir = 3"), []),
        (passed('swep_dir = "x"'), ["unknown parameter 'swep_dir': did you mean 'sweep_dir'?"]),
        (
            passed("gpus = 3", cell=CELL),
            ["unknown parameter 'gpus': allowed are sweep_dir, page_dir"],
        ),
        (
            passed("sweep_dir = 3", cell="1 + 1"),
            ["unknown parameter 'sweep_dir': allowed are none"],
        ),
    ],
)
def test_only_what_papermill_passed_is_compared(names, problems):
    if not problems:
        dsnb.check_parameters(names)
        return
    with pytest.raises(SettingsError) as caught:
        dsnb.check_parameters(names)
    assert caught.value.problems == problems


def test_the_run_notebook_also_takes_every_setting():
    names = passed("seed = 3", "hang_limit_s = 4.0", cell="model = 'gpt2'\nrun_dir = ''")
    assert Experiment.from_namespace({"In": names["In"], "seed": 3, "hang_limit_s": 4.0}).seed == 3
    with pytest.raises(SettingsError, match="unknown parameter 'batch_size': did you mean"):
        Experiment.from_namespace(passed("batch_size = 3", cell="model = 'gpt2'"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_refuses_a_misspelled_parameter_before_it_does_anything(path):
    name = next(iter(notebook.parameters(path)))
    given = {"In": ["", f"{name} = None", f"# Parameters\n{name}x = 'y'"], f"{name}x": "y"}
    done = []
    with pytest.raises(SettingsError) as caught:
        done.extend(cells_run(nbformat.read(path, as_version=4), {}, given))
    assert f"unknown parameter '{name}x': did you mean '{name}'?" in str(caught.value)
    assert [texts for _, texts in done if texts] == []


@pytest.mark.process
def test_papermill_shows_the_refusal(tmp_path):
    with pytest.raises(papermill.PapermillExecutionError) as caught:
        notebook.execute(ROOT / "notebooks" / "10_run.ipynb", tmp_path / "out.ipynb", {"modell": 1})
    assert "unknown parameter 'modell': did you mean 'model'?" in str(caught.value)
    cells = nbformat.read(tmp_path / "out.ipynb", as_version=4).cells
    shown = [output for cell in cells for output in cell.get("outputs", [])]
    shown = [output for output in shown if output.output_type != "error"]
    assert [output for output in shown if "papermill" not in str(output)] == []
