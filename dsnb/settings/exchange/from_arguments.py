"""Arguments of transformers' Trainer, and of programs around it, in dsnb's settings."""

from collections.abc import Callable, Mapping
from typing import Any

from dsnb.base.files.plain_text import short_repr
from dsnb.settings import deepspeed_keys
from dsnb.settings.exchange import from_deepspeed, from_fsdp
from dsnb.settings.exchange.imported import Imported, backwards, setting_of
from dsnb.settings.exchange.incoming import INCOMING, inverted

NAMES = inverted("names")
OPTIMIZERS = inverted("optimizers")
ATTENTION = inverted("attention")
MARKS = {"per_device_train_batch_size", "micro_batch_size", "base_model", "model_name_or_path"}
"""Arguments by one of which a file is recognised."""
OF_SWIFT = {f"zero{stage}": stage for stage in range(4)}
"""Configurations of DeepSpeed that ms-swift names; `_offload` offloads."""
NO_HALF = "neither bf16 nor fp16 is on: give the format of the weights"
WHOLE = 3
"""Stage at which parameters are offloaded, too."""
NF4 = 4
"""Bits of the frozen weights of QLoRA."""
PROVEN = {"NO": "plain", "FSDP": "fsdp", "DEEPSPEED": "deepspeed"}
"""What saved arguments call the training -> strategy; `MULTI_GPU` can also be FSDP by accelerate's configuration."""
MANY = 20
"""Arguments that are named; saved arguments have a hundred."""
OF_FACTORY = {"finetuning_type", "template"}
"""Arguments that only LLaMA-Factory has, by its own names."""
IS_FACTORY = "is LLaMA-Factory"
WHOLE_LENGTH = ("packing", "sample_packing", "pad_to_sequence_len")
REST = {"deepspeed", "hf_deepspeed_config", "deepspeed_plugin", "distributed_state"}


def read(
    arguments: Mapping[str, Any],
    open_file: Callable[[str], Mapping[str, Any] | None] = lambda _: None,
    model: str | None = None,
) -> Imported:
    """Return the settings of arguments; `open_file` reads DeepSpeed's configuration if they name a file."""
    found = Imported()
    given = {name: value for name, value in arguments.items() if value not in (None, "")}
    flat = deepspeed_keys.flattened(
        {"deepspeed": {name: value for name, value in given.items() if name not in REST}}
    )
    values = {NAMES.get(name, name): value for name, value in flat.items()}
    values[IS_FACTORY] = bool(OF_FACTORY & given.keys())
    for name in ("model", "gpus"):
        if name in values:
            found.put(name, **{name: values[name]})
    kind = str(values.get("distributed_type", "")).upper()
    is_told = given.get("deepspeed") or values.get("fsdp")
    if kind in PROVEN and not is_told:
        found.put("distributed_type", strategy=PROVEN[kind])
    _deepspeed(given.get("deepspeed"), found, open_file, model or values.get("model"))
    for group in GROUPS:
        group(values, found)
    for path, rule in backwards("trainer").items():
        if path in values and path not in HANDLED:
            setting = setting_of(rule, values[path])
            if setting is not None:
                found.put(path, **{rule["setting"]: setting})
    unread = [name for name in given if _is_unread(name, values)]
    if unread:
        names = ", ".join(unread)
        if len(unread) > MANY:
            names = f"{len(unread)} arguments of data, saving and logging"
        found.dropped[names] = "no settings of dsnb"
    return found


def _is_unread(name: str, values: Mapping[str, Any]) -> bool:
    """Return whether an argument is of no interest: data, saving, logging, or unknown."""
    is_section = any(path.startswith(f"{name}.") for path in values)
    is_read = {name, NAMES.get(name)} & {*READ, *NAMES.values()}
    return not (is_section or is_read or name in REST or name in backwards("trainer"))


def _deepspeed(
    given: Any,
    found: Imported,
    open_file: Callable[[str], Mapping[str, Any] | None],
    model: str | None,
) -> None:
    """Add DeepSpeed's configuration: a mapping, the path of a file, or one of ms-swift's names."""
    if not given:
        return
    config = given
    if isinstance(given, str):
        config = _of_swift(given) or open_file(given)
    if not isinstance(config, Mapping):
        found.put("deepspeed", strategy="deepspeed")
        found.left_open["deepspeed"] = f"{given} is not there: import it, too, or give zero_stage"
        return
    found.include(from_deepspeed.read(config, model))


def _of_swift(name: str) -> dict[str, Any] | None:
    stage = OF_SWIFT.get(name.removesuffix("_offload"))
    if stage is None:
        return None
    zero: dict[str, Any] = {"stage": stage}
    if name.endswith("_offload"):
        zero["offload_optimizer"] = {"device": "cpu"}
        if stage == WHOLE:
            zero["offload_param"] = {"device": "cpu"}
    half = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
    return {"zero_optimization": zero, **half}


def _precision(values: Mapping[str, Any], found: Imported) -> None:
    """`bf16`, `fp16` and `tf32`; with neither half the format of the weights decides, which is not said here."""
    if values.get("pure_bf16"):
        found.put("pure_bf16", precision="bf16", mixed_precision="none")
        return
    for name in ("bf16", "fp16"):
        if values.get(name) is True and found.settings.get("mixed_precision") != "autocast":
            found.put(name, precision=name)
    if values.get("bf16") == "auto":
        found.left_open["precision"] = "bf16 is 'auto': give precision"
    if values.get("tf32") is True:
        found.add("precision", "tf32", "tf32")
    if "precision" not in found.settings and "bf16.enabled" not in found.left_open:
        found.left_open.setdefault("precision", NO_HALF)


def _recomputation(values: Mapping[str, Any], found: Imported) -> None:
    for name in ("gradient_checkpointing", "fsdp_config.activation_checkpointing"):
        if values.get(name):
            found.put(name, activation_checkpointing=True)
    if "selective_checkpointing.save" in values:
        found.put("selective_checkpointing", checkpoint_ops="cheap")
    if values.get("gradient_checkpointing") == "offload":
        found.put("gradient_checkpointing", checkpoint_offload=True)
    if values.get("disable_gradient_checkpointing") is True:
        found.put("disable_gradient_checkpointing", activation_checkpointing=False)
    elif values[IS_FACTORY] and "gradient_checkpointing" not in values:
        found.put("LLaMA-Factory's default", activation_checkpointing=True)
    elif values.get("gradient_checkpointing") is False:
        found.add("activation_checkpointing", False, "gradient_checkpointing")


def _compilation(values: Mapping[str, Any], found: Imported) -> None:
    if values.get("deepcompile") is True:
        found.put("deepcompile", compile="deepcompile")
    elif values.get("torch_compile") is True:
        mode = values.get("torch_compile_mode", "default")
        found.add("compile", mode.removesuffix("-no-cudagraphs"), "torch_compile")
    elif values.get("torch_compile") is False:
        found.add("compile", "off", "torch_compile")


def _optimizer(values: Mapping[str, Any], found: Imported) -> None:
    name = values.get("optim")
    if name is None or "optimizer" in found.settings:
        return
    kind = OPTIMIZERS.get(str(name))
    if kind:
        found.put("optim", optimizer=kind)
    else:
        found.left_open["optimizer"] = f"optim is {name!r}, which dsnb does not have: give one"


def _adapters(values: Mapping[str, Any], found: Imported) -> None:
    kind = str(values.get("finetuning", ""))
    if kind == "full":
        found.put("finetuning", lora_rank=0)
        return
    rank = values.get("lora_rank")
    if not rank or kind not in {"", "lora", "qlora"}:
        return
    found.put("lora_rank", lora_rank=rank)
    targets = values.get("lora_targets")
    if targets in ("all", "all-linear", ["all"], ["all-linear"]) or values.get(
        "lora_target_linear"
    ):
        found.put("lora_targets", lora_targets="linear")
    elif isinstance(targets, list | str):
        named = _targets(targets)
        if named:
            found.add("lora_targets", named, "lora_targets")
        else:
            found.left_open["lora_targets"] = (
                f"{short_repr(targets)} are no names that dsnb knows: give lora_targets"
            )
    if kind == "qlora" or values.get("load_in_4bit") is True or values.get("bits") == NF4:
        found.put("4 bits", frozen_weights="nf4")
    elif values.get("bits"):
        found.dropped["quantization_bit"] = INCOMING["without_counterpart"]["load_in_8bit"]


def _targets(targets: list[str] | str) -> str | None:
    """Return which layers of blocks a list of modules names; None for modules of other names."""
    names = targets.split(",") if isinstance(targets, str) else targets
    kinds = {str(name).strip() for name in names}
    if not kinds or not all(kind.endswith("_proj") for kind in kinds):
        return None
    if kinds <= {"q_proj", "v_proj"}:
        return "query-value"
    if kinds <= {"q_proj", "k_proj", "v_proj", "o_proj"}:
        return "attention"
    return "linear"


def _attention(values: Mapping[str, Any], found: Imported) -> None:
    kind = str(values.get("attention", "")).lower()
    if kind in ATTENTION:
        found.put("attention", attention=ATTENTION[kind])
    for name in ("flash_attention", "sdp_attention"):
        if values.get(name) is True:
            found.add("attention", "sdpa", name)


def _length(values: Mapping[str, Any], found: Imported) -> None:
    length = values.get("seq_len")
    if isinstance(length, int) and length > 1:
        found.put("seq_len", seq_len=length)
    if length and not is_packed(values):
        found.left_open["padding"] = (
            f"samples are at most {length} tokens long: give seq_len if most are shorter"
        )


def is_packed(arguments: Mapping[str, Any]) -> bool:
    """Return whether samples are packed or padded, so that every sequence has the whole length."""
    return any(arguments.get(name) is True for name in WHOLE_LENGTH)


def _sharding(values: Mapping[str, Any], found: Imported) -> None:
    options = {
        name.removeprefix("fsdp_config.").removeprefix("fsdp_"): value
        for name, value in values.items()
        if name.startswith(("fsdp_config.", "fsdp_"))
    }
    asked = values.get("fsdp")
    if isinstance(asked, list):
        asked = " ".join(map(str, asked))
    if values.get("dp_replicate_size", 1) > 1 and "dp_shard_size" in values:
        found.put("dp_shard_size", shard_size=values["dp_shard_size"])
    if asked or options.get("version"):
        words = str(asked).split()
        from_fsdp.read(words, options, found)


def _without_counterpart(values: Mapping[str, Any], found: Imported) -> None:
    """Name what changes speed or memory and is no setting."""
    for name, why in INCOMING["without_counterpart"].items():
        if values.get(name) is True:
            found.dropped[name] = why
    for name in SPLITS:
        found.refuse_split(name, values.get(name, 1))


SPLITS = ("sequence_parallel_size", "context_parallel_size")
HANDLED = {
    "bf16", "fp16", "tf32", "gradient_checkpointing", "torch_compile", "torch_compile_mode", "optim",
    "fsdp", "fsdp_config.reshard_after_forward", "fsdp_config.activation_checkpointing",
}  # fmt: skip
"""Keys that the groups read."""
READ = HANDLED | {
    *SPLITS, *INCOMING["without_counterpart"],
    "pure_bf16", "disable_gradient_checkpointing", "lora_target_linear", "load_in_4bit", "load_in_8bit",
    "deepcompile", "dp_replicate_size", "dp_shard_size", "pad_to_sequence_len", "flash_attention",
    "sdp_attention", "packing", "sample_packing", "distributed_type", "fsdp_version",
}  # fmt: skip
"""All arguments that are read by name, also those that another one's value decides about."""
GROUPS: tuple[Callable[[Mapping[str, Any], Imported], None], ...] = (
    _precision, _recomputation, _compilation, _optimizer, _adapters, _attention, _length, _sharding,
    _without_counterpart,
)  # fmt: skip
