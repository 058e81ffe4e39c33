"""Probes of machines (`dsnb probe`), kept in the user's cache, and the constants of the time model that follow."""

import json
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsnb.base.files import cache, json_files
from dsnb.prediction import tuned
from dsnb.prediction.gpus import GpuSpec, find, known_gpu
from dsnb.prediction.step_time import Constants

REFERENCE: dict[str, Any] = json.loads(
    Path(__file__).with_name("probe_reference.json").read_text(encoding="utf-8")
)
"""Probe of a host for which the constants hold, as `dsnb probe --output` writes it; `about`
describes it."""
HOST = {
    "launch_us": "host_launch_us",
    "parameter_us": "host_parameter_us",
    "gather_us": "host_gather_us",
}
"""Figure -> constant of the host, in microseconds."""
RATES = {
    "matmul_tflops": "matmul_efficiency",
    "unaligned_tflops": "unaligned_efficiency",
    "attention_tflops": "attention_efficiency",
    "memory_gb_per_s": "memory_efficiency",
    "host_link_gb_per_s": "host_link_efficiency",
    "link_gb_per_s": "link_efficiency",
}
"""Figure -> constant for the share of a data sheet's rate that is reached."""
PROBE = tuned.numbers("probe")


def save(record: dict[str, Any]) -> Path | None:
    """Keep a probe in the user's cache, one for each host and GPU; None if there is no cache."""
    home = cache.home()
    if home is None:
        return None
    words = f"{record['host']} {record['gpu_name'] or 'cpu'}".lower()
    name = re.sub(r"[^a-z0-9]+", "-", words).strip("-")
    file = home / "probes" / f"{name}.json"
    json_files.write_json(file, record)
    return file


def stored(gpu: str) -> dict[str, Any] | None:
    """Return the newest probe of a GPU, of this host if there is one; None if there is none."""
    home = cache.home()
    files = sorted((home / "probes").glob("*.json")) if home else []
    of_gpu = []
    for file in files:
        record = json_files.read_json(file) or {}
        spec = known_gpu(str(record.get("gpu_name")))
        if isinstance(record.get("figures"), dict) and spec and spec.name == gpu:
            of_gpu.append(record)
    host = socket.gethostname()
    return max(
        of_gpu, key=lambda one: (one.get("host") == host, str(one.get("date_utc"))), default=None
    )


def ratios(record: dict[str, Any], reference: dict[str, Any]) -> dict[str, float]:
    """Return the factor for each constant that a probe determines: its figure over that of the reference."""
    factors = {}
    for name, constant in (HOST | RATES).items():
        probed = record["figures"].get(name)
        usual = reference["figures"].get(name)
        if not all(isinstance(value, int | float) and value > 0 for value in (probed, usual)):
            continue
        ratio = probed / usual
        if name in RATES:
            ratio *= _nominal(find(reference["gpu_name"]), name)
            ratio /= _nominal(find(record["gpu_name"]), name)
        if PROBE.least_ratio < ratio < PROBE.most_ratio:
            factors[constant] = ratio
    return factors


def _nominal(gpu: GpuSpec, figure: str) -> float:
    """Return the data sheet's rate for a figure, in the figure's unit."""
    if figure.endswith("tflops"):
        return gpu.half_tflops * gpu.product_gain
    if figure == "memory_gb_per_s":
        return gpu.memory_gb_per_s * gpu.memory_gain
    if figure == "host_link_gb_per_s":
        return gpu.pcie_gb_per_s
    return gpu.nvlink_gb_per_s or gpu.pcie_gb_per_s


def adjusted(constants: Constants, by: dict[str, float]) -> Constants:
    """Return constants changed by the ratios of a probe: the host's by their root, and shares end at 1."""
    changed = {}
    for name, ratio in by.items():
        usual = getattr(constants, name)
        if name in HOST.values():
            changed[name] = usual * ratio**PROBE.trust
        else:
            changed[name] = min(1.0, usual * ratio)
    return replace(constants, **changed)
