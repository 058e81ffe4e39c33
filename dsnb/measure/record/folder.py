"""The run folder of a recorded script: chosen by its ranks, filled as dsnb's own, and closed by the rank that ends it.

Under dsnb's launcher the folder exists, with the settings that were asked for, and the launcher
writes how the run ended.
"""

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dsnb.base.errors import SettingsError
from dsnb.base.files import json_files
from dsnb.base.formulas import model_shapes
from dsnb.base.system import hardware, launch_clock
from dsnb.measure.launcher import environment, outcome
from dsnb.measure.launcher.folder import check_free_space, clear, create_run_dir, writing
from dsnb.measure.launcher.outcome import Outcome
from dsnb.measure.launcher.run import finish
from dsnb.measure.record.ranks import Ranks
from dsnb.settings.experiment import Experiment
from dsnb.settings.records import paths
from dsnb.settings.records.paths import RUN_DIR, RunPaths
from dsnb.settings.records.run_record import RunRecord

OWN = "own"
"""Folder of the runs of scripts in that of all outputs."""
WAIT_S = 10.0
"""Maximum time for another rank to create the folder."""


class Folder:
    """The run folder of a script; `name` is None until the ranks have it."""

    def __init__(self, run_dir: str | Path | None, ranks: Ranks) -> None:
        launched = os.environ.get(RUN_DIR)
        self.is_launched = launched is not None and run_dir is None
        self.began_s = launch_clock.now_s()
        if self.is_launched:
            run_dir = launched
            self.began_s = float(os.environ.get(launch_clock.LAUNCHED_AT, self.began_s))
        self._given = None if run_dir is None else RunPaths(Path(run_dir).absolute())
        self._ranks = ranks
        self._oom_kills = hardware.oom_kills()
        self.run: RunPaths | None = None
        self._refuse_finished()
        self._machine: dict[str, Any] = {}
        if ranks.rank == 0 and not self.is_launched:
            self._machine = environment.describe()

    def _refuse_finished(self) -> None:
        if self._given is None or self.is_launched or self._ranks.rank:
            return
        record = RunRecord(self._given)
        record.check_readable()
        if record.is_finished():
            raise SettingsError(
                f"run_dir is {str(self._given.dir)!r}: it holds a finished run; choose another folder"
            )

    def planned(self) -> dict[str, Any]:
        """Return the settings that dsnb's launcher has written; empty without it."""
        if self.is_launched and self._given:
            return json_files.read_json(self._given.experiment) or {}
        return {}

    def open(
        self, settings: dict[str, Any], about: dict[str, Any], may_create: bool = True
    ) -> RunPaths | None:
        """Create the folder with these settings on the first rank that may, and return it everywhere.

        It is None on a rank that cannot reach it, such as one of a host with disks of its own.
        """
        if self.run is not None:
            return self.run
        if self.is_launched:
            self.run = self._given
        elif may_create and self._ranks.claim("folder"):
            self.run = self._create(settings, about)
            self._ranks.tell("folder", str(self.run.dir))
        else:
            told = self._ranks.ask("folder", WAIT_S)
            if told and Path(told).is_dir():
                self.run = RunPaths(Path(told))
        return self.run

    def _create(self, settings: dict[str, Any], about: dict[str, Any]) -> RunPaths:
        known = {name: value for name, value in settings.items() if value is not None}
        name = Experiment.recorded({**known, **about}).name
        model = model_shapes.slug(str(settings.get("model") or "model"))
        run = self._given
        if run is None:
            home = paths.outputs_root() / OWN
            run = RunPaths(create_run_dir(home, f"{model}_{name}"))
        with writing(run.dir):
            run.dir.mkdir(parents=True, exist_ok=True)
            check_free_space(run.dir)
            clear(run)
            record = {"name": name, "model_name": model, "run_id": secrets.token_hex(8)}
            json_files.write_json(run.experiment, {**settings, **record, **about})
            machine = self._machine or environment.describe()
            json_files.write_json(run.environment, machine)
        return run

    def write_settings(self, changed: dict[str, Any]) -> None:
        """Change settings that are known at the end only."""
        if self.run and not self.is_launched:
            record = json_files.read_json(self.run.experiment) or {}
            json_files.write_json(self.run.experiment, record | changed)

    def note_missing(self) -> None:
        """Record the ranks of this host that ended without a word; each may be the cause of what the others report."""
        if self.run is None:
            return
        told = {failure.get("rank") for failure in RunRecord(self.run).failures}
        for rank in self._ranks.missing():
            if rank in told:
                continue
            status = "interrupted"
            cause = "its process is gone, and left no message: it was killed"
            if hardware.oom_kills() > self._oom_kills:
                status = "oom"
                cause = "it was killed by the kernel: the machine's memory ran out"
            self.add_failure({"rank": rank, "status": status, "cause": cause})

    def add_failure(self, failure: dict[str, Any], is_consequence: bool = False) -> None:
        """Append how a rank ended to the failures."""
        if self.run:
            row = {"in_communication": is_consequence, **failure}
            json_files.append_line(self.run.failures, row)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Let one rank at a time end the run: each sees what the ones before it have recorded."""
        if self.run is None:
            yield
            return
        handle = os.open(self.run.dir, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def finish(self) -> None:
        """Write the result from all records; another rank may write it again, with more of them."""
        if self.run is None or self.is_launched:
            return
        record = RunRecord(self.run)
        ended: Outcome = outcome.of_ranks(record, {}, 0)
        finish(record, {}, self.began_s, ended)
