"""A notebook's end: the caller is told how it ended, the terminal nothing, and no kernel stays."""

import subprocess
import sys

import nbformat
import nbformat.v4 as nbf
import pytest

EXECUTE = """
import asyncio, signal, sys
from pathlib import Path
import psutil
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from dsnb import notebooks

tidy, connect, process = (
    KernelManager._async_cleanup_resources, NotebookClient.start_new_kernel_client, NotebookClient.process_message
)

async def tidy_late(manager, restart=False):
    await asyncio.sleep(1.5)  # nbclient looks every second whether the kernel lives
    await tidy(manager, restart)

def interrupted_connect(client):
    signal.raise_signal(signal.SIGINT)
    return connect(client)

def interrupted_process(client, message, *rest):
    if "amid" in str(message["content"]):
        signal.raise_signal(signal.SIGINT)
    return process(client, message, *rest)

KernelManager._async_cleanup_resources = tidy_late
NotebookClient.process_message = interrupted_process
if "at the start" in Path(sys.argv[1]).read_text():
    NotebookClient.start_new_kernel_client = interrupted_connect
try:
    notebooks.execute(*map(Path, sys.argv[1:]), {})
except BaseException as error:
    print(f"{type(error).__name__}: {error}", psutil.Process().children())
"""


@pytest.mark.parametrize(
    ("source", "end"),
    [
        (
            "import os; os.kill(os.getpid(), 9)",
            "KernelDiedError: the kernel of in.ipynb failed: it was killed by signal 9 (SIGKILL)",
        ),
        ("pass  # at the start", "KeyboardInterrupt: "),
        ("import os, time; os.kill(os.getppid(), 2); time.sleep(100)", "KeyboardInterrupt: "),
        ("import time; print('amid', flush=True); time.sleep(100)", "KeyboardInterrupt: "),
    ],
    ids=["killed", "interrupted while it starts", "interrupted while it works", "interrupted amid a message"],
)
def test_only_the_caller_hears_of_a_kernels_end(tmp_path, source, end):
    nbformat.write(nbf.new_notebook(cells=[nbf.new_code_cell(source)]), tmp_path / "in.ipynb")
    command = [sys.executable, "-c", EXECUTE, str(tmp_path / "in.ipynb"), str(tmp_path / "out.ipynb")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == (f"{end} []\n", "")
