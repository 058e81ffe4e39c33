"""`dsnb doctor`: checks what this machine, or the hosts of a hostfile, can run, and says how to fix what is missing."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from dsnb.base.system import hardware, interpreter
from dsnb.measure.launcher import environment, hosts
from dsnb.measure.launcher.hosts import Node
from dsnb.settings import auto_precision
from dsnb.settings.experiment import Experiment
from dsnb.settings.records import node_comparison, paths

MIN_FREE_GIB = 5
MAX_OFFSET_S = 1.0
"""Maximum offset of a host's clock; larger ones make logs hard to compare. Measured times are
corrected."""
LIBRARIES = ("torch", "deepspeed", "transformers")
NUMBERS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
"""Names of number formats in torch -> in dsnb."""
State = Literal["ok", "note", "missing"]


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    state: State
    what: str
    finding: str
    advice: str = ""


def check(
    what: str, finding: str, fine: object, advice: str, otherwise: State = "missing"
) -> Check:
    """Return the result of a check, with advice unless it passed."""
    if fine:
        return Check("ok", what, finding)
    return Check(otherwise, what, finding, advice)


def installed(what: str, found: str | None, advice: str, otherwise: State = "missing") -> Check:
    """Return the check of a program: where it was found, or none."""
    return check(what, found or "none", found, advice, otherwise)


def check_machine() -> list[Check]:
    """Check everything that a run needs."""
    lab = "installed" if find_spec("jupyterlab") else None
    jupyter = installed("JupyterLab", lab, "pip install 'dsnb[lab]'", "note")
    return [*_machine(), *_compilers(), *_training(), jupyter]


def _machine() -> Iterator[Check]:
    is_supported = (3, 11) <= sys.version_info < (3, 14)
    yield check(
        "Python", platform.python_version(), is_supported, "install Python 3.11, 3.12 or 3.13"
    )
    yield Check("ok", "CPU", f"{hardware.cores()} cores, {hardware.memory_gib():.0f} GiB of memory")
    gpus = hardware.gpus()
    names = sorted({f"{gpu.name} with {gpu.memory_gib:.0f} GiB" for gpu in gpus})
    shown = "none"
    if gpus:
        shown = f"{len(gpus)}: {', '.join(names)}; driver {hardware.driver_version()}"
    advice = "runs use the CPU; with a GPU, check `nvidia-smi` and CUDA_VISIBLE_DEVICES"
    yield check("GPUs", shown, gpus, advice, "note")
    for name in sorted({gpu.name for gpu in gpus}):
        if hardware.peak_tflops(name, "fp32") is None:
            advice = "runs have no MFU, and predictions need another --gpu"
            yield Check("note", "data sheet", f"none of {name}", advice)
    root = paths.outputs_root()
    existing = next(path for path in (root, *root.parents) if path.exists())
    free_gib = shutil.disk_usage(existing).free / hardware.GIB
    shown = f"{root}, {free_gib:.0f} GiB free"
    advice = "make room, or set DSNB_OUTPUTS to another folder"
    if os.access(existing, os.W_OK):
        yield check("outputs", shown, free_gib > MIN_FREE_GIB, advice, "note")
    else:
        yield Check("missing", "outputs", f"{shown}, not writable", advice)


def _compilers() -> Iterator[Check]:
    compiler = shutil.which("c++") or shutil.which("g++")
    yield installed("C++ compiler", compiler, "install g++ (Debian: apt install g++)")
    path = environment.for_ranks(hardware.default_device(), 1, 0.0)["PATH"]
    yield installed("ninja", shutil.which("ninja", path=path), "pip install ninja")
    if hardware.gpus():
        home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
        nvcc = shutil.which("nvcc") or shutil.which(f"{home}/bin/nvcc")
        advice = "install the CUDA toolkit and set CUDA_HOME: DeepSpeed compiles FusedAdam with it"
        yield installed("nvcc", nvcc, advice)


def _training() -> Iterator[Check]:
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        finding = f"without {', '.join(missing)}"
        yield Check("missing", "training", finding, "pip install 'dsnb[train]'")
        return
    probe = _probe()
    if "error" in probe:
        advice = "reinstall with pip install 'dsnb[train]'"
        yield Check("missing", "training", probe["error"], advice)
        return
    yield Check("ok", "training", ", ".join(f"{name} {probe[name]}" for name in LIBRARIES))
    if hardware.gpus() and not probe["cuda_works"]:
        built = f"no, built for CUDA {probe['cuda']}"
        yield Check("missing", "torch on GPU", built, "install a torch that fits the driver")
    precisions = [NUMBERS[name] for name in probe["precisions"] if name in NUMBERS]
    yield Check("ok", "precisions", ", ".join(precisions + ["tf32"] * bool(probe["cuda_works"])))
    yield Check("ok", "precision: auto", _auto_precision())


def _auto_precision() -> str:
    """Say what `precision: auto` is on this machine, and why."""
    device = hardware.default_device()
    chosen = auto_precision.precision_of(device)
    if device == "cuda":
        return chosen
    ratio = auto_precision.bf16_over_fp32()
    if ratio is None:
        return f"{chosen}; a product in bf16 could not be timed"
    return f"{chosen}; a product in bf16 takes {ratio:.1f} times as long as in fp32"


def _probe() -> dict[str, Any]:
    command = interpreter.command("-m", "dsnb.measure.train.ask_deepspeed")
    env = environment.for_ranks(hardware.default_device(), 1, 0.0)
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=180, check=False
        )
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return {"error": "importing torch, DeepSpeed and transformers took over 180 s"}
    except (ValueError, IndexError):
        return {"error": (done.stderr.strip().splitlines() or ["the imports crashed"])[-1]}


def check_hosts(experiment: Experiment) -> list[Check]:
    """Check every host of an experiment with a hostfile; an unreachable host is a failed check."""
    root = paths.outputs_root().absolute()
    folder = next(path for path in (root, *root.parents) if path.is_dir())
    checks: list[Check] = []
    with hosts.connected(experiment) as nodes:
        hosts.ask(experiment, nodes, folder)
        reached = [node for node in nodes if node.failure is None]
        for node in reached:
            checks += _host(node)
        for node in nodes:
            if node.failure is not None:
                why = node.failure.removeprefix(f"{node.host.name} was not reached: ")
                checks.append(Check("missing", node.host.name, "not reached", why))
        environments = [(node.host.name, node.facts["environment"]) for node in reached]
        for sentence in node_comparison.environment_differences(environments).values():
            checks.append(Check("note", "differences", sentence, "install the same everywhere"))
        if reached:
            checks.append(_outputs(reached, folder))
    return checks


def _host(node: Node) -> Iterator[Check]:
    name, facts = node.host.name, node.facts
    machine = facts["environment"]
    gpus = machine.get("gpus") or []
    parts = [
        f"{facts['address']} on {facts['interface']}",
        f"{len(gpus)} x {gpus[0]['name']}, driver {machine.get('driver')}" if gpus else "no GPU",
        f"{machine['cores']} cores, {facts['memory_free_gib']} of {machine['memory_gib']} GiB free",
        f"disk {facts['free_gib']} GiB free",
        f"torch {machine.get('torch')}, DeepSpeed {machine.get('deepspeed')}",
    ]
    yield Check("ok", name, "; ".join(parts))
    slots = max(node.host.devices) + 1
    offset_s = facts["clock_offset_s"]
    compiler = "install g++: DeepSpeed compiles its ops on every host"
    busy = "wait for it, or leave the host out with --set exclude=HOST"
    problems: list[tuple[object, State, str, str]] = [
        (
            0 < len(gpus) < slots,
            "missing",
            f"{len(gpus)} GPUs and {slots} slots",
            "correct the hostfile",
        ),
        (
            abs(offset_s) > MAX_OFFSET_S,
            "note",
            f"its clock is {offset_s:+.1f} s off",
            "start an NTP service",
        ),
        (facts["busy"], "note", facts["busy"], busy),
        (
            facts["free_gib"] < MIN_FREE_GIB,
            "note",
            f"{facts['free_gib']} GiB of disk free",
            "make room",
        ),
        (not facts["compiler"], "missing", "no C++ compiler", compiler),
    ]
    for applies, state, finding, advice in problems:
        if applies:
            yield Check(state, name, finding, advice)


def _outputs(reached: list[Node], folder: Path) -> Check:
    without = [node.host.name for node in reached if not node.facts["sees_folder"]]
    if not without:
        return Check("ok", "outputs", f"{folder} is shared by all hosts")
    advice = "set DSNB_OUTPUTS, or --output, to a folder on a file system that all hosts share"
    return Check("missing", "outputs", f"{', '.join(without[:5])} does not see {folder}", advice)
