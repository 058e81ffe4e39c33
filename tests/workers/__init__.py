def train(run_dir, change):
    """Train for real, with a trainer that `change` has changed once it is built."""
    from dsnb.train import worker

    make = worker.make_trainer

    def make_changed(*arguments):
        trainer = make(*arguments)
        change(trainer)
        return trainer

    worker.make_trainer = make_changed
    return worker.main(run_dir)


def train_with_steps(run_dir, step):
    """Train for real, with `step(train)` in the place of every step, which `train()` makes."""

    def change(trainer):
        train_step = trainer.step
        trainer.step = lambda micro_batches: step(lambda: train_step(micro_batches))

    return train(run_dir, change)
