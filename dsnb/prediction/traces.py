"""Traces of models, made by separate processes and kept in the user's cache: reading them needs no torch."""

import contextlib
import hashlib
import json
import logging
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from dsnb.base.errors import SettingsError
from dsnb.base.files import cache, json_files
from dsnb.base.formulas import model_shapes
from dsnb.base.formulas.memory import HALF
from dsnb.base.system import interpreter
from dsnb.settings.experiment import DEFAULTS, Experiment
from dsnb.settings.records import paths
from dsnb.settings.training import CHUNK_TOKENS, compiles_blocks

LOG = logging.getLogger(__name__)
WORKERS = 2
"""Processes that trace in parallel; each takes about 1 GiB."""
TRACED = (
    "model", "weights", "strategy", "precision", "mixed_precision", "seq_len", "compile", "compile_unit",
    "activation_checkpointing", "checkpoint_every", "checkpoint_offload", "attention", "dropout", "loss", "lora_rank",
    "pad_vocab",
)  # fmt: skip
"""Settings that a trace depends on: none of the engine's, and not the micro-batch."""
TRACERS = ("fake_model", "memory_trace", "model_counts", "partitioner")
"""The modules of this package that trace and import torch."""
USED = (
    "models/attention",
    "models/loss",
    "models/build",
    "models/parts",
    "models/token_work",
)
"""The modules of models that a trace depends on."""
MODES = {
    "half": {"precision": "bf16"},
    "autocast": {"precision": "bf16", "strategy": "plain"},
    "full": {"precision": "fp32"},
}
"""Settings with which the work of blocks is counted: weights in half precision, autocast, and fp32."""
IDLE_S = 60
"""Seconds without a request after which a tracing process ends."""
ELEMENTS = (
    "parameters",
    "trainable",
    "of_block",
    "of_root",
    "largest",
    "layers",
    "hidden",
    "vocab",
)


@dataclass(frozen=True)
class MemoryTrace:
    """The bytes of one micro-batch, without weights, gradients and optimizer, and the elements of its model."""

    forward_peak: float  # peak bytes of the forward pass
    kept: float  # what the blocks keep from their forward to their backward passes
    moments: Sequence[tuple[float, float]]
    """(bytes, elements) in the backward pass: peak bytes once that many elements of gradients are computed. The first
    is the loss's backward pass, with none."""
    parameters: float
    trainable: float
    of_block: float  # of one block, and of everything outside blocks
    of_root: float
    largest: float  # of the largest parameter
    layers: int
    hidden: int
    vocab: int  # the rows of the output layer
    factored: float = 0.0  # rows and columns of all trained matrices, and elements of what is none

    @classmethod
    def of(cls, record: Mapping[str, Any], micro_batch: int) -> "MemoryTrace":
        """Return the memory of a micro-batch from a model's record (`dsnb.prediction.memory_trace`).

        Sizes of a record are (constant bytes, bytes per sequence); which size is the largest depends on the
        micro-batch.
        """

        def total_bytes(size: Sequence[float]) -> float:
            return float(size[0] + micro_batch * size[1])

        moments = [(total_bytes(size), size[2]) for size in record["moments"]]
        loss = max(moment for moment in moments if not moment[1])
        later = (moment for moment in moments if moment[1])
        elements = {name: record[name] for name in ELEMENTS} | {
            "factored": record.get("factored", 0.0)
        }
        return cls(
            max(map(total_bytes, record["forward"])),
            total_bytes(record["kept"]),
            (loss, *later),
            **elements,
        )

    @cached_property
    def after_loss(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The bytes and elements of the moments after the first one, each of shape (moments - 1,)."""
        sizes, done = np.array(self.moments[1:], dtype=float).reshape(-1, 2).T
        return sizes, done


def traces(experiments: Sequence[Experiment]) -> list[MemoryTrace]:
    """Return the trace of each setting, traced now if not cached; a SettingsError says which cannot be traced."""
    tried = attempts(experiments)
    for problem in tried:
        if isinstance(problem, SettingsError):
            raise problem
    return [trace for trace in tried if isinstance(trace, MemoryTrace)]


def attempts(
    experiments: Sequence[Experiment], make: bool = True
) -> list[MemoryTrace | SettingsError]:
    """Return the trace of each setting, or why there is none; without `make`, only cached ones.

    A SettingsError is raised only if torch or transformers is missing, but needed.
    """
    settings = [_canonical(experiment) for experiment in experiments]
    alike = {tuple(values.items()): values for values in settings}
    key_of = {items: _key("memory", values) for items, values in alike.items()}
    keys = [key_of[tuple(values.items())] for values in settings]
    is_kept = {key: _is_kept(key) for key in key_of.values()}
    asked = zip(keys, experiments, settings, strict=True)
    missing = {
        key: experiment.model_copy(update=values)
        for key, experiment, values in asked
        if not is_kept[key]
    }
    problems = dict.fromkeys(missing, SettingsError("it was not traced before"))
    if missing and make:
        models = ", ".join(sorted({experiment.model for experiment in missing.values()}))
        kinds = f"{len(missing)} kind{'s' * (len(missing) > 1)} of settings"
        LOG.info("tracing %s for %s, some seconds each; the result is kept", models, kinds)
        problems |= _make("memory", missing)
    batches = [
        (key, int(experiment.micro_batch_size))
        for key, experiment in zip(keys, experiments, strict=True)
    ]
    of_batches = {
        (key, size): MemoryTrace.of(_records[key], size)
        for key, size in set(batches)
        if key in _records
    }
    return [of_batches.get(batch) or problems[batch[0]] for batch in batches]


def counts(model: str) -> dict[str, Any]:
    """Return the fields of `dsnb.prediction.shapes.Counts` for a model; a SettingsError says why there are none."""
    asked = {
        mode: Experiment.recorded({"model": model, **settings}) for mode, settings in MODES.items()
    }
    settings = ("model", "weights", "precision", "strategy")
    keys = {
        mode: _key("counts", {name: getattr(one, name) for name in settings})
        for mode, one in asked.items()
    }
    missing = {key: asked[mode] for mode, key in keys.items() if not _is_kept(key)}
    if missing and (problems := _make("counts", missing)):
        raise next(iter(problems.values()))
    return _records[keys["half"]] | {
        "traffic": {mode: _records[key]["traffic"] for mode, key in keys.items()}
    }


def start(model: str) -> None:
    """Start the processes that trace, unless this was done before for a model: importing torch takes seconds."""
    file = _file(_key("started", {"model": model}))
    is_model = model in model_shapes.PRESETS or model_shapes.local_config(model)
    if is_model and can_trace() and not _tracers and not (file and file.is_file()):
        for _ in range(WORKERS):
            _tracers.append(_Tracer())
        if file:
            with contextlib.suppress(OSError):
                json_files.write_json(file, {})


def can_trace() -> bool:
    """Return whether the libraries that trace a model are installed."""
    return bool(find_spec("torch") and find_spec("transformers"))


_records: dict[str, dict[str, Any]] = {}
"""What was read from the cache or traced by this process, by key."""


def _is_kept(key: str) -> bool:
    """Return whether a record is in memory, or can be read from the cache into it."""
    file = _file(key)
    if key not in _records and file and file.is_file():
        try:
            record = json.loads(file.read_bytes())
            if "traffic" not in record:
                MemoryTrace.of(record, 1)
        except (OSError, KeyError, TypeError, ValueError):  # of another version: it is traced again
            return False
        _records[key] = record
    return key in _records


def _file(key: str) -> Path | None:
    home = cache.home()
    return home / "traces" / f"{key}.json" if home else None


def _canonical(experiment: Experiment) -> dict[str, Any]:
    """Return the settings that a trace depends on, equal for strategies that compute alike; no rank has a part."""
    values = {name: getattr(experiment, name) for name in TRACED} | {
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
    }
    native = experiment.mixed_precision == "native" and experiment.strategy in {"deepspeed", "fsdp"}
    if not native or experiment.precision not in HALF:
        values |= {"strategy": "plain", "mixed_precision": "native"}
    if not experiment.activation_checkpointing:
        values |= {name: DEFAULTS[name] for name in ("checkpoint_every", "checkpoint_offload")}
    if experiment.compile == "off":
        values["compile_unit"] = DEFAULTS["compile_unit"]
    else:
        unit = "block" if compiles_blocks(vars(experiment)) else "model"
        values |= {"compile": "default", "compile_unit": unit}
    if experiment.loss == "chunked":  # a chunk does not grow with the micro-batch as all else does
        values["micro_batch_size"] = experiment.micro_batch_size
    return values


def _key(kind: str, settings: Mapping[str, Any]) -> str:
    """Return a hash of all that a record of a kind depends on."""
    file, preset = (
        model_shapes.local_config(settings["model"]),
        model_shapes.PRESETS.get(settings["model"]),
    )
    model = (
        hashlib.sha256(file.read_bytes()).hexdigest() if file else preset.config() if preset else ""
    )
    words = json.dumps([kind, list(settings.items()), model, *_versions()], default=str)
    return hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@lru_cache
def _versions() -> tuple[str, ...]:
    """Return the versions of the libraries and a hash of the code that build and trace models."""
    libraries = []
    for name in ("torch", "transformers", "peft"):
        with contextlib.suppress(PackageNotFoundError):
            libraries.append(f"{name} {version(name)}")
    code = hashlib.sha256()
    for name in (*USED, *(f"prediction/{module}" for module in TRACERS)):
        code.update((paths.PACKAGE / f"{name}.py").read_bytes())
    return (*libraries, code.hexdigest(), str(CHUNK_TOKENS))


def _make(kind: str, missing: dict[str, Experiment]) -> dict[str, SettingsError]:
    """Trace records of a kind by their keys and store them; return the reasons for those that failed.

    Compiled models that differ only in what is outside of the compiled graphs go to one process, which makes them once:
    the one that has made them before, if any.
    """
    if not can_trace():
        raise SettingsError(
            "torch or transformers is missing: a model is traced with them; pip install 'dsnb[train]'"
        )
    groups: dict[Any, list[str]] = {}
    for key, experiment in missing.items():
        graph = ["model", "precision", "lora_rank", "compile_unit", "seq_len"]
        if experiment.compile_unit == "model":
            graph += ["strategy", "loss"]
        alike = tuple(getattr(experiment, name) for name in graph)
        groups.setdefault(key if experiment.compile == "off" else alike, []).append(key)

    def quickness(group: tuple[Any, list[str]]) -> tuple[bool, bool]:
        first = missing[group[1][0]]
        return first.compile == "off", first.strategy != "plain"  # autocast needs a third block

    longest_first = sorted(groups.items(), key=quickness)

    def trace(group: tuple[Any, list[str]]) -> dict[str, Any]:
        graphs, keys = group
        with _tracer(graphs) as tracer:
            return {key: tracer.ask(kind, missing[key]) for key in keys}

    with ThreadPoolExecutor(WORKERS) as pool:
        traced = {
            key: record for group in pool.map(trace, longest_first) for key, record in group.items()
        }
    problems = {
        key: SettingsError(record["error"]) for key, record in traced.items() if "error" in record
    }
    for key in traced.keys() - problems.keys():
        _records[key] = traced[key]
        if file := _file(key):
            with contextlib.suppress(OSError):  # a cache that cannot be written is not used
                json_files.write_json(file, traced[key])
    return problems


class _Tracer:
    """A process that traces on request and ends after `IDLE_S` without one."""

    def __init__(self) -> None:
        self.made, self.lent = (
            set[Any](),
            threading.Lock(),
        )  # the names of the graphs that it has made
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        # It ends when its input is closed, even while it imports; collecting garbage would take an eighth of that.
        program = (
            "import gc, os, select, threading; gc.disable(); closed = select.poll(); closed.register(0, 0); "
            "threading.Thread(target=lambda: (closed.poll(), os._exit(0)), daemon=True).start(); "
            "from dsnb.prediction.memory_trace import main; main()"
        )
        words, pipe = interpreter.command("-c", program, str(IDLE_S)), subprocess.PIPE
        self.process = subprocess.Popen(
            words, stdin=pipe, stdout=pipe, stderr=self._errors, text=True
        )
        self._questions, self._answers = (
            cast("IO[str]", self.process.stdin),
            cast("IO[str]", self.process.stdout),
        )

    def ask(self, kind: str, experiment: Experiment) -> dict[str, Any]:
        """Return the record of a setting, or a record with an `error`."""
        try:
            self._questions.write(json.dumps([kind, experiment.model_dump(mode="json")]) + "\n")
            self._questions.flush()
            # DeepSpeed logs what it finds when it is imported.
            return dict(json.loads(next(line for line in self._answers if line.startswith("{"))))
        except (OSError, StopIteration, ValueError):
            self._errors.seek(0)
            why = (self._errors.read().strip().splitlines() or ["it printed nothing"])[-1]
            return {"error": f"the model could not be traced: {why}"}


_tracers: list[_Tracer] = []
_lending = threading.Lock()


@contextlib.contextmanager
def _tracer(graphs: Any) -> Iterator[_Tracer]:
    """Lend a tracing process: the one that has made these graphs, once it is free, or an idle one, or a new one."""
    with _lending:
        _tracers[:] = [one for one in _tracers if one.process.poll() is None]
        idle = [one for one in _tracers if not one.lent.locked()]
        made = [one for one in _tracers if graphs in one.made]
        if not made and not idle:
            idle = [_Tracer()]
            _tracers.append(idle[0])
        tracer = (made or idle)[0]
        is_free = tracer.lent.acquire(blocking=False)
    if not is_free:
        tracer.lent.acquire()
    tracer.made.add(graphs)
    try:
        yield tracer
    finally:
        tracer.lent.release()
