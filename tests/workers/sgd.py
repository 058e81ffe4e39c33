def main(run_dir: str, rate: float = 0.1) -> int:
    """Train with plain gradient descent, which shows a gradient that is wrong by a factor; Adam divides it out."""
    import deepspeed
    import torch

    from dsnb.train import trainer, worker

    initialize = deepspeed.initialize
    plain = {"optimizer": {"type": "SGD", "params": {"lr": rate}}, "zero_allow_untested_optimizer": True}
    deepspeed.initialize = lambda *, config, **named: initialize(config={**config, **plain}, **named)
    trainer.make_optimizer = lambda _, parameters: torch.optim.SGD(parameters, lr=rate)
    return worker.main(run_dir)
