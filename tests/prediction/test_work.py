"""Counts of FLOPs and bytes against the formulas of the literature."""

import json
from dataclasses import replace

import pytest

from dsnb.errors import SettingsError
from dsnb.formulas import metrics
from dsnb.formulas.model_shapes import PRESETS
from dsnb.prediction.mode import shape
from dsnb.prediction.work import work
from dsnb.settings.experiment import Experiment

TOKENS = 8 * 1024


def experiment(**settings):
    common = {"model": "opt-1.3b", "micro_batch_size": 8, "seq_len": 1024, "device": "cuda"}
    return Experiment(**{**common, **settings})


def matrices(model="opt-1.3b"):
    """Return the weights that a token is multiplied with: blocks and output layer, without biases and norms."""
    one = PRESETS[model]
    return one.layers * 12 * one.hidden**2 + one.vocab * one.hidden


def test_products_are_six_flops_a_weight_and_token():
    assert work(experiment()).matmul_flops == pytest.approx(6 * matrices() * TOKENS)


def test_eager_attention_adds_what_the_convention_of_mfu_counts():
    extra = work(experiment(attention="eager")).matmul_flops - work(experiment()).matmul_flops
    model = PRESETS["opt-1.3b"]
    convention = metrics.model_flops_per_token(0, model.layers, model.hidden, 1024)
    assert extra == pytest.approx(convention * TOKENS)


def test_fused_attention_computes_the_causal_half_in_seven_products():
    done = work(experiment()).attention_flops
    model = PRESETS["opt-1.3b"]
    square = 8 * 1024 * 1024 * model.hidden * model.layers
    assert done == pytest.approx(7 * 2 * square * (1024 + 128) / 2 / 1024)


def test_recomputation_adds_a_forward_pass_of_its_blocks():
    blocks = PRESETS["opt-1.3b"].layers * 12 * 2048**2
    for every, share in ((1, 1.0), (2, 0.5), (5, 5 / 24)):
        again = work(experiment(activation_checkpointing=True, checkpoint_every=every))
        extra = again.matmul_flops - work(experiment()).matmul_flops
        assert extra == pytest.approx(2 * blocks * TOKENS * share)


def test_frozen_weights_have_no_gradients_of_their_own():
    tuned = work(experiment(lora_rank=64, strategy="plain"))
    adapters = 24 * 64 * 18 * 2048
    assert tuned.matmul_flops == pytest.approx((4 * matrices() + 6 * adapters) * TOKENS)


def test_the_odd_vocabulary_of_gpt2_is_slow_unless_a_compiler_pads_it():
    odd = {"model": "gpt2", "micro_batch_size": 8, "seq_len": 1024}
    assert work(experiment(**odd)).unaligned_flops == 6 * 50257 * 768 * TOKENS
    assert work(experiment(**odd, compile="default")).unaligned_flops == 0
    assert work(experiment(**odd, precision="fp32")).unaligned_flops == 0


def test_accumulation_repeats_the_passes_but_not_the_optimizer():
    once, four = work(experiment(zero_stage=0)), work(experiment(zero_stage=0, grad_accum=4))
    assert four.matmul_flops == 4 * once.matmul_flops
    assert four.host_launches == 4 * once.host_launches
    assert four.optimizer_bytes == once.optimizer_bytes


def test_zero_1_moves_gradients_once_a_step_and_zero_2_with_each_micro_batch():
    passes = work(experiment(zero_stage=0)).host_launches
    hooks = {
        (stage, count): work(experiment(zero_stage=stage, grad_accum=count)).host_launches - count * passes
        for stage in (1, 2)
        for count in (1, 4)
    }
    assert hooks[1, 1] == pytest.approx(hooks[2, 1])
    assert hooks[2, 4] == pytest.approx(4 * hooks[2, 1])
    assert hooks[1, 1] < hooks[1, 4] < 1.5 * hooks[1, 1]


def test_the_bubble_is_stages_less_one_over_micro_batches():
    """Of equal stages; the last one here also has the output layer, for which the others wait."""
    for stages, count in ((2, 8), (4, 8), (4, 32)):
        filled = work(experiment(pipeline_parallel=stages, gpus=stages, grad_accum=count)).pipeline_fill
        blocks, head = 24 * 12 * 2048**2 / stages, 50272 * 2048
        assert filled == pytest.approx((stages - 1) / count * (blocks + head / stages) / (blocks + head))


def test_partitions_divide_the_optimizer_and_parallelism_the_products():
    alone, shared = work(experiment(zero_stage=3)), work(experiment(zero_stage=3, gpus=4))
    assert shared.optimizer_bytes == alone.optimizer_bytes / 4
    split = work(experiment(tensor_parallel=2, gpus=2))
    head = 6 * 50272 * 2048 * TOKENS
    assert split.matmul_flops - head == pytest.approx((work(experiment()).matmul_flops - head) / 2)


def test_offloaded_inputs_go_out_and_come_back():
    moved = work(experiment(activation_checkpointing=True, checkpoint_offload=True)).offloaded_activation_bytes
    assert moved == 2 * 24 * TOKENS * 2048 * 2


def test_zero_0_asks_for_overflows_in_native_half_precision_only():
    assert work(experiment()).host_parameters == 24 * 16 + 4
    for settings in ({"mixed_precision": "autocast"}, {"precision": "fp32"}, {"strategy": "ddp"}):
        assert work(experiment(**settings)).host_parameters == 0


def test_cuda_graphs_spare_the_host_its_launches():
    eager, graphs = (work(experiment(strategy="plain", compile=mode)) for mode in ("off", "reduce-overhead"))
    assert graphs.host_launches * 100 < eager.host_launches
    assert graphs.matmul_flops == eager.matmul_flops


def test_the_shape_of_a_configuration_file_is_that_of_its_preset(tmp_path):
    path = tmp_path / "config.json"
    for name in ("gpt2-medium", "opt-350m", "bloom-560m"):
        path.write_text(json.dumps(PRESETS[name].config()))
        shape.cache_clear()
        assert shape(str(path)) == replace(PRESETS[name], hub_id=None)


@pytest.mark.parametrize("text", ['{"model_type": "llama"}', "{", "[]", '{"model_type": "opt"}'])
def test_other_configurations_are_refused(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(SettingsError, match="cannot read the shape of a gpt2, opt, bloom model from"):
        shape(str(path))
    with pytest.raises(SettingsError, match="a prediction needs a preset or a configuration file"):
        shape("someone/model")
