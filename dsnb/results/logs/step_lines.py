"""Readers of programs that print a line of named fields a step: nanotron, NeMo, torchtitan and VeOmni.

Each has a line with a name, a colon and a value for every figure. The first line includes compilation and the setup of
NCCL, so it is warm-up if there are more.
"""

import re

from dsnb.results.logs.deepspeed import clock
from dsnb.results.logs.reading import LOGGED, LoggedRun, reads, used
from dsnb.results.logs.text import NUMBER, count, number, positive

_PIPED = re.compile(r"\|\s*([^|:]{1,60}?)\s*:\s*([-+\w.,]{1,40})(?=\s)")
_SCALE = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
"""nanotron abbreviates numbers to three digits."""
_SHORT = re.compile(r"([-+]?[\d.]{1,20})([KMBTPE])")


def _values(line: str) -> dict[str, str]:
    """Return the fields between the bars of a line, as text."""
    return dict(_PIPED.findall(line))


def _amount(text: str | None) -> float | None:
    """Parse a number that may be abbreviated, such as `8.19K`."""
    match = _SHORT.fullmatch((text or "").strip())
    value = positive(match[1] if match else text)
    return value * _SCALE[match[2]] if match and value else value


def _start(run: LoggedRun, program: str) -> None:
    run.program, run.configured = program, True
    run.scratch["first_is_slow"] = True


def _seconds(milliseconds: float | None) -> float | None:
    return milliseconds / 1000 if milliseconds and milliseconds > 0 else None


@reads("iteration: ", pattern=r"(?:^|[\s\]:])iteration: (\d{1,12}) / (\d{1,12}) \|")
def nanotron(run: LoggedRun, match: re.Match[str]) -> None:
    """Read `iteration: 1 / 20 | consumed_tokens: 16.4K | elapsed_time_per_iteration_ms: 2K | tokens_per_sec: ...`."""
    fields = _values(match.string[match.end() - 1 :])
    if "tokens_per_sec" not in fields and "lm_loss" not in fields:
        return
    _start(run, "nanotron")
    batch = count(fields.get("global_batch_size"))  # exact, so not if it is abbreviated
    run.set_used(steps=count(match[2]), global_batch_size=batch)
    reserved = _amount(fields.get("cuda_max_memory_reserved"))
    run.record_max(peak_reserved_gib=reserved / 2**30 if reserved else None)
    rate, per_gpu = (_amount(fields.get(f"tokens_per_sec{of}")) for of in ("", "_per_gpu"))
    _gpus_by_rates(run, rate, per_gpu)
    elapsed_ms = _amount(
        fields.get("elapsed_time_per_iteration_ms") or fields.get("time_per_iteration_ms")
    )
    _add(
        run, int(match[1]), fields.get("lm_loss", ""), fields.get("grad_norm", ""),
        step_time_s=_seconds(elapsed_ms), samples=batch, tokens_per_s=rate, tokens_per_s_per_gpu=per_gpu,
        tflops_per_gpu=_amount(fields.get("model_tflops_per_gpu")),
        hardware_tflops_per_gpu=_amount(fields.get("hardware_tflops_per_gpu")),
    )  # fmt: skip


def _gpus_by_rates(run: LoggedRun, rate: float | None, per_gpu: float | None) -> None:
    """Derive the number of GPUs from both rates, if their three digits tell it from the next one."""
    if rate and per_gpu and rate / per_gpu < 40:
        run.scratch["gpus_by_rates"] = round(rate / per_gpu)


def _add(run: LoggedRun, step: int, loss: str, norm: str, **values: float | None) -> None:
    """Add a step; other ranks may print it again."""
    if not run.steps or step > run.steps[-1]["step"]:
        run.health.read(loss, norm, step)
    run.add_step(step, loss=number(loss), **values)


@reads("Training epoch ", pattern=r"Training epoch \d{1,9}, iteration (\d{1,12})/(\d{1,12}) \|")
def nemo(run: LoggedRun, match: re.Match[str]) -> None:
    """`Training epoch 0, iteration 0/9 | lr: 1e-06 | global_batch_size: 8 | global_step: 0 | ...`, counted from 0."""
    fields = _values(match.string[match.end() - 1 :])
    _start(run, "NeMo")
    run.set_used(global_batch_size=count(fields.get("global_batch_size")), steps=int(match[2]) + 1)
    step = number(fields.get("global_step"))
    _add(
        run, int(match[1] if step is None else step) + 1, fields.get("reduced_train_loss", ""),
        fields.get("grad_norm", ""), step_time_s=positive(fields.get("train_step_timing in s")),
        tflops_per_gpu=positive(fields.get("TFLOPS_per_GPU") or fields.get("tflops_per_sec_per_gpu")),
    )  # fmt: skip


@reads(
    "train_step_timing in s=",
    pattern=rf"reduced_train_loss=([-+\w.]{{1,30}}), .{{0,200}}?global_step={NUMBER}"
    rf".{{0,400}}?train_step_timing in s={NUMBER}",
)
def nemo_bar(run: LoggedRun, match: re.Match[str]) -> None:
    """`... 100/100 [10:48<00:00, reduced_train_loss=0.0172, global_step=99.00, ..., train_step_timing in s=3.130]`."""
    _start(run, "NeMo")
    if (step := number(match[2])) is not None and step >= 0:
        norm = re.search(r"grad_norm=([-+\w.]{1,30})", match.string)
        _add(run, int(step) + 1, match[1], norm[1] if norm else "", step_time_s=positive(match[3]))


@reads(
    "  loss: ",
    pattern=r"(?<!validate )step: {1,9}(\d{1,12})(?:/(\d{1,12}))?(?: = [\d.]{1,9}%)?  +loss: {1,9}(\S+)  ",
)
def torchtitan(run: LoggedRun, match: re.Match[str]) -> None:
    """`step:  2  loss:  8.0  grad_norm:  1.0  memory:  2.00GiB(2.50%)  tps: 10,000  tflops: 10.00  mfu: 1.00%`.

    `tps` are tokens/s of one GPU; earlier versions call them `wps`.
    """
    fields = dict(
        re.findall(r"(\w{1,30}): {1,9}([-+\w.,]{1,30})(?=[\s(%])", match.string[match.start() :])
    )
    if not {"tps", "wps", "memory"} & set(fields):
        return
    _start(run, "torchtitan")
    run.set_used(steps=count(match[2]))
    memory_gib = re.match(NUMBER, fields.get("memory", "").replace("GiB", " "))
    run.record_max(peak_reserved_gib=positive(memory_gib[1]) if memory_gib else None)
    _add(
        run, int(match[1]), match[3], fields.get("grad_norm", ""), t_s=clock(run, match.string),
        tokens_per_s_per_gpu=positive(fields.get("tps") or fields.get("wps")),
        tflops_per_gpu=positive(fields.get("tflops")),
    )  # fmt: skip


@reads(
    "Building device mesh with parallelism: ",
    pattern=r"parallelism: ((?:\w{2,20}=\d{1,7}(?:, )?)+)",
)
def mesh(run: LoggedRun, match: re.Match[str]) -> None:
    """Read `Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1` of torchtitan."""
    sizes = {name: int(size) for name, size in re.findall(r"(\w+)=(\d+)", match[1])}
    ways = sizes.get("dp_replicate", 0) * sizes.get("dp_shard", 0)
    run.set_used(tensor_parallel=sizes.get("tp"), pipeline_parallel=sizes.get("pp"))
    if ways and {"pp", "cp", "tp"} <= set(sizes):
        run.set_used(gpus=ways * sizes["pp"] * sizes["cp"] * sizes["tp"], data_parallel=ways)
    run.set_used(strategy="fsdp" if sizes.get("dp_shard", 0) > 1 else None)


# torchtitan's settings.
reads(
    "Trainer is initialized with local batch size ",
    pattern=r"local batch size (\d{1,9}), global batch size (\d{1,9}), gradient accumulation steps (\d{1,9}), "
    r"sequence length (\d{1,9}), total steps (\d{1,12}) \(warmup (\d{1,9})\)",
)(
    used(
        micro_batch_size=count, global_batch_size=count, grad_accum=count, seq_len=count, steps=count,
        warmup_steps=count,
    )
)  # fmt: skip
reads("total parameters", pattern=r"Model \S{1,60} \S{1,60} size: ([\d,]{1,20}) total parameters")(
    lambda run, match: run.record(LOGGED, parameters=count(match[1]))
)
reads("Applied full activation checkpointing")(
    lambda run, _: run.set_used(activation_checkpointing=True)
)


@reads("Training completed", pattern=r"- INFO - Training completed")
def completed(run: LoggedRun, _match: re.Match[str]) -> None:
    """`[titan] 2026-01-01 10:00:00,000 - root - INFO - Training completed`."""
    run.ended = bool(run.steps)


# nanotron's memory and settings.
reads("Peak allocated", pattern=rf"Peak allocated:? {NUMBER}MiB\.? Peak reserved:? {NUMBER}MiB")(
    lambda run, match: run.record_max(
        peak_allocated_gib=(number(match[1]) or 0) / 1024,
        peak_reserved_gib=(number(match[2]) or 0) / 1024,
    )
)
reads("ParallelismArgs(dp=", pattern=r"ParallelismArgs\(dp=(\d{1,7}),")(used(data_parallel=count))
reads(" pp=", pattern=r"\]:\s+pp=(\d{1,5}),\s*$")(used(pipeline_parallel=count))
reads(" tp=", pattern=r"\]:\s+tp=(\d{1,5}),\s*$")(used(tensor_parallel=count))
reads(
    "sequence_length=",
    pattern=r"TokensArgs\(sequence_length=(\d{1,9}),|\]:\s+sequence_length=(\d{1,9}),\s*$",
)(lambda run, match: run.set_used(seq_len=count(match[1] or match[2])))


@reads("iteration: ", pattern=r"(?:^|\s)iteration: (\d{1,12}) \|")
def veomni(run: LoggedRun, match: re.Match[str]) -> None:
    """Read `iteration: 1 | consumed samples: 32 | elapsed time per iteration (ms): 2000.0 | global batch size: ...`."""
    fields = _values(match.string[match.end() - 1 :])
    elapsed_ms = positive(fields.get("elapsed time per iteration (ms)"))
    if elapsed_ms is None and "lm loss" not in fields:
        return
    _start(run, "VeOmni")
    batch = count(fields.get("global batch size"))
    run.set_used(global_batch_size=batch)
    _add(
        run, int(match[1]), fields.get("lm loss", ""), fields.get("grad norm", ""),
        step_time_s=_seconds(elapsed_ms), samples=batch,
    )  # fmt: skip
