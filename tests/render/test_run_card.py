"""One run in a notebook: figures in the units of the report, and what a run out of memory lacked."""

import re

from dsnb.files import records
from dsnb.render.run_card import card
from dsnb.run_folder.paths import RunPaths
from dsnb.run_folder.result import Result

FIGURES = {"tokens_per_s": 2000.0, "tokens_per_s_per_gpu": 1000.0, "step_time_s": 0.125, "peak_allocated_gib": 1.5}


def shown(status, folder, cause=None, **summary):
    return card(Result(status, cause, {0: 1}, {"wall": 3.0}, summary, folder / "zs<1>" / "run1")).text


def rows(text):
    return re.findall(r"<tr><th[^>]*>(.*?)</th><td>(.*?)</td></tr>", text)


def test_an_ok_run_begins_with_its_most_important_figures(tmp_path):
    text = shown("ok", tmp_path, **FIGURES, mfu=0.4567, loss_first=6.0, note="a <note>")
    assert text.startswith("<h3>zs&lt;1&gt;: ok</h3><table>")
    top, folded = text.split("<details><summary>All figures</summary>")
    assert rows(top) == [
        ("tokens/s", "2,000"), ("tokens/s/GPU", "1,000"), ("step time (ms)", "125.0"),
        ("peak memory allocated (GiB)", "1.50"), ("MFU (%)", "45.7"),
    ]  # fmt: skip
    assert "a &lt;note&gt;" in top
    assert ("loss_first", "6") in rows(folded)
    assert ("wall time: wall (s)", "3.0") in rows(folded)
    one_rank = shown("ok", tmp_path, tokens_per_s=10.0, tokens_per_s_per_gpu=10.0).split("<details>")[0]
    assert rows(one_rank) == [("tokens/s", "10")]


def test_a_run_out_of_memory_shows_what_it_lacked(tmp_path):
    run = RunPaths(tmp_path / "zs<1>" / "run1")
    run.dir.mkdir(parents=True)
    records.write_json(run.experiment, {"model": "gpt2", "device": "cuda", "micro_batch_size": 8, "seq_len": 1024})
    records.write_json(run.environment, {"gpus": [{"name": "A", "memory_gib": 80.0}]})
    run.console.write_text("line <1>\n")
    found = {"oom_phase": "optimizer", "oom_step": 1, "oom_allocated_gib": 70.125, "oom_requested_gib": 12.0}
    text = shown("oom", tmp_path, "rank 0: <i>", **found)
    top, _ = text.split("<details><summary>All figures</summary>")
    assert rows(top) == [
        ("allocated (GiB)", "70.12"), ("requested on top (GiB)", "12.00"), ("memory of the GPU (GiB)", "80.00"),
        ("phase", "optimizer step"),
    ]  # fmt: skip
    assert "rank 0: &lt;i&gt;" in top
    assert "line &lt;1&gt;" in top
    assert "raise zero_stage" not in top  # on one GPU it changes nothing
    assert "use several GPUs with zero_stage 3" in top


def test_other_failures_have_advice_and_no_memory(tmp_path):
    text = shown("nan", tmp_path, "the loss was not a finite number at step 3")
    assert "lower learning_rate" in text
    assert "GiB" not in text
