"""Checks of settings against each other and this machine; a sentence names setting, value, and what is allowed."""

import ctypes.util
import difflib
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

from dsnb.base.errors import SettingsError
from dsnb.base.files.plain_text import short_repr
from dsnb.base.formulas import model_shapes
from dsnb.base.system import hardware
from dsnb.settings import command, deepspeed_keys, hostfile, inputs, rules
from dsnb.settings.rules import Rule
from dsnb.settings.tables import REFUSALS

if TYPE_CHECKING:
    from dsnb.settings.experiment import Experiment

CLOSE = 0.85
"""Similarity (`difflib`) of names that differ by a letter or so."""
SHORTEST_PART = 3
"""Letters with which a name can be meant by a part of it."""
QUANTIZED = ("quantization_config", "compression_config")
"""Fields of configurations of quantized weights."""
FP8_CAPABILITY = (8, 9)
"""The first compute capability with products in fp8."""
NEED_TORCHAO = {"matmul": "fp8", "optimizer": "adamw-8bit", "frozen_weights": "nf4"}
"""Values of settings for which torchao is needed."""
CAUSAL = "give a causal language model, such as GPT-2, Llama or Mixtral"


def closest_match(name: str, names: Iterable[str]) -> str | None:
    """Return the name that was probably meant, None if none is likely.

    A name that differs by a letter or so is first, then one that continues the typed words, or the
    typed letters, then any that is similar or has them inside: `step` is `steps`, and `zero` is
    `zero_stage` rather than `zeropp`.

    >>> closest_match("zero", ["steps", "zeropp", "zero_stage"])
    'zero_stage'
    """
    allowed = list(names)
    likely = similar(name, allowed, CLOSE)
    if len(name) >= SHORTEST_PART:
        likely += [each for each in allowed if each.startswith((f"{name}_", f"{name}-"))]
        likely += [each for each in allowed if each.startswith(name)]
    likely += similar(name, allowed)
    if len(name) >= SHORTEST_PART:
        likely += [each for each in allowed if name in each]
    return likely[0] if likely else None


def similar(name: str, names: Iterable[str], least: float = 0.6) -> list[str]:
    """Return the most similar of `names`; empty if none is similar enough."""
    return difflib.get_close_matches(name, list(names), n=1, cutoff=least)


def unknown_setting(key: str, names: Iterable[str]) -> str:
    """Return the message about a setting that does not exist: it names the closest setting, or all of them."""
    if key in REFUSALS["removed"]:
        return f"{key} is no longer a setting: {REFUSALS['removed'][key]}"
    allowed = list(names)
    return f"unknown setting {short_repr(key)}: {hint(str(key), allowed, ', '.join(allowed))}"


def hint(name: str, names: Iterable[str], allowed: str) -> str:
    """Return which of `names` was probably meant, or else what is allowed."""
    match = closest_match(name, names)
    if match:
        return f"did you mean '{match}'?"
    return f"allowed are {allowed}"


def invalid_value(detail: Mapping[str, Any]) -> str:
    """Return the message for one of pydantic's error details."""
    name = str(detail["loc"][0])
    return f"{name} is {short_repr(detail['input'])}: {allowed_values(detail, name)}"


def allowed_values(detail: Mapping[str, Any], name: str = "") -> str:
    """Return what is allowed instead of the value in one of pydantic's error details; `name` is that of the setting."""
    allowed = REFUSALS["allowed_by_error"].get(detail["type"], "")
    if "{" in allowed:
        return str(allowed.format(**detail["ctx"]))
    return REFUSALS["allowed_by_name"].get(name) or allowed or str(detail["msg"])


def _model(s: "Experiment") -> Iterator[str]:
    preset = model_shapes.PRESETS.get(s.model)
    path = model_shapes.local_config(s.model)
    is_named = preset is not None or model_shapes.is_hub_id(s.model)
    config = None if preset else model_shapes.fields(s.model)
    if path and config is None:
        yield f"model is {short_repr(s.model)}: its configuration is not a JSON object; {CAUSAL}"
    elif config is not None:
        yield from filter(None, [not_trained(s.model, config)])
    if not path and not is_named:
        match = closest_match(s.model, model_shapes.PRESETS)
        some = {
            shape.family: name
            for name, shape in reversed(model_shapes.PRESETS.items())
            if shape.hub_id
        }
        hint = f"did you mean '{match}'? " if match else ""
        yield (
            f"model is {short_repr(s.model)}: {hint}give a preset such as {', '.join(some.values())}, "
            "a folder or .json file with a configuration, or a hub id of the form owner/name"
        )
    if s.weights == "random":
        return
    if preset and preset.hub_id is None:
        yield f"weights is 'pretrained': there are no trained weights for {s.model}; use 'random'"
    elif path and not [*path.parent.glob("*.safetensors"), *path.parent.glob("*.bin")]:
        yield f"weights is 'pretrained': there are no weights beside {path}; use 'random' or add them"


def not_trained(model: str, config: Mapping[str, Any]) -> str | None:
    """Return why a model with these fields of `config.json` is not trained; None if it is a causal language model.

    BERT's family also sees the token that it should predict; of an encoder-decoder, transformers
    builds a half; of quantized weights, dsnb would train others, in the run's precision.
    """
    types = REFUSALS["model_types"]
    kind = config.get("model_type")
    says = f"model is {short_repr(model)}: "
    if not isinstance(kind, str):
        return f"{says}its configuration has no model_type; {CAUSAL}"
    quantized = next(filter(config.get, QUANTIZED), None)
    if quantized:
        return f"{says}its configuration has a {quantized}, but weights are trained unquantized; remove it from there"
    parts = sorted(name for name in config if name.endswith("_config") and _is_model(config[name]))
    if parts:
        advice = "save the part that is a language model"
        if "text_config" in parts:
            advice = "save its text_config"
        return f"{says}{kind} is more than a language model ({', '.join(parts)}); {advice} as a configuration"
    if config.get("is_encoder_decoder", kind in types["encoder_decoders"]):
        return f"{says}{kind} is an encoder-decoder; {CAUSAL}"
    switch = "causal" if kind == "xlm" else "is_decoder"
    if kind in types["decoders_if_set"] and not config.get(switch):
        return f"{says}{kind} is an encoder: its tokens also attend to later ones; set {switch} to true, or {CAUSAL}"
    return None


def _is_model(part: object) -> bool:
    """Return whether a part of a configuration is that of another model."""
    if not isinstance(part, Mapping):
        return False
    is_named = bool(part.get("model_type"))  # empty in the part of MPT that describes attention
    return is_named or not {"hidden_size", "num_hidden_layers"}.isdisjoint(part)


def _sizes(s: "Experiment") -> Iterator[str]:
    """Compare settings with what the model has, as far as that is known."""
    facts = model_shapes.facts(s.model)
    positions = facts.get("positions") or s.seq_len
    if s.seq_len > positions:
        yield f"seq_len is {s.seq_len}: {s.model} has {positions} positions; use at most {positions}"
    blocks = facts.get("layers") or s.checkpoint_every
    if s.checkpoint_every > blocks:
        yield f"checkpoint_every is {s.checkpoint_every}: {s.model} has {blocks} blocks; use at most {blocks}"
    for name in rules.SHARED:
        ranks = getattr(s, name)
        for size in model_shapes.undivided(name, ranks, facts):
            yield f"{name} is {ranks}: {s.model} has {size}, which it must divide"
    experts = facts.get("experts", 0)
    if s.tensor_parallel > 1 and experts > 1:
        yield model_shapes.not_split(s.tensor_parallel, model_shapes.has_experts(s.model, experts))
    family = facts.get("family")
    if s.pipeline_parallel > 1 and family and family not in model_shapes.STAGED:
        yield model_shapes.not_staged(s.pipeline_parallel, family)


def _text(s: "Experiment") -> Iterator[str]:
    data, tokenizer = short_repr(s.data), short_repr(s.tokenizer)
    if s.data not in {"synthetic", "stdlib"} and not os.path.isfile(os.path.expanduser(s.data)):
        yield f"data is {data}: no such file; give 'synthetic', 'stdlib' or the path of a text file"
    if s.tokenizer == "bytes":
        return
    if s.data == "synthetic":
        yield f"tokenizer is {tokenizer}, but synthetic data has no text: set 'data' to a text file, or drop it"
    if not (os.path.exists(os.path.expanduser(s.tokenizer)) or model_shapes.is_hub_id(s.tokenizer)):
        yield f"tokenizer is {tokenizer}: give 'bytes', a tokenizer's folder, or a hub id of the form owner/name"


def _hosts(s: "Experiment") -> Iterator[str]:
    if not s.hostfile:
        for name in ("include", "exclude"):
            value = getattr(s, name)
            if value:
                yield f"{name} is {short_repr(value)}, but there is no hostfile: name the hosts in 'hostfile'"
        if isinstance(s.gpus, int) and s.nodes > s.gpus:
            yield f"nodes is {s.nodes}, but gpus is {s.gpus}: each node needs a rank; use at most {s.gpus}"
        return
    if s.hostfile == hostfile.SLURM and not hostfile.in_allocation():
        return  # the allocation does not exist yet
    try:
        hosts = hostfile.hosts(s.hostfile, s.include, s.exclude)
        if isinstance(s.gpus, int):
            hostfile.place(hosts, s.gpus, s.nodes)
    except SettingsError as error:
        yield from error.problems


RULES: list[Rule] = [_model, _sizes, _text, _hosts, command.without_command, *rules.RULES]
OF_COMMANDS: list[Rule] = [_hosts, command.problems]
"""Rules for the runs of a user's program; the others are about dsnb's own training."""


def contradictions(s: "Experiment") -> list[str]:
    """Return the contradictions between settings.

    `s` lacks settings that are invalid by themselves: a rule ends where it reads one. A rule that
    reads a setting that does not exist is an error.
    """
    problems: list[str] = []
    for rule in OF_COMMANDS if getattr(s, "command", "") else RULES:
        try:
            problems.extend(rule(s))
        except AttributeError as error:
            if error.obj is not s or error.name not in type(s).model_fields:
                raise
    return problems


def unsupported(s: "Experiment") -> list[str]:
    """Return why this machine, maybe one host of several, cannot run the settings: one sentence per reason."""
    if s.command:
        return [*missing_program(s), *_unsupported_device(s)]
    problems = [*inputs.problems(s), *_compiler_disabled(s)]
    if s.deepspeed:
        problems += deepspeed_keys.unknown_keys(s.zero_stage, s.deepspeed)
    if not s.hostfile:  # otherwise its hosts are checked when they are reached
        if s.nodes > 1:  # a prediction needs no hosts
            problems.append(
                f"nodes is {s.nodes}, but there is no hostfile: name the hosts in 'hostfile'"
            )
        return [*problems, *_lacking(s), *_unsupported_device(s), *_lacking_for_nvme(s)]
    return [*problems, *_unsupported_device(s)]


def _unsupported_device(s: "Experiment") -> Iterator[str]:
    """Yield what is missing of the device of a run, or of the job that has its hosts."""
    if s.hostfile:
        if s.hostfile == hostfile.SLURM and not hostfile.in_allocation():
            yield hostfile.NO_JOB
    elif s.nodes == 1:
        yield from _lacking_gpu(s) if s.device == "cuda" else _lacking_cpu(s)


def missing_program(s: "Experiment") -> Iterator[str]:
    """Yield that the program of a command is not found."""
    program = command.arguments(s, command.SOMEWHERE)[0]
    folders = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    if shutil.which(program, path=folders):
        return
    hint = "give its path, or activate the environment that has it"
    if "=" in program:
        hint = "there is no shell; begin with 'env' to set variables"
    yield f"command begins with {short_repr(program)}, and no such program is found: {hint}"


def _compiler_disabled(s: "Experiment") -> Iterator[str]:
    """Yield why nothing would be compiled: torch then runs eagerly without a word."""
    for name in ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"):
        if s.compile != "off" and os.environ.get(name) == "1":
            yield f"compile is set, but the environment variable {name} is 1, which disables torch.compile: unset it"


def _lacking(s: "Experiment") -> Iterator[str]:
    """Yield what this machine lacks whatever the device of a run."""
    libraries = ("torch", "deepspeed", "transformers")
    missing = [name for name in libraries if importlib.util.find_spec(name) is None]
    if missing:
        yield f"training needs {', '.join(missing)}: pip install 'dsnb[train]'"
    if not hardware.loopback_works():  # a rank would retry until its timeout
        yield "127.0.0.1 cannot be reached, and ranks meet there: bring it up with `ip link set lo up`"
    # `dsnb.measure.train` hides it in `sys.modules`
    if PathFinder.find_spec("torchao") is None:
        yield from map(no_torchao, needs_torchao(s))


def needs_torchao(s: "Experiment") -> Iterator[str]:
    """Yield the settings that need torchao, with their values."""
    for name, value in NEED_TORCHAO.items():
        if getattr(s, name) == value:
            yield f"{name} is '{value}'"


def no_torchao(setting: str) -> str:
    """Return the sentence on a setting that needs torchao where it is missing."""
    return f"{setting}: torchao is missing; install it with: pip install 'dsnb[torchao]'"


def _lacking_for_nvme(s: "Experiment") -> Iterator[str]:
    """Yield what offload to NVMe lacks: DeepSpeed would find out after minutes of compiling."""
    if not s.offload.endswith("nvme"):
        return
    if not ctypes.util.find_library("aio"):
        yield "offload is to NVMe: this machine has no libaio; install libaio-dev, or offload to the CPU"
    if not os.access(os.path.expanduser(s.nvme_path), os.W_OK):
        folder = short_repr(s.nvme_path)
        yield f"nvme_path is {folder}: it is missing or not writable; name a folder on the NVMe disk"


def _lacking_gpu(s: "Experiment") -> Iterator[str]:
    gpus = hardware.gpus()
    if not gpus:
        yield "device is 'cuda': this machine has no usable NVIDIA GPU; use 'cpu' or 'auto'"
        return
    if s.gpus > len(gpus):
        yield f"gpus is {s.gpus}: this machine has {len(gpus)}; use at most {len(gpus)}, 'auto', or a hostfile"
    slowest = min(gpus, key=lambda gpu: gpu.capability)
    if s.precision in {"bf16", "tf32"} and slowest.capability < (8, 0):
        yield f"precision is '{s.precision}': {slowest.name} does not support it; use 'fp16' or 'fp32'"
    if s.matmul == "fp8" and slowest.capability < FP8_CAPABILITY:
        yield no_fp8(slowest.name, slowest.capability)


def no_fp8(gpu: str, capability: tuple[int, int]) -> str:
    """Return the sentence on a GPU without products in fp8."""
    number = ".".join(map(str, capability))
    return (
        f"matmul is 'fp8': a {gpu} (compute capability {number}) has no such products; use 'auto'"
    )


def _lacking_cpu(s: "Experiment") -> Iterator[str]:
    limit = 4 * hardware.cores()
    if s.gpus > limit:
        yield f"gpus is {s.gpus}: {limit} ranks are the most on this CPU (4 per core); use fewer"
    if s.precision == "tf32":
        yield "precision is 'tf32': only NVIDIA GPUs have it; use 'fp32' or 'bf16'"
    if s.precision == "fp16" and not hardware.cpu_supports_fp16():
        yield "precision is 'fp16': this CPU has no fp16 arithmetic; use 'bf16' or 'fp32'"
