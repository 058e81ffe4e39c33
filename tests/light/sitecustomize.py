"""Makes fork servers light for processes that have this folder on PYTHONPATH: there in half a second, without torch.

Their ranks run `tests.workers.stepper` in the place of the real worker.
"""

import sys
from types import ModuleType, SimpleNamespace

if "dsnb.train.fork_server" in sys.orig_argv:
    from tests.workers import stepper

    torch = ModuleType("torch")
    torch.cuda = SimpleNamespace(is_initialized=lambda: False)
    fakes = {name: ModuleType(name) for name in ("deepspeed", "transformers")}
    sys.modules |= {"torch": torch, **fakes, "dsnb.train.worker": stepper}
