"""Code that runs inside the ranks, which import torch, DeepSpeed and transformers, and never pandas.

Apart from this package, only the modules of `dsnb.prediction` that trace models import torch, in separate processes.

It hides torchao, which transformers imports if it finds it: that takes each process half a second, and initialises CUDA
before ranks are forked. Only `model.multiply_in_fp8` needs it.
"""

import sys

sys.modules.setdefault("torchao", None)  # type: ignore[arg-type]
