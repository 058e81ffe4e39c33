"""The training itself is right: real DeepSpeed, real ranks, losses compared step by step."""

import json
from dataclasses import replace

import pytest

from dsnb.base.files import json_files
from dsnb.base.formulas.model_shapes import PRESETS
from dsnb.base.system import hardware
from tests.support import lazy

data = lazy.Module("dsnb.measure.train.data")
ADAM = 1e-4


@pytest.mark.skipif(not hardware.cpu_supports_fp16(), reason="this CPU has no fp16 arithmetic")
def test_zero_0_and_1_agree_in_fp16(run_small):
    """DeepSpeed's ZeRO 0 does not scale the loss, so it would not skip the steps that ZeRO 1 skips."""
    steps = []
    for stage in (0, 1):
        _, paths = run_small(model="opt-tiny", precision="fp16", zero_stage=stage, steps=6)
        steps.append(json_files.read_lines(paths.steps))
    alike = [first["skipped"] == second["skipped"] for first, second in zip(*steps, strict=True)]
    common = [*alike, False].index(
        False
    )  # once their loss scalers skip different steps, they are not comparable
    assert common >= 3
    losses = [[row["loss"] for row in curve[:common]] for curve in steps]
    assert losses[1] == pytest.approx(losses[0], abs=2e-3)


def test_steps_that_torchs_own_loss_scaler_skips_are_counted(run_small, monkeypatch):
    """DeepSpeed counts none of them, but DDP uses the same scaler.

    With few tokens and large updates gradients overflow, whatever text this Python's standard library has.
    """
    monkeypatch.setattr(
        hardware, "cpu_supports_fp16", lambda: True
    )  # torch computes it on any CPU, but slowly
    few = {"micro_batch_size": 1, "seq_len": 8, "learning_rate": 0.1}
    settings = {"precision": "fp16", "steps": 5, **few}
    ours, _ = run_small(**settings, mixed_precision="autocast")
    theirs, _ = run_small(**settings, strategy="ddp")
    assert ours.summary["skipped_steps"] == theirs.summary["skipped_steps"] > 0


def test_step_times_are_the_timed_wall_time_and_a_cpu_gives_no_figures_of_gpus(trained):
    result, paths = trained(steps=20, gpus=2, zero_stage=1)
    timed = [
        row["step_time_s"] for row in json_files.read_lines(paths.steps) if row["phase"] == "timed"
    ]
    assert len(timed) == 20
    assert sum(timed) == pytest.approx(result.phases_s["timed"], rel=0.01)
    assert result.summary["tokens_per_s"] == pytest.approx(20 * 2 * 2 * 32 / sum(timed))
    figures_of_gpus = ("peak_allocated_gib", "device_memory_gib", "gpu_util_pct", "power_w", "mfu")
    assert [result.summary[name] for name in figures_of_gpus] == [None] * 5
    assert result.summary["host_memory_gib"] > 0.1
    assert result.summary["parameters"] == PRESETS["gpt2-tiny"].parameters
    assert (json_files.read_json(paths.worker) or {})["cpu_threads"] == max(
        1, hardware.cores() // 2
    )
    assert not paths.gpu.exists()


def test_stored_weights_and_odd_shapes(losses, small, tmp_path):
    """OPT-350M's kind: a narrow embedding projected in and out, and a norm after each block instead of at the end."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {
        **PRESETS["opt-tiny"].config(),
        "word_embed_proj_dim": 64,
        "do_layer_norm_before": False,
    }
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape)).eval()
    for parameter in model.parameters():
        parameter.data.mul_(0.5)
    model.save_pretrained(tmp_path)
    stored = {
        "model": str(tmp_path),
        "weights": "pretrained",
        "steps": 3,
        "learning_rate": 1e-3,
        "micro_batch_size": 4,
    }
    curve = losses(**stored, zero_stage=3)
    (ids,) = data.batches(small(**stored), shape["vocab_size"], 0, model.device)(0)
    assert curve[0] == pytest.approx(model(input_ids=ids, labels=ids).loss.item(), abs=1e-5)
    accumulated = {**stored, "micro_batch_size": 2, "grad_accum": 2}
    assert losses(**accumulated, gpus=2, pipeline_parallel=2) == pytest.approx(curve, abs=ADAM)


def test_building_a_large_model_needs_a_part_of_it_per_rank(run_small, tmp_path):
    """ZeRO 3 and pipelines never hold the whole model in one rank.

    The largest of four stages has a quarter of the blocks and the embedding. The model is large enough for a part of it
    to be much more memory than a rank needs otherwise.
    """
    shape = replace(PRESETS["opt-350m"], layers=8, vocab=8192)
    config = shape.config() | {"num_hidden_layers": shape.layers, "vocab_size": shape.vocab}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for settings, most in (({"zero_stage": 3}, 0.6), ({"pipeline_parallel": 4}, 0.5)):
        _, paths = run_small(
            worker="builder", model=str(tmp_path), precision="bf16", gpus=4, **settings
        )
        ranks = [json_files.read_json(paths.dir / f"rank{rank}.json") for rank in range(4)]
        assert not any(rank["not_finite"] for rank in ranks)
        assert 0.2 < max(rank["grown_bytes"] for rank in ranks) / (2 * shape.parameters) < most
