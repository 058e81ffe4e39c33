"""Traces of models, made by processes of their own and kept in the user's cache: reading them needs no torch."""

import contextlib
import hashlib
import json
import logging
import queue
import subprocess
import tempfile
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

from dsnb.errors import SettingsError
from dsnb.files import records
from dsnb.formulas import model_shapes
from dsnb.formulas.memory import HALF
from dsnb.run_folder import paths
from dsnb.settings.experiment import DEFAULTS, Experiment
from dsnb.settings.training import CHUNK_TOKENS, compiles_blocks
from dsnb.system import interpreter

LOG = logging.getLogger(__name__)
WORKERS = 2
"""Processes that trace at the same time; each takes about 1 GiB."""
TRACED = (
    "model", "weights", "strategy", "precision", "mixed_precision", "seq_len", "compile", "compile_unit",
    "activation_checkpointing", "checkpoint_every", "checkpoint_offload", "attention", "dropout", "loss", "lora_rank",
)  # fmt: skip
"""Settings that a trace depends on; the engine's are not among them, and a trace serves all micro-batches."""
TRACERS = ("fake_model", "memory_trace", "model_counts")
"""The modules of this package that trace, and import torch."""
USED = ("train/attention", "train/causal_loss", "train/model", "train/model_parts", "train/token_work")
"""The modules of models that a trace depends on."""
IDLE_S = 60
"""Seconds after which a process that traces ends, if it is asked for nothing."""
ELEMENTS = ("parameters", "trainable", "of_block", "of_root", "largest", "layers", "hidden", "vocab")
WHOLE = {"tensor_parallel": 1, "pipeline_parallel": 1}
"""A trace is of the whole model: without ranks, none can be split among them."""


@dataclass(frozen=True)
class Trace:
    """The bytes of one micro-batch, without weights, gradients and optimizer, and the elements of its model."""

    forward_peak: float  # the most bytes of the forward pass
    kept: float  # what the blocks keep from their forward to their backward passes
    moments: Sequence[tuple[float, float]]
    """(bytes, elements) in the backward pass: the most bytes alive while so many elements of gradients had been
    computed. The first one is the loss's backward pass, when none had."""
    parameters: float
    trainable: float
    of_block: float  # of one block, and of all that is outside of blocks
    of_root: float
    largest: float  # of the largest parameter
    layers: int
    hidden: int
    vocab: int  # the rows of the output layer
    factored: float = 0.0  # rows and columns of all trained matrices, and elements of what is none

    @classmethod
    def of(cls, record: Mapping[str, Any], micro_batch: int) -> "Trace":
        """Return the memory of a micro-batch by the record of a model, as `dsnb.prediction.memory_trace` makes it.

        Sizes of a record are (bytes that are always there, bytes of each sequence); which of several sizes is the
        largest depends on the micro-batch.
        """

        def whole(size: Sequence[float]) -> float:
            return float(size[0] + micro_batch * size[1])

        moments = [(whole(size), size[2]) for size in record["moments"]]
        loss = max(moment for moment in moments if not moment[1])
        later = (moment for moment in moments if moment[1])
        elements = {name: record[name] for name in ELEMENTS} | {"factored": record.get("factored", 0.0)}
        return cls(max(map(whole, record["forward"])), whole(record["kept"]), (loss, *later), **elements)

    @cached_property
    def after_loss(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The bytes and elements of the moments after the first one, each of shape (moments - 1,)."""
        sizes, done = np.array(self.moments[1:], dtype=float).reshape(-1, 2).T
        return sizes, done


def traces(experiments: Sequence[Experiment]) -> list[Trace]:
    """Return the trace of each setting, made where it is in no cache; a SettingsError says which cannot be traced."""
    tried = attempts(experiments)
    for problem in tried:
        if isinstance(problem, SettingsError):
            raise problem
    return [trace for trace in tried if isinstance(trace, Trace)]


def attempts(experiments: Sequence[Experiment], make: bool = True) -> list[Trace | SettingsError]:
    """Return the trace of each setting, or why there is none; without `make`, only those that were made before.

    A SettingsError is raised only if torch or transformers is missing, but needed.
    """
    canonical = [_canonical(one) for one in experiments]
    keys = [_key("memory", one) for one in canonical]
    missing = {key: one for key, one in zip(keys, canonical, strict=True) if not _is_kept(key)}
    problems = dict.fromkeys(missing, SettingsError("it was not traced before"))
    if missing and make:
        models = ", ".join(sorted({one.model for one in missing.values()}))
        LOG.info("tracing %s for %d settings, some seconds each; the result is kept", models, len(missing))
        problems |= _make("memory", missing)
    asked = [(key, int(one.micro_batch_size)) for key, one in zip(keys, experiments, strict=True)]
    of_batches = {(key, size): Trace.of(_records[key], size) for key, size in set(asked) if key in _records}
    return [of_batches.get(one) or problems[one[0]] for one in asked]


def counts(model: str) -> dict[str, Any]:
    """Return the record that `dsnb.prediction.model_counts` makes of a model, once; a SettingsError says why not."""
    one = Experiment.recorded({"model": model})
    key = _key("counts", one)
    if not _is_kept(key) and (problems := _make("counts", {key: one})):
        raise problems[key]
    return _records[key]


def can_trace() -> bool:
    """Return whether the libraries are installed that a model is traced with."""
    return bool(find_spec("torch") and find_spec("transformers"))


_records: dict[str, dict[str, Any]] = {}
"""What was read from the cache or traced by this process, by key."""


def _is_kept(key: str) -> bool:
    """Return whether a record is in memory, or in the cache, from where it is read then."""
    file = _file(key)
    if key not in _records and file and file.is_file():
        try:
            record = json.loads(file.read_bytes())
            if "traffic" not in record:
                Trace.of(record, 1)
        except (OSError, KeyError, TypeError, ValueError):  # of another version: it is traced again
            return False
        _records[key] = record
    return key in _records


def _file(key: str) -> Path | None:
    home = paths.cache_home()
    return home / "traces" / f"{key}.json" if home else None


def _canonical(experiment: Experiment) -> Experiment:
    """Return the setting that computes as this one does, alike for all strategies that compute alike."""
    native = experiment.mixed_precision == "native" and experiment.strategy in {"deepspeed", "fsdp"}
    chosen: dict[str, Any] = dict(WHOLE)
    if not native or experiment.precision not in HALF:
        chosen |= {"strategy": "plain", "mixed_precision": "native"}
    if not experiment.activation_checkpointing:
        chosen |= {name: DEFAULTS[name] for name in ("checkpoint_every", "checkpoint_offload")}
    if experiment.compile == "off":
        chosen["compile_unit"] = DEFAULTS["compile_unit"]
    else:
        unit = "block" if compiles_blocks(vars(experiment)) else "model"
        chosen |= {"compile": "default", "compile_unit": unit}
    return experiment.model_copy(update=chosen)


def _key(kind: str, experiment: Experiment) -> str:
    """Return a hash of what a record of a kind depends on."""
    chosen = {name: getattr(experiment, name) for name in (TRACED if kind == "memory" else ("model", "weights"))}
    if kind == "memory" and experiment.loss == "chunked":  # a chunk does not grow with the micro-batch as all else does
        chosen["micro_batch_size"] = experiment.micro_batch_size
    file, preset = model_shapes.local_config(experiment.model), model_shapes.PRESETS.get(experiment.model)
    model = hashlib.sha256(file.read_bytes()).hexdigest() if file else preset.config() if preset else ""
    words = json.dumps([kind, list(chosen.items()), model, *_versions()], default=str)
    return hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@lru_cache
def _versions() -> tuple[str, ...]:
    """Return what a trace depends on besides the settings: libraries, and dsnb's code that builds and traces models."""
    found = []
    for name in ("torch", "transformers", "peft"):
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    code = hashlib.sha256()
    for name in (*USED, *(f"prediction/{one}" for one in TRACERS)):
        code.update((paths.PACKAGE / f"{name}.py").read_bytes())
    return (*found, code.hexdigest(), str(CHUNK_TOKENS))


def _make(kind: str, missing: dict[str, Experiment]) -> dict[str, SettingsError]:
    """Make records of a kind by their keys and keep them; return why there is none of some.

    Settings whose models are built alike are traced by one process, which then builds them once.
    """
    if not can_trace():
        raise SettingsError("torch or transformers is missing: a model is traced with them; pip install 'dsnb[train]'")
    groups: dict[Any, list[str]] = {}
    for key, one in missing.items():
        alike = one.compile if one.compile == "off" else (one.compile_unit, one.loss, one.seq_len)
        groups.setdefault((one.model, one.strategy, one.precision, one.lora_rank, alike), []).append(key)
    largest_first = sorted(groups.values(), key=len, reverse=True)
    if kind == "counts" and _idle.empty():  # memory is asked for next: all processes import torch meanwhile
        for _ in range(WORKERS):
            _idle.put(_Tracer())

    def trace(keys: list[str]) -> dict[str, Any]:
        with _tracer() as tracer:
            return {key: tracer.ask(kind, missing[key]) for key in keys}

    with ThreadPoolExecutor(WORKERS) as pool:
        found = {key: record for own in pool.map(trace, largest_first) for key, record in own.items()}
    problems = {key: SettingsError(record["error"]) for key, record in found.items() if "error" in record}
    for key in found.keys() - problems.keys():
        _records[key] = found[key]
        if file := _file(key):
            with contextlib.suppress(OSError):  # a cache that cannot be written is none
                records.write_json(file, found[key])
    return problems


class _Tracer:
    """A process that traces on request, and ends when it has not been asked for `IDLE_S`."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        words, pipe = interpreter.command("-m", "dsnb.prediction.memory_trace", str(IDLE_S)), subprocess.PIPE
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=self._errors, text=True)
        self._questions, self._answers = cast("IO[str]", self.process.stdin), cast("IO[str]", self.process.stdout)

    def ask(self, kind: str, experiment: Experiment) -> dict[str, Any]:
        """Return the record of a setting, or one of its `error`."""
        try:
            self._questions.write(json.dumps([kind, experiment.model_dump(mode="json")]) + "\n")
            self._questions.flush()
            # DeepSpeed logs what it finds when it is imported.
            return dict(json.loads(next(line for line in self._answers if line.startswith("{"))))
        except (OSError, StopIteration, ValueError):
            self._errors.seek(0)
            why = (self._errors.read().strip().splitlines() or ["it printed nothing"])[-1]
            return {"error": f"the model could not be traced: {why}"}


_idle: queue.LifoQueue[_Tracer] = queue.LifoQueue()
"""Processes that wait to be asked."""


@contextlib.contextmanager
def _tracer() -> Iterator[_Tracer]:
    """Lend a process that traces, one that waits if there is any."""
    found = None
    while found is None or found.process.poll() is not None:
        try:
            found = _idle.get_nowait()
        except queue.Empty:
            found = _Tracer()
    yield found
    _idle.put(found)
