"""The notebooks on published runs: their cells run, they have their figures, and their sentences hold."""

import re
from dataclasses import replace
from unittest import mock
from urllib.parse import unquote

import matplotlib.pyplot as plt
import pytest

import dsnb
from dsnb.prediction import traces
from tests.prediction.made_up import keep_traces
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


def test_the_first_notebook_answers_for_a_model_and_gpu_and_draws_the_answer(tmp_path, monkeypatch):
    keep_traces(monkeypatch, tmp_path / "cache")
    names = {}
    text = "".join(run_cells("0_start", names, model="gpt2", gpu="H100", gpus=2, price=2.5))
    assert "gpt2 on 2 H100" in text
    assert "at $2.50 a GPU-hour" in text
    settings = names["answer"].settings
    assert settings[0] in text
    assert [label.get_text() for label in names["axes"][0, 0].get_yticklabels()] == settings
    plt.close("all")
    unfit = replace(names["answer"], table=names["answer"].table.head(0))
    monkeypatch.setattr(dsnb, "recommend", lambda *_, **__: unfit, raising=False)
    run_cells("0_start", model="gpt2")
    assert plt.get_fignums() == []


def test_scaling_of_published_data_alone(monkeypatch):
    load = dsnb.load_runs
    some = "source != 'published: h200' or model in ['opt-350m', 'opt-13b']"
    monkeypatch.setattr(dsnb, "load_runs", lambda *given: load(*given).query(some), raising=False)
    shown = run_cells("30_scaling")
    drawn = pictures(shown)
    assert len(drawn) == 3, "one of each table"
    assert all("#0072b2" in picture and "#e69f00" in picture for picture in drawn)
    text = "".join(shown)
    assert "30,327,296" in text
    assert "98.15" in text
    assert "147, but 91,168 tokens/s would be 12.7" in text
    assert text.count("is super-linear") == 1
    assert "113 % on 2 GPUs, relative to 1 GPU" in text, "OPT on one GPU was measured elsewhere"
    plt.close("all")


def test_a_plan_from_predictions_and_published_data(tmp_path, monkeypatch):
    """With a cache of made-up traces, so that no model is traced."""
    keep_traces(monkeypatch, tmp_path / "cache")
    sizes = {"model": "bloom-7b1", "gpus": 48, "seq_len": 1024, "device": "cuda"}
    traces.traces([dsnb.Experiment(**sizes, micro_batch_size=size) for size in (1, 2)])
    text = "".join(
        run_cells(
            "40_plan",
            published=["jean_zay_bloom7b"],
            tokens=100e9,
            prices={"A100": 2.5},
            currency="€",
        )
    )
    assert "8 of 8 settings fit on A100, which has 79 GiB (8 predicted)." in text
    assert (
        "Train with ZeRO 0, bf16, micro-batch 2, 256 accumulated (predicted) on 48 A100, " in text
    )
    assert "<p>All: bf16, 256 accumulated.</p>" in text
    assert ">ZeRO 1, micro-batch 2</td>" in text
    assert "100 billion tokens: 19 days, 21,888 GPU-hours, €54,720 at €2.50 a GPU-hour" in text
    assert "<h3>bloom-7b1, sequence 1024</h3>" in text
    assert "<h3>bloom-7b1, sequence 2048</h3>" in text
    logs = foreign_logs.write_all(tmp_path / "logs")
    text = "".join(run_cells("40_plan", runs_dir=str(logs), published=["lambda_1cc_opt"], model=""))
    assert "DeepSpeed-Chat log" in text


def test_memory_of_published_data_and_of_your_runs(tmp_path):
    narrow = {
        "model": ["opt-350m"],
        "precision": ["bf16"],
        "grad_accum": [1],
        "micro_batch_size": [8],
        "gpus": [2],
    }
    made_up.write_folders(made_up.runs(8, repeats=1, **narrow), tmp_path / "mine")
    chosen = {"model": "", "seq_len": 0, "base": "opt-350m_zs0_bf16_gpus2_bs8_sl512_ga1"}
    shown = run_cells(
        "50_memory", runs_dir=str(tmp_path / "mine"), published=["bigscience_1b3"], **chosen
    )
    assert len(pictures(shown)) == 4
    assert "nothing recomputed → blocks recomputed" in "".join(shown)


@pytest.fixture(scope="module")
def tables():
    """Give the variables of the notebook; its bars, which take seconds, are drawn when the documentation is built."""
    variables = {}
    with plt.rc_context({"backend": "agg"}), pytest.MonkeyPatch.context() as patch:
        catplot = mock.Mock(**{"return_value.set_titles.return_value": None})
        patch.setattr("seaborn.catplot", catplot)
        run_cells("01_zero", variables)
    assert catplot.call_count == 6
    yield variables
    plt.close("all")


SPEED, MEMORY = "tokens/s/GPU", "peak allocated memory (GiB)"


def medians(table, by, figure=SPEED):
    return table[table["figure"] == figure].groupby(by)["value"].median()


def test_stages_on_one_gpu_and_two(tables):
    two = tables["long"].query(tables["two_gpus"])
    memory, speed = medians(two, "parallelism", MEMORY), medians(two, "parallelism")
    assert 1.7 < memory["DDP"] / memory["ZeRO 2"] < 2
    assert memory["ZeRO 3"] > memory["ZeRO 2"]
    assert speed.idxmin() == "ZeRO 3"
    assert tables["memory"]["measured_gib"].to_dict() == memory.to_dict()
    assert (tables["memory"]["measured_gib"] > tables["memory"]["theory_gib"]).all()
    speed = medians(tables["stages"], ["mode", "parallelism"]).unstack()
    assert (speed["ZeRO 3"] / speed["ZeRO 0"]).between(0.35, 0.6).all()


def test_formats_and_compilation(tables):
    speed = medians(tables["formats"], ["precision", "mode", "mixed_precision"]).unstack()
    assert speed.stack().idxmax() == ("bf16", "CUDA graphs", "autocast")
    eager = speed.xs("eager", level="mode").stack()
    assert speed["autocast"].max() / eager["bf16", "autocast"] > eager.max() / eager.min()
    both = speed.dropna()
    assert len(both) == 4
    assert (both["autocast"] > both["native"]).all()


def test_accumulation_takes_memory_once_and_recomputing_saves_it(tables):
    memory = medians(tables["accumulated"], ["model", "grad_accum"], MEMORY).unstack()
    assert (memory[4] > 1.1 * memory[1]).all()
    assert (memory[16] / memory[4]).between(0.99, 1.01).all()
    speed = medians(tables["recomputed"], ["model", "recomputed"]).unstack()
    assert (speed["every block"] / speed["none"]).between(0.45, 0.78).all()
    assert (speed["every block"] < speed["every 2nd block"]).all()
    memory = medians(tables["recomputed"], ["model", "recomputed"], MEMORY).unstack()
    assert (memory["every block"] / memory["none"]).between(0.5, 0.85).all()
    assert (memory["every block"] < memory["every 2nd block"]).all()
    speed, memory = medians(tables["large"], "offload"), medians(tables["large"], "offload", MEMORY)
    for offload in ("optimizer-cpu", "all-cpu"):
        assert speed[offload] < 0.2 * speed["none"]
        assert memory[offload] < 0.5 * memory["none"]
