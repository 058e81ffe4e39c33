"""Split layers and pipelines train as one process does: losses of real ranks, step by step, from the same weights.

Most cases train with plain gradient descent, for Adam divides out whatever a gradient is wrong by: a factor, the norm
that it was clipped by. fp32 sums differ in order only, by 1e-6 of a loss; 5e-6 was the largest difference seen in ten
steps. With Adam it was 1e-5: it divides a gradient by its own size, also where that is almost nothing.
"""

import pytest

from dsnb.files import records
from dsnb.formulas.model_shapes import PRESETS

PLAIN, ADAM, BF16 = 2e-5, 1e-4, 1e-2
SGD = "tests.workers.sgd"
TP, PP = {"tensor_parallel": 2}, {"pipeline_parallel": 2}
CHECKPOINTED = {"activation_checkpointing": True}
OFFLOADED = {**CHECKPOINTED, "checkpoint_every": 2, "checkpoint_offload": True}
CLIP = {"gradient_clipping": 0.5}

CASES = [
    ("gpt2-tiny", 4, TP, {"zero_stage": 2, **CLIP, **CHECKPOINTED}),
    ("opt-tiny", 2, TP, {"zero_stage": 1, **CLIP, **OFFLOADED}),
    ("opt-tiny", 4, PP, {"zero_stage": 1, **CLIP}),
    ("bloom-tiny", 4, {"pipeline_parallel": 4}, {"attention": "eager", **OFFLOADED}),
    ("gpt2-tiny", 4, {**TP, **PP}, {"zero_stage": 1, **CLIP}),
    ("bloom-tiny", 2, TP, {**CHECKPOINTED}),
]


@pytest.fixture
def alone(losses):
    """Give the losses of one process with the whole model and the whole batch."""
    same = {"steps": 5, "learning_rate": 1e-3, "gpus": 1, "micro_batch_size": 4}
    return lambda **settings: losses(**{**same, **settings})


@pytest.fixture
def together(losses):
    """Give the losses of several ranks with the same batch."""

    def train(gpus, shared, **settings):
        ranks = gpus // (shared.get("tensor_parallel", 1) * shared.get("pipeline_parallel", 1))
        same = {"steps": 5, "learning_rate": 1e-3, "grad_accum": 2, "micro_batch_size": 2 // ranks}
        return losses(gpus=gpus, **shared, **{**same, **settings})

    return train


@pytest.mark.parametrize(("model", "gpus", "shared", "settings"), CASES)
def test_gradients_are_those_of_one_process(alone, together, model, gpus, shared, settings):
    same = {name: settings[name] for name in ("gradient_clipping", "attention") if name in settings}
    curve = alone(worker=SGD, model=model, **same)
    assert together(gpus, shared, worker=SGD, model=model, **settings) == pytest.approx(curve, abs=PLAIN)


def test_bf16_stays_near_one_process(alone, together):
    """bf16 keeps 8 bits: one rounding at a loss of 6 is up to 0.016."""
    curve = alone(precision="bf16", zero_stage=1)
    assert together(4, {**TP, **PP}, precision="bf16", zero_stage=1) == pytest.approx(curve, abs=BF16)


def test_the_record_names_what_was_built(trained):
    same = {"steps": 5, "learning_rate": 1e-3, "grad_accum": 2, "micro_batch_size": 2}
    result, paths = trained(gpus=4, **TP, **PP, **same, precision="bf16", zero_stage=1)  # of the test before
    record = records.read_json(paths.worker)
    assert (record["tensor_parallel_ranks"], record["pipeline_stages"], record["data_parallel_ranks"]) == (2, 2, 1)
    assert record["step_skew"] is not None
    assert record["forward_skew"] is None  # stages have forward passes of their own
    assert result.summary["parameters"] == PRESETS["gpt2-tiny"].parameters


def test_stored_weights_and_odd_shapes(alone, together, tmp_path):
    """OPT-350M's kind: a narrow embedding projected in and out, and a norm after each block instead of at the end."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {**PRESETS["opt-tiny"].config(), "word_embed_proj_dim": 64, "do_layer_norm_before": False}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape))
    for parameter in model.parameters():
        parameter.data.mul_(0.5)
    model.save_pretrained(tmp_path)
    stored = {"model": str(tmp_path), "weights": "pretrained"}
    curve = alone(**stored)
    assert together(2, PP, **stored) == pytest.approx(curve, abs=ADAM)
    assert alone(**stored, zero_stage=3) == pytest.approx(curve, abs=ADAM)
    assert abs(alone(model=str(tmp_path))[0] - curve[0]) > 10 * ADAM


def test_another_engine_than_asked_for_is_refused(run_small):
    result, _ = run_small(
        worker="tests.workers.missplit",
        gpus=4,
        **PP,
        **TP,
        deepspeed={"zero_optimization": {"reduce_bucket_size": 12345}},
    )
    assert result.status == "failed"
    for difference in (
        "ZeRO stage 1 instead of 0",
        "tensor-parallel ranks 1 instead of 2",
        "data-parallel place",
        "deepspeed.zero_optimization.reduce_bucket_size 500000000 instead of 12345",
    ):
        assert difference in result.cause
