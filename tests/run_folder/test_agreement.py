"""Records of one run that contradict each other: the run is a row with the contradiction as its cause, no evidence."""

import json
import shutil

import pytest

import dsnb
from dsnb.files import records
from dsnb.run_folder.agreement import TimedSteps, contradiction
from dsnb.run_folder.paths import RunPaths
from dsnb.run_folder.result import unfinished
from tests import ROOT

EXAMPLE = ROOT / "outputs" / "examples" / "quickstart" / "zs0_fp32_gpus2_bs8_sl128_stdlib"
"""Two ranks, 8 sequences of 128 tokens each, 40 timed steps after 5 of warm-up."""
RATE = 11216.029303723757
SETTINGS = {"gpus": 2, "micro_batch_size": 4, "grad_accum": 1, "seq_len": 125, "steps": 10}
SUMMARY = {"tokens_per_s": 2000.0, "tokens_per_s_per_gpu": 1000.0, "step_time_mean_s": 0.5, "timed_steps": 10}
STEPS = TimedSteps(10, 10, 0.5, 1000.0)
"""2 x 4 x 125 = 1,000 tokens a step of 0.5 s: 2,000 tokens/s."""


def change(path, **fields):
    records.write_json(path, {**records.read_json(path), **fields})


def change_summary(path, factor, *names):
    summary = records.read_json(path)["summary"]
    change(path, summary={**summary, **{name: factor * summary[name] for name in names}})


def rewrite(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines))


def slow_down(run, factor):
    steps = [json.loads(line) for line in run.steps.read_text().splitlines()]
    rewrite(run.steps, [json.dumps({**step, "step_time_s": factor * step["step_time_s"]}) for step in steps])


def cut(run):
    rewrite(run.steps, run.steps.read_text().splitlines()[:-10])


def double(run):
    rewrite(run.steps, 2 * run.steps.read_text().splitlines())


def repeat_half(run):
    lines = run.steps.read_text().splitlines()
    rewrite(run.steps, [*lines[:25], *lines[5:25]])


CHANGES = {
    "steps.jsonl has 30 of 40 timed steps": cut,
    "steps.jsonl has 80 timed steps instead of 40": double,
    "steps.jsonl has 20 timed steps more than once": repeat_half,
    "gpus is 1 in experiment.json, but result.json has exit codes of 2 ranks": (
        lambda run: change(run.experiment, gpus=1)
    ),
    "tokens_per_s in result.json is 1.122e+04, but by its tokens_per_s_per_gpu on 16 GPUs it is 8.973e+04": (
        lambda run: change(run.experiment, gpus=16)
    ),
    "tokens_per_s in result.json is 3.365e+04, but by its tokens_per_s_per_gpu on 2 GPUs it is 1.122e+04": (
        lambda run: change_summary(run.result, 3, "tokens_per_s")
    ),
    "tokens_per_s in result.json is 3.365e+04, but by its step time and the batch in experiment.json it is 1.122e+04": (
        lambda run: change_summary(run.result, 3, "tokens_per_s", "tokens_per_s_per_gpu")
    ),
    "tokens_per_s in result.json is 1.122e+04, but by its step time and the batch in experiment.json it is 2.243e+04": (
        lambda run: change(run.experiment, seq_len=256)
    ),
    "tokens_per_s in result.json is 1.122e+04, but by the steps in steps.jsonl it is 3,739": (
        lambda run: slow_down(run, 3)
    ),
    "steps is 41 in experiment.json, but timed_steps is 40 in result.json": (
        lambda run: change(run.experiment, steps=41)
    ),
}


@pytest.mark.parametrize("problem", CHANGES)
def test_a_run_whose_records_contradict_each_other_is_no_evidence(tmp_path, problem):
    shutil.copytree(EXAMPLE, tmp_path / "sweep" / EXAMPLE.name)
    run = RunPaths(tmp_path / "sweep" / EXAMPLE.name / "run1")
    assert unfinished(run) is None
    CHANGES[problem](run)
    assert unfinished(run) == problem
    runs = dsnb.load_runs(tmp_path)
    assert runs["status"].tolist() == ["interrupted", "ok"]
    assert runs["cause"].tolist()[0] == f"{problem}; start the sweep again"
    assert dsnb.summarize(runs)[["n", "n_failed"]].values.tolist() == [[1, 1]]


def test_figures_that_agree_but_for_rounding_do_agree():
    def found(settings=None, steps=STEPS, **summary):
        result = {"exit_codes": {"0": 0, "1": 0}, "summary": {**SUMMARY, **summary}}
        return contradiction({**SETTINGS, **(settings or {})}, result, steps)

    assert found() is None
    assert found(tokens_per_s=2010.0) is None
    assert found(tokens_per_s=2030.0) is not None
    assert found(settings={"gpus": 4}) is not None
    assert found(settings={"tensor_parallel": 2}) is not None
    assert found(settings={"tensor_parallel": 2, "micro_batch_size": 8}) is None


def test_exit_codes_tell_the_ranks_where_no_figure_does():
    eight = {"exit_codes": dict.fromkeys(map(str, range(8)), 0)}
    found = contradiction({"gpus": 16}, {**eight, "summary": {"tokens_per_s": 2000.0}})
    assert found == "gpus is 16 in experiment.json, but result.json has exit codes of 8 ranks"
    assert contradiction({"gpus": 8}, eight) is None
    some = {"exit_codes": {"0": 0}, "summary": SUMMARY}  # the launch ended after the last step
    assert contradiction(SETTINGS, some, STEPS) is None


def test_what_is_not_recorded_contradicts_nothing():
    assert contradiction({}, {"summary": {"tokens_per_s": 5.0}}, STEPS) is not None
    assert contradiction({}, {}, STEPS) is None
    assert contradiction({}, {"summary": SUMMARY}) is None
    assert contradiction({**SETTINGS, "micro_batch_size": "auto"}, {"summary": SUMMARY}, STEPS) is None
    assert contradiction(SETTINGS, {"summary": dict.fromkeys(SUMMARY)}, TimedSteps(10, 10)) is None


def test_steps_are_read_only_where_the_file_has_changed_since_the_result(tmp_path):
    shutil.copytree(EXAMPLE, tmp_path / "sweep" / EXAMPLE.name)
    run = RunPaths(tmp_path / "sweep" / EXAMPLE.name / "run1")
    change(run.result, steps_bytes=run.steps.stat().st_size)
    assert dsnb.load_runs(tmp_path)["status"].tolist() == ["ok", "ok"]
    double(run)
    assert dsnb.load_runs(tmp_path)["status"].tolist() == ["interrupted", "ok"]
