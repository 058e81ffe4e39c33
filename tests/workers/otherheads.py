def main(run_dir: str) -> int:
    """Train a split BLOOM whose ALiBi slopes are those of a model with half the heads, as AutoTP leaves it."""
    from dsnb.train import parallel, worker

    prepare = parallel.prepare

    def forgetful(experiment, model):
        prepare(experiment, model)
        del model.base_model.replaced

    parallel.prepare = forgetful
    return worker.main(run_dir)
