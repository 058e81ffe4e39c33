"""The files that a run reads (model, weights, tokenizer, text), on disk or in the cache of the Hugging Face hub.

Local files have digests: an edited file is another input.
"""

import contextlib
import fnmatch
import hashlib
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dsnb.base.formulas import model_shapes

NO_FILE = {"data": ("synthetic", "stdlib"), "tokenizer": ("bytes",)}
CONFIG = "config.json"
WEIGHTS = ("model*.safetensors*", "pytorch_model*.bin*")
"""One file, or several and their index; safetensors are preferred, as in transformers."""
TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt",
    "*.model", "*.tiktoken", "chat_template.jinja",
)  # fmt: skip
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
READ = ("model", "weights", "tokenizer", "data")
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


def external_items(settings: Mapping[str, Any]) -> list[ExternalItem]:
    """Return the external items of a run; presets with random weights, synthetic tokens and bytes need none."""
    items = []
    model, pretrained = settings["model"], settings["weights"] == "pretrained"
    parts = ("config", "weights") if pretrained else ("config",)
    preset = model_shapes.PRESETS.get(model)
    if model_shapes.local_config(model):
        items.append(ExternalItem("model", model, None, parts))
    elif preset is None or pretrained:
        hub_id = preset.hub_id if preset else model if model_shapes.is_hub_id(model) else None
        items.append(ExternalItem("model", model, hub_id, parts))
    for setting, part in (("tokenizer", "tokenizer"), ("data", "text")):
        value = settings[setting]
        if value not in NO_FILE[setting]:
            is_path = setting == "data" or os.path.exists(os.path.expanduser(value))
            hub_id = value if not is_path and model_shapes.is_hub_id(value) else None
            items.append(ExternalItem(setting, value, hub_id, (part,)))
    return items


def files_of_part(names: Collection[str], part: str) -> list[str]:
    """Return the names in a folder that transformers reads for one part of an item; none if it is missing."""
    plain = [name for name in names if PLAIN_NAME.fullmatch(name)]
    if part == "weights":
        return next((files for pattern in WEIGHTS if (files := fnmatch.filter(plain, pattern))), [])
    patterns = TOKENIZER if part == "tokenizer" else (CONFIG,)
    return [name for pattern in patterns for name in fnmatch.filter(plain, pattern)]


def _local_files(item: ExternalItem) -> dict[str, Path]:
    """Return the local files that a run reads of a setting's file or folder, by their names in records."""
    path = Path(item.value).expanduser()
    if path.is_file() and "weights" not in item.parts:
        return {item.value: path}
    folder, name = (
        (path, item.value.rstrip("/"))
        if path.is_dir()
        else (path.parent, str(Path(item.value).parent))
    )
    names = os.listdir(folder) if path.exists() else []
    files = {path.name, *files_of_part(names, "weights")} & {*names}
    if path.is_dir():
        files = {file for part in ("config", *item.parts) for file in files_of_part(names, part)}
        files |= {"generation_config.json"} & {*names} if "weights" in item.parts else set()
    return {f"{name}/{file}": folder / file for file in files}


def digests(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the digest of every local file that a run reads, by its name: the setting's value, or a file below it."""
    by_name: dict[str, str] = {}
    for item in external_items(settings):
        if item.hub_id is None:
            with contextlib.suppress(OSError):  # the launch reports it
                files = sorted(_local_files(item).items())
                by_name |= {name: digest(path) for name, path in files if path.is_file()}
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
    paths = (try_to_load_from_cache(str(item.hub_id), name) for name in (CONFIG, *TOKENIZER))
    folder = next((Path(path).parent for path in paths if isinstance(path, str)), None)
    names = [path.name for path in folder.iterdir()] if folder else []
    return [part for part in item.parts if not files_of_part(names, part)]


def problems(settings: Mapping[str, Any]) -> list[str]:
    """Return which items of the hub are missing in the cache while `HF_HUB_OFFLINE` keeps runs off the network."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() not in {"1", "ON", "YES", "TRUE"}:
        return []
    missing = [
        (item, parts)
        for item in external_items(settings)
        if item.hub_id and (parts := _missing_parts(item))
    ]
    return [
        f"{item.setting} is {item.value!r}: HF_HUB_OFFLINE is set, and the cache of Hugging Face lacks its "
        f"{' and '.join(parts)}; run `hf download {item.hub_id}` where there is a network, and set HF_HOME to the "
        "folder that has it"
        for item, parts in missing
    ]
