"""What a run's record says: its figures, how it failed, and what the machine is to blame for."""

import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

import dsnb
from dsnb.base.errors import DsnbWarning
from dsnb.base.files import json_files
from dsnb.base.system import hardware
from dsnb.measure.launcher import outcome
from dsnb.measure.launcher.figures import gpu_figures, summarize_run
from dsnb.measure.launcher.outcome import MACHINE_FAULTS, Outcome, without_machine_faults
from dsnb.settings import checks
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.run_record import RunRecord
from dsnb.show.render import by_task
from tests.support.small_sweep import NAMES, PARAMS


def record_of(run, experiment):
    """Write the settings of a run; return its record."""
    json_files.write_json(run.experiment, experiment.model_dump())
    return RunRecord(run)


def recorded(tmp_path, small, times_s, skipped=(), **worker):
    """Write the record of a run with one warm-up step; return its figures."""
    run = RunPaths(tmp_path / "run1")
    rows = [
        {
            "step": step,
            "phase": "warmup" if step == 1 else "timed",
            "step_time_s": time_s,
            "skipped": step in skipped,
        }
        for step, time_s in enumerate(times_s, start=1)
    ]
    json_files.write_lines(run.steps, rows)
    json_files.write_json(run.worker, worker)
    return summarize_run(record_of(run, small(steps=len(times_s) - 1)))


def test_skipped_steps_of_warm_up_and_timed_steps_are_told_apart(tmp_path, small):
    found = recorded(tmp_path, small, [9.0, 1.0, 1.0, 1.0, 1.0], skipped=(1, 3))
    assert (found["skipped_steps"], found["skipped_warmup_steps"]) == (1, 1)
    assert found["tokens_per_s"] == 64  # 2 x 32 tokens a step of one second
    assert found["trained_tokens_per_s"] == 48
    assert found["note"] == (
        "1 of 4 timed steps were skipped by the loss scaler: tokens/s counts their tokens, trained tokens/s does not"
    )


def test_a_record_with_gaps_gives_no_value_for_them(tmp_path, small):
    run = RunPaths(tmp_path / "run1")
    rows = [
        {"step": 1, "phase": "warmup", "step_time_s": 9.0, "skipped": False, "loss": 3.0},
        {"step": 2, "phase": "timed", "step_time_s": 1.0, "skipped": False, "loss": 2.0},
        {
            "step": 3,
            "phase": "timed",
            "step_time_s": "x",
            "loss": 1.0,
        },  # no time, and perhaps skipped
    ]
    json_files.write_lines(run.steps, rows)
    with open(run.steps, "a") as file:
        file.write('{"step": 4, "phase": "ti')  # cut off
    with pytest.warns(DsnbWarning):
        found = summarize_run(record_of(run, small(gpus=2)))
    assert (found["timed_steps"], found["tokens_per_s"], found["step_time_mean_s"]) == (
        1,
        2 * 64,
        1.0,
    )
    assert (
        found["skipped_steps"],
        found["skipped_warmup_steps"],
        found["trained_tokens_per_s"],
    ) == (None, 0, None)
    assert (found["loss_first"], found["loss_last"]) == (
        None,
        None,
    )  # without the worker's record, they are rank 0's
    json_files.write_text(run.steps, "")
    found = summarize_run(record_of(run, small()))
    assert (found["slow_steps"], found["tokens_per_s"], found["loss_last"]) == (None, None, None)


def test_slow_steps_and_recompilations_are_named(tmp_path, small):
    found = recorded(tmp_path, small, [50.0, 1.0, 1.0, 3.5, 1.0, 2.0], recompilations=2)
    assert (found["slow_steps"], found["recompilations"]) == (
        1,
        2,
    )  # twice the median is not yet slow
    assert found["note"] == (
        "1 timed steps took over twice the median, step 4 3.5 times the median; "
        "torch.compile compiled 2 graphs during the timed steps: use more warm-up steps"
    )
    assert recorded(tmp_path, small, [1.0, 1.0], recompilations=0)["note"] is None
    short = recorded(
        tmp_path, small, [1.0, 0.2], power_source="energy counter", phases_s={"timed": 0.21}
    )
    assert short["note"] == "no power: the timed steps took 0.21 s, too short to measure it"


@pytest.mark.parametrize(
    ("settings", "ended", "known"),
    [
        ({"gpus": 2}, True, True),
        ({"gpus": 2}, False, False),  # rank 0's
        ({"gpus": 1}, False, True),
        ({"gpus": 4, "tensor_parallel": 2, "pipeline_parallel": 2}, False, True),
        ({"gpus": 4, "pipeline_parallel": 2}, False, True),  # DeepSpeed averages them in every step
    ],
)
def test_losses_that_ranks_did_not_average_are_unknown(tmp_path, small, settings, ended, known):
    run = RunPaths(tmp_path / "run1")
    json_files.write_lines(
        run.steps, [{"step": step, "phase": "timed", "loss": 5.0 - step} for step in (1, 2, 3)]
    )
    if ended:
        json_files.write_json(run.worker, {"step_skew": 0.0})
    found = summarize_run(record_of(run, small(**settings)))
    assert (found["loss_first"], found["loss_last"]) == ((4.0, 2.0) if known else (None, None))


def test_a_nearly_full_gpu_is_named(tmp_path, small):
    found = recorded(tmp_path, small, [9.0, 1.0, 1.0, 1.0], alloc_retries=12.0)
    assert found["alloc_retries"] == 12
    assert found["note"] == (
        "the allocator returned memory 12 times in 3 timed steps: the GPU's memory was nearly full, so the speed is "
        "not that of the setting"
    )
    for retries in (0.0, None):  # none on a GPU with room; unknown on a CPU
        found = recorded(tmp_path, small, [9.0, 1.0], alloc_retries=retries)
        assert (found["alloc_retries"], found["note"]) == (retries, None)


def test_a_gpu_that_another_process_uses_is_named(tmp_path, small):
    """Measured: two runs on one H100, where the second one's steps took twice as long as alone."""
    for first_gib, named in ((16.489, True), (0.063, False)):
        samples = [
            {"gpu": 0, "t_s": t_s, "memory_used_gib": gib}
            for t_s, gib in ((0.271, first_gib), (0.528, 17))
        ]
        json_files.write_lines(RunPaths(tmp_path / "run1").gpu, samples)
        note = recorded(tmp_path, small, [1.0, 1.0])["note"] or ""
        assert note.startswith("16.5 GiB of a GPU were in use before the run began") == named


def test_flops_of_a_run(tmp_path, small):
    counted = {
        "flops_per_token": 8000.0,
        "masked_flops_per_token": 1000.0,
        "recomputed_flops_per_token": 0.0,
    }
    found = recorded(
        tmp_path, small, [1.0, 1.0, 1.0], **counted, active_parameters=700, gpu_name="NVIDIA H200"
    )
    assert (
        found["tflops_per_gpu"]
        == found["hardware_tflops_per_gpu"]
        == pytest.approx(8000 * 64 / 1e12)
    )
    assert found["mfu"] == pytest.approx(8000 * 64 / 1e12 / 67)  # fp32
    assert (found["masked_flops_pct"], found["active_parameters"], found["note"]) == (
        12.5,
        700,
        None,
    )
    again = recorded(
        tmp_path, small, [1.0, 1.0, 1.0], **{**counted, "recomputed_flops_per_token": 2000.0}
    )
    assert again["tflops_per_gpu"] == found["tflops_per_gpu"]
    assert again["hardware_tflops_per_gpu"] == pytest.approx((8000 + 2000) * 64 / 1e12)
    why = "the FLOPs of a token could not be counted: unknown layer"
    found = recorded(
        tmp_path, small, [1.0, 1.0, 1.0], flops_missing=why, parameters=1000, layers=2, hidden=10
    )
    names = ("tflops_per_gpu", "hardware_tflops_per_gpu", "mfu", "masked_flops_pct")
    assert [found[name] for name in names] == [None] * 4
    assert (found["note"], found["tokens_per_s"]) == (why, 64)


def test_a_mean_over_gpus_counts_each_gpu_once():
    """Within ten timed seconds one GPU was sampled twice, the other once."""
    readings = [
        (1.0, 0, 0.0, 90.0),
        (12.0, 0, 100.0, 20.0),
        (14.0, 0, 80.0, 21.0),
        (15.0, 1, 40.0, 30.0),
    ]
    samples = [
        {"t_s": t_s, "gpu": gpu, "util_pct": util_pct, "memory_used_gib": gib}
        for t_s, gpu, util_pct, gib in readings
    ]
    worker = {
        "steps_from_s": 5.0,
        "timed_from_s": 10.0,
        "timed_to_s": 20.0,
        "phases_s": {"timed": 10.0},
    }
    found = gpu_figures(samples, worker, gpus=2)
    assert found["gpu_util_pct"] == (90 + 40) / 2
    assert found["device_memory_gib"] == 30  # since the steps began
    short = {**worker, "phases_s": {"timed": 4.9}}
    assert gpu_figures(samples, short, gpus=2)["gpu_util_pct"] is None


def test_the_shortage_of_a_gpu_is_its_peak(tmp_path, small):
    run = RunPaths(tmp_path / "run1")
    json_files.write_lines(
        run.steps, [{"step": 1, "phase": "warmup", "step_time_s": 1.0, "allocated_gib": 111.7}]
    )
    failure = {
        "rank": 0,
        "status": "oom",
        "phase": "backward",
        "step": 2,
        "cause": "OutOfMemoryError: CUDA",
    }
    failure |= {"allocated_gib": 139.2, "reserved_gib": 139.5, "requested_gib": 9.6}
    json_files.append_line(run.failures, failure)
    found = summarize_run(record_of(run, small()))
    names = (
        "peak_allocated_gib",
        "oom_allocated_gib",
        "oom_requested_gib",
        "needed_gib",
        "oom_phase",
        "oom_step",
    )
    assert [found[name] for name in names] == [
        139.2,
        139.2,
        9.6,
        pytest.approx(148.8),
        "backward",
        2,
    ]


def test_where_memory_ran_out_is_told(run_small):
    result, paths = run_small(worker="starving")
    (failure,) = json_files.read_lines(paths.failures)
    assert (result.status, failure["phase"], failure["requested_gib"]) == ("oom", "backward", 4.0)
    assert result.cause.startswith(
        f"rank 0: out of memory in the backward pass of step 3, with {failure['allocated_gib']:.2f} GiB"
    )
    assert "and 4.00 GiB more requested" in result.cause
    assert result.summary["needed_gib"] == pytest.approx(failure["allocated_gib"] + 4)
    assert len(json_files.read_lines(paths.steps)) == 2


@pytest.mark.parametrize("settings", [{"zero_stage": 2, "gpus": 2}, {"strategy": "ddp"}], ids=str)
def test_a_run_that_trains_nothing_is_not_ok(run_small, settings):
    result, paths = run_small(worker="gradless", **settings)
    assert result.status == "untrained"
    assert (
        result.cause
        == "the weights did not move in 5 steps: no gradient changed them beyond weight decay"
    )
    assert result.summary["update_rms"] < 1e-8
    norms = [step.get("grad_norm") for step in json_files.read_lines(paths.steps)]
    assert norms == [0.0] * 5 if settings.get("zero_stage") else norms == [None] * 5
    assert "Next: raise learning_rate" in result.message()


def test_gradient_norms_are_those_of_one_process(run_small):
    norms = {}
    for settings in (
        {"zero_stage": 1},
        {"zero_stage": 3},
        {"strategy": "ddp", "gradient_clipping": 1e9},
    ):
        result, paths = run_small(**settings, gpus=2)
        norms[str(settings)] = norm = [
            step["grad_norm"] for step in json_files.read_lines(paths.steps)
        ]
        assert result.summary["grad_norm_last"] == norm[-1] > 0
        assert result.summary["update_rms"] == pytest.approx(
            5 * 1e-4, rel=0.5
        )  # Adam moves a weight by about its rate
    for norm in norms.values():
        assert norm == pytest.approx(norms[str(settings)], rel=1e-3)


def test_host_memory_is_the_sum_over_ranks_without_the_build(run_small):
    result, paths = run_small(worker="eater", gpus=2)
    assert result.status == "failed"  # it trains nothing
    before, after = json_files.read_lines(paths.dir / "peaks.jsonl")
    assert before["peak_allocated_gib"] == 2.0
    for name, mib in (("host_memory_gib", 300), ("rank_host_memory_gib", 200)):
        assert 1024 * (after[name] - before[name]) == pytest.approx(mib, abs=15)


def test_the_cost_of_a_run(swept, tmp_path):
    run = RunPaths(shutil.copytree(swept / NAMES[0] / "run1", tmp_path / "s" / NAMES[0] / "run1"))
    result = json_files.read_json(run.result)
    settings = {
        **json_files.read_json(run.experiment),
        "device": "cuda",
        "gpus": 4,
        "price_per_gpu_hour": 2.5,
    }
    json_files.write_json(run.experiment, settings)
    json_files.write_json(
        run.result, {**result, "phases_s": {**result["phases_s"], "wall": 1800.0}}
    )
    (row,) = dsnb.load_runs(tmp_path).to_dict("records")
    assert (row["gpu_hours"], row["cost"]) == (2.0, 5.0)
    assert dsnb.load_runs(swept)[["gpu_hours", "cost"]].isna().all(axis=None)  # runs on a CPU


def test_what_figures_mean_stands_beside_them(swept):
    runs = dsnb.load_runs(swept).assign(
        masked_flops_pct=[1.26, 4.0, *[2.0] * (len(dsnb.load_runs(swept)) - 2)]
    )
    said = by_task.meanings(runs).text
    assert "the masked half of attention is counted. It is 1.3 to 4.0 % of the values here." in said
    odd = by_task.runs_to_look_at(runs.assign(note="odd <b>", experiment="<i>")).text
    assert "odd &lt;b&gt;" in odd
    assert "<i>" not in odd


OWN, OF_A_PEER, UNKNOWN = ({"in_communication": value} for value in (False, True, None))


@pytest.mark.parametrize(
    ("codes", "failures", "status", "cause"),
    [
        # In the order in which the ranks ended.
        ({1: -11, 0: 1}, {0: UNKNOWN}, "failed", "rank 1 on b was killed by signal 11 (SIGSEGV)"),
        ({0: 1, 1: -11}, {0: UNKNOWN}, "failed", "rank 0 on a: it fell over"),
        ({0: 1, 1: -11}, {0: OF_A_PEER}, "failed", "rank 1 on b was killed by signal 11 (SIGSEGV)"),
        ({1: -6, 0: 1}, {0: OWN}, "failed", "rank 0 on a: it fell over"),
        ({0: 1, 1: -15}, {0: OWN}, "failed", "rank 0 on a: it fell over"),
        ({1: -15, 0: -15}, {}, "interrupted", "rank 1 on b was killed by signal 15 (SIGTERM)"),
        ({0: 1, 1: 1}, {1: OF_A_PEER, 0: OWN}, "failed", "rank 0 on a: it fell over"),
        ({1: -6, 0: 1}, {1: OWN, 0: OF_A_PEER}, "failed", "rank 1 on b: it fell over"),  # it aborted at its end
        ({0: 7, 1: -6}, {}, "failed", "rank 0 on a ended with exit code 7"),
        ({1: -10}, {}, "interrupted", "rank 1 on b was killed by signal 10 (SIGUSR1)"),
        ({0: 1, 1: -9}, {0: OWN}, "failed", "rank 1 on b was killed by signal 9 (SIGKILL)"),
    ],
)  # fmt: skip
def test_which_rank_is_the_cause(tmp_path, small, codes, failures, status, cause):
    paths = RunPaths(tmp_path)
    rows = (
        {"rank": rank, "status": "failed", "cause": "it fell over", **of}
        for rank, of in failures.items()
    )
    json_files.write_lines(paths.failures, rows)
    assert outcome.of_ranks(record_of(paths, small(gpus=2)), codes, 0, {0: "a", 1: "b"}) == (
        status,
        cause,
    )


@pytest.mark.parametrize(
    ("code", "kills", "expected"),
    [
        (-9, 1, ("oom", "rank 0 was killed by the kernel: the machine's memory ran out")),
        (-9, 0, ("failed", "rank 0 was killed by signal 9 (SIGKILL)")),
        (-11, 1, ("failed", "rank 0 was killed by signal 11 (SIGSEGV)")),
        (3, 1, ("failed", "rank 0 ended with exit code 3")),
    ],
)
def test_the_kernel_kills_for_memory_with_sigkill_alone(tmp_path, small, code, kills, expected):
    assert outcome.of_ranks(record_of(RunPaths(tmp_path), small()), {0: code}, kills) == expected


@pytest.mark.parametrize("words", ["CUDA out of memory", "OutOfMemory: Out Of Memory"])
def test_the_last_words_of_a_rank_tell_that_memory_ran_out(tmp_path, small, words):
    paths = RunPaths(tmp_path)
    paths.console.write_text(f"{words}\nand a traceback\n")
    ended = outcome.of_ranks(record_of(paths, small()), {0: 7}, 0)
    assert ended == ("oom", "rank 0 ended with exit code 7 after an out-of-memory error")
    paths.console.write_text("RuntimeError: No space left on device\n")
    ended = outcome.of_ranks(record_of(paths, small()), {0: 7}, 0)
    assert ended == ("failed", "rank 0 ended with exit code 7 after 'No space left on device'")


@pytest.mark.parametrize("step", [1, 2])
def test_a_run_whose_loss_was_not_finite_ends_as_nan(tmp_path, small, step):
    paths = RunPaths(tmp_path)
    json_files.write_lines(paths.steps, [{"step": 2, "phase": "timed"}])
    json_files.write_json(paths.worker, {"first_bad_step": step})
    ended = outcome.of_ranks(record_of(paths, small(steps=1)), {0: 0}, 0)
    assert ended == ("nan", f"the loss was not a finite number at step {step}")


def test_a_rank_that_could_not_write_why_it_failed_met_a_full_disk(tmp_path, small, monkeypatch):
    paths = RunPaths(tmp_path)
    assert outcome.of_ranks(record_of(paths, small()), {0: 1}, 0) == (
        "failed",
        "rank 0 ended with exit code 1",
    )
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=4096))
    ended = outcome.of_ranks(record_of(paths, small()), {0: 1}, 0)
    advice = "make room on the disk and start the sweep again"
    cause = f"rank 0 ended with exit code 1 after 'No space left on device'; {advice}"
    assert outcome.settled(record_of(paths, small()), ended) == ("interrupted", cause)


def test_a_failure_by_the_machines_fault_is_an_interruption():
    for words, advice in MACHINE_FAULTS.items():
        status, cause = without_machine_faults(
            Outcome("failed", f"rank 1: OSError: {words}: '/tmp/x'")
        )
        assert status == "interrupted"
        assert cause == f"rank 1: OSError: {words}: '/tmp/x'; {advice} and start the sweep again"
        assert without_machine_faults(Outcome("failed", cause)) == (
            status,
            cause,
        )  # the advice is given once
    for other in (
        ("failed", "rank 0: ValueError: 3 is odd"),
        ("oom", "Too many open files"),
        ("ok", None),
    ):
        assert without_machine_faults(Outcome(*other)) == other


def test_what_ranks_could_not_do_here_is_refused(small, monkeypatch):
    compiled = small(compile="default")
    for name in ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"):
        monkeypatch.setenv(name, "1")
        said = f"compile is set, but the environment variable {name} is 1, which disables torch.compile: unset it"
        assert (checks.unsupported(compiled), checks.unsupported(small())) == (
            [said],
            [],
        )
        monkeypatch.setenv(name, "0")
        assert checks.unsupported(compiled) == []
    monkeypatch.setattr(
        hardware, "loopback_works", lambda: False
    )  # without it, ranks retry for minutes
    said = "127.0.0.1 cannot be reached, and ranks meet there: bring it up with `ip link set lo up`"
    assert checks.unsupported(small()) == [said]


@pytest.mark.process
def test_a_sweep_without_torch_says_what_to_install_and_leaves_no_folder(tmp_path):
    (tmp_path / "small.yaml").write_text(PARAMS)
    without = (
        "import importlib.util as u; f = u.find_spec; u.find_spec = lambda n, "
        "*a: n != 'torch' and f(n, *a) or None"
    )
    asked = [
        sys.executable,
        "-c",
        f"{without}\nfrom dsnb.cli.app import main; main()",
        "sweep",
        "small.yaml",
    ]
    found = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True)
    assert "error: training needs torch: pip install 'dsnb[train]'" in found.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]
