"""Records a training that is not dsnb's: `dsnb.record` for any loop, and the base of the callback for Trainer.

The recorder ends steps where the script says so, waits for nothing between the first and the last
of them, and never ends a script: only settings that contradict what the script does are an error.
"""

import contextlib
import math
import os
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist

from dsnb.base.errors import DsnbWarning, SettingsError
from dsnb.base.files import json_files
from dsnb.base.system import launch_clock, own_memory
from dsnb.measure.record import ending, failure, seen, stated
from dsnb.measure.record.batches import Batches
from dsnb.measure.record.built import describe, flops_of
from dsnb.measure.record.exits import Exited, ExitWatch, Stopped
from dsnb.measure.record.failure import Position
from dsnb.measure.record.folder import Folder
from dsnb.measure.record.gpus import GpuSampler, gpu_uuid
from dsnb.measure.record.ranks import Ranks, device_of
from dsnb.measure.record.steps import Row, Steps, on_this_rank
from dsnb.settings.records.paths import RunPaths

SWITCH = "DSNB"
"""Environment variable that switches recording off: `DSNB=off`."""
OWN = "own"
"""The program of a loop that is nobody's but the user's."""
MODEL_PARALLEL = ("tensor_parallel", "pipeline_parallel")
"""Settings that say how many ranks work on the same tokens."""
MEET_S = 10.0
"""Maximum time for the ranks of a host to find each other after the first step."""


def is_off() -> bool:
    """Return whether the user has switched recording off."""
    return os.environ.get(SWITCH, "").lower() in {"off", "0", "false", "no"}


def record(
    run_dir: str | Path | None = None,
    *,
    model: Any = None,
    warmup_steps: int = 10,
    steps: int | None = None,
    **settings: Any,
) -> "Recording":
    r"""Record the training of your own loop as a run folder that dsnb reads like those of its own runs.

    Call it on every rank, when the model is ready to train.

    Parameters
    ----------
    run_dir
        The run folder; by default that of dsnb's launcher, if it started the script, else the next free one under
        `outputs/own`.
    model
        What the loop calls: a module, or one that DDP, FSDP, DeepSpeed, accelerate or torch.compile has wrapped. It
        shows most settings.
    warmup_steps
        Steps before the timed ones; if the training is shorter than twice as many, the first half of it.
    steps
        Timed steps, after which the record is complete and recording stops; by default all until the end.
    **settings
        Settings of dsnb that the training does not show, such as `optimizer="adamw"`; `program` names the loop.

    Returns
    -------
    Recording
        A context manager. Call `step` after every optimizer step; it returns true once all `steps` are measured.

    Raises
    ------
    SettingsError
        If there is no such setting, or, after the first step, if the training contradicts one.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Embedding(10, 4)
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> with dsnb.record("mine/run1", model=model, warmup_steps=1, optimizer="adamw") as run:
    ...     for step in range(3):
    ...         tokens = torch.ones(2, 8, dtype=torch.long)
    ...         loss = model(tokens).sum()
    ...         loss.backward()
    ...         optimizer.step()
    ...         _ = run.step(tokens=tokens.numel(), loss=loss)
    >>> runs = dsnb.load_runs("mine")
    >>> print(runs[["status", "micro_batch_size", "seq_len", "timed_steps"]].to_string(index=False))
    status  micro_batch_size  seq_len  timed_steps
        ok                 2        8            2
    """
    recording = Recording(run_dir, warmup_steps, steps, settings)
    recording.watch(model)
    return recording


class Recording:
    """A training while it is recorded; made by `record`."""

    def __init__(
        self,
        run_dir: str | Path | None,
        warmup_steps: int,
        steps: int | None,
        settings: dict[str, Any],
        program: str = OWN,
    ) -> None:
        self._stated = stated.checked(settings)
        self._program = str(self._stated.pop(stated.PROGRAM, program))
        self._given_dir = run_dir
        self._warmup_steps = warmup_steps
        self._wanted_steps = steps
        self._position = Position("unknown")
        self._lock = threading.RLock()
        self._over = is_off()
        self._begun = False
        self._model: Any = None
        self._engine: Any = None
        self._found: dict[str, Any] = {}
        self._graphs = 0
        self._tokens: list[Any] = []
        self._losses: list[Any] = []
        self.first_step = 1
        """Number of the first step by the script's own count, which goes on after a checkpoint."""
        self.planned_steps: int | None = None
        """Steps that the training will take, as far as it is known."""
        self.arguments: dict[str, Any] | None = None
        """Settings in the arguments of a trainer; None for a loop without one."""
        self.is_complete = False
        """Whether all steps that were asked for are measured."""

    def watch(self, model: Any) -> None:
        """Begin to record the training of a model."""
        self._model = model
        self._engine = next(filter(seen.is_engine, seen.layers_of(model)), None)
        has_ranks = dist.is_available() and dist.is_initialized()
        if has_ranks or int(os.environ.get("WORLD_SIZE", "1")) == 1:
            self._begin()

    def _begin(self) -> None:
        """Begin; where ranks join their process group later, with the first step."""
        if self._over or self._begun:
            return
        self._ranks = Ranks()
        self._device = device_of(self._model)
        self._folder = Folder(self._given_dir, self._ranks)
        planned = self._folder.planned()
        self._warmup_steps = planned.get("warmup_steps", self._warmup_steps)
        self._wanted_steps = planned.get("steps", self._wanted_steps)
        if self.planned_steps and not planned:
            self._warmup_steps = min(self._warmup_steps, self.planned_steps // 2)
        self._batches = Batches(self._model)
        self._position.watch_memory(self._device)
        self._position.step = 1
        self._ranks.introduce({"gpu": gpu_uuid(self._device)})
        self._sampler = GpuSampler(self._folder.began_s)
        self._updates = getattr(self._engine, "global_steps", 0)
        if self._engine is not None:
            self.first_step = self._updates + 1
        self._steps = Steps(self._device, self._folder.began_s)
        self._exits = ExitWatch(self._end_by)
        self._begun = True
        if not self._warmup_steps:
            self._begin_timed()

    def step(
        self, tokens: Any = None, loss: Any = None, grad_norm: Any = None, skipped: Any = None
    ) -> bool:
        """End a step: call it after each optimizer step; with an engine of DeepSpeed, calls in between do no harm.

        Parameters
        ----------
        tokens
            Tokens of this rank in the step; by default those that the model saw.
        loss, grad_norm
            Numbers or tensors, which are not read here.
        skipped
            Whether the update was skipped, as by an fp16 loss scaler.

        Returns
        -------
        bool
            Whether all steps that were asked for are measured.
        """
        if self._over:
            return self.is_complete
        if not self._begun:
            self._begin()
            return False
        self._tokens.append(tokens)
        self._losses.append(loss)
        if self._engine is not None:
            if self._engine.global_steps == self._updates:
                return False
            self._updates = self._engine.global_steps
            if grad_norm is None:
                grad_norm = self._engine.get_global_grad_norm()
            if skipped is None:
                skipped = not self._engine.was_step_applied()
        if not self._steps.count:
            self._check_agreement()
        with self._harmless():
            self._end_step(grad_norm, skipped)
        return self.is_complete

    def _check_agreement(self) -> None:
        try:
            stated.check_agreement(self._stated, self._seen())
        except SettingsError:
            self._let_go()
            raise

    @contextlib.contextmanager
    def _harmless(self) -> Iterator[None]:
        """End the recording, not the script, if a record cannot be written."""
        try:
            yield
        except Exception as error:
            self._let_go()
            warnings.warn(
                f"the recording has ended: {type(error).__name__}: {error}",
                DsnbWarning,
                stacklevel=4,
            )

    def _end_step(self, grad_norm: Any, skipped: Any) -> None:
        number = self._steps.count + 1
        figures = {
            "loss": _mean(self._losses),
            "tokens": self._tokens_of_step(),
            "grad_norm": on_this_rank(grad_norm),
            "skipped": skipped,
        }
        self._losses.clear()
        self._tokens.clear()
        self._steps.end_step("timed" if number > self._warmup_steps else "warmup", figures)
        self._position.step = number + 1
        if number == 1:
            self._open_folder()
        if number == self._warmup_steps:
            self._begin_timed()
        if self._wanted_steps and number >= self._warmup_steps + self._wanted_steps:
            self.close()

    def _tokens_of_step(self) -> Any:
        """Return the tokens of a step on this rank: as given, as seen, or by the settings that are stated."""
        seen_tokens = self._batches.take_tokens()
        given = [tokens for tokens in self._tokens if tokens is not None]
        if given:
            return sum(given[1:], start=given[0])
        if seen_tokens is not None:
            return seen_tokens
        known = {"grad_accum": 1, **(self.arguments or {}), **self._stated}
        sizes = [known.get(name) for name in ("micro_batch_size", "grad_accum", "seq_len")]
        return math.prod(sizes) if all(sizes) else None

    def _begin_timed(self) -> None:
        own_memory.reset_peak()
        self._steps.reset_peaks()
        self._graphs = seen.compiled_graphs()

    def _open_folder(self) -> None:
        """Write what the first step has shown."""
        found = self._seen()
        neighbours = self._ranks.meet(MEET_S)
        if self._ranks.rank == 0:
            run = self._open(found)
            if run is not None:
                self._steps.write_to(run.steps)
                model = seen.model_name(self._model)
                observed = {"program": self._program, "model": model, "settings": found}
                json_files.write_json(run.observed, observed)
        if self._ranks.local_rank == 0 and not self._folder.is_launched:
            run = self._open(found, may_create=False)
            if run is not None:
                self._sampler.start(
                    run.gpu, [gpu_uuid(self._device), *(n["gpu"] for n in neighbours)]
                )
        self._steps.resume()

    def _seen(self) -> dict[str, Any]:
        if self._steps.count > 1:
            return self._found
        self._found = seen.settings(
            self._model, self._ranks, self._batches, self._device, self.arguments
        )
        return self._found

    def _open(self, found: dict[str, Any], may_create: bool = True) -> RunPaths | None:
        """Return the run folder; the first rank that needs it creates it."""
        settings = stated.complete(self._stated, found)
        settings["model"] = settings["model"] or seen.model_name(self._model)
        settings["steps"] = self._wanted_steps
        settings["warmup_steps"] = self._warmup_steps
        if self._wanted_steps is None and self.planned_steps:
            settings["steps"] = self.planned_steps - self._warmup_steps
        about = {"program": self._program, "first_step": self.first_step}
        is_new = self._folder.run is None
        run = self._folder.open(settings, about, may_create)
        config = seen.config_of(self._model)
        if run is not None and is_new and config is not None and not run.model.exists():
            json_files.write_json(run.model, config)
        return run

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Leave the block out of all steps: an evaluation, or a checkpoint."""
        if self._over or not self._begun:
            yield
            return
        self._steps.leave()
        try:
            yield
        finally:
            if not self._over:
                self._steps.come_back()

    def resume(self) -> None:
        """Begin the next step here: what came since the last one belongs to none."""
        if self._begun and not self._over:
            self._steps.resume()

    def add(self, step: int, figures: dict[str, Any]) -> None:
        """Add figures to a step that has just ended; they become known later."""
        if self._begun and not self._over:
            self._steps.add(step, figures)

    def close(self) -> None:
        """End the recording of a training that has reached its end; the ranks wait for their last step."""
        with self._lock:
            if self._over or not self._begun:
                return
            self._over = True
        with self._harmless():
            self._complete()

    def _complete(self) -> None:
        self._steps.finish()
        rows = self._steps.rows
        wanted = self._wanted_steps
        self.is_complete = wanted is not None and len(rows) >= self._warmup_steps + wanted
        self._let_go()
        if not rows:
            self._fail(Exited("the training ended without a step"))
            return
        is_short = len(rows) <= self._warmup_steps
        if self._folder.planned() or not self._wanted_steps or is_short:
            self._warmup_steps = min(self._warmup_steps, len(rows) // 2)
        lengths = self._batches.lengths
        own = ending.of_rank(rows, self._steps.peak_gib, self._steps.alloc_retries, lengths)
        ranks = ending.gathered(self._ranks, own)
        self._steps.close()
        if ranks:
            self._write(rows, ranks)

    def _write(self, rows: list[Row], ranks: list[dict[str, Any]]) -> None:
        """Write the records of all ranks, on rank 0."""
        run = self._open(self._found)
        if run is None:
            return
        settings = stated.complete(self._stated, self._found)
        sharing = math.prod(settings.get(name) or 1 for name in MODEL_PARALLEL)
        for row in rows:
            row["phase"] = "timed" if row["step"] > self._warmup_steps else "warmup"
        rows = ending.over_ranks(rows, ranks, sharing)
        json_files.write_lines(run.steps, rows)
        changed: dict[str, Any] = {
            "warmup_steps": self._warmup_steps,
            "steps": len(rows) - self._warmup_steps,
        }
        if not ending.has_one_length(rows, ranks, settings, sharing):
            changed["seq_len"] = self._stated.get("seq_len")
        self._folder.write_settings(changed)
        worker = {
            "program": self._program,
            **describe(self._model, self._device),
            **ending.figures(rows, ranks, self._ranks.on_host),
            **ending.spans(rows),
            "recompilations": max(0, seen.compiled_graphs() - self._graphs),
            "phases_s": ending.phases_s(rows),
            "ended_s": launch_clock.now_s() - self._folder.began_s,
            **flops_of(run, settings | changed),
        }
        json_files.write_json(run.worker, worker)
        with self._folder.locked():
            self._folder.finish()

    def _end_by(self, error: BaseException) -> None:
        """End the recording of a training that an error has ended, in whatever state its ranks are."""
        with self._lock:
            if self._over:
                return
            if self._is_end_of_loop(error):
                self.close()
                return
            self._over = True
            with contextlib.suppress(Exception):  # the script's error must be the one that is seen
                self._fail(error)

    def _is_end_of_loop(self, error: BaseException) -> bool:
        """Return whether a script without a `with` block, or a call of `close`, has simply come to its end."""
        if not isinstance(error, Exited) or error.code or self.arguments is not None:
            return False
        return self._begun and self._steps.count > 0

    def give_up(self, reason: str) -> None:
        """End the recording of a training that has ended without a word, perhaps because memory ran out."""
        error: Exception = Exited(reason)
        if self._position.failed_allocation:
            error = torch.OutOfMemoryError(f"an allocation failed, and {reason}")
        self._end_by(error)

    def _fail(self, error: BaseException) -> None:
        if not self._begun:
            return  # its ranks have not found each other
        with contextlib.suppress(Exception):
            self._steps.flush()
        run = self._open(self._seen())
        if run is not None:
            with self._folder.locked():
                self._record_failure(run, error)
                self._folder.finish()
        with contextlib.suppress(Exception):
            self._steps.close()
        self._let_go()

    def _record_failure(self, run: RunPaths, error: BaseException) -> None:
        rank = self._ranks.rank
        if isinstance(error, KeyboardInterrupt):
            ended = {"rank": rank, "status": "interrupted", "cause": "stopped by the user"}
            self._folder.add_failure(ended)
        elif isinstance(error, Stopped):
            ended = {"rank": rank, "status": "interrupted", "cause": str(error)}
            self._folder.add_failure(ended, is_consequence=True)
            self._folder.note_missing()
        elif isinstance(error, Exited | SystemExit):
            self._folder.add_failure({"rank": rank, "status": "failed", "cause": _exit_text(error)})
        elif isinstance(error, Exception):
            self._position.phase = failure.part_of_step(error) or "unknown"
            failure.record(run, rank, self._position, error)
            self._folder.note_missing()

    def _let_go(self) -> None:
        """Leave the script as it was."""
        self._over = True
        self._batches.close()
        self._sampler.stop()
        self._exits.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        with contextlib.suppress(Exception):  # ranks may not have joined a group
            self._begin()
        self._end_by(error)


def _exit_text(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"the script ended with exit code {error.code or 0} before its training did"
    return str(error)


def _mean(values: list[Any]) -> Any:
    """Return the mean of the losses of a step that are known."""
    known = [on_this_rank(value) for value in values]
    known = [value for value in known if value is not None]
    if len(known) < 2:
        return known[0] if known else None
    if all(map(torch.is_tensor, known)):
        return torch.stack([value.detach().double().mean() for value in known]).mean()
    return math.fsum(map(float, known)) / len(known)
