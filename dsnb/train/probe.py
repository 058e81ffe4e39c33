"""`python -m dsnb.train.probe`: prints the capabilities of torch and DeepSpeed as one JSON line, for `dsnb doctor`.

It runs in a process of its own, because an import that crashes must not end `dsnb doctor`.
"""

import json

import deepspeed
import torch
import transformers
from deepspeed.accelerator import get_accelerator

if __name__ == "__main__":
    found = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cuda_works": torch.cuda.is_available(),
        "deepspeed": deepspeed.__version__,
        "transformers": transformers.__version__,
        "precisions": [str(dtype).removeprefix("torch.") for dtype in get_accelerator().supported_dtypes()],
    }
    print(json.dumps(found))
