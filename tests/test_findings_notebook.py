"""What we found: the notebook's cells run, and the figures in its sentences are those of the published runs."""

import re

import matplotlib.pyplot as plt
import nbformat
import pytest

from dsnb.results.literature import tables
from dsnb.settings.records import paths
from tests import ROOT
from tests.support.notebooks import run_cells


@pytest.fixture(scope="module")
def found():
    variables = {}
    plt.close("all")  # figures that other tests left
    with plt.rc_context({"backend": "agg"}):
        run_cells("02_findings", variables)
        assert len(plt.get_fignums()) == 10
    yield variables
    plt.close("all")


def says(number, *phrases):
    """Assert that the section of a finding has these phrases."""
    cells = nbformat.read(paths.notebook_template("02_findings"), as_version=4).cells
    text = " ".join(cell.source for cell in cells if cell.cell_type == "markdown")
    section = " ".join(re.split(r"## (?:\d+\. |What next)", text)[number].split())
    for phrase in phrases:
        assert phrase in section, phrase


def log():
    return "".join(
        path.read_text() for path in [ROOT / "docs" / "LOG.md", *(ROOT / "docs").glob("log/*.md")]
    )


def test_zero_on_one_gpu(found):
    speed, memory = found["stage_speed"], found["stages"]["peak_allocated_gib"]
    says(1, f"{100 * speed[3].min():.0f} to {100 * speed[3].max():.0f} % of the speed")
    more = memory[3] - memory[0]
    says(
        1,
        f"{more.min():.1f} to {more.max():.1f} GiB",
        *(f"up to {100 - 100 * speed[n].min():.0f} %" for n in (1, 2)),
    )
    says(1, f"gains up to {100 * speed[1].max() - 100:.0f} %")


def test_formats_and_graphs(found):
    speed = found["formats"]["tokens_per_s"]
    gain = speed["autocast"] / speed["native"]
    says(2, f"{gain.min():.1f} to {gain.max():.1f} times")
    modes = found["modes"]
    small = modes["CUDA graphs"] / modes.T
    says(3, f"{small['gpt2, 32 x 128']['eager']:.1f} times as fast as eager")
    says(3, f"{small['gpt2, 32 x 128']['compiled']:.1f} times as fast as compiled")
    says(3, f"gains {100 * small['gpt2-medium, 12 x 1024']['compiled'] - 100:.0f} % over compiled")
    graphs = found["usual"].query("gpus == 1 and mode == 'CUDA graphs'")
    zero = graphs[graphs["zero_stage"].isin([0]) | (graphs["strategy"] == "plain")]
    zero = zero.pivot_table("tokens_per_s", "work", ["strategy", "mixed_precision"], "median")
    share = zero["deepspeed"].div(zero["plain"]["native"], axis=0)
    assert share["autocast"].dropna().between(0.98, 1.02).all()
    gemma, pythia = 100 * share["native"][["gemma-3-1b, 32 x 1024", "pythia-410m, 8 x 256"]]
    says(3, f"Gemma 3 1B reaches {gemma:.0f} % of it and Pythia 410M {pythia:.0f} %")


def test_unused_memory(found):
    unused = found["unused"].loc["bloom-1b7_zs2_gpus1_bs6_sl1024_chunked-loss"]
    says(4, f"{unused['default']:.1f} GiB that it does not use, and {unused['expandable']:.1f} GiB")
    assert (found["unused"]["expandable"] < found["unused"]["default"]).all()


def test_zero_3_on_two_gpus(found):
    share = 100 * found["share"]
    says(5, f"{share['ZeRO 3'].iloc[0]:.0f} and {share['ZeRO 3'].iloc[1]:.0f} % of ZeRO 1")
    says(
        5,
        f"OPT-1.3B ({share['ZeRO 3, weights kept'].iloc[1]:.0f} %)",
        f"XL ({share['ZeRO 3, weights kept'].iloc[0]:.0f} %)",
    )
    assert set(share["FSDP"].round()) == {98, 99}


def test_checkpointing_and_chunked_loss(found):
    speed, memory = (
        found["checkpointing"][name] for name in ("tokens_per_s", "peak_allocated_gib")
    )
    cost, saved = (100 - 100 * table.div(table["none"], axis=0) for table in (speed, memory))
    for way, words in (("every block", "saves {:.0f} to"), ("every 2nd block", "saves at most")):
        says(
            6,
            f"costs {cost[way].min():.0f} to {cost[way].max():.0f} %",
            words.format(saved[way].min()),
        )
    says(
        6,
        f"at most {saved['every 2nd block'].max():.0f} %",
        f"to {saved['every block'].max():.0f} % of the memory",
    )
    lora = (
        found["ok"]
        .query("model == 'opt-13b' and gpus == 2 and mode == 'compiled'")
        .groupby("blocks")
        .median(numeric_only=True)
    )
    for figure, digits in (("tokens_per_s", ",.0f"), ("peak_allocated_gib", ".1f")):
        says(6, *(format(lora[figure][way], digits) for way in ("every block", "every 2nd block")))
    change = found["change"]
    says(7, f"{-change['peak_allocated_gib'].min():.0f} % of the memory")
    says(7, f"medium +{change['tokens_per_s'].max():.0f} %")
    says(7, f"{-change['peak_allocated_gib'].max():.0f} % for compiled OPT-1.3B")


def test_errors_of_gradients_are_those_of_the_log(found):
    for error in found["errors"].stack().dropna():
        assert {f"{error:.1f} %", f"{error:.0f} %"} & set(re.findall(r"[\d.]+ %", log())), error


def test_accumulation(found):
    steps = tables.steps("published: h200")
    steps = steps[steps["experiment"].isin(found["curves"]["experiment"])]
    bf16, fp32 = (part.set_index("step")["loss"] for _, part in steps.groupby("experiment"))
    more = (bf16 - fp32).mean()
    says(
        9, f"{more:.3f} higher on average over {len(fp32)} steps ({100 * more / fp32.mean():.1f} %)"
    )
    assert f"{more:.3f} higher on average" in (ROOT / "docs" / "questions.md").read_text()
    assert "{}, {}, {} % in steps 2 to 4".format(*found["norm_error"]["summed in bf16"]) in log()


def test_hosts(found):
    spread = found["hosts"].max(axis=1)
    says(10, f"by up to {spread.max():.0f} times")
    limited = spread[spread.index.str.contains("zs[012]_fp32|plain_fp32|reduce-overhead")]
    assert 0.04 < limited.max() - 1 < 0.05
