def main(run_dir: str) -> int:
    """Train, then write down which parameters have changed, and in which number formats they are."""
    from pathlib import Path

    from dsnb.files import records
    from dsnb.train import over_ranks, worker

    make, mean, kept = worker.make_trainer, over_ranks.mean_of_ranks, {}

    def make_and_copy(*arguments):
        kept["trainer"] = trainer = make(*arguments)
        kept["before"] = {name: one.detach().clone() for name, one in trainer.module.named_parameters()}
        return trainer

    def mean_and_compare(losses):
        if worker.rank() == 0:
            after = dict(kept["trainer"].module.named_parameters())
            found = {
                name: {"changed": not bool((before == after[name]).all()), "dtype": str(before.dtype)}
                for name, before in kept["before"].items()
            }
            records.write_json(Path(run_dir) / "parameters.json", found)
        return mean(losses)

    worker.make_trainer, over_ranks.mean_of_ranks = make_and_copy, mean_and_compare
    return worker.main(run_dir)
