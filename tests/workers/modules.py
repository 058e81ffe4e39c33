import json
import sys
from pathlib import Path


def main(run_dir: str) -> int:
    """Write down which modules are loaded in a rank that is about to train."""
    from dsnb.train import worker  # noqa: F401

    (Path(run_dir) / "modules.json").write_text(json.dumps(sorted(sys.modules)))
    return 0
