"""A new strategy is one file: found by its entry point, asked its questions, and trained by real ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).with_name("examples")
SETTINGS = {
    "model": "opt-tiny",
    "gpus": 2,
    "micro_batch_size": 1,
    "grad_accum": 2,
    "seq_len": 32,
    "warmup_steps": 1,
    "steps": 5,
    "data": "stdlib",
    "learning_rate": 1e-3,
    "precision": "fp32",
    "device": "cpu",
}
ONE_PROCESS = {"strategy": "plain", "gpus": 1, "micro_batch_size": 4, "grad_accum": 1}
PROGRAM = """
import json, sys
from pathlib import Path
from dsnb import Experiment, launch
from dsnb.base.files import json_files
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.strategies import ModelSize

model = ModelSize(parameters=1000, trained=1000, layers=2, hidden=10)
for number, settings in enumerate(json.loads(sys.argv[1])):
    experiment = Experiment(**settings)
    folder = f"{sys.argv[2]}/{number}"
    launch(experiment, folder, progress=False).raise_for_status()
    traffic = experiment.parallel_strategy.traffic(experiment, model)
    losses = [row["loss"] for row in json_files.read_lines(RunPaths(Path(folder)).steps)]
    print(json.dumps([experiment.name, experiment.label, vars(traffic), losses]))
"""


def install(example, class_name, folder):
    """Install a file as pip would do."""
    (folder / f"{example}.py").write_text((EXAMPLES / f"{example}.py").read_text())
    about = folder / f"{example}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {example}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        f"[dsnb.strategies]\n{example} = {example}:{class_name}\n"
    )


def without_fork_server():
    """Return the environment without the tests' fork server, which started before the package was installed."""
    return {
        name: os.environ[name] for name in os.environ if not name.startswith("DSNB_FORK_SERVER")
    }


@pytest.mark.parametrize(
    ("example", "class_name", "label", "of_step", "tolerance"),
    [
        ("fsdp_kept", "FsdpKept", "FSDP, weights kept", {"all_gather": 2 * 1000 * 4 / 2}, 1e-4),
        ("ddp_rounded", "DdpRounded", "DDP, bf16 buckets", {"all_reduce": 1000 * 2}, 2e-2),
    ],
)
def test_a_strategy_in_one_file_trains_as_one_process_does(
    tmp_path, example, class_name, label, of_step, tolerance
):
    install(example, class_name, tmp_path)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    asked = [{**SETTINGS, "strategy": example}, {**SETTINGS, **ONE_PROCESS}]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(asked), str(tmp_path / "runs")],
        env={**without_fork_server(), "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (name, shown, traffic, losses), (*_, expected) = map(json.loads, done.stdout.splitlines())
    assert name.startswith(f"{example}_fp32_gpus2_bs1_sl32_ga2")
    assert shown == label
    assert {what: traffic[what] for what in of_step} == of_step
    assert len(losses) == 6
    assert losses == pytest.approx(expected, abs=tolerance)
    assert losses[-1] < losses[0] - 0.1
