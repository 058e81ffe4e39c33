"""Run folders as the recorder of a user's script writes them, made of dsnb's own without starting ranks."""

import json
import secrets
import shutil
from pathlib import Path

from dsnb.settings.experiment import OF_TRAINING
from dsnb.settings.records.paths import RunPaths

TRAINER = "transformers Trainer 5.23.0"
SEEN = (
    "model", "strategy", "zero_stage", "optimizer", "lora_rank", "tensor_parallel", "pipeline_parallel", "precision",
    "mixed_precision", "attention", "compile", "grad_accum", "activation_checkpointing", "micro_batch_size", "seq_len",
    "gpus", "nodes", "device", "steps", "warmup_steps",
)  # fmt: skip
"""Settings that a recorder sees in a training that hides nothing."""
QUICKSTART = Path(__file__).parents[2] / "outputs/examples/quickstart"
ONE_RANK = QUICKSTART / "plain_bf16_gpus1_bs8_sl128_stdlib/run1"
TWO_RANKS = QUICKSTART / "zs1_bf16_gpus2_bs8_sl128_stdlib/run1"


def record(source: Path, folder: Path, program: str = TRAINER, seen=SEEN, **settings) -> RunPaths:
    """Copy a run folder of dsnb as one of another program; settings that are not seen or given are null."""
    run = RunPaths(folder)
    shutil.copytree(source, run.dir)
    for path in (run.deepspeed, run.notebook):
        path.unlink(missing_ok=True)
    own = json.loads(run.experiment.read_text())
    known = {name: own[name] for name in seen} | {"attention": "sdpa"} | settings
    written = {name: known.get(name) for name in OF_TRAINING}
    about = {"program": program, "run_id": secrets.token_hex(8)}
    run.experiment.write_text(json.dumps({**written, **about}))
    shown = {name: value for name, value in known.items() if value is not None}
    (run.dir / "observed.json").write_text(json.dumps({"program": program, "settings": shown}))
    result = json.loads(run.result.read_text())
    result.pop("exit_codes", None)
    run.result.write_text(json.dumps(result))
    return run
