"""A program that prints why models cannot be trained with the settings on standard input.

Each model is built as a run builds it, but on the meta device, so that it takes no memory; text is
read as a run reads it. The answer is one line of JSON: for each setting in order, sentences on what
a run would refuse.
"""

import json
import os
import sys

from dsnb.base.system import interpreter
from dsnb.settings import checks
from dsnb.settings.experiment import Experiment

MAX_TOKENIZED_BYTES = 4 * 2**20
"""Longer text is left to the run, if a tokenizer has to read it."""


def problems(experiment: Experiment) -> list[str]:
    """Return what a run with these settings would refuse, in one sentence or none."""
    from dsnb.measure.train import data
    from dsnb.models import build, layout, loss, parts, quantized

    try:
        config = build.model_config(experiment)
        known_now = checks.contradictions(experiment)  # the configuration is in the hub's cache
        if known_now:
            return known_now
        parts.check_split(experiment, config)
        whole = {"tensor_parallel": 1, "pipeline_parallel": 1, "device": "cpu"}
        built = build.build_on_meta(experiment.model_copy(update=whole))
        parts.blocks(built)
        if experiment.tensor_parallel > 1:
            layout.check(built, experiment.tensor_parallel)
        if experiment.matmul == "fp8":
            build.check_fp8(experiment, built)
        if experiment.frozen_weights == "nf4":
            quantized.check_nf4(experiment, built)
        if experiment.loss == "chunked":
            loss.chunkable(built)
        if experiment.data != "synthetic" and _is_quick(experiment):
            data.check_tokens(experiment, data.tokenize(experiment), config.vocab_size)
    except ValueError as error:
        return [str(error).strip().splitlines()[0]]
    except Exception as error:  # transformers raises many kinds; the run would raise the same
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return [f"model is {experiment.model!r}: transformers cannot build it ({reason[:300]})"]
    return []


def _is_quick(experiment: Experiment) -> bool:
    """Return whether reading the text as tokens takes no more than seconds."""
    if experiment.data == "stdlib" or experiment.tokenizer == "bytes":
        return True
    return os.path.getsize(os.path.expanduser(experiment.data)) <= MAX_TOKENIZED_BYTES


if __name__ == "__main__":
    interpreter.end_quickly()
    asked = [Experiment.recorded(settings) for settings in json.loads(sys.stdin.read())]
    print(json.dumps([problems(experiment) for experiment in asked]))
