"""The end of a run: `result.json`, whether the run is finished, and advice if it is not ok.

A run is finished if its records are complete, valid and agree with each other (`dsnb.settings.records.agreement`).
"""

import signal
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import nan
from pathlib import Path
from statistics import fmean
from typing import Any

from dsnb.base.errors import LaunchError
from dsnb.base.files import json_files
from dsnb.settings import checks
from dsnb.settings.experiment import DEFAULTS, Experiment, with_current_names
from dsnb.settings.records import agreement, record_schema
from dsnb.settings.records.agreement import TimedSteps
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.strategies import strategy

_RUN = RunPaths(Path())
TAIL_LINES = 15
ADVICE = {
    "nan": "lower learning_rate, or use precision bf16 or fp32",
    "untrained": "raise learning_rate, or, in fp16, warmup_steps until the loss scale has settled; use bf16 or fp32",
    "failed": "read the log; `dsnb doctor` says what this machine can run",
    "timeout": "raise the limit that it names, or lower steps or grad_accum",
    "interrupted": "start it again; a sweep repeats only its unfinished runs",
}


@dataclass(frozen=True)
class Shortage:
    """The settings and figures of a run that ran out of memory; figures are None if they are unknown."""

    settings: dict[str, Any]
    phase: str = ""
    """Phase of the failed rank (see `failures.jsonl`); empty if unknown."""
    of_host: bool = False
    """Whether host memory ran out rather than GPU memory."""
    capacity_gib: float | None = None
    """Available memory: `memory_limit_gib`, that of the smallest GPU, or the host's."""
    allocated_gib: float | None = None
    """Memory allocated when an allocation failed."""
    requested_gib: float | None = None
    """Size of the allocation that failed."""

    def advice(self) -> list[str]:
        """Return changes that would save memory, one sentence each."""
        return list(self._changes()) or ["use a smaller model, or a device with more memory"]

    def _changes(self) -> Iterator[str]:
        s = self.settings
        if limit_gib := s["memory_limit_gib"]:
            yield f"raise memory_limit_gib ({limit_gib:g})"
        if self.of_host:
            yield "free memory on the machine, request more of it under Slurm, offload less, or start fewer ranks"
        # Model states peak while they are built and updated, activations in the other phases.
        if s["device"] != "cuda" or not (self.of_host or self.phase in {"build", "optimizer"}):
            yield from self._fewer_activations()
        if not self.of_host:
            yield from self._smaller_states()

    def _fewer_activations(self) -> Iterator[str]:
        s, size = self.settings, self.settings["micro_batch_size"]
        if (
            s["loss"] == "whole"
            and self.phase in {"loss", "backward"}
            and self._is_allowed({"loss": "chunked"})
        ):
            yield "set loss to chunked"
        if isinstance(size, int) and size > 1:
            yield f"lower micro_batch_size ({size}); a higher grad_accum keeps the global batch"
        if s["checkpoint_every"] > 1:
            yield f"lower checkpoint_every ({s['checkpoint_every']})"
        elif not s["activation_checkpointing"] and self._is_allowed(
            {"activation_checkpointing": True}
        ):
            yield "turn activation_checkpointing on"
        yield f"lower seq_len ({s['seq_len']})"

    def _smaller_states(self) -> Iterator[str]:
        s = self.settings
        ranks = s["gpus"] // (s["tensor_parallel"] * s["pipeline_parallel"])
        if ranks == 1:
            yield "use several GPUs with zero_stage 3: on one, there is nothing to share the model states with"
        elif strategy(s["strategy"]).is_deepspeed:
            stages = (
                stage
                for stage in range(3, s["zero_stage"], -1)
                if self._is_allowed({"zero_stage": stage})
            )
            if stage := next(stages, None):
                yield f"raise zero_stage ({s['zero_stage']}) to {stage}: {ranks} ranks then share the model states"
        stage = max(s["zero_stage"], 1)
        if s["offload"] == "none" and self._is_allowed(
            {"zero_stage": stage, "offload": "optimizer-cpu"}
        ):
            yield f"move the optimizer states to host memory (zero_stage {stage}, offload optimizer-cpu)"
        elif s["offload"] == "optimizer-cpu" and self._is_allowed(
            {"zero_stage": 3, "offload": "all-cpu"}
        ):
            yield "move the weights to host memory too (zero_stage 3, offload all-cpu)"

    def _is_allowed(self, change: dict[str, Any]) -> bool:
        """Return whether a change breaks no rule, except rules about hosts."""
        before = {**self.settings, "hostfile": "", "include": "", "exclude": "", "nodes": 1}
        return set(checks.contradictions({**before, **change})) <= set(
            checks.contradictions(before)
        )


@dataclass(frozen=True, repr=False)
class Result:
    """One finished run: the content of `result.json`."""

    status: str
    cause: str | None
    exit_codes: dict[int, int]
    phases_s: dict[str, float]
    summary: dict[str, Any]
    run_dir: Path

    def write(self) -> None:
        """Write `result.json`, which marks the run as finished."""
        if not self.run_dir.is_dir():  # a result alone would be a run without settings
            raise LaunchError(f"{self.run_dir} was removed during the run: start the sweep again")
        record = {name: value for name, value in asdict(self).items() if name != "run_dir"}
        run = RunPaths(self.run_dir)
        if run.steps.exists():
            record["steps_bytes"] = run.steps.stat().st_size
        json_files.write_json(run.result, record)

    def __repr__(self) -> str:
        return f"<Result {self.status}: {self.run_dir}>"

    def shortage(self) -> Shortage | None:
        """Return the settings and figures of the memory shortage; None unless the status is `oom`."""
        if self.status != "oom":
            return None
        run = RunPaths(self.run_dir)
        settings = Experiment.recorded(record_schema.read(run.experiment) or {}).model_dump()
        machine = record_schema.read(run.environment) or {}
        # A rank that recorded where its memory ran out was not killed; the launcher kills its peers afterwards.
        was_killed = (
            self.summary.get("oom_phase") is None and -signal.SIGKILL in self.exit_codes.values()
        )
        of_host = settings["device"] != "cuda" or was_killed
        memory = [gpu["memory_gib"] for gpu in machine.get("gpus") or [] if gpu.get("memory_gib")]
        at_hand = machine.get("memory_gib") if of_host else min(memory, default=None)
        return Shortage(
            settings,
            self.summary.get("oom_phase") or "",
            of_host,
            settings["memory_limit_gib"] or at_hand,
            self.summary.get("oom_allocated_gib"),
            self.summary.get("oom_requested_gib"),
        )

    def advice(self) -> list[str]:
        """Return advice for a run that is not ok, one sentence each."""
        shortage = self.shortage()
        return (
            shortage.advice()
            if shortage
            else [ADVICE[self.status]]
            if self.status in ADVICE
            else []
        )

    def message(self) -> str:
        """Return status and cause with the last lines of the log and advice."""
        log = RunPaths(self.run_dir).console
        lines = [
            f"{self.status}: {self.cause}",
            *(f"  | {line}" for line in last_lines(log)),
            f"Log: {log}",
        ]
        return "\n".join([*lines, *(f"Next: {advice}" for advice in self.advice())])

    def raise_for_status(self) -> None:
        """Raise a LaunchError with `message()` unless the run is ok."""
        if self.status != "ok":
            raise LaunchError(self.message(), RunPaths(self.run_dir).console)


def last_lines(log: Path, count: int = TAIL_LINES) -> list[str]:
    """Return the last non-blank lines of a log of any size and encoding."""
    text = (json_files.read_end(log, 20_000) or b"").decode("utf-8", errors="replace")
    return [line[:400] for line in text.splitlines() if line.strip()][-count:]


def missing_record(
    settings: dict[str, Any] | None,
    environment: dict[str, Any] | None,
    result: dict[str, Any] | None,
    has_steps: bool,
) -> str | None:
    """Return what is missing for a run to count as finished; unless `ok`, settings and a status are enough."""
    status = result.get("status") if result else None
    if status is None:
        return "it was cut off before its end"
    if not settings or ("model" not in settings and settings.keys().isdisjoint(DEFAULTS)):
        return f"{_RUN.experiment} is missing or empty"
    if status != "ok":
        return None
    if not environment:
        return f"{_RUN.environment} is missing or empty"
    return None if has_steps else f"{_RUN.steps} is missing"


def check_readable(run: RunPaths) -> None:
    """Raise LaunchError if a record exists that cannot be read: the run may be finished, and must not be repeated."""
    for path in (run.result, run.experiment, run.environment, run.steps):
        try:
            json_files.read_file(path)
        except (
            FileNotFoundError,
            NotADirectoryError,
            ValueError,
        ):  # missing or damaged: the run is repeated
            continue
        except OSError as error:
            raise LaunchError(
                f"{path} cannot be read ({error.strerror}), and its run may be finished: make it readable, or choose "
                "another folder"
            ) from error


def unfinished(run: RunPaths) -> str | None:
    """Return why an ended run has to be executed again; None if its record is complete."""
    settings, environment, result = (
        json_files.read_json(path) for path in (run.experiment, run.environment, run.result)
    )
    settings = settings and with_current_names(settings)
    for path, record in (
        (run.experiment, settings),
        (run.environment, environment),
        (run.result, result),
    ):
        if record and (invalid := record_schema.wrong_values(path.name, record)[1]):
            return invalid
    missing = missing_record(settings, environment, result, run.steps.is_file())
    if missing or not settings or not result or result["status"] != "ok":
        return missing
    steps = [step for step in record_schema.read_lines(run.steps) if step.get("phase") == "timed"]
    return agreement.contradiction(settings, result, _together(steps))


def _together(timed: list[dict[str, Any]]) -> TimedSteps:
    """Return what the timed steps of a run say together."""
    times_s = [step["step_time_s"] for step in timed if step.get("step_time_s") is not None]
    tokens = [step["tokens"] for step in timed if step.get("tokens") is not None]
    return TimedSteps(
        len(timed),
        len({step.get("step") for step in timed}),
        fmean(times_s) if times_s else nan,
        fmean(tokens) if tokens else nan,
    )
