"""`python -m tests.support.light_server SOCKET`: the real fork server without torch, for ranks that do nothing with it.

It is there in half a second instead of ten, on a host that was just switched on as well. What a run's notebook starts
is the real worker; here it is a fake one.
"""

import os
import sys

from dsnb.train import fork_server
from tests.workers import stepper


def nothing(*_):
    return None


if __name__ == "__main__":
    sys.modules["dsnb.train.worker"] = stepper
    fork_server.import_libraries = fork_server.preload = nothing
    fork_server.serve(sys.argv[1], os.getppid())
