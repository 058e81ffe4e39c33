"""How a run ended that was a Slurm job: what the run itself wrote, and where it could not, what Slurm says."""

from collections.abc import Callable, Sequence

from dsnb.launcher.figures import summarize_run
from dsnb.run_folder import record_schema
from dsnb.run_folder.paths import RunPaths, SweepPaths
from dsnb.run_folder.result import Result, last_lines
from dsnb.settings.experiment import Experiment
from dsnb.sweep import job
from dsnb.sweep.slurm.client import Record

ENDED_FROM_OUTSIDE = {"TIMEOUT", "DEADLINE", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED", "CANCELLED"}
SIGNALS = {-15, -9}
LOG_NOT_WRITTEN = 53
"""Slurm's own "signal" for a job whose log it could not open."""
SHARED = "is the outputs folder on a file system that the nodes share?"

Failed = Callable[[str], Sequence[str]]
"""Gives those of a job's nodes that have failed."""


def final_result(run: RunPaths, number: str, record: Record | None, failed_nodes: Failed) -> Result:
    """Give the result of a job that has ended, and write it where the job could not.

    What a run says of itself stands, unless it says only that it was interrupted, or killed, and Slurm says by what.
    """
    known = job.recorded(run)
    by_slurm = record is not None and record.state in ENDED_FROM_OUTSIDE
    cut_short = known is not None and (known.status == "interrupted" or SIGNALS & set(known.exit_codes.values()))
    if known and not (by_slurm and cut_short):
        return known
    status, cause = job_status(run, number, record, failed_nodes)
    before = known or Result("", None, {}, {}, {}, run.dir)
    summary = before.summary or _measured(run)
    result = Result(status, cause, before.exit_codes, before.phases_s, summary, run.dir)
    result.write()
    return result


def job_status(run: RunPaths | SweepPaths, number: str, record: Record | None, failed_nodes: Failed) -> tuple[str, str]:
    """Give status and cause by what Slurm says of a job."""
    if record is None:
        return "interrupted", f"Slurm no longer knows job {number}, and it left no result in {run.dir}: {SHARED}"
    who, where = f"job {number}", record.nodes or "its nodes"
    if record.state == "FAILED":
        return "failed", _failure(run, who, record)
    if record.state == "NODE_FAIL":
        bad = ", ".join(failed_nodes(record.nodes))
        return "failed", f"{who} ended with its node: {bad or f'one of {where}'} failed"
    limit = f" of {record.time_limit}" if record.time_limit else ""
    by_whom = f" by user {record.by_user}" if record.by_user else ""
    told = {
        "COMPLETED": ("failed", f"completed but left no result in {run.dir}: {SHARED}"),
        "OUT_OF_MEMORY": ("oom", f"used more host memory on {where} than it asked for: --sbatch-option mem=... asks"),
        "TIMEOUT": ("timeout", f"was ended by Slurm at its time limit{limit}: raise --time, or lower steps"),
        "DEADLINE": ("timeout", "was ended by Slurm at its deadline"),
        "BOOT_FAIL": ("failed", f"did not start: a node of {where} did not boot"),
        "PREEMPTED": ("interrupted", "was preempted by another job"),
        "CANCELLED": ("interrupted", f"was cancelled{by_whom}"),
    }
    status, cause = told.get(record.state, ("failed", f"ended as {record.state}"))
    return status, f"{who} {cause}"


def _failure(run: RunPaths | SweepPaths, who: str, record: Record) -> str:
    if record.signal == LOG_NOT_WRITTEN:
        return f"{who} did not start: {record.nodes} cannot write {run.job_log}: {SHARED}"
    how = f"was killed by signal {record.signal}" if record.signal else f"ended with exit code {record.exit_code}"
    said = last_lines(run.job_log, 1)
    return f"{who} {how}" + (f": {said[0]}" if said else "")


def _measured(run: RunPaths) -> dict[str, object]:
    """Give the figures of the steps that a run made before it was killed."""
    settings = record_schema.read(run.experiment) or {}
    if not isinstance(settings.get("micro_batch_size"), int):  # it was still being searched for
        return {}
    return summarize_run(Experiment.recorded(settings), run)
