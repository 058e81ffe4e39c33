"""Readers of what DeepSpeed-Chat prints, and a benchmark based on it."""

import re

from dsnb.runs.logs.deepspeed import engine
from dsnb.runs.logs.logged_run import DERIVED, LoggedRun
from dsnb.runs.logs.text import NUMBER, count, number, positive

_DONE = re.compile(r"^Execution time: " + NUMBER + r" seconds for (\d{1,9}) steps")
_THROUGHPUT = re.compile(r"^Throughput: " + NUMBER + " samples/sec")
_CHAT_STEP = re.compile(r"Epoch: (\d{1,9}), Step: (\d{1,12}), Rank: 0, loss = (?:tensor\()?" + NUMBER)
_CHAT_SPEED = re.compile(
    r"Model Parameters: \S{1,20} B, Latency: "
    + NUMBER
    + r"s, .{0,200}Batch Size: (\d{1,9}), Sequence Length: (\d{1,9})\D"
)
_CHAT_EXPERIENCE = re.compile(
    r"End-to-End => Latency: " + NUMBER + r"s, .{0,200}Batch Size: (\d{1,9}), Total Seq\. Length: (\d{1,9})\D"
)


def done(run: LoggedRun, line: str) -> None:
    """Read `Execution time: 20.3507 seconds for 100 steps`, at the end of a benchmark based on DeepSpeed-Chat."""
    if found := _DONE.search(line):
        run.record(timed_s=positive(found[1]), timed_steps=count(found[2]))


def throughput(run: LoggedRun, line: str) -> None:
    """`Throughput: 943.4550 samples/sec`, over the steps of `Execution time`."""
    if found := _THROUGHPUT.search(line):
        run.record(samples_per_s=positive(found[1]))
        run.ended = True


def chat_step(run: LoggedRun, line: str) -> None:
    """`Epoch: 0, Step: 3, Rank: 0, loss = 2.1`; steps are micro-batches and restart with each epoch."""
    if not (found := _CHAT_STEP.search(line)):
        return
    run.scratch["chat"] = True
    engine(run)
    epoch, step = int(found[1]), int(found[2])
    known, base = run.scratch.get("epoch", (epoch, 0))
    if epoch != known:
        base = int(run.steps.last) + 1 if len(run.steps) else 0
    run.scratch["epoch"] = (epoch, base)
    run.scratch["loss_is_nan"] = "nan" in found[3].lower()
    run.steps.add(base + step, loss=number(found[3]))


def chat_speed(run: LoggedRun, line: str) -> None:
    """Read `Model Parameters: 0.331 B, Latency: 0.20s, ..., Batch Size: 24, Sequence Length: 512`.

    Stages 1 and 2 print it after each micro-batch, for one GPU; its TFLOPs must be multiplied by the number of GPUs.
    """
    if found := _CHAT_SPEED.search(line):
        run.scratch["chat"] = True
        engine(run)
        run.set_used(micro_batch_size=count(found[2]), seq_len=count(found[3]))
        latency_s, batch = positive(found[1]), count(found[2])
        if latency_s and batch:
            total = run.scratch.setdefault("chat_speed", [0.0, 0.0])
            total[0] += batch
            total[1] += latency_s


def chat_experience(run: LoggedRun, line: str) -> None:
    """Read stage 3's `End-to-End => Latency: 2.55s, ..., Batch Size: 4, Total Seq. Length: 512`, generation included.

    Here the batch is the global one.
    """
    if found := _CHAT_EXPERIENCE.search(line):
        run.scratch["chat"] = True
        engine(run)
        latency_s, batch, length = positive(found[1]), count(found[2]), count(found[3])
        run.set_used(global_batch_size=batch, seq_len=length)
        if latency_s and batch:
            work, time_s = run.scratch.get("experience", (0.0, 0.0))
            work, time_s = run.scratch["experience"] = (work + batch, time_s + latency_s)
            run.record(DERIVED, samples_per_s=work / time_s, step_time_s=time_s * batch / work)


READERS = {
    "End-to-End => ": chat_experience,
    "Execution time: ": done,
    "Throughput: ": throughput,
    ", Rank: ": chat_step,
    "Model Parameters: ": chat_speed,
}
