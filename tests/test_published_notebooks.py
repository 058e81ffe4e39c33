"""The notebooks on design, scaling, planning and memory, executed as a reader would, and their figures looked at."""

import re
from urllib.parse import unquote

import nbformat
import pytest

import dsnb
from dsnb.execute import notebook
from dsnb.prediction import traces
from dsnb.run_folder import paths
from tests.prediction.made_up import RECORD
from tests.support import foreign_logs, made_up

pytestmark = pytest.mark.process


def execute(name, tmp_path, **parameters):
    target = tmp_path / f"{name}.ipynb"
    notebook.execute(paths.notebook_template(name), target, parameters)
    cells = nbformat.read(target, as_version=4).cells
    return [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]


def shown(outputs):
    return "\n".join(str(output.get("data", {}).get("text/html", "")) for output in outputs)


def pictures(outputs):
    """Give the SVG of each figure."""
    marks = [part.split('"')[0] for part in shown(outputs).split("data:image/svg+xml,")[1:]]
    return [unquote(mark) for mark in marks]


def test_the_form_starts_nothing_by_itself(tmp_path):
    folders = {"params_dir": str(tmp_path / "params"), "outputs_dir": str(tmp_path / "outputs")}
    settings = {"model": "gpt2-tiny", "strategy": ["deepspeed", "ddp"], "device": "cpu"}
    outputs = execute("00_design", tmp_path, settings=settings, **folders)
    assert "20 runs: 5 experiments x 4" in shown(outputs)
    assert "DDP shards nothing" in shown(outputs)
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert [path.name for path in tmp_path.iterdir()] == ["00_design.ipynb"]


def test_scaling_of_published_data_alone(tmp_path):
    outputs = execute("30_scaling", tmp_path)
    drawn = pictures(outputs)
    assert len(drawn) == 6, "two of each of three tables"
    for picture in drawn:
        assert "#0072b2" in picture
        assert "#e69f00" in picture
    text = shown(outputs)
    assert "30,327,296" in text
    assert "98.15" in text
    assert "is super-linear, relative to the tokens/s/GPU on 1" in text, "OPT on one GPU was measured on another host"
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]


@pytest.fixture
def traced(tmp_path, monkeypatch):
    """Put made-up traces of the settings of `40_plan` into a cache, so that no model is traced."""
    monkeypatch.setenv("DSNB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(traces, "_trace", lambda group: dict.fromkeys(group, RECORD))
    sizes = {"model": "bloom-7b1", "gpus": 48, "seq_len": 1024, "device": "cuda"}
    traces.traces([dsnb.Experiment(**sizes, micro_batch_size=size) for size in (1, 2)])


def test_a_plan_from_predictions_and_published_data(tmp_path, traced):
    outputs = execute("40_plan", tmp_path, prices={"A100": 2.5}, currency="€")
    text = shown(outputs)
    name = "bloom-7b1_zs1_bf16_gpus48_bs2_sl1024_ga256"
    assert "8 of 8 settings fit on A100, which has 79 GiB (8 predicted)." in text
    assert "Fewest days for 100 billion tokens: bloom-7b1_" in text
    assert re.search(f"{name}</th>|{name}</td>", text)
    assert "on 48 A100, 19 days, 21,888 GPU-hours, €54,720" in text
    assert "No price is given for NVIDIA H200, MI150X" in text
    assert "147, but 91,168 tokens/s would be 12.7" in text
    assert "<h3>bloom-7b1, sequence 1024</h3>" in text
    assert "<h3>bloom-7b1, sequence 2048</h3>" in text
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]


@pytest.mark.parametrize("name", ["30_scaling", "40_plan"])
def test_ones_own_logs_beside_them(tmp_path, name):
    folder = foreign_logs.write_all(tmp_path / "mine")
    text = shown(
        execute(
            name,
            tmp_path,
            runs_dir=str(folder),
            published=["lambda_1cc_opt"],
            **({"model": ""} if name == "40_plan" else {}),
        )
    )
    assert "DeepSpeed-Chat log" in text


def test_memory_of_published_data_alone(tmp_path):
    outputs = execute("50_memory", tmp_path)
    assert len(pictures(outputs)) == 6
    text = shown(outputs)
    assert "checkpointing on → checkpointing off" in text
    assert "ZeRO 0 → ZeRO 3" in text
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]


def test_memory_of_ones_own_runs(tmp_path):
    narrow = {"model": ["opt-350m"], "precision": ["bf16"], "grad_accum": [1], "seq_len": [512], "gpus": [2]}
    made_up.write_folders(made_up.runs(96, **narrow), tmp_path / "mine")
    mine = {"runs_dir": str(tmp_path / "mine"), "published": [], "base": "opt-350m_zs0_bf16_gpus2_bs8_sl512_ga1"}
    text = shown(outputs := execute("50_memory", tmp_path, **mine))
    assert len(pictures(outputs)) == 2
    assert "checkpointing off → checkpointing on" in text
    empty = execute("50_memory", tmp_path, published=["lambda_1cc_opt"])
    assert len(pictures(empty)) == 2
    assert not [output for output in (*outputs, *empty) if output.get("name") == "stderr"]
