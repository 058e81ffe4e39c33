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
from dsnb.launcher import environment, op_builds
from dsnb.run_folder import paths
from dsnb.system import hardware, interpreter

LEAST_FREE_GIB = 5


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    state: Literal["ok", "warn", "bad"]
    what: str
    found: str
    advice: str = ""


def check_machine() -> list[Check]:
    """Check everything that a run needs."""
    return [*_machine(), *_compilers(), *_training(), *_notebooks(), *_environment()]


def _machine() -> Iterator[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    fine = (3, 11) <= sys.version_info < (3, 14)
    yield Check("ok" if fine else "bad", "Python", version, "" if fine else "install Python 3.11, 3.12 or 3.13")
    yield Check("ok", "CPU", f"{hardware.cores()} cores, {hardware.memory_gib():.0f} GiB of memory")
    found = hardware.gpus()
    if found:
        names = ", ".join(sorted({f"{gpu.name} with {gpu.memory_gib:.0f} GiB" for gpu in found}))
        yield Check("ok", "GPUs", f"{len(found)}: {names}; driver {hardware.driver_version()}")
    else:
        yield Check(
            "warn", "GPUs", "none", "runs go to the CPU; with a GPU, check `nvidia-smi` and CUDA_VISIBLE_DEVICES"
        )
    root = paths.outputs_root()
    existing = next(path for path in (root, *root.parents) if path.exists())
    free_gib = shutil.disk_usage(existing).free / hardware.GIB
    writable = os.access(existing, os.W_OK)
    state: Literal["ok", "warn", "bad"] = "bad" if not writable else "ok" if free_gib > LEAST_FREE_GIB else "warn"
    advice = "" if state == "ok" else "make room, or set DSNB_OUTPUTS to another folder"
    yield Check(state, "outputs", f"{root}, {free_gib:.0f} GiB free" + ("" if writable else ", not writable"), advice)


def _compilers() -> Iterator[Check]:
    compiler = shutil.which("c++") or shutil.which("g++")
    yield Check(
        "ok" if compiler else "bad",
        "C++ compiler",
        compiler or "none",
        "" if compiler else "install g++ (Debian: apt install g++)",
    )
    ninja = shutil.which("ninja", path=environment.for_ranks(hardware.default_device(), 1, 0.0)["PATH"])
    yield Check("ok" if ninja else "bad", "ninja", ninja or "none", "" if ninja else "pip install ninja")
    if hardware.gpus():
        nvcc = shutil.which("nvcc") or (Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "nvcc")
        there = Path(nvcc).exists()
        advice = "" if there else "install the CUDA toolkit and set CUDA_HOME: DeepSpeed compiles FusedAdam with it"
        yield Check("ok" if there else "bad", "nvcc", str(nvcc) if there else "none", advice)


def _training() -> Iterator[Check]:
    missing = [name for name in ("torch", "deepspeed", "transformers") if find_spec(name) is None]
    if missing:
        yield Check("bad", "training", f"without {', '.join(missing)}", "pip install 'dsnb[train]'")
        return
    found = _probe()
    if "error" in found:
        yield Check("bad", "training", found["error"], "reinstall with pip install 'dsnb[train]'")
        return
    versions = ", ".join(f"{name} {found[name]}" for name in ("torch", "deepspeed", "transformers"))
    yield Check("ok", "training", versions)
    if hardware.gpus() and not found["cuda_works"]:
        yield Check(
            "bad", "torch on GPU", f"no, built for CUDA {found['cuda']}", "install a torch that fits the driver"
        )
    names = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
    able = [names[name] for name in found["precisions"] if name in names]
    yield Check("ok", "precisions", ", ".join(able + (["tf32"] if found["cuda_works"] else [])))


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
    state: Literal["ok", "bad"] = "bad" if missing else "ok"
    folder = paths.notebook_template("10_run").parent
    yield Check(
        state, "notebooks", f"without {missing}" if missing else str(folder), "check dsnb out again" if missing else ""
    )
    if other := kernels.foreign_kernelspec():
        advice = "notebooks that are opened in JupyterLab would run there: `jupyter kernelspec remove python3`"
        yield Check("warn", "Jupyter kernel", f"python3 starts {other}", advice)
    lab = find_spec("jupyterlab") is not None
    yield Check(
        "ok" if lab else "warn", "JupyterLab", "there" if lab else "none", "" if lab else "pip install 'dsnb[lab]'"
    )


def _environment() -> Iterator[Check]:
    arches = os.environ.get("TORCH_CUDA_ARCH_LIST", "")
    plain = environment.plain_architectures(arches)
    if arches != plain:
        advice = f"DeepSpeed's op builder fails on the suffix; dsnb starts ranks with {plain}"
        yield Check("warn", "TORCH_CUDA_ARCH_LIST", arches, advice)
    for lock in op_builds.stale_locks():
        yield Check("warn", "op build", f"stale lock {lock}", "the next run removes it")
