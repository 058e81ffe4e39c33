"""Traces of a few blocks and one pass tell the memory of any number of blocks and any micro-batch."""

import contextlib
import json

import pytest

import dsnb
from benchmarks import families
from dsnb.base.formulas import memory
from dsnb.base.formulas.model_shapes import PRESETS
from dsnb.prediction import traces
from dsnb.prediction.memory import peak_memory
from dsnb.prediction.traces import MemoryTrace
from dsnb.settings.experiment import Experiment
from tests.support import kept_traces, lazy

fake, memory_trace, partitioner = (
    lazy.Module(f"dsnb.models.observe.{name}") for name in ("fake", "memory", "saved")
)


@pytest.mark.process
@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("bloom-tiny", {"strategy": "plain"}),
        ("gpt2-tiny", {"checkpoint_offload": True, "attention": "eager"}),
        ("gpt2-tiny", {"loss": "chunked", "seq_len": 1000, "micro_batch_size": 1}),  # one chunk
        ("llama-tiny", {"loss": "chunked", "seq_len": 1000, "micro_batch_size": 5}),  # three
    ],
)
def test_a_trace_serves_all_micro_batches(model, settings):
    """Within 0.1 %, at every moment: only the rounding of allocations depends on the micro-batch otherwise."""
    settings = {
        "seq_len": 128,
        "micro_batch_size": 3,
        "activation_checkpointing": True,
        "device": "cuda",
        **settings,
    }
    one = Experiment(model=model, **settings)
    size = one.micro_batch_size
    found = MemoryTrace.of(json.loads(json.dumps(memory_trace.trace(one))), size)
    with memory_trace.flash_attention(), fake.as_on_gpu():
        all_blocks = memory_trace.eager(one, 4, every=4, sequences=size)
    own = MemoryTrace.of({**memory_trace.model_sizes(one, 4), **all_blocks}, size)
    assert found.forward_peak == pytest.approx(own.forward_peak, rel=1e-3)
    assert found.kept == pytest.approx(own.kept, rel=1e-3, abs=2048)
    assert found.moments[0][0] == pytest.approx(own.moments[0][0], rel=1e-3)
    for each in (2, 16):  # bytes of a gradient
        most, expected = (
            max(size + each * done for size, done in trace.moments) for trace in (found, own)
        )
        assert most == pytest.approx(expected, rel=1e-3)
    assert min(number for number, _ in found.moments) >= 0


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        *((f"{name}-tiny", {}) for name in ("gpt2", "opt", "bloom", "falcon", "neox", "phi3")),
        *((f"{name}-tiny", {"loss": "chunked"}) for name in ("qwen3", "gemma2")),
        ("llama-tiny", {"activation_checkpointing": True}),
        ("gpt2-tiny", {"compile": "default", "compile_unit": "block"}),
    ],
)
def test_formats_as_wide_and_masters_change_no_byte(model, settings):
    """Which is why `dsnb.prediction.traces` asks once for all of them."""
    common = {"model": model, "seq_len": 64, "device": "cuda", **settings}
    trained = ({"precision": "bf16"}, {"precision": "fp16"}, {"strategy": "fsdp"})
    first, *others = [
        memory_trace.trace(Experiment(**{"precision": "bf16", **common, **one})) for one in trained
    ]
    assert others == [first, first]


@pytest.mark.parametrize("compile", ["off", "default"])
def test_a_changed_configuration_is_another_model_to_a_process(tmp_path, compile):
    path = tmp_path / "config.json"
    found = []
    for width in (64, 128):
        path.write_text(json.dumps(PRESETS["llama-tiny"].config() | {"hidden_size": width}))
        one = Experiment(model=str(path), seq_len=32, precision="bf16", compile=compile)
        found.append(memory_trace.trace(one))
    assert found[0]["parameters"] < found[1]["parameters"]
    assert found[0]["kept"] < found[1]["kept"]


def test_what_a_run_would_refuse_is_refused_where_blocks_are_compiled(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({"model_type": "openai-gpt", "n_layer": 2, "n_embd": 32, "n_head": 2})
    )
    settings = {"compile": "default", "compile_unit": "block", "activation_checkpointing": True}
    one = Experiment(model=str(path), seq_len=32, precision="bf16", **settings)
    with pytest.raises(ValueError, match="transformers recomputes no blocks of openai-gpt"):
        memory_trace.trace(one)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("gemma3_text", {"sliding_window": 16}),  # one block in six without a window
        ("deepseek_v3", {"first_k_dense_replace": 1}),  # the first block has no experts
        ("llama", {}),
    ],
)
def test_blocks_that_share_graphs_save_what_each_would(kind, changes, tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(families.configuration(kind) | {"num_hidden_layers": 3} | changes))
    one = Experiment(
        model=str(path), seq_len=64, precision="bf16", compile="default", compile_unit="block"
    )
    settings = json.dumps({name: getattr(one, name) for name in memory_trace.TRACED})
    made = []
    whole = partitioner._graphs

    def graphs(*given):
        made.append(given)
        return whole(*given)

    monkeypatch.setattr("dsnb.models.observe.saved._graphs", graphs)
    with memory_trace.flash_attention(), fake.as_on_gpu():
        shared = partitioner.saved.__wrapped__(settings, 3, "")
        of_shared = len(made)
        monkeypatch.setattr("dsnb.models.observe.saved._format", lambda value: object())
        each = partitioner.saved.__wrapped__(settings, 3, "")
    assert shared == each
    assert of_shared < len(made) - of_shared


@pytest.mark.process
def test_of_cheap_operations_that_are_recomputed_the_results_of_products_are_kept():
    """Llama 3.2 1B in bf16: results of seven layers and of attention, and a block's input."""
    settings = {"model": "llama-3.2-1b", "seq_len": 2048, "precision": "bf16", "device": "cuda"}
    cheap = {"activation_checkpointing": True, "checkpoint_ops": "cheap"}
    found = MemoryTrace.of(memory_trace.trace(Experiment(**settings, **cheap)), 1)
    attention = 2048 + 512 + 512 + 2048 + 2048  # queries, keys, values, their result, the output
    products = attention + 2 * 8192 + 2048
    of_token = 2 * (products + 2048) + 4 * 32  # and a sum in fp32 for each of 32 heads
    assert found.kept == pytest.approx(16 * 2048 * of_token, rel=1e-3)
    whole = MemoryTrace.of(
        memory_trace.trace(Experiment(**settings, activation_checkpointing=True)), 1
    )
    assert whole.kept == 16 * 2048 * 2 * 2048


@pytest.mark.parametrize(
    ("model", "layers", "settings"),
    [
        ("llama-tiny", 9, {"activation_checkpointing": True, "checkpoint_every": 2}),
        ("gemma2-tiny", 9, {"strategy": "plain"}),  # every second block has a window
        ("qwen3-tiny", 5, {"lora_rank": 4, "loss": "chunked"}),
    ],
)
def test_a_few_blocks_tell_what_all_of_them_take(tmp_path, model, layers, settings):
    """Byte by byte, at every moment."""
    config = PRESETS[model].config()
    config |= {name: layers for name in ("n_layer", "num_hidden_layers") if name in config}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    one = Experiment.recorded(
        {
            "model": str(path),
            "seq_len": 64,
            "micro_batch_size": 2,
            "precision": "bf16",
            "device": "cuda",
            **settings,
        }
    )
    few = memory_trace.trace(one)
    with memory_trace.flash_attention(), fake.as_on_gpu(), memory_trace.two_chunks(one):
        whole = memory_trace.eager(one, layers, layers, fake.MANY)
    assert {name: few[name] for name in whole} == whole
    assert few["layers"] == layers


@pytest.mark.parametrize(
    ("name", "limit"), [("gpt2", 0.01), ("opt-125m", 0.1), ("bloom-560m", 0.01)]
)
def test_adafactor_keeps_rows_and_columns_of_any_model(name, limit):
    shape, experiment = PRESETS[name], Experiment(model=name, precision="bf16", device="cuda")
    in_theory = memory.adafactor_moments(shape.layers, shape.hidden, shape.vocab, shape.positions)
    assert 4 * memory_trace.model_sizes(experiment, shape.layers)["factored"] == pytest.approx(
        in_theory, rel=limit
    )


# Measured with code that is still the one that runs; dsnb.published("h200_memory") and benchmarks/h200_bars.csv.
EAGER = {
    "zs0_bf16_gpus2_bs8_sl1024_ga2": 0.05,
    "zs1_bf16_gpus2_bs8_sl1024_ga2": 0.05,
    "zs2_bf16_gpus2_bs8_sl1024_ga2": 0.15,
    "zs3_bf16_gpus2_bs8_sl1024_ga2": 0.05,
    "zs0_bf16_gpus2_bs8_sl1024_ga2_tp2": 0.05,
    "fsdp_bf16_gpus2_bs8_sl1024_ga2": 0.05,
    "zs1_bf16_gpus2_bs8_sl1024_ga2_offload-optimizer-cpu": 0.05,
    "zs2_bf16_gpus2_bs8_sl1024_ga2_offload-optimizer-cpu": 0.05,
    "zs3_bf16_gpus2_bs8_sl1024_ga2_offload-all-cpu": 0.1,
}
"""Largest error in per cent of OPT-1.3B's settings, which share one trace."""


@pytest.mark.process
def test_measured_peaks_are_met():
    """One trace of OPT-1.3B, eager, and one of GPT-2, compiled."""
    rows = dsnb.published("h200_memory").set_index("experiment")
    rows = rows.loc[[f"opt-1.3b_{name}" for name in EAGER]].reset_index().to_dict("records")
    settings = [
        Experiment.of_row(row).model_copy(update={"device": "cuda", "grad_accum_dtype": "bf16"})
        for row in rows
    ]
    compiled = {
        "model": "gpt2",
        "strategy": "plain",
        "compile": "default",
        "micro_batch_size": 32,
        "seq_len": 128,
    }
    settings.append(Experiment(precision="bf16", device="cuda", **compiled))
    measured = [*(row["peak_allocated_gib"] for row in rows), 3.72563]
    of_opt, of_gpt2 = (memory_trace.trace(one) for one in (settings[0], settings[-1]))
    of_code = kept_traces.kept().get(traces._key("memory", traces._canonical(settings[0])))
    assert of_code in (None, json.loads(json.dumps(of_opt)))  # None: the code has changed since
    of_head = (
        of_gpt2["vocab"] * of_gpt2["width_of_head"]
    )  # whose gradient is beside the embedding's, summed up in fp32
    assert of_gpt2["moments"][-1] == ((4 + 2) * of_head, 0, of_gpt2["trainable"])
    records = [*([of_opt] * len(EAGER)), of_gpt2]
    for experiment, record, gib, limit in zip(
        settings, records, measured, [*EAGER.values(), 0.6], strict=True
    ):
        peak = peak_memory(experiment, MemoryTrace.of(record, experiment.micro_batch_size))
        assert 100 * abs(peak.gib / gib - 1) < limit, experiment.name


@pytest.mark.parametrize("attention", ["eager", "auto"])
def test_dropout_keeps_a_byte_of_each_value(attention):
    """As CUDA's kernel does: two masks of the residual stream's width, and one of all scores where there are any."""
    settings = {
        "model": "gpt2-tiny",
        "precision": "bf16",
        "seq_len": 64,
        "device": "cuda",
        "attention": attention,
    }
    kept = {}
    for dropout in (0.0, 0.1):
        one = Experiment(**settings, dropout=dropout)
        config = memory_trace.model_config(one)
        kept[dropout] = memory_trace.trace(one)["kept"].per_sequence
    width, scores = 64 * config.n_embd, config.n_head * 64 * 64 if attention == "eager" else 0
    # Eager attention keeps what dropout returns too, in half precision, to multiply it by the values.
    assert kept[0.1] - kept[0.0] == config.n_layer * (2 * width + 3 * scores)


@pytest.mark.parametrize(("cast", "of_number"), [("native", 2), ("autocast", 4)])
def test_autocast_leaves_the_inputs_of_blocks_in_fp32(cast, of_number):
    one = Experiment(
        model="bloom-tiny", precision="bf16", mixed_precision=cast, seq_len=32, device="cuda"
    )
    for flash_attention in (
        contextlib.nullcontext,
        memory_trace.flash_attention,
    ):  # eager, and of a compiled model
        memory_trace._sizes_of.cache_clear()
        with flash_attention():
            sizes = memory_trace.model_sizes(one, 4)
        assert sizes["block_input"] == fake.Size(0, of_number * 32 * sizes["hidden"])


@pytest.mark.parametrize(
    ("settings", "of_weight", "copied"),
    [({}, 2, True), ({"vocab": 1008}, 2, False), ({"lora_rank": 4}, 0, True)],
)
def test_a_compiled_chunked_loss_makes_both_gradients_in_the_forward_pass(
    settings, of_weight, copied
):
    """Of the weight and of the hidden states, which are copied, beside 2,048 tokens' logits and the padded weight."""
    vocab = settings.pop("vocab", 1001)
    one = Experiment(
        model="gpt2-tiny",
        precision="bf16",
        loss="chunked",
        micro_batch_size=4,
        seq_len=1024,
        device="cuda",
        compile="default",
        **settings,
    )
    [during], gradient = memory_trace.loss_sizes(one, vocab, width=8)
    assert gradient == fake.Size(of_weight * 1008 * 8)
    own, in_fp32 = (2 * 1008 * 8 if copied else 0), (4 * 1008 * 8 if of_weight else 0)
    assert during == fake.Size(in_fp32 + own + 2 * 2048 * 1008, 2 * 2 * 1024 * 8)


@pytest.mark.parametrize(
    ("unit", "lora_rank", "kept"),
    [("model", 8, 6 * (100 + 7)), ("model", 0, 6 * 7), ("block", 8, 6 * 7)],
)
def test_recomputed_blocks_with_lora_that_are_compiled_as_one_are_computed_again_at_once(
    unit, lora_rank, kept
):
    sizes = {"layers": 6, "block_input": fake.Size(0, 7)}
    one = Experiment(
        model="opt-tiny", device="cuda", compile="default", compile_unit=unit, lora_rank=lora_rank,
        activation_checkpointing=True,
    )  # fmt: skip
    assert memory_trace.kept_of_blocks(one, sizes, fake.Size(0, 100))[0] == fake.Size(0, kept)


@pytest.mark.docs
@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("neox-tiny", {"strategy": "plain"}),  # parallel residuals under autocast
        ("gemma2-tiny", {"loss": "chunked"}),  # every second block has a window
        ("olmo2", {"strategy": "plain"}),  # only the final norm needs the sum of a block again
        ("olmo2", {"strategy": "deepspeed"}),
        (
            "cohere2",
            {"strategy": "plain"},
        ),  # parallel residuals, and one block in four without a window
    ],
)
def test_a_few_compiled_blocks_tell_what_all_of_them_save(model, settings, tmp_path):
    if model in families.KINDS:
        path = tmp_path / f"{model}.json"
        fields = {**families.configuration(model), "num_hidden_layers": 4}
        path.write_text(json.dumps(fields), encoding="utf-8")
        model = str(path)
    one = Experiment.recorded(
        {
            "model": model,
            "seq_len": 64,
            "precision": "bf16",
            "device": "cuda",
            "compile": "default",
            **settings,
        }
    )
    with memory_trace.flash_attention(), fake.as_on_gpu():
        outside, block = memory_trace.kept_sizes(one)
        own = {name: getattr(one, name) for name in (*memory_trace.TRACED, "device")} | {
            "compile_unit": "model"
        }
        whole = partitioner.saved(json.dumps(own), 4, "")
    bytes_of_all = sum(number // fake.MANY for _, number in whole if number % fake.MANY == 0)
    assert (outside + 4 * block).per_sequence == pytest.approx(bytes_of_all)
