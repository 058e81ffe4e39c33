"""Weights of 4 bits and moments of 8: what is stored, and that torchao's numbers come back."""

import pytest

from tests.support import lazy

torch = lazy.Module("torch")
quantized = lazy.Module("dsnb.models.quantized")
build = lazy.Module("dsnb.models.build")


@pytest.fixture
def layer(small):
    """Give a linear layer of 256 x 512 in bf16, and torchao's quantized weight."""
    quantized.reveal_torchao(small(strategy="plain"))
    from torchao.quantization import to_nf4

    made = torch.nn.Linear(256, 512).to(torch.bfloat16)
    return made, to_nf4(made.weight.detach(), quantized.BLOCK, quantized.SCALES)


def test_a_layer_holds_four_bits_a_weight_and_multiplies_with_what_they_stand_for(layer):
    whole, of_torchao = layer
    small = quantized.Nf4Linear(whole)
    weights = 256 * 512
    assert small.weight.nbytes == weights / 2
    assert small.scales.nbytes == weights / 64
    assert small.factors.nbytes == 2 * weights / (64 * 256)
    assert (small.weight.stands_for, small.scales.stands_for) == (weights, 0)
    assert not any(one.requires_grad for one in (small.weight, small.scales))
    stood_for = of_torchao.get_original_weight()
    inputs = torch.randn(3, 5, 256, dtype=torch.bfloat16, requires_grad=True)
    result = small(inputs)
    assert torch.equal(result, torch.nn.functional.linear(inputs, stood_for, whole.bias))
    (gradient,) = torch.autograd.grad(result.sum(), inputs)
    assert torch.equal(gradient, torch.ones_like(result) @ stood_for)
    with torch.autocast("cpu", torch.bfloat16):
        assert small(inputs.float()).dtype is torch.bfloat16


def test_the_passes_keep_neither_the_weight_nor_the_input(layer):
    whole, _ = layer
    small = quantized.Nf4Linear(whole)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda one: kept.append(one) or one, lambda one: one
    ):
        small(torch.randn(4096, 256, dtype=torch.bfloat16, requires_grad=True))
    assert sum(one.nbytes for one in kept) < 0.6 * 256 * 512


@pytest.mark.parametrize(
    ("inputs", "outputs", "fits"), [(128, 128, True), (128, 64, False), (252, 8192, False)]
)
def test_layers_of_whole_groups_of_scales_fit(inputs, outputs, fits):
    """16,384 weights have 256 scales; 252 inputs in bf16 are no whole numbers of 4 bits x 8."""
    assert quantized.fits_nf4(torch.nn.Linear(inputs, outputs)) is fits
    assert not quantized.fits_nf4(torch.nn.LayerNorm(128))


def test_a_model_of_few_fitting_layers_is_refused(small):
    experiment = small(model="moe-tiny", lora_rank=2, frozen_weights="nf4", strategy="plain")
    words = "frozen_weights is 'nf4': it takes linear layers with a multiple of 16,384 weights, which have "
    with pytest.raises(
        ValueError, match=f"^{words}7% of the weights of moe-tiny's blocks; use 'auto'$"
    ):
        quantized.check_nf4(experiment, build.build_on_meta(small(model="moe-tiny")))
