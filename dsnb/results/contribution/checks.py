"""Which runs may be contributed: each check returns a sentence with the value, what is allowed and what to do.

The checks of a run read columns of `dsnb.load_runs` that contributed rows have as well, so CI makes the
same checks of rows that arrive.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from dsnb.base.errors import SettingsError
from dsnb.base.files.plain_text import short_repr
from dsnb.base.formulas.model_shapes import PRESETS, PUBLISHED
from dsnb.base.system import gpu_names
from dsnb.results.runs.table import timed_seconds
from dsnb.results.statistics.flags import Flag, flags
from dsnb.results.statistics.intervals import MIN_RUNS
from dsnb.settings import flat_keys
from dsnb.settings.experiment import Experiment
from dsnb.settings.records import advice, contributed
from dsnb.settings.training import text

MIN_TIMED_S = 10.0
"""Timed seconds that the runs of a setting need together."""
STATUSES = ("ok", "oom")
"""How a run may end that is contributed."""
RELEASE = re.compile(r"[0-9]+(\.[0-9]+){1,3}")
COMMIT = re.compile(str(contributed.pattern("git_commit")))
TOKENS_TOLERANCE = 0.01
MEMORY_TOLERANCE = 0.02
"""Drivers report up to this much more or less than the data sheet."""
GPU_MEMORY = ("gpu_memory_gib", "peak_allocated_gib", "peak_reserved_gib", "device_memory_gib")
DISTURBED = (
    Flag.STALLED, Flag.DRIFT, Flag.RECOMPILED, Flag.MEMORY_FULL, Flag.THROTTLED, Flag.LOSS,
    Flag.CONDITIONS, Flag.UNSTABLE,
)  # fmt: skip
"""Flags of runs whose figures are not those of their setting on an idle machine. An outlier is not among
them: leaving it out would make spreads look smaller than they are."""
_BUSY = advice.NOTES["is_busy"].partition("}")[2].partition(";")[0]
"""The constant part of the note about another process on a GPU."""
Run = Mapping[str, Any]
Check = Callable[[Run], str | None]


def known(run: Run, name: str) -> Any:
    """Return a value of a run; None if it is unknown."""
    value = run.get(name)
    return None if text(value) == "-" else value


def number(run: Run, name: str) -> float:
    """Return a figure of a run; NaN if it is unknown."""
    value = known(run, name)
    return math.nan if value is None else float(value)


def preset(model: object) -> str | None:
    """Return the preset that is meant by its name or by its name on the hub; None for another model."""
    if model in PRESETS:
        return str(model)
    shape = PUBLISHED.get(str(model))
    if shape is None:
        return None
    return next(name for name, other in PRESETS.items() if other is shape)


def version(run: Run) -> str | None:
    """Refuse runs of code that nobody else has."""
    released = known(run, "dsnb")
    commit = known(run, "git_commit")
    if released is None:
        return (
            "dsnb is unknown: only runs that dsnb made or recorded are collected; measure with dsnb"
        )
    if commit is not None and not COMMIT.fullmatch(str(commit)):
        return (
            f"git_commit is {short_repr(commit)}: only a released version or a clean commit is "
            "collected; commit your changes or undo them, and run the setting again"
        )
    if commit is None and not RELEASE.fullmatch(str(released)):
        return (
            f"dsnb is {short_repr(released)}: only a released version or a clean commit is "
            "collected; install a release, and run the setting again"
        )
    return None


def gpu(run: Run) -> str | None:
    """Refuse runs on GPUs without a data sheet, and on CPUs."""
    device = known(run, "device")
    if device != "cuda":
        return f"device is {short_repr(device)}: only runs on GPUs are collected; run the setting on a GPU"
    name = known(run, "gpu_name")
    if gpu_names.parse(str(name)) is None:
        return (
            f"gpu_name is {short_repr(name)}: only GPUs with a data sheet in dsnb are collected "
            "(`dsnb recommend --list`); propose its line of gpus.csv first"
        )
    return None


def model(run: Run) -> str | None:
    """Refuse models that cannot be predicted everywhere."""
    name = known(run, "model")
    if preset(name):
        return None
    return f"model is {short_repr(name)}: {contributed.allowed('model')}"


def keys(run: Run) -> str | None:
    """Refuse settings that have no column, whose names and values may be anything."""
    for name in run:
        if flat_keys.is_key(str(name)) and known(run, name) is not None:
            return (
                f"{name} is {short_repr(run[name])}: only settings with a column of their own leave "
                "the machine; run the setting without this key"
            )
    return None


def tokens(run: Run) -> str | None:
    """Refuse a speed that is not that of the tokens in a batch and the time of a step."""
    if known(run, "status") != "ok":
        return None
    rate = number(run, "tokens_per_s")
    step_s = number(run, "step_time_mean_s")
    try:
        of_step = Experiment.of_row(run).tokens_per_step
    except SettingsError as error:
        return f"the tokens of a step are unknown ({error}): state these settings where the run is made"
    measured = rate * step_s
    if math.isnan(measured):
        return "tokens_per_s or step_time_mean_s is unknown: an ok run needs both; run the setting again"
    if not math.isclose(measured, of_step, rel_tol=TOKENS_TOLERANCE):
        return (
            f"tokens_per_s x step_time_mean_s is {measured:,.0f} tokens: a batch of this setting has "
            f"{of_step:,.0f}; run the setting again, with sequences of equal length"
        )
    return None


def utilization(run: Run) -> str | None:
    """Refuse what no GPU can do."""
    mfu = number(run, "mfu")
    if mfu >= 1:
        return (
            f"mfu is {100 * mfu:.1f} %: a GPU cannot reach 100 % of its data sheet; "
            "check the clock and the GPU's name, and run the setting again"
        )
    return None


def memory(run: Run) -> str | None:
    """Refuse more memory than the GPU has."""
    capacity_gib = _capacity_gib(run)
    for name in GPU_MEMORY:
        used_gib = number(run, name)
        if used_gib > (1 + MEMORY_TOLERANCE) * capacity_gib:
            return (
                f"{name} is {used_gib:.1f} GiB: {known(run, 'gpu_name')} has {capacity_gib:.1f} GiB; "
                "check the GPU's name, and run the setting again"
            )
    return None


def _capacity_gib(run: Run) -> float:
    """Return the memory of a run's GPU by its data sheet; NaN for an unknown GPU."""
    parsed = gpu_names.parse(str(known(run, "gpu_name")))
    if parsed is None:
        return math.nan
    sheet = gpu_names.KINDS[parsed.kind][parsed.form]
    size = parsed.memory_gb or sheet.memory_gb[0]
    return sheet.memory_gib[sheet.memory_gb.index(size)]


def network(run: Run) -> str | None:
    """Refuse runs on several nodes whose network is unknown."""
    nodes = number(run, "nodes")
    if nodes > 1 and not str(known(run, "link")).startswith(("ib:", "eth:")):
        return (
            f"nodes is {nodes:.0f}: the network between them decides the speed; state it with --link, "
            "such as --link ib:400"
        )
    return None


CHECKS: tuple[Check, ...] = (
    version, gpu, model, keys, tokens, utilization, memory, network,
)  # fmt: skip


def disturbances(
    runs: pd.DataFrame,
    steps: pd.DataFrame | None = None,
    samples: Mapping[object, pd.DataFrame] | None = None,
) -> list[str | None]:
    """Return for each run a sentence about what disturbed it; None if nothing is known to."""
    found = flags(runs, steps, samples)
    notes = runs.get("note", pd.Series(index=runs.index, dtype=object))
    sentences: list[str | None] = []
    for of_run, flagged, note in zip(found["flags"], found["words"], notes, strict=True):
        signs = [str(flag) for flag in of_run if flag in DISTURBED]
        words = flagged
        if _BUSY in str(note):
            signs.append("another process on the GPU")
            words = "; ".join(filter(None, [flagged, str(note)]))
        if signs:
            sentences.append(
                f"it was disturbed ({', '.join(signs)}: {words}): only undisturbed runs are collected; "
                "run the setting again on an idle machine"
            )
        else:
            sentences.append(None)
    return sentences


def too_few(runs: pd.DataFrame, setting: "pd.Series[Any]") -> dict[Any, str]:
    """Return a sentence for each setting with too few ok runs or too little timed; `setting` names that of each run."""
    is_ok = runs["status"] == "ok"
    seconds = timed_seconds(runs)[is_ok].groupby(setting[is_ok], sort=False).sum()
    counts = setting[is_ok].groupby(setting[is_ok], sort=False).count()
    short = {}
    for name, count in counts.items():
        if count >= MIN_RUNS and seconds[name] >= MIN_TIMED_S:
            continue
        short[name] = (
            f"{count} ok run{'s' if count > 1 else ''} with {seconds[name]:.1f} timed seconds: a "
            f"setting needs {MIN_RUNS} runs and {MIN_TIMED_S:.0f} s; repeat it, or mark such settings "
            "with --single"
        )
    return short


def of_run(run: Run) -> list[str]:
    """Return a sentence for each check that a run fails."""
    return [sentence for sentence in (check(run) for check in CHECKS) if sentence]
