"""`dsnb prepare`: collects the external files of a params file's runs in one folder that all nodes see.

Model configurations, pretrained weights and tokenizers come from the hub; local files are copied. Complete items are
listed in the folder's index (`dsnb.settings.prepared.lookup`), so nothing is fetched twice and no partial download is
used.
"""

import hashlib
import secrets
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from dsnb.errors import FetchError, SettingsError
from dsnb.files import records
from dsnb.run_folder import paths
from dsnb.settings.prepared import hub, inputs, lookup
from dsnb.settings.prepared.lookup import SHARED, ExternalItem
from dsnb.settings.prepared.paths import SharedPaths
from dsnb.sweep.params import load_sweep

MIB = 2**20
PART = ".part-"
"""Prefix of unfinished copies; those of a killed process are removed by the next call."""


@dataclass(frozen=True)
class Prepared:
    """The external files of a params file in a shared folder."""

    shared: SharedPaths
    fetched: list[ExternalItem] = field(default_factory=list)
    there: list[ExternalItem] = field(default_factory=list)
    """Files that were present before."""

    def __str__(self) -> str:
        if not self.fetched and not self.there:
            return "nothing to fetch: presets with random weights, synthetic tokens, stdlib and bytes need none"
        index = lookup.read_index(self.shared)
        lines = [
            f"{state} {item} ({sum(index[item.key]['files'].values()) / MIB:,.1f} MiB)"
            for state, items in (("fetched:", self.fetched), ("already there:", self.there))
            for item in items
        ]
        return "\n".join(
            [*lines, f"Runs read from there without a network: export {SHARED}={shlex.quote(str(self.shared.dir))}"]
        )


def prepare(params: str | Path, folder: str | Path | None = None) -> Prepared:
    """Fetch all external files of the runs of a params file.

    Parameters
    ----------
    params
        The params file.
    folder
        A folder that all nodes see; by default `$DSNB_SHARED`.

    Raises
    ------
    SettingsError
        If no folder is named, or the params file is invalid.
    FetchError
        With everything that is missing; what could be fetched is kept.
    OSError
        If the folder cannot be written.
    """
    shared = SharedPaths(_home(folder)) if folder else lookup.shared_folder()
    if shared is None:
        raise SettingsError(f"no folder is named: give --cache FOLDER, a folder that all nodes see, or set {SHARED}")
    wanted = all_external_items(params)
    index = lookup.read_index(shared)
    if all(_is_there(shared, index, item) for item in wanted):
        return Prepared(shared, there=wanted)
    with _locked(shared):
        return _fetch_all(shared, wanted)


def _home(folder: str | Path) -> Path:
    try:
        return paths.require_plain_name(Path(folder).expanduser().absolute(), "--cache")
    except RuntimeError as error:  # no such user
        raise SettingsError(f"--cache is {str(folder)!r}: {error}; give a folder") from error


def all_external_items(params: str | Path) -> list[ExternalItem]:
    """Return the external files that the runs of a params file need, each once, local files before those of the hub."""
    found: dict[str, ExternalItem] = {}
    for run in load_sweep(params).runs:
        for item in lookup.external_items(run.experiment.model_dump()):
            known = found.setdefault(item.key, item)
            found[item.key] = replace(known, parts=known.parts | item.parts)
    return sorted(found.values(), key=lambda item: item.hub_id is not None)


def _is_there(shared: SharedPaths, index: dict[str, Any], item: ExternalItem) -> bool:
    return lookup.place(shared, index, item) is not None and not lookup.has_changed(index, item)


@contextmanager
def _locked(shared: SharedPaths) -> Iterator[None]:
    """Wait for the lock of the folder and hold it."""
    shared.files.mkdir(parents=True, exist_ok=True)
    with FileLock(shared.lock, fallback_to_soft=False):  # a lock file without flock would outlive a killed process
        for left in shared.files.glob(f"{PART}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def _fetch_all(shared: SharedPaths, wanted: list[ExternalItem]) -> Prepared:
    done, index = Prepared(shared), lookup.read_index(shared)
    troubles: list[str] = []
    unreached: list[ExternalItem] = []
    why = ""
    for item in wanted:
        if _is_there(shared, index, item):
            done.there.append(item)
        elif unreached and item.hub_id:
            unreached.append(item)
        else:
            try:
                index[item.key] = _from_hub(shared, index, item) if item.hub_id else _copied(shared, item)
            except FetchError as error:
                if error.unreachable:
                    unreached.append(item)
                    why = str(error)
                else:
                    troubles.append(str(error))
                continue
            records.write_json(shared.index, index)
            done.fetched.append(item)
    if unreached:
        troubles.append(
            f"{hub.host()} cannot be reached ({why}), and {shared.dir} lacks {', '.join(map(str, unreached))}: "
            "run `dsnb prepare` where there is a network, with a --cache that all nodes see"
        )
    if troubles:
        raise FetchError("\n".join(troubles))
    return done


def _from_hub(shared: SharedPaths, index: dict[str, Any], item: ExternalItem) -> dict[str, Any]:
    """Fetch from the hub; further parts are of the same commit as those already fetched."""
    known = index.get(item.key) or {}
    parts = item.parts | {part for part in known.get("parts") or () if isinstance(part, str)}
    commit = known.get("commit")
    snapshot = hub.fetch(str(item.hub_id), parts, shared.hub, commit if isinstance(commit, str) else None)
    home = snapshot.folder.resolve().relative_to(shared.dir.resolve())
    files = {str(home / name): size for name, size in snapshot.sizes.items()}
    return {"path": str(home), "parts": sorted(parts), "commit": snapshot.commit, "files": files}


def _copied(shared: SharedPaths, item: ExternalItem) -> dict[str, Any]:
    """Copy local files into a folder named by the hash of their names and content."""
    named, sources = inputs.files_of(item)
    before = {str(source): lookup.state(source) for source in sources}
    part = shared.files / f"{PART}{secrets.token_hex(4)}"
    part.mkdir()
    try:
        digest = hashlib.sha256()
        for source in sources:
            shutil.copyfile(source, part / source.name)
            with open(part / source.name, "rb") as copy:
                content = hashlib.file_digest(copy, "sha256").hexdigest()
            digest.update(f"{content} {source.name}\n".encode("utf-8", "surrogateescape"))
        home = shared.files / digest.hexdigest()[:32]
        if any(_size(home / source.name) != _size(part / source.name) for source in sources):
            shutil.rmtree(home, ignore_errors=True)
            part.rename(home)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    files = {
        str((home / source.name).relative_to(shared.dir)): (home / source.name).stat().st_size for source in sources
    }
    target = home if named.is_dir() else home / named.name
    own = {"path": str(target.relative_to(shared.dir)), "parts": sorted(item.parts)}
    return {**own, "files": files, "originals": before}


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None
