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


SPEED, MEMORY = "tokens/s/GPU", "peak allocated memory (GiB)"


def medians(table, by, figure=SPEED):
    return table[table["figure"] == figure].groupby(by)["value"].median()


def test_every_section_has_its_figure(tables):
    assert len(plt.get_fignums()) == 7


def test_stages_on_two_gpus(tables):
    two = tables["long"].query(tables["two_gpus"])
    memory, speed = medians(two, "strategy", MEMORY), medians(two, "strategy")
    assert 1.7 < memory["DDP"] / memory["ZeRO 2"] < 2
    assert memory["ZeRO 3"] > memory["ZeRO 2"]
    assert speed.idxmin() == "ZeRO 3"
    assert tables["memory"]["measured_gib"].to_dict() == memory.to_dict()
    assert (tables["memory"]["measured_gib"] > tables["memory"]["theory_gib"]).all()


def test_stages_on_one_gpu(tables):
    speed = medians(tables["stages"], ["mode", "strategy"]).unstack()
    assert (speed["ZeRO 3"] / speed["ZeRO 0"]).between(0.35, 0.6).all()


def test_formats_and_compilation(tables):
    speed = medians(tables["formats"], ["precision", "mode", "mixed_precision"]).unstack()
    assert speed.stack().idxmax() == ("bf16", "CUDA graphs", "autocast")
    eager = speed.xs("eager", level="mode").stack()
    assert speed["autocast"].max() / eager["bf16", "autocast"] > eager.max() / eager.min()
    both = speed.dropna()
    assert len(both) == 4
    assert (both["autocast"] > both["native"]).all()


def test_accumulation_takes_memory_once(tables):
    memory = medians(tables["accumulated"], ["model", "grad_accum"], MEMORY).unstack()
    assert (memory[4] > 1.1 * memory[1]).all()
    assert (memory[16] / memory[4]).between(0.99, 1.01).all()


def test_recomputing_costs_speed_and_saves_memory(tables):
    speed = medians(tables["recomputed"], ["model", "recomputed"]).unstack()
    assert (speed["every block"] / speed["none"]).between(0.49, 0.78).all()
    assert (speed["every block"] < speed["every 2nd block"]).all()
    memory = medians(tables["recomputed"], ["model", "recomputed"], MEMORY).unstack()
    assert (memory["every block"] / memory["none"]).between(0.5, 0.85).all()
    assert (memory["every block"] < memory["every 2nd block"]).all()


def test_offload_is_slow_and_small(tables):
    speed, memory = medians(tables["large"], "offload"), medians(tables["large"], "offload", MEMORY)
    for offload in ("optimizer-cpu", "all-cpu"):
        assert speed[offload] < 0.2 * speed["none"]
        assert memory[offload] < 0.5 * memory["none"]
