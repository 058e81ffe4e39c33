"""DDP that rounds each bucket of gradients to bf16 before it is sent."""

from dsnb.settings.strategies.ddp import Ddp


class DdpRounded(Ddp):
    """An all-reduce of bf16 gradients."""

    name = "ddp_rounded"
    label = "DDP, bf16 buckets"
    settings = Ddp.settings - {"gradient_compression"}
    trainer_class = f"{__name__}:build_trainer"

    def reduced_bytes(self, s, model):
        """Return the bytes of a gradient in bf16."""
        return 2.0


def build_trainer(experiment, ds_config, device):
    """Return the trainer; torch is imported in the ranks only."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    from dsnb.measure.train.trainer import DdpTrainer

    def rounded(state, bucket):  # torch refuses its own hook without NCCL by its name
        return bf16_compress_hook(state, bucket)

    trainer = DdpTrainer(experiment, ds_config, device)
    trainer.wrapped.register_comm_hook(None, rounded)
    return trainer
