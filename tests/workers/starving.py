from tests import workers

MESSAGE = (
    "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "4294967296 bytes. Error code 12 (Cannot allocate memory)"
)


def main(run_dir: str) -> int:
    """Train for real, but fail to allocate 4 GiB in the backward pass of the third step."""
    steps = []

    def fail(gradient):
        if len(steps) == 3:
            raise RuntimeError(MESSAGE)

    def change(trainer):
        next(trainer.module.parameters()).register_hook(fail)
        train_step = trainer.step
        trainer.step = lambda micro_batches: steps.append(None) or train_step(micro_batches)

    return workers.train(run_dir, change)
