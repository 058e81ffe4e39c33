"""The size of a logged model: as the log prints it, else by its name, else by Megatron's arguments."""

from dsnb.base.formulas import model_shapes
from dsnb.base.formulas.model_shapes import Shape
from dsnb.results.logs.reading import DERIVED, LOGGED, LoggedRun
from dsnb.results.logs.text import count as whole

SIZES = {
    "num_layers": "layers", "hidden_size": "hidden", "padded_vocab_size": "vocab", "ffn_hidden_size": "ffn",
    "num_attention_heads": "heads", "num_query_groups": "groups", "kv_channels": "head_size",
    "expert_model_parallel_size": "expert_parallel",
}  # fmt: skip
"""Arguments of Megatron and GPT-NeoX that are sizes -> names in `LoggedRun.shape`."""
ARCHITECTURE = {
    "swiglu", "group_query_attention", "untie_embeddings_and_output_weights", "no_weight_tying", "add_bias_linear",
    "disable_bias_linear", "add_qkv_bias", "position_embedding_type", "pos_emb", "use_rotary_position_embeddings",
    "normalization", "norm", "multi_latent_attention",
}  # fmt: skip
"""Arguments that tell models of equal sizes apart."""
DIFFERS = 0.02
"""If the printed parameters of all ranks differ more from the formula, the model is another one."""


def count(run: LoggedRun) -> None:
    """Record the number of parameters that every model-parallel rank printed."""
    printed: dict[str, int] = run.scratch.get("parameters_by_rank", {})
    tensor, pipeline = (run.settings.get(f"{how}_parallel") or 0 for how in ("tensor", "pipeline"))
    if not printed or len(printed) != tensor * pipeline or run.shape.get("expert_parallel", 1) > 1:
        return
    total = sum(printed.values())
    if tensor * pipeline == 1:
        run.record(LOGGED, parameters=total)
        return
    if pipeline > 1 and not _is_untied(run):  # the last stage has a copy of the embedding
        total -= run.shape.get("vocab", 0) * run.shape.get("hidden", 0)
    shape = _by_arguments(run)
    if shape is None or abs(shape.parameters / total - 1) > DIFFERS:
        run.record(
            DERIVED, parameters=total
        )  # norms, of which every tensor-parallel rank has a copy, are negligible


def shape(run: LoggedRun) -> Shape | None:
    """Return the shape of the model; None if the log does not tell how many parameters work on a token."""
    if run.settings.get("model") in model_shapes.PRESETS:
        return model_shapes.PRESETS[run.settings["model"]]
    if run.scratch.get("experts"):
        return None
    by_arguments = _by_arguments(run)
    if by_arguments:
        run.settings.setdefault("model", f"gpt-{by_arguments.layers}x{by_arguments.hidden}")
        run.provenance["model"] = DERIVED
    printed = run.figures.get("parameters")
    if by_arguments and printed and printed != by_arguments.parameters:
        return _counted(run, int(printed))
    return by_arguments


def _by_arguments(run: LoggedRun) -> Shape | None:
    if not {"layers", "hidden", "vocab"} <= set(run.shape) or _is_on(run, "multi_latent_attention"):
        return None
    layers, hidden, vocab = (run.shape[name] for name in ("layers", "hidden", "vocab"))
    if _is_gpt2(run):
        return Shape("gpt2", layers, hidden, 1, vocab, run.settings.get("seq_len"))
    norm = hidden if _says(run, "normalization", "norm") in {"rmsnorm", "rms_norm"} else 2 * hidden
    block = _attention(run) + _mlp(run) + 2 * norm
    embeddings = (2 if _is_untied(run) else 1) * vocab * hidden
    positions = hidden * (run.settings.get("seq_len") or 0) if _has_positions(run) else 0
    return _counted(run, layers * block + norm + embeddings + positions)


def _counted(run: LoggedRun, parameters: int) -> Shape:
    layers, hidden, vocab = (run.shape[name] for name in ("layers", "hidden", "vocab"))
    published = {"config": {"tie_word_embeddings": not _is_untied(run)}, "parameters": parameters}
    return Shape("", layers, hidden, run.shape.get("heads", 1), vocab, None, published=published)


def _is_gpt2(run: LoggedRun) -> bool:
    """Return whether every argument that is there is GPT-2's."""
    is_wide = run.shape.get("ffn", 4 * run.shape["hidden"]) == 4 * run.shape["hidden"]
    others = _is_on(run, "swiglu") or _groups(run) or _is_untied(run) or not _has_bias(run)
    has_layer_norm = _says(run, "normalization", "norm") in {"", "layernorm", "apex"}
    return (
        is_wide
        and not others
        and has_layer_norm
        and _has_positions(run)
        and _head_width(run) == run.shape["hidden"]
    )


def _attention(run: LoggedRun) -> int:
    hidden, width = run.shape["hidden"], _head_width(run)
    groups = _groups(run)
    keys = width * groups // run.shape["heads"] if groups else width
    has_qkv_bias = _has_bias(run) or _is_on(run, "add_qkv_bias")
    biases = (width + 2 * keys if has_qkv_bias else 0) + (hidden if _has_bias(run) else 0)
    return hidden * (2 * width + 2 * keys) + biases


def _mlp(run: LoggedRun) -> int:
    hidden, is_gated = run.shape["hidden"], _is_on(run, "swiglu")
    usual = int(4 * hidden * 2 / 3) // 64 * 64 if is_gated else 4 * hidden  # Megatron's defaults
    width = run.shape.get("ffn", usual)
    ups = 2 if is_gated else 1
    return (ups + 1) * hidden * width + (ups * width + hidden if _has_bias(run) else 0)


def _head_width(run: LoggedRun) -> int:
    heads, size = run.shape.get("heads"), run.shape.get("head_size")
    return heads * size if heads and size else run.shape["hidden"]


def _groups(run: LoggedRun) -> int:
    """Return the number of query groups; 0 if every head has its own keys and values."""
    groups, heads = run.shape.get("groups", 0), run.shape.get("heads", 0)
    return (
        groups
        if groups and heads and groups != heads and _is_on(run, "group_query_attention", "True")
        else 0
    )


def _has_bias(run: LoggedRun) -> bool:
    return _is_on(run, "add_bias_linear", "True") and not _is_on(run, "disable_bias_linear")


def _is_untied(run: LoggedRun) -> bool:
    return _is_on(run, "untie_embeddings_and_output_weights") or _is_on(run, "no_weight_tying")


def _has_positions(run: LoggedRun) -> bool:
    """Return whether positions are embedded: the only kind before Megatron had an argument for it, and SwiGLU."""
    kind = _says(run, "position_embedding_type", "pos_emb")
    if kind:
        return kind in {"learned_absolute", "learned", "absolute"}
    return not _is_on(run, "use_rotary_position_embeddings") and not _is_on(run, "swiglu")


def _is_on(run: LoggedRun, name: str, default: str = "False") -> bool:
    return run.architecture.get(name, default) == "True"


def _says(run: LoggedRun, *names: str) -> str:
    return next((run.architecture[name].lower() for name in names if name in run.architecture), "")


def read_argument(run: LoggedRun, name: str, value: str) -> None:
    """Record an argument that belongs to the model's size."""
    if name in SIZES and (size := whole(value)):
        run.shape[SIZES[name]] = size
    elif name in ARCHITECTURE and value != "None":
        run.architecture[name] = value[:60]
