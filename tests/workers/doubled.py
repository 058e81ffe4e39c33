def main(run_dir: str) -> int:
    """Train by gradient descent with gradients that are summed over ranks: wrong, for a test that must notice."""
    import torch

    from dsnb.train import torch_trainer, worker

    class Doubled(torch.optim.SGD):
        def step(self, *arguments, **named):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad.mul_(torch.distributed.get_world_size())
            return super().step(*arguments, **named)

    torch_trainer.make_optimizer = lambda _, parameters: Doubled(parameters, lr=0.1)
    return worker.main(run_dir)
