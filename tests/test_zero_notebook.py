"""ZeRO 0 to 3 on one page: its cells run, and its sentences hold for the published runs."""

import matplotlib.pyplot as plt
import pytest

from tests.support.notebooks import run_cells


@pytest.fixture(scope="module")
def tables():
    variables = {}
    with plt.rc_context({"backend": "agg"}):
        run_cells("01_zero", variables)
    yield variables
    plt.close("all")


def medians(table, by, column="tokens_per_s_per_gpu"):
    return table.groupby(by)[column].median()


def test_every_section_has_its_figure(tables):
    assert len(plt.get_fignums()) == 7
    assert all(figure.get_axes()[0].get_title() for figure in map(plt.figure, plt.get_fignums()))


def test_stages_on_two_gpus(tables):
    memory = medians(tables["partitioned"], "strategy", "peak_allocated_gib")
    assert 1.7 < memory["DDP"] / memory["ZeRO 2"] < 2
    assert memory["ZeRO 3"] > memory["ZeRO 2"]
    speed = medians(tables["partitioned"], "strategy")
    assert speed.idxmin() == "ZeRO 3"
    assert (tables["memory"]["measured_gib"] > tables["memory"]["theory_gib"]).all()


def test_stages_on_one_gpu(tables):
    speed = medians(tables["alone"], ["compiled", "zero_stage"]).unstack()
    assert (speed[3] / speed[0]).between(0.35, 0.6).all()


def test_formats_and_compilation(tables):
    speed = medians(tables["formats"], ["precision", "compiled", "mixed_precision"]).unstack()
    assert speed.stack().idxmax() == ("bf16", "CUDA graphs", "autocast")
    assert (
        speed["autocast"].max() > 1.5 * medians(tables["formats"].query("compile != 'reduce-overhead'"), "format").max()
    )
    both = speed.dropna()
    assert len(both) == 4
    assert (both["autocast"] > both["native"]).all()


def test_accumulation_takes_memory_once(tables):
    memory = medians(tables["accumulated"], ["model", "grad_accum"], "peak_allocated_gib").unstack()
    assert (memory[4] > 1.1 * memory[1]).all()
    assert (memory[16] / memory[4]).between(0.99, 1.01).all()


def test_recomputing_costs_speed_and_saves_memory(tables):
    speed = medians(tables["recomputed"], ["model", "recomputed"]).unstack()
    assert (speed["every block"] / speed["none"]).between(0.49, 0.78).all()
    assert (speed["every block"] < speed["every 2nd block"]).all()
    memory = medians(tables["recomputed"], ["model", "recomputed"], "peak_allocated_gib").unstack()
    assert (memory["every block"] / memory["none"]).between(0.5, 0.85).all()
    assert (memory["every block"] < memory["every 2nd block"]).all()


def test_offload_is_slow_and_small(tables):
    speed = medians(tables["large"], "offload")
    memory = medians(tables["large"], "offload", "peak_allocated_gib")
    for offload in ("optimizer-cpu", "all-cpu"):
        assert speed[offload] < 0.2 * speed["none"]
        assert memory[offload] < 0.5 * memory["none"]
