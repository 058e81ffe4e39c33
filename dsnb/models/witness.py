"""A small model of the same kind as a run's: one block of each kind, fewer heads of the same size, a small vocabulary.

It takes no longer for a large model, and is the same for every strategy, because nothing of it is
sharded. All other fields of the configuration stay: what a family computes from them is the same.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from dsnb.base.formulas import model_shapes
from dsnb.models.build import model_config, set_dropout
from dsnb.settings.experiment import Experiment

ALONE: dict[str, Any] = {
    "strategy": "plain", "gpus": 1, "zero_stage": 0, "tensor_parallel": 1, "pipeline_parallel": 1, "lora_rank": 0,
    "matmul": "auto", "compile": "off", "precision": "fp32", "mixed_precision": "native", "dropout": 0.0,
    "weights": "random",
}  # fmt: skip
"""Settings of a witness: one process, in fp32, without what changes the result (fp8, new adapters, dropout)."""
TOKENS = 32
"""Length of a witness's sequences; windows are in the same proportion to it as the run's to its own."""
VOCAB = 127
"""A prime, so that it is padded whatever the multiple."""
HEADS = 4
KEY_HEADS = 2
"""Of grouped queries."""
WIDTH = 256
"""Largest width inside of MLPs and experts."""
EXPERTS = 16
WIDTHS = (
    "intermediate_size", "ffn_dim", "n_inner", "moe_intermediate_size", "shared_expert_intermediate_size",
    "intermediate_size_mlp", "ffn_hidden_size", "mlp_hidden_size",
)  # fmt: skip
KEY_HEAD_COUNTS = ("num_key_value_heads", "num_kv_heads")
WINDOWS = ("sliding_window", "attention_chunk_size", "window_size")
"""Names of fields; a configuration has some of them."""
MAX_PARAMETERS = 64e6
"""Of a witness; its weights and gradients take half a GiB."""
NOISE = 0.05
"""Standard deviation of what is added to weights: freshly drawn ones hardly attend."""


def build(experiment: Experiment, device: torch.device) -> Any:
    """Build the witness of a run's model, the same at each call; raise ValueError if none can be built."""
    alone = experiment.model_copy(update=ALONE)
    config = smallest(alone)
    return drawn(lambda: AutoModelForCausalLM.from_config(config, dtype=torch.float32), device)


def build_like(model: Any, device: torch.device) -> Any:
    """Build the witness of a causal language model of transformers, as its class computes; raise as `build` does.

    Windows are half of its sequences.
    """
    windows = [window for _, window in _numbers(model.config, WINDOWS)]
    config = smallest_of(lambda: _trainable(model.config), 2 * max(windows, default=1), type(model))
    return drawn(lambda: type(model)(config).float(), device)


def _trainable(config: Any) -> Any:
    """Return a configuration for exact training: not quantized, without dropout and cache, with eager attention."""
    config = copy.deepcopy(config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.use_cache = False
    set_dropout(config, 0.0)
    config._attn_implementation = "eager"
    return config


def drawn(make: Callable[[], Any], device: torch.device) -> Any:
    """Make a witness with random weights, the same at each call."""
    torch.manual_seed(0)
    with device:
        model = make()
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(NOISE * torch.randn_like(weight))
    return model


def smallest(experiment: Experiment) -> Any:
    """Return the configuration of a witness; raise ValueError if models of that kind cannot be small."""
    return smallest_of(
        lambda: model_config(experiment), experiment.seq_len, AutoModelForCausalLM.from_config
    )


def smallest_of(read: Callable[[], Any], seq_len: int, make: Callable[[Any], Any]) -> Any:
    """Return a small configuration from which `make` can make a model; raise ValueError if there is none."""
    why = ""
    for is_narrow in (True, False):
        try:
            config = reduced(read(), seq_len, is_narrow)
            with torch.device("meta"):
                model = make(config)
        except (
            Exception
        ) as error:  # transformers raises many kinds for sizes that do not fit together
            why = why or str(error).strip().partition("\n")[0][:200]
            continue
        size = sum(weight.numel() for weight in model.parameters())
        if size <= MAX_PARAMETERS:
            return config
        why = why or f"it would have {size / 1e6:,.0f} million parameters"
    raise ValueError(f"no small model of the same kind can be built ({why})")


def reduced(config: Any, seq_len: int, is_narrow: bool) -> Any:
    """Return a smaller configuration: of few blocks and tokens, and of fewer heads if it is to be narrow."""
    small = copy.deepcopy(config)
    _keep_blocks(small)
    small.vocab_size = min(VOCAB, small.vocab_size)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        token = getattr(small, name, None)
        if isinstance(token, int) and token >= small.vocab_size:
            setattr(small, name, 0)
    for name, window in _numbers(small, WINDOWS):
        setattr(small, name, max(1, round(window * TOKENS / seq_len)))
    if is_narrow:
        _narrow(small)
    return small


def _keep_blocks(config: Any) -> None:
    """Keep one block of each kind, but at least two blocks; kinds are in lists of the configuration."""
    layers = config.num_hidden_layers
    lists = {}
    for name, value in vars(config).items():
        if isinstance(value, list | tuple) and len(value) == layers:
            lists[name] = value
    kinds: dict[str, int] = {}
    for number in range(layers):
        kinds.setdefault(str([value[number] for value in lists.values()]), number)
    kept = sorted(kinds.values())
    if len(kept) == 1:
        kept = list(range(min(2, layers)))
    config.num_hidden_layers = len(kept)
    for name, value in lists.items():
        setattr(config, name, [value[number] for number in kept])


def _narrow(config: Any) -> None:
    """Keep a few heads of the same size."""
    heads = config.num_attention_heads
    hidden = config.hidden_size
    for name, width in _numbers(config, WIDTHS):
        setattr(config, name, min(width, WIDTH))
    for name, experts in _numbers(config, model_shapes.EXPERTS):
        setattr(config, name, min(experts, EXPERTS))
    if heads <= HEADS:
        return
    for name, key_heads in _numbers(config, KEY_HEAD_COUNTS):
        setattr(config, name, _fewer_key_heads(key_heads, heads))
    config.num_attention_heads = HEADS
    config.hidden_size = hidden * HEADS // heads
    if getattr(config, "word_embed_proj_dim", None) == hidden:
        config.word_embed_proj_dim = config.hidden_size


def _fewer_key_heads(key_heads: int, heads: int) -> int:
    if key_heads == heads:
        return HEADS
    return min(key_heads, KEY_HEADS)


def _numbers(config: Any, names: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Yield those of the fields that a configuration has and that are numbers."""
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int):
            yield name, value
