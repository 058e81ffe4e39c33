"""Traces of models, made by processes of their own and kept in the user's cache: what reads them needs no torch."""

import hashlib
import json
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from dsnb.errors import SettingsError
from dsnb.formulas import model_shapes
from dsnb.prediction import trace_files
from dsnb.prediction.moments import ModelTrace, Trace
from dsnb.prediction.replay.recording import Recording
from dsnb.run_folder import paths
from dsnb.settings.derived import CHUNK_TOKENS, compiles_blocks
from dsnb.settings.experiment import DEFAULTS, Experiment
from dsnb.system import interpreter

WORKERS = 2
"""Processes that trace at the same time; each takes about 1 GiB."""
TRACED = (
    "model", "weights", "strategy", "precision", "mixed_precision", "seq_len", "compile", "activation_checkpointing",
    "checkpoint_every", "checkpoint_offload", "attention", "dropout", "loss", "lora_rank",
)  # fmt: skip
"""Settings that a trace depends on; the engine's are not among them, and a trace serves all micro-batches."""
WHOLE = {"tensor_parallel": 1, "pipeline_parallel": 1}
"""A trace is of the whole model: without ranks, none can be split among them."""


def traces(experiments: Sequence[Experiment]) -> list[Trace]:
    """Return the trace of each setting; those that are in no cache are made, each once.

    Raises
    ------
    SettingsError
        If a model cannot be traced; the message says why.
    """
    found = attempts(experiments)
    if problem := next((one for one in found if isinstance(one, SettingsError)), None):
        raise problem
    return [one for one in found if isinstance(one, Trace)]


def attempts(experiments: Sequence[Experiment]) -> list[Trace | SettingsError]:
    """Return the trace of each setting, or why it cannot be traced.

    Raises
    ------
    SettingsError
        If torch or transformers is missing.
    """
    keys = _keys(experiments)
    missing = {key: one for key, one in dict(zip(keys, experiments, strict=True)).items() if not _is_kept(key)}
    problems: dict[str, SettingsError] = {}
    for group in _made_by_processes(missing):
        for key, found in group.items():
            if "error" in found:
                problems[key] = SettingsError(found["error"])
                continue
            if recording := found.pop("recording", None):
                trace_files.write(key, recording, "recording")
                _recorded[key] = Recording.read(recording)
            trace_files.write(key, found)
            _remember(key, found)
    made = _of_batches(keys, experiments)
    return [one if one is not None else problems[key] for key, one in zip(keys, made, strict=True)]


def kept(experiments: Sequence[Experiment]) -> list[Trace | None]:
    """Return the trace of each setting that was made before, None for the others; nothing is traced."""
    keys = _keys(experiments)
    for key in set(keys):
        _is_kept(key)
    return _of_batches(keys, experiments)


def recordings(experiments: Sequence[Experiment]) -> list[Recording | None]:
    """Return the allocations of each setting's model, if it was traced before and is not compiled; None if not."""
    return [_recording(key) for key in _keys(experiments)]


def can_trace() -> bool:
    """Return whether the libraries are installed that a model is traced with."""
    return bool(find_spec("torch") and find_spec("transformers"))


_made: dict[str, ModelTrace] = {}
_recorded: dict[str, Recording] = {}


def _of_batches(keys: Sequence[str], experiments: Sequence[Experiment]) -> list[Trace | None]:
    """Return the trace of each setting at its micro-batch; None where there is none."""
    asked = [(key, int(one.micro_batch_size)) for key, one in zip(keys, experiments, strict=True)]
    known = {(key, size): _made[key].of(size) for key, size in set(asked) if key in _made}
    return [known.get(one) for one in asked]


def _keys(experiments: Sequence[Experiment]) -> list[str]:
    settings = [_settings(one) for one in experiments]
    known = {one: _key(one) for one in set(settings)}
    return [known[one] for one in settings]


def _is_kept(key: str) -> bool:
    """Return whether a trace is in memory, or in the cache, from where it is read then."""
    return key in _made or ((found := trace_files.read(key)) is not None and _remember(key, found))


def _remember(key: str, record: dict[str, Any]) -> bool:
    try:
        _made[key] = ModelTrace.read(record)
    except (KeyError, TypeError, ValueError):  # written by another version
        return False
    return True


def _recording(key: str) -> Recording | None:
    if key not in _recorded and (found := trace_files.read(key, "recording")):
        try:
            _recorded[key] = Recording.read(found)
        except (KeyError, TypeError, ValueError):  # written by another version
            return None
    return _recorded.get(key)


def _settings(experiment: Experiment) -> tuple[Any, ...]:
    """Return the settings that a trace depends on, alike for all strategies that compute alike."""
    chosen = {name: getattr(experiment, name) for name in TRACED}
    if not experiment.activation_checkpointing:
        chosen |= {name: DEFAULTS[name] for name in ("checkpoint_every", "checkpoint_offload")}
    if experiment.strategy == "ddp":
        chosen["strategy"] = "plain"
    if experiment.loss == "chunked":  # a chunk does not grow with the micro-batch as all else does
        chosen["micro_batch_size"] = experiment.micro_batch_size
    if experiment.compile != "off":
        chosen |= {"compile": "default", "blocks": compiles_blocks(vars(experiment))}
    return tuple(chosen.items())


def _key(settings: tuple[Any, ...]) -> str:
    words = json.dumps([settings, _model_file(dict(settings)["model"]), *_versions()], default=str)
    return hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _model_file(model: str) -> str:
    path = model_shapes.local_config(model)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path else ""


@lru_cache
def _versions() -> tuple[str, ...]:
    """Return what a trace depends on besides the settings: libraries, and dsnb's own code for training."""
    found = []
    for name in ("torch", "transformers", "peft"):
        try:
            found.append(version(name))
        except PackageNotFoundError:
            found.append("")
    code = hashlib.sha256()
    for file in sorted((paths.PACKAGE / "train").glob("*.py")):
        code.update(file.read_bytes())
    return (*found, code.hexdigest(), str(CHUNK_TOKENS))


def _made_by_processes(missing: dict[str, Experiment]) -> Iterable[dict[str, Any]]:
    if not missing:
        return []
    if not can_trace():
        raise SettingsError("torch or transformers is missing: a model is traced with them; pip install 'dsnb[train]'")
    keys = list(missing)
    groups = [keys[start::WORKERS] for start in range(min(WORKERS, len(keys)))]
    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(lambda group: _trace({key: missing[key] for key in group}), groups))


def _trace(group: dict[str, Experiment]) -> dict[str, Any]:
    """Trace some settings, one after the other, in one process."""
    asked = {key: one.model_copy(update=WHOLE).model_dump(mode="json") for key, one in group.items()}
    words = interpreter.command("-m", "dsnb.train.memory_trace")
    done = subprocess.run(words, input=json.dumps(asked), capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    try:
        return dict(json.loads(lines[-1]))
    except (IndexError, ValueError):
        why = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        return {key: {"error": f"the model could not be traced: {why}"} for key in group}
