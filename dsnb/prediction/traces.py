"""Traces of models, made by separate processes and kept in the user's cache: reading them needs no torch."""

import contextlib
import hashlib
import json
import logging
import subprocess
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, cast

from dsnb.base.errors import SettingsError
from dsnb.base.files import cache as files_cache
from dsnb.base.files import json_files
from dsnb.base.formulas import model_shapes
from dsnb.base.system import interpreter
from dsnb.base.system.waiting import until_done
from dsnb.models import observe
from dsnb.models.chunks import chunk_tokens
from dsnb.models.observe import TRACED
from dsnb.settings.experiment import DEFAULTS, Experiment
from dsnb.settings.records import paths
from dsnb.settings.training import CHUNK_TOKENS

LOG = logging.getLogger(__name__)
WORKERS = 2
"""Processes that trace in parallel; each takes about 1 GiB."""
MODES = {
    "half": {"precision": "bf16"},
    "autocast": {"precision": "bf16", "strategy": "plain"},
    "full": {"precision": "fp32"},
}
"""Settings with which the work of blocks is counted: weights in half precision, autocast, and
fp32."""
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
    "factored",
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
    of_rank: float = (
        0.0  # of a tensor-parallel rank, whose bytes these are; 0 for those of a whole model
    )

    @classmethod
    def of(cls, record: Mapping[str, Any], micro_batch: int) -> "MemoryTrace":
        """Return the memory of a micro-batch from a model's record (`dsnb.models.observe.memory`).

        Sizes of a record are (constant bytes, bytes per sequence); which size is the largest
        depends on the micro-batch.
        """
        moments = []
        for fixed, each, done in record["moments"]:
            moments.append((float(fixed + micro_batch * each), done))
        loss = max(moment for moment in moments if not moment[1])
        later = (moment for moment in moments if moment[1])
        forward_peak = max(fixed + micro_batch * each for fixed, each in record["forward"])
        constant, per_sequence = record["kept"]
        return cls(
            float(forward_peak),
            float(constant + micro_batch * per_sequence),
            (loss, *later),
            **{name: record[name] for name in ELEMENTS},
            of_rank=record.get("of_rank", 0.0),
        )


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
    canonical = [_canonical(experiment) for experiment in experiments]
    key_of = {settings: _key("memory", settings) for settings in set(canonical)}
    kept = {key for key in key_of.values() if _is_kept(key)}
    missing: dict[str, Experiment] = {}
    for settings, experiment in zip(canonical, experiments, strict=True):
        if key_of[settings] not in kept:
            missing[key_of[settings]] = experiment.model_copy(update=dict(settings))
    problems = dict.fromkeys(missing, SettingsError("it was not traced before"))
    if missing and make:
        models = ", ".join(sorted({experiment.model for experiment in missing.values()}))
        kinds = f"{len(missing)} kind{'s' * (len(missing) > 1)} of settings"
        LOG.info("tracing %s for %s, some seconds each; the result is kept", models, kinds)
        problems = _make("memory", missing)

    @cache
    def attempt(key: str, micro_batch: int) -> MemoryTrace | SettingsError:
        return problems.get(key) or MemoryTrace.of(_records[key], micro_batch)

    return [
        attempt(key_of[settings], int(experiment.micro_batch_size))
        for settings, experiment in zip(canonical, experiments, strict=True)
    ]


def counts(model: str) -> dict[str, Any]:
    """Return the fields of `dsnb.prediction.shapes.Counts` for a model; a SettingsError says why there are none."""
    keys: dict[str, str] = {}
    missing: dict[str, Experiment] = {}
    for mode, settings in MODES.items():
        experiment = Experiment.recorded({"model": model, **settings})
        names = ("model", "weights", "precision", "strategy")
        keys[mode] = _key("counts", tuple((name, getattr(experiment, name)) for name in names))
        if not _is_kept(keys[mode]):
            missing[keys[mode]] = experiment
    if missing:
        for problem in _make("counts", missing).values():
            raise problem
    of_modes = {}
    for name in ("traffic", "inside"):
        of_modes[name] = {mode: _records[key][name] for mode, key in keys.items()}
    return _records[keys["half"]] | of_modes


def start(model: str) -> None:
    """Start the processes that trace, unless this was done before for a model: importing torch takes seconds."""
    key = _key("started", (("model", model),))
    file = _file(key)
    was_done = _tracers or (file and file.is_file())
    is_model = model in model_shapes.PRESETS or model_shapes.local_config(model)
    if is_model and can_trace() and not was_done:
        _tracers.extend(_Tracer() for _ in range(WORKERS))
        _keep(key, {})


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
    home = files_cache.home()
    return home / "traces" / f"{key}.json" if home else None


Settings = tuple[tuple[str, Any], ...]
"""Names and values, hashable."""


def _canonical(experiment: Experiment) -> Settings:
    """Return the settings that a trace depends on, equal for strategies that compute alike, and for pipelines."""
    values = {name: getattr(experiment, name) for name in TRACED}
    values |= {"pipeline_parallel": 1}
    if not experiment.numbers.natively_half:
        values |= {"strategy": "plain", "mixed_precision": "native"}
    elif experiment.mixed_precision == "none" or not _uses_format_of_weights(experiment):
        # masters change no activation
        values |= {"strategy": DEFAULTS["strategy"], "mixed_precision": "native"}
    if experiment.precision == "fp16" and _computes_fp16_as_bf16(experiment.model):
        values["precision"] = "bf16"
    if not experiment.activation_checkpointing:
        names = ("checkpoint_every", "checkpoint_ops", "checkpoint_offload")
        values |= {name: DEFAULTS[name] for name in names}
    if experiment.compile == "off":
        values["compile_unit"] = DEFAULTS["compile_unit"]
    else:
        unit = "block" if experiment.compiles_blocks else "model"
        values |= {"compile": "default", "compile_unit": unit}
    if experiment.loss == "chunked":
        values["micro_batch_size"] = _with_equal_chunks(experiment)
    return tuple(values.items())


def _computes_fp16_as_bf16(model: str) -> bool:
    """Return whether a model is known to run the same operators in both: some have others for experts or a softmax."""
    return model in model_shapes.PRESETS and not model_shapes.facts(model).get("experts")


def _with_equal_chunks(experiment: Experiment) -> int:
    """Return the smallest micro-batch with the same chunk size: only that depends on the micro-batch."""
    length, size = experiment.seq_len, int(experiment.micro_batch_size)
    tokens = chunk_tokens(size * length)
    return next(few for few in range(1, size + 1) if chunk_tokens(few * length) == tokens)


def _uses_format_of_weights(experiment: Experiment) -> bool:
    """Return whether a pass in half precision holds something in the format of trained weights, which may be fp32.

    Adapters are in it, and so is the gradient of the output layer of a compiled model whose loss is chunked.
    """
    has_gradient = experiment.loss == "chunked" and experiment.compile != "off"
    numbers = experiment.numbers
    is_read = numbers.forward != numbers.computed
    return experiment.lora_rank > 0 or has_gradient or is_read


def _key(kind: str, settings: Settings) -> str:
    """Return a hash of all that a record of a kind depends on."""
    name = dict(settings)["model"]
    file = model_shapes.local_config(name)
    preset = model_shapes.PRESETS.get(name)
    model: Any = ""
    if file:
        model = hashlib.sha256(file.read_bytes()).hexdigest()
    elif preset:
        model = preset.config()
    words = json.dumps([kind, settings, model, *_versions()], default=str)
    return hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@cache
def _versions() -> tuple[str, ...]:
    """Return the versions of the libraries and a hash of the code that build and observe models."""
    libraries = []
    for name in ("torch", "transformers", "peft"):
        with contextlib.suppress(PackageNotFoundError):
            libraries.append(f"{name} {version(name)}")
    code = hashlib.sha256()
    for file in sorted((paths.PACKAGE / "models").rglob("*.py")):
        code.update(file.read_bytes())
    return (*libraries, code.hexdigest(), str(CHUNK_TOKENS))


def _make(kind: str, missing: dict[str, Experiment]) -> dict[str, SettingsError]:
    """Trace records of a kind by their keys and store them; return the reasons for those that failed.

    Compiled models that differ only in what is outside of the compiled graphs go to one process,
    which makes them once: the one that has made them before, if any.
    """
    if not can_trace():
        raise SettingsError(
            "torch or transformers is missing: a model is traced with them; pip install 'dsnb[train]'"
        )
    groups: dict[Any, list[str]] = defaultdict(list)
    for key, experiment in missing.items():
        groups[_graphs(experiment) or key].append(key)

    def quickness(graphs: Any) -> tuple[bool, bool]:
        first = missing[groups[graphs][0]]
        return first.compile == "off", first.strategy != "plain"  # autocast needs a third block

    problems: dict[str, SettingsError] = {}

    def trace(graphs: Any) -> None:
        with _lent_tracer(graphs) as tracer:
            for key in groups[graphs]:
                record = tracer.ask(kind, missing[key])
                if "error" in record:
                    problems[key] = SettingsError(record["error"])
                else:
                    _keep(key, record)

    models = ", ".join(sorted({experiment.model for experiment in missing.values()}))
    with ThreadPoolExecutor(WORKERS) as pool:
        parts = [pool.submit(trace, graphs) for graphs in sorted(groups, key=quickness)]
        until_done(parts, f"tracing {models}")
    for part in parts:
        part.result()  # raises what went wrong
    return problems


def _graphs(experiment: Experiment) -> tuple[Any, ...]:
    """Return what decides a model's compiled graphs; nothing if it is not compiled."""
    if experiment.compile == "off":
        return ()
    names = ["model", "precision", "lora_rank", "lora_targets"]
    names += ["compile_unit", "seq_len", "tensor_parallel"]
    if experiment.compile_unit == "model":
        names += ["strategy", "loss"]
    return tuple(getattr(experiment, name) for name in names)


def _keep(key: str, record: dict[str, Any]) -> None:
    _records[key] = record
    file = _file(key)
    if file:
        with contextlib.suppress(OSError):  # a cache that cannot be written is not used
            json_files.write_json(file, record)


class _Tracer:
    """A process that traces on request and ends after `IDLE_S` without one."""

    def __init__(self) -> None:
        self.made: set[Any] = set()
        """The names of the graphs that it has made."""
        self.lent = threading.Lock()
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = self._started()

    def _started(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            interpreter.command("-m", observe.__name__, str(IDLE_S)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def ask(self, kind: str, experiment: Experiment) -> dict[str, Any]:
        """Return the record of a setting, or a record with an `error`.

        A process that ended before it answered is replaced once: it may have been idle for too long
        just when it was lent, which says nothing about the setting.
        """
        question = json.dumps([kind, experiment.model_dump(mode="json")]) + "\n"
        answer = self._answer(question)
        if answer is None:
            self.process.kill()
            self.process.wait()
            self.process = self._started()
            answer = self._answer(question)
        if answer is not None:
            return answer
        self._errors.seek(0)
        reason = (self._errors.read().strip().splitlines() or ["it printed nothing"])[-1]
        return {"error": f"the model could not be traced: {reason}"}

    def _answer(self, question: str) -> dict[str, Any] | None:
        """Return the record that answers a question; None if the process ended before."""
        questions = cast("IO[str]", self.process.stdin)
        answers = cast("IO[str]", self.process.stdout)
        try:
            questions.write(question)
            questions.flush()
            # DeepSpeed logs what it finds when it is imported.
            return dict(json.loads(next(line for line in answers if line.startswith("{"))))
        except (OSError, StopIteration, ValueError):
            return None


_tracers: list[_Tracer] = []
_lending = threading.Lock()


@contextlib.contextmanager
def _lent_tracer(graphs: Any) -> Iterator[_Tracer]:
    """Lend a tracing process: the one that has made these graphs, once it is free, or an idle one, or a new one."""
    with _lending:
        _tracers[:] = [one for one in _tracers if one.process.poll() is None]
        suitable = [one for one in _tracers if graphs in one.made]
        suitable = suitable or [one for one in _tracers if not one.lent.locked()]
        if not suitable:
            suitable = [_Tracer()]
            _tracers.extend(suitable)
        tracer = suitable[0]
        tracer.made.add(graphs)
        is_free = tracer.lent.acquire(blocking=False)
    if not is_free:
        tracer.lent.acquire()
    try:
        yield tracer
    finally:
        tracer.lent.release()
