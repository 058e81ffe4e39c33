"""Nonsense in records: rows that say so, one-line errors and warnings, and never a traceback."""

import contextlib
import io
import json
import random
import shutil
import warnings
from dataclasses import replace

import pytest

import dsnb
from dsnb.analysis.choices import variants
from dsnb.analysis.summary import timing
from dsnb.cli import printing
from dsnb.errors import DsnbWarning, SettingsError
from dsnb.launcher import auto_batch_size
from dsnb.launcher.figures import summarize_run
from dsnb.launcher.outcome import run_status
from dsnb.render import all_reduce, answer, node_report, plots, tables
from dsnb.run_folder.paths import RunPaths
from dsnb.sweep import job
from dsnb.sweep.params import load_sweep
from dsnb.sweep.run import is_finished
from tests.support import nonsense

PARAMS = {
    "name": "t", "question": "Is it?", "defaults": {"model": "gpt2-tiny", "precision": "fp32", "device": "cpu"},
    "grid": {"zero_stage": [0, 1], "seq_len": [32]}, "include": [{"zero_stage": 3, "grad_accum": [1, 2]}],
    "exclude": [{"zero_stage": 1, "seq_len": 64}], "repeats": 2, "expect_samples_per_s": 3.5,
}  # fmt: skip
BANDWIDTH = {"bytes": 8, "count": 2, "dtype": "float32", "ranks": 2, "calls": 20, "time_us": 3.5, "errors": 0}
BANDWIDTH |= {"algbw_gb_per_s": 1.0, "busbw_gb_per_s": 1.0}


@pytest.fixture(scope="session")
def real(swept):
    """Give the records of a real run, and those that only other runs leave."""
    folder = next(swept.glob("*/run1"))
    names = ["experiment.json", "environment.json", "result.json", "worker.json", "steps.jsonl"]
    found = {name: [json.loads(line) for line in _lines(folder / name)] for name in names}
    machine = found["environment.json"][0]
    found["experiment.json"][0] |= {"hostfile": "/x/hosts", "include": "n1"}
    node = {"host": "n1", "ranks": [0], "exit_codes": {"0": 0}, "environment": machine}
    found["nodes.json"] = [{"shared_storage": True, "nodes": [node], "differences": ["torch: 1 on n1"]}]
    found["gpu.jsonl"] = [{"t_s": 0.25, "gpu": 0, "util_pct": 90, "power_w": 300.0, "memory_used_gib": 3.5}] * 2
    found["profile.json"] = [{"forward_s": 0.1, "step_s": 0.4, "ended_s": 9.5, "missing": {"trace": "none"}}]
    shortage = {"phase": "forward", "step": 2, "allocated_gib": 3.5, "reserved_gib": 4.0, "requested_gib": 1.25}
    found["failures.jsonl"] = [{"rank": 0, "status": "oom", "cause": "it fell over", **shortage}]
    found["worker.json"][0] |= {"energy_j": 350.0, "power_source": "energy counter", "update_rms": 1e-3}
    found["result.json"][0]["summary"] |= {"energy_j": 350.0, "oom_phase": "forward", "oom_step": 2, "note": "slow"}
    found["slurm.json"] = [{"name": "dsnb-t-0", "job": "17", "state": "submitted", "script": "/x/job.sh"}]
    found["run.ipynb"] = [{"cells": [], "metadata": {"papermill": {"default_parameters": {}, "duration": 3.5}}}]
    return found


def _lines(path):
    text = path.read_text()
    return text.splitlines() if path.suffix == ".jsonl" else [text]


@contextlib.contextmanager
def only_our_warnings():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert [str(one.message) for one in caught if not issubclass(one.category, DsnbWarning)] == []
    assert [str(one.message) for one in caught if "\n" in str(one.message)] == []


def read_like_a_sweep(run, experiment):
    """Ask of a run what a sweep, its probes, Slurm jobs and a launch ask."""
    with contextlib.suppress(SettingsError):
        is_finished(run)
    with contextlib.suppress(SettingsError):
        job.load_run(run.paths)
    job.read_result(run.paths)
    run_status(experiment, run.paths, {0: 0}, 0)
    summarize_run(experiment, run.paths)


def show_like_a_report(folder, charts):
    runs, steps = dsnb.load_runs(folder), dsnb.load_steps(folder)
    summary = dsnb.summarize(runs)
    shown = [tables.heading(folder), tables.summary_table(summary), tables.failures(runs), tables.environment(runs)]
    shown += [tables.settings(runs), tables.timing_table(timing(runs)), answer.answer(runs)]
    parts = variants(runs)
    if charts:
        part = next(iter(parts.values()))
        shown += [
            plots.overview(part),
            plots.losses(steps, part),
            *node_report.section(runs),
            *all_reduce.section(folder),
        ]
    page = dsnb.explore(runs)._fragment(folder)
    assert "<script" not in "".join(map(str, shown))
    assert page.count("<script") == 1
    json.loads(page.partition('<script type="application/json">')[2].partition("</script>")[0])
    for format_ in printing.Format:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            printing.print_summary(runs, format_)
            with contextlib.suppress(SettingsError):
                printing.print_groups(runs, format_)
        assert all(one.isprintable() or one == "\n" for one in out.getvalue())
    if len(runs) and (profiled := plots.step_parts(runs["run_dir"].iloc[0])):
        shown.append(profiled)
    return runs


def campaign(draw, home, real, batches, runs_a_batch, charts_every):
    """Read batches of nonsense in every way; return how many records it was."""
    (home / "t.yaml").write_text(json.dumps(PARAMS))
    planned = load_sweep(home / "t.yaml", output=home / "out").runs[0]
    count = 0
    for batch in range(batches):
        folder = home / "out"
        experiments = ["zs0", "zs1_fp32_gpus1_bs8_sl32", "x"]
        names = [f"{draw.choice(experiments)}/run{number}" for number in range(runs_a_batch)]
        for number, name in enumerate(names):
            here = {**real["nodes.json"][0]["nodes"][0], "host": f"n{number % 4}"}
            nodes = [{**real["nodes.json"][0], "nodes": [here]}]
            count += nonsense.write_run(draw, folder / name, {**real, "nodes.json": nodes})
        for plan in ("bandwidth.json", "bandwidth.jsonl", "result.json", "environment.json"):
            path = folder / "bandwidth" / "run1" / plan
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(nonsense.spelled(draw, nonsense.mutated(draw, {**BANDWIDTH, "status": "ok"})) + b"\n")
        with only_our_warnings():
            for name in names:
                read_like_a_sweep(replace(planned, paths=RunPaths(folder / name)), planned.experiment)
                auto_batch_size.recorded_status(planned.experiment, RunPaths(folder / name))
            runs = show_like_a_report(folder, charts=batch % charts_every == 0)
        assert len(runs) == sum((folder / name / "experiment.json").is_file() for name in names)
        count += 4
        shutil.rmtree(folder)
    return count


def test_nonsense_in_records_is_rows_errors_and_warnings(tmp_path, real):
    assert campaign(random.Random(5), tmp_path, real, batches=1, runs_a_batch=60, charts_every=1) >= 300
