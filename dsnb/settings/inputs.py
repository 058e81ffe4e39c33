"""The files that a run reads (model, weights, tokenizer, text), on disk or in the cache of the Hugging Face hub.

Local files have digests: an edited file is another input.
"""

import contextlib
import fnmatch
import hashlib
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsnb.errors import FetchError
from dsnb.formulas import model_shapes

NO_FILE = {"data": ("synthetic", "stdlib"), "tokenizer": ("bytes",)}
CONFIG = "config.json"
WEIGHTS = ("model*.safetensors*", "pytorch_model*.bin*")
"""One file, or several and their index; safetensors are preferred, as in transformers."""
TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt",
    "*.model", "*.tiktoken", "chat_template.jinja",
)  # fmt: skip
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
MAX_WHOLE_BYTES = 64 * 2**20
"""Larger files, such as weights, are sampled: hashing tens of GB would take minutes before every run."""
SAMPLES, SAMPLE_BYTES = 64, 64 * 1024


@dataclass(frozen=True)
class ExternalItem:
    """One item that a run reads from the hub or from a file."""

    setting: str
    """`model`, `tokenizer` or `data`."""
    name: str
    """Value of the setting."""
    hub_id: str | None
    """Its repository on the hub; None for a file or a folder."""
    parts: frozenset[str]
    """Its required parts: `config`, `weights`, `tokenizer`, `text`."""

    def __str__(self) -> str:
        what = " and ".join(sorted(self.parts))
        return f"{what} of {(self.hub_id or self.name)!r}"


def external_items(settings: Mapping[str, Any]) -> list[ExternalItem]:
    """Return the external items of a run; presets with random weights, synthetic tokens and bytes need none."""
    items = []
    model, weights = settings["model"], settings["weights"]
    parts = frozenset({"config", "weights"} if weights == "pretrained" else {"config"})
    preset = model_shapes.PRESETS.get(model)
    if model_shapes.local_config(model):
        items.append(ExternalItem("model", model, None, parts))
    elif preset is None or weights == "pretrained":
        hub_id = preset.hub_id if preset else model if model_shapes.is_hub_id(model) else None
        items.append(ExternalItem("model", model, hub_id, parts))
    for setting, part in (("tokenizer", "tokenizer"), ("data", "text")):
        name = settings[setting]
        if name not in NO_FILE[setting]:
            is_local = setting == "data" or os.path.exists(os.path.expanduser(name)) or not model_shapes.is_hub_id(name)
            items.append(ExternalItem(setting, name, None if is_local else name, frozenset({part})))
    return items


def chosen(names: Iterable[str], parts: Collection[str]) -> list[str]:
    """Return which files of a folder transformers reads for these parts; a missing part is a FetchError."""
    there = [name for name in names if PLAIN_NAME.fullmatch(name)]
    files = {*fnmatch.filter(there, CONFIG)}
    if "config" in parts and not files:
        raise FetchError(f"there is no {CONFIG}")
    if "weights" in parts:
        files |= {*weights(there), *fnmatch.filter(there, "generation_config.json")}
    if "tokenizer" in parts:
        vocabulary = {name for pattern in TOKENIZER for name in fnmatch.filter(there, pattern)}
        if not vocabulary:
            raise FetchError("there is no tokenizer")
        files |= vocabulary  # the configuration names the tokenizer's class if they do not
    return sorted(files)


def weights(there: Collection[str]) -> list[str]:
    """Return the names of the weight files: one, or an index and all its shards (`NAME-00001-of-00002.SUFFIX`)."""
    files = next((found for pattern in WEIGHTS if (found := fnmatch.filter(there, pattern))), None)
    if files is None:
        raise FetchError("there are no weights that transformers could load (model.safetensors, pytorch_model.bin)")
    totals = [int(total[1]) for name in files if (total := re.search(r"-of-(\d+)\.", name))]
    if (missing := max(totals, default=0) - len(totals)) > 0:
        raise FetchError(f"{missing} of {max(totals)} files of the weights are missing")
    return files


def files_of(item: ExternalItem) -> dict[str, Path]:
    """Return the local files that a run reads of a setting's file or folder, by their names in records."""
    path = Path(item.name).expanduser()
    if not path.exists():
        raise FetchError(f"{item.setting} is {item.name!r}: it is not a file")
    if path.is_file() and "weights" not in item.parts:
        return {item.name: path}
    folder, name = (path, item.name.rstrip("/")) if path.is_dir() else (path.parent, str(Path(item.name).parent))
    try:
        there = os.listdir(folder)
        files = chosen(there, item.parts) if path.is_dir() else [path.name, *weights(there)]
    except FetchError as error:
        raise FetchError(f"{item.setting} is {item.name!r}: {error}") from error
    return {f"{name}/{file}": folder / file for file in files}


def digests(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the digest of every local file that a run reads, by its name: the setting's value, or a file below it."""
    by_name: dict[str, str] = {}
    for item in external_items(settings):
        if item.hub_id is None:
            with contextlib.suppress(OSError, FetchError):  # the launch reports it
                by_name |= {name: digest(path) for name, path in files_of(item).items()}
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


def cached_folder(item: ExternalItem) -> Path | None:
    """Return the folder of an item of the hub in huggingface_hub's cache; None if a part of it is missing there."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    found = (try_to_load_from_cache(str(item.hub_id), name) for name in (CONFIG, *TOKENIZER))
    folder = next((Path(path).parent for path in found if isinstance(path, str)), None)
    try:
        return folder if folder and chosen((path.name for path in folder.iterdir()), item.parts) else None
    except FetchError:
        return None


def problems(settings: Mapping[str, Any]) -> list[str]:
    """Return which items of the hub are missing in the cache while `HF_HUB_OFFLINE` keeps runs off the network."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() not in {"1", "ON", "YES", "TRUE"}:
        return []
    missing = [item for item in external_items(settings) if item.hub_id and cached_folder(item) is None]
    return [
        f"{item.setting} is {item.name!r}: HF_HUB_OFFLINE is set, and the cache of Hugging Face lacks its "
        f"{' and '.join(sorted(item.parts))}; run `hf download {item.hub_id}` where there is a network, and set "
        "HF_HOME to the folder that has it"
        for item in missing
    ]
