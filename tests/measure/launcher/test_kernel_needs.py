"""What attention and loss need in a step by hand, and what is said of kernels that take much more."""

import pytest

from dsnb.base.files import json_files
from dsnb.measure.launcher.figures import summarize_run
from dsnb.measure.launcher.kernel_needs import needed_s
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.run_record import RunRecord

TOKENS = 8 * 2048
SQUARE = 12 * 16 * 2048 * 2048
"""FLOPs of OLMo-2 1B's attention per token, as dsnb counts them: 16 layers of width 2048."""
OLMO = {
    "gpu_name": "NVIDIA H100 80GB HBM3",
    "active_parameters": 1.5e9,
    "forward_flops_per_token": 3e9 + SQUARE / 3,
    "masked_flops_per_token": SQUARE / 2,
    "layers": 16,
    "vocab": 100_352,
    "attention_kernel": "cudnn",
}
ATTENTION_S = TOKENS * (SQUARE / 2 / 989e12 + 12 * 16 * 2048 * 2 / 3350e9)
"""The causal half at H100's rate, 6.7 ms, and 12 tensors of each layer in bf16, 3.8 ms."""
LOSS_S = TOKENS * 3 * 100_352 * 2 / 3350e9
BY_A_MASK = "a mask probably makes them compute what a causal kernel skips"
BY_OTHERS = "they are probably not fused into one kernel, or not made for these shapes"


@pytest.fixture
def olmo(small):
    """Return a function that gives settings of a profiled run; the model's counts are the record's."""
    usual = {
        "model": "opt-1.3b",
        "micro_batch_size": 8,
        "seq_len": 2048,
        "precision": "bf16",
        "profile": True,
    }
    return lambda **settings: small(**{"gpus": 1, **usual, **settings})


def noted(folder, experiment, worker, **profile):
    """Return the figures of a run whose steps take 300 ms."""
    run = RunPaths(folder)
    json_files.write_json(run.experiment, experiment.model_dump())
    json_files.write_json(run.worker, worker)
    json_files.write_json(run.profile, profile)
    row = {"step": 1, "phase": "timed", "step_time_s": 0.3, "skipped": False}
    json_files.write_lines(run.steps, [row, {**row, "step": 2}])
    return summarize_run(RunRecord(run))


@pytest.mark.parametrize(
    ("settings", "attention", "loss"),
    [
        ({}, 1, 1),
        ({"grad_accum": 3}, 3, 3),
        ({"gpus": 4}, 1, 1),
        ({"gpus": 2, "tensor_parallel": 2}, 1 / 2, 1),
        ({"activation_checkpointing": True}, 4 / 3, 1),
        ({"activation_checkpointing": True, "checkpoint_every": 2}, 7 / 6, 1),
    ],
    ids=str,
)
def test_work_is_that_of_a_rank_in_a_step(olmo, settings, attention, loss):
    found = needed_s(olmo(**settings), OLMO)
    expected = {"attention": attention * ATTENTION_S, "loss": loss * LOSS_S}
    assert found == pytest.approx(expected)


def test_attention_in_a_window_needs_what_the_window_shows(olmo):
    """A window of 512 keys: a quarter of the square, of which the mask hides an eighth."""
    window = SQUARE / 4
    worker = {
        **OLMO,
        "forward_flops_per_token": 3e9 + window / 3,
        "masked_flops_per_token": window / 8,
    }
    flops_s = TOKENS * window * 7 / 8 / 989e12
    bytes_s = TOKENS * window / 2048 * 2 / 3350e9
    assert needed_s(olmo(), worker)["attention"] == pytest.approx(flops_s + bytes_s)


def test_fp32_has_its_own_rate_which_attention_uses_in_tf32(olmo):
    flops_s = TOKENS * SQUARE / 2 / 67e12
    bytes_s = TOKENS * 12 * 16 * 2048 * 4 / 3350e9
    for precision in ("fp32", "tf32"):
        found = needed_s(olmo(precision=precision), OLMO)
        assert found["attention"] == pytest.approx(flops_s + bytes_s)


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ({"gpu_name": "NVIDIA Z9"}, (False, False)),
        ({"gpu_name": None}, (False, False)),
        ({"gpu_name": "Intel Data Center GPU Max 1550"}, (False, False)),
        ({"vocab": None}, (True, False)),
        ({"forward_flops_per_token": None}, (False, True)),
        ({"masked_flops_per_token": None}, (False, True)),
        ({"active_parameters": None}, (False, True)),
        ({"layers": None}, (False, True)),
    ],
    ids=str,
)
def test_nothing_is_said_of_an_unknown_gpu_or_model(olmo, missing, expected):
    found = needed_s(olmo(), {**OLMO, **missing})
    assert tuple(seconds is not None for seconds in found.values()) == expected


def test_a_mask_that_makes_attention_threefold_is_noted_and_a_causal_kernel_is_not(olmo, tmp_path):
    found = noted(tmp_path / "causal", olmo(), OLMO, attention_kernels_s=0.0184)
    assert found["note"] is None
    assert found["attention_needed_s"] == pytest.approx(ATTENTION_S)
    assert (found["loss_kernels_s"], found["loss_needed_s"]) == (None, None)
    masked = {**OLMO, "attention_kernel": "cudnn, masked"}
    found = noted(tmp_path / "masked", olmo(), masked, attention_kernels_s=0.0564)
    assert found["note"] == (
        "attention kernels took 56.4 ms a step, and their FLOPs and bytes need 10.5 ms at the GPU's "
        f"nominal rates: {BY_A_MASK} (cudnn, masked)"
    )


def test_a_loss_of_many_kernels_is_noted(olmo, tmp_path):
    found = noted(tmp_path, olmo(), OLMO, attention_kernels_s=0.0564, loss_kernels_s=0.03)
    assert found["note"] == (
        "attention kernels took 56.4 ms a step, and their FLOPs and bytes need 10.5 ms at the GPU's "
        f"nominal rates: {BY_OTHERS}; loss kernels took 30.0 ms a step, and their FLOPs and bytes "
        f"need 2.9 ms at the GPU's nominal rates: {BY_OTHERS}"
    )


def test_slow_kernels_that_hardly_slow_the_step_are_not_noted(olmo, tmp_path):
    """15 ms are lost from a step of 300 ms: a twentieth."""
    for name, lost_s, is_noted in (("less", 0.0149, False), ("more", 0.0151, True)):
        found = noted(tmp_path / name, olmo(), OLMO, loss_kernels_s=LOSS_S + lost_s)
        assert bool(found["note"]) == is_noted


def test_kernels_of_up_to_four_times_their_need_are_not_noted(olmo, tmp_path):
    for name, times, is_noted in (("less", 3.9, False), ("more", 4.1, True)):
        found = noted(tmp_path / name, olmo(), OLMO, attention_kernels_s=times * ATTENTION_S)
        assert bool(found["note"]) == is_noted


def test_a_run_without_a_profile_has_neither_figures_nor_a_note(olmo, tmp_path):
    found = noted(tmp_path, olmo(profile=False), OLMO, attention_kernels_s=0.0564)
    assert found["note"] is None
    assert "attention_kernels_s" not in found
