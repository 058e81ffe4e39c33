"""`dsnb check`: whether a measured speed is normal, and what it loses to which cause."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dsnb.base.errors import SettingsError
from dsnb.cli.printing import say, say_line
from dsnb.cli.sweep import option, parse_overrides

MOST_SETTINGS = 3
"""Settings of a folder that are printed."""


def check(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="Log, folder of runs, or model (preset, config.json or its folder).",
            show_default=False,
        ),
    ],
    gpu: Annotated[str, option("NAME", "GPU, such as H100.", default="that of the runs")] = "",
    gpus: Annotated[int | None, option("NUMBER", "Number of GPUs.", default="1")] = None,
    tokens_per_s: Annotated[
        float | None, option("NUMBER", "Measured tokens/s of all GPUs.")
    ] = None,
    samples_per_s: Annotated[
        float | None, option("NUMBER", "Measured sequences/s of all GPUs.")
    ] = None,
    step_s: Annotated[
        float | None, option("SECONDS", "Measured time of an optimizer step.")
    ] = None,
    tflops: Annotated[float | None, option("NUMBER", "Measured TFLOP/s of a GPU.")] = None,
    mfu: Annotated[
        float | None,
        option("SHARE", "Stated MFU, such as 0.46 or 46; beside a rate, both are compared."),
    ] = None,
    per_gpu: Annotated[
        bool, option("", "Tokens/s and sequences/s are those of one GPU.", "--per-gpu")
    ] = False,
    link: Annotated[
        str | None,
        option("LINK", "Link of the GPUs, as in `dsnb predict`.", default="unknown"),
    ] = None,
    real_tokens: Annotated[
        float | None, option("SHARE", "Share of the tokens that are no padding, such as 0.6.")
    ] = None,
    gpu_util: Annotated[
        float | None, option("PERCENT", "Utilization of the GPUs over several steps.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        option("KEY=VALUE", "A setting of the training; others are unknown.", "--set"),
    ] = None,
) -> None:
    """Say whether a speed is normal: the expected range, measured runs nearby, and the largest gaps."""
    from dsnb.base.formulas.model_shapes import local_config
    from dsnb.prediction.alike import usual_names
    from dsnb.prediction.check.claims import Claim, Seen, share

    stated = usual_names(parse_overrides(set_ or []))
    if gpus is not None:
        stated["gpus"] = gpus
    seen = Seen(real_tokens=share(real_tokens), gpu_util_pct=gpu_util)
    if Path(target).exists() and not local_config(target):
        speeds = {
            "--tokens-per-s": tokens_per_s,
            "--samples-per-s": samples_per_s,
            "--step-s": step_s,
        }
        speeds |= {"--tflops": tflops, "--mfu": mfu, "--per-gpu": per_gpu or None}
        given = [name for name, value in speeds.items() if value is not None]
        if given:
            raise SettingsError(
                f"{', '.join(given)}: the runs in {target} say their speed; leave it out, or give a model"
            )
        _check_runs(target, stated, gpu, link, seen)
        return
    if not gpu:
        raise SettingsError("the GPU is unknown: say --gpu NAME, such as --gpu H100")
    claim = Claim(
        {"gpus": 1, **stated, "model": target},
        gpu,
        link,
        tokens_per_s=tokens_per_s,
        samples_per_s=samples_per_s,
        step_s=step_s,
        tflops=tflops,
        mfu=share(mfu),
        per_gpu=per_gpu,
        seen=seen,
    )
    print_verdict(claim)


def _check_runs(target: str, stated: dict[str, Any], gpu: str, link: str | None, seen: Any) -> None:
    """Print the verdict on each setting of a folder or log, the slowest first."""
    from dsnb.prediction.check.logged import claims, summary
    from dsnb.prediction.check.verdict import check as checked
    from dsnb.results.runs.load import load_runs, no_runs_message

    runs = load_runs(target)
    if runs.empty:
        raise SettingsError(no_runs_message(Path(target)))
    verdicts = [checked(claim) for claim in claims(runs, stated, gpu, link, seen)]
    verdicts.sort(key=lambda verdict: verdict.ratio)
    for number, verdict in enumerate(verdicts[:MOST_SETTINGS]):
        if number:
            say("")
        for line in verdict.lines:
            say_line(line)
    if verdicts[MOST_SETTINGS:]:
        say("")
        say_line(summary(verdicts[MOST_SETTINGS:]))


def print_verdict(claim: Any) -> None:
    """Print the verdict on a claim."""
    from dsnb.prediction.check.verdict import check as checked

    for line in checked(claim).lines:
        say_line(line)
