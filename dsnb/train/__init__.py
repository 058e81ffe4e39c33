"""Code that runs inside the ranks: the only package that imports torch, DeepSpeed and transformers; never pandas.

It hides torchao, which transformers imports if it finds it: that takes each process half a second, and initialises CUDA
before ranks are forked. Only `model.multiply_in_fp8` needs it.
"""

import sys

sys.modules.setdefault("torchao", None)  # type: ignore[arg-type]
