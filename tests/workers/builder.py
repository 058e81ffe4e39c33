import resource
from pathlib import Path

from dsnb.files import records
from dsnb.run_folder.paths import RunPaths
from dsnb.settings.experiment import Experiment


def main(run_dir: str) -> int:
    """Build the model and nothing else; write by how many bytes the peak memory of this rank has grown."""
    from dsnb.train.model import build, build_stage
    from dsnb.train.model_parts import stage_modules
    from dsnb.train.worker import rank, set_up

    run = RunPaths(Path(run_dir))
    experiment = Experiment.read(run.experiment)
    device = set_up(experiment)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if experiment.pipeline_parallel > 1:
        model, path = build_stage(experiment, rank(), device)
        parts = list(stage_modules(model, path, rank(), experiment.pipeline_parallel))
    else:
        parts = [build(experiment, records.read_json(run.deepspeed) or {}, device)]
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    bad = sum(not bool(parameter.isfinite().all()) for part in parts for parameter in part.parameters())
    records.write_json(run.dir / f"rank{rank()}.json", {"grown_bytes": grown, "not_finite": bad})
    return 0
