"""Code that runs inside the ranks, which import torch, DeepSpeed and transformers, and never pandas.

It hides torchao, which transformers imports if it finds it: that takes each process half a second,
and initialises CUDA before ranks are forked. `dsnb.models.quantized` reveals it where a setting needs
it. `__all__` lists the modules for notebooks.
"""

import sys

sys.modules.setdefault("torchao", None)  # type: ignore[arg-type]

__all__ = ["data", "engine", "meter", "worker"]
