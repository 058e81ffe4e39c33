"""Checks this machine: what it can run, what is missing, and how to fix it. Changes nothing."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from dsnb.execute import kernels
from dsnb.launcher import environment
from dsnb.run_folder import paths
from dsnb.system import hardware, interpreter

MIN_FREE_GIB = 5
State = Literal["ok", "warn", "bad"]


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    state: State
    what: str
    found: str
    advice: str = ""


def check(what: str, found: str, fine: object, advice: str, otherwise: State = "bad") -> Check:
    """Return the result of a check, with advice unless all is fine."""
    return Check("ok", what, found) if fine else Check(otherwise, what, found, advice)


def check_machine() -> list[Check]:
    """Check everything that a run needs."""
    return [*_machine(), *_compilers(), *_training(), *_notebooks()]


def _machine() -> Iterator[Check]:
    is_supported = (3, 11) <= sys.version_info < (3, 14)
    version = ".".join(map(str, sys.version_info[:3]))
    yield check("Python", version, is_supported, "install Python 3.11, 3.12 or 3.13")
    yield Check("ok", "CPU", f"{hardware.cores()} cores, {hardware.memory_gib():.0f} GiB of memory")
    gpus = hardware.gpus()
    names = ", ".join(sorted({f"{gpu.name} with {gpu.memory_gib:.0f} GiB" for gpu in gpus}))
    shown = f"{len(gpus)}: {names}; driver {hardware.driver_version()}" if gpus else "none"
    advice = "runs go to the CPU; with a GPU, check `nvidia-smi` and CUDA_VISIBLE_DEVICES"
    yield check("GPUs", shown, gpus, advice, "warn")
    root = paths.outputs_root()
    existing = next(path for path in (root, *root.parents) if path.exists())
    free_gib = shutil.disk_usage(existing).free / hardware.GIB
    shown, advice = f"{root}, {free_gib:.0f} GiB free", "make room, or set DSNB_OUTPUTS to another folder"
    if os.access(existing, os.W_OK):
        yield check("outputs", shown, free_gib > MIN_FREE_GIB, advice, "warn")
    else:
        yield Check("bad", "outputs", f"{shown}, not writable", advice)


def _compilers() -> Iterator[Check]:
    compiler = shutil.which("c++") or shutil.which("g++")
    yield check("C++ compiler", compiler or "none", compiler, "install g++ (Debian: apt install g++)")
    ninja = shutil.which("ninja", path=environment.for_ranks(hardware.default_device(), 1, 0.0)["PATH"])
    yield check("ninja", ninja or "none", ninja, "pip install ninja")
    if hardware.gpus():
        nvcc = Path(shutil.which("nvcc") or f"{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/bin/nvcc")
        advice = "install the CUDA toolkit and set CUDA_HOME: DeepSpeed compiles FusedAdam with it"
        yield check("nvcc", str(nvcc) if nvcc.exists() else "none", nvcc.exists(), advice)


def _training() -> Iterator[Check]:
    if missing := [name for name in ("torch", "deepspeed", "transformers") if find_spec(name) is None]:
        yield Check("bad", "training", f"without {', '.join(missing)}", "pip install 'dsnb[train]'")
        return
    probe = _probe()
    if "error" in probe:
        yield Check("bad", "training", probe["error"], "reinstall with pip install 'dsnb[train]'")
        return
    yield Check("ok", "training", ", ".join(f"{name} {probe[name]}" for name in ("torch", "deepspeed", "transformers")))
    if hardware.gpus() and not probe["cuda_works"]:
        built = f"no, built for CUDA {probe['cuda']}"
        yield Check("bad", "torch on GPU", built, "install a torch that fits the driver")
    names = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
    precisions = [names[name] for name in probe["precisions"] if name in names]
    yield Check("ok", "precisions", ", ".join(precisions + ["tf32"] * bool(probe["cuda_works"])))


def _probe() -> dict[str, Any]:
    command = interpreter.command("-m", "dsnb.train.probe")
    env = environment.for_ranks(hardware.default_device(), 1, 0.0)
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=180, check=False)
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return {"error": "importing torch, DeepSpeed and transformers took over 180 s"}
    except (ValueError, IndexError):
        return {"error": (done.stderr.strip().splitlines() or ["the imports crashed"])[-1]}


def _notebooks() -> Iterator[Check]:
    missing = [name for name in ("10_run", "20_compare", "90_report") if not paths.notebook_template(name).is_file()]
    folder = paths.notebook_template("10_run").parent
    yield check("notebooks", f"without {missing}" if missing else str(folder), not missing, "check dsnb out again")
    if other := kernels.foreign_kernelspec():
        advice = "notebooks that are opened in JupyterLab would run there: `jupyter kernelspec remove python3`"
        yield Check("warn", "Jupyter kernel", f"python3 starts {other}", advice)
    lab = find_spec("jupyterlab")
    yield check("JupyterLab", "there" if lab else "none", lab, "pip install 'dsnb[lab]'", "warn")
