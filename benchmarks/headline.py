"""The README's table of published benchmarks and what dsnb measured on H200: `python -m benchmarks.headline`.

Every figure is a median of `dsnb.published("h200")` or of the published table, in tokens/s a GPU. Runs that compute
something else (`dsnb.analysis.flags`) are left out.
"""

import pandas as pd

import dsnb
from dsnb.analysis.flags import Flag, flags
from dsnb.runs import labels
from dsnb.runs.literature import measured

FIGURE = "tokens_per_s_per_gpu"
SAME = ["model", "strategy", "zero_stage", "precision", "micro_batch_size", "seq_len", "lora_rank"]
"""Settings in which a row of ours is the published one."""
WORK = ["model", "micro_batch_size", "seq_len", "lora_rank"]
WORKS = {"dist_training_gpt2": 1, "lambda_1cc_opt": 8}
"""Tables of which rows were measured again, and on how many GPUs the published rows were taken."""
HEADER = [
    "| setting | published | dsnb, same settings | ratio | dsnb, fastest | with |",
    "|---|---|---|---|---|---|",
]


def sound(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that ended and whose losses are those of the settings that compute the same."""
    found = flags(runs, measured.steps("published: h200"))
    wrong = [Flag.LOSS in own for own in found["flags"]]
    return runs[(runs["status"] == "ok") & ~pd.Series(wrong, index=runs.index)]


def rows() -> list[str]:
    """Return the table's rows."""
    ours = sound(dsnb.published("h200"))
    return [
        line(row, ours)
        for name, gpus in WORKS.items()
        for row in dsnb.published(name).fillna({"lora_rank": 0}).query(f"gpus == {gpus}").to_dict("records")
    ]


def line(row: dict[str, object], ours: pd.DataFrame) -> str:
    """Return the row of one published setting."""
    same = alike(ours, row, SAME)
    same = same[(same["compile"] == "off") & (same["mixed_precision"] == "native")]
    best = alike(ours, row, WORK).groupby("experiment")[FIGURE].median().sort_values()
    known, again = float(str(row[FIGURE])), float(same[FIGURE].median())
    fastest = ours[ours["experiment"] == best.index[-1]].iloc[0]
    return (
        f"| {title(row)} | {known:,.0f} ({row['gpus']} {row['gpu_name']}) | {again:,.0f} "
        f"({labels.count(int(same['gpus'].iloc[0]), 'GPU')}, n = {len(same)}) | {again / known:.2f} "
        f"| {best.iloc[-1]:,.0f} | {way(fastest)} |"
    )


def alike(runs: pd.DataFrame, row: dict[str, object], names: list[str]) -> pd.DataFrame:
    """Return the runs that have a row's values of some settings."""
    return runs[(runs[names] == [row[name] for name in names]).all(axis=1)]


def title(row: dict[str, object]) -> str:
    """Name a published setting."""
    adapters = f", LoRA {row['lora_rank']:.0f}" if row["lora_rank"] else ""
    return f"{row['model']}{adapters}, ZeRO {row['zero_stage']:.0f}, {row['precision']}"


def way(run: pd.Series) -> str:
    """Name what makes a setting fast."""
    names = {"deepspeed": f"ZeRO {run['zero_stage']:.0f}", "plain": "plain loop", "ddp": "DDP", "fsdp": "FSDP"}
    parts = [
        names[run["strategy"]],
        run["precision"],
        {"reduce-overhead": "CUDA graphs", "default": "compiled"}.get(run["compile"]),
    ]
    every = run["checkpoint_every"]
    parts.append(f"one block in {every:.0f} recomputed" if run["activation_checkpointing"] and every > 1 else None)
    return ", ".join(str(part) for part in parts if part)


def main() -> None:
    """Print the table."""
    print("\n".join([*HEADER, *rows()]))


if __name__ == "__main__":
    main()
