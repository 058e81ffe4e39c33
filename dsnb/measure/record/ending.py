"""The records at the healthy end of a recorded training: what its ranks have measured together."""

import math
from collections import defaultdict
from typing import Any

import torch

from dsnb.base.system import own_memory
from dsnb.measure.record.ranks import Ranks
from dsnb.measure.record.skew import compare
from dsnb.measure.record.steps import Row

WAIT_S = 60.0
"""Maximum time for the other ranks to end their last step."""
OVER_RANKS = ("loss", "tokens")
"""Figures of a step of which every rank has its own."""
IN_A_STEP = ("micro_batch_size", "grad_accum", "gpus", "seq_len")
"""Settings whose product is the tokens of a step."""


def of_rank(
    rows: list[Row], peak_gib: dict[str, float], alloc_retries: int | None, lengths: set[int]
) -> dict[str, Any]:
    """Return what a rank tells rank 0 when its training has ended."""
    columns = ("step_time_s", *OVER_RANKS)
    return {
        **{name: [row.get(name) for row in rows] for name in columns},
        "peak_gib": peak_gib,
        "alloc_retries": alloc_retries,
        "lengths": sorted(lengths),
        "host_peak_gib": own_memory.gib("status", "VmHWM"),
        "first_bad_step": first_bad_step(rows),
    }


def first_bad_step(rows: list[Row]) -> int | None:
    """Return the first step whose loss or gradients are not finite; a step that was skipped has done no harm."""
    for row in rows:
        figures = [row.get("loss"), row.get("grad_norm")]
        is_bad = any(figure is not None and not math.isfinite(figure) for figure in figures)
        if is_bad and not row.get("skipped"):
            return int(row["step"])
    return None


def gathered(ranks: Ranks, own: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what all ranks have measured, on rank 0; elsewhere tell it, and return nothing."""
    if ranks.rank:
        ranks.tell(f"end/{ranks.rank}", own)
        return []
    others = ranks.ask_all("end", range(1, ranks.count), WAIT_S)
    return [own, *(told or {} for _, told in others)]


def lengths(ranks: list[dict[str, Any]]) -> set[int] | None:
    """Return the lengths of sequences that ranks saw; None if one of them saw none."""
    seen: set[int] = set()
    for rank in ranks:
        of_this = rank.get("lengths")
        if not of_this:
            return None
        seen.update(of_this)
    return seen


def has_one_length(
    rows: list[Row], ranks: list[dict[str, Any]], settings: dict[str, Any], sharing: int
) -> bool:
    """Return whether all sequences had the length that the first ones had; the last batch may have fewer."""
    seen = lengths(ranks)
    if seen is not None:
        return seen == {settings.get("seq_len")}
    sizes: list[Any] = [settings.get(name) for name in IN_A_STEP]
    if None in sizes:
        return False
    expected = math.prod(sizes) / sharing
    return all(row.get("tokens", expected) == expected for row in rows)


def over_ranks(rows: list[Row], ranks: list[dict[str, Any]], sharing: int) -> list[Row]:
    """Return rank 0's steps with the mean loss, and the tokens of all ranks, of which `sharing` see the same."""
    changed = []
    for number, own in enumerate(rows):
        row = dict(own)
        losses = _of_step(ranks, "loss", number)
        tokens = _of_step(ranks, "tokens", number)
        row.pop("tokens", None)
        if None not in tokens:
            row["tokens"] = round(sum(tokens) / sharing)
        if None not in losses:
            row["loss"] = math.fsum(losses) / len(losses)
        changed.append(row)
    return changed


def _of_step(ranks: list[dict[str, Any]], name: str, number: int) -> list[Any]:
    columns = [rank.get(name) or [] for rank in ranks]
    return [column[number] if number < len(column) else None for column in columns]


def figures(rows: list[Row], ranks: list[dict[str, Any]], on_host: int) -> dict[str, Any]:
    """Return the figures of a run over all ranks, under the names of `worker.json`."""
    timed = [number for number, row in enumerate(rows) if row["phase"] == "timed"]
    times_s = [_of_timed(rank, timed) for rank in ranks]
    complete = [times for times in times_s if len(times) == len(timed)]
    skew = compare(torch.tensor(complete)) if len(complete) == len(ranks) else {}
    retries = [rank["alloc_retries"] for rank in ranks if rank.get("alloc_retries") is not None]
    bad = [rank["first_bad_step"] for rank in ranks if rank.get("first_bad_step")]
    host_gib: dict[int, float] = defaultdict(float)
    for number, rank in enumerate(ranks):
        host_gib[number // on_host] += rank.get("host_peak_gib") or 0.0
    return {
        **_peaks(ranks),
        "step_skew": skew.get("skew"),
        "rank_step_s": skew.get("means_s"),
        "slowest_rank": skew.get("slowest"),
        "host_memory_gib": max(host_gib.values()) or None,
        "rank_host_memory_gib": max(rank.get("host_peak_gib") or 0.0 for rank in ranks) or None,
        "alloc_retries": max(retries, default=None),
        "first_bad_step": min(bad, default=None),
    }


def _of_timed(rank: dict[str, Any], timed: list[int]) -> list[float]:
    times_s = rank.get("step_time_s") or []
    return [times_s[number] for number in timed if number < len(times_s)]


def _peaks(ranks: list[dict[str, Any]]) -> dict[str, float]:
    peaks: dict[str, float] = {}
    for rank in ranks:
        for name, gib in (rank.get("peak_gib") or {}).items():
            key = f"peak_{name}_gib"
            peaks[key] = max(gib, peaks.get(key, 0.0))
    return peaks


def spans(rows: list[Row]) -> dict[str, float]:
    """Return when the steps began and ended, in seconds since the launch."""
    timed = [row for row in rows if row["phase"] == "timed"]
    found = {"steps_from_s": rows[0]["t_s"] - rows[0]["step_time_s"]}
    if timed:
        found["timed_from_s"] = timed[0]["t_s"] - timed[0]["step_time_s"]
        found["timed_to_s"] = timed[-1]["t_s"]
    return found


def phases_s(rows: list[Row]) -> dict[str, float]:
    """Return the seconds until the first step, of the warm-up, and of the timed steps, pauses included."""
    began_s = rows[0]["t_s"] - rows[0]["step_time_s"]
    phases = {"build": began_s}
    for phase in ("warmup", "timed"):
        ends_s = [row["t_s"] for row in rows if row["phase"] == phase]
        if ends_s:
            phases[phase] = ends_s[-1] - began_s
            began_s = ends_s[-1]
    return phases
