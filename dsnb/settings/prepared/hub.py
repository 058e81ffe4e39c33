"""Fetches files of the Hugging Face hub into a folder; a failure is reported in one sentence.

huggingface_hub finds the token by itself; it is in no file or message that is written here.
"""

import json
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dsnb.errors import FetchError, SettingsError
from dsnb.settings.prepared import model_files

TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Snapshot:
    """Complete files of one commit of a repository in a local folder."""

    folder: Path
    commit: str
    sizes: dict[str, int]
    """Bytes of every file by name."""


def fetch(hub_id: str, parts: Collection[str], cache: Path, commit: str | None = None) -> Snapshot:
    """Fetch the files of a repository that a run reads, unless they are in the cache.

    Parameters
    ----------
    hub_id
        `owner/name`.
    parts
        Of `config`, `weights` and `tokenizer`.
    cache
        A folder, laid out by huggingface_hub.
    commit
        By default the newest one.

    Raises
    ------
    FetchError
        If the repository does not exist or is not accessible, or the hub cannot be reached.
    OSError
        If the cache cannot be written.
    """
    api = _api()
    with _as_fetch_error(hub_id):
        info = api.model_info(hub_id, revision=commit, timeout=TIMEOUT_S, files_metadata=True)
        known = {file.rfilename: file.size for file in info.siblings or []}

        def read(name: str) -> Any:
            path = api.hf_hub_download(hub_id, name, revision=info.sha, cache_dir=cache)
            return json.loads(Path(path).read_text(encoding="utf-8"))

        names = model_files.chosen(known, parts, read)
        folder = api.snapshot_download(hub_id, revision=info.sha, cache_dir=cache, allow_patterns=names)
        sizes = _sizes(folder, names)
        for name in names:
            if known[name] not in {None, sizes[name]}:  # damaged in the cache, which compares names only
                api.hf_hub_download(hub_id, name, revision=info.sha, cache_dir=cache, force_download=True)
        sizes = _sizes(folder, names)
        if torn := [name for name in names if known[name] not in {None, sizes[name]}]:
            raise FetchError(f"{torn[0]} has {sizes[torn[0]]} of {known[torn[0]]} bytes; run `dsnb prepare` again")
    return Snapshot(Path(folder), str(info.sha), sizes)


def _sizes(folder: str, names: list[str]) -> dict[str, int]:
    return {name: os.path.getsize(os.path.join(folder, name)) for name in names}


def host() -> str:
    """Return the host name of the hub, without the rest of its address, which may hold a secret."""
    return urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co").hostname or "the hub"


def _api() -> Any:
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise SettingsError("huggingface_hub is missing: pip install 'dsnb[train]'") from error
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)


@contextmanager
def _as_fetch_error(hub_id: str) -> Iterator[None]:
    """Turn errors into a FetchError without their own texts, which may contain signed addresses."""
    from huggingface_hub import errors

    try:
        yield
    except FetchError as error:
        raise FetchError(f"{hub_id}: {error}") from None
    except (errors.RepositoryNotFoundError, errors.GatedRepoError, errors.HFValidationError) as error:
        advice = "check the name, or log in (`hf auth login`) if it is private or gated"
        raise FetchError(f"{hub_id}: {host()} has no such model for you; {advice}") from error
    except Exception as error:  # each version of huggingface_hub raises other errors of its HTTP client
        written = isinstance(error, OSError) and error.errno and not isinstance(error, ConnectionError | TimeoutError)
        if written and not isinstance(error, errors.EntryNotFoundError):
            raise
        answer = getattr(getattr(error, "response", None), "status_code", None)
        why = f"it answered {answer}" if answer else type(error.__cause__ or error).__name__
        raise FetchError(why, unreachable=True) from error
