"""The link that opens an issue of the project with a contribution's manifest already filled in."""

from collections.abc import Mapping
from importlib import metadata
from typing import Any
from urllib.parse import quote, urlsplit

from dsnb.base.errors import SettingsError
from dsnb.base.files.plain_text import short_repr
from dsnb.results.contribution import rows

MAX_LENGTH = 6000
"""Characters of a link: browsers and servers take 8,000 at least."""
LABEL = "contributed-rows"
URL_NAMES = ("repository", "source", "homepage")
"""Names of project URLs that may be those of the repository."""


def repository() -> str | None:
    """Return the address of the project's repository, from `project.urls` of pyproject.toml; None without one."""
    try:
        entries = metadata.metadata("dsnb").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        return None
    urls = {}
    for entry in entries:
        name, _, url = entry.partition(",")
        urls[name.strip().lower()] = url.strip()
    return next((urls[name] for name in URL_NAMES if name in urls), None)


def checked(url: str) -> str:
    """Return the address of a repository without a slash at its end; raise SettingsError for another text."""
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.netloc or parts.query or parts.fragment:
        raise SettingsError(
            f"project is {short_repr(url)}: give the address of a repository, such as "
            "https://github.com/OWNER/NAME"
        )
    return url.rstrip("/")


def title(manifest: Mapping[str, Any]) -> str:
    """Return the title of the issue."""
    gpus = ", ".join(manifest["gpus"])
    return f"Contributed rows: {manifest['runs']} runs of {manifest['settings']} settings on {gpus}"


def body_lines(manifest: Mapping[str, Any], made: list[rows.Row]) -> list[str]:
    """Return the lines of the issue: the manifest, then each setting with its runs."""
    lines = [
        f"I contribute the attached rows under {manifest['licence']}.",
        "",
        "Please drag a .zip of rows.parquet and manifest.json here.",
        "",
    ]
    lines += [f"- {name}: {_text(value)}" for name, value in manifest.items()]
    lines.append("")
    counts = rows.settings_of(made).value_counts(sort=False)
    lines += [f"- {count} x {name}" for name, count in counts.items()]
    return lines


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def issue(url: str, manifest: Mapping[str, Any], made: list[rows.Row]) -> str:
    """Return the link; lines that would make it too long are counted instead."""
    lines = body_lines(manifest, made)
    shown = len(lines)
    link = _link(url, manifest, lines)
    while len(link) > MAX_LENGTH and shown > 0:
        shown -= 1
        link = _link(url, manifest, [*lines[:shown], f"- and {len(lines) - shown} more lines"])
    return link


def _link(url: str, manifest: Mapping[str, Any], lines: list[str]) -> str:
    fields = {"labels": LABEL, "title": title(manifest), "body": "\n".join(lines)}
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in fields.items())
    return f"{url}/issues/new?{query}"
