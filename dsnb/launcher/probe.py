"""`dsnb probe`: what this machine's GPUs, its CPU and the links between them reach, in one to two minutes.

The worker of one rank is `dsnb.train.probe`; the links are measured by the ranks of a bandwidth test on all GPUs.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dsnb.files import records
from dsnb.launcher import environment
from dsnb.launcher.folder import create_run_dir
from dsnb.launcher.run import BANDWIDTH_SETTINGS, launch, measure_bandwidth
from dsnb.run_folder import record_schema
from dsnb.run_folder.paths import RunPaths
from dsnb.settings.experiment import Experiment
from dsnb.system import hardware

PROBE_WORKER = "dsnb.train.probe"
QUICK_BYTES = 2**16
RECORDED = ("host", "cpu", "cores", "driver", "torch", "deepspeed", "dsnb", "date_utc")
LINKS = "links"


def probe(device: str = "", *, quick: bool = False) -> dict[str, Any]:
    """Measure this machine and return the record: `figures` by name, `rows` of all parts, what is `missing` and why.

    A `quick` probe takes seconds and is not accurate. A LaunchError says why the ranks failed.
    """
    device = device or hardware.default_device()
    common = {**BANDWIDTH_SETTINGS, "device": device}
    with TemporaryDirectory(prefix="dsnb-probe-") as folder:
        run = RunPaths(create_run_dir(Path(folder), "probe"))
        records.write_json(run.bandwidth_plan, {"quick": quick})
        launch(Experiment(**{**common, "gpus": 1}), run.dir, progress=False, worker=PROBE_WORKER).raise_for_status()
        machine, worker = environment.describe(), records.read_json(run.worker) or {}
        record = {name: machine[name] for name in RECORDED} | worker["versions"]
        record |= {"gpu_name": worker["gpu_name"], "gpus": len(machine["gpus"]), "quick": quick}
        record |= {name: worker[name] for name in ("figures", "rows", "missing")}
        if device == "cpu" or len(hardware.gpus()) < 2:
            record["missing"][LINKS] = "they need several GPUs"
            return record
        result = measure_bandwidth(Experiment(**common), folder, most_bytes=QUICK_BYTES if quick else None)
        if result.status != "ok":
            record["missing"][LINKS] = str(result.cause)
        for row in record_schema.read_lines(RunPaths(result.run_dir).bandwidth):
            what = f"{row['collective']} of {row['bytes']:,} bytes"
            record["rows"].append({"part": LINKS, "what": what, "value": row["busbw_gb_per_s"], "unit": "GB/s"})
            if row["collective"] == "all-reduce":
                record["figures"]["link_gb_per_s"] = row["busbw_gb_per_s"]  # of the largest message in the end
    return record
