"""What an out-of-memory run is advised: what fits its phase, its ranks and its other settings."""

import pytest

from dsnb.files import records
from dsnb.run_folder.memory_shortage import Shortage
from dsnb.run_folder.paths import RunPaths
from dsnb.settings.experiment import Experiment


def advice(phase, of_host=False, **settings):
    chosen = {"model": "gpt2", "micro_batch_size": 1, **settings}
    known = Experiment.recorded(chosen).model_dump()
    return " | ".join(Shortage({**known, "device": "cpu" if of_host else "cuda"}, phase, of_host).advice())


@pytest.mark.parametrize(
    ("phase", "settings", "given", "not_given"),
    [
        ("forward", {"micro_batch_size": 8}, "lower micro_batch_size (8)", "set loss"),
        ("loss", {}, "set loss to chunked", "micro_batch_size"),
        ("build", {"micro_batch_size": 8}, "zero_stage 1, offload optimizer-cpu", "micro_batch_size"),
        ("optimizer", {"gpus": 4, "zero_stage": 1}, "raise zero_stage (1) to 3: 4 ranks", "seq_len"),
        ("optimizer", {"gpus": 1, "zero_stage": 1}, "use several GPUs with zero_stage 3", "raise zero_stage"),
        ("build", {"zero_stage": 2, "offload": "optimizer-cpu"}, "zero_stage 3, offload all-cpu", "lower"),
        ("build", {"strategy": "ddp", "gpus": 2}, "smaller model", "zero_stage"),
        ("backward", {"activation_checkpointing": True, "checkpoint_every": 2}, "lower checkpoint_every (2)", "turn"),
        ("forward", {"memory_limit_gib": 2.5}, "raise memory_limit_gib (2.5)", "free memory"),
        ("", {"of_host": True, "gpus": 2}, "start fewer ranks on one machine (gpus is 2)", "offload"),
    ],
)
def test_the_advice_fits_the_cause(phase, settings, given, not_given):
    shown = advice(phase, **settings)
    assert given in shown
    assert not_given not in shown


def test_the_memory_at_hand(tmp_path):
    run = RunPaths(tmp_path)
    gpus = [{"name": "A", "memory_gib": 80.0}, {"name": "B", "memory_gib": 40.0}]
    records.write_json(run.environment, {"memory_gib": 500.0, "gpus": gpus})

    def capacity_gib(codes, **settings):
        records.write_json(run.experiment, {"device": "cuda", **settings})
        return Shortage.of(run, {}, codes).capacity_gib

    assert capacity_gib({0: 1}) == 40.0
    assert capacity_gib({0: -9}) == 500.0  # the kernel kills for the machine's memory, never for a GPU's
    assert capacity_gib({0: 1}, device="cpu") == 500.0
    assert capacity_gib({0: 1}, memory_limit_gib=2.0) == 2.0
    run.environment.unlink()
    assert capacity_gib({0: 1}) is None
