"""Params files of one and of four small runs on the CPU, and the command that makes them."""

import os
import sys

from tests import ROOT

ONE_RUN = """
name: small
question: Does it resume?
order: listed
defaults: {model: gpt2-tiny, data: stdlib, precision: fp32, device: cpu, micro_batch_size: 2, seq_len: 32,
           warmup_steps: 1, steps: 4, time_limit_s: 240}
"""
PARAMS = f"{ONE_RUN}grid: {{zero_stage: [0, 3]}}\nrepeats: 2\n"
NAMES = ["zs0_fp32_gpus1_bs2_sl32_stdlib", "zs3_fp32_gpus1_bs2_sl32_stdlib"]


def command(params, *more):
    """Return the command that makes the sweep of a params file, in `out` beside it."""
    return [
        sys.executable,
        "-m",
        "dsnb",
        "sweep",
        str(params),
        "--output",
        str(params.parent / "out"),
        *more,
    ]


def own_server():
    """Return the environment without the test session's fork server: a user's sweep starts another one."""
    return {
        key: value for key, value in os.environ.items() if not key.startswith("DSNB_FORK_SERVER")
    }


def light_server():
    """Return the same for a server without torch, whose ranks make a step every 20 ms: for tests of the processes."""
    path = os.pathsep.join([str(ROOT / "tests" / "light"), str(ROOT)])
    return own_server() | {"PYTHONPATH": path, "DSNB_TEST_STEP_S": "0.02"}
