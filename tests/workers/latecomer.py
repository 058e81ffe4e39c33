import time


def main(run_dir: str) -> int:
    """Train, with rank 1 beginning every step 0.3 s late."""
    from dsnb.train import worker

    make = worker.make_trainer

    def make_late(*arguments):
        trainer = make(*arguments)
        step = trainer.step
        trainer.step = lambda micro_batches: time.sleep(0.3 * worker.rank()) or step(micro_batches)
        return trainer

    worker.make_trainer = make_late
    return worker.main(run_dir)
