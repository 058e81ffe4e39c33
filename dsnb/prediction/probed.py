"""Probes of machines (`dsnb probe`), kept in the user's cache, and what they tell of the time model's constants."""

import contextlib
import json
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsnb.errors import SettingsError
from dsnb.files import records
from dsnb.prediction import gpus
from dsnb.prediction.gpus import GpuSpec
from dsnb.prediction.step_time import Constants
from dsnb.run_folder import paths

if TYPE_CHECKING:
    from dsnb.prediction.predict import On

REFERENCE: dict[str, Any] = json.loads(Path(__file__).with_name("probe_reference.json").read_text(encoding="utf-8"))
"""The probe of a host with H200 like those that the constants were fitted on, as `dsnb probe --output` writes it; with
`is_measured: false` there is none yet, and nothing is adjusted."""
REFERENCE_GPU = "H200"
HOST = {"launch_us": "host_launch_us", "parameter_us": "host_parameter_us", "gather_us": "host_gather_us"}
"""Figure -> constant of the host, in microseconds."""
RATES = {
    "matmul_tflops": "matmul_efficiency",
    "unaligned_tflops": "unaligned_efficiency",
    "attention_tflops": "attention_efficiency",
    "memory_gb_per_s": "memory_efficiency",
    "host_link_gb_per_s": "host_link_efficiency",
    "link_gb_per_s": "link_efficiency",
}
"""Figure -> constant that says how much of a rate of the data sheet is reached."""
WORST, BEST = 0.05, 20.0
"""Ratios beyond these are errors of measurement."""


def save(record: dict[str, Any]) -> Path | None:
    """Keep a probe in the user's cache, one for each host and GPU; None if there is no cache."""
    name = re.sub(r"[^a-z0-9]+", "-", f"{record['host']} {record['gpu_name'] or 'cpu'}".lower()).strip("-")
    if (home := paths.cache_home()) is None:
        return None
    file = home / "probes" / f"{name}.json"
    records.write_json(file, record)
    return file


def stored(gpu: str, host: str | None = None) -> dict[str, Any] | None:
    """Return the newest probe of a GPU, of this host (or of `host`) if there is one; None if there is none."""
    home, host = paths.cache_home(), host or socket.gethostname()
    found = []
    for file in sorted((home / "probes").glob("*.json")) if home else ():
        record = records.read_json(file) or {}
        with contextlib.suppress(SettingsError):
            if isinstance(record.get("figures"), dict) and gpus.find(str(record.get("gpu_name"))).name == gpu:
                found.append(record)
    return max(found, key=lambda one: (one.get("host") == host, str(one.get("date_utc"))), default=None)


def ratios(record: dict[str, Any], reference: dict[str, Any] = REFERENCE) -> dict[str, float]:
    """Return for each constant that a probe tells of by how much to multiply it: below 1 for less of a rate or time."""
    own, usual = record["figures"], reference["figures"]
    known = [name for name in (*HOST, *RATES) if _is_number(own.get(name)) and _is_number(usual.get(name))]
    found = {}
    for name in known:
        ratio = own[name] / usual[name]
        if name in RATES:
            ratio *= _nominal(gpus.GPUS[REFERENCE_GPU], name) / _nominal(gpus.find(record["gpu_name"]), name)
        if WORST < ratio < BEST:
            found[(HOST | RATES)[name]] = ratio
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and value > 0


def _nominal(gpu: GpuSpec, figure: str) -> float:
    """Return the rate of the data sheet that a figure is a share of, in the figure's unit."""
    if figure.endswith("tflops"):
        return gpu.half_tflops
    link = gpu.nvlink_gb_per_s or gpu.pcie_gb_per_s
    return {"memory_gb_per_s": gpu.memory_gb_per_s, "host_link_gb_per_s": gpu.pcie_gb_per_s}.get(figure, link)


def adjusted(constants: Constants, by: dict[str, float]) -> Constants:
    """Return constants multiplied by ratios; what is a share stays at most 1."""
    changed = {name: getattr(constants, name) * ratio for name, ratio in by.items()}
    capped = {name: min(1.0, value) if name in RATES.values() else value for name, value in changed.items()}
    return replace(constants, **capped)


def applied(on: "On") -> "On":
    """Return the time model with what the stored probe of its GPU tells, and a sentence that says so."""
    record = stored(on.gpu.name)
    by = ratios(record) if record else {}
    if not on.link.nvlink:
        by.pop("link_efficiency", None)
    return replace(on, constants=adjusted(on.constants, by), probe=sentence(record, by)) if record and by else on


def sentence(record: dict[str, Any], by: dict[str, float]) -> str:
    """Return which probe was used, and how the machine compares."""
    host = f", which launches {1 / by['host_launch_us']:.2g} times as fast as usual" if "host_launch_us" in by else ""
    return f"probe of {record['host']}{host}, {str(record.get('date_utc'))[:10]}"
