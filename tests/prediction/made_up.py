"""A trace of a small made-up model, for tests that need no torch, made-up runs, and the predicted step of a setting."""

import math
from dataclasses import replace

import pandas as pd

from dsnb.prediction import predict, recommend, search, traces
from dsnb.prediction.calibration import measured
from dsnb.prediction.search import Search
from dsnb.prediction.step_time import step_times
from dsnb.prediction.target import Target
from dsnb.prediction.traces import ELEMENTS, MemoryTrace
from dsnb.results.answers.decide import Question
from dsnb.settings.experiment import Experiment

MIB = 2.0**20
PARAMETERS = 1_000_000_000
TRACE = MemoryTrace(
    forward_peak=900 * MIB,
    kept=600 * MIB,
    moments=((1000 * MIB, 0.0), (500 * MIB, 0.5e9), (50 * MIB, 1e9)),
    parameters=PARAMETERS,
    trainable=PARAMETERS,
    of_block=45_000_000,
    of_root=100_000_000,
    largest=90_000_000,
    layers=20,
    hidden=2048,
    vocab=50_000,
)
RECORD = {
    "forward": [(0, 900 / 8 * MIB)],
    "kept": (0, 600 / 8 * MIB),
    "moments": [(200 * MIB, 100 * MIB, 0), (0, 500 / 8 * MIB, 5e8), (50 * MIB, 0, 1e9)],
    **{name: getattr(TRACE, name) for name in ELEMENTS},
}
"""The record of a model whose trace is `TRACE` at a micro-batch of 8."""


def given(**settings):
    return Experiment(
        **{"model": "opt-1.3b", "precision": "bf16", "seq_len": 2048, "device": "cuda", **settings}
    )


def searching(asked, rates, objective="time", link="nvlink", **figures):
    """Return a search whose settings have these tokens/s and figures."""
    found = Search(asked, Target("H200", link), Question(1e9, objective, max_days=math.inf))
    found.trace(list(found.asked))
    usual = {"fits": True, "tight": False, "memory_gib": 50.0, "peak_allocated_gib": 50.0}
    found.table = found.table.assign(tokens_per_s=rates, **{**usual, **figures})
    return found


def trace_nothing(monkeypatch):
    """Let recommendations and predictions follow from `RECORD`, without torch."""
    monkeypatch.setattr(recommend, "traces", of_record)
    monkeypatch.setattr(search, "attempts", of_record)
    monkeypatch.setattr(predict, "traces", of_record)
    monkeypatch.setattr(traces, "attempts", of_record)
    monkeypatch.setattr(traces, "start", lambda model: None)


def of_record(asked, make=True):
    return [MemoryTrace.of(RECORD, int(one.micro_batch_size)) for one in asked]


def keep_traces(monkeypatch, folder):
    """Let every model have `RECORD` as its trace during a test, kept in a cache in a folder, without a process."""

    def make(kind, missing):
        for key in missing:
            traces._keep(key, RECORD)
        return {}

    monkeypatch.setenv("DSNB_CACHE", str(folder))
    monkeypatch.setattr(traces, "_records", {})
    monkeypatch.setattr(traces, "_make", make)


def runs(*settings):
    """Return made-up runs that take exactly as long as the default constants say."""
    common = {
        "gpu_name": "NVIDIA H200",
        "step_time_mean_s": 1.0,
        "model": "opt-1.3b",
        "seq_len": 512,
    }
    made = measured(pd.DataFrame([{**common, "micro_batch_size": 8, **one} for one in settings]))
    times = step_times([run.counts for run in made]).step_time_s
    return [
        replace(run, step_time_s=float(seconds)) for run, seconds in zip(made, times, strict=True)
    ]
