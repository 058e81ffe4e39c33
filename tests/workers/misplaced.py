def main(run_dir: str) -> int:
    """Train with the data-parallel ranks the other way round."""
    from dsnb.train import built, worker

    built.data_rank = lambda experiment, rank: 1 - rank % 2
    return worker.main(run_dir)
