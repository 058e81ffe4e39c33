import os
import sys


def main(run_dir: str) -> int:
    """Crash as native code does: a word on stderr and an exit code, no Python exception."""
    print(os.environ.get("DSNB_TEST_LAST_WORDS", "RuntimeError: CUDA error: out of memory"), file=sys.stderr)
    sys.stderr.flush()
    os._exit(7)
