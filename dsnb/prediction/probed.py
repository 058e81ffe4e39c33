"""Probes of machines (`dsnb probe`), kept in the user's cache, and the constants of the time model that follow."""

import contextlib
import json
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsnb.base.errors import SettingsError
from dsnb.base.files import cache, json_files
from dsnb.prediction import gpus
from dsnb.prediction.gpus import GpuSpec
from dsnb.prediction.step_time import Constants

REFERENCE: dict[str, Any] = json.loads(
    Path(__file__).with_name("probe_reference.json").read_text(encoding="utf-8")
)
"""Probe of a host for which the constants hold, as `dsnb probe --output` writes it; `about` describes it."""
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
TRUST = 0.5
"""Exponent of a host's ratio: launches of a host drift by a factor of 1.7 within seconds. Over eleven hosts 0.25 is 0.2
points better; hosts that differ more deserve more trust (docs/LOG.md)."""
WORST, BEST = 0.05, 20.0
"""Ratios beyond these are errors of measurement."""


def save(record: dict[str, Any]) -> Path | None:
    """Keep a probe in the user's cache, one for each host and GPU; None if there is no cache."""
    name = re.sub(
        r"[^a-z0-9]+", "-", f"{record['host']} {record['gpu_name'] or 'cpu'}".lower()
    ).strip("-")
    if (home := cache.home()) is None:
        return None
    file = home / "probes" / f"{name}.json"
    json_files.write_json(file, record)
    return file


def stored(gpu: str) -> dict[str, Any] | None:
    """Return the newest probe of a GPU, of this host if there is one; None if there is none."""
    home, host, of_gpu = cache.home(), socket.gethostname(), []
    for file in sorted((home / "probes").glob("*.json")) if home else ():
        record = json_files.read_json(file) or {}
        with contextlib.suppress(SettingsError):
            if (
                isinstance(record.get("figures"), dict)
                and gpus.find(str(record.get("gpu_name"))).name == gpu
            ):
                of_gpu.append(record)
    return max(
        of_gpu,
        key=lambda record: (record.get("host") == host, str(record.get("date_utc"))),
        default=None,
    )


def ratios(record: dict[str, Any], reference: dict[str, Any]) -> dict[str, float]:
    """Return the factor for each constant that a probe determines: its figure over that of the reference."""
    factors = {}
    for name, constant in (HOST | RATES).items():
        probed, usual = record["figures"].get(name), reference["figures"].get(name)
        if not all(isinstance(value, int | float) and value > 0 for value in (probed, usual)):
            continue
        ratio = probed / usual
        if name in RATES:
            ratio *= _nominal(gpus.find(reference["gpu_name"]), name) / _nominal(
                gpus.find(record["gpu_name"]), name
            )
        if WORST < ratio < BEST:
            factors[constant] = ratio
    return factors


def _nominal(gpu: GpuSpec, figure: str) -> float:
    """Return the data sheet's rate for a figure, in the figure's unit."""
    if figure.endswith("tflops"):
        return gpu.half_tflops * gpu.product_gain
    link = gpu.nvlink_gb_per_s or gpu.pcie_gb_per_s
    memory = gpu.memory_gb_per_s * gpu.memory_gain
    return {"memory_gb_per_s": memory, "host_link_gb_per_s": gpu.pcie_gb_per_s}.get(figure, link)


def adjusted(constants: Constants, by: dict[str, float]) -> Constants:
    """Return constants changed by the ratios of a probe: the host's by their root, and shares end at 1."""
    changed = {}
    for name, ratio in by.items():
        usual = getattr(constants, name)
        changed[name] = usual * ratio**TRUST if name in HOST.values() else min(1.0, usual * ratio)
    return replace(constants, **changed)
