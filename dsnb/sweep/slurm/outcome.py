"""The result of a run in a Slurm job: what the run itself wrote, or else what Slurm reports."""

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
"""Slurm's "signal" of a job whose log it could not open."""
SHARED = "is the outputs folder on a file system that the nodes share?"

FailedNodes = Callable[[str], Sequence[str]]
"""Returns the failed ones of a job's nodes."""


def final_result(run: RunPaths, job_id: str, record: Record | None, failed_nodes: FailedNodes) -> Result:
    """Return the result of a job that has ended, and write it if the job could not.

    The result that a run wrote counts, unless it was interrupted or killed and Slurm knows the cause.
    """
    known = job.read_result(run)
    by_slurm = record is not None and record.state in ENDED_FROM_OUTSIDE
    cut_short = known is not None and (known.status == "interrupted" or SIGNALS & set(known.exit_codes.values()))
    if known and not (by_slurm and cut_short):
        return known
    status, cause = job_status(run, job_id, record, failed_nodes)
    before = known or Result("", None, {}, {}, {}, run.dir)
    summary = before.summary or _partial_summary(run)
    result = Result(status, cause, before.exit_codes, before.phases_s, summary, run.dir)
    result.write()
    return result


def job_status(
    run: RunPaths | SweepPaths, job_id: str, record: Record | None, failed_nodes: FailedNodes
) -> tuple[str, str]:
    """Return status and cause by Slurm's record of a job."""
    if record is None:
        return "interrupted", f"Slurm no longer knows job {job_id}, and it left no result in {run.dir}: {SHARED}"
    who, where = f"job {job_id}", record.nodes or "its nodes"
    if record.state == "FAILED":
        return "failed", _failure(run, who, record)
    if record.state == "NODE_FAIL":
        bad = ", ".join(failed_nodes(record.nodes))
        return "failed", f"{who} ended with its node: {bad or f'one of {where}'} failed"
    limit = f" of {record.time_limit}" if record.time_limit else ""
    by_user = f" by user {record.by_user}" if record.by_user else ""
    outcomes = {
        "COMPLETED": ("failed", f"completed but left no result in {run.dir}: {SHARED}"),
        "OUT_OF_MEMORY": (
            "oom",
            f"used more host memory on {where} than requested: set --sbatch-option mem=...",
        ),
        "TIMEOUT": ("timeout", f"was ended by Slurm at its time limit{limit}: raise --time, or lower steps"),
        "DEADLINE": ("timeout", "was ended by Slurm at its deadline"),
        "BOOT_FAIL": ("failed", f"did not start: a node of {where} did not boot"),
        "PREEMPTED": ("interrupted", "was preempted by another job"),
        "CANCELLED": ("interrupted", f"was cancelled{by_user}"),
    }
    status, cause = outcomes.get(record.state, ("failed", f"ended as {record.state}"))
    return status, f"{who} {cause}"


def _failure(run: RunPaths | SweepPaths, who: str, record: Record) -> str:
    if record.signal == LOG_NOT_WRITTEN:
        return f"{who} did not start: {record.nodes} cannot write {run.job_log}: {SHARED}"
    how = f"was killed by signal {record.signal}" if record.signal else f"ended with exit code {record.exit_code}"
    lines = last_lines(run.job_log, 1)
    return f"{who} {how}" + (f": {lines[0]}" if lines else "")


def _partial_summary(run: RunPaths) -> dict[str, object]:
    """Return the figures of the steps before a run was killed."""
    settings = record_schema.read(run.experiment) or {}
    if not isinstance(settings.get("micro_batch_size"), int):  # the search for it had not ended
        return {}
    return summarize_run(Experiment.recorded(settings), run)
