"""The loss that all strategies train, whole, in chunks and compiled: transformers' figures, and those of fp64."""

import functools
import math
from unittest import mock

import pytest

from dsnb.base.formulas.model_shapes import PRESETS
from dsnb.settings.experiment import Experiment
from tests.support import lazy

torch, F = lazy.Module("torch"), lazy.Module("torch.nn.functional")
transformers = lazy.Module("transformers")
build, compiling, model_loss, logits, parts = (
    lazy.Module(f"dsnb.models.{name}") for name in ("build", "compile", "loss", "logits", "parts")
)
failure = lazy.Module("dsnb.measure.record.failure")

TOKENS, WIDTH, VOCAB = 150, 32, 1003  # three chunks; a width that is padded
SCALE = 2.0**13


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("dsnb.models.chunks.CHUNK_TOKENS", 64)


def tiny(name, **more):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**{**PRESETS[name].config(), **more})
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def gradients(module, loss):
    module.zero_grad()
    loss.backward()
    return torch.cat(
        [parameter.grad.flatten() for parameter in module.parameters() if parameter.requires_grad]
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_loss_of_logits_in_half_precision_is_in_fp32(dtype):
    """Each of three tokens has a loss of log 1000: in bf16 it would be 6.90625."""
    logits = torch.zeros(1, 4, 1000, dtype=getattr(torch, dtype))
    loss = model_loss.causal_loss(logits, torch.zeros(1, 4, dtype=torch.int64))
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(math.log(1000), rel=1e-6)


@pytest.mark.parametrize("name", [name for name in PRESETS if name.endswith("-tiny")])
@pytest.mark.parametrize("chunked", [False, True], ids=["whole", "chunked"])
def test_loss_and_gradients_are_those_of_transformers(name, chunked, monkeypatch):
    monkeypatch.setattr(
        "dsnb.models.chunks.CHUNK_TOKENS", 8
    )  # seven chunks of eight tokens or three
    model = tiny(name)
    ids = torch.randint(model.config.vocab_size, (3, 17))
    theirs = model(input_ids=ids, labels=ids).loss
    expected = gradients(model, theirs)
    ours = model_loss.CausalLoss(model, chunked)(ids)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    assert (gradients(model, ours) - expected).norm() < 1e-6 * expected.norm()


@pytest.mark.parametrize(
    "name", ["gpt2-tiny", "llama-tiny"]
)  # their embeddings are tied and not tied
@pytest.mark.parametrize("has_bias", [False, True], ids=["no bias", "bias"])
def test_a_padded_vocabulary_trains_alike_and_its_rows_stay_zero(name, has_bias):
    curves, multiple = [], 96
    for padded in (False, True):
        model = tiny(name)
        vocab = model.config.vocab_size
        if has_bias:
            model.get_output_embeddings().bias = torch.nn.Parameter(torch.arange(vocab) / vocab)
        if padded:
            build.pad_vocabulary(model, multiple)
        assert len(model.get_output_embeddings().weight) == (
            vocab + -vocab % multiple if padded else vocab
        )
        optimizer, module = (
            torch.optim.AdamW(model.parameters(), 1e-2),
            model_loss.CausalLoss(model),
        )
        torch.manual_seed(1)
        ids, curve = torch.randint(vocab, (3, 17)), []
        for _ in range(4):
            curve += [module(ids).item(), gradients(model, module(ids)).norm().item()]
            optimizer.step()
        curves.append(curve)
    assert curves[1] == pytest.approx(
        curves[0], rel=1e-3
    )  # AdamW magnifies the rounding of small gradients
    head = model.get_output_embeddings()
    assert not head.weight[vocab:].any()
    assert head.bias.requires_grad == has_bias
    assert torch.allclose(head.bias[vocab:], torch.tensor(build.ADDED_LOGIT), rtol=1e-3)


def test_a_model_with_few_linear_layers_is_not_called_fp8():
    experiment = Experiment(model="opt-tiny", matmul="fp8", device="cpu")
    with pytest.raises(
        ValueError, match=r"linear layers, which have \d+% of the weights of opt-tiny's blocks; use"
    ):
        build.multiply_in_fp8(experiment, tiny("qwen3-moe-tiny"))


@pytest.mark.parametrize("name", ["gpt2-tiny", "opt-tiny"])  # GPT-2's weights are transposed
def test_products_in_fp8_are_those_of_every_linear_layer_up_to_rounding(name):
    model = tiny(name).bfloat16()
    ids = torch.randint(model.config.vocab_size, (2, 16))
    exact = model_loss.CausalLoss(model)(ids)
    experiment = Experiment(model=name, matmul="fp8", device="cpu")
    build.multiply_in_fp8(experiment, model)
    rounded = model_loss.CausalLoss(model)(ids)
    assert rounded.item() != exact.item()
    assert rounded.item() == pytest.approx(exact.item(), rel=1e-2)
    kinds = {type(layer).__name__ for layer in parts.blocks(model)[0].modules()}
    assert "Float8Linear" in kinds
    assert kinds.isdisjoint({"Conv1D", "Linear"})


def test_a_gpu_without_fp8_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100")
    experiment = Experiment(model="opt-tiny", matmul="fp8", device="cuda")
    with pytest.raises(
        ValueError,
        match=r"^matmul is 'fp8': a NVIDIA A100 \(compute capability 8\.0\) has no such products",
    ):
        build.multiply_in_fp8(experiment, tiny("opt-tiny"))


def test_chunks_keep_no_logits(monkeypatch):
    model = tiny("gpt2-tiny", vocab_size=3000)  # the logits are the largest tensor
    ids = torch.randint(model.config.vocab_size, (8, 64))
    logits = ids.numel() * model.config.vocab_size

    def largest_kept(module):
        sizes = [0]
        with torch.autograd.graph.saved_tensors_hooks(
            lambda kept: sizes.append(kept.numel()) or kept, lambda kept: kept
        ):
            module(ids)
        return max(sizes)

    monkeypatch.setattr("dsnb.models.chunks.CHUNK_TOKENS", 8)
    assert largest_kept(model_loss.CausalLoss(model)) == logits
    assert largest_kept(model_loss.CausalLoss(model, chunked=True)) < logits / 2


def given(weight_dtype, hidden_dtype):
    torch.manual_seed(1)
    layer = torch.nn.Linear(WIDTH, VOCAB, bias=False)
    targets = torch.randint(VOCAB, (TOKENS,))
    targets[[0, 70, TOKENS - 1]] = model_loss.IGNORED
    return (
        layer.to(weight_dtype),
        (3 * torch.randn(TOKENS, WIDTH)).to(hidden_dtype).requires_grad_(),
        targets,
    )


def in_fp64(layer, hidden, targets):
    """Return the mean loss and its gradients by the weight and the hidden states, of the same values in fp64."""
    weight, states = (one.detach().double().requires_grad_() for one in (layer.weight, hidden))
    loss = F.cross_entropy(states @ weight.T, targets)
    return loss.item(), *torch.autograd.grad(loss, (weight, states))


def relative_error(gradient, expected):
    return float((gradient.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize(
    ("weight_dtype", "hidden_dtype", "autocast", "max_error", "compiled"),
    [
        ("float32", "float32", None, 1e-6, False),
        ("bfloat16", "bfloat16", None, 1e-2, False),
        ("float32", "float16", "float16", 2e-3, False),
        pytest.param("float32", "float32", "bfloat16", 1e-2, True, marks=pytest.mark.process),
    ],
)
def test_gradients_are_those_of_fp64_up_to_rounding(
    weight_dtype, hidden_dtype, autocast, max_error, compiled
):
    layer, hidden, targets = given(getattr(torch, weight_dtype), getattr(torch, hidden_dtype))
    loss_and_gradient = model_loss.differentiate
    if compiled:  # `test_gpu` runs the code that Inductor generates
        loss_and_gradient = torch.compile(loss_and_gradient, backend="aot_eager")
    with torch.autocast("cpu", getattr(torch, autocast or "bfloat16"), enabled=bool(autocast)):
        loss = (
            model_loss.sum_of_losses(layer, hidden, targets, loss_and_gradient)
            / (targets >= 0).sum()
        )
    (loss * SCALE).backward()
    value, by_weight, by_hidden = in_fp64(layer, hidden, targets)
    assert loss.item() == pytest.approx(value, rel=max_error)
    assert relative_error(layer.weight.grad / SCALE, by_weight) < max_error
    assert relative_error(hidden.grad / SCALE, by_hidden) < max_error
    assert (layer.weight.grad.dtype, hidden.grad.dtype) == (layer.weight.dtype, hidden.dtype)
    assert not hidden.grad[targets == model_loss.IGNORED].any()
    layer.weight.requires_grad_(False).grad = None
    model_loss.sum_of_losses(layer, hidden, targets).backward()
    assert layer.weight.grad is None


@pytest.mark.parametrize(
    "made", [(1.0, 0.25, 0.0), (1.0, 1.0, 3.0), (0.5, 2.0, 3.0), (2.0, 1.0, 0.0)]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_bias_a_factor_and_a_soft_cap_are_differentiated(made, dtype):
    layer, hidden, targets = given(getattr(torch, dtype), getattr(torch, dtype))
    layer.bias = torch.nn.Parameter(torch.randn(VOCAB).to(layer.weight.dtype))
    made = logits.LogitMap(*made)
    own = [
        tensor.detach().double().requires_grad_() for tensor in (layer.weight, hidden, layer.bias)
    ]
    scores = made.scale * F.linear(made.inputs * own[1], own[0], own[2])
    if made.cap:
        scores = made.cap * torch.tanh(scores / made.cap)
    expected = F.cross_entropy(scores, targets, reduction="sum")
    loss = model_loss.sum_of_losses(layer, hidden, targets, made=made)
    loss.backward()
    max_error = 1e-5 if dtype == "float32" else 2e-2
    assert loss.item() == pytest.approx(expected.item(), rel=max_error)
    exact = torch.autograd.grad(expected, own)
    for ours, theirs in zip((layer.weight, hidden, layer.bias), exact, strict=True):
        assert relative_error(ours.grad, theirs) < max_error
        assert ours.grad.dtype == ours.dtype
    layer.bias.requires_grad_(False).grad = None
    model_loss.sum_of_losses(layer, hidden, targets, made=made).backward()
    assert layer.bias.grad is None


def test_rounding_does_not_grow_with_the_number_of_chunks(monkeypatch):
    monkeypatch.setattr("dsnb.models.chunks.CHUNK_TOKENS", 5)  # 30 chunks
    layer, hidden, targets = given(torch.bfloat16, torch.bfloat16)
    model_loss.sum_of_losses(layer, hidden, targets).div((targets >= 0).sum()).backward()
    whole = torch.autograd.grad(
        F.cross_entropy(layer(hidden).float(), targets), (layer.weight, hidden)
    )
    _, *expected = in_fp64(layer, hidden, targets)
    for ours, theirs, exact in zip((layer.weight.grad, hidden.grad), whole, expected, strict=True):
        # Scaling the gradient rounds once more.
        assert relative_error(ours, exact) < 1.3 * relative_error(theirs, exact)


def test_sums_over_tokens_do_not_overflow_in_fp16():
    """Unscaled, the gradient of the only target's row is the sum of all states: 150 x 900."""
    layer, _, targets = given(torch.float16, torch.float16)
    hidden = torch.full((TOKENS, WIDTH), 900.0, dtype=torch.float16, requires_grad=True)
    layer.weight.data.zero_()
    model_loss.sum_of_losses(layer, hidden, torch.zeros_like(targets)).div(TOKENS).backward()
    assert layer.weight.grad[0].float() == pytest.approx(
        torch.full((WIDTH,), -900.0 * (1 - 1 / VOCAB)), rel=1e-3
    )


def test_an_error_in_a_chunk_is_one_in_the_loss():
    layer, hidden, targets = given(torch.float32, torch.float32)

    def loss_and_gradient(logits, of, made):
        raise MemoryError("none left")

    with pytest.raises(MemoryError) as caught:
        model_loss.sum_of_losses(layer, hidden, targets, loss_and_gradient)
    assert failure._is_in_loss(caught.value)


@pytest.mark.process
@pytest.mark.parametrize(
    ("model", "settings", "parts"),
    [
        (
            "gpt2-tiny",
            {"loss": "chunked"},
            2,
        ),  # up to the output layer, and between a chunk's products
        ("opt-tiny", {"lora_rank": 4, "activation_checkpointing": True}, 1),
        ("moe-tiny", {}, 1),
        (
            "bloom-tiny",
            {"compile_unit": "block"},
            3,
        ),  # one of all blocks, the output layer, and the loss
    ],
)
def test_each_family_is_few_graphs(model, settings, parts):
    """One graph for each block would exceed dynamo's limit: the rest would not be compiled."""
    from torch._inductor.codecache import FxGraphHashDetails

    torch._dynamo.reset()
    graphs, breaks = compiling.compiled_graphs(), compiling.graph_breaks()
    small = {"device": "cpu", "precision": "fp32", "seq_len": 16, "micro_batch_size": 2}
    experiment = Experiment(
        model=model, compile="default", **small, **{"compile_unit": "model", **settings}
    )
    module = model_loss.CausalLoss(
        build.build(experiment, {}, torch.device("cpu")), "loss" in settings
    )
    eager = functools.partial(torch.compile, backend="eager")
    with mock.patch("torch.compile", eager), torch.compiler.config.patch(cache_key_tag=""):
        compiling.compile_model(experiment, module)
        # In torch 2.11 all precisions share one cache of graphs, and GPT-2 in bf16 ran the fp16 graph.
        assert FxGraphHashDetails(None, [], {}, []).cache_key_tag == "fp32"
    made_in = []
    for _ in range(2):
        module(torch.randint(500, (2, 16))).backward()
        made_in.append(compiling.compiled_graphs() - graphs)
    assert made_in == [parts] * 2
    assert compiling.graph_breaks() == breaks


def test_graph_breaks_are_counted():
    import torch  # the traced function must not import it

    torch._dynamo.reset()
    breaks = compiling.graph_breaks()

    def broken(numbers):
        torch._dynamo.graph_break()
        return numbers + 1

    torch.compile(broken, backend="eager")(torch.ones(2))
    assert compiling.graph_breaks() == breaks + 1
