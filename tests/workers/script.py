"""A user's script as dsnb's recorder would leave it, without torch: it writes the records of its run folder."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--how", default="well")
parser.add_argument("--wait-for")
parser.add_argument("rest", nargs="*")
asked = parser.parse_args()
run = Path(os.environ["DSNB_RUN_DIR"])
settings = json.loads((run / "experiment.json").read_text())


def write(name, record):
    (run / f"{name}.part").write_text(json.dumps(record))
    (run / f"{name}.part").rename(run / name)


print("arguments:", json.dumps(sys.argv[1:]))
if asked.how == "silently":
    sys.exit(0)
if asked.how == "raises":
    raise ValueError("no such optimizer: 'sgdx'")
if asked.how == "deaf":
    asked.batch = 8
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
write("pids", [os.getpid(), child.pid])
seen = {
    "micro_batch_size": asked.batch,
    "activation_checkpointing": asked.checkpointing,
    "seq_len": 64,
    "gpus": 1,
    "strategy": "plain",
}
write("observed.json", {"program": "own", "settings": seen})
total = settings["warmup_steps"] + settings["steps"]
for number in range(1, asked.steps + 1):
    while asked.wait_for and number == 2 and Path(asked.wait_for).exists():
        time.sleep(0.05)
    time.sleep(0.01)
    if number <= total:
        phase = "warmup" if number <= settings["warmup_steps"] else "timed"
        row = {
            "step": number,
            "phase": phase,
            "loss": 1 / number,
            "step_time_s": 0.01,
            "tokens": 64,
        }
        with open(run / "steps.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")
    if number == total:
        write("worker.json", {"phases_s": {}, "ended_s": 1.0})
    if asked.how == "killed" and number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
