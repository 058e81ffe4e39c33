"""The notebook about a rank: executed in a kernel, since it joins a process group."""

import nbformat
import pytest

from dsnb.measure.execute import notebook
from dsnb.settings.records import paths


def text_of(cell):
    """Return all that a cell printed and displayed."""
    shown = [output.get("text") or output["data"]["text/plain"] for output in cell.outputs]
    return "\n".join(shown)


@pytest.mark.process
def test_a_rank_proves_its_settings_and_trains_as_the_plain_loop_does(tmp_path):
    done = tmp_path / "inside.ipynb"
    notebook.execute(paths.notebook_template("11_inside"), done, {"steps": 2})
    cells = [cell for cell in nbformat.read(done, as_version=4).cells if cell.cell_type == "code"]
    shown = "\n".join(map(text_of, cells))
    assert "DeepSpeed built weights bfloat16 instead of float32; choose settings" in shown
    # Four bytes of the weights and gradients in bf16, twelve of fp32 masters and Adam's moments.
    assert "weights=2, gradients=2, optimizer=12" in shown
    difference = float(
        cells[-1].outputs[0]["data"]["text/plain"].removeprefix("np.float64(").rstrip(")")
    )
    assert 0 < difference < 0.02  # losses of about 6, rounded to bf16
