"""Settings of a Trainer's run from files beside its log: saved arguments, configurations of model and adapters."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsnb.base.errors import SettingsError
from dsnb.base.files import json_files
from dsnb.base.formulas import model_shapes
from dsnb.results.logs import values
from dsnb.results.logs.launchers import set_longest
from dsnb.results.logs.reading import LoggedRun
from dsnb.results.logs.trainer import FACTORY, OF_TRAINER, TRAINER
from dsnb.settings.exchange import importing
from dsnb.settings.records import values as columns
from dsnb.settings.records.columns import SETTINGS

MODEL = "config.json"
ADAPTERS = "adapter_config.json"


def add(run: LoggedRun, folder: Path) -> None:
    """Add what the files in a folder say and the log does not."""
    if run.program not in {TRAINER, *OF_TRAINER}:
        return
    try:
        found = importing.arguments_in(folder)
    except SettingsError as error:
        run.notes.append(f"left out: {error}")
        found = {}
    if isinstance(found.get("seq_len"), int):
        set_longest(run, found["seq_len"], bool(found.get("packing")))
    for name, value in _settings(found, run.program).items():
        run.settings.setdefault(name, value)
    if found.get("split", 1) > 1:
        run.splits.setdefault("sequence", found["split"])
    elif found:  # the Trainer has no pipelines, and splits layers only where it is told to
        run.derive(tensor_parallel=1, pipeline_parallel=1)
    rank = (json_files.read_json(folder / ADAPTERS) or {}).get("r")
    if isinstance(rank, int):
        run.settings.setdefault("lora_rank", rank)
    model = model_in(folder / MODEL)
    if model:
        run.settings.setdefault("model", model)


def _settings(found: Mapping[str, Any], program: str) -> dict[str, Any]:
    """Return what arguments say of a run, without values that its columns cannot have."""
    settings = {}
    for name, value in found.items():
        is_column = name in SETTINGS and name not in {"seq_len", "model"}
        with contextlib.suppress(SettingsError):
            if is_column:
                settings[name] = columns.checked(name, value)
    # LLaMA-Factory recomputes whatever the Trainer was told.
    if program == FACTORY and not settings.get("activation_checkpointing"):
        settings.pop("activation_checkpointing", None)
    settings["model"] = values.model(str(found.get("model", "")))
    return {name: value for name, value in settings.items() if value is not None}


def model_in(path: Path) -> str | None:
    """Return the name of the model of a configuration: a preset's, its own, or its family and sizes."""
    fields = model_shapes.local_fields(str(path))
    if not fields or not isinstance(fields.get("model_type"), str):
        return None
    named = importing.known_model(path) or values.model(str(fields.get("_name_or_path", "")))
    sizes = model_shapes.facts(str(path))
    if not named and {"layers", "hidden"} <= sizes.keys():
        named = f"{fields['model_type']}-{sizes['layers']}x{sizes['hidden']}"
    return named
