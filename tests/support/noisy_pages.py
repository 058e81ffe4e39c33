"""Pages of settings that are equal in truth, with noise of several kinds, for simulations of how often verdicts err."""

import numpy as np

from dsnb.results.statistics import intervals
from dsnb.results.statistics.intervals import CONFIDENCE, FIGURES, Moments

KINDS = ["normal", "one noisy setting", "0.5 to 5 %", "lognormal slowdowns", "stalls", "heavy steps", "shared rounds",
         "shared hosts", "skewed, 1 to 5 %", "very skewed, 1 to 5 %", "very skewed, 1 to 10 %"]  # fmt: skip
SKEWED = {"skewed, 1 to 5 %": 5, "very skewed, 1 to 5 %": 5, "very skewed, 1 to 10 %": 10}
"""Slowdowns of which each setting has its own size, equal on average: the largest over the smallest."""


def moments(logs):
    """Give the moments of log values, shape (..., runs)."""
    return Moments(
        logs.mean(-1), logs.var(-1, ddof=1), np.full(logs.shape[:-1], float(logs.shape[-1]))
    )


def noise(kind, random, pages, settings, runs):
    """Give log values of equal settings, shape (pages, settings, runs); higher is better."""
    shape = (pages, settings, runs)
    normal = random.standard_normal(shape)
    if kind == "one noisy setting":
        normal[:, 0] *= 10
    if kind == "0.5 to 5 %":  # each setting its own
        return normal * np.exp(random.uniform(np.log(0.005), np.log(0.05), (pages, settings, 1)))
    if kind in SKEWED:
        sizes = 0.01 * np.exp(random.uniform(0, np.log(SKEWED[kind]), (pages, settings, 1)))
        if kind.startswith("skewed"):
            return -sizes * (random.exponential(1, shape) - 1)
        deviation = np.sqrt((np.e - 1) * np.e)
        return -sizes * (random.lognormal(0, 1, shape) - np.exp(0.5)) / deviation
    if kind == "lognormal slowdowns":
        return -0.02 * random.lognormal(0, 1, shape)
    if kind == "stalls":  # a tenth of the runs lose up to a fifth of their speed
        return 0.005 * normal - 0.2 * (random.random(shape) < 0.1) * random.random(shape)
    if kind == "heavy steps":  # 20 steps a run, 5 % with Pareto times: infinite variance
        steps = np.zeros(shape)
        for _ in range(20):
            stall = (random.random(shape) < 0.05) * random.pareto(1.5, shape)
            steps += np.exp(0.05 * random.standard_normal(shape)) * (1 + stall)
        return -np.log(steps / 20)
    if kind == "shared rounds":  # the first two repeats of every setting share a disturbance
        shared = random.standard_normal((pages, 1, runs))
        shared[..., 1] = shared[..., 0]
        normal = normal + shared
    if kind in {"shared hosts", "unknown shared hosts"}:  # two runs of each setting share a host
        hosts = random.standard_normal(shape)
        hosts[..., 1] = hosts[..., 0]
        normal = normal + hosts
        if kind == "shared hosts":  # whose name is known, so that they count as one
            normal = np.concatenate(
                [normal[..., :2].mean(-1, keepdims=True), normal[..., 2:]], axis=-1
            )
    return 0.05 * normal


def against_the_best(logs, confidence=1 - (1 - CONFIDENCE) / FIGURES):
    """Compare all settings of pages with the best median; the best one itself is left out of the second array."""
    best = np.median(logs, axis=-1).argmax(-1)[:, None]
    every = moments(logs)
    base = Moments(
        *(np.take_along_axis(each, best, 1) for each in (every.mean, every.variance, every.count))
    )
    least = np.median(every.variance, axis=-1, keepdims=True)
    bounds = intervals.all_pairs(base, every, logs.shape[1], confidence, least)
    return bounds, np.arange(logs.shape[1]) != best
