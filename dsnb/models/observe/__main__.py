"""Answers questions about models: a line of JSON each on standard input, a record (or an `error`) on standard output.

The process ends when its input is closed, even while it still imports torch, and when no question
arrives for the seconds in its argument.
"""

import gc
import json
import os
import select
import sys
import threading


def main(idle_s: float) -> None:
    """Answer until nobody asks."""
    sys.modules.setdefault("torchao", None)  # type: ignore[arg-type]  # transformers would import it
    gc.disable()  # collecting garbage would take an eighth of the imports
    threading.Thread(target=_end_with_input, daemon=True).start()
    from dsnb.models.observe import memory, work
    from dsnb.settings.experiment import Experiment

    if not _has_question(0):  # prepare for compiled models
        from dsnb.models.observe import saved  # noqa: F401
    gc.freeze()  # what was imported stays: collections need not look at it
    gc.enable()
    observers = {"memory": memory.trace, "counts": work.count}
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries log to the standard output
    while _has_question(idle_s):
        line = sys.stdin.readline()
        if not line:
            break
        kind, settings = json.loads(line)
        experiment = Experiment.recorded(settings)
        try:
            record = observers[kind](experiment)
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            record = {"error": f"model {experiment.model!r} could not be traced: {reason[:300]}"}
        print(json.dumps(record), file=answers, flush=True)
    os._exit(0)  # torch takes seconds to end


def _end_with_input() -> None:
    closed = select.poll()
    closed.register(0, 0)
    closed.poll()
    os._exit(0)


def _has_question(wait_s: float) -> bool:
    return bool(select.select([sys.stdin], [], [], wait_s)[0])


if __name__ == "__main__":
    main(float(sys.argv[1]))
