"""Readers of programs that print a line of named fields a step: nanotron, NeMo, torchtitan and VeOmni.

Each has a line with a name, a colon and a value for every figure. The first line includes
compilation and the setup of NCCL, so it is warm-up if there are more. `lines.toml` has the names of
the fields.
"""

import re

from dsnb.results.logs.reading import LoggedRun, Match, reads
from dsnb.results.logs.values import (
    NUMBER,
    amount,
    count,
    first_group,
    number,
    positive,
    step_values,
)

LOSSES = ("loss", "lm_loss", "lm loss", "reduced_train_loss")
_PIPED = re.compile(r"\|\s*([^|:]{1,60}?)\s*:\s*([-+\w.,]{1,40})(?=\s)")
_SPACED = re.compile(r"(\w{1,30}): {1,9}([-+\w.,]{1,30})(?=[\s(%])")
_NORM = re.compile(r"grad_norm=([-+\w.]{1,30})")
_SIZE = re.compile(r"(\w{2,20})=(\d{1,7})")


def _add(run: LoggedRun, step: int, fields: dict[str, str], **more: float | None) -> None:
    """Add a step; other ranks may print it again."""
    values = step_values(fields) | more
    if run.is_new(step):
        loss = next((fields[name] for name in LOSSES if name in fields), "")
        norm = fields.get("grad_norm") or fields.get("grad norm", "")
        run.health.read(loss, norm, step)
    for name in ("peak_reserved_gib", "peak_allocated_gib"):
        run.record(**{name: values.pop(name, None)})
    run.add_step(step, **values)


def _piped(match: Match) -> dict[str, str]:
    """Return the fields between the bars after a match."""
    return dict(_PIPED.findall(match.string[match.end() - 1 :]))


@reads("iteration: ", pattern=r"(?:^|[\s\]:])iteration: (\d{1,12}) / (\d{1,12}) \|")
def nanotron(run: LoggedRun, match: Match) -> None:
    """Read `iteration: 1 / 20 | consumed_tokens: 16.4K | elapsed_time_per_iteration_ms: 2K | tokens_per_sec: ...`."""
    fields = _piped(match)
    if not {"tokens_per_sec", "lm_loss"} & fields.keys():
        return
    run.start("nanotron")
    batch = count(fields.get("global_batch_size"))  # exact, so not if it is abbreviated
    run.set_used(steps=count(match[2]), global_batch_size=batch)
    _add(run, int(match[1]), fields, samples=batch)
    rate = amount(fields.get("tokens_per_sec"))
    per_gpu = amount(fields.get("tokens_per_sec_per_gpu"))
    # The rates have three digits, which tell this number from the next one only if it is small.
    if rate and per_gpu and rate / per_gpu < 40:
        run.gpus_by_rates = round(rate / per_gpu)


@reads("Training epoch ", pattern=r"Training epoch \d{1,9}, iteration (\d{1,12})/(\d{1,12}) \|")
def nemo(run: LoggedRun, match: Match) -> None:
    """`Training epoch 0, iteration 0/9 | lr: 1e-06 | global_batch_size: 8 | global_step: 0 | ...`, counted from 0."""
    fields = _piped(match)
    run.start("NeMo")
    batch = count(fields.get("global_batch_size"))
    run.set_used(global_batch_size=batch, steps=int(match[2]) + 1)
    step = number(fields.get("global_step"))
    if step is None:
        step = int(match[1])
    _add(run, int(step) + 1, fields)


@reads(
    "train_step_timing in s=",
    pattern=rf"reduced_train_loss=([-+\w.]{{1,30}}), .{{0,200}}?global_step={NUMBER}"
    rf".{{0,400}}?train_step_timing in s={NUMBER}",
)
def nemo_bar(run: LoggedRun, match: Match) -> None:
    """`... 100/100 [10:48<00:00, reduced_train_loss=0.0172, global_step=99.00, ..., train_step_timing in s=3.130]`."""
    run.start("NeMo")
    step = number(match[2])
    if step is not None and step >= 0:
        fields = {"loss": match[1], "grad_norm": first_group(_NORM, match.string)}
        _add(run, int(step) + 1, fields, step_time_s=positive(match[3]))


@reads(
    "  loss: ",
    pattern=r"(?<!validate )step: {1,9}(\d{1,12})(?:/(\d{1,12}))?(?: = [\d.]{1,9}%)?  +loss: {1,9}(\S+)  ",
)
def torchtitan(run: LoggedRun, match: Match) -> None:
    """`step:  2  loss:  8.0  grad_norm:  1.0  memory:  2.00GiB(2.50%)  tps: 10,000  tflops: 10.00  mfu: 1.00%`.

    `tps` are tokens/s of one GPU; earlier versions call them `wps`.
    """
    fields = dict(_SPACED.findall(match.string[match.start() :]))
    if not {"tps", "wps", "memory"} & fields.keys():
        return
    run.start("torchtitan")
    run.set_used(steps=count(match[2]))
    fields["loss"] = match[3]
    _add(run, int(match[1]), fields, t_s=run.clock(match.string))


@reads(
    "Building device mesh with parallelism: ",
    pattern=r"parallelism: ((?:\w{2,20}=\d{1,7}(?:, )?)+)",
)
def mesh(run: LoggedRun, match: Match) -> None:
    """Read `Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1` of torchtitan."""
    sizes = {name: int(size) for name, size in _SIZE.findall(match[1])}
    sharded = sizes.get("dp_shard", 0)
    ways = sizes.get("dp_replicate", 0) * sharded
    run.set_used(tensor_parallel=sizes.get("tp"), pipeline_parallel=sizes.get("pp"))
    if ways and {"pp", "cp", "tp"} <= sizes.keys():
        of_replica = sizes["pp"] * sizes["cp"] * sizes["tp"]
        run.set_used(gpus=ways * of_replica, data_parallel=ways)
    if sharded > 1:
        run.set_used(strategy="fsdp")
        if ways > sharded:
            run.set_used(shard_size=sharded)


@reads("Training completed", pattern=r"- INFO - Training completed")
def completed(run: LoggedRun, _match: Match) -> None:
    """`[titan] 2026-01-01 10:00:00,000 - root - INFO - Training completed`."""
    run.ended = bool(run.steps)


@reads("iteration: ", pattern=r"(?:^|\s)iteration: (\d{1,12}) \|")
def veomni(run: LoggedRun, match: Match) -> None:
    """Read `iteration: 1 | consumed samples: 32 | elapsed time per iteration (ms): 2000.0 | global batch size: ...`."""
    fields = _piped(match)
    if not {"elapsed time per iteration (ms)", "lm loss"} & fields.keys():
        return
    run.start("VeOmni")
    run.set_used(global_batch_size=count(fields.get("global batch size")))
    _add(run, int(match[1]), fields)
