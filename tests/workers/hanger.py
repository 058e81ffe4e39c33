import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from dsnb.base.files import json_files


def main(run_dir: str) -> int:
    """Write both process numbers, hold the master port, and wait for ever."""
    child = subprocess.Popen(["sleep", "1000"])
    if os.environ["RANK"] == "0" and "TORCHELASTIC_RUN_ID" not in os.environ:
        listener = socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"])))
        json_files.write_text(Path(run_dir) / "port", str(listener.getsockname()[1]))
    # Tests wait for the file to appear, so it must appear whole.
    json_files.write_text(Path(run_dir) / f"pids{os.environ['RANK']}", f"{os.getpid()} {child.pid}")
    if os.environ.get("DSNB_TEST_KILL_RANK") == os.environ["RANK"]:
        while len(list(Path(run_dir).glob("pids*"))) < int(os.environ["WORLD_SIZE"]):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)
    return 0
