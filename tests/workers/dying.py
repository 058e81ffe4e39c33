import os
import signal


def main(run_dir: str) -> int:
    """Train for real, but be killed as rank 1 after the third step, in the midst of collectives."""
    from dsnb.train import worker
    from dsnb.train.meter import Meter

    mark = Meter.step

    def step(self, *arguments):
        mark(self, *arguments)
        if os.environ["RANK"] == "1" and self._step == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    Meter.step = step
    return worker.main(run_dir)
