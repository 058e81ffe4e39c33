"""Time fixed settings with several versions of DeepSpeed in turn: `python versions_measure.py OUT`.

Each version is a folder made by `pip install --no-deps --target`; a worker (`versions_worker.py`)
has one of them on its PYTHONPATH. A round starts fresh workers of all versions at once, then times
one setting with one version after the other before it goes on to the next setting, so that a drift
of the host falls on all versions alike. The order of the versions rotates, and every other time it
is reversed. One version takes part twice, under two names: what separates those two is noise.

Settings for one GPU run two at a time, one on each GPU and each on its half of the cores.
"""

import argparse
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).parent))
from versions_worker import SETTINGS, Setting

VERSIONS = ("0.13.1", "0.16.9", "0.17.6", "0.18.9", "0.19.8")
TWICE = "0.16.9"
"""The version that takes part twice, and to which the others are compared."""
BLOCKS: tuple[tuple[str, ...], ...] = (
    ("one-z0", "one-z2-acc8"),
    ("one-z1", "one-z3-ckpt"),
    ("one-z3", "one-z3-acc8"),
    ("two-z0",),
    ("two-z1",),
    ("two-z2-acc8",),
    ("two-z3",),
    ("two-z3-ckpt",),
    ("two-z3-acc8",),
)
"""What runs at the same time: a setting on each GPU, or one on both."""
START_S = 150.0
"""How long the workers of a round may take to start."""
ANSWER_S = 60.0
"""How long a setting may take besides its timed steps."""
WORKER = Path(__file__).parent / "versions_worker.py"


@dataclass(frozen=True)
class Arm:
    """A version under a name."""

    name: str
    version: str
    folder: Path


def arms_of(versions: Sequence[str], folders: str) -> list[Arm]:
    """Return an arm for each version, and a second one for the version that takes part twice."""
    arms = [Arm(version, version, Path(folders.format(version))) for version in versions]
    arms.append(Arm(f"{TWICE} again", TWICE, Path(folders.format(TWICE))))
    missing = [str(arm.folder) for arm in arms if not (arm.folder / "deepspeed").is_dir()]
    if missing:
        raise SystemExit(f"no DeepSpeed in {', '.join(missing)}; install the wheels there")
    return arms


def order(arms: Sequence[Arm], turn: int) -> list[Arm]:
    """Return the arms in the order of a turn: rotated, and reversed every other time."""
    first = turn % len(arms)
    rotated = [*arms[first:], *arms[:first]]
    return rotated[::-1] if turn % 2 else rotated


@dataclass
class Worker:
    """A process, and what it last said."""

    process: subprocess.Popen[str]
    log: Path
    hello: dict[str, Any] = field(default_factory=dict)

    def ask(self, request: dict[str, Any]) -> None:
        """Send a request."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def answer(self, until: float) -> dict[str, Any]:
        """Return the next answer, or an error when none comes by then."""
        output: IO[str] | None = self.process.stdout
        assert output is not None
        ready, _, _ = select.select([output], [], [], max(0.0, until - time.monotonic()))
        line = output.readline() if ready else ""
        if line:
            return json.loads(line)
        self.end()
        state = "ended" if ready else "gave no answer in time"
        return {"error": f"the process {state}: {tail(self.log)}"}

    def end(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


def tail(log: Path) -> str:
    """Return the last lines of a log."""
    return log.read_text(errors="replace")[-1500:]


def start(arm: Arm, gpus: Sequence[int], log: Path, port: int, all_gpus: int) -> list[Worker]:
    """Start a worker on each of these GPUs, which train together."""
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // all_gpus)
    workers = []
    for rank, gpu in enumerate(gpus):
        paths = [str(arm.folder), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(len(gpus)),
            "LOCAL_WORLD_SIZE": str(len(gpus)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": str(min(8, share)),
            "TOKENIZERS_PARALLELISM": "false",
        }
        file = log.with_suffix(f".{rank}.log")
        own = cores[gpu * share : (gpu + 1) * share] or cores
        command = ["taskset", "-c", ",".join(map(str, own)), sys.executable, str(WORKER)]
        with file.open("w") as errors:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        workers.append(Worker(process, file))
    return workers


@dataclass
class Round:
    """The workers of one round: of each arm, one alone on each GPU and a group on both."""

    groups: dict[tuple[str, str], list[Worker]]
    dead: set[tuple[str, str]] = field(default_factory=set)
    """Arms and groups of GPUs whose processes ended too early."""

    def end(self) -> None:
        """End all workers."""
        for workers in self.groups.values():
            for worker in workers:
                worker.end()


def kinds(gpus: int) -> dict[str, list[int]]:
    """Return the groups of GPUs: each alone, and both together."""
    return {"first": [0], "second": [1 % gpus], "both": [0, 1 % gpus]}


def begin(arms: Sequence[Arm], used: Iterable[str], gpus: int, logs: Path, number: int) -> Round:
    """Start the workers of all arms at once, and wait until each is ready."""
    groups = {}
    port = 29500 + 100 * number
    for arm in arms:
        for kind in used:
            log = logs / f"{number}-{arm.name.replace(' ', '-')}-{kind}"
            port += 1
            groups[arm.name, kind] = start(arm, kinds(gpus)[kind], log, port, gpus)
    made = Round(groups)
    until = time.monotonic() + START_S
    for key, workers in groups.items():
        for worker in workers:
            worker.hello = worker.answer(until)
            if "error" in worker.hello:
                made.dead.add(key)
                print("did not start:", key, worker.hello["error"], flush=True)
    return made


def group_of(block: Sequence[str]) -> list[tuple[str, str]]:
    """Return the setting and the group of GPUs of each part of a block."""
    if SETTINGS[block[0]].gpus == 2:
        return [(block[0], "both")]
    return list(zip(block, ("first", "second"), strict=False))


def run_block(
    block: Sequence[str],
    arm: Arm,
    made: Round,
    window_s: float,
    small: bool,
    failed: set[tuple[str, str]],
) -> list[dict[str, Any]]:
    """Time a block with one arm; return a row for each setting, and add to those that failed."""
    parts = [
        (name, kind)
        for name, kind in group_of(block)
        if (arm.name, kind) not in made.dead and (arm.name, name) not in failed
    ]
    for name, kind in parts:
        request = {"setting": asdict(shrunk(SETTINGS[name], small)), "window_s": window_s}
        for worker in made.groups[arm.name, kind]:
            worker.ask(request)
    rows = []
    for name, kind in parts:
        workers = made.groups[arm.name, kind]
        until = time.monotonic() + ANSWER_S + window_s
        answers = []
        for worker in workers:
            answers.append(worker.answer(until))
            if "error" in answers[-1]:
                until = min(until, time.monotonic() + 10)  # the others may wait for this one
        row = {"name": name, **answers[0], "peaks_gib": [each.get("peak_gib") for each in answers]}
        errors = [each["error"] for each in answers if "error" in each]
        if errors:
            row["error"] = errors[0]
            failed.add((arm.name, name))
        if any(worker.process.poll() is not None for worker in workers):
            made.dead.add((arm.name, kind))
        about = {**workers[0].hello}
        rows.append({**about, **row, "arm": arm.name, "version": arm.version})
    return rows


def shrunk(setting: Setting, small: bool) -> Setting:
    """Return a setting that a CPU can train in a moment, to try the script."""
    return replace(setting, model="tiny", micro_batch=1, seq_len=64) if small else setting


def main() -> None:
    """Measure until the time is up."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--logs", type=Path, default=Path("/tmp/versions-logs"))
    parser.add_argument("--seconds", type=float, default=440, help="start no block after this")
    parser.add_argument("--window", type=float, default=2.5, help="seconds of timed steps")
    parser.add_argument("--folders", default="/tmp/ds-{}", help="where each version is installed")
    parser.add_argument("--versions", nargs="+", default=VERSIONS)
    parser.add_argument("--backwards", action="store_true", help="begin with the last block")
    parser.add_argument("--first-round", type=int, default=1)
    parser.add_argument("--small", action="store_true", help="tiny models, to try the script")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    logs = args.logs
    logs.mkdir(exist_ok=True)
    arms = arms_of(args.versions, args.folders)
    blocks = BLOCKS[::-1] if args.backwards else BLOCKS
    number = args.first_round
    left = args.seconds
    longest = 0.0
    failed: set[tuple[str, str]] = set()
    started_s = 0.0
    with (args.out / "results.jsonl").open("a") as file:
        while left > started_s + 2 * longest:
            round_began = time.monotonic()
            made = begin(arms, ("first", "second", "both"), 2, logs, number)
            started_s = time.monotonic() - round_began
            print(f"round {number}: started in {started_s:.0f} s", flush=True)
            for index, block in enumerate(blocks):
                block_began = time.monotonic()
                left = args.seconds - (block_began - began)
                if left < longest:
                    break
                for position, arm in enumerate(order(arms, number + index)):
                    for row in run_block(block, arm, made, args.window, args.small, failed):
                        row |= {"round": number, "position": position, "at_s": block_began - began}
                        file.write(json.dumps(row) + "\n")
                        file.flush()
                        rate = row.get("tokens_per_s", 0.0)
                        text = row.get(
                            "error", f"{rate:,.0f} tokens/s {row.get('whole_s', 0):.1f} s"
                        )
                        print(number, row["name"], arm.name, text[-300:], flush=True)
                longest = max(longest, time.monotonic() - block_began)
            made.end()
            left = args.seconds - (time.monotonic() - began)
            number += 1
    print(f"ended after {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
