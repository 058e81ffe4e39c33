"""`params/train_trainer.py` without an op of DeepSpeed that takes a minute to compile at the first start on a CPU."""

import atexit
import gc
import runpy
from pathlib import Path

import deepspeed

if __name__ == "__main__":
    deepspeed.ops.__compatible_ops__ = {}
    atexit.register(gc.freeze)  # else each rank takes 3 s to collect garbage when it ends
    script = Path(__file__).parents[2] / "params" / "train_trainer.py"
    runpy.run_path(str(script), run_name="__main__")
