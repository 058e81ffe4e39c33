"""Settings outside of what a calibration has seen are named in words."""

import pandas as pd

from dsnb.prediction.coverage import Coverage, outside
from dsnb.prediction.links import link
from dsnb.prediction.measured import measured
from dsnb.settings.experiment import Experiment

USUAL = {"model": "opt-1.3b", "zero_stage": 1, "gpus": 2, "micro_batch_size": 8, "seq_len": 1024, "device": "cuda"}


def test_a_setting_like_the_calibrated_ones_is_inside():
    assert outside(Experiment(**USUAL), "NVIDIA H200") == []


def test_what_is_outside_is_said():
    odd = Experiment(
        **{**USUAL, "gpus": 16, "micro_batch_size": 1, "seq_len": 64, "zero_stage": 2, "optimizer": "muon"}
    )
    assert outside(odd, "NVIDIA A100-SXM4-80GB", link=link("ib:400")) == [
        "no calibration run has the GPU A100, only H200",
        "no calibration run has the optimizer muon, only adafactor, adamw",
        "the number of tokens in a micro-batch is 64, calibration runs have 256 to 32,768",
        "the number of GPUs is 16, calibration runs have 1 to 4",
        "the number of nodes is 2, calibration runs have 1",
    ]


def test_own_runs_are_their_own_coverage():
    row = {**USUAL, "gpu_name": "NVIDIA L4", "step_time_s": 1.0}
    covered = Coverage.of(measured(pd.DataFrame([row])))
    assert outside(Experiment(**USUAL), "L4", covered) == []
    assert outside(Experiment(**{**USUAL, "compile": "default"}), "L4", covered) == [
        "no calibration run has the mode of compilation compiled, only eager"
    ]


def test_combined_strategies_are_strategies_of_their_own():
    both = Experiment(**{**USUAL, "gpus": 4, "zero_stage": 0, "tensor_parallel": 2, "pipeline_parallel": 2})
    (said,) = outside(both, "H200")
    assert said.startswith("no calibration run has the strategy ZeRO 0 with tensor parallel and pipeline parallel, ")
    assert outside(both.model_copy(update={"pipeline_parallel": 1}), "H200") == []
