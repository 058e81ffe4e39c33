"""Describes the machine of a run and its software, samples its GPUs, and sets the variables of the ranks."""

import contextlib
import fnmatch
import os
import platform
import re
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from dsnb.base.system import hardware, interpreter, launch_clock
from dsnb.settings.records.paths import PACKAGE
from dsnb.version import __version__

NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
PACKAGES = ("torch", "deepspeed", "transformers", "papermill", "numpy")
VARIABLES: dict[str, list[str]] = tomllib.loads(
    Path(__file__).with_name("variables.toml").read_text("utf-8")
)
"""Patterns of environment variables, by what is done with them."""
_SECRET = re.compile(
    "(^|_)(TOKEN|SECRET|PASS|PASSWORD|PASSWD|PWD|CREDENTIALS?|KEY|APIKEY|AUTH)(_|$)", re.IGNORECASE
)
ALLOCATOR_VARIABLES = VARIABLES["allocator"]
SAMPLE_INTERVAL_S = 0.25


def describe(ranks: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Describe this machine and the variables of its ranks, without the user's name.

    Variables that dsnb sets itself follow from its version and the settings, and are left out.
    """
    home = str(Path.home())
    recorded = {
        name: ranks[name] for name in sorted(os.environ) if name in ranks and is_recorded(name)
    }
    return {
        "host": socket.gethostname(),
        "os": platform.platform(terse=True),
        "cpu": hardware.cpu_facts().get("model name", platform.machine()),
        "cores": hardware.cores(),
        "memory_gib": round(hardware.memory_gib(), 1),
        "gpus": [
            {"name": gpu.name, "memory_gib": round(gpu.memory_gib, 1)} for gpu in hardware.gpus()
        ],
        "clocks": hardware.clocks(),
        "driver": hardware.driver_version(),
        "python": platform.python_version(),
        "dsnb": __version__,
        **{name: _version(name) for name in PACKAGES},
        "nccl_package": next(filter(None, map(_version, NCCL_PACKAGES)), None),
        "git_commit": _git_commit(),
        "date_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "variables": {name: value.replace(home, "~")[:100] for name, value in recorded.items()},
    }


def is_recorded(name: str) -> bool:
    """Return whether an environment variable is recorded; names that suggest a secret never are."""
    return (
        matches(name, "recorded")
        and not matches(name, "set_by_launchers")
        and not _SECRET.search(name)
    )


def without_launcher(variables: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables without those that another launcher has set for its own ranks."""
    return {
        name: value for name, value in variables.items() if not matches(name, "set_by_launchers")
    }


def matches(name: str, group: str) -> bool:
    """Return whether an environment variable is of a group of `variables.toml`."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in VARIABLES[group])


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """Return dsnb's git commit, with `-dirty` for a modified checkout; None outside a checkout."""
    if not (PACKAGE.parent / ".git").exists():
        return None
    command = ["git", "-C", str(PACKAGE), "describe", "--always", "--dirty", "--abbrev=12"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            [*command, "--exclude=*"], capture_output=True, text=True, timeout=10, check=True
        )
        return done.stdout.strip() or None
    return None


def for_ranks(
    device: str, ranks: int, launched_at: float, allocator: str = "default"
) -> dict[str, str]:
    """Return the environment variables common to all ranks of a run on this host.

    `launched_at` is the time of the launch on this host's `dsnb.base.system.launch_clock`, the
    origin of every `t_s`. The setting `allocator` has no effect if the user has configured torch's
    allocator.
    """
    env = {
        **without_launcher(os.environ),
        **interpreter.SAFE_PATH,
    }  # inherited by processes that the ranks start
    env["DS_ACCELERATOR"] = device
    env["LOCAL_SIZE"] = str(ranks)  # DeepSpeed's number of devices on a CPU
    env[launch_clock.LAUNCHED_AT] = repr(launched_at)
    if not env.get("OMP_NUM_THREADS", "").isdecimal() or int(env["OMP_NUM_THREADS"]) < 1:
        env["OMP_NUM_THREADS"] = str(max(1, hardware.cores() // ranks))
    env["TOKENIZERS_PARALLELISM"] = "false"
    env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # NVML's order, by which GPUs are chosen and sampled
    # Always use the same ninja: torch recompiles every op if the version changes.
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
    # Lets torch count GPUs through NVML; initialising CUDA would break a later fork.
    env["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    if (
        device == "cuda"
        and allocator == "expandable"
        and env.keys().isdisjoint(ALLOCATOR_VARIABLES)
    ):
        env[ALLOCATOR_VARIABLES[0]] = "expandable_segments:True"
    # Kernels fused by reordering loops race on GPUs (torch 2.11): losses and gradients were wrong.
    env.setdefault("TORCHINDUCTOR_LOOP_ORDERING_AFTER_FUSION", "0")
    arches = env.get("TORCH_CUDA_ARCH_LIST")
    if arches:
        # `9.0` for `9.0a`: DeepSpeed 0.19.8's op builder fails on the suffix with "invalid literal
        # for int()".
        env["TORCH_CUDA_ARCH_LIST"] = re.sub(r"(\d+\.\d+)[af]", r"\1", arches)
    return env


@contextlib.contextmanager
def sampled(
    gpus: Sequence[int], take: Callable[[dict[str, Any]], None], launched_at_s: float
) -> Iterator[None]:
    """Sample use, memory, power and clock of GPUs (NVML indexes) while the block runs.

    A thread calls `take` with every sample; the origin of `t_s` is `launched_at_s`.
    """
    if not gpus:
        yield
        return
    ended = threading.Event()

    def sample() -> None:
        with hardware.nvml_session() as api:
            handles = {index: api.nvmlDeviceGetHandleByIndex(index) for index in gpus if api}
            while not ended.wait(SAMPLE_INTERVAL_S):
                for index, handle in handles.items():
                    t_s = round(launch_clock.now_s() - launched_at_s, 3)
                    take({"t_s": t_s, "gpu": index, **hardware.gpu_sample(api, handle)})

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
