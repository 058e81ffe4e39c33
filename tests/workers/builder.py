import resource
from pathlib import Path

from dsnb import records
from dsnb.experiment import Experiment
from dsnb.paths import RunPaths


def main(run_dir: str) -> int:
    """Build the model and nothing else; write by how many bytes the peak memory of this rank has grown."""
    from dsnb.train.model import build
    from dsnb.train.worker import rank, set_up

    run = RunPaths(Path(run_dir))
    experiment = Experiment.read(run.experiment)
    device = set_up(experiment)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = build(experiment, records.read_json(run.deepspeed) or {}, device)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    bad = sum(not bool(parameter.isfinite().all()) for parameter in model.parameters())
    records.write_json(run.dir / f"rank{rank()}.json", {"grown_bytes": grown, "not_finite": bad})
    return 0
