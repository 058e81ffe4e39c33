"""Fits what a GPU reaches of its data sheet to published rows, and checks the fit on sources that are left out.

Three gains of a GPU (products, attention, memory) and the rate of attention in Triton are fitted by
least squares on the logarithm of the step time, as `dsnb.prediction.calibration` fits constants,
with Huber weights and a prior. A source counts as much as its number of rows to the power 1/2, so
that one with a hundred rows does not decide alone. Rows with offload are left out: their host
decides.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks import tuning
from benchmarks.outside.rows import KERNELS, Row
from dsnb.prediction import gpus, tuned
from dsnb.prediction.calibration import FIT
from dsnb.prediction.step_time import ATTENTION_GAINS, DEFAULT, parts, stack

CHIPS = (("A100", "A100-40GB", "A800"),)
"""GPUs that share the gains that are fitted to their rows: those of one chip, with enough sources."""
MEASURED = "H100"
"""A GPU whose gains dsnb's own runs decide: only Triton's attention is fitted to its rows."""
OWN_SPREAD = np.array([0.03, 0.01, 0.03, 0.2])
TRITON = "triton"
PRIOR = np.log([1.0, 1.0, 1.0, 0.55])
"""H200's shares, and attention in Triton about half as fast as FlashAttention 2 (Dao 2023)."""
CUDNN_OVER_FLASH = KERNELS["flash2"][MEASURED]
"""FlashAttention 2 over cuDNN's attention, which SDPA takes there."""
SPREAD = np.array([0.2, 0.3, 0.2, 0.2])
STEPS = 12
STEP = 1e-4
MAX_CHANGE = 0.3
MOST = 0.95
"""Most of its nominal rates that a GPU is taken to reach."""
REACHED = np.array([DEFAULT.matmul_efficiency, DEFAULT.memory_efficiency])

Gains = NDArray[np.float64]
"""Logarithms of the gains of products, of attention beyond that, and of memory, and of Triton's share of attention."""


def fittable(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Return the rows on some GPUs whose speed was measured, without offload."""
    found = []
    for row in rows:
        is_timed = row.experiment is not None and bool(row.published.get("tps"))
        if is_timed and row.gpu in names and not row.offloads:
            found.append(row)
    return found


class StepTimes:
    """The step time of each row as a function of the gains."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._counts = stack([row.counts() for row in rows])
        self._in_use = np.array([row_gains(row) for row in rows]).T
        self._is_triton = [row.kernel == TRITON for row in rows]

    def __call__(self, gains: Gains) -> NDArray[np.float64]:
        """Return the step times in seconds."""
        counts = self._counts
        in_use = self._in_use
        products, attention, memory, triton = np.exp(gains)
        kernel = np.where(self._is_triton, triton / in_use[3], 1.0)
        of_attention = products * attention * kernel / (in_use[0] * in_use[1])
        changed = replace(
            counts,
            peak_flops=counts.peak_flops * products / in_use[0],
            attention_flops_per_s=counts.attention_flops_per_s * of_attention,
            memory_bytes_per_s=counts.memory_bytes_per_s * memory / in_use[2],
        )
        return np.asarray(parts(changed, DEFAULT).step_time_s)


def row_gains(row: Row) -> list[float]:
    """Return the gains that predictions use for a row, as numbers."""
    gpu = gpus.find(row.gpu)
    attention = ATTENTION_GAINS.get(gpu.name, [1.0])[0]
    return [gpu.product_gain, attention, gpu.memory_gain, row.attention_share]


def measured_s(rows: Sequence[Row]) -> NDArray[np.float64]:
    """Return the measured step time of each row."""
    found = []
    for row in rows:
        assert row.experiment
        tokens = row.experiment.tokens_per_step / row.experiment.gpus
        found.append(tokens / row.published["tps"])
    return np.array(found)


def fit(rows: Sequence[Row], prior: Gains = PRIOR, spread: NDArray[np.float64] = SPREAD) -> Gains:
    """Return the gains that fit the rows."""
    targets = np.log(measured_s(rows))
    of_source = Counter(row.source for row in rows)
    shares = np.array([of_source[row.source] ** -0.5 for row in rows])
    step_times_s = StepTimes(rows)
    gains = prior
    for _ in range(STEPS):
        error = np.log(step_times_s(gains)) - targets
        usual = FIT.outlier * max(FIT.noise, float(np.median(np.abs(error))))
        huber = np.minimum(1, usual / np.maximum(np.abs(error), 1e-12))
        weights = np.sqrt(shares * huber) / FIT.noise
        slopes = []
        for step in STEP * np.eye(len(prior)):
            higher = np.log(step_times_s(gains + step))
            lower = np.log(step_times_s(gains - step))
            slopes.append((higher - lower) / (2 * STEP) * weights)
        system = np.vstack([np.array(slopes).T, np.diag(1 / spread)])
        goal = np.concatenate([-error * weights, (prior - gains) / spread])
        change = np.linalg.lstsq(system, goal, rcond=None)[0]
        gains = gains + np.clip(change, -MAX_CHANGE, MAX_CHANGE)
        gains[[0, 2]] = np.minimum(gains[[0, 2]], np.log(MOST / REACHED))
    return gains


def left_out(rows: Sequence[Row]) -> dict[str, tuple[int, float, float]]:
    """Return the rows of each source, and their mean error and bias in per cent with the gains of all other sources.

    The errors are factors of speed, with geometric means; a bias above 0 says that the prediction
    is too fast.
    """
    found = {}
    for source in dict.fromkeys(row.source for row in rows):
        own = [row for row in rows if row.source == source]
        others = [row for row in rows if row.source != source]
        gains = PRIOR
        if others:
            gains = fit(others)
        logs = np.log(measured_s(own) / StepTimes(own)(gains))
        mean = 100 * float(np.expm1(np.abs(logs).mean()))
        found[source] = (len(own), mean, 100 * float(np.expm1(logs.mean())))
    return found


def left_out_lines(rows: Sequence[Row]) -> list[str]:
    """Return the table of errors of sources whose rows are left out of the fit of their GPU."""
    lines = ["| source left out of the fit | GPU | rows | mean | bias |", "|---|---|---|---|---|"]
    for names in CHIPS:
        of_chip = fittable(rows, names)
        for source, (count, mean, bias) in left_out(of_chip).items():
            lines.append(f"| {source} | {names[0]} | {count} | {mean:.1f} | {bias:+.1f} |")
    return lines


def write(rows: Sequence[Row]) -> None:
    """Fit the gains of each kind of GPU to the rows, print and write them."""
    gains = dict(tuned.rows(tuned.TUNED["gpu_gains"]))
    attention_gains = dict(ATTENTION_GAINS)
    for names in CHIPS:
        fitted = np.exp(fit(fittable(rows, names))).tolist()
        products, attention, memory, triton = (float(f"{value:.3g}") for value in fitted)
        print(f"{', '.join(names)}: attention in Triton reaches {triton} of SDPA's rate")
        for name in names:
            gains[name] = [products, memory]
            attention_gains[name] = [attention]
    own = fittable(rows, (MEASURED,))
    in_use = np.log([*row_gains(own[0])[:3], CUDNN_OVER_FLASH * np.exp(PRIOR[3])])
    triton = float(np.exp(fit(own, in_use, OWN_SPREAD)[3]))
    print(f"{MEASURED}: attention in Triton reaches {triton:.3g} of SDPA's rate")
    tuning.write_rows("gpu_gains", gains)
    tuning.write_rows("attention_gains", attention_gains)
