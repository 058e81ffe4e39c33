"""Finds the external files of runs in `$DSNB_SHARED`, the folder that `dsnb prepare` filled, without a network.

Every external item of a run has an entry in the folder's index, written when all of its files are complete. A launch
checks that the items are there; each rank, on any node, reads the files from there.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsnb.errors import SettingsError
from dsnb.files import records
from dsnb.formulas import model_shapes
from dsnb.settings.prepared.paths import SharedPaths

SHARED = "DSNB_SHARED"
NO_FILE = {"data": ("synthetic", "stdlib"), "tokenizer": ("bytes",)}


@dataclass(frozen=True)
class ExternalItem:
    """One item that a run reads from the hub or from a file.

    Attributes
    ----------
    setting
        `model`, `tokenizer` or `data`.
    name
        Value of the setting.
    hub_id
        Its repository on the hub; None for a file or a folder.
    parts
        Its required parts: `config`, `weights`, `tokenizer`, `text`.
    """

    setting: str
    name: str
    hub_id: str | None
    parts: frozenset[str]

    @property
    def key(self) -> str:
        """The key of its entry in the index."""
        return f"hub:{self.hub_id}" if self.hub_id else os.path.abspath(os.path.expanduser(self.name))

    def __str__(self) -> str:
        what = " and ".join(sorted(self.parts))
        return f"{what} of {(self.hub_id or self.name)[:200]!r}"


def external_items(settings: Mapping[str, Any]) -> list[ExternalItem]:
    """Return the external items of a run; presets with random weights, synthetic tokens and bytes need none."""
    found = []
    model, weights = settings["model"], settings["weights"]
    parts = frozenset({"config", "weights"} if weights == "pretrained" else {"config"})
    preset = model_shapes.PRESETS.get(model)
    if model_shapes.local_config(model):
        found.append(ExternalItem("model", model, None, parts))
    elif preset is None or weights == "pretrained":
        hub_id = preset.hub_id if preset else model if model_shapes.is_hub_id(model) else None
        found.append(ExternalItem("model", model, hub_id, parts))
    for setting, part in (("tokenizer", "tokenizer"), ("data", "text")):
        name = settings[setting]
        if name not in NO_FILE[setting]:
            hub_id = name if setting == "tokenizer" and model_shapes.is_hub_id(name) and not _exists(name) else None
            found.append(ExternalItem(setting, name, hub_id, frozenset({part})))
    return found


def _exists(name: str) -> bool:
    return os.path.exists(os.path.expanduser(name))


def shared_folder() -> SharedPaths | None:
    """Return the shared folder that `$DSNB_SHARED` names; None if it is not set."""
    chosen = os.environ.get(SHARED)
    return SharedPaths(Path(chosen).expanduser().absolute()) if chosen else None


def read_index(shared: SharedPaths) -> dict[str, Any]:
    """Return the index of a shared folder; empty if there is none."""
    index = records.read_json(shared.index) or {}
    return {key: entry for key, entry in index.items() if isinstance(entry, dict)}


def place(shared: SharedPaths, index: Mapping[str, Any], item: ExternalItem) -> Path | None:
    """Return the file or folder of an item; None if it is missing or incomplete."""
    entry = index.get(item.key)
    home = shared.dir.resolve()
    try:
        if entry is None or not item.parts <= set(entry["parts"]):
            return None
        sizes = {shared.dir / name: size for name, size in entry["files"].items()}
        whole = all(path.stat().st_size == size and path.resolve().is_relative_to(home) for path, size in sizes.items())
        target = shared.dir / str(entry["path"])
        return target if whole and sizes and target.resolve().is_relative_to(home) else None
    except (OSError, KeyError, AttributeError, TypeError, ValueError):
        return None


def has_changed(index: Mapping[str, Any], item: ExternalItem) -> bool:
    """Return whether an original file has changed since it was copied; one that is missing here counts as unchanged."""
    try:
        states = dict(index[item.key].get("originals", {}))
        return any(os.path.exists(path) and state(Path(path)) != list(was) for path, was in states.items())
    except (KeyError, AttributeError, TypeError, ValueError):
        return False


def state(path: Path) -> list[int]:
    """Return the size in bytes and the modification time in ns of a file, which show whether it has changed."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def problems(settings: Mapping[str, Any], originals: bool = True) -> list[str]:
    """Return what `$DSNB_SHARED` lacks of a run's external items, one sentence each; nothing if it is not set.

    Local files may be missing there: all nodes may see the originals. Copies must be up to date with the `originals`
    on the machine that has them: another host may have its own copy with another date.
    """
    shared, wanted = shared_folder(), external_items(settings)
    if shared is None or not wanted:
        return []
    index, found = read_index(shared), []
    for item in wanted:
        says = f"{item.setting} is {item.name[:200]!r}: "
        if item.hub_id and place(shared, index, item) is None:
            what = " and ".join(sorted(item.parts))
            found.append(
                f"{says}{SHARED} ({shared.dir}) does not contain its {what}; "
                f"run `dsnb prepare` with the params file, or unset {SHARED}"
            )
        elif originals and has_changed(index, item):
            found.append(f"{says}it has changed since it was copied to {shared.dir}; run `dsnb prepare` again")
    return found


def places(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that a rank replaces by files in `$DSNB_SHARED`, so that it needs no network.

    Raises
    ------
    SettingsError
        If an item is missing: the rank's host then sees another folder than the launching host.
    """
    if found := problems(settings, originals=False):
        raise SettingsError(found)
    shared = shared_folder()
    if shared is None:
        return {}
    index = read_index(shared)
    return {item.setting: str(path) for item in external_items(settings) if (path := place(shared, index, item))}
