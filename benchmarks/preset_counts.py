"""Count the presets operator by operator and write `dsnb/prediction/preset_counts.json`.

Run it after a change of transformers, torch or `dsnb/models/observe`; needs torch and about a
minute, but no GPU. GPT-2, OPT and BLOOM are left out: `dsnb/prediction/families.toml` has their
counts.
"""

import json
from typing import Any

from dsnb.base.formulas.model_shapes import PRESETS
from dsnb.prediction import traces
from dsnb.prediction.shapes import PRESET_COUNTS


def main() -> None:
    """Write the counts of all published presets, a line each."""
    names = [name for name, preset in PRESETS.items() if not preset.has_formula]
    lines = [f"  {json.dumps(name)}: {json.dumps(counted(name))}" for name in names]
    PRESET_COUNTS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def counted(model: str) -> dict[str, Any]:
    """Return the record of a model, with the attention of the fewest blocks whose kinds all others repeat."""
    record = traces.counts(model)
    kinds = record["attention"]
    repeats = (n for n in range(1, len(kinds)) if kinds[n:] == kinds[:-n])
    return record | {"attention": kinds[: next(repeats, len(kinds))]}


if __name__ == "__main__":
    main()
