"""FSDP2 that keeps gathered weights until the backward pass: less traffic, and whole weights on each rank."""

from dsnb.settings.strategies.fsdp import Fsdp


class FsdpKept(Fsdp):
    """Weights are gathered once in a micro-batch."""

    name = "fsdp_kept"
    label = "FSDP, weights kept"
    gathers_per_micro_batch = 1
    trainer_class = f"{__name__}:build_trainer"


def build_trainer(experiment, ds_config, device):
    """Return the trainer; torch is imported in the ranks only."""
    from dsnb.measure.train.trainer import FsdpTrainer

    trainer = FsdpTrainer(experiment, ds_config, device)
    trainer.wrapped.set_reshard_after_forward(False)
    return trainer
