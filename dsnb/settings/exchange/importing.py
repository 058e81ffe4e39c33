"""Makes a params file of the configuration files of other programs."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dsnb.base.errors import SettingsError
from dsnb.base.files import inert_pickle, plain_text, plain_yaml
from dsnb.base.files.inert_pickle import Inert, plain
from dsnb.base.formulas import model_shapes
from dsnb.settings import checks, deepspeed_keys
from dsnb.settings.exchange import from_accelerate, from_arguments, from_deepspeed
from dsnb.settings.exchange.files import SETTINGS_FILE
from dsnb.settings.exchange.imported import Imported
from dsnb.settings.experiment import DEFAULTS, Experiment

MAX_BYTES = 4 * 2**20
PICKLE = "training_args.bin"
ARGUMENTS = (PICKLE, "args.json", "training_args.json")
"""Files with the arguments of a training, beside its model."""
OF_DEEPSPEED = {
    "zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps",
    "gradient_clipping", "bf16", "fp16", "torch_autocast", "optimizer", "scheduler", "steps_per_print",
    "wall_clock_breakdown",
}  # fmt: skip
OF_ACCELERATE = {"distributed_type", "compute_environment"}
KINDS = (
    "DeepSpeed's configuration, accelerate's, arguments of transformers' Trainer, axolotl or LLaMA-Factory, or a "
    f"folder with {', '.join(ARGUMENTS[:-1])} or {ARGUMENTS[-1]}"
)
WEIGHTS = {
    "float32": {"precision": "fp32"},
    "bfloat16": {"precision": "bf16", "mixed_precision": "none"},
}
"""Format of the saved weights -> settings of a training without mixed precision."""
NEEDED = {
    "strategy": "neither DeepSpeed nor FSDP is named: give ddp, or plain for one GPU",
    "model": "give the model",
    "gpus": "give the number of GPUs",
    "micro_batch_size": "give micro_batch_size",
    "seq_len": "give seq_len",
}
"""Settings without which the default would be another training -> what to give."""


def read(path: Path, given: Mapping[str, Any]) -> Imported:
    """Return the settings that a file or folder of another program has; those `given` are for what it leaves open.

    Raises
    ------
    SettingsError
        If it is no such file, if it cannot be expressed in dsnb's settings, or if a given setting contradicts it.
    """
    with _odd_values(path):
        found = _read(path, given.get("model"))
        named = found.settings.pop("model", None)
        if named:
            found.put(found.sources["model"], **_model(str(named), found))
        for name, value in given.items():
            if name not in DEFAULTS and not name.startswith(deepspeed_keys.PREFIX):
                found.problems.append(checks.unknown_setting(name, DEFAULTS))
            found.put(f"--set {name}", **{name: value})
        _check(found)
    if found.problems:
        raise SettingsError([f"{path}: {problem}" for problem in found.problems])
    return found


@contextmanager
def _odd_values(path: Path) -> Iterator[None]:
    """Raise SettingsError for a value of another kind than its key has, such as a text for a number."""
    try:
        yield
    except SettingsError:
        raise
    except (
        TypeError,
        ValueError,
        AttributeError,
        LookupError,
        ArithmeticError,
        RecursionError,
        OSError,
    ) as error:
        raise SettingsError(f"{path} has a value of an unexpected kind ({error})") from error


def _read(path: Path, model: str | None) -> Imported:
    if path.is_dir():
        return _folder(path, model)
    return _recognised(path, _content(path), model)


def _content(path: Path) -> Mapping[str, Any]:
    """Return the mapping in a file; a SettingsError says what it is not."""
    if path.suffix == ".bin":
        return arguments_of(path)
    what = "configuration"
    if path.suffix != ".json":
        content = plain_yaml.read(path, what)
    else:
        try:
            if path.stat().st_size > MAX_BYTES:
                raise ValueError("it is too large")
            content = json.loads(path.read_text("utf-8-sig"))
        except (OSError, ValueError, RecursionError) as error:
            why = getattr(error, "strerror", None) or error
            raise SettingsError(f"{what} {str(path)!r} cannot be read: {why}") from error
    if not isinstance(content, dict):
        raise SettingsError(f"{what} {str(path)!r} holds no keys: give {KINDS}")
    return content


def arguments_of(path: Path) -> dict[str, Any]:
    """Return the arguments in a `training_args.bin`, read without running the pickle."""
    try:
        saved = inert_pickle.read(path)
    except inert_pickle.ERRORS as error:
        raise SettingsError(f"{path} cannot be read as saved arguments: {error}") from error
    if not isinstance(saved, Inert) or not saved.state:
        raise SettingsError(f"{path} holds no saved arguments")
    arguments = {name: plain(value) for name, value in saved.state.items()}
    arguments["deepspeed"] = _engine_config(saved) or arguments.get("deepspeed")
    return {**arguments, **_ranks(saved)}


def _engine_config(saved: Inert) -> Any:
    """Return DeepSpeed's configuration as the Trainer filled it; None without one."""
    for name in ("hf_deepspeed_config", "deepspeed_config"):
        holder = saved.state.get(name)
        if isinstance(holder, Inert) and isinstance(holder.state.get("config"), dict):
            return holder.state["config"]
    return None


def _ranks(saved: Inert) -> dict[str, Any]:
    """Return the number of ranks, and what joined them."""
    state = saved.state.get("distributed_state")
    if not isinstance(state, Inert):
        return {}
    ranks = {"world_size": state.state.get("num_processes")}
    kind = plain(state.state.get("distributed_type"))
    of_process = saved.state.get("_n_gpu")
    if kind == "NO" and isinstance(of_process, int) and of_process > 1:
        return {}  # torch's DataParallel
    return {**ranks, "distributed_type": kind}


def _recognised(path: Path, content: Mapping[str, Any], model: str | None) -> Imported:
    """Return the settings of a file's content, whose keys tell the program."""
    opened = _opener(path.parent)
    if from_arguments.MARKS & content.keys():
        return from_arguments.read(content, opened, model)
    if OF_ACCELERATE & content.keys():
        return from_accelerate.read(content, opened, model)
    if OF_DEEPSPEED & content.keys():
        return from_deepspeed.read(content, model)
    raise SettingsError(f"{path}: its keys are of no program that dsnb reads: give {KINDS}")


def _is_file(place: Path) -> bool:
    """Return whether there is a file; False for what cannot be a name, such as a whole configuration in base64."""
    try:
        return place.is_file()
    except (OSError, ValueError):
        return False


def _opener(folder: Path) -> Callable[[str], Mapping[str, Any] | None]:
    """Return a function that reads a file named in a file of this folder; None if it is not there."""

    def opened(name: str) -> Mapping[str, Any] | None:
        for place in (folder / name, Path(name), folder / Path(name).name):
            if _is_file(place):
                return _content(place)
        return None

    return opened


def arguments_in(folder: Path) -> dict[str, Any]:
    """Return what saved arguments in a folder say; empty without any.

    Besides settings: `packing`, whether samples are packed, and `split`, the ranks that share a sequence.
    """
    path = _arguments_file(folder)
    if path is None:
        return {}
    with _odd_values(path):
        content = _content(path)
        if not from_arguments.MARKS & content.keys():
            return {}
        found = from_arguments.read(content, _opener(folder))
        _weights(found, folder / "config.json")
        more = {"packing": from_arguments.is_packed(content), "split": _sharing(content)}
        return {**found.settings, **more}


def _sharing(content: Mapping[str, Any]) -> int:
    sizes = [content.get(name) for name in ("sequence_parallel_size", "context_parallel_size")]
    return max([size for size in sizes if isinstance(size, int)], default=1)


def _arguments_file(folder: Path) -> Path | None:
    return next((folder / name for name in ARGUMENTS if (folder / name).is_file()), None)


def _folder(folder: Path, model: str | None) -> Imported:
    """Return the settings of a training's folder, or of one with the files of a recommendation."""
    own = folder / SETTINGS_FILE
    if own.is_file():
        found = Imported()
        found.put(
            SETTINGS_FILE, **{key: each for key, each in _content(own).items() if key in DEFAULTS}
        )
        return found
    path = _arguments_file(folder)
    if path is None:
        raise SettingsError(f"{str(folder)!r} has no file of arguments: give {KINDS}")
    found = _recognised(path, _content(path), model)
    config = folder / "config.json"
    if config.is_file():
        found.add("model", model or known_model(config) or str(config), "config.json")
    _weights(found, config)
    return found


def _weights(found: Imported, config: Path) -> None:
    """Add the precision by the format of the saved weights, if arguments switch off mixed precision."""
    if found.left_open.get("precision") == from_arguments.NO_HALF:
        for name, value in WEIGHTS.get(_dtype(config), {}).items():
            found.put("config.json", **{name: value})


def _dtype(config: Path) -> str:
    """Return the number format of a model's saved weights."""
    fields = model_shapes.local_fields(str(config)) or {}
    return str(fields.get("dtype") or fields.get("torch_dtype")).removeprefix("torch.")


def known_model(config: Path) -> str | None:
    """Return the preset with the sizes of a model's configuration; None if there is none."""
    fields = model_shapes.local_fields(str(config)) or {}
    names = ("model_type", "vocab_size", "intermediate_size")
    for name, preset in model_shapes.PRESETS.items():
        known = preset.config()
        is_equal = all(known.get(key) == fields.get(key) for key in names)
        if is_equal and _sizes(name) == _sizes(str(config)):
            return name
    return None


def _model(name: str, found: Imported) -> dict[str, str]:
    here = model_here(name)
    if here:
        return {"model": here}
    found.left_open["model"] = f"{name} is not on this machine: give the model"
    return {}


def _sizes(model: str) -> dict[str, Any]:
    """Return the sizes of a model; every head has its own keys unless something else is said."""
    sizes = model_shapes.facts(model)
    sizes.pop("positions", None)  # raised for longer texts
    return {"key_value_heads": sizes.get("heads"), **sizes}


def model_here(name: str) -> str | None:
    """Return a model by a name that this machine knows; None if it is a path elsewhere."""
    if name in model_shapes.PRESETS or model_shapes.local_config(name):
        return name
    preset = model_shapes.preset_of(name)
    if preset is None and model_shapes.is_hub_id(name):
        return name
    return preset


def _check(found: Imported) -> None:
    """Name what is missing, drop keys that DeepSpeed does not know, and collect contradictions."""
    found.close()
    while _drop_unknown(found):
        pass  # DeepSpeed names wrong values first, and then wrong names
    for name, advice in NEEDED.items():
        if name not in found.settings:
            found.left_open.setdefault(name, advice)
    if {"model", "strategy"} <= found.settings.keys() and not found.problems:
        try:
            Experiment(**{"device": "cuda", "seq_len": 2, **found.settings})
        except SettingsError as error:
            found.problems += error.problems


def _passed_on(found: Imported) -> dict[str, Any]:
    """Return the keys of DeepSpeed that are passed on, without their prefix."""
    keys = {}
    for name, value in found.settings.items():
        if name.startswith(deepspeed_keys.PREFIX):
            keys[name.removeprefix(deepspeed_keys.PREFIX)] = value
    return keys


def _drop_unknown(found: Imported) -> bool:
    """Drop the keys that DeepSpeed does not know or refuses; return whether there were any."""
    before = len(found.settings)
    keys = _passed_on(found)
    if not keys:
        return False
    for problem in deepspeed_keys.unknown_keys(found.settings.get("zero_stage", 0), keys):
        name = problem.split()[0]
        inside = [key for key in found.settings if f"{key}.".startswith(f"{name}.")]
        for key in inside:
            del found.settings[key]
        if inside:
            shown = name.removeprefix(deepspeed_keys.PREFIX)
            found.dropped[shown] = problem.removeprefix(name).lstrip(" :")
        else:
            found.problems.append(problem)
    return len(found.settings) < before


def sweep_name(name: str) -> str:
    """Return a name for a sweep, of the characters that folders may have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._-")[:100] or "imported"


def params_text(found: Imported, name: str, origin: str) -> str:
    """Return the params file, with what is open and what was left out as comments."""
    lines = [f"Imported from {origin}."]
    for title, entries in (("Left open", found.left_open), ("Left out", found.dropped)):
        if entries:
            lines.append(f"{title}:")
            lines += [f"* {key}: {why}" for key, why in entries.items()]
    settings: dict[str, Any] = {}
    for key, value in found.ordered().items():
        if not key.startswith(deepspeed_keys.PREFIX):
            settings[key] = value
    keys = _passed_on(found)
    if keys:
        settings["deepspeed"] = deepspeed_keys.merged({}, keys)
    content = plain_yaml.dump({"name": name, "defaults": settings, "repeats": 1})
    comments = [f"# {plain_text.line(line)}\n" for line in lines]
    return "".join([*comments, content])
