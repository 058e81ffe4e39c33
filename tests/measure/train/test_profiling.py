"""`profile: true`: what it measures, that it disturbs nothing, and that no profiler can cost a run."""

from types import SimpleNamespace

import pandas as pd
import pytest

import dsnb
from dsnb.base.files import json_files
from dsnb.measure.launcher import run
from dsnb.measure.launcher.folder import begin
from dsnb.settings.records.run_record import RunRecord
from dsnb.show.render import run_card
from tests.support import lazy

profiling, trainers = (
    lazy.Module("dsnb.measure.train.profiling"),
    lazy.Module("dsnb.measure.train.trainer"),
)

PARTS = ("forward_s", "backward_s", "optimizer_s")


def event(name, begin_us, end_us, cat="kernel"):
    return {"ph": "X", "cat": cat, "name": name, "ts": begin_us, "dur": end_us - begin_us}


def test_communication_in_a_trace_is_that_of_a_gpus_kernels_or_of_gloo():
    events = [
        event(
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 100, 300
        ),
        event("ncclDevKernel_AllGather_RING_LL(...)", 250, 500),
        event("ampere_sgemm", 0, 150),
        event("adam", 400, 420),
        event("nccl:all_reduce", 0, 9000, "gpu_user_annotation"),
        event("ProfilerStep#1", 0, 700, "user_annotation"),
        event("ProfilerStep#1", 0, 650, "gpu_user_annotation"),
        {"ph": "i", "name": "nccl", "ts": 3},
    ]
    assert profiling.communication_s(events, "cuda") == (
        pytest.approx(400e-6),
        pytest.approx(330e-6),
    )
    assert profiling.step_s_of(events) == pytest.approx(700e-6)
    events = [
        event("gloo:all_reduce", 0, 100, "user_annotation"),
        event("gloo:all_reduce", 50, 150, "user_annotation"),
        event("c10d::allreduce_", 0, 9000, "cpu_op"),
    ]
    assert profiling.communication_s(events, "cpu") == (pytest.approx(150e-6), None)
    assert profiling.communication_s(events, "cuda") == (None, None)  # without kernels
    assert profiling.communication_s([], "cpu") == (None, None)
    assert profiling.step_s_of([]) is None


def test_kernels_of_attention_and_the_loss_are_known_by_their_names():
    """Attention runs 10 + 20 + 40 + 80 + 160 us, of which 5 are beside another; the loss 1 + 2 + 4 + 8."""
    norm = "triton_poi_fused__scaled_dot_product_flash_attention_clone_3"
    events = [
        event("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>(...)", 0, 10),
        event("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention)", 100, 120),
        event("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_7", 200, 240),
        event("triton_tem_fused_flex_attention_backward_1", 300, 380),
        event("flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", 375, 540),
        event("void cunn_SoftMaxForward<8, float, float, LogSoftMaxForwardEpilogue>", 600, 601),
        event("void nll_loss_backward_reduce_cuda_kernel_2d<float>", 602, 604),
        event("triton_red_fused__log_softmax__to_copy_nll_loss_forward_view_4", 605, 609),
        event("triton_red_fused__log_softmax_backward_data_nll_loss_backward_5", 610, 618),
        event(norm, 700, 750),
        event("nvjet_tst_128x256_64x4_2x1_v_bz_NNT", 800, 900),
        event("void softmax_warp_forward<float, float, float, 8, false, false>", 900, 950),
        event("aten::_scaled_dot_product_flash_attention", 0, 9000, "cpu_op"),
        event("aten::_log_softmax", 0, 9000, "cpu_op"),
    ]
    expected = {"attention_kernels_s": 310e-6, "loss_kernels_s": 15e-6}
    assert profiling.kernels_s(events) == pytest.approx(expected)
    missing = {"attention_kernels_s": None, "loss_kernels_s": None}
    assert profiling.kernels_s(events[-3:]) == missing


def test_parts_are_those_of_the_step_with_the_median_time(monkeypatch):
    """A step takes 1, 2, 3 and 4 units in the parts of each micro-batch, and another one at its end."""
    waits, units_s, now = [], iter((3, 1, 2)), [0]

    def step(micro_batches):
        unit_s = next(units_s)
        for _ in micro_batches:
            for units, part in enumerate(
                ("forward", "backward", "optimizer", "communication"), start=1
            ):
                with trainer.section(part):
                    now[0] += unit_s * units
        now[0] += unit_s

    trainer = SimpleNamespace(section=trainers.no_section, step=step)
    monkeypatch.setattr(
        "dsnb.measure.train.profiling.time", SimpleNamespace(perf_counter=lambda: now[0])
    )
    split = profiling.time_parts(
        trainer, [1, 2], lambda: waits.append("device"), lambda: waits.append("ranks")
    )
    assert split == {
        "forward_s": 4,
        "backward_s": 8,
        "optimizer_s": 12,
        "handover_s": 16,
        "step_s": 42,
    }
    assert waits.count("ranks") == 3
    assert waits.count("device") == 3 * (
        1 + 2 + 2 * 8
    )  # before a step, at its edges and at those of its parts
    assert trainer.section is trainers.no_section


def test_a_profile_adds_a_breakdown_and_a_trace_to_the_same_steps(run_small, tmp_path, monkeypatch):
    (_, plain), (result, paths) = (
        run_small(gpus=2, strategy="ddp", profile=profile) for profile in (False, True)
    )
    profile = json_files.read_json(paths.profile)
    assert profile["missing"] == {}
    assert all(profile[part] > 0 for part in PARTS)
    assert 0.5 * profile["step_s"] < sum(profile[part] for part in PARTS) <= profile["step_s"]
    assert 0 < profile["communication_s"] <= profile["traced_step_s"]
    assert profile["exposed_communication_s"] is None
    names = {event["name"] for event in profiling.read_events(paths.trace)}
    assert {"forward", "backward", "optimizer", "gloo:all_reduce"} <= names
    assert "gloo:barrier" not in names
    assert paths.trace.stat().st_size < 500_000
    steps = [json_files.read_lines(each.steps) for each in (plain, paths)]
    assert [row.keys() for row in steps[0]] == [row.keys() for row in steps[1]]
    assert [row["loss"] for row in steps[0]] == [row["loss"] for row in steps[1]]
    workers = [json_files.read_json(each.worker) for each in (plain, paths)]
    assert workers[0].keys() == workers[1].keys()
    assert (
        workers[1]["timed_to_s"] <= workers[1]["ended_s"] <= profile["from_s"] <= profile["ended_s"]
    )
    assert result.phases_s["profile"] == pytest.approx(profile["ended_s"] - workers[1]["ended_s"])
    assert not [path for path in (plain.profile, plain.trace) if path.exists()]
    figures = [*PARTS, "communication_s"]
    without, measured = dsnb.load_runs(tmp_path)[figures].to_numpy()
    assert [*measured] == [profile[name] for name in figures]
    assert pd.isna(without).all()
    monkeypatch.chdir(tmp_path)
    shown = run_card.card(result).text
    assert '<a href="small/run2/trace.json.gz">' in shown
    assert "profile_missing" not in shown
    begin(paths, RunRecord(paths).experiment, {})  # before a run is repeated
    assert not [path for path in (paths.profile, paths.trace) if path.exists()]


@pytest.mark.parametrize("broken", ["profilers", "rank", "hang"])
def test_no_profiler_can_cost_a_run(run_small, monkeypatch, broken):
    monkeypatch.setenv("DSNB_TEST_PROFILE", broken)
    monkeypatch.setattr(run, "GRACE_PERIOD_S", 0.5)
    result, paths = run_small(worker="bad_profile", gpus=2, profile=True)
    assert (result.status, result.cause) == ("ok", None), result.message()
    assert result.summary["tokens_per_s"] > 0
    profile = json_files.read_json(paths.profile)
    assert profile["step_s"] > sum(result.summary[name] for name in PARTS) * 0.99
    assert result.summary["communication_s"] is None
    why = {"profilers": "RuntimeError: no counters on this host"}.get(broken, profiling.CUT_OFF)
    assert profile["missing"] == {"trace": why, "communication": why}
    assert result.summary["profile_missing"] == f"trace: {why}; communication: {why}"
    told = {"rank": "", "hang": "dsnb: the profile took too long and is left unfinished"}
    assert told.get(broken, f"dsnb: no trace in the profile: {why}") in paths.console.read_text()
