import os

MESSAGE = (
    "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "4294967296 bytes. Error code 12 (Cannot allocate memory)"
)


def main(run_dir: str) -> int:
    """Train for real, but fail to allocate 4 GiB while building, or in the backward pass of the third step."""
    from dsnb.train import worker
    from dsnb.train.meter import Meter

    build, mark, steps = worker.make_trainer, Meter.step, []

    def step(self, *arguments):
        steps.append(mark(self, *arguments))

    def fail(gradient):
        if len(steps) == 2:
            raise RuntimeError(MESSAGE)

    def make_trainer(experiment, ds_config, device):
        if os.environ["DSNB_TEST_PHASE"] == "build":
            raise RuntimeError(MESSAGE)
        trainer = build(experiment, ds_config, device)
        next(trainer.module.parameters()).register_hook(fail)
        return trainer

    Meter.step, worker.make_trainer = step, make_trainer
    return worker.main(run_dir)
