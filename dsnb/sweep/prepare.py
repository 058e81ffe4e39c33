"""`dsnb prepare`: brings what the runs of a params file take from elsewhere into one folder that all nodes see.

Models' configurations, weights where they are asked for, and tokenizers come from the hub; files of one's own are
copied. Complete items are listed in the folder's index (`dsnb.settings.prepared.lookup`), so nothing is fetched twice
and no partial download is used.
"""

import hashlib
import json
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
from dsnb.formulas import model_shapes
from dsnb.run_folder import paths
from dsnb.settings.prepared import hub, lookup, model_files
from dsnb.settings.prepared.lookup import SHARED, Need
from dsnb.settings.prepared.paths import SharedPaths
from dsnb.sweep.params import load_sweep

MIB = 2**20
PART = ".part-"
"""Copies under way; what a killed process left of them is removed by the next."""


@dataclass(frozen=True)
class Prepared:
    """What a shared folder holds of a params file's needs."""

    shared: SharedPaths
    fetched: list[Need] = field(default_factory=list)
    there: list[Need] = field(default_factory=list)
    """Those that were there before."""

    def __str__(self) -> str:
        if not self.fetched and not self.there:
            return "nothing to fetch: presets with random weights, synthetic tokens, stdlib and bytes need none"
        index = lookup.read_index(self.shared)
        lines = [
            f"{state} {need} ({sum(index[need.key]['files'].values()) / MIB:,.1f} MiB)"
            for state, needs in (("fetched:", self.fetched), ("there already:", self.there))
            for need in needs
        ]
        return "\n".join(
            [*lines, f"Runs take it from there, without a network: export {SHARED}={shlex.quote(str(self.shared.dir))}"]
        )


def prepare(params: str | Path, folder: str | Path | None = None) -> Prepared:
    """Fetch everything that the runs of a params file take from elsewhere.

    Parameters
    ----------
    params
        The params file.
    folder
        A folder that all nodes see; by default `$DSNB_SHARED`.

    Raises
    ------
    SettingsError
        If no folder is named, or the params file is not right.
    FetchError
        Saying all that is missing; what could be fetched is kept.
    OSError
        If the folder cannot be written.
    """
    shared = SharedPaths(_home(folder)) if folder else lookup.shared_folder()
    if shared is None:
        raise SettingsError(f"no folder is named: give --cache DIR, a folder that all nodes see, or set {SHARED}")
    wanted = all_needs(params)
    index = lookup.read_index(shared)
    if all(_is_there(shared, index, need) for need in wanted):
        return Prepared(shared, there=wanted)
    with _locked(shared):
        return _fetch_all(shared, wanted)


def _home(folder: str | Path) -> Path:
    try:
        return paths.require_plain_name(Path(folder).expanduser().absolute(), "--cache")
    except RuntimeError as error:  # no such user
        raise SettingsError(f"--cache is {str(folder)!r}: {error}; give a folder") from error


def all_needs(params: str | Path) -> list[Need]:
    """List what the runs of a params file need: each thing once with all of its parts, files before the hub's."""
    found: dict[str, Need] = {}
    for run in load_sweep(params).runs:
        for need in lookup.needs(run.experiment.model_dump()):
            known = found.setdefault(need.key, need)
            found[need.key] = replace(known, parts=known.parts | need.parts)
    return sorted(found.values(), key=lambda need: need.hub_id is not None)


def _is_there(shared: SharedPaths, index: dict[str, Any], need: Need) -> bool:
    return lookup.place(shared, index, need) is not None and not lookup.has_changed(index, need)


@contextmanager
def _locked(shared: SharedPaths) -> Iterator[None]:
    """Wait for the lock of the folder and hold it."""
    shared.files.mkdir(parents=True, exist_ok=True)
    with FileLock(shared.lock, fallback_to_soft=False):  # a lock file without flock would outlive a killed process
        for left in shared.files.glob(f"{PART}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def _fetch_all(shared: SharedPaths, wanted: list[Need]) -> Prepared:
    done, index = Prepared(shared), lookup.read_index(shared)
    troubles: list[str] = []
    unreached: list[Need] = []
    why = ""
    for need in wanted:
        if _is_there(shared, index, need):
            done.there.append(need)
        elif unreached and need.hub_id:
            unreached.append(need)
        else:
            try:
                index[need.key] = _from_hub(shared, index, need) if need.hub_id else _copied(shared, need)
            except FetchError as error:
                if error.unreachable:
                    unreached.append(need)
                    why = str(error)
                else:
                    troubles.append(str(error))
                continue
            records.write_json(shared.index, index)
            done.fetched.append(need)
    if unreached:
        troubles.append(
            f"{hub.host()} cannot be reached ({why}), and {shared.dir} lacks {', '.join(map(str, unreached))}: "
            "run `dsnb prepare` where there is a network, with a --cache that all nodes see"
        )
    if troubles:
        raise FetchError("\n".join(troubles))
    return done


def _from_hub(shared: SharedPaths, index: dict[str, Any], need: Need) -> dict[str, Any]:
    """Fetch from the hub; parts that come later are of the same commit as those that are there."""
    known = index.get(need.key) or {}
    parts = need.parts | {part for part in known.get("parts") or () if isinstance(part, str)}
    commit = known.get("commit")
    snapshot = hub.fetch(str(need.hub_id), parts, shared.hub, commit if isinstance(commit, str) else None)
    home = snapshot.folder.resolve().relative_to(shared.dir.resolve())
    files = {str(home / name): size for name, size in snapshot.sizes.items()}
    return {"path": str(home), "parts": sorted(parts), "commit": snapshot.commit, "files": files}


def _copied(shared: SharedPaths, need: Need) -> dict[str, Any]:
    """Copy files of one's own into a folder named by the hash of their names and content."""
    named, sources = _own_files(need)
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
    own = {"path": str(target.relative_to(shared.dir)), "parts": sorted(need.parts)}
    return {**own, "files": files, "originals": before}


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _own_files(need: Need) -> tuple[Path, list[Path]]:
    """Give the file or folder that a setting names, and the files of it that a run reads."""
    named = Path(need.name).expanduser().absolute()
    config = model_shapes.local_config(need.name) if "config" in need.parts else None
    folder = config.absolute().parent if config else named
    if config is None and not named.is_dir():
        if not named.is_file():
            raise FetchError(f"{need.setting} is {need.name[:200]!r}: that is no file")
        return named, [named]
    there = {path.name for path in folder.iterdir() if path.is_file()}

    def read(name: str) -> Any:
        return json.loads((folder / name).read_text(encoding="utf-8"))

    try:
        if config and config.name != model_files.CONFIG:
            names = [config.name, *(model_files.weights(there, read) if "weights" in need.parts else [])]
        else:
            names = model_files.chosen(there, need.parts, read)
    except (FetchError, ValueError) as error:
        raise FetchError(f"{need.setting} is {need.name[:200]!r}: {error}") from error
    return named, [folder / name for name in names]
