"""The client of the fork server."""

from importlib.util import find_spec

import pytest

from dsnb.errors import LaunchError
from dsnb.launcher import fork
from dsnb.train import fork_server


@pytest.mark.process
def test_a_server_that_is_killed_while_it_imports_says_so():
    server = fork.ForkServer("cpu")
    server.process.kill()
    with pytest.raises(LaunchError) as caught:
        server.wait_ready()
    assert str(caught.value) == (
        "torch, DeepSpeed and transformers could not be imported: the process was killed by signal 9 (SIGKILL); "
        "if memory ran out (`dmesg` says so), free some, then start again"
    )


def test_modules_that_are_imported_ahead_exist():
    """One that does not is skipped, and every rank of a first run would import what it needs by itself."""
    assert all(find_spec(name) for name in fork_server.FIRST)
