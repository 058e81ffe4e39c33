"""Code that runs inside the ranks: the only package that imports torch, DeepSpeed and transformers; never pandas.

torchao is hidden: transformers imports it if it finds it, which initialises CUDA before ranks are forked.
"""

import sys

sys.modules.setdefault("torchao", None)  # type: ignore[arg-type]
