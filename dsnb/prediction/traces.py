"""Traces of models, made by processes of their own and kept in the user's cache: reading them needs no torch."""

import contextlib
import hashlib
import json
import logging
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsnb.errors import SettingsError
from dsnb.files import records
from dsnb.formulas import model_shapes
from dsnb.run_folder import paths
from dsnb.settings.experiment import DEFAULTS, Experiment
from dsnb.settings.training import CHUNK_TOKENS, compiles_blocks
from dsnb.system import interpreter

LOG = logging.getLogger(__name__)
WORKERS = 2
"""Processes that trace at the same time; each takes about 1 GiB."""
TRACED = (
    "model", "weights", "strategy", "precision", "mixed_precision", "seq_len", "compile", "activation_checkpointing",
    "checkpoint_every", "checkpoint_offload", "attention", "dropout", "loss", "lora_rank",
)  # fmt: skip
"""Settings that a trace depends on; the engine's are not among them, and a trace serves all micro-batches."""
TRACERS = ("fake_model", "memory_trace")
"""The modules of this package that trace, and import torch."""
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
        elements = {name: record[name] for name in ELEMENTS}
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
    keys = [_key(one) for one in experiments]
    missing = {key: one for key, one in zip(keys, experiments, strict=True) if not _is_kept(key)}
    problems = dict.fromkeys(missing, SettingsError("it was not traced before"))
    for key, record in (_make(missing) if missing and make else {}).items():
        if "error" in record:
            problems[key] = SettingsError(record["error"])
            continue
        _records[key] = record
        if file := _file(key):
            with contextlib.suppress(OSError):  # a cache that cannot be written is none
                records.write_json(file, record)
    asked = [(key, int(one.micro_batch_size)) for key, one in zip(keys, experiments, strict=True)]
    of_batches = {(key, size): Trace.of(_records[key], size) for key, size in set(asked) if key in _records}
    return [of_batches.get(one) or problems[one[0]] for one in asked]


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
            Trace.of(record, 1)
        except (OSError, KeyError, TypeError, ValueError):  # of another version: it is traced again
            return False
        _records[key] = record
    return key in _records


def _file(key: str) -> Path | None:
    home = paths.cache_home()
    return home / "traces" / f"{key}.json" if home else None


def _key(experiment: Experiment) -> str:
    """Return a hash of what a trace depends on, alike for all strategies that compute alike."""
    chosen = {name: getattr(experiment, name) for name in TRACED}
    if not experiment.activation_checkpointing:
        chosen |= {name: DEFAULTS[name] for name in ("checkpoint_every", "checkpoint_offload")}
    if experiment.strategy == "ddp":
        chosen["strategy"] = "plain"
    if experiment.loss == "chunked":  # a chunk does not grow with the micro-batch as all else does
        chosen["micro_batch_size"] = experiment.micro_batch_size
    if experiment.compile != "off":
        chosen |= {"compile": "default", "blocks": compiles_blocks(vars(experiment))}
    file = model_shapes.local_config(experiment.model)
    model = hashlib.sha256(file.read_bytes()).hexdigest() if file else ""
    words = json.dumps([list(chosen.items()), model, *_versions()], default=str)
    return hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@lru_cache
def _versions() -> tuple[str, ...]:
    """Return what a trace depends on besides the settings: libraries, and dsnb's code that trains and traces."""
    found = []
    for name in ("torch", "transformers", "peft"):
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    code = hashlib.sha256()
    own = (paths.PACKAGE / "prediction" / f"{name}.py" for name in TRACERS)
    for file in [*sorted((paths.PACKAGE / "train").glob("*.py")), *own]:
        code.update(file.read_bytes())
    return (*found, code.hexdigest(), str(CHUNK_TOKENS))


def _make(missing: dict[str, Experiment]) -> dict[str, Any]:
    """Return the record of each setting, by its key, or a record of its `error`."""
    if not can_trace():
        raise SettingsError("torch or transformers is missing: a model is traced with them; pip install 'dsnb[train]'")
    models = ", ".join(sorted({one.model for one in missing.values()}))
    LOG.info("tracing %s for %d settings, some seconds each; the result is kept", models, len(missing))
    items = list(missing.items())
    groups = [dict(items[start::WORKERS]) for start in range(min(WORKERS, len(items)))]
    with ThreadPoolExecutor(WORKERS) as pool:
        return {key: record for group in pool.map(_trace, groups) for key, record in group.items()}


def _trace(group: dict[str, Experiment]) -> dict[str, Any]:
    """Trace some settings, one after the other, in one process."""
    asked = {key: one.model_copy(update=WHOLE).model_dump(mode="json") for key, one in group.items()}
    words = interpreter.command("-m", "dsnb.prediction.memory_trace")
    done = subprocess.run(words, input=json.dumps(asked), capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    try:
        return dict(json.loads(lines[-1]))
    except (IndexError, ValueError):
        why = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        return {key: {"error": f"the model could not be traced: {why}"} for key in group}
