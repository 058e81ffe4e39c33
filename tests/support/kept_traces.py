"""Traces of models that the tests ask for, kept in the repository: `python -m tests.support.kept_traces`.

A fresh machine spends minutes on them. A trace is found by a hash of its settings, of the code that
makes it and of torch's and transformers' versions, so after a change of these the tests make it again;
the command then packs what `make test` and `make docs` have left in `.venv/cache`, which is to be
removed before. Traces of other code or versions are not unpacked, so they are not packed again either.
"""

import json
import lzma
from pathlib import Path
from typing import Any

from dsnb.base.files import json_files
from dsnb.prediction import traces
from tests import ROOT

CACHE = ROOT / ".venv" / "cache"
"""The cache of the tests, not the user's."""
KEPT = Path(__file__).with_name("traces.json.xz")


def kept() -> dict[str, Any]:
    """Return the traces that are kept, by their keys; none if other code or versions made them."""
    content = json.loads(lzma.decompress(KEPT.read_bytes()))
    if content["made_by"] != _made_by():
        return {}
    records: dict[str, Any] = content["traces"]
    return records


def _made_by() -> list[str]:
    """Return the versions of the libraries and the hash of the code that trace."""
    return list(traces._versions())


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
    content = {"made_by": _made_by(), "traces": records}
    text = json.dumps(content, separators=(",", ":"), sort_keys=True)
    json_files.write_bytes(KEPT, lzma.compress(text.encode(), preset=9))
    return len(records)


def main() -> None:
    """Keep the traces that the tests left in their cache."""
    print(f"{pack(CACHE)} traces in {KEPT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
