"""Advice for runs that are not ok, and the words of their causes: what `advice.toml` says."""

import tomllib
from pathlib import Path

_TABLES = tomllib.loads(Path(__file__).with_name("advice.toml").read_text("utf-8"))
BY_STATUS: dict[str, str] = _TABLES["by_status"]
PHASES: dict[str, str] = _TABLES["phases"]
"""Phase of a failed rank -> its name in a sentence."""
MACHINE_FAULTS: dict[str, str] = _TABLES["machine_faults"]
"""Texts of errors that the machine causes, not the settings, and what to do."""
NOTES: dict[str, str] = _TABLES["notes"]
"""Fact that limits the figures of a run -> the sentence about it, which may name other facts."""
SLOW_KERNELS: dict[str, str] = _TABLES["slow_kernels"]
"""The sentence about attention or loss kernels that take too long, and its causes."""
SLURM_STATES: dict[str, tuple[str, str]] = _TABLES["slurm"]
"""Final state of a job -> status of its run if that left no result, and what to do; other states are waited for."""
