"""The callback for transformers' Trainer, and for all that is built on it."""

import os
from importlib import metadata
from pathlib import Path
from typing import Any

from transformers import TrainerCallback as BaseCallback

from dsnb.measure.record import seen
from dsnb.measure.record.recorder import Recording
from dsnb.settings.records import paths
from dsnb.settings.records.paths import RUN_DIR

LOGGED = ("loss", "grad_norm")
"""Figures of a step in the Trainer's log."""


class TrainerCallback(BaseCallback):  # type: ignore[misc]
    r"""Record a training of transformers' Trainer, or of what is built on it, as a run folder that dsnb reads.

    Steps are timed from end to end with their data loading; evaluation and saving belong to none.

    Parameters
    ----------
    run_dir, warmup_steps, steps, **settings
        As for `record`. Each further training with one callback has a run folder of its own.

    Examples
    --------
    >>> import torch, transformers
    >>> config = transformers.GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=16, n_positions=8)
    >>> rows = [{"input_ids": torch.ones(8, dtype=torch.long), "labels": torch.ones(8, dtype=torch.long)}] * 16
    >>> arguments = transformers.TrainingArguments(
    ...     "out", max_steps=4, per_device_train_batch_size=2, use_cpu=True, report_to="none", disable_tqdm=True
    ... )
    >>> trainer = transformers.Trainer(transformers.GPT2LMHeadModel(config), arguments, train_dataset=rows)
    >>> trainer.add_callback(dsnb.TrainerCallback("tiny/run1", warmup_steps=1))
    >>> _ = trainer.train()
    {'train_runtime': ...
    >>> runs = dsnb.load_runs("tiny")
    >>> print(runs[["status", "micro_batch_size", "seq_len", "timed_steps"]].to_string(index=False))
    status  micro_batch_size  seq_len  timed_steps
        ok                 2        8            3
    """

    def __init__(
        self,
        run_dir: str | Path | None = None,
        *,
        warmup_steps: int = 10,
        steps: int | None = None,
        **settings: Any,
    ) -> None:
        self._run_dir = run_dir
        self._options = (warmup_steps, steps, settings)
        self._trainings = 0
        self._recording = self._new("")

    def _new(self, program: str) -> Recording:
        return Recording(self._next_dir(), *self._options, program)

    def _next_dir(self) -> str | Path | None:
        """Return the given run folder, for a further training the next one beside it."""
        if self._run_dir is None or self._trainings < 2:
            return self._run_dir
        given = Path(self._run_dir)
        repeat = paths.repeat(given.name)
        if repeat is None:
            return given.with_name(f"{given.name}_{self._trainings}")
        return given.with_name(f"run{repeat + self._trainings - 1}")

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **others: Any
    ) -> None:
        """Begin to record; a training that has begun before ended with an error, such as a too large batch."""
        self._recording.give_up("another training began with the same callback")
        self._trainings += 1
        if RUN_DIR in os.environ and self._trainings > 1:
            return  # dsnb launches a folder for each training
        recording = self._new(program_of(args))
        arguments = seen.of_arguments(args, state)
        recording.arguments = arguments | seen.of_optimizer(others.get("optimizer"))
        recording.first_step = state.global_step + 1
        recording.planned_steps = max(0, state.max_steps - state.global_step)
        recording.watch(model)
        self._recording = recording

    def on_step_end(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **others: Any
    ) -> None:
        """End a step."""
        self._recording.step(skipped=getattr(optimizer, "step_was_skipped", None))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        """Add what the Trainer logs about the step that has just ended."""
        figures = {name: logs[name] for name in LOGGED if logs and name in logs}
        step = state.global_step - self._recording.first_step + 1
        self._recording.add(step, {name: float(value) for name, value in figures.items()})

    def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Leave an evaluation out of the next step."""
        self._recording.resume()

    def on_predict(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Leave a prediction out of the next step."""
        self._recording.resume()

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Leave a checkpoint out of the next step."""
        self._recording.resume()

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Complete the record."""
        self._recording.close()


def program_of(arguments: Any) -> str:
    """Return the program that trains, by the package that its arguments are of, and its version."""
    for kind in type(arguments).__mro__:
        package = kind.__module__.partition(".")[0]
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:  # the user's own
            continue
        if package == "transformers":
            return f"transformers Trainer {version}"
        return f"{package} {version}"
    return "transformers Trainer"
