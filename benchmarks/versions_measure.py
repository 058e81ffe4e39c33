"""Time fixed settings with several versions of DeepSpeed in turn: `python -m benchmarks.versions_measure OUT`.

Each version is a folder made by `pip install --no-deps --target`; a worker (`versions_worker.py`)
has one of them on its PYTHONPATH. A round starts fresh workers of all versions at once, then times
one setting with one version after the other before it goes on to the next setting, so that a drift
of the host falls on all versions alike. The order of the versions rotates, and every second
rotation is reversed. One version takes part twice, under two names: what separates those two is noise.

Settings for one GPU run two at a time, one on each GPU and each on its half of the cores.
"""

import argparse
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from benchmarks.versions_worker import SETTINGS, Setting

VERSIONS = ("0.13.1", "0.16.9", "0.17.6", "0.18.9", "0.19.8")
TWICE = "0.16.9"
"""The version that takes part twice, and to which the others are compared."""
BLOCKS: dict[str, tuple[tuple[str, ...], ...]] = {
    "all": (
        ("one-z0", "one-z2-acc8"),
        ("one-z1", "one-z3-ckpt"),
        ("one-z3", "one-z3-acc8"),
        ("two-z0",),
        ("two-z1",),
        ("two-z2-acc8",),
        ("two-z3",),
        ("two-z3-ckpt",),
        ("two-z3-acc8",),
    ),
    "large": (
        ("one-z1-large", "one-z3-ckpt-large"),
        ("one-z3-large", "one-z3-acc8-large"),
        ("two-z3-large",),
        ("two-z1-large",),
        ("two-z3-ckpt-large",),
        ("two-z3-acc8-large",),
    ),
}
"""What runs at the same time: a setting on each GPU, or one on both."""
KINDS = {"first": [0], "second": [1], "both": [0, 1]}
"""Groups of GPUs, each with processes of its own."""
START_S = 150.0
"""How long the workers of a round may take to start."""
RESTART_S = 40.0
"""How long the workers that replace ended ones may take."""
ANSWER_S = 40.0
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
    """Return the arms in the order of a turn: rotated, and reversed in every second rotation."""
    first = turn % len(arms)
    rotated = [*arms[first:], *arms[:first]]
    is_reversed = turn // len(arms) % 2 == 1
    return rotated[::-1] if is_reversed else rotated


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
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGUSR1)  # it writes where it is into its log
            time.sleep(1)
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


def start(arm: Arm, gpus: Sequence[int], log: Path, port: int) -> list[Worker]:
    """Start a worker on each of these GPUs, which train together."""
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // len(KINDS["both"]))
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
        file = log.with_name(f"{log.name}-{rank}.log")
        own = cores[gpu * share : (gpu + 1) * share] or cores
        command = ["taskset", "-c", ",".join(map(str, own)), sys.executable, "-P", str(WORKER)]
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

    number: int
    logs: Path
    groups: dict[tuple[str, str], list[Worker]] = field(default_factory=dict)
    dead: set[tuple[str, str]] = field(default_factory=set)
    """Arms and groups of GPUs whose processes do not start."""
    started: int = 0

    def start(self, arm: Arm, kind: str) -> None:
        """Start the workers of an arm on a group of GPUs."""
        self.started += 1
        name = f"{self.number}-{self.started}-{arm.name.replace(' ', '-')}-{kind}"
        port = 29500 + 100 * self.number + self.started
        self.groups[arm.name, kind] = start(arm, KINDS[kind], self.logs / name, port)

    def wait(self, arm: Arm, kind: str, until: float) -> None:
        """Wait until these workers are ready."""
        for worker in self.groups[arm.name, kind]:
            worker.hello = worker.answer(until)
            if "error" in worker.hello:
                self.dead.add((arm.name, kind))
                print("did not start:", arm.name, kind, worker.hello["error"], flush=True)

    def restart(self, arm: Arm, kind: str) -> None:
        """Replace workers of which one has ended, so that a failure costs one setting only."""
        for worker in self.groups[arm.name, kind]:
            worker.end()
        self.start(arm, kind)
        self.wait(arm, kind, time.monotonic() + RESTART_S)

    def end(self) -> None:
        """End all workers."""
        for workers in self.groups.values():
            for worker in workers:
                worker.end()


def begin(arms: Sequence[Arm], logs: Path, number: int) -> Round:
    """Start the workers of all arms at once, and wait until each is ready."""
    made = Round(number, logs)
    for arm in arms:
        for kind in KINDS:
            made.start(arm, kind)
    until = time.monotonic() + START_S
    for arm in arms:
        for kind in KINDS:
            made.wait(arm, kind, until)
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
            row["error"] = " | ".join(errors)
            failed.add((arm.name, name))
        if any(worker.process.poll() is not None for worker in workers):
            made.restart(arm, kind)
        rows.append({**workers[0].hello, **row, "arm": arm.name, "version": arm.version})
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
    parser.add_argument("--blocks", choices=list(BLOCKS), default="all")
    parser.add_argument("--backwards", action="store_true", help="begin with the last block")
    parser.add_argument("--rounds", type=int, default=100, help="make no more than these")
    parser.add_argument("--first-round", type=int, default=1)
    parser.add_argument("--small", action="store_true", help="tiny models, to try the script")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    args.logs.mkdir(parents=True, exist_ok=True)
    arms = arms_of(args.versions, args.folders)
    blocks = BLOCKS[args.blocks][::-1] if args.backwards else BLOCKS[args.blocks]
    with (args.out / "results.jsonl").open("a") as file:
        measure(args, arms, blocks, file, began)
    print(f"ended after {time.monotonic() - began:.0f} s", flush=True)


def measure(
    args: argparse.Namespace,
    arms: Sequence[Arm],
    blocks: Sequence[Sequence[str]],
    file: IO[str],
    began: float,
) -> None:
    """Make rounds until no arm of a block would end in time."""
    failed: set[tuple[str, str]] = set()
    longest = started_s = 0.0
    last = began + args.seconds
    for number in range(args.first_round, args.first_round + args.rounds):
        if time.monotonic() + started_s + 2 * longest > last:
            break
        round_began = time.monotonic()
        made = begin(arms, args.logs, number)
        started_s = time.monotonic() - round_began
        print(f"round {number}: started in {started_s:.0f} s", flush=True)
        for index, block in enumerate(blocks):
            for position, arm in enumerate(order(arms, number + index)):
                arm_began = time.monotonic()
                if arm_began + longest > last:
                    break
                rows = run_block(block, arm, made, args.window, args.small, failed)
                for row in rows:
                    row |= {"round": number, "position": position, "at_s": arm_began - began}
                    write(row, file)
                longest = max(longest, time.monotonic() - arm_began)
        made.end()


def write(row: dict[str, Any], file: IO[str]) -> None:
    """Append a row to a file, and print it."""
    file.write(json.dumps(row) + "\n")
    file.flush()
    text = f"{row.get('tokens_per_s', 0):,.0f} tokens/s, {row.get('whole_s', 0):.1f} s"
    if "error" in row:
        text = row["error"][-300:]
    print(row["round"], row["name"], row["arm"], text, flush=True)


if __name__ == "__main__":
    main()
