"""The figures and tables that texts name (`docs.figures`), computed from the data sets and the stated errors."""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial

import pandas as pd

import dsnb
from benchmarks import (
    dataset,
    distance,
    edges,
    families,
    family_kernels,
    headline,
    left_out_families,
    new_settings,
    other_estimates,
    prediction_errors,
    ratio_errors,
    regret,
    todays_models,
    trainers,
    versions,
)
from benchmarks import network as network_steps
from benchmarks.outside import fitting, summary
from benchmarks.outside import rows as rows_of_others
from benchmarks.planners import registry
from benchmarks.planners import report as planners
from docs import asked, pictures, topic_tables
from docs.code_blocks import ROOT
from docs.named_settings import H100_SETTINGS, SETTINGS
from dsnb.prediction.accuracy import ALL, ELSEWHERE, PEAK_ERRORS, TIME_ERRORS
from dsnb.prediction.ratio_errors import BY_CPU, DEFAULT_RATIOS
from dsnb.prediction.ratio_errors import ELSEWHERE as RATIOS_ELSEWHERE
from dsnb.prediction.speed_range import OTHERS
from dsnb.prediction.step_time import FITTED_SETTINGS
from dsnb.prediction.traces import traces
from dsnb.results.literature import tables

DATA_SETS = ROOT / "dsnb" / "results" / "literature" / "README.md"
"""The text about the data sets, which is no page of the site."""
PREDICTION = ROOT / "docs" / "explanation" / "prediction.md"
MEMORY = ROOT / "docs" / "explanation" / "prediction_memory.md"
BARS = ROOT / "benchmarks" / "h200_bars.csv"

WHOLE = [
    "speed",
    "low",
    "high",
    "hours",
    "cost",
    "gpus",
    "lowest",
    "highest",
    "each",
    "n",
    "models",
    "runs",
    "settings",
    "pairs",
    "skipped",
    "benchmarks",
]
TENTHS = ["gib", "host", "needed", "mfu", "of_product", "mean", "worst"]
TENTHS += ["days", "from", "to", "error"]
FORMATS = {
    **dict.fromkeys(WHOLE, ",.0f"),
    **dict.fromkeys(TENTHS, ".1f"),
    **dict.fromkeys(("zero_1", "zero_2", "zero_3"), ".2f"),
    **dict.fromkeys(("tasks", "own", "others"), ".0f"),
}
"""The usual format of a figure, by its field."""

COLUMNS = {
    "speed": ("tokens_per_s", 1),
    "each": ("tokens_per_s_per_gpu", 1),
    "gib": ("peak_allocated_gib", 1),
    "host": ("host_memory_gib", 1),
    "mfu": ("mfu", 100),
    "of_product": ("mfu_of_matmul", 100),
}
"""Field -> column and factor; figures of a setting are medians over its runs that are `ok`."""


DATA = {"h200": SETTINGS, "h100": H100_SETTINGS}
"""Data set -> the settings of it that texts name."""


@cache
def of_setting(data: str, name: str) -> Mapping[str, float]:
    """Return the figures of a setting: medians, and the numbers of runs that are ok and out of memory."""
    query = DATA[data][name]
    runs = dsnb.published(data).query(query)
    if (found := runs["experiment"].nunique()) != 1:
        raise ValueError(f"{name} selects {found} settings of {data}, not one: {query}")
    ok = runs[runs["status"] == "ok"]
    medians = {
        field: factor * float(ok[column].median()) for field, (column, factor) in COLUMNS.items()
    }
    speeds = {"lowest": float(ok["tokens_per_s"].min()), "highest": float(ok["tokens_per_s"].max())}
    counts = {"n": float(len(ok)), "oom": float((runs["status"] == "oom").sum())}
    return {**medians, **speeds, **counts, "needed": float(runs["needed_gib"].median())}


def error(stated: Mapping[str, object], kind: str) -> Mapping[str, float]:
    """Return a stated error as `settings` or `pairs`, `mean` and `worst`."""
    number, mean, worst, *_ = tuple(stated[kind])  # type: ignore[var-annotated, arg-type]
    return {"settings": number, "pairs": number, "mean": mean, "worst": worst}


@cache
def launches() -> Mapping[str, object]:
    """Return the errors of settings that the CPU limits on both GPUs, by the launch time used to predict them."""
    _, *errors = prediction_errors.by_launch_time()[-1]
    return dict(zip(("of run", "of host", "usual"), errors, strict=True))


@cache
def regrets() -> Mapping[str, float]:
    """Return number of tasks, mean and worst regret as its table has them, which takes minutes to compute."""
    text = PREDICTION.read_text()
    (tasks, mean), (_, worst) = re.findall(
        r"^\| (?:mean|worst) of (\d+) tasks \| \| \| ([\d.]+) %", text, re.M
    )
    return {"tasks": float(tasks), "mean": float(mean), "worst": float(worst)}


@cache
def network(name: str) -> Mapping[str, float]:
    """Return the predicted step times of two nodes by a network, or of `one node`."""
    times = pictures.network_times().loc[name]
    return {"zero_1": times["ZeRO 1"], "zero_2": times["ZeRO 2"], "zero_3": times["ZeRO 3"]}


@cache
def data_set(name: str) -> Mapping[str, float]:
    """Return counts of a data set."""
    runs = dsnb.published(name)
    return {
        "runs": float(len(runs)),
        "models": float(runs["model"].nunique()),
        "skipped": float(runs["skipped_steps"].sum()),
        "nan": float((runs["status"] == "nan").sum()),
    }


@cache
def estimators() -> Mapping[str, float]:
    """Return the error of DeepSpeed's estimators as the table of other estimates has it, which takes minutes."""
    row = re.search(
        r"\| all \| (\d+) \| .*? \| ([\d.]+), worst ([\d.]+) \((\d+)\)", MEMORY.read_text()
    )
    if row is None:
        raise ValueError(f"{MEMORY} has no row of all settings")
    return {"settings": float(row[4]), "mean": float(row[2]), "worst": float(row[3])}


@cache
def of_new(model: str, name: str) -> Mapping[str, float]:
    """Return speed and memory of a setting of `benchmarks.new_settings`, medians of its runs."""
    table = new_settings.known().query("model == @model and experiment.str.endswith(@name)")
    medians = table[list(new_settings.FIGURES)].median()
    speed, gib = medians.tolist()
    return {"speed": speed, "gib": gib, "n": float(len(table))}


@cache
def lambda_opt(gpus: int) -> Mapping[str, float]:
    """Return Lambda's published speed of OPT-13B with LoRA for each of a number of GPUs."""
    rows = dsnb.published("lambda_1cc_opt").query(f"model == 'opt-13b' and gpus == {gpus}")
    return {"each": float(rows["tokens_per_s_per_gpu"].item())}


def published_benchmarks() -> Mapping[str, float]:
    """Return the number of benchmarks of others, and of those that were measured again."""
    return {"benchmarks": len(tables.FOREIGN), "repeated": len(headline.WORKS)}


BY_GPU, BY_HOST = "limited by the GPU", "limited by the CPU"
SOURCES: dict[str, Callable[[], Mapping[str, float]]] = {
    **{name: partial(of_setting, data, name) for data in DATA for name in DATA[data]},
    "kinds": families.counts,
    "kernels": family_kernels.counts,
    "memory": partial(error, PEAK_ERRORS, "all"),
    "time_gpu": partial(error, TIME_ERRORS, BY_GPU),
    "time_cpu": partial(error, TIME_ERRORS, BY_HOST),
    "time_cpu_of_run": lambda: error(launches(), "of run"),
    "time_cpu_of_host": lambda: error(launches(), "of host"),
    "time_cpu_usual": lambda: error(launches(), "usual"),
    "h100_node": partial(error, ELSEWHERE, "H100, one node"),
    "h100_nodes": partial(error, ELSEWHERE, "H100, several nodes"),
    "a100_node": partial(error, ELSEWHERE, "A100, one node"),
    "elsewhere": partial(error, ELSEWHERE, "all"),
    "ratios_gpu": partial(error, DEFAULT_RATIOS, BY_CPU[0]),
    "estimators": estimators,
    "regret": regrets,
    "h200": partial(data_set, "h200"),
    "h100": partial(data_set, "h100"),
    "published": published_benchmarks,
    "fit": lambda: {"settings": FITTED_SETTINGS},
    "within_a_quarter": pictures.within_a_quarter,
    **{f"network_{name}": partial(network, name) for name in map(str, pictures.NETWORKS)},
    "network_one_node": partial(network, "one node"),
    "qlora": partial(of_new, "llama-3.1-8b", "plain_bf16_gpus1_bs2_sl2048_ac_compile_lora16_nf4"),
    "fp32_states": partial(of_new, "llama-3.2-1b", "plain_bf16_gpus1_bs4_sl2048"),
    "bf16_states": partial(of_new, "llama-3.2-1b", "plain_bf16_gpus1_bs4_sl2048_pure"),
    "bytes_states": partial(of_new, "llama-3.2-1b", "plain_bf16_gpus1_bs4_sl2048_pure_adamw-8bit"),
    "adamw_8_bit": partial(of_new, "llama-3.2-1b", "plain_bf16_gpus1_bs4_sl2048_adamw-8bit"),
    "four_fsdp": partial(of_new, "llama-3.1-8b", "fsdp_bf16_gpus4_bs2_sl2048_compile"),
    "four_zero1": partial(of_new, "llama-3.1-8b", "zs1_bf16_gpus4_bs2_sl2048_compile"),
    "four_zero3": partial(of_new, "llama-3.1-8b", "zs3_bf16_gpus4_bs2_sl2048_compile"),
    **{f"lambda_{gpus}": partial(lambda_opt, gpus) for gpus in (8, 16, 512)},
    "planner_dsnb_untold": planners.untold,
    **{f"planner_{name}": partial(planners.figures, name) for name in registry.PLANNERS},
}
"""The sources of figures: each returns figures by field."""

SLOW_SOURCES: dict[str, Callable[[], Mapping[str, float]]] = {
    name: partial(asked.recommended, name) for name in asked.COMMANDS
}
"""Sources that trace models: `python -m docs.figures slow` writes their figures."""

Rows = Callable[[], Iterable[str]]
ERRORS_HEADER = ["| {} | settings | mean | worst | bias |", "|---|---|---|---|---|"]


def errors_table(title: str, errors: Mapping[str, object]) -> list[str]:
    """Return a table of errors of time by kind."""
    header = [ERRORS_HEADER[0].format(title), ERRORS_HEADER[1]]
    return [*header, *prediction_errors.lines(errors)]  # type: ignore[arg-type]


def ratio_table(errors: Mapping[str, object]) -> list[str]:
    """Return a table of errors of ratios."""
    return [
        "| two settings | pairs | mean | worst |",
        "|---|---|---|---|",
        *ratio_errors.lines(errors),
    ]  # type: ignore[arg-type]


def ranges_table() -> list[str]:
    """Return the table of ranges of other programs by GPU and place."""
    lines = ["| GPU and place | settings | projects | from | to |", "|---|---|---|---|---|"]
    for name, (settings, sources, low_pct, high_pct) in OTHERS.items():
        lines.append(f"| {name} | {settings} | {sources} | {low_pct:+.1f} | {high_pct:+.1f} |")
    return lines


def peak_table() -> list[str]:
    """Return the table of errors of peak memory by kind."""
    rows = (
        f"| {name} | {one.settings} | {one.mean_pct:.2f} | {one.worst_pct:.2f} |"
        for name, one in PEAK_ERRORS.items()
    )
    return ["| kind | settings | mean | worst |", "|---|---|---|---|", *rows]


def left_out_table() -> list[str]:
    """Return the errors of all settings on H200, predicted with constants fitted to all other models."""
    runs = prediction_errors.h200_runs()
    errors = prediction_errors.by_kind(
        runs, prediction_errors.left_out(runs, prediction_errors.PRIOR)
    )
    return errors_table("limit", {name: errors[name] for name in (BY_GPU, BY_HOST, ALL)})


def calibrated_table() -> list[str]:
    """Return the errors of sweeps with constants fitted to other models' runs on their host, and without."""
    rows = ["| sweep | settings | calibrated | not calibrated |", "|---|---|---|---|"]
    for sweep, (fitted, usual) in prediction_errors.by_calibration().items():
        rows.append(
            f"| {sweep} | {fitted.settings} | {fitted.mean_pct:.1f} | {usual.mean_pct:.1f} |"
        )
    return rows


MEASURED_ON = {
    "h200_foretold": "1 GPU, alone",
    "h200_drawn_1": "1 GPU, alone",
    "h200_drawn_2": "2 GPUs, alone",
    "h200_drawn_3": "1 GPU, two runs side by side on the host of `h200_drawn_2`",
    "h200_drawn_8": "1 GPU, alone",
    "h200_drawn_9": "1 and 2 GPUs, four and two runs side by side",
    "h200_drawn_10": "1 GPU, alone",
    "h200_drawn_11": "1 GPU, alone, on the host of `h200_drawn_10`",
    "h200_drawn_12": "1 GPU, alone",
    "h200_four_gpus": "4 GPUs, alone",
    "h200_grid_gemma": "1 GPU, four runs side by side",
    "h200_grid_pythia": "1 GPU, four runs side by side, two hosts",
    "h200_grid_qwen3": "2 GPUs, two runs side by side",
    "h200_edges": "1 and 2 GPUs, up to four runs side by side, three hosts",
    "h200_zeropp": "2 GPUs, two runs side by side",
    "h200_today": "1 and 2 GPUs, up to four runs side by side, three hosts",
}
"""Sweep -> where it was measured."""


def confirmed_table() -> list[str]:
    """Return for each sweep the error that the others would have stated for its settings, and its own."""
    rows = [
        "| sweep | settings | stated | mean | worst | measured on |",
        "|---|---|---|---|---|---|",
    ]
    for row in prediction_errors.confirmed():
        sweep = row.strip("| ").partition(" | ")[0]
        rows.append(f"{row} {MEASURED_ON[sweep]} |")
    return rows


def yardstick_table() -> list[str]:
    """Return the speed of ZeRO 0 over that of the plain loop, whose runs alternated in one session."""
    medians = pd.read_csv(BARS, index_col="experiment")["tokens_per_s_median"]
    rows = [
        "| work | ZeRO 0 with autocast and the same `compile`, of the plain loop |",
        "|---|---|",
    ]
    for title, work in YARDSTICK.items():
        plain, zero = (medians.filter(regex=f"^{work}/{way}").item() for way in ("plain", "zs0"))
        rows.append(f"| {title} | {100 * zero / plain:.1f} % |")
    return rows


def estimates_table() -> list[str]:
    """Return the errors of other estimates of memory; models are traced for a minute."""
    peaks = prediction_errors.peaks()
    return other_estimates.lines(peaks, traces([peak.experiment for peak in peaks]))


def regret_table() -> list[str]:
    """Return the regret on each task; constants are fitted for each of them."""
    return regret.table(list(regret.regrets())).splitlines()


YARDSTICK = {
    "GPT-2 124M, 32 x 128, `reduce-overhead`": "gpt2-short",
    "GPT-2 124M, 32 x 1024, `reduce-overhead`": "gpt2-long",
    "OPT-350M, 24 x 512, `reduce-overhead`": "opt-350m",
    "OPT-1.3B, 8 x 2048, `default`": "opt-1.3b",
}
"""Work -> its name in `benchmarks.bars`."""


@cache
def all_edges() -> pd.DataFrame:
    """Return the runs that the tables of larger micro-batches and of anchors are made of."""
    return edges.measured()


@cache
def of_others() -> pd.DataFrame:
    """Return the published rows of other programs, as measured and predicted."""
    return rows_of_others.predicted(rows_of_others.read())


def host_time_table() -> list[str]:
    """Return the host's time for a step in launches, by strategy."""
    rows = ["| | forward | backward | optimizer | a step |", "|---|---|---|---|---|"]
    for title, parts in pictures.host_times().iterrows():
        cells = " | ".join(f"{launches:,.0f}" for launches in [*parts, parts.sum()])
        rows.append(f"| {title} | {cells} |")
    return rows


VERSION_DAYS = ("2026-11-29",)
"""Days on which versions of DeepSpeed were compared: a section of docs/explanation/versions.md each."""
TABLES: dict[str, Rows] = {
    "host-time": host_time_table,
    "results": lambda: [*headline.RESULTS_HEADER, *headline.results()],
    "published": lambda: [*headline.HEADER, *map(str, headline.comparisons())],
    "distance": lambda: [*distance.HEADER, *distance.rows()],
    "edges": lambda: [*edges.HEADER, *edges.edges(all_edges())],
    "anchors": lambda: [*edges.ANCHORS_HEADER, *edges.anchors(all_edges())],
    "todays-models": lambda: [*todays_models.HEADER, *todays_models.rows()],
    "kinds": lambda: [*families.HEADER, *families.rows()],
    "kernels": lambda: [*family_kernels.HEADER, *family_kernels.rows()],
    "trainers": lambda: trainers.speed_table(trainers.read(trainers.RESULTS)),
    "trainers-losses": lambda: trainers.loss_table(trainers.read(trainers.RESULTS)),
    "data-sets": dataset.counts,
    "probes": prediction_errors.by_probe,
    "yardstick": yardstick_table,
    "peaks": peak_table,
    "unseen": lambda: errors_table("kind", prediction_errors.by_kind(*prediction_errors.unseen())),
    "left-out": left_out_table,
    "confirmed": confirmed_table,
    "families": lambda: errors_table(
        "family and limit", left_out_families.by_family(prediction_errors.of_left_out_families())
    ),
    "elsewhere-tables": lambda: errors_table("table", prediction_errors.elsewhere()[0]),
    "elsewhere-gpus": lambda: errors_table("GPU and nodes", prediction_errors.elsewhere()[1]),
    "ranges-of-others": ranges_table,
    "ratios": lambda: ratio_table(DEFAULT_RATIOS),
    "network-measured": network_steps.lines,
    "long-sequences": topic_tables.long_sequences,
    "planners": lambda: planners.about_lines(planners.known()),
    "planners-speed": lambda: planners.speed_lines(planners.known()),
    "planners-memory": lambda: planners.memory_lines(planners.known()),
    "ratios-elsewhere": lambda: ratio_table(RATIOS_ELSEWHERE),
    **{
        f"versions-{day}-{kind}": partial(versions.lines, kind, day)
        for day in VERSION_DAYS
        for kind in versions.LINES
    },
}
"""The tables of the texts."""
SLOW_TABLES: dict[str, Rows] = {
    **{f"answer-{name}": partial(asked.lines, f"asked_{name}") for name in asked.SHOWN},
    "outside": lambda: summary.speed_lines(summary.by_gpu(of_others()), "GPU and place"),
    "outside-left-out": lambda: fitting.left_out_lines(rows_of_others.read()),
    "outside-memory": lambda: summary.memory_table(of_others()),
    "regret": regret_table,
    "estimates": estimates_table,
    "calibrated": calibrated_table,
    "fine-tuning": topic_tables.fine_tuning,
    "lengths": topic_tables.lengths,
    "small-gpus": topic_tables.small_gpus,
    "rent": topic_tables.rent,
    "experts": topic_tables.experts,
    "new-settings": lambda: [*new_settings.HEADER, *new_settings.rows()],
}
"""Tables that take minutes: `python -m docs.figures slow` writes them."""
ROUNDED = {
    *SLOW_TABLES,
    *(f"versions-{day}-{kind}" for day in VERSION_DAYS for kind in versions.LINES),
    "unseen",
    "families",
    "left-out",
    "confirmed",
}
"""Tables whose numbers are fitted or summed up: elsewhere, linear algebra may round the last digit otherwise."""
