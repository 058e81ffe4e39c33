"""Loops on one rank, in this process: what a run folder says, and what a script may do."""

import contextlib
import os
import re
import signal
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

import dsnb
from dsnb.base.errors import DsnbWarning, SettingsError
from dsnb.base.files import json_files
from dsnb.settings.records.paths import RunPaths
from tests.support import lazy

torch = lazy.Module("torch")
recorder = lazy.Module("dsnb.measure.record.recorder")
batches = lazy.Module("dsnb.measure.record.batches")
seen = lazy.Module("dsnb.measure.record.seen")
PAUSE_S = 0.2


def train(run_dir, steps=6, model=None, each_step=None, length=8, steps_to_measure=None, **options):
    """Train an embedding, whose output is its own loss; `each_step` runs within the steps."""
    model = model or torch.nn.Embedding(16, 4)
    options = {"warmup_steps": 2, "steps": steps_to_measure, **options}
    with recorder.record(run_dir, model=model, **options) as run:
        for step in range(steps):
            loss = model(torch.ones(2, length, dtype=torch.long)).sum()
            if each_step:
                each_step(run, step)
            if run.step(loss=loss):
                return step + 1
    return steps


def records(run_dir):
    """Return the settings, the result and the steps of a run."""
    run = RunPaths(Path(run_dir))
    settings = json_files.read_json(run.experiment)
    return settings, json_files.read_json(run.result), json_files.read_lines(run.steps)


def test_a_loop_has_a_run_folder_like_dsnb_s_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(None, precision="fp32")
    (run_dir,) = (tmp_path / "outputs" / "own").glob("*/run1")
    settings, result, rows = records(run_dir)
    assert run_dir.parent.name.startswith("Embedding-64_plain_fp32_gpus1_bs2_sl8")
    assert result["status"] == "ok"
    assert [row["phase"] for row in rows] == ["warmup"] * 2 + ["timed"] * 4
    assert {row["tokens"] for row in rows} == {16}
    assert (settings["steps"], settings["program"], settings["first_step"]) == (4, "own", 1)
    assert settings["optimizer"] is settings["attention"] is settings["zero_stage"] is None
    (row,) = dsnb.load_runs("outputs").to_dict("records")
    assert (row["status"], row["program"]) == ("ok", "own")
    assert row["tokens_per_s"] == pytest.approx(64 / sum(row["step_time_s"] for row in rows[2:]))

    def evaluate(run, step):
        if step == 3:
            with run.pause():
                time.sleep(PAUSE_S)
        if step == 4:
            time.sleep(PAUSE_S)
            run.resume()

    train(tmp_path / "run1", each_step=evaluate)
    _, _, rows = records(tmp_path / "run1")
    assert max(row["step_time_s"] for row in rows) < PAUSE_S
    assert rows[4]["t_s"] - rows[2]["t_s"] > 2 * PAUSE_S

    with recorder.record(tmp_path / "run2", warmup_steps=1, steps=3) as run:
        answers = [run.step(tokens=8) for _ in range(6)]
    assert answers == [False] * 3 + [True] * 3
    settings, result, rows = records(tmp_path / "run2")
    assert (settings["steps"], len(rows), result["status"]) == (3, 4, "ok")


def test_a_short_training_is_half_warm_up(tmp_path):
    train(tmp_path / "run1", steps=5, warmup_steps=10)
    settings, _, rows = records(tmp_path / "run1")
    assert (settings["warmup_steps"], settings["steps"]) == (2, 3)
    assert [row["phase"] for row in rows].count("timed") == 3


def test_a_training_that_ends_before_its_planned_steps_is_half_warm_up_and_not_complete(tmp_path):
    train(tmp_path / "run1", steps=8, warmup_steps=10, steps_to_measure=5)
    settings, result, _ = records(tmp_path / "run1")
    assert (settings["warmup_steps"], settings["steps"], result["status"]) == (4, 4, "ok")


def test_a_last_batch_with_fewer_sequences_has_the_same_length(tmp_path):
    model = torch.nn.Embedding(16, 4)
    with recorder.record(tmp_path / "run1", model=model, warmup_steps=1) as run:
        for size in (2, 2, 2, 1):
            model(torch.ones(size, 8, dtype=torch.long))
            run.step()
    settings, _, rows = records(tmp_path / "run1")
    assert settings["seq_len"] == 8
    assert [row["tokens"] for row in rows] == [16, 16, 16, 8]


def test_pauses_may_be_nested(tmp_path):
    def pause(run, step):
        with run.pause():
            time.sleep(PAUSE_S)
            with run.pause():
                time.sleep(PAUSE_S / 10)

    train(tmp_path / "run1", each_step=pause)
    _, _, rows = records(tmp_path / "run1")
    assert max(row["step_time_s"] for row in rows) < PAUSE_S


def test_lengths_that_differ_are_no_seq_len(tmp_path):
    model = torch.nn.Embedding(16, 4)
    with recorder.record(tmp_path / "run1", model=model, warmup_steps=1) as run:
        for length in (4, 5, 6):
            model(torch.ones(2, length, dtype=torch.long))
            run.step()
    settings, result, rows = records(tmp_path / "run1")
    assert settings["seq_len"] is None
    assert [row["tokens"] for row in rows] == [8, 10, 12]
    rate = 22 / sum(row["step_time_s"] for row in rows[1:])
    assert result["summary"]["tokens_per_s"] == pytest.approx(rate)


def test_only_training_passes_are_counted(tmp_path):
    def evaluate(run, step):
        with torch.no_grad():
            model(torch.ones(9, 9, dtype=torch.long))

    model = torch.nn.Embedding(16, 4)
    train(tmp_path / "run1", model=model, each_step=evaluate)
    assert {row["tokens"] for row in records(tmp_path / "run1")[2]} == {16}


def test_tensors_are_figures(tmp_path):
    with recorder.record(tmp_path / "run1", warmup_steps=1) as run:
        for value in (1.0, 2.0, 3.0):
            run.step(torch.tensor(8), torch.tensor([value]), torch.tensor(value / 2), skipped=False)
    _, result, rows = records(tmp_path / "run1")
    assert [row["loss"] for row in rows] == [1.0, 2.0, 3.0]
    assert [row["tokens"] for row in rows] == [8, 8, 8]
    assert (result["summary"]["loss_last"], result["summary"]["grad_norm_last"]) == (3.0, 1.5)


@pytest.mark.parametrize(
    ("figures", "status"),
    [
        ({"loss": float("nan")}, "nan"),
        ({"loss": 1.0, "grad_norm": float("inf")}, "nan"),
        ({"loss": 1.0, "grad_norm": float("inf"), "skipped": True}, "ok"),
    ],
)
def test_a_step_that_is_not_finite_is_nan_unless_it_was_skipped(tmp_path, figures, status):
    with recorder.record(tmp_path / "run1", warmup_steps=1) as run:
        for step in range(4):
            run.step(8, **(figures if step == 2 else {"loss": 1.0}))
    assert records(tmp_path / "run1")[1]["status"] == status


def test_stated_settings_complete_those_that_are_seen(tmp_path):
    train(tmp_path / "run1", optimizer="lion", program="mine 1.0", compile=False)
    settings, _, _ = records(tmp_path / "run1")
    assert (settings["optimizer"], settings["program"], settings["compile"]) == (
        "lion",
        "mine 1.0",
        "off",
    )


def test_a_contradiction_is_an_error_and_leaves_no_folder(tmp_path):
    hook = sys.excepthook
    message = "micro_batch_size is '4', but the training has '2': correct it, or leave it out"
    with pytest.raises(SettingsError, match=re.escape(message)):
        train(tmp_path / "run1", micro_batch_size=4)
    assert not (tmp_path / "run1").exists()
    assert sys.excepthook is hook


def test_unknown_and_invalid_settings_are_refused_together():
    with pytest.raises(SettingsError) as error:
        recorder.record(micro_batch=4, gpus="many")
    assert error.value.problems == [
        "unknown setting 'micro_batch': did you mean 'micro_batch_size'?",
        "gpus is 'many': give a whole number, or 'auto'",
    ]


def test_a_finished_run_is_not_replaced(tmp_path):
    train(tmp_path / "run1")
    with pytest.raises(SettingsError, match="it holds a finished run; choose another folder"):
        train(tmp_path / "run1")


def test_recording_can_be_switched_off(tmp_path, monkeypatch):
    monkeypatch.setenv("DSNB", "off")
    exit_function = sys.exit
    assert train(tmp_path / "run1") == 6
    assert not (tmp_path / "run1").exists()
    assert sys.exit is exit_function


def test_an_error_is_recorded_and_goes_on(tmp_path):
    def fail(run, step):
        if step == 3:
            raise ValueError("a bad batch")

    with pytest.raises(ValueError, match="a bad batch"):
        train(tmp_path / "run1", each_step=fail)
    _, result, rows = records(tmp_path / "run1")
    assert (result["status"], result["cause"]) == ("failed", "rank 0: ValueError: a bad batch")
    assert len(rows) == 3


def test_a_record_that_cannot_be_written_ends_the_recording_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "dsnb.measure.record.steps.Steps.write_to",
        lambda *_: (_ for _ in ()).throw(OSError("full")),
    )
    with pytest.warns(DsnbWarning, match="the recording has ended: OSError: full"):
        assert train(tmp_path / "run1") == 6


def test_the_launcher_s_plan_is_followed_and_its_result_left_to_it(tmp_path, monkeypatch):
    monkeypatch.setenv("DSNB_RUN_DIR", str(tmp_path))
    planned = {"warmup_steps": 1, "steps": 2, "micro_batch_size": 4}
    json_files.write_json(tmp_path / "experiment.json", planned)
    train(None, steps=9)
    run = RunPaths(tmp_path)
    assert json_files.read_json(run.experiment) == planned
    assert json_files.read_json(run.observed)["settings"]["micro_batch_size"] == 2
    assert len(json_files.read_lines(run.steps)) == 3
    assert run.worker.exists()
    assert not run.result.exists()


def computed():
    """Return a model with a function of its own, which torch compiles; it does not compile those of `torch.nn`."""

    class Computed(torch.nn.Embedding):
        def forward(self, ids):
            return self.weight[ids] * 2

    return Computed(16, 4)


def test_a_graph_that_must_not_break_gets_no_hook(tmp_path):
    model = computed()
    model.compile(fullgraph=True, backend="eager")
    assert batches.is_one_graph(model)
    train(tmp_path / "run1", model=model, micro_batch_size=2, seq_len=8)
    settings, _, rows = records(tmp_path / "run1")
    assert settings["compile"] == "default"
    assert {row["tokens"] for row in rows} == {16}


def graphs_of(run_dir, monkeypatch):
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    with contextlib.ExitStack() as switched:
        if run_dir is None:
            switched.enter_context(monkeypatch.context()).setenv("DSNB", "off")
        model = computed()
        model.compile(backend="eager")
        train(run_dir, model=model)
    return counters["stats"]["unique_graphs"], sum(counters["recompiles"].values())


def test_a_compiled_model_keeps_its_graphs(tmp_path, monkeypatch):
    without = graphs_of(None, monkeypatch)
    assert without[0] > 0
    assert graphs_of(tmp_path / "run1", monkeypatch) == without
    assert records(tmp_path / "run1")[0]["compile"] == "default"


def test_axolotl_s_plugin_adds_the_callback(monkeypatch):
    base = ModuleType("axolotl.integrations.base")
    base.BasePlugin = type("BasePlugin", (), {})
    for name in ("axolotl", "axolotl.integrations"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, base.__name__, base)
    from dsnb.measure.record.axolotl import Plugin

    (callback,) = Plugin().add_callbacks_post_trainer(None, None)
    assert isinstance(callback, dsnb.TrainerCallback)


AUTOCAST = {"enabled": True, "dtype": "float16"}
ZERO = {
    "stage": 2,
    "offload_optimizer": {"device": "cpu"},
    "reduce_bucket_size": 5e8,
    "overlap_comm": True,
}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"zero_optimization": ZERO}, {"zero_stage": 2, "offload": "optimizer-cpu", "bucket_elements": 0}),
        ({"bf16": {"enabled": True}}, {"precision": "bf16", "mixed_precision": "native", "zero_stage": 0}),
        ({"torch_autocast": AUTOCAST}, {"precision": "fp16", "mixed_precision": "autocast"}),
        ({"gradient_clipping": 0.5, "gradient_accumulation_steps": 4}, {"gradient_clipping": 0.5, "grad_accum": 4}),
    ],
)  # fmt: skip
def test_a_configuration_of_deepspeed_shows_settings(config, expected):
    found = seen.of_deepspeed(config)
    assert {name: found.get(name) for name in expected} == expected


def test_a_value_that_is_still_auto_is_unknown():
    config = {
        "train_micro_batch_size_per_gpu": "auto",
        "zero_optimization": {"reduce_bucket_size": "auto"},
    }
    assert not {"micro_batch_size", "bucket_elements"} & {*seen.of_deepspeed(config)}


def test_a_forked_process_does_not_end_the_recording(tmp_path):
    def fork(run, step):
        if step == 2:
            pid = os.fork()
            if pid == 0:
                os._exit(0 if sys.excepthook.__self__._react is not run._end_by else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    train(tmp_path / "run1", each_step=fork)
    assert records(tmp_path / "run1")[1]["status"] == "ok"


def test_a_script_may_end_without_closing_the_recording(tmp_path):
    run = recorder.record(tmp_path / "run1", warmup_steps=1)
    for _ in range(3):
        run.step(8)
    run._exits._at_exit()
    assert records(tmp_path / "run1")[1]["status"] == "ok"


def test_a_script_s_own_handler_of_sigterm_is_left_alone(tmp_path):
    received = []

    def handle(run, step):
        if step == 3:
            signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)

    before = signal.getsignal(signal.SIGTERM)
    try:
        assert train(tmp_path / "run1", each_step=handle) == 6
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM]
    assert records(tmp_path / "run1")[1]["status"] == "ok"
