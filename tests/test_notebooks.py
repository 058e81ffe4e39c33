"""A notebook's end on the terminal: the caller is told how it ended, and the libraries say nothing."""

import subprocess
import sys

import nbformat
import nbformat.v4 as nbf
import pytest

EXECUTE = """
import asyncio, signal, sys
from pathlib import Path
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from dsnb import notebooks

tidy = KernelManager._async_cleanup_resources

async def late(manager, restart=False):
    await asyncio.sleep(1.5)  # nbclient looks every second whether the kernel lives
    await tidy(manager, restart)

KernelManager._async_cleanup_resources = late

def process_message(client, message, *rest):
    if "interrupt amid" in str(message["content"]):
        signal.raise_signal(signal.SIGINT)
    return process(client, message, *rest)

process, NotebookClient.process_message = NotebookClient.process_message, process_message
try:
    notebooks.execute(*map(Path, sys.argv[1:]), {})
except BaseException as error:
    print(f"{type(error).__name__}: {error}")
"""


@pytest.mark.parametrize(
    ("source", "end"),
    [
        ("import os; os.kill(os.getpid(), 9)", "DeadKernelError: Kernel died"),
        ("import os, time; os.kill(os.getppid(), 2); time.sleep(100)", "KeyboardInterrupt: "),
        ("import time; print('interrupt amid', flush=True); time.sleep(100)", "KeyboardInterrupt: "),
    ],
    ids=["killed", "interrupted while it waits", "interrupted amid a message"],
)
def test_only_the_caller_hears_of_a_kernels_end(tmp_path, source, end):
    nbformat.write(nbf.new_notebook(cells=[nbf.new_code_cell(source)]), tmp_path / "in.ipynb")
    command = [sys.executable, "-c", EXECUTE, str(tmp_path / "in.ipynb"), str(tmp_path / "out.ipynb")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == (f"{end}\n", "")
