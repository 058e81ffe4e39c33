"""`dsnb prepare`: fetches what the runs of a params file read from the Hugging Face hub, for nodes without a network.

huggingface_hub keeps it in its own cache, continues interrupted downloads, and finds the token by itself.
"""

import os
import shlex
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from dsnb.errors import FetchError, SettingsError
from dsnb.settings import inputs
from dsnb.settings.inputs import ExternalItem
from dsnb.sweep.params import load_sweep


def prepare(params: str | Path, home: Path | None = None) -> list[str]:
    """Fetch all items of the hub that the runs of a params file need to `home`, by default `$HF_HOME`.

    Returns a line for each item and one that says how runs find them. A FetchError names everything that is missing;
    what could be fetched is kept.
    """
    items: dict[str, ExternalItem] = {}
    for run in load_sweep(params).runs:
        for item in inputs.external_items(run.experiment.model_dump()):
            if item.hub_id:
                items[item.hub_id] = replace(item, parts=item.parts | items.get(item.hub_id, item).parts)
    if not items:
        return ["nothing to fetch: presets with random weights, synthetic tokens, stdlib and bytes need none"]
    try:
        from huggingface_hub import constants
    except ImportError as error:
        raise SettingsError("huggingface_hub is missing: pip install 'dsnb[train]'") from error
    home = (home or Path(constants.HF_HOME)).absolute()
    lines, troubles = [], []
    for item in items.values():
        was_there = inputs.cached_folder(item, home / "hub") is not None
        try:
            if not was_there:
                _fetch(item, home / "hub")
            lines.append(f"{'already there' if was_there else 'fetched'}: {item}")
        except FetchError as error:
            troubles.append(f"{item} cannot be fetched: {error}")
    if troubles:
        raise FetchError("\n".join(troubles))
    return [*lines, f"Runs read from there without a network: export HF_HOME={shlex.quote(str(home))} HF_HUB_OFFLINE=1"]


def _fetch(item: ExternalItem, cache: Path) -> None:
    """Fetch an item, with errors in words of ours: those of huggingface_hub may contain signed addresses."""
    from huggingface_hub import HfApi, errors

    endpoint = os.environ.get("HF_ENDPOINT") or None
    host = urlsplit(endpoint or "https://huggingface.co").hostname
    api, hub_id = HfApi(endpoint=endpoint), str(item.hub_id)
    try:
        names = [file.rfilename for file in api.model_info(hub_id, timeout=30.0).siblings or []]
        api.snapshot_download(hub_id, cache_dir=cache, allow_patterns=inputs.chosen(names, item.parts))
    except FetchError:
        raise
    except (errors.RepositoryNotFoundError, errors.GatedRepoError, errors.HFValidationError) as error:
        advice = "check the name, or log in (`hf auth login`) if it is private or gated"
        raise FetchError(f"{host} has no such model for you; {advice}") from error
    except Exception as error:  # each version of huggingface_hub raises other errors of its HTTP client
        if isinstance(error, OSError) and error.errno and not isinstance(error, ConnectionError | TimeoutError):
            raise  # the cache cannot be written
        raise FetchError(f"{host} cannot be reached ({type(error.__cause__ or error).__name__})") from error
