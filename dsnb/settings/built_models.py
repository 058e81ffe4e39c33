"""What a run would refuse of its model or its text, asked of a separate process before any run starts.

Presets are known without building them, except for the part of their weights that products in fp8
reach. Any other model is built once on the meta device, which takes some seconds, mostly for imports
(`dsnb.measure.train.ask_model`).
"""

import functools
import importlib.util
import json
from collections.abc import Iterable

from dsnb.base.formulas import model_shapes
from dsnb.base.system import interpreter
from dsnb.settings import inputs
from dsnb.settings.experiment import Experiment

BUILT_FROM = (
    "model", "weights", "seq_len", "attention", "matmul", "lora_rank", "lora_targets", "frozen_weights",
    "tensor_parallel", "pipeline_parallel", "loss",
    "pad_vocab", "checkpoint_every", "data", "tokenizer",
)  # fmt: skip
"""Settings that a model, its parts or its tokens depend on."""
TIMEOUT_S = 300


def problems(experiments: Iterable[Experiment]) -> list[str]:
    """Return why models or texts cannot be trained, each reason once; nothing where torch is not installed."""
    kinds: dict[str, str] = {}
    for experiment in experiments:
        is_text_read = (
            experiment.data not in inputs.NO_FILE["data"]
            or experiment.tokenizer not in inputs.NO_FILE["tokenizer"]
        )
        is_usual = experiment.matmul != "fp8" and experiment.frozen_weights == "auto"
        is_known = experiment.model in model_shapes.PRESETS and is_usual
        if is_known and not is_text_read:
            continue
        kind = json.dumps([getattr(experiment, name) for name in BUILT_FROM])
        kinds.setdefault(kind, experiment.model_dump_json())
    if not kinds or not all(map(importlib.util.find_spec, ("torch", "transformers"))):
        return []
    return list(dict.fromkeys(_asked(f"[{','.join(kinds.values())}]")))


@functools.cache
def _asked(settings: str) -> tuple[str, ...]:
    """Ask in a separate process: importing torch takes seconds."""
    answers = interpreter.ask("dsnb.measure.train.ask_model", given=settings, timeout_s=TIMEOUT_S)
    problems: list[str] = []
    for of_one in answers or ():  # without any, torch cannot be imported: the launch will say why
        problems += of_one
    return tuple(problems)
