"""Published tables in the columns of `dsnb.load_runs`, each row marked as published."""

from collections.abc import Callable
from typing import Any

import pandas as pd

from dsnb.errors import PublishedError
from dsnb.formulas import metrics
from dsnb.run_folder import paths
from dsnb.run_folder.columns import RUN_COLUMNS, RUN_NUMBERS
from dsnb.runs.literature import measured
from dsnb.runs.logs import rows
from dsnb.runs.logs.logged_run import DERIVED, PUBLISHED, LoggedRun
from dsnb.runs.table import as_runs, without_noise

TOKENS = 100e9
"""Tokens that the days of the BLOOM-7B1 table refer to."""
BIGSCIENCE_SCRIPT = {
    "zero_stage": 1,
    "precision": "fp16",
    "gradient_clipping": 1.0,
    "dropout": 0.1,
}
"""From the Slurm script tr3m-1B3-emb-norm-pile, which the 1.3B table refers to. Dropout is Megatron's default."""
ATTENTION = {
    "bigscience_1b3": "eager",
    "dist_training_gpt2": "auto",
    "jean_zay_bloom7b": "eager",
    "lambda_1cc_opt": "eager",
}
"""How attention was computed, which no table says.

Megatron of 2021 stored the scores, as `eager` does. transformers had only the eager one for BLOOM, and for OPT until
pull request 33298 of September 2024; Lambda's logs are of July 2024. For GPT-2, `auto` is `sdpa` since pull request
31172 of June 2024, before that table.
"""
CUMULATIVE_TIMER = 5.0
"""True tokens/s divided by published tokens/s of the GPT-2 table.

The benchmark's timer is cumulative in blocks of ten, and it reports the median over steps 21 to 63 of each epoch. The
logged rate at the k-th step of a block is the true rate divided by k, and the median k of those 43 steps is 5. The
table's mean step time agrees within 0.6 %: the mean k is 226/43. The time stamps in logs of the same program yield 5.00
and 5.12 (ZeRO 0 and 3 on an H200).
"""


def published(name: str) -> pd.DataFrame:
    """Load a published table.

    Parameters
    ----------
    name
        `bigscience_1b3`, `dist_training_gpt2`, `jean_zay_bloom7b`, `lambda_1cc_opt`, or one measured with dsnb
        (`measured.OWN`).

    Returns
    -------
    pandas.DataFrame
        One row per published figure in the columns of `load_runs`: `source` is `published: <name>`, and
        `provenance` says which figures are as published and which are derived.

    Raises
    ------
    PublishedError
        If there is no such table.
    """
    if name in measured.OWN:
        return as_runs(without_noise(measured.table(name)))
    if name not in TABLES:
        raise PublishedError(f"unknown published table {name!r}: choose one of {', '.join(names())}")
    raw = pd.read_csv(paths.literature(name))
    found = [_row(name, number, record) for number, record in enumerate(raw.to_dict("records"))]
    table = pd.DataFrame({column: [row.get(column) for row in found] for column in RUN_COLUMNS}, columns=RUN_COLUMNS)
    for column in RUN_NUMBERS:
        table[column] = pd.to_numeric(table[column])
    table["repeat"] += table.groupby("experiment").cumcount()  # the same settings were published twice
    return as_runs(without_noise(table))


def names() -> list[str]:
    """Return the names of all tables."""
    return [*TABLES, *measured.OWN]


def schedule() -> pd.DataFrame:
    """Load the batch-size ramp-up of the 1.3B benchmark.

    Returns
    -------
    pandas.DataFrame
        `gpu_name`, `nodes`, `global_batch_size`, `micro_batch_size`.
    """
    return pd.read_csv(paths.literature("bigscience_1b3_rampup"))


def _row(name: str, number: int, record: dict[str, Any]) -> dict[str, Any]:
    known = {key: value for key, value in record.items() if pd.notna(value)}
    run = LoggedRun(program=f"published: {name}", configured=True, ended=True)
    experiment = TABLES[name](run, known)
    if "gpu_name" in known:
        run.environment["gpu_name"] = str(known["gpu_name"])
    status = str(known.get("status", "ok"))
    repeat = int(known.get("repeat", 1))
    row = rows.row(run, paths.literature(name), {"sweep": name, "experiment": experiment, "repeat": repeat})
    notes = [str(known["note"])] if "note" in known else []
    return row | {
        "status": status,
        "cause": None if status == "ok" else f"published as {status}",
        "source": f"published: {name}",
        "note": "; ".join([*notes, *run.notes]) or None,
        "experiment": experiment,
        "run_dir": None,
    }


def _set(run: LoggedRun, known: dict[str, Any], *names: str, **renamed: str) -> None:
    """Set settings from columns of the same name, and `renamed` ones as setting=column."""
    for name, column in {**{name: name for name in names}, **renamed}.items():
        if column in known:
            value = known[column]
            run.set_used(**{name: int(value) if isinstance(value, float) and value.is_integer() else value})


def _bigscience(run: LoggedRun, known: dict[str, Any]) -> str:
    _set(run, known, "model", "nodes", "gpus", "micro_batch_size", "global_batch_size", "seq_len")
    _set(run, known, tensor_parallel="tp", pipeline_parallel="pp", data_parallel="dp")
    checkpointing = bool(known["activation_checkpointing"])
    run.set_used(activation_checkpointing=checkpointing, strategy="megatron-deepspeed", **BIGSCIENCE_SCRIPT)
    run.set_used(attention=ATTENTION["bigscience_1b3"])
    run.record(PUBLISHED, step_time_s=known.get("step_time_s"), hardware_tflops_per_gpu=known.get("tflops_per_gpu"))
    run.record(PUBLISHED, device_memory_gib=known.get("peak_mem_gb"))
    if "step_time_s" in known:
        run.record(DERIVED, samples_per_s=known["global_batch_size"] / known["step_time_s"])
        factor = metrics.flops_factor(False) / metrics.flops_factor(checkpointing)
        run.record(DERIVED, tflops_per_gpu=known["tflops_per_gpu"] * factor)
    run.notes.append("memory is printed in GB and taken as GiB; TFLOP/s without attention")
    sizes = [f"{axis}{known[axis]}" for axis in ("tp", "pp", "dp")]
    parts = [known["gpu_name"], *sizes, f"bs{known['micro_batch_size']}"]
    return "_".join([*map(str, parts), *(["ac"] if checkpointing else [])])


def _gpt2(run: LoggedRun, known: dict[str, Any]) -> str:
    _set(run, known, "model", "zero_stage", "precision", "gpus", "micro_batch_size", "seq_len")
    run.set_used(strategy="deepspeed", grad_accum=1, nodes=1, attention=ATTENTION["dist_training_gpt2"])
    rate = known["median_tokens_per_sec_median"]
    run.record(
        PUBLISHED,
        tokens_per_s_logged=rate,
        step_time_logged_s=known["avg_step_time_s_median"],
        peak_reserved_gib=known["peak_gpu_mem_mb_median"] / 1024,
        gpu_util_pct=known["avg_gpu_util_pct_median"],
    )
    run.record(DERIVED, tokens_per_s=rate * CUMULATIVE_TIMER)
    run.record(DERIVED, step_time_s=known["micro_batch_size"] * known["seq_len"] / (rate * CUMULATIVE_TIMER))
    run.notes.append(
        f"median of {known['repeats']} runs; published tokens/s come from a timer that is cumulative in blocks of ten "
        f"steps: {CUMULATIVE_TIMER:g} times as fast in truth"
    )
    return str(known["exp"])


def _bloom(run: LoggedRun, known: dict[str, Any]) -> str:
    _set(run, known, "model", "gpus", "strategy", "zero_stage", "optimizer", "micro_batch_size", "seq_len")
    _set(run, known, "grad_accum")
    run.set_used(activation_checkpointing=bool(known["activation_checkpointing"]))
    run.set_used(attention=ATTENTION["jean_zay_bloom7b"])
    run.set_used(
        gradient_compression=known.get("gradient_compression", "none")
    )  # the table names it wherever it is used
    if days := known.get("days_per_100b_tokens"):
        run.record(PUBLISHED, days_per_100b_tokens=days)
        run.record(DERIVED, tokens_per_s=metrics.tokens_per_s_of_days(TOKENS, days))
    run.notes.append(f"site {known['site']}")
    parts = [
        known["site"],
        known["strategy"],
        f"zs{known['zero_stage']:.0f}" if "zero_stage" in known else "",
        known.get("optimizer", "") if known.get("optimizer") != "adamw" else "",
        known.get("gradient_compression", ""),
        f"gpus{known['gpus']}_bs{known['micro_batch_size']}_sl{known['seq_len']}",
        f"ga{known['grad_accum']}" if known["grad_accum"] > 1 else "",
        "ac" if known["activation_checkpointing"] else "",
    ]
    return "_".join(filter(None, map(str, parts)))


def _lambda(run: LoggedRun, known: dict[str, Any]) -> str:
    _set(run, known, "gpus", "nodes", "model", "micro_batch_size", "grad_accum", "seq_len", "zero_stage", "precision")
    rank = int(str(known["method"]).removeprefix("lora")) if str(known["method"]).startswith("lora") else 0
    checkpointing = bool(known["activation_checkpointing"])
    run.set_used(activation_checkpointing=checkpointing, lora_rank=rank, strategy="deepspeed")
    run.set_used(attention=ATTENTION["lambda_1cc_opt"])
    run.record(PUBLISHED, samples_per_s=known["samples_per_s"])
    name = f"{known['model']}_zs{known['zero_stage']}_{known['precision']}_gpus{known['gpus']}"
    parts = [name, f"bs{known['micro_batch_size']}", f"sl{known['seq_len']}"]
    return "_".join([*parts, *(["ac"] if checkpointing else []), *([f"lora{rank}"] if rank else [])])


TABLES: dict[str, Callable[[LoggedRun, dict[str, Any]], str]] = {
    "bigscience_1b3": _bigscience,
    "dist_training_gpt2": _gpt2,
    "jean_zay_bloom7b": _bloom,
    "lambda_1cc_opt": _lambda,
}
"""Table -> function that fills in a run from a row and returns the name of its experiment."""
