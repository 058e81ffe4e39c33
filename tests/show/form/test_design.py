"""The form: fields, rows and buttons, the plan, and the sweep that it starts and stops."""

import asyncio
import html
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pandas as pd
import pytest

import dsnb
from dsnb.base.errors import SettingsError
from dsnb.base.system import hardware
from dsnb.measure.sweep.params import load_sweep
from dsnb.results.runs.number_text import span, supported
from dsnb.settings.records import paths
from dsnb.show.form import design as module
from dsnb.show.form import process
from dsnb.show.form.design import plan, predicted, shown
from dsnb.show.form.fields import Row
from tests import ROOT
from tests.prediction.made_up import TRACE, keep_traces
from tests.support.waiting import wait_until, wait_until_ended

SHARED = {
    "model": "gpt2-tiny",
    "device": "cpu",
    "gpus": 1,
    "precision": "fp32",
    "warmup_steps": 5,
    "steps": 20,
}
SMALL = {
    **SHARED,
    "zero_stage": [0, 3],
    "micro_batch_size": 2,
    "seq_len": 32,
    "warmup_steps": 1,
    "steps": 400,
}
GRID = {"zero_stage": [0, 1], "strategy": ["deepspeed", "ddp"]}
REASON = (
    "zero_stage is 1, but strategy is 'ddp': DDP shards nothing; leave "
    "zero_stage at 0, or use strategy 'deepspeed'"
)


@pytest.fixture
def design(tmp_path):
    """Give a form that writes below a folder of the test."""
    return dsnb.design(
        SMALL, name="small", folder=tmp_path / "params", outputs=tmp_path / "outputs"
    )


def test_settings_are_chosen_and_added(design):
    form = design.form
    assert [*form.rows][:4] == ["model", "gpus", "zero_stage", "precision"]
    assert "8 runs: 2 experiments x 4" in design.table.value
    assert form.content["grid"] == {"zero_stage": [0, 3]}  # others have one value
    assert form.content["defaults"]["micro_batch_size"] == 2
    form.repeats.value = 1
    assert "2 runs: 2 experiments x 1" in design.table.value
    stages = form.rows["zero_stage"]
    stages.controls[1].value = True
    assert form.content["grid"]["zero_stage"] == [0, 1, 3]
    for control in stages.controls:
        control.value = False
    assert "zero_stage" not in {**form.content["grid"], **form.content["defaults"]}
    form.new.value = "zero_stag"
    form.add_button.click()
    assert "unknown setting &#x27;zero_stag&#x27;" in form.message.value
    form.new.value = "grad_accum"
    form.add_button.click()
    assert (form.content["defaults"]["grad_accum"], form.message.value) == (1, "")
    form.add("deepspeed.zero_optimization.reduce_scatter", [True])
    assert form.content["defaults"]["deepspeed.zero_optimization.reduce_scatter"] is True


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("8, 16", [8, 16]), (" auto ", ["auto"]), ("off", [False]), ("a/b-350m, gpt2", ["a/b-350m", "gpt2"])],
)  # fmt: skip
def test_typed_values(text, wanted):
    row = Row("x", [], lambda: None)
    row.controls[0].value = text
    assert row.values == wanted


@pytest.mark.parametrize(
    ("name", "chosen", "wanted"),
    [
        ("precision", ["auto", "fp32"], ["auto", "fp32"]),
        ("precision", ["int8"], ["int8"]),  # is not dropped for the default: a sweep refuses it
        ("activation_checkpointing", [True], [True]),
    ],
)
def test_chosen_values_are_kept(name, chosen, wanted):
    assert Row(name, chosen, lambda: None).values == wanted


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("]", "seq_len is ']': line 1: this is not valid YAML"),
        ("32, x", "refused: seq_len is 'x': give a whole number"),
    ],
)
def test_a_bad_value_is_a_sentence(design, text, problem, tmp_path):
    design.form.rows["seq_len"].controls[0].value = text
    assert html.unescape(design.table.value).count(problem) == 1
    if text != "32, x":  # whose other value can be run
        design.start()
        assert "The params file is not written" in design.message.value
        assert list(tmp_path.iterdir()) == []


def test_a_reason_that_several_settings_share_is_said_once(design):
    design.form.add("precision", ["int8"])
    design.refresh()
    text = html.unescape(design.table.value)
    assert text.count("precision is 'int8'") == 1
    assert "(2 settings)" in text
    assert text.count("<td>refused</td>") == 2


def test_the_model_is_searched_in_a_list_or_typed(design):
    (field,) = design.form.rows["model"].controls
    assert {"gpt2", "llama-3.1-8b"} <= set(field.options)
    field.value = "my/model"
    assert design.form.content["defaults"]["model"] == "my/model"


def test_a_recommendation_is_shown_and_taken_into_the_form(design, monkeypatch, tmp_path):
    keep_traces(monkeypatch, tmp_path / "cache")
    form = design.form
    form.add("model", ["gpt2"])
    form.add("gpus", [2])
    form.add("device", ["cuda"])
    form.gpu.value = "H100"
    design.recommend_button.click()
    assert design.message.value == '<p role="status"></p>'
    assert "gpt2 on 2 H100" in design.recommended.value
    design.adopt_button.click()
    best = design.answer.experiments[0]
    given = form.content["defaults"]
    taken = {
        name: getattr(best, name)
        for name in given
        if name not in {"device", "steps", "warmup_steps"}
    }
    assert given == {**given, **taken}
    assert given["steps"] == SMALL["steps"]
    assert form.content["grid"] == {}
    assert "gpt2 on 2 H100" in design.recommended.value
    form.gpu.value = "A100"
    shown = (design.answer, design.recommended.value, design.adopt_button.layout.display)
    assert shown == (None, "", "none"), "it was about another GPU"


def test_a_model_that_cannot_be_recommended_for_is_named_once(design):
    design.form.rows["model"].controls[0].value = "gpt99"
    design.recommend_button.click()
    assert design.message.value.startswith('<p role="status">Nothing is recommended: ')
    assert design.message.value.count("gpt99") == 1
    assert (design.recommended.value, design.adopt_button.layout.display) == ("", "none")


@pytest.mark.process
def test_a_sweep_is_written_started_and_stopped(design, tmp_path):
    write, start, stop = design.buttons[1:]
    write.click()
    assert f"dsnb sweep {design.path} --output {design.output}</p>" in design.message.value
    assert dsnb.load_sweep(design.path, output=tmp_path / "outputs" / "small") == design.plan.sweep
    design.form.repeats.value = 1
    start.click()  # writes it, too
    assert dsnb.load_sweep(design.path, output=tmp_path / "outputs" / "small") == design.plan.sweep
    wait_until(lambda: design.process.lines, "the sweep has begun")
    start.click()
    assert "A sweep is running: stop it, or wait until it ends." in design.message.value
    stop.click()
    assert "Stopping" in design.message.value
    design.stop()
    assert process.STOPPED in design.message.value, design.process.lines
    assert design.log.outputs[0]["text"].splitlines() == design.process.lines
    assert sorted(each.name for each in tmp_path.iterdir()) == ["outputs", "params"]
    design.outputs = paths.outputs_root()
    write.click()
    assert f"the same sweep is: dsnb sweep {design.path}</p>" in design.message.value


def test_a_foreign_file_is_kept(design):
    design.path.parent.mkdir()
    design.path.write_text("mine")
    design.start()
    assert "small.yaml exists already: choose another name, or delete it." in design.message.value
    assert (design.path.read_text(), design.process) == ("mine", None)


def test_in_a_kernel_the_end_of_a_sweep_is_shown(design, monkeypatch):
    started = SimpleNamespace(code=None, end="", lines=[])
    monkeypatch.setattr(module, "SweepProcess", lambda *_: started)
    monkeypatch.setattr(module, "POLL_S", 0.01)

    async def user():
        design.start()
        started.code, started.end = 3, process.ENDS[3]
        await design._following

    with ThreadPoolExecutor(
        1
    ) as kernel:  # another test may have left an event loop running in this thread
        kernel.submit(asyncio.run, user()).result()
    assert "Finished, but not every run is ok" in design.message.value


@pytest.mark.parametrize(
    ("name", "known"), [("NVIDIA H200", "H200"), ("NVIDIA GeForce GT 710", "")]
)
def test_predictions_are_for_this_machines_gpu_if_it_is_known(monkeypatch, name, known):
    monkeypatch.setattr(
        hardware, "gpus", lambda: [hardware.InstalledGpu(0, name, "GPU-0", 80.0, (9, 0))]
    )
    monkeypatch.setattr(
        module, "predicted", lambda plan, *given: plan.table.assign(fits=True, note=f"for {given}")
    )
    monkeypatch.setattr(
        module, "shown", lambda plan, table: table.get("note", pd.Series([""])).iloc[0]
    )
    design = dsnb.design(SMALL)
    assert design.form.gpu.value == known
    design.buttons[0].click()
    assert design.table.value == ("for ('H200', 'nvlink', 0.0)" if known else "")
    assert ("Choose a GPU" in design.message.value) == (not known)


@pytest.mark.parametrize(
    "given", [{"gpu": "H900"}, {"link": "string"}, {"settings": {"zero_stag": 1}}]
)
def test_what_a_form_cannot_begin_with(given):
    with pytest.raises(SettingsError, match=r"H900|string|did you mean 'zero_stage'"):
        dsnb.design(**given)


def test_a_sweep_is_started_in_the_forms_folder_by_a_command_that_a_shell_reads(
    monkeypatch, tmp_path
):
    words = []

    def start(*given):
        words.extend(given)
        return SimpleNamespace(code=0, end="", lines=[])

    monkeypatch.setattr(module, "SweepProcess", start)
    design = dsnb.design(
        SMALL, name="small", folder=tmp_path / "my params", outputs=tmp_path / "my outputs"
    )
    design.start()
    path, output = f"{tmp_path}/my params/small.yaml", f"{tmp_path}/my outputs/small"
    assert words == [path, "--output", output]
    quoted = f"dsnb sweep '{path}' --output '{output}'"
    assert f"Started: {quoted}</p>" in html.unescape(design.message.value)


def test_a_sweep_has_a_session_of_its_own_and_is_interrupted_once(monkeypatch):
    sent = []

    class Started:
        pid = 7
        code = None

        def __init__(self, words, stdout, **options):
            self.words, self.options = words, options
            stdout.write(b"\x1b[31mred\x1b[0m\nplain\n")
            stdout.flush()

        def poll(self):
            return self.code

        def send_signal(self, number):
            sent.append(number)

    monkeypatch.setattr(process.subprocess, "Popen", Started)
    sweep = process.SweepProcess("x.yaml")
    started = sweep._process
    assert started.words[-2:] == ["sweep", "x.yaml"]
    assert started.options["start_new_session"] is True  # interrupting the kernel does not reach it
    assert "\x1b" not in "".join(sweep.lines)
    assert sweep.lines[1] == "plain"
    sweep.stop()
    sweep.stop()
    assert sent == [signal.SIGINT]
    assert sweep.end == ""
    for code, end in (
        (0, "Finished: every run is ok."),
        (3, "Finished, but not every run is ok: the report says why."),
        (-signal.SIGINT, "Stopped: finished runs are kept, start it again to go on."),
        (-signal.SIGKILL, "The sweep failed, killed by signal 9 (SIGKILL)"),
    ):
        monkeypatch.setattr(Started, "code", code)
        assert sweep.end.startswith(end)


@pytest.mark.process
def test_how_a_sweep_ended(tmp_path):
    stopped, failed = (
        process.SweepProcess("no.yaml"),
        process.SweepProcess(str(tmp_path / "no.yaml")),
    )
    stopped.stop()  # before it has begun
    stopped.wait()
    failed.wait()
    assert (stopped.end, stopped.lines) == (
        "Stopped: finished runs are kept, start it again to go on.",
        [],
    )
    assert failed.end == "The sweep failed, exit code 1: its last lines are below."
    assert (
        f"params file '{tmp_path}/no.yaml' cannot be read: No such file or directory"
        in " ".join(failed.lines)
    )


@pytest.mark.process
def test_a_sweep_ends_with_its_kernel():
    code = (
        "import os, subprocess, sys; from dsnb.show.form import process\n"
        "process.interpreter.command = lambda *words: [sys.executable, '-P', '-c', CHILD, words[2], *words[3:]]\n"
        "print(process.SweepProcess('x').pid, flush=True); sys.stdin.read()"
    )
    child = (
        "import sys, time; from dsnb.base.system import signals\n"
        "signals.die_with_parent(int(sys.argv[1])); time.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code.replace("CHILD", repr(child))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    pid = int(parent.stdout.readline())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    wait_until_ended([pid])


def content(grid=GRID, repeats=2, question="Why?", **shared):
    defaults = {**SHARED, **shared}
    return {
        "name": "x",
        "question": question,
        "defaults": defaults,
        "grid": grid,
        "repeats": repeats,
    }


@pytest.fixture
def planned(tmp_path):
    """Give a function that plans in a folder of the test."""
    return lambda **given: plan(content(**given), tmp_path / "x.yaml", tmp_path / "out")


@pytest.fixture
def traced(monkeypatch):
    monkeypatch.setattr(
        "dsnb.prediction.predict.traces", lambda experiments: [TRACE] * len(experiments)
    )


def test_runs_are_counted_and_refused_settings_left_out(planned):
    made = planned()
    assert list(made.table["refused"]) == ["", "", "", REASON]
    names = [f"{way}_fp32_gpus1_bs8_sl128" for way in ("ddp", "zs0", "zs1")]
    assert sorted(run.name for run in made.sweep.runs) == sorted(names * 2)
    assert "exclude:\n- zero_stage: 1\n  strategy: ddp\n" in made.text
    text = html.unescape(shown(made, made.table))
    assert "6 runs: 3 experiments x 2<" in text
    assert f"refused: {REASON}" in text


@pytest.mark.parametrize("question", ["", "- [a: b] # c", "wie groß? 漢字", "2024-01-01"])
def test_what_is_written_reads_back_to_the_same_experiments(planned, tmp_path, question):
    grid = {**GRID, "micro_batch_size": [1, 2], "gradient_clipping": [0.0, 1e-06]}
    grid["deepspeed.zero_optimization.reduce_scatter"] = [True, False]
    made = planned(grid=grid, question=question)
    (tmp_path / "x.yaml").write_text(made.text)
    sweep = load_sweep(tmp_path / "x.yaml", output=tmp_path / "out")
    assert (sweep, sweep.question) == (made.sweep, question)
    accepted = sorted(each.model_dump_json() for each in made.experiments.values())
    assert 1 < len(accepted) < len(made.table)
    assert sorted({run.experiment.model_dump_json() for run in sweep.runs}) == accepted


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"grid": {}, "zero_stage": 1, "strategy": "ddp"}, "every setting is refused: change one"),
        ({"grid": {"seed": list(range(6000))}}, "grid: 12,000 runs: at most 10,000 are allowed; split the sweep"),
        ({"grid": {"steps": [5, 6]}},
         "two experiments are named 'zs0_fp32_gpus1_bs8_sl128': they differ only in steps; put each into its "
         "own sweep"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_a_sentence(planned, given, problem):
    made = planned(**given)
    assert (made.problems, made.sweep) == ([problem], None)
    assert "<li>" in shown(made, made.table)


def test_figures_are_those_of_predict_with_their_errors(planned, traced):
    made = planned(model="opt-350m", gpus=1, seq_len=2048, price_per_gpu_hour=2.0)
    table = predicted(made, "H200", "nvlink", 1e9)
    wanted = dsnb.predict([*made.experiments.values()], "H200", tokens=1e9, price=2.0)
    for column in ("fits", "peak_allocated_gib", "tokens_per_s", "days", "cost"):
        assert list(table[column][:3]) == list(wanted[column])
    assert table.iloc[3].isna()[["fits", "tokens_per_s", "cost"]].all()
    text = shown(made, table)
    row = wanted.iloc[0]
    assert f"{row['peak_allocated_gib']:,.1f} ± {row['peak_allocated_error_pct']:.1f} %" in text
    ends = span(row["tokens_per_s_low"], row["tokens_per_s_high"])
    speed = supported(row["tokens_per_s"], row["tokens_per_s_error_pct"] / 100)
    assert f"{speed} ({ends})" in text
    assert "<th>cost</th>" in text
    assert predicted(made, "T4", "nvlink", 1e9)["fits"].eq(False)[:3].all()


def test_what_cannot_be_predicted_stands_beside_what_can_and_is_escaped(
    planned, traced, monkeypatch
):
    made = planned(
        grid={"model": ["opt-350m", "someone/a-model", "<script>alert(1)</script>"]}, gpus=1
    )
    table = predicted(made, "H200", "nvlink", 1e9)
    assert list(table["fits"].isna()) == [False, True, True]
    assert table["note"][1].startswith("model is 'someone/a-model': a prediction needs")
    for each in (made.table, table):
        assert "<script>" not in shown(made, each)
        assert "&lt;script&gt;" in shown(made, each)

    def fails(*_, **__):
        raise OSError("no such model")

    monkeypatch.setattr(module, "predict", fails)
    assert (
        predicted(made, "H200", "nvlink", 1e9)["note"][0] == "nothing is predicted: no such model"
    )


def test_the_link_and_the_tokens_of_the_form_are_predicted_with(planned, monkeypatch):
    given = {}

    def fails(experiments, gpu, **options):
        given.update(options, gpu=gpu)
        raise OSError("stopped")

    monkeypatch.setattr(module, "predict", fails)
    predicted(planned(model="opt-350m"), "H200", "pcie", 2e9)
    assert given == {"gpu": "H200", "link": "pcie", "tokens": 2e9}
    predicted(planned(model="opt-350m"), "H200", "pcie", 0.0)
    assert given["tokens"] is None  # as usual
