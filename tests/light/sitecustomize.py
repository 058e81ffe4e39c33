"""Makes processes light that have this folder on PYTHONPATH: servers and ranks without torch, kernels without seaborn.

The server is there in half a second, and its ranks run `tests.workers.stepper` in the place of the real worker.
"""

import sys
from types import ModuleType, SimpleNamespace


def fake(name, **content):
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(content)


if {"dsnb.measure.train.fork_server", "dsnb.measure.train.start"} & set(sys.orig_argv):
    from tests.workers import stepper

    sys.modules["dsnb.measure.train.worker"] = stepper
if "dsnb.measure.train.fork_server" in sys.orig_argv:
    fake("torch", cuda=SimpleNamespace(is_initialized=lambda: False))
    fake("deepspeed")
    fake("transformers")
elif {"dsnb.measure.execute.kernel_process", "ipykernel_launcher"} & set(sys.orig_argv):
    fake("dsnb.show.render.plots", run_steps=lambda _: None)
    fake("dsnb.show.render.run_card", card=lambda _: None)
