"""What a run would refuse of its model or text is refused before any run: by the configuration, or in a process."""

import json

import pytest

from dsnb.base.errors import SettingsError
from dsnb.base.files.plain_text import short_repr
from dsnb.measure.sweep.params import load_sweep
from dsnb.measure.sweep.run import run_sweep
from dsnb.settings import built_models
from dsnb.settings.experiment import Experiment

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
    "intermediate_size": 128, "max_position_embeddings": 256,
}  # fmt: skip
TINY = {"device": "cpu", "precision": "fp32", "gpus": 1, "micro_batch_size": 1, "seq_len": 64}


@pytest.fixture
def write(tmp_path):
    def writer(**config):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        path.write_text(json.dumps(config))
        return str(path)

    return writer


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            {"model_type": "llava", "text_config": LLAMA, "vision_config": {"hidden_size": 8}},
            "llava is more than a language model (text_config, vision_config); save its text_config as a configuration",
        ),
        (
            {**LLAMA, "audio_config": {"model_type": "some_encoder"}},
            "llama is more than a language model (audio_config); save the part that is a language model as a "
            "configuration",
        ),
        (
            {**LLAMA, "quantization_config": {"quant_method": "fp8"}},
            "its configuration has a quantization_config, but weights are trained unquantized; remove it from there",
        ),
    ],
)
def test_what_a_configuration_says(write, config, reason):
    model = write(**config)
    with pytest.raises(SettingsError) as caught:
        Experiment(model=model, **TINY)
    assert caught.value.problems == [f"model is {short_repr(model)}: {reason}"]


def test_a_configuration_without_these(write):
    attention = {"model_type": "", "attn_impl": "torch"}  # as in MPT's
    model = write(
        **LLAMA, quantization_config=None, generation_config={"top_k": 5}, attn_config=attention
    )
    assert Experiment(model=model, **TINY).model == model


def test_presets_on_synthetic_tokens_are_known(monkeypatch):
    monkeypatch.setattr(built_models, "_asked", lambda settings: pytest.fail("a process was asked"))
    assert built_models.problems([Experiment(model="gpt2-tiny", **TINY)]) == []


@pytest.mark.process
def test_what_only_a_built_model_or_its_text_tells_is_named_each_reason_once(write, tmp_path):
    """All are asked at once, of one process."""
    odd = write(
        model_type="modernbert-decoder", hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, vocab_size=100, pad_token_id=0,
    )  # fmt: skip
    capped = write(**{**LLAMA, "model_type": "gemma2"}, final_logit_softcapping=5.0, head_dim=16)
    llama = write(**LLAMA)
    encoder = write(model_type="distilbert", vocab_size=100)
    norms = write(**{**LLAMA, "model_type": "cohere", "use_qk_norm": True, "pad_token_id": 0})
    short = tmp_path / "short.txt"
    short.write_bytes(bytes(range(50)))
    unknown = tmp_path / "unknown.txt"
    unknown.write_bytes(b"a" * 64 + b"~" * 64)  # 126, where the vocabulary ends at 99
    shared = {**TINY, "gpus": 2, "tensor_parallel": 2}
    asked = [
        Experiment(model=odd, loss="chunked", **TINY),
        Experiment(model=odd, **TINY),
        Experiment(model=odd, pad_vocab=64, **TINY),
        Experiment(model=capped, loss="chunked", **TINY),
        Experiment(model=capped, pad_vocab=64, **TINY),
        Experiment(model=llama, loss="chunked", lora_rank=2, **TINY),
        Experiment(model=llama, pad_vocab=64, **TINY),
        Experiment(model="qwen3-moe-tiny", matmul="fp8", **{**TINY, "precision": "bf16"}),
        Experiment(model="gpt2-tiny", matmul="fp8", **{**TINY, "precision": "bf16"}),
        Experiment(model=encoder, **TINY),
        Experiment(model=norms, **shared),
        Experiment(model=llama, **shared),
        Experiment(model=llama, **TINY),
        Experiment(model=llama, data=str(short), **TINY),
        Experiment(model=llama, data=str(unknown), **TINY),
    ]
    assert built_models.problems(asked) == [
        "loss is 'chunked': its logits are not made by its output layer alone; use 'whole'",
        "pad_vocab is 64: its logits are not made by its output layer alone; set it to 0",
        "pad_vocab is 64: its logits have a factor or a soft cap, which would make added ones -5.0 instead of "
        "negligible; set it to 0",
        "matmul is 'fp8': torchao converts linear layers, which have 33% of the weights of qwen3-moe-tiny's blocks; "
        "use 'auto'",
        f"model is {encoder!r}: transformers has no causal language model of type distilbert; give a causal language "
        "model, such as GPT-2, Llama or Mixtral",
        "tensor_parallel is 2: self_attn.q_norm.weight is in no linear layer and belongs to all heads; set it to 1",
        f"data {str(short)!r} has 50 tokens: seq_len 64 needs more text",
        "tokenizer 'bytes' gives token 126: the model's vocabulary ends at 99",
    ]


def test_a_sweep_asks_before_it_writes_anything(write, monkeypatch, tmp_path):
    monkeypatch.setattr(built_models, "_asked", lambda settings: ("it is too odd",))
    params = tmp_path / "odd.yaml"
    defaults = {"model": write(**LLAMA), **TINY}
    params.write_text(json.dumps({"name": "odd", "defaults": defaults}))
    with pytest.raises(SettingsError) as caught:
        run_sweep(load_sweep(params, output=tmp_path / "out"))
    assert caught.value.problems == ["it is too odd"]
    assert not (tmp_path / "out").exists()
