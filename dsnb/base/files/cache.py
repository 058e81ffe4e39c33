"""The user's cache: traces of models, probes of machines, and which number formats are fast here."""

import os
from pathlib import Path

import platformdirs


def home() -> Path | None:
    """Return the folder of the cache: `$DSNB_CACHE`, or the user's cache; None if there is none."""
    try:
        if (chosen := os.environ.get("DSNB_CACHE")) is not None:
            if chosen in {"", "off"}:
                return None
            return Path(chosen).expanduser()
        folder = platformdirs.user_cache_path("dsnb", appauthor=False)
    except RuntimeError:  # no home, or `~` of an unknown user
        return None
    return (
        folder if folder.is_absolute() else None
    )  # some versions return `~` as it is instead of raising
