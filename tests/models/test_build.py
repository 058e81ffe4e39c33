"""Settings reach every model, or are refused: none is silently ignored."""

import json

import pytest

from tests.support import lazy

torch = lazy.Module("torch")
compiling, models = lazy.Module("dsnb.models.compile"), lazy.Module("dsnb.models.build")
TINY = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 256}


def config(small, folder, family, **settings):
    (folder / "config.json").write_text(json.dumps({"model_type": family, **TINY}))
    return models.model_config(small(model=str(folder / "config.json"), **settings))


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("gpt2", ["attn_pdrop", "embd_pdrop", "resid_pdrop"]),
        ("llama", ["attention_dropout"]),
        ("falcon", ["attention_dropout", "hidden_dropout"]),
        ("starcoder2", ["attention_dropout", "embedding_dropout", "residual_dropout"]),
    ],
)
@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_dropout_is_that_of_every_layer(small, tmp_path, family, names, dropout):
    found = config(small, tmp_path, family, dropout=dropout)
    assert [getattr(found, name) for name in names] == [dropout] * len(names)


def test_a_dropout_that_a_model_does_not_have_is_refused(small, tmp_path):
    with pytest.raises(ValueError, match=r"^dropout is 0\.1: mamba models have none; set it to 0$"):
        config(small, tmp_path, "mamba", dropout=0.1)
    assert config(small, tmp_path, "mamba").model_type == "mamba"


def test_blocks_that_cannot_be_recomputed_are_refused(small, tmp_path):
    (tmp_path / "config.json").write_text(
        '{"model_type": "openai-gpt", "n_layer": 1, "n_embd": 32, "n_head": 2}'
    )
    with pytest.raises(
        ValueError,
        match=r"^activation_checkpointing is true: transformers recomputes no blocks of op",
    ):
        models.build_on_meta(
            small(model=str(tmp_path / "config.json"), activation_checkpointing=True)
        )


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("default", {}),
        ("reduce-overhead", {"mode": "reduce-overhead"}),
        ("max-autotune", {"mode": "max-autotune"}),
    ],
)
def test_modes_with_cuda_graphs_reach_the_compiler(small, mode, options):
    assert compiling.compile_options(small(compile=mode)) == options


def test_graphs_are_kept_by_precision(small):
    """Otherwise bf16 ran the fp16 graph of an earlier run, without loss scaling."""
    config = torch.compiler.config
    with config.patch(cache_key_tag=""):  # pytest's monkeypatch would delete it
        for precision in ("bf16", "fp32"):
            compiling.separate_caches(precision)
            assert config.cache_key_tag == precision
