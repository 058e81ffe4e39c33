"""Names of hosts as salted hashes: rows of one machine belong together, and nobody can tell which machine it is.

The salt is random and stays in the configuration folder of the contributor. Without it, the names that
a cluster could have cannot be tried one by one.
"""

import hashlib
import hmac
import os
import secrets
from pathlib import Path

import platformdirs

from dsnb.base.errors import SettingsError

SALT_BYTES = 32
DIGITS = 12
"""Hexadecimal digits of a hash: among a million hosts, two are alike with a probability of 0.2 %."""


def salt_file() -> Path:
    """Return the path of the contributor's salt."""
    return platformdirs.user_config_path("dsnb", appauthor=False) / "contribute.salt"


def salt() -> bytes:
    """Return the contributor's salt; the first call makes it, readable by its owner only."""
    file = salt_file()
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "w", encoding="ascii") as made:
            made.write(secrets.token_hex(SALT_BYTES))
    text = file.read_text(encoding="ascii", errors="replace").strip()
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != SALT_BYTES:
        raise SettingsError(
            f"{file} is no salt of {SALT_BYTES} bytes: remove it, and the next call makes another one"
        )
    return found


def hashed(name: str, secret: bytes) -> str:
    """Return the salted hash of a host's name."""
    digest = hmac.new(secret, name.encode("utf-8", "replace"), hashlib.sha256)
    return f"host-{digest.hexdigest()[:DIGITS]}"
