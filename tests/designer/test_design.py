"""The form: what its fields, its rows and its buttons do, and the sweep that it starts and stops."""

import asyncio
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import dsnb
from dsnb.designer import process, running
from dsnb.errors import SettingsError
from dsnb.run_folder import paths
from dsnb.settings.experiment import Experiment
from tests import ROOT
from tests.support import made_up
from tests.support.waiting import WAIT_S, wait_until, wait_until_ended

SMALL = {
    "model": "gpt2-tiny",
    "device": "cpu",
    "gpus": 1,
    "precision": "fp32",
    "zero_stage": [0, 3],
    "micro_batch_size": 2,
    "seq_len": 32,
    "warmup_steps": 1,
    "steps": 400,
}


@pytest.fixture
def form(tmp_path):
    """Give a form that writes below a folder of the test."""
    return dsnb.design(SMALL, name="small", folder=tmp_path / "params", outputs=tmp_path / "outputs")


def buttons(design):
    """Say which of write, start and stop can be pressed."""
    return [not one.disabled for one in (design.write_button, design.start_button, design.stop_button)]


class FakeSweep:
    """A sweep process that does as it is told."""

    started = None
    pid, lines = 0, ["stop with Ctrl-C", "run 1/8: ok"]

    def __init__(self, *words):
        self.words, self.code, self.signals = words, None, 0
        FakeSweep.started = self

    @property
    def end(self):
        return "" if self.code is None else process.ENDS[self.code]

    def stop(self):
        self.signals += 1

    def wait(self):
        self.code = 130


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(running, "SweepProcess", FakeSweep)


def test_the_form_begins_with_what_it_is_given(form):
    assert list(form.form.rows)[:4] == ["model", "gpus", "zero_stage", "precision"]
    assert form.form.rows["zero_stage"].values == [0, 3]
    assert form.form.draft.settings["steps"] == [400]
    assert "8 runs: 2 experiments x 4" in form.plan_view.value
    form.form.repeats.value = 1
    assert "2 runs: 2 experiments x 1" in form.plan_view.value


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"zero_stag": 1}, "unknown setting 'zero_stag': did you mean 'zero_stage'?"),
        ({"seq_len": []}, "seq_len is an empty list: give a value"),
        ({"data": Path("x")}, "PosixPath('x') cannot be written to a params file: give numbers, texts, lists"),
        ({"seq_len": [8, 8]}, "seq_len has the value 8 twice: leave one of them out"),
    ],
)
def test_settings_that_a_form_cannot_begin_with(settings, problem):
    with pytest.raises(SettingsError) as caught:
        dsnb.design(settings)
    assert str(caught.value) == problem


def test_a_bad_value_is_a_sentence_and_nothing_can_be_written(form, tmp_path):
    field = form.form.rows["seq_len"].field
    field.value = "32, x"
    assert "seq_len is &#x27;x&#x27;: give a whole number" in form.plan_view.value
    field.value = "]"
    assert "seq_len is &#x27;]&#x27;: line 1: this is not valid YAML" in form.plan_view.value
    assert buttons(form) == [False, False, False]
    form.write()
    assert "The params file is not written" in form.message.value
    form.start()
    assert "The sweep is not started" in form.message.value
    field.value = "32"
    assert buttons(form) == [True, False, False]
    assert list(tmp_path.iterdir()) == []


def test_settings_are_chosen_added_and_removed(form):
    stages = form.form.rows["zero_stage"]
    stages.values = [1, 2, 3]
    assert form.form.draft.settings["zero_stage"] == [1, 2, 3]
    stages.values = []
    assert "zero_stage has no value: choose one, or remove it" in form.plan_view.value
    stages.remove.click()
    assert "zero_stage" not in form.form.draft.settings
    form.form.new.value = "zero_stag"
    form.form.add_button.click()
    assert "unknown setting &#x27;zero_stag&#x27;" in form.form.message.value
    form.form.new.value = "grad_accum"
    form.form.add_button.click()
    assert (form.form.draft.settings["grad_accum"], form.form.message.value) == ([1], "")
    form.form.add("deepspeed.zero_optimization.reduce_scatter")
    assert "deepspeed.zero_optimization.reduce_scatter has no value" in form.plan_view.value
    with pytest.raises(SettingsError, match="grad_accum is in the form already"):
        form.form.add("grad_accum")


def test_every_setting_has_a_row(form):
    for name in Experiment.model_fields:
        if name not in form.form.rows:
            form.form.add(name)
    assert form.form.new.options == ()
    assert all("<summary>meaning</summary>" in row.box.children[-1].value for row in form.form.rows.values())


def test_write_start_and_stop_go_hand_in_hand(form, fake, tmp_path, monkeypatch):
    assert buttons(form) == [True, False, False]
    form.write_button.click()
    assert buttons(form) == [False, True, False]
    assert dsnb.load_sweep(form.path, output=tmp_path / "outputs" / "small") == form.plan.sweep
    form.start_button.click()
    assert FakeSweep.started.words == (str(form.path), "--output", str(tmp_path / "outputs" / "small"))
    assert buttons(form) == [False, False, True]
    form.form.repeats.value = 2
    assert buttons(form) == [True, False, True]
    form.write_button.click()  # its own file
    form.start()
    assert "let a running sweep end" in form.message.value
    form.stop_button.click()
    form.stop_button.click()
    assert buttons(form) == [False, False, False]
    assert FakeSweep.started.signals == 1
    assert "Stopping. 0 of 8 runs" in form.running.state.value
    monkeypatch.setattr(running, "ASK_AGAIN_S", 0.0)
    form.running.look()
    assert buttons(form) == [False, False, True]
    form.stop()
    assert "Stopped: finished runs are kept" in form.running.state.value
    assert buttons(form) == [False, True, False]


def test_the_command_is_the_same_sweep(form, fake):
    form.write()
    assert f"dsnb sweep {form.path} --output {form.output}</p>" in form.message.value
    form.outputs = paths.outputs_root()
    form.refresh()
    form.start()
    assert f"Started: dsnb sweep {form.path}</p>" in form.message.value


def test_in_a_kernel_it_is_followed_by_itself(form, fake, monkeypatch):
    monkeypatch.setattr(running, "EVERY_S", 0.01)

    async def kernel():
        form.write()
        form.start()
        await asyncio.sleep(0.05)
        assert buttons(form) == [False, False, True]
        FakeSweep.started.code = 3
        await asyncio.sleep(0.05)

    with ThreadPoolExecutor(1) as pool:  # a browser of another test may have an event loop in this thread
        pool.submit(asyncio.run, kernel()).result()
    assert "Finished, but not every run is ok" in form.running.state.value
    assert buttons(form) == [False, True, False]


def test_a_file_of_somebody_else_is_kept(form):
    form.path.parent.mkdir()
    form.path.write_text("mine")
    form.write_button.click()
    assert "small.yaml exists already: choose another name, or delete it." in form.message.value
    assert (form.path.read_text(), buttons(form)) == ("mine", [True, False, False])


def test_the_explorer_follows(form, fake, tmp_path):
    form.write()
    form.start()
    assert form.explorer is None
    runs = made_up.runs(6).assign(experiment=form.plan.sweep.runs[0].name, repeat=range(1, 7))
    made_up.write_folders(runs.assign(sweep="small"), tmp_path / "outputs" / "small", steps=3)
    form.running.look()
    assert "4 of 8 runs" in form.running.state.value
    assert len(form.explorer.data.runs) == 6
    assert form.running.log.outputs[0]["text"] == "stop with Ctrl-C\nrun 1/8: ok\n"
    (now,) = (run for run in form.plan.sweep.runs if run.name != runs["experiment"][0] and run.repeat == 1)
    now.paths.dir.mkdir(parents=True)
    now.paths.experiment.write_text("{}")
    form.running.look()
    assert f"4 of 8 runs, {now.name}, run 1: starting" in form.running.state.value
    now.paths.steps.write_text('{"step": 1}\n{"step": 2}\n')
    form.running.look()
    assert "run 1: step 2 of 401" in form.running.state.value
    FakeSweep.started.code = 0
    form.running.look()
    assert "Finished: every run is ok." in form.running.state.value


def test_a_page_without_a_kernel_has_the_plan(form):
    bundle, _ = form._repr_mimebundle_()
    assert "2 experiments x 4" in bundle["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in bundle


@pytest.mark.process
def test_a_real_sweep_is_started_and_stopped(form):
    form.form.repeats.value = 1
    form.write_button.click()
    form.start_button.click()
    wait_until(lambda: form.running.process.lines, "the sweep has begun")
    form.running.look()
    assert "0 of 2 runs" in form.running.state.value
    form.stop_button.click()
    form.running.process.wait(WAIT_S)
    form.running.look()
    assert process.STOPPED in form.running.state.value, form.running.process.lines
    assert buttons(form) == [False, True, False]
    assert sorted(one.name for one in form.outputs.parent.iterdir()) == ["outputs", "params"]


@pytest.mark.process
def test_stopped_before_it_has_begun(tmp_path):
    swept = process.SweepProcess(str(tmp_path / "no.yaml"))
    swept.stop()
    swept.wait(60)
    assert swept.end == process.STOPPED == "Stopped: finished runs are kept, start it again to go on."
    assert swept.lines == []


@pytest.mark.process
def test_what_dsnb_says_is_how_it_ended(tmp_path):
    swept = process.SweepProcess(str(tmp_path / "no.yaml"))
    assert swept.wait(60) == 1
    assert swept.end == f"params file '{tmp_path}/no.yaml' cannot be read: No such file or directory; check the path"


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
