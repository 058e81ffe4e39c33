"""Run folders of dsnb's own runs on H200, made of the data set again, with names that must not leave a machine."""

import functools
import json
from pathlib import Path

import dsnb
from dsnb.results.literature import tables
from dsnb.settings.experiment import DEFAULTS
from dsnb.settings.records.columns import FIGURES, KEYS, TEXTS, declared
from dsnb.settings.records.paths import SweepPaths
from dsnb.settings.training import text

REPEATED = "zs0_bf16_gpus1_bs32_sl1024_autocast_compile-reduce-overhead"
"""A setting of `h200_gpt2` with seven undisturbed runs on six hosts."""
SHORTAGE = "gpt2-xl_zs1_bf16_gpus1_bs26_sl1024"
"""A setting of `h200_foretold` that ran out of memory."""
USER = "jdoe4711"
HOME = f"/home/{USER}"
PRIVATE_VARIABLES = {
    "CUDA_HOME": f"{HOME}/cuda",
    "NCCL_TOPO_FILE": f"{HOME}/topology.xml",
    "NCCL_SOCKET_IFNAME": "secretnic7",
    "CUDA_VISIBLE_DEVICES": "GPU-5e3f0a51",
}
PUBLIC_VARIABLES = {"OMP_NUM_THREADS": "4", "NCCL_NVLS_ENABLE": "0"}
SECRETS = (
    USER, "home", "cluster.example.org", "login", "topology", "secretnic7", "GPU-5e3f0a51", "diary",
    "loss-experiments", "h200-2026",
)  # fmt: skip
"""Parts of names that are in the records, and must be in no byte that leaves."""
ENVIRONMENT = (
    "cpu", "cores", "driver", "python", "torch", "cuda", "nccl", "deepspeed", "transformers",
    "power_source", "dsnb", "git_commit", "date_utc",
)  # fmt: skip


def published():
    """Return the rows that the folder is made of."""
    runs = dsnb.published("h200")
    repeated = runs[(runs["sweep"] == "h200_gpt2") & (runs["experiment"] == REPEATED)]
    shortage = runs[runs["experiment"] == SHORTAGE]
    return [*repeated.to_dict("records"), *shortage.to_dict("records")]


def write(folder: Path, changes=None, rows=None) -> Path:
    """Write the run folders; `changes` is name of a file -> a function that changes its record."""
    steps = recorded_steps()
    sweep = SweepPaths(folder / f"{USER}-loss-experiments")
    for row in rows or published():
        run = sweep.run(row["experiment"], row["repeat"])
        run.dir.mkdir(parents=True)
        of_run = (steps[KEYS] == [row[name] for name in KEYS]).all(axis=1)
        lines = steps[of_run].drop(columns=KEYS).to_dict("records")
        records = {
            "experiment": _settings(row),
            "environment": _environment(row),
            "result": _result(row),
            "steps": [_known(line) for line in lines],
        }
        for name, change in (changes or {}).items():
            change(records[name])
        for name in ("experiment", "environment", "result"):
            getattr(run, name).write_text(json.dumps(records[name]))
        run.steps.write_text("".join(json.dumps(line) + "\n" for line in records["steps"]))
        run.console.write_text(f"Traceback in {HOME}/diary/train.py\n")
    return folder


@functools.cache
def recorded_steps():
    """Return the steps of these runs."""
    steps = tables.steps("published: h200")
    return steps[steps["experiment"].isin([REPEATED, SHORTAGE])]


def _known(row):
    return {name: value for name, value in row.items() if text(value) != "-"}


def _settings(row):
    known = {name: value for name, value in _known(row).items() if name in DEFAULTS}
    known.pop("deepspeed", None)
    for name, value in known.items():
        if isinstance(DEFAULTS[name], int):
            known[name] = type(DEFAULTS[name])(value)
    inputs = {f"{HOME}/diary/config.json": "0123456789abcdef"}
    return {**known, "device": "cuda", "nvme_path": f"{HOME}/nvme", "inputs": inputs, "steps": None}


def _environment(row):
    known = {name: str(row[name]) for name in ENVIRONMENT if name in _known(row)}
    return {
        **known,
        "cores": int(row["cores"]),
        "host": f"login-{row['host']}.cluster.example.org",
        "gpus": [{"name": row["gpu_name"], "memory_gib": row["gpu_memory_gib"]}],
        "variables": {**PRIVATE_VARIABLES, **PUBLIC_VARIABLES},
    }


def _result(row):
    known = _known(row)
    figures = {name: known[name] for name in (*FIGURES, *TEXTS) if name in known}
    figures["note"] = f"see {HOME}/diary"
    phases = {name.removesuffix("_s"): known[name] for name in declared("phases") if name in known}
    return {
        "status": row["status"],
        "cause": known.get("cause"),
        "exit_codes": {"0": 0},
        "phases_s": phases,
        "summary": figures,
    }
