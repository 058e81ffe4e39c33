"""Published rows of other programs: how they are read and predicted, and what is made of the errors."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from benchmarks.outside import fitting, rows, summary
from dsnb.prediction.step_time import ATTENTION_GAINS, step_times
from tests import ROOT

SAMPLE = 12
"""Every n-th row is predicted again."""


@pytest.fixture(scope="module")
def published():
    return rows.read()


def speeds(some):
    """Return the predicted tokens/s of a GPU of rows."""
    steps_s = step_times([row.counts() for row in some]).step_time_s
    tokens = [row.experiment.tokens_per_step / row.experiment.gpus for row in some]
    return np.asarray(tokens) / np.asarray(steps_s)


def test_committed_speeds_are_those_of_a_sample_predicted_again(published):
    committed = pd.read_csv(rows.HERE / "predicted.csv")
    timed = [row for row in published if row.published["tps"]]
    assert committed["measured"].tolist() == pytest.approx(
        [row.published["tps"] for row in timed], rel=1e-5
    )
    sample = timed[::SAMPLE]
    assert speeds(sample) == pytest.approx(committed["predicted"].tolist()[::SAMPLE], rel=0.01)
    ratios = committed["predicted"] / committed["measured"]
    assert ratios.tolist() == pytest.approx(committed["ratio"].tolist(), rel=1e-4)


def test_every_row_of_the_file_is_expressible(published):
    assert [row.problem for row in published if row.problem] == []
    assert len({row.source.split()[0] for row in published}) == 12


def test_rows_that_cannot_be_expressed_say_why(tmp_path):
    usual = {
        "source": "someone/something README.md",
        "model": "Llama",
        "cfg": "models/llama-7b.json",
        "gpu": "H100",
        "gpus": 8,
        "nodes": 1,
        "link": "nvlink",
        "settings": {"strategy": "fsdp"},
        "tps": 1000.0,
        "oom": False,
        "group": "",
    }
    changes = [
        {},
        {"gpu": "Z9"},
        {"cfg": "models/none.json"},
        {"settings": {"strategy": "fsdp", "colour": "red"}},
        {"settings": {"strategy": "fsdp", "precision": "fp16"}},
        {"link": "string"},
        {"settings": None},
    ]
    missing = {name: value for name, value in usual.items() if name != "settings"}
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([*({**usual, **change} for change in changes), missing]))
    found = rows.read(file)
    problems = [row.problem for row in found]
    assert problems[0] == ""
    words = ("unknown GPU 'Z9'", "none.json", "unknown setting 'colour'", "FSDP2", "link is")
    for problem, expected in zip(problems[1:], words, strict=False):
        assert expected in problem
    assert all(problems[1:])
    assert problems[-1] == "the row has no 'settings'"
    bare = {name: usual[name] for name in ("cfg", "gpu", "gpus", "link", "settings", "tps")}
    file.write_text(json.dumps([{**bare, "note": None, "nodes": None}, missing]))
    table = rows.predicted(rows.read(file))
    assert summary.by_gpu(table)[0].name == "H100, one node"
    assert len(summary.problem_lines(table)) == 2


def test_what_is_known_of_a_program_is_kept_unless_the_row_contradicts_it(published):
    of_source = {row.source.split("/")[1].split()[0]: row for row in published}
    foundry = of_source["llm-foundry"]
    assert foundry.kernel == "triton"
    assert (foundry.experiment.loss, foundry.as_published.loss) == ("chunked", "whole")
    assert of_source["InternEvo"].experiment.grad_accum_dtype in {"bf16", "auto"}
    usual = of_source["TinyLlama"]
    assert (usual.kernel, usual.experiment) == ("flash2", usual.as_published)
    contradicting = {**foundry.published, "settings": {"strategy": "fsdp", "loss": "chunked"}}
    contradicting["settings"]["pipeline_parallel"] = 2
    assert rows.row_of(contradicting, rows.HERE).experiment is None


def test_attention_of_a_program_takes_as_long_as_its_kernel(published):
    row = next(row for row in published if row.kernel == "triton" and row.gpu == "H100")
    own, of_dsnb = row.counts(), row.counts_of_dsnb()
    share = rows.KERNELS["triton"]["H100"]
    assert own.attention_flops_per_s == pytest.approx(share * of_dsnb.attention_flops_per_s)
    assert own.peak_flops == of_dsnb.peak_flops


MADE_UP = pd.DataFrame(
    {
        "gpu": ["A100", "A100", "H100"],
        "nodes": [1, 1, 2],
        "source": ["a", "b", "a"],
        "group": ["g", "g", ""],
        "experiment": ["x", "y", "z"],
        "measured": [100.0, 200.0, 100.0],
        "predicted": [200.0, 100.0, 100.0],
        "of_dsnb": [200.0, 200.0, 100.0],
        "ratio": [2.0, 0.5, 1.0],
        "low": [150.0, 50.0, 90.0],
        "high": [250.0, 250.0, 110.0],
        "error_pct": [10.0, 30.0, 5.0],
        "mem": [10.0, 20.0, np.nan],
        "memory_gib": [11.0, 16.0, 1.0],
        "memkind": ["peak", "peak", ""],
        "oom": [False, False, True],
        "fits": [True, False, True],
        "tight": [True, False, False],
        "problem": ["", "", ""],
    }
)


def test_errors_by_hand():
    """Twice and half the measured speed are both 100 % off, and one of two is within the printed range."""
    a100, h100, every, _ = summary.by_gpu(MADE_UP)
    assert (a100.name, a100.rows) == ("A100, one node", 2)
    assert a100.mean_pct == pytest.approx(100)
    assert a100.median_pct == pytest.approx(100)
    assert a100.bias_pct == pytest.approx(0)
    assert (a100.printed_pct, a100.within_pct) == (20, 50)
    assert h100.name == "H100, several nodes"
    assert every.mean_pct == pytest.approx(100 * (2 ** (2 / 3) - 1))
    assert [one.name for one in summary.by_source(MADE_UP)] == ["a", "b"]


def test_memory_shortages_and_regret_by_hand():
    (peak,) = summary.memory_errors(MADE_UP)
    assert (peak.rows, peak.mean_pct, peak.bias_pct) == pytest.approx((2, 15, -5))
    assert summary.fit_lines(MADE_UP) == [
        "settings that ran and are predicted not to fit: 1 of 2",
        "settings that ran and are predicted to fit tightly: 1 of 2",
        "shortages that are predicted to fit: 1 of 1",
    ]
    assert "| peak (n = 2) | 15 % off on average |" in summary.memory_table(MADE_UP)
    (regret,) = summary.regrets(MADE_UP)
    assert (regret.group, regret.settings, regret.lost_pct) == ("g", 2, 100)
    same = MADE_UP.assign(experiment="x")  # one setting for dsnb: nothing to choose
    assert list(summary.regrets(same)) == []


def test_the_fit_finds_gains_that_rows_were_made_with(published):
    """Rows that are predicted exactly are fitted by the gains in use, and those 1.2 times as fast by higher ones."""
    some = fitting.fittable(published, ("A100",))[::6]
    in_use = np.log(fitting.row_gains(next(row for row in some if row.kernel == "triton")))

    def made(faster):
        changed = []
        for row, speed in zip(some, speeds(some), strict=True):
            changed.append(rows.replace(row, published={**row.published, "tps": faster * speed}))
        return changed

    exact = fitting.fit(made(1.0), prior=in_use)
    assert exact == pytest.approx(in_use, abs=1e-6)
    faster = fitting.fit(made(1.1), prior=in_use, spread=np.array([1.0, 1e-6, 1e-6, 1e-6]))
    assert 1.05 < np.exp(faster[0] - in_use[0]) < 1.2


def test_gains_in_use_are_those_that_fit_the_rows(published):
    for names in fitting.CHIPS:
        products, attention, memory, triton = np.exp(
            fitting.fit(fitting.fittable(published, names))
        )
        for name in names:
            assert fitting.tuned.TUNED["gpu_gains"][name] == pytest.approx(
                [products, memory], rel=0.02
            )
            assert ATTENTION_GAINS[name] == pytest.approx([attention], rel=0.02)
            assert rows.KERNELS["triton"][name] == pytest.approx(triton, rel=0.02)


def test_sources_left_out_of_the_fit_are_predicted(published):
    found = fitting.left_out(fitting.fittable(published, fitting.CHIPS[0]))
    errors = {source.split("/")[1].split()[0]: mean for source, (_, mean, _) in found.items()}
    for source in ("llm-foundry", "torchtitan", "fms-fsdp", "InternEvo", "vectorlm"):
        assert errors[source] < 10


@pytest.mark.process
def test_the_command_names_rows_that_it_cannot_express(tmp_path):
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([{"source": "a/b", "model": "m", "gpu": "H100"}]))
    command = [sys.executable, "-m", "benchmarks.outside", str(file)]
    command += ["--write", str(tmp_path / "out.csv")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert "1 of 1 rows are not expressible" in done.stdout
    assert "m on H100 (a/b): the row has no" in done.stdout
    assert (tmp_path / "out.csv").read_text().startswith("source,gpu,nodes,predicted,measured")
