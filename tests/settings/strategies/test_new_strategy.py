"""A new strategy is one file: found by its entry point, asked its questions, and trained by real ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).with_name("examples")
CLASSES = {"fsdp_kept": "FsdpKept", "ddp_rounded": "DdpRounded"}
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
from dsnb.measure.launcher.local import shared_servers
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.strategies import ModelSize

model = ModelSize(parameters=1000, trained=1000, layers=2, hidden=10)

def train(settings):
    experiment = Experiment(**settings)
    run = RunPaths(Path(sys.argv[2], experiment.strategy))
    launch(experiment, run.dir, progress=False).raise_for_status()
    traffic = experiment.parallel_strategy.traffic(experiment, model)
    losses = [row["loss"] for row in json_files.read_lines(run.steps)]
    print(json.dumps([experiment.name, experiment.label, vars(traffic), losses]))

with shared_servers({"cpu"}):
    for settings in json.loads(sys.argv[1]):
        train(settings)
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


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train with each example and in one process; give the name, label, traffic and losses of each."""
    home = tmp_path_factory.mktemp("strategies")
    for example, class_name in CLASSES.items():
        install(example, class_name, home)
    path = os.pathsep.join([str(home), *filter(None, [os.environ.get("PYTHONPATH")])])
    asked = [*({**SETTINGS, "strategy": name} for name in CLASSES), {**SETTINGS, **ONE_PROCESS}]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(asked), str(home / "runs")],
        env={**without_fork_server(), "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = map(json.loads, done.stdout.splitlines())
    return dict(zip([*CLASSES, "plain"], found, strict=True))


@pytest.mark.parametrize(
    ("example", "label", "of_step", "tolerance"),
    [
        ("fsdp_kept", "FSDP, weights kept", {"all_gather": 2 * 1000 * 4 / 2}, 1e-4),
        ("ddp_rounded", "DDP, bf16 buckets", {"all_reduce": 1000 * 2}, 2e-2),
    ],
)
def test_a_strategy_in_one_file_trains_as_one_process_does(
    trained, example, label, of_step, tolerance
):
    name, shown, traffic, losses = trained[example]
    (*_, expected) = trained["plain"]
    assert name.startswith(f"{example}_fp32_gpus2_bs1_sl32_ga2")
    assert shown == label
    assert {what: traffic[what] for what in of_step} == of_step
    assert len(losses) == 6
    assert losses == pytest.approx(expected, abs=tolerance)
    assert losses[-1] < losses[0] - 0.1
