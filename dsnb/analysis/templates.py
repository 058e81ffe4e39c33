"""Sentences on decisions and comparisons as templates, which `dsnb.analysis.words` and the page fill."""

from typing import Any

from dsnb.analysis import comparisons
from dsnb.analysis.decide import ASSUMED_PRICE
from dsnb.analysis.intervals import CONFIDENCE, MIN_RUNS, Verdict
from dsnb.analysis.summary import UNSTABLE
from dsnb.analysis.texts import HOURS, SIZES
from dsnb.settings.planning import GOAL_DAYS, MAX_DAYS

BEST = {"time": "Fastest", "gpu_hours": "Fewest {unit}-hours", "cost": "Cheapest", "memory": "Least memory"}
"""What the best setting of an objective is called; `unit` is GPU, or rank where there are none."""
WORSE = {
    "time": ("slower", "faster"),
    "gpu_hours": ("more {unit}-hours", "fewer {unit}-hours"),
    "cost": ("more expensive", "cheaper"),
}
BY_MEAN = ("on average", "on average, though not by the median")
"""What the difference between repeated settings is one of; the best one has the best median."""
PLACE = ("gpus", "nodes")
"""Choices that say how many GPUs, not what they do."""
SHOWN_GIB = 0.05
"""Smaller differences in memory are left out."""
EQUAL_PCT = 0.005
"""Smaller changes are rounding errors of equal figures."""
NO_RUNS = "There are no runs here yet: start the sweep first."
ASSUMED = "an assumed"
NO_ANSWER = "No setting can be recommended: "
BEYOND = "No {what} trains [{model} ]on {tokens} tokens within {max_days} days on {place}."
NEEDED = (
    "{goal_days} days would need {needed} {unit}s if each sustained {rate_per_gpu} tokens/s[ with {by}], an "
    "extrapolation beyond what was {basis}. At that rate, the training takes {hours} {unit}-hours[, {cost}]."
)
VERDICTS = {
    Verdict.TOO_FEW: "few",
    Verdict.NO_LARGER: "no_larger",
    Verdict.LIKELY: "likely",
    Verdict.UNCLEAR: "unclear",
}
"""Verdicts as the names of templates end."""
TEMPLATES = {
    "kicker": "{best} of {options} [{basis} ]{options:setting|settings}",
    "headline": "Train [{model} ][with {setting}, ]on {place}.",
    "headline.failed": NO_ANSWER + "{runs:the run|all} [{several} runs ]failed.",
    "headline.no_gpus": NO_ANSWER + "the number of GPUs is unknown.",
    "headline.no_speed": NO_ANSWER + "no run measured speed.",
    "headline.no_runs": NO_ANSWER + "none was run yet.",
    "headline.too_few_gpus": "No setting was measured on {at_hand} {unit}{at_hand:|s} or fewer: the smallest ran on "
    "{fewest}.",
    "headline.unstable": NO_ANSWER + "{unstable} {unstable:setting is|settings are} not ranked, because "
    "{unstable:its|their} repeats differ by more than {unstable_times} times.",
    "headline.no_price": "The cheapest setting is unknown: give a price.",
    "headline.no_memory": "The setting with the least memory is unknown: no run measured its memory.",
    "headline.beyond": BEYOND.replace("{what}", "measured setting"),
    "costs": "{rate} tokens/s; {tokens} tokens: {duration}, {hours} {unit}-hours[, {energy} kWh], {cost}"
    "[; {memory_name} {memory}[ of {capacity}] GiB].",
    "costs.beyond": "{kicker}: [{setting}, ]on {place}, {rate} tokens/s. " + NEEDED,
    "cost": "[{currency}]{cost} at [{assumed} ][{currency}]{price} a {unit}-hour",
    "no_cost": "cost unknown without a price",
    "note.only_measured": "Only {measured} {unit}{measured:|s} {measured:was|were} measured, fewer than the {at_hand} "
    "at hand: this answer is for {gpus} {unit}{gpus:|s}. {more}",
    "note.more.GPU": "Measure on more (dsnb sweep PARAMS --set gpus={number}) or predict it "
    "(dsnb predict PARAMS --gpus {number}).",
    "note.more.rank": "Measure on more: dsnb sweep PARAMS --set gpus={number}.",
    "note.too_slow": "{too_slow} {too_slow:setting is left out: it takes|settings are left out: they take} more than "
    "{max_days} days.",
    "note.unstable": "{unstable} {unstable:setting is|settings are} not ranked, because {unstable:its|their} repeats "
    "differ by more than {unstable_times} times.",
    "following": "Runner-up: {changes}[, {difference}][, {gib} GiB {more}].",
    "following.none": "No other setting can be compared with it.",
    "changes.place": "the same on {place}",
    "changes.same": "the same settings as {experiment}",
    "size": "{by} {worse}[ {mean}]",
    "interval": "95 % interval {low} to {high}",
    "runs.one_each": "one {counted} each",
    "runs.both": "{base_n} and {n} {counted}s",
    "difference.few": "{size} ({runs}, too few to be sure: {needed} of each are needed)",
    "difference.few_same": "about the same ({size}; {runs}, too few to be sure: {needed} of each are needed)",
    "difference.likely": "{size} ({interval})",
    "difference.unclear": "{size}, which may be chance ({interval})",
    "difference.no_larger": "about the same ({size}, {interval})",
    "basis": "Speed[ and {memory_word}]: {origin}, {n:one run|the median of}[ {several} runs]. Time and costs: "
    "extrapolated to all tokens without restarts, checkpoints and evaluation."
    "[ {failed} more {failed:run|runs} of this setting failed.]",
    "worth": "Worth measuring: {said}, {gain} % {what} than the best measured setting, {sure} the mean error of such "
    "predictions.",
    "worth.first": "Worth measuring first: {said}.",
    **{f"verdict.{name}": comparisons.WORDS[verdict] for verdict, name in VERDICTS.items()},
}
"""Sentences by name; the facts are listed where they are made, in `dsnb.analysis.words`."""
PAGE: dict[str, Any] = {
    "templates": TEMPLATES,
    "words": {
        "best": BEST,
        "worse": WORSE,
        "byMean": BY_MEAN,
        "more": ("more", "less"),
        "place": PLACE,
        "sizes": SIZES,
        "hours": HOURS,
        "gain": {"time": "less time", "gpu_hours": "fewer GPU-hours", "cost": "less cost", "memory": "less memory"},
        "values": comparisons.VALUES,
        "method": f"The unit is a run. A change is likely if its {100 * CONFIDENCE:g} % interval excludes 0 and it is "
        "at least {relevance}. The intervals of speed and memory of all pairs of settings of the task hold together, "
        "whatever is selected (Games and Howell 1976).",
        "noRuns": NO_RUNS,
        "assumed": ASSUMED,
    },
    "limits": {
        "maxDays": MAX_DAYS,
        "goalDays": GOAL_DAYS,
        "shownGib": SHOWN_GIB,
        "equalPct": EQUAL_PCT,
        "fewestRuns": MIN_RUNS,
        "assumedPrice": ASSUMED_PRICE,
        "unstableTimes": UNSTABLE,
    },
}
"""What the page needs of this module, ready for JSON."""
