"""The size of a logged model: as the log prints it, else by its name, else by Megatron's arguments."""

from dsnb.base.formulas import model_shapes
from dsnb.base.formulas.model_shapes import Shape
from dsnb.results.logs.reading import DERIVED, LOGGED, LoggedRun
from dsnb.results.logs.values import DECLARED, names

SIZES = names("sizes")
ARCHITECTURE = DECLARED["architecture"]
"""Arguments that tell models of equal sizes apart."""
DIFFERS = 0.02
"""If the printed parameters of all ranks differ more from the formula, the model is another one."""


def count(run: LoggedRun) -> None:
    """Record the number of parameters that every model-parallel rank printed."""
    printed = run.parameters_by_rank
    tensor = run.settings["tensor_parallel"] or 0
    pipeline = run.settings["pipeline_parallel"] or 0
    has_all = len(printed) == tensor * pipeline > 0
    if not has_all or run.shape.get("expert_parallel", 1) > 1:
        return
    total = sum(printed.values())
    if tensor * pipeline == 1:
        run.record(LOGGED, parameters=total)
        return
    if pipeline > 1 and not _is_untied(run):  # the last stage has a copy of the embedding
        total -= run.shape.get("vocab", 0) * run.shape.get("hidden", 0)
    shape = _by_arguments(run)
    if shape is None or abs(shape.parameters / total - 1) > DIFFERS:
        # Norms, of which every tensor-parallel rank has a copy, are negligible.
        run.record(DERIVED, parameters=total)


def shape(run: LoggedRun) -> Shape | None:
    """Return the shape of the model; None if the log does not tell how many parameters work on a token."""
    preset = model_shapes.PRESETS.get(model_shapes.preset_of(run.settings["model"] or "") or "")
    if preset or run.has_experts:
        return preset
    shape = _by_arguments(run)
    if shape:
        run.derive(model=f"gpt-{shape.layers}x{shape.hidden}")
        printed = run.figures["parameters"]
        if printed and printed != shape.parameters:
            return _counted(run, int(printed))
    return shape


def _by_arguments(run: LoggedRun) -> Shape | None:
    layers = run.shape["layers"]
    hidden = run.shape["hidden"]
    vocab = run.shape["vocab"]
    if not (layers and hidden and vocab) or _is_on(run, "multi_latent_attention"):
        return None
    length = run.settings["seq_len"]
    if _is_gpt2(run):
        return Shape("gpt2", layers, hidden, 1, vocab, length)
    norm = 2 * hidden
    if _says(run, "normalization", "norm") in {"rmsnorm", "rms_norm"}:
        norm = hidden
    block = _attention(run) + _mlp(run) + 2 * norm
    embeddings = vocab
    if _is_untied(run):
        embeddings = 2 * vocab
    if _has_positions(run):
        embeddings += length or 0
    return _counted(run, layers * block + norm + embeddings * hidden)


def _counted(run: LoggedRun, parameters: int) -> Shape:
    size = run.shape
    published = {"config": {"tie_word_embeddings": not _is_untied(run)}, "parameters": parameters}
    sizes = size["layers"], size["hidden"], size.get("heads", 1), size["vocab"]
    return Shape("", *sizes, None, published=published)


def _is_gpt2(run: LoggedRun) -> bool:
    """Return whether every argument that is there is GPT-2's."""
    hidden = run.shape["hidden"]
    return (
        run.shape.get("ffn", 4 * hidden) == 4 * hidden
        and _head_width(run) == hidden
        and _has_bias(run)
        and _has_positions(run)
        and not (_is_on(run, "swiglu") or _groups(run) or _is_untied(run))
        and _says(run, "normalization", "norm") in {"", "layernorm", "apex"}
    )


def _attention(run: LoggedRun) -> int:
    hidden = run.shape["hidden"]
    width = _head_width(run)
    groups = _groups(run)
    keys = width
    if groups:
        keys = width * groups // run.shape["heads"]
    parameters = 2 * hidden * (width + keys)
    if _has_bias(run) or _is_on(run, "add_qkv_bias"):
        parameters += width + 2 * keys
    if _has_bias(run):
        return parameters + hidden
    return parameters


def _mlp(run: LoggedRun) -> int:
    hidden = run.shape["hidden"]
    matrices = 2
    usual = 4 * hidden  # Megatron's defaults
    if _is_on(run, "swiglu"):
        matrices = 3
        usual = int(4 * hidden * 2 / 3) // 64 * 64
    width = run.shape.get("ffn", usual)
    bias = 0
    if _has_bias(run):
        bias = (matrices - 1) * width + hidden
    return matrices * hidden * width + bias


def _head_width(run: LoggedRun) -> int:
    size = run.shape
    if size["heads"] and size["head_size"]:
        return size["heads"] * size["head_size"]
    return size["hidden"]


def _groups(run: LoggedRun) -> int:
    """Return the number of query groups; 0 if every head has its own keys and values."""
    groups = run.shape["groups"]
    is_grouped = run.shape["heads"] and _is_on(run, "group_query_attention", "True")
    if groups and is_grouped and groups != run.shape["heads"]:
        return groups
    return 0


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
    for name in names:
        if name in run.architecture:
            return run.architecture[name].lower()
    return ""


def read_argument(run: LoggedRun, name: str, value: str) -> None:
    """Record an argument that belongs to the model's size."""
    if name in SIZES:
        size, parse = SIZES[name]
        parsed = parse(value)
        if parsed:
            run.shape[size] = parsed
    elif name in ARCHITECTURE and value != "None":
        run.architecture[name] = value[:60]
