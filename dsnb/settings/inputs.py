"""The files that a run reads (model, weights, tokenizer, text), on disk or in the cache of the Hugging Face hub.

Local files have digests: an edited file is another input.
"""

import contextlib
import fnmatch
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dsnb.base.formulas import model_shapes
from dsnb.settings import command

if TYPE_CHECKING:
    from dsnb.settings.experiment import Experiment

NO_FILE = {"data": ("synthetic", "stdlib"), "tokenizer": ("bytes",)}
CONFIG = "config.json"
WEIGHTS = ("model*.safetensors*", "pytorch_model*.bin*")
"""One file, or several and their index; safetensors are preferred, as in transformers."""
TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt",
    "*.model", "*.tiktoken", "chat_template.jinja",
)  # fmt: skip
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
READ = ("model", "weights", "tokenizer", "data", "command")
"""Settings that name what a run reads."""
MAX_WHOLE_BYTES = 64 * 2**20
"""Larger files, such as weights, are sampled: hashing tens of GB would take minutes before every run."""
SAMPLES, SAMPLE_BYTES = 64, 64 * 1024


class ExternalItem(NamedTuple):
    """What a run reads for one setting, from a repository of the hub, or from a path if there is none."""

    setting: str
    value: str
    hub_id: str | None
    parts: tuple[str, ...]
    """Required parts: `config`, `weights`, `tokenizer`, `text`."""


def external_items(model: str, weights: str, tokenizer: str, data: str) -> list[ExternalItem]:
    """Return the external items of settings; presets with random weights, synthetic tokens and bytes need none."""
    items = []
    is_pretrained = weights == "pretrained"
    parts = ("config", "weights") if is_pretrained else ("config",)
    preset = model_shapes.PRESETS.get(model)
    if model_shapes.local_config(model):
        items.append(ExternalItem("model", model, None, parts))
    elif preset is None:
        items.append(ExternalItem("model", model, _hub_id(model), parts))
    elif is_pretrained:
        items.append(ExternalItem("model", model, preset.hub_id, parts))
    if tokenizer not in NO_FILE["tokenizer"]:
        is_local = os.path.exists(os.path.expanduser(tokenizer))
        hub_id = None if is_local else _hub_id(tokenizer)
        items.append(ExternalItem("tokenizer", tokenizer, hub_id, ("tokenizer",)))
    if data not in NO_FILE["data"]:
        items.append(ExternalItem("data", data, None, ("text",)))
    return items


def _hub_id(name: str) -> str | None:
    return name if model_shapes.is_hub_id(name) else None


def files_of_part(names: Iterable[str], part: str) -> list[str]:
    """Return the names in a folder that transformers reads for one part of an item; none if it is missing."""
    plain = list(filter(PLAIN_NAME.fullmatch, names))
    if part == "weights":
        matches = (fnmatch.filter(plain, pattern) for pattern in WEIGHTS)
        return next(filter(None, matches), [])
    files = []
    for pattern in TOKENIZER if part == "tokenizer" else (CONFIG,):
        files += fnmatch.filter(plain, pattern)
    return files


def _local_files(item: ExternalItem) -> dict[str, Path]:
    """Return the local files that a run reads of a setting's file or folder, by their names in records."""
    path = Path(item.value).expanduser()
    has_weights = "weights" in item.parts
    if path.is_dir():
        folder = path
        name = item.value.rstrip("/")
        parts = {"config", *item.parts}
        others = {"generation_config.json"} if has_weights else set()
    elif has_weights and path.exists():
        folder = path.parent
        name = str(Path(item.value).parent)
        parts = {"weights"}
        others = {path.name}
    else:
        return {item.value: path}
    names = {*os.listdir(folder)}
    files = others & names
    for part in parts:
        files.update(files_of_part(names, part))
    return {f"{name}/{file}": folder / file for file in files}


def _items(s: "Experiment") -> list[ExternalItem]:
    """Return the external items of a run; of a command, the files that it names, and its model's configuration."""
    if not s.command:
        return external_items(s.model, s.weights, s.tokenizer, s.data)
    items = [ExternalItem("command", path, None, ()) for path in command.local_files(s.command)]
    if s.model and model_shapes.local_config(s.model):
        items.append(ExternalItem("model", s.model, None, ("config",)))
    return items


def digests(s: "Experiment") -> dict[str, str]:
    """Return the digest of every local file that a run reads, by its name: the setting's value, or a file below it."""
    by_name: dict[str, str] = {}
    for item in _items(s):
        if item.hub_id is not None:
            continue
        with contextlib.suppress(OSError):  # the launch reports it
            for name, path in sorted(_local_files(item).items()):
                if path.is_file():
                    by_name[name] = digest(path)
    return by_name


def digest(path: Path) -> str:
    """Return a digest of a file's content; of a large file, of its size and evenly spaced samples."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        if size <= MAX_WHOLE_BYTES:
            return hashlib.file_digest(file, "sha256").hexdigest()[:32]
        content = hashlib.sha256(str(size).encode())
        for number in range(SAMPLES):
            file.seek(number * (size - SAMPLE_BYTES) // (SAMPLES - 1))
            content.update(file.read(SAMPLE_BYTES))
    return f"sampled-{content.hexdigest()[:24]}"


def changed(before: Any, now: Mapping[str, str]) -> list[str]:
    """Return the names of the files whose digests differ; none if they were not recorded `before`, or are missing."""
    if not isinstance(before, Mapping) or not before or not now:
        return []
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))


def _missing_parts(item: ExternalItem) -> list[str]:
    """Return the parts of an item of the hub that huggingface_hub's cache lacks."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return list(item.parts)
    names: list[str] = []
    for name in (CONFIG, *TOKENIZER):
        path = try_to_load_from_cache(str(item.hub_id), name)
        if isinstance(path, str):
            names = os.listdir(Path(path).parent)
            break
    return [part for part in item.parts if not files_of_part(names, part)]


def problems(s: "Experiment") -> Iterator[str]:
    """Yield which items of the hub are missing in the cache while `HF_HUB_OFFLINE` keeps runs off the network."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() not in {"1", "ON", "YES", "TRUE"}:
        return
    for item in external_items(s.model, s.weights, s.tokenizer, s.data):
        missing = _missing_parts(item) if item.hub_id else []
        if missing:
            yield (
                f"{item.setting} is {item.value!r}: HF_HUB_OFFLINE is set, and the cache of Hugging Face lacks its "
                f"{' and '.join(missing)}; run `hf download {item.hub_id}` where there is a network, and set HF_HOME "
                "to the folder that has it"
            )
