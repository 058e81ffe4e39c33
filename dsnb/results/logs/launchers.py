"""Readers of command lines with settings, and of launchers, which print hosts and ranks."""

import re
from itertools import pairwise

from dsnb.results.logs.reading import LoggedRun, Match, reads
from dsnb.results.logs.values import names, value_of

FLAGS = names("flags")
SPLITS = names("splits")
_COMPLAINT = re.compile(r"\.py:\d|\.py[:'\s]{1,3}error|[Ww]arning|error:|usage:")
_TRACE = re.compile(r"\++ (?!echo |printf |: )")
COMMANDS = ("cmd = ", "with command: ", "run sh: ")
"""What launchers print before a command line."""
PAIRED = re.compile(
    r"(?i)(?:^|[/_-])(?:dpo|step2_reward|reward_model(?:l?ing|l?ing_finetuning)?)(?:[/_.-]|$)"
)
"""Scripts whose samples are pairs of a better and a worse sequence."""
CHAT = re.compile(r"step\d_\w{1,60}/main\.py|DeepSpeed-Chat")
CHAT_OFF = {"activation_checkpointing": False, "lora_rank": 0, "offload": "none"}
"""DeepSpeed-Chat's flags are switches: absent means off."""


@reads(" --", "'--")
def command(run: LoggedRun, match: Match) -> None:
    """Read settings from `... script.py --flag value ...`: plain words, a Python list, or a trace of `set -x`.

    Only the flags of `lines.toml` are kept: others may hold confidential values. A command line
    that follows the printed settings belongs to another program, such as an evaluation.
    """
    if run.configured:
        return
    line = match.string
    words = re.split(r"[\s,\[\]'\"`\\]+", line)[:-1]  # the last word may be cut off
    scripts = [place for place, word in enumerate(words) if word.endswith(".py")]
    is_command = bool(_TRACE.match(line)) or any(said in line for said in COMMANDS)
    if not scripts or (not is_command and _COMPLAINT.search(line)):
        return
    script = scripts[0]
    run.launched |= is_command
    for word, after in pairwise([*words[script:], ""]):
        if word.startswith("--"):
            flag, equals, value = word[2:].partition("=")
            if not equals and not after.startswith("--"):
                value = after
            _flag(run, flag.replace("-", "_"), value)
    # A second engine, whose rate is no more that of whole steps.
    run.has_parts |= "--critic_model_name_or_path" in line
    run.has_pairs |= bool(PAIRED.search(words[script]))
    if CHAT.search(line):
        run.scratch["chat"] = True
        off = {name: value for name, value in CHAT_OFF.items() if name not in run.settings}
        run.set_requested(**off)
    is_packed = run.settings.pop("packed", False)
    longest = run.settings.pop("longest", None)
    set_longest(run, longest, is_packed)


def set_longest(run: LoggedRun, longest: int | None, is_packed: bool) -> None:
    """Record the most tokens of a sample: the length of all if samples are packed."""
    if not longest or "seq_len" in run.settings:
        return
    run.settings["seq_len"] = longest
    if not is_packed:
        run.longest = longest


def _flag(run: LoggedRun, name: str, value: str) -> None:
    if name in FLAGS:
        run.set_requested(**value_of(FLAGS, name, value))
    elif name in SPLITS:
        read_split(run, name, value)


def read_split(run: LoggedRun, name: str, value: str) -> None:
    """Record how many ranks share a sequence."""
    kind, parse = SPLITS[name]
    ranks = parse(value)
    if ranks:
        run.splits[kind] = ranks


@reads("WORLD INFO DICT:")
def world(run: LoggedRun, match: Match) -> None:
    """`WORLD INFO DICT: {'host': [0, 1], ...}`."""
    run.launched = True
    for host, ranks in re.findall(r"'([\w.-]{1,250})': \[([\d, ]{0,20000})\]", match.string):
        run.slots[host] = 0
        if ranks.strip():
            run.slots[host] = ranks.count(",") + 1


# `host slots=8`, as in DeepSpeed's hostfile.
reads(" slots=", pattern=r"^([A-Za-z0-9][\w.-]{0,250}) slots=(\d{1,4})\s*$")(
    lambda run, match: run.slots.update({match[1]: int(match[2])})
)


@reads("Setting OMP_NUM_THREADS environment variable")
def launcher(run: LoggedRun, _match: Match) -> None:
    """Count the warnings of torch's launcher, one on every node."""
    run.launched = True
    run.launchers += 1
