"""`python -m dsnb.train.probe`: prints as one JSON line what torch and DeepSpeed can do here, for `dsnb doctor`.

Run in a process of its own: imports that fail or crash must not take the doctor with them.
"""

import json


def main() -> None:
    """Print the findings."""
    import deepspeed
    import torch
    import transformers
    from deepspeed.accelerator import get_accelerator

    found = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cuda_works": torch.cuda.is_available(),
        "deepspeed": deepspeed.__version__,
        "transformers": transformers.__version__,
        "precisions": [str(dtype).removeprefix("torch.") for dtype in get_accelerator().supported_dtypes()],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
