"""What is stated of a training or seen in a run: its settings, its speed, and signs of what slows it down."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dsnb.base.errors import SettingsError
from dsnb.prediction.alike import usual_names
from dsnb.prediction.calibration import model_of
from dsnb.settings.experiment import DEFAULTS
from dsnb.settings.records.columns import MASKED
from dsnb.settings.training import text


@dataclass(frozen=True)
class Seen:
    """Signs of what a step waits for; None where they are unknown."""

    real_tokens: float | None = None
    """Share of the tokens that are no padding."""
    masked: bool | None = None
    """Whether fused attention was given a mask."""
    gpu_util_pct: float | None = None
    cpu_bound: float | None = None
    """Share of the step in which the host set the pace."""
    alloc_retries: float | None = None
    sm_clock_mhz: float | None = None
    step_skew: float | None = None
    recompilations: float | None = None

    def __post_init__(self) -> None:
        if self.real_tokens is not None and not 0 < self.real_tokens <= 1:
            raise SettingsError(
                f"real tokens are {self.real_tokens:g} of all: give a share from 0 to 1, or in percent"
            )
        if self.gpu_util_pct is not None and not 0 <= self.gpu_util_pct <= 100:
            raise SettingsError(
                f"GPU utilization is {self.gpu_util_pct:g} %: give a figure from 0 to 100"
            )


@dataclass(frozen=True)
class Claim:
    """A speed and what is known of its training; a missing setting is unknown."""

    stated: Mapping[str, Any]
    """Settings by name, which are checked; with `recorded`, they name the model."""
    gpu: str
    link: str | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    """A share: 0.46, not 46."""
    tflops: float | None = None
    """TFLOP/s of a GPU."""
    samples_per_s: float | None = None
    step_s: float | None = None
    per_gpu: bool = False
    """Whether tokens/s and samples/s are those of one GPU."""
    program: str = ""
    model: str = ""
    """The model's name, if that is not its setting."""
    seen: Seen = field(default_factory=Seen)
    recorded: Mapping[str, Any] = field(default_factory=dict)
    """Settings as a run or a log has them, also those of other programs; what is stated wins."""

    def __post_init__(self) -> None:
        rates = {
            "tokens_per_s": self.tokens_per_s,
            "samples_per_s": self.samples_per_s,
            "step_s": self.step_s,
            "mfu": self.mfu,
            "tflops": self.tflops,
        }
        given = {name: rate for name, rate in rates.items() if rate is not None}
        if not given:
            raise SettingsError(
                "no speed is given: give tokens_per_s, samples_per_s, step_s, mfu or tflops"
            )
        wrong = [
            f"{name} is {rate!r}: give a finite number above 0"
            for name, rate in given.items()
            if not (rate > 0 and math.isfinite(rate))
        ]
        if wrong:
            raise SettingsError(wrong)


def share(value: float | None) -> float | None:
    """Return a share of 0 to 1 from one in per cent as well: 46 is 0.46, and 1.04 an MFU of 104 %."""
    if value is not None and value > MOST_SHARE:
        return value / 100
    return value


MOST_SHARE = 2.0
"""Values above are per cent; MFUs of up to 2 are stated where the peak is another GPU's."""


OWN_DATA = ("synthetic", "stdlib")
"""Data of dsnb's own loop, which have no padding."""


def of_row(row: Mapping[str, Any], stated: Mapping[str, Any], gpu: str, link: str | None) -> Claim:
    """Return the claim of a run's row; what the user states wins over the row.

    Raises SettingsError if the row has no speed, or nothing names the model and the GPU.
    """
    known = {str(name): value for name, value in row.items() if text(value) != "-"}
    model = known.get("model")
    known["model"] = model_of(known)
    recorded = {}
    for name in DEFAULTS.keys() - {"deepspeed"}:  # in tables, that is a version
        if known.get(name) is not None:
            recorded[name] = _typed(name, known[name])
    recorded = usual_names(recorded)
    for needed in ("model", "gpus"):
        if needed not in {*recorded, *stated}:
            raise SettingsError(f"the {needed} of these runs is unknown: say --set {needed}=VALUE")
    where = gpu or str(known.get("gpu_name", ""))
    if not where:
        raise SettingsError("the GPU of these runs is unknown: say --gpu NAME")
    masked = None
    if "attention_kernel" in known:
        masked = str(known["attention_kernel"]).endswith(MASKED)
    real_tokens = None
    if known.get("data") in OWN_DATA:
        real_tokens = 1.0
    return Claim(
        stated,
        where,
        link,
        tokens_per_s=_number(known, "tokens_per_s"),
        step_s=_number(known, "step_time_mean_s"),
        samples_per_s=_number(known, "samples_per_s"),
        program=str(known.get("program") or known.get("source") or ""),
        model=str(stated.get("model") or model),
        recorded=recorded,
        seen=Seen(
            real_tokens=real_tokens,
            masked=masked,
            gpu_util_pct=_number(known, "gpu_util_pct"),
            cpu_bound=_number(known, "cpu_bound"),
            alloc_retries=_number(known, "alloc_retries"),
            sm_clock_mhz=_number(known, "sm_clock_mhz"),
            step_skew=_number(known, "step_skew"),
            recompilations=_number(known, "recompilations"),
        ),
    )


def _number(known: Mapping[str, Any], name: str) -> float | None:
    value = known.get(name)
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None


def _typed(name: str, value: Any) -> Any:
    """Return a setting's value in its type: integers and truth values are floats in columns with gaps."""
    if isinstance(DEFAULTS[name], int):
        return type(DEFAULTS[name])(value)
    return value
