import os

MESSAGE = (
    "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "4294967296 bytes. Error code 12 (Cannot allocate memory)"
)


def main(run_dir: str) -> int:
    """Train for real, but fail to allocate 4 GiB in the third step, in the phase that a variable names."""
    import torch

    from dsnb.train import worker
    from dsnb.train.meter import Meter

    build, mark, steps = worker.make_trainer, Meter.step, []
    where = os.environ["DSNB_TEST_PHASE"]

    def fail(*_):
        if len(steps) == 2:
            raise RuntimeError(MESSAGE)

    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(context, hidden):
            return hidden.clone()

        @staticmethod
        def backward(context, gradient):
            fail()
            return gradient

    def step(self, *arguments):
        steps.append(mark(self, *arguments))

    def make_trainer(experiment, ds_config, device):
        if where == "build":
            raise RuntimeError(MESSAGE)
        trainer = build(experiment, ds_config, device)
        first = next(iter(trainer.module.modules()))
        if where == "forward":
            first.register_forward_pre_hook(fail)
        elif where == "backward":
            trainer.module.model.get_input_embeddings().register_forward_hook(
                lambda _, inputs, output: Failing.apply(output)
            )
        elif where == "loss":
            compute = torch.nn.functional.cross_entropy

            def cross_entropy(*arguments, **named):
                fail()
                return compute(*arguments, **named)

            torch.nn.functional.cross_entropy = cross_entropy
        else:
            trainer.optimizer.register_step_pre_hook(fail)
        return trainer

    Meter.step, worker.make_trainer = step, make_trainer
    return worker.main(run_dir)
