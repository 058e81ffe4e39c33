"""Traces of models that the tests ask for, kept in the repository: `python -m tests.support.kept_traces`.

A fresh machine spends minutes on them. A trace is found by a hash of its settings, of the code that
makes it and of torch's and transformers' versions, so after a change of these the tests make it again;
the command then packs what `make test` and `make docs` have left in `.venv/cache`, which is to be
removed before.
"""

import json
import lzma
from pathlib import Path
from typing import Any

from dsnb.base.files import json_files
from tests import ROOT

CACHE = ROOT / ".venv" / "cache"
"""The cache of the tests, not the user's."""
KEPT = Path(__file__).with_name("traces.json.xz")


def kept() -> dict[str, Any]:
    """Return the traces that are kept, by their keys."""
    records: dict[str, Any] = json.loads(lzma.decompress(KEPT.read_bytes()))
    return records


def unpack(cache: Path) -> None:
    """Write the traces that a cache does not have."""
    for key, record in kept().items():
        file = cache / "traces" / f"{key}.json"
        if not file.exists():
            json_files.write_json(file, record)


def pack(cache: Path) -> int:
    """Keep the traces of a cache; return their number."""
    records = {}
    for file in sorted((cache / "traces").glob("*.json")):
        records[file.stem] = json_files.read_json(file)
    text = json.dumps(records, separators=(",", ":"), sort_keys=True)
    json_files.write_bytes(KEPT, lzma.compress(text.encode(), preset=9))
    return len(records)


def main() -> None:
    """Keep the traces that the tests left in their cache."""
    print(f"{pack(CACHE)} traces in {KEPT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
