"""Records of one run that contradict each other: the run is a row with the contradiction as its cause, no evidence."""

import json
import shutil

import pytest

import dsnb
from dsnb.base.files import json_files
from dsnb.settings.records.agreement import TimedSteps, contradiction
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.run_record import RunRecord
from tests import ROOT

EXAMPLES = ROOT / "outputs" / "examples" / "quickstart"
EXAMPLE = next(EXAMPLES.glob("zs0_*_gpus2_bs8_sl128_stdlib"))
"""Two ranks, 8 sequences of 128 tokens each, 20 timed steps after 3 of warm-up."""
RATE = json_files.read_json(RunPaths(EXAMPLE / "run1").result)["summary"]["tokens_per_s"]
SETTINGS = {"gpus": 2, "micro_batch_size": 4, "grad_accum": 1, "seq_len": 125, "steps": 10}
SUMMARY = {
    "tokens_per_s": 2000.0,
    "tokens_per_s_per_gpu": 1000.0,
    "step_time_mean_s": 0.5,
    "timed_steps": 10,
}
STEPS = TimedSteps(10, 10, 0.5, 1000.0)
"""2 x 4 x 125 = 1,000 tokens a step of 0.5 s: 2,000 tokens/s."""


def change(path, **fields):
    json_files.write_json(path, {**json_files.read_json(path), **fields})


def change_summary(path, factor, *names):
    summary = json_files.read_json(path)["summary"]
    change(path, summary={**summary, **{name: factor * summary[name] for name in names}})


def rewrite(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines))


def slow_down(run, factor):
    steps = [json.loads(line) for line in run.steps.read_text().splitlines()]
    rewrite(
        run.steps,
        [json.dumps({**step, "step_time_s": factor * step["step_time_s"]}) for step in steps],
    )


def cut(run):
    rewrite(run.steps, run.steps.read_text().splitlines()[:-5])


def double(run):
    rewrite(run.steps, 2 * run.steps.read_text().splitlines())


def repeat_half(run):
    lines = run.steps.read_text().splitlines()
    rewrite(run.steps, [*lines[:13], *lines[3:13]])


def rate(times):
    return f"{times * RATE:,.4g}"


IN_RESULT, BY_BATCH = (
    "tokens_per_s in result.json is",
    "by its step time and the batch in experiment.json it is",
)
CHANGES = {
    "cut": ("steps.jsonl has 15 of 20 timed steps", cut),
    "doubled": ("steps.jsonl has 40 timed steps instead of 20", double),
    "half repeated": ("steps.jsonl has 10 timed steps more than once", repeat_half),
    "one GPU": (
        "gpus is 1 in experiment.json, but result.json has exit codes of 2 ranks",
        lambda run: change(run.experiment, gpus=1),
    ),
    "16 GPUs": (
        f"{IN_RESULT} {rate(1)}, but by its tokens_per_s_per_gpu on 16 GPUs it is {rate(8)}",
        lambda run: change(run.experiment, gpus=16),
    ),
    "three times the rate": (
        f"{IN_RESULT} {rate(3)}, but by its tokens_per_s_per_gpu on 2 GPUs it is {rate(1)}",
        lambda run: change_summary(run.result, 3, "tokens_per_s"),
    ),
    "three times both rates": (
        f"{IN_RESULT} {rate(3)}, but {BY_BATCH} {rate(1)}",
        lambda run: change_summary(run.result, 3, "tokens_per_s", "tokens_per_s_per_gpu"),
    ),
    "twice the length": (
        f"{IN_RESULT} {rate(1)}, but {BY_BATCH} {rate(2)}",
        lambda run: change(run.experiment, seq_len=256),
    ),
    "slower steps": (
        f"{IN_RESULT} {rate(1)}, but by the steps in steps.jsonl it is {rate(1 / 3)}",
        lambda run: slow_down(run, 3),
    ),
    "another step": (
        "steps is 21 in experiment.json, but timed_steps is 20 in result.json",
        lambda run: change(run.experiment, steps=21),
    ),
}


@pytest.mark.parametrize(("problem", "edit"), CHANGES.values(), ids=CHANGES)
def test_a_run_whose_records_contradict_each_other_is_no_evidence(tmp_path, problem, edit):
    shutil.copytree(EXAMPLE, tmp_path / "sweep" / EXAMPLE.name)
    run = RunPaths(tmp_path / "sweep" / EXAMPLE.name / "run1")
    assert RunRecord(run).unfinished() is None
    edit(run)
    assert RunRecord(run).unfinished() == problem
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
    assert found(settings={"pipeline_parallel": 2}) is not None
    assert found(settings={"pipeline_parallel": 2, "grad_accum": 2}) is None
    assert found(settings={"grad_accum": 2, "micro_batch_size": 2}) is None
    assert found(tokens_per_s_per_gpu=980.0) is not None  # on two GPUs
    assert found(step_time_mean_s=0.51) is not None
    assert found(steps=TimedSteps(10, 10, 0.51, 1000.0)) is not None
    assert found(steps=TimedSteps(10, 10, 0.5, 1020.0)) is not None
    assert found(steps=TimedSteps(10, 9, 0.5, 1000.0)) is not None
    rows = [{"step": 1, "step_time_s": 0.25, "tokens": 40}, {"step": 1, "step_time_s": 0.75}, {}]
    assert TimedSteps.of(rows) == TimedSteps(3, 2, 0.5, 40.0)


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
    assert (
        contradiction({**SETTINGS, "micro_batch_size": "auto"}, {"summary": SUMMARY}, STEPS) is None
    )
    assert contradiction(SETTINGS, {"summary": dict.fromkeys(SUMMARY)}, TimedSteps(10, 10)) is None


def test_steps_are_read_only_where_the_file_has_changed_since_the_result(tmp_path):
    shutil.copytree(EXAMPLE, tmp_path / "sweep" / EXAMPLE.name)
    run = RunPaths(tmp_path / "sweep" / EXAMPLE.name / "run1")
    change(run.result, steps_bytes=run.steps.stat().st_size)
    assert dsnb.load_runs(tmp_path)["status"].tolist() == ["ok", "ok"]
    double(run)
    assert dsnb.load_runs(tmp_path)["status"].tolist() == ["interrupted", "ok"]
