"""The notebooks on design, scaling, planning and memory: their cells run, and their figures are looked at."""

import re
from urllib.parse import unquote

import pytest

import dsnb
from dsnb.prediction import traces
from tests.prediction.made_up import RECORD
from tests.support import foreign_logs, made_up
from tests.support.notebooks import run_cells


def pictures(shown):
    """Give the SVG of each figure."""
    return [unquote(text) for text in re.findall('data:image/svg[+]xml,([^"]*)', "".join(shown))]


def test_the_form_starts_nothing_by_itself(tmp_path):
    folders = {"params_dir": str(tmp_path / "params"), "outputs_dir": str(tmp_path / "outputs")}
    settings = {"model": "gpt2-tiny", "strategy": ["deepspeed", "ddp"], "device": "cpu"}
    text = "".join(run_cells("00_design", settings=settings, **folders))
    assert "20 runs: 5 experiments x 4" in text
    assert "DDP shards nothing" in text
    assert list(tmp_path.iterdir()) == []


def test_scaling_of_published_data_alone():
    shown = run_cells("30_scaling")
    drawn = pictures(shown)
    assert len(drawn) == 6, "two of each of three tables"
    assert all("#0072b2" in picture and "#e69f00" in picture for picture in drawn)
    text = "".join(shown)
    assert "30,327,296" in text
    assert "98.15" in text
    assert "147, but 91,168 tokens/s would be 12.7" in text
    assert "is super-linear, relative to the tokens/s/GPU on 1" in text, "OPT on one GPU was measured on another host"


def test_a_plan_from_predictions_and_published_data(tmp_path, monkeypatch):
    """With a cache of made-up traces, so that no model is traced."""
    monkeypatch.setenv("DSNB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(traces, "_trace", lambda group: dict.fromkeys(group, RECORD))
    sizes = {"model": "bloom-7b1", "gpus": 48, "seq_len": 1024, "device": "cuda"}
    traces.traces([dsnb.Experiment(**sizes, micro_batch_size=size) for size in (1, 2)])
    text = "".join(run_cells("40_plan", prices={"A100": 2.5}, currency="€"))
    name = "bloom-7b1_zs1_bf16_gpus48_bs2_sl1024_ga256"
    assert "8 of 8 settings fit on A100, which has 79 GiB (8 predicted)." in text
    assert "Fewest days: bloom-7b1_" in text
    assert re.search(f"{name}</th>|{name}</td>", text)
    assert "100 billion tokens: 19 days, 21,888 GPU-hours, €54,720 at €2.50 a GPU-hour" in text
    assert "No price is given for NVIDIA H200, MI150X" in text
    assert "<h3>bloom-7b1, sequence 1024</h3>" in text
    assert "<h3>bloom-7b1, sequence 2048</h3>" in text


@pytest.mark.parametrize("name", ["30_scaling", "40_plan"])
def test_ones_own_logs_beside_them(tmp_path, name):
    mine = {"runs_dir": str(foreign_logs.write_all(tmp_path / "mine")), "published": ["lambda_1cc_opt"]}
    assert "DeepSpeed-Chat log" in "".join(run_cells(name, **mine, **({"model": ""} if name == "40_plan" else {})))


def test_memory_of_published_data_and_of_ones_own_runs(tmp_path):
    every = {"model": "", "seq_len": 0}
    shown = run_cells("50_memory", published=["h200_memory", "bigscience_1b3"], **every)
    assert len(pictures(shown)) == 4
    assert "checkpointing on → checkpointing off" in "".join(shown)
    assert "ZeRO 0 → ZeRO 3" in "".join(shown)
    narrow = {"model": ["opt-350m"], "precision": ["bf16"], "grad_accum": [1], "seq_len": [512], "gpus": [2]}
    made_up.write_folders(made_up.runs(96, **narrow), tmp_path / "mine")
    base = "opt-350m_zs0_bf16_gpus2_bs8_sl512_ga1"
    shown = run_cells("50_memory", runs_dir=str(tmp_path / "mine"), published=[], base=base, **every)
    assert len(pictures(shown)) == 2
    assert "checkpointing off → checkpointing on" in "".join(shown)
    assert len(pictures(run_cells("50_memory", published=["lambda_1cc_opt"], **every))) == 2
