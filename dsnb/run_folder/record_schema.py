"""The schema of a run's records: their fields and the kind of value of each.

Records come from other machines, other versions and text editors. A value of a wrong kind is left out when it is read,
and described in one sentence. Fields that are not in the schema are not read and may have any value.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from dsnb.files import plain_text, records
from dsnb.run_folder.paths import RunPaths
from dsnb.run_folder.table_columns import ENVIRONMENT, GPU_COLUMNS, METRIC_COLUMNS, ORDER, STEP_COLUMNS
from dsnb.settings import aliases
from dsnb.settings.experiment import Experiment

STATUSES = ("ok", "oom", "nan", "untrained", "failed", "timeout", "interrupted")
LARGEST = 1e18
"""Largest figure; sums and ratios of such figures stay finite."""
LONGEST_TEXT = 100_000
_NUMBERS = frozenset({int, float})


@dataclass(frozen=True)
class Kind:
    """One kind of value; None, a missing measurement, is of every kind."""

    name: str
    """Allowed values, for messages."""
    types: frozenset[type]
    least: float = -LARGEST
    most: float = LARGEST
    allowed: frozenset[str] = frozenset()
    """For a text: its allowed values; empty for any."""
    fields: Mapping[str, "Kind"] = field(default_factory=dict)
    """For an object: the fields that are read."""
    each: "Kind | None" = None
    """For a list its items, for an object all fields that are not in `fields`."""
    keys: str = ""
    """For an object: the pattern of its keys; empty for any."""

    def holds(self, value: Any) -> bool:
        """Return whether a value is of this kind, nested values aside."""
        if value is None:
            return True
        if type(value) not in self.types:
            return False
        if type(value) in _NUMBERS:
            return bool(self.least <= value <= self.most)
        if type(value) is str:
            return len(value) <= LONGEST_TEXT and (not self.allowed or value in self.allowed)
        return not self.keys or all(re.fullmatch(self.keys, key) for key in value)

    def holds_all(self, values: list[Any]) -> bool:
        """Return whether all values of a column and their nested values are of this kind; fast for long columns."""
        types = set(map(type, values))
        if type(None) in types:
            types.remove(type(None))
            values = [value for value in values if value is not None] if types else []
        if not types <= self.types:
            return False
        if not types or types == {bool}:
            return True
        if types <= _NUMBERS:
            return self.least <= min(values) and max(values) <= self.most
        return self._holds_inside(values) if types <= {dict, list} else all(map(self.holds, set(values)))

    def _holds_inside(self, values: list[Any]) -> bool:
        if self.keys and not self.holds(dict.fromkeys(set().union(*values))):
            return False
        inside = [item for value in values for item in _items(value)] if self.each else []
        return (self.each is None or self.each.holds_all(inside)) and all(
            kind.holds_all([value.get(name) for value in values]) for name, kind in self.fields.items()
        )


def _items(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _whole(least: int = 0) -> Kind:
    return Kind(f"a whole number of at least {least}", frozenset({int}), least, 2**63)


NUMBER = Kind("a finite number of ordinary size", _NUMBERS)
AMOUNT = Kind("a finite number of ordinary size, 0 or more", _NUMBERS, 0)
COUNT = _whole()
TEXT = Kind("a text", frozenset({str}))
FLAG = Kind("true or false", frozenset({bool}))
STATUS = Kind(f"one of {', '.join(STATUSES)}", frozenset({str}), allowed=frozenset(STATUSES))


def _object(name: str = "an object", **more: Any) -> Kind:
    return Kind(name, frozenset({dict}), **more)


def _list_of(each: Kind) -> Kind:
    return Kind("a list", frozenset({list}), each=each)


def _setting(name: str, about: FieldInfo) -> Kind:
    default = about.default
    if isinstance(default, dict):
        return _object("keys with values", keys=r"[^\x00-\x1f\x7f]{1,200}")
    if name == "micro_batch_size":
        return Kind("a whole number or 'auto'", frozenset({int, str}), 1, 2**63, frozenset({"auto"}))
    if isinstance(default, bool):
        return FLAG
    if isinstance(default, int):
        return _whole(max((getattr(one, "ge", 0) for one in about.metadata), default=0))
    return Kind("a number, 0 or more", _NUMBERS, 0, 1e308) if isinstance(default, float) else TEXT


SETTINGS = {name: _setting(name, about) for name, about in Experiment.model_fields.items()}
SIGNED = {"loss_first", "loss_last", "loss_mean", "step_skew", "forward_skew"}
SUMMARY = {name: NUMBER if name in SIGNED else AMOUNT for name in METRIC_COLUMNS}
TEXTS = ("attention_used", "attention_kernel", "oom_phase", "note")
"""Columns of a run's summary that are texts."""
SUMMARY |= dict.fromkeys((*TEXTS, "profile_missing"), TEXT)
MACHINE = {name: TEXT for name in (*ENVIRONMENT, "os", "nccl_package") if not name.startswith("gpu_")}
MACHINE |= {
    "cores": COUNT,
    "memory_gib": AMOUNT,
    "variables": _object(each=TEXT),
    "gpus": _list_of(_object(fields={"name": TEXT, "memory_gib": AMOUNT})),
}
STEP = {name: NUMBER if name in {"loss", "t_s"} else AMOUNT for name in STEP_COLUMNS}
STEP |= {"phase": TEXT, "skipped": FLAG, "step": COUNT}
SAMPLE = {name: NUMBER if name == "t_s" else AMOUNT for name in GPU_COLUMNS} | {"host": TEXT, "gpu": COUNT}
PROFILE = dict.fromkeys(("forward_s", "backward_s", "optimizer_s", "handover_s", "between_s", "step_s"), AMOUNT)
PROFILE |= dict.fromkeys(("communication_s", "exposed_communication_s", "traced_step_s", "ended_s"), AMOUNT)
WORKER = dict.fromkeys(("parameters", "trainable_parameters", "layers", "hidden", "timed_wall_s", "ended_s"), AMOUNT)
WORKER |= dict.fromkeys(("block_parameters", "cpu_threads", "energy_j", "update_rms"), AMOUNT)
WORKER |= dict.fromkeys(("active_parameters", "flops_per_token", "forward_flops_per_token"), AMOUNT)
WORKER |= dict.fromkeys(("masked_flops_per_token", "recomputed_flops_per_token"), AMOUNT) | {"flops_missing": TEXT}
WORKER |= dict.fromkeys(("peak_allocated_gib", "peak_reserved_gib", "device_memory_gib"), AMOUNT)
WORKER |= dict.fromkeys(("host_memory_gib", "rank_host_memory_gib"), AMOUNT)
WORKER |= dict.fromkeys(("step_skew", "forward_skew", "steps_from_s", "timed_from_s", "timed_to_s"), NUMBER)
WORKER |= {"first_bad_step": COUNT, "recompilations": COUNT, "graph_breaks": COUNT, "weights_moved": FLAG}
WORKER |= {
    "compiled_graphs": COUNT,
    "gpu_name": TEXT,
    "attention": TEXT,
    "attention_kernel": TEXT,
    "power_source": TEXT,
}
FAILURE = {"rank": COUNT, "status": STATUS, "cause": TEXT, "phase": TEXT, "step": COUNT}
FAILURE |= dict.fromkeys(("allocated_gib", "reserved_gib", "requested_gib"), AMOUNT)
BANDWIDTH = dict.fromkeys(("bytes", "count", "ranks", "calls", "errors"), COUNT) | {"dtype": TEXT}
BANDWIDTH |= dict.fromkeys(("time_us", "algbw_gb_per_s", "busbw_gb_per_s"), AMOUNT)
OBJECT, PHASES, PLACE = _object(), _object(each=AMOUNT), dict.fromkeys(ORDER, COUNT)
INPUTS = _object("digests of files", each=TEXT)
_CODE = Kind("a whole number", frozenset({int}), -(2**31), 2**31)
_CODES = _object("exit codes by rank", each=_CODE, keys=r"-?[0-9]{1,9}")
_NODE = _object(fields={"host": TEXT, "environment": _object(fields=MACHINE)})

_RUN = RunPaths(Path())
FORMS = {
    _RUN.experiment.name: _object(
        fields={
            **SETTINGS,
            **PLACE,
            "name": TEXT,
            "model_name": TEXT,
            "inputs": INPUTS,
            "asked": _object(fields=SETTINGS),
        }
    ),
    _RUN.result.name: _object(
        fields={
            "status": STATUS,
            "cause": TEXT,
            "exit_codes": _CODES,
            "phases_s": PHASES,
            "summary": _object(fields=SUMMARY),
        }
    ),
    _RUN.environment.name: _object(fields=MACHINE),
    _RUN.steps.name: _object(fields=STEP),
    _RUN.gpu.name: _object(fields=SAMPLE),
    _RUN.worker.name: _object(fields={**WORKER, "phases_s": PHASES, "versions": _object(each=TEXT)}),
    _RUN.profile.name: _object(fields={**PROFILE, "missing": _object(each=TEXT)}),
    _RUN.failures.name: _object(fields=FAILURE),
    _RUN.nodes.name: _object(fields={"nodes": _list_of(_NODE), "differences": _list_of(TEXT)}),
    _RUN.slurm.name: _object(fields={"name": TEXT, "job": TEXT, "state": TEXT, "script": TEXT}),
    _RUN.bandwidth_plan.name: _object(fields={"most_bytes": COUNT}),
    _RUN.bandwidth.name: _object(fields=BANDWIDTH),
}
"""The kind of object by file name: the object in a `.json`, each line of a `.jsonl`."""


def cleaned(name: str, record: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return a record without missing values and values of a wrong kind, and the first wrong one in words.

    Parameters
    ----------
    name
        The name of its file.
    record
        Its content.
    """
    problems: list[str] = []
    if name == _RUN.experiment.name:
        record = with_current_names(record)
    content: dict[str, Any] = _cleaned(record, FORMS[name], "", problems)
    if name == _RUN.experiment.name:
        content = aliases.with_former_defaults(content)
    return content, f"{name}: {problems[0]}" if problems else None


def with_current_names(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run under their current names, those that were asked for too."""
    settings = aliases.with_current_names(settings)
    if isinstance(asked := settings.get("asked"), dict):
        settings["asked"] = aliases.with_current_names(asked)
    return settings


def _cleaned(value: Any, kind: Kind, where: str, problems: list[str]) -> Any:
    if not kind.holds(value):
        problems.append(f"{where} is {plain_text.short_repr(value)}, not {kind.name}")
        return None
    if type(value) is dict:
        content = {key: _inside(value, key, kind, where, problems) for key in value}
        return {key: item for key, item in content.items() if item is not None}
    if type(value) is list and kind.each is not None:
        items = [_cleaned(item, kind.each, f"{where}[{place}]", problems) for place, item in enumerate(value)]
        return [item for item in items if item is not None]
    return value


def _inside(record: dict[str, Any], key: str, kind: Kind, where: str, problems: list[str]) -> Any:
    inside = kind.fields.get(key, kind.each)
    if inside is None:
        return record[key]
    name = plain_text.short_repr(key)[1:-1]
    return _cleaned(record[key], inside, f"{where}.{name}" if where else name, problems)


def read(path: Path) -> dict[str, Any] | None:
    """Read one of a run's `.json` files, None if it is missing; values of a wrong kind are left out with a warning."""
    record = records.read_json(path)
    if record is None:
        return None
    content, problem = cleaned(path.name, record)
    if problem:
        records.warn(f"{path.parent / problem}; it is left out")
    return content


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read one of a run's `.jsonl` files; values of a wrong kind are left out with one warning."""
    lines = [cleaned(path.name, record) for record in records.read_lines(path)]
    if problems := [problem for _, problem in lines if problem]:
        more = f", and so are those of {len(problems) - 1} more lines" if problems[1:] else ""
        records.warn(f"{path.parent / problems[0]}; it is left out{more}")
    return [content for content, _ in lines]


def steps(tail: records.Tail) -> Iterator[dict[str, Any]]:
    """Yield the numbered steps that were appended to a file of steps since the last call."""
    for record in tail.new():
        step, _ = cleaned(tail.path.name, record)
        if step.get("step") is not None:
            yield step
