"""The form: its fields, rows and buttons, what they come to, and the sweep that it starts and stops."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest

import dsnb
from dsnb.designer import design as module
from dsnb.designer import process
from dsnb.designer.design import plan, predicted, shown
from dsnb.designer.form import Row
from dsnb.errors import SettingsError
from dsnb.run_folder import paths
from dsnb.sweep.params import load_sweep
from dsnb.system import hardware
from tests import ROOT
from tests.prediction.made_up import TRACE
from tests.support import made_up
from tests.support.waiting import WAIT_S, wait_until, wait_until_ended

SHARED = {"model": "gpt2-tiny", "device": "cpu", "gpus": 1, "precision": "fp32", "warmup_steps": 5, "steps": 20}
SMALL = {**SHARED, "zero_stage": [0, 3], "micro_batch_size": 2, "seq_len": 32, "warmup_steps": 1, "steps": 400}
GRID = {"zero_stage": [0, 1], "strategy": ["deepspeed", "ddp"]}
REASON = (
    "zero_stage is 1, but strategy is 'ddp': DDP shards nothing; leave zero_stage at 0, or use strategy 'deepspeed'"
)


@pytest.fixture
def design(tmp_path):
    """Give a form that writes below a folder of the test."""
    return dsnb.design(SMALL, name="small", folder=tmp_path / "params", outputs=tmp_path / "outputs")


def buttons(design):
    """Say which of write, start and stop can be pressed."""
    return [not each.disabled for each in (design.write_button, design.start_button, design.stop_button)]


class FakeSweep:
    """A sweep process that does as it is told."""

    started, is_stopping = None, False
    pid, lines = 0, ["stop with Ctrl-C", "run 1/8: ok"]

    def __init__(self, *words):
        self.words, self.code, self.signals = words, None, 0
        FakeSweep.started = self

    @property
    def end(self):
        return "" if self.code is None else process.ENDS[self.code]

    def stop(self):
        self.signals += not self.is_stopping
        self.is_stopping = True

    def wait(self):
        self.code = 130


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(module, "SweepProcess", FakeSweep)


async def until(true):
    async with asyncio.timeout(WAIT_S):
        while not true():
            await asyncio.sleep(0.005)


def test_settings_are_chosen_added_and_removed(design):
    form = design.form
    assert [*form.rows][:4] == ["model", "gpus", "zero_stage", "precision"]
    assert "8 runs: 2 experiments x 4" in design.table.value
    form.repeats.value = 1
    assert "2 runs: 2 experiments x 1" in design.table.value
    stages = form.rows["zero_stage"]
    stages.controls[1].value = True
    assert form.content["grid"]["zero_stage"] == [0, 1, 3]
    for control in stages.controls:
        control.value = False
    assert "zero_stage has no value: give one, or several, or remove it" in design.table.value
    stages.remove_button.click()
    assert "zero_stage" not in form.content["grid"]
    form.new.value = "zero_stag"
    form.add_button.click()
    assert "unknown setting &#x27;zero_stag&#x27;" in form.message.value
    form.new.value = "grad_accum"
    form.add_button.click()
    assert (form.content["defaults"]["grad_accum"], form.message.value) == (1, "")
    form.new.value = "deepspeed.zero_optimization.reduce_scatter"
    form.add_button.click()
    assert "deepspeed.zero_optimization.reduce_scatter has no value" in design.table.value
    form.new.value = "grad_accum"
    form.add_button.click()
    assert "grad_accum is in the form already" in form.message.value


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("8, 16", [8, 16]), (" auto ", ["auto"]), ("off", [False]), ("a/b-350m, gpt2", ["a/b-350m", "gpt2"])],
)  # fmt: skip
def test_typed_values(text, wanted):
    row = Row("x", [], lambda: None, print)
    row.controls[0].value = text
    assert row.values == wanted


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "seq_len has no value: give one, or several, or remove it"),
        ("]", "seq_len is &#x27;]&#x27;: line 1: this is not valid YAML"),
        ("32, x", "refused: seq_len is 'x': give a whole number"),
    ],
)
def test_a_bad_value_is_a_sentence(design, text, problem, tmp_path):
    design.form.rows["seq_len"].controls[0].value = text
    assert problem in design.table.value
    if text != "32, x":  # of which the other value can be run
        assert buttons(design) == [False, False, False]
        design.write()
        assert "The params file is not written" in design.message.value
        assert list(tmp_path.iterdir()) == []


def test_write_start_and_stop_go_hand_in_hand(design, fake, tmp_path):
    assert buttons(design) == [True, False, False]
    design.start()
    assert "The sweep is not started: write the params file first" in design.message.value
    design.write_button.click()
    assert f"dsnb sweep {design.path} --output {design.output}</p>" in design.message.value
    assert buttons(design) == [False, True, False]
    assert dsnb.load_sweep(design.path, output=tmp_path / "outputs" / "small") == design.plan.sweep
    design.start_button.click()
    assert FakeSweep.started.words == (str(design.path), "--output", str(tmp_path / "outputs" / "small"))
    assert buttons(design) == [False, False, True]
    design.form.repeats.value = 2
    assert buttons(design) == [True, False, True]
    design.write_button.click()  # its own file
    design.start()
    assert "let a running sweep end" in design.message.value
    design.stop_button.click()
    design.stop_button.click()
    assert buttons(design) == [False, False, False]
    assert FakeSweep.started.signals == 1
    design.stop()
    assert "Stopped: finished runs are kept" in design.message.value
    assert buttons(design) == [False, True, False]
    design.outputs = paths.outputs_root()
    design.start()
    assert f"Started: dsnb sweep {design.path}</p>" in design.message.value


def test_a_file_of_somebody_else_is_kept(design):
    design.path.parent.mkdir()
    design.path.write_text("mine")
    design.write_button.click()
    assert "small.yaml exists already: choose another name, or delete it." in design.message.value
    assert (design.path.read_text(), buttons(design)) == ("mine", [True, False, False])


def test_the_explorer_follows(design, fake, tmp_path):
    design.follow_button.click()
    assert "There is no run to follow yet: " in design.message.value
    design.write()
    design.start()
    runs = made_up.runs(6).assign(experiment=design.plan.sweep.runs[0].name, repeat=range(1, 7))
    made_up.write_folders(runs.assign(sweep="small"), tmp_path / "outputs" / "small", steps=3)
    design.follow_button.click()
    assert len(design.explorer.data.runs) == 6
    assert design.explorer.watch
    assert design.log.outputs[0]["text"] == "stop with Ctrl-C\nrun 1/8: ok\n"


def test_in_a_kernel_predictions_and_the_sweep_show_up_by_themselves(tmp_path, fake, monkeypatch):
    """The form answers while it predicts, and shows the prediction of the latest change."""
    asked, may_answer = [], threading.Event()

    def slow(made, gpu, link, tokens):
        asked.append((gpu, made.experiments[0].seq_len))
        assert may_answer.wait(WAIT_S)
        return made.table.assign(note=f"for {made.experiments[0].seq_len}")

    monkeypatch.setattr(module, "predicted", slow)
    monkeypatch.setattr(module, "shown", lambda plan, table: "".join(table.get("note", pd.Series([""]))))
    monkeypatch.setattr(module, "EVERY_S", 0.01)

    async def user():
        design = dsnb.design(SMALL, name="small", folder=tmp_path / "params", outputs=tmp_path, gpu="NVIDIA H200")
        await until(lambda: asked)
        for length in ("64", "128"):
            design.form.rows["seq_len"].controls[0].value = length
            assert "Predicting memory and speed ..." in design.table.value
        design.write()
        assert buttons(design) == [False, True, False]
        may_answer.set()
        await until(lambda: "Predicting" not in design.table.value)
        assert design.table.value.endswith("for 128for 128")
        design.start()
        FakeSweep.started.code = 3
        await until(lambda: "Finished, but not every run is ok" in design.message.value)
        assert buttons(design) == [False, True, False]

    with ThreadPoolExecutor(1) as kernel:  # another test may have left an event loop running in this thread
        kernel.submit(asyncio.run, user()).result()
    assert asked == [("H200", 32), ("H200", 128)]


@pytest.mark.parametrize(("name", "known"), [("NVIDIA H200", "H200"), ("NVIDIA GeForce GT 710", "")])
def test_the_gpu_of_this_machine_is_taken_if_it_is_known(monkeypatch, name, known):
    cards = [hardware.InstalledGpu(0, name, "GPU-0", 80.0, (9, 0))] if name else []
    monkeypatch.setattr(hardware, "gpus", lambda: cards)
    monkeypatch.setattr(module, "predicted", lambda made, *_: made.table)
    design = dsnb.design(SMALL)
    assert design.form.gpu.value == known
    assert ("Choose a GPU" in design.table.value) == (not known)


@pytest.mark.parametrize("given", [{"gpu": "H900"}, {"link": "string"}, {"settings": {"zero_stag": 1}}])
def test_what_a_form_cannot_begin_with(given):
    with pytest.raises(SettingsError, match=r"H900|string|did you mean 'zero_stage'"):
        dsnb.design(**given)


@pytest.mark.process
def test_a_real_sweep_is_started_and_stopped(design):
    design.form.repeats.value = 1
    design.write_button.click()
    design.start_button.click()
    wait_until(lambda: design.process.lines, "the sweep has begun")
    design.stop_button.click()
    assert "Stopping" in design.message.value
    design.stop()
    assert process.STOPPED in design.message.value, design.process.lines
    assert buttons(design) == [False, True, False]
    assert sorted(each.name for each in design.outputs.parent.iterdir()) == ["outputs", "params"]


@pytest.mark.process
def test_how_a_sweep_ended(tmp_path):
    stopped, failed = process.SweepProcess("no.yaml"), process.SweepProcess(str(tmp_path / "no.yaml"))
    stopped.stop()  # before it has begun
    stopped.wait()
    failed.wait()
    assert (stopped.end, stopped.lines) == ("Stopped: finished runs are kept, start it again to go on.", [])
    assert failed.end == f"params file '{tmp_path}/no.yaml' cannot be read: No such file or directory; check the path"


@pytest.mark.process
def test_a_sweep_ends_with_its_kernel():
    code = (
        "import os, subprocess, sys; from dsnb.designer import process\n"
        "process.interpreter.command = lambda *words: [sys.executable, '-P', '-c', CHILD, words[2], *words[3:]]\n"
        "print(process.SweepProcess('x').pid, flush=True); sys.stdin.read()"
    )
    child = (
        "import sys, time; from dsnb.system import signals\nsignals.die_with_parent(int(sys.argv[1])); time.sleep(60)"
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
    return {"name": "x", "question": question, "defaults": defaults, "grid": grid, "repeats": repeats}


@pytest.fixture
def planned(tmp_path):
    """Give a function that plans in a folder of the test."""
    return lambda **given: plan(content(**given), tmp_path / "x.yaml", tmp_path / "out")


@pytest.fixture
def traced(monkeypatch):
    monkeypatch.setattr("dsnb.prediction.predict.traces", lambda experiments: [TRACE] * len(experiments))


def test_runs_are_counted_and_refused_settings_left_out(planned):
    made = planned()
    assert list(made.table["refused"]) == ["", "", "", REASON]
    names = [f"{way}_fp32_gpus1_bs8_sl128" for way in ("ddp", "zs0", "zs1")]
    assert sorted(run.name for run in made.sweep.runs) == sorted(names * 2)
    assert "exclude:\n- zero_stage: 1\n  strategy: ddp\n" in made.text
    text = shown(made, made.table)
    assert "6 runs: 3 experiments x 2<" in text
    assert f"refused: {REASON}" in text


@pytest.mark.parametrize("question", ["", "off", "- [a: b] # c", "wie groß? 漢字", "2024-01-01"])
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
    assert f"{row['tokens_per_s']:,.0f} ± {row['tokens_per_s_error_pct']:.1f} %" in text
    assert "<th>cost</th>" in text
    assert predicted(made, "T4", "nvlink", 1e9)["fits"].eq(False)[:3].all()


def test_what_cannot_be_predicted_stands_beside_what_can(planned, traced, monkeypatch):
    made = planned(grid={"model": ["opt-350m", "someone/a-model"]}, gpus=1)
    table = predicted(made, "H200", "nvlink", 1e9)
    assert list(table["fits"].isna()) == [False, True]
    assert table["note"][1].startswith("model is 'someone/a-model': a prediction needs")
    assert "at least" in shown(made, table)

    def fails(*_, **__):
        raise OSError("no such model")

    monkeypatch.setattr(module, "predict", fails)
    assert predicted(made, "H200", "nvlink", 1e9)["note"][0] == "nothing is predicted: no such model"


def test_whatever_is_typed_is_escaped(planned):
    made = planned(grid={"model": ["<script>alert(1)</script>", "gpt2"]})
    assert "<script>" not in shown(made, made.table)
    assert "&lt;script&gt;" in shown(made, made.table)
