"""Records that nobody should write: those of real runs with something changed in them, and made-up ones.

Everything is drawn from a seeded generator, so that a case that went wrong can be made again.
"""

import json
import random

TEXTS = [
    "", " ", "0", "auto", "bf16", "\x00", "\x1b[31mred\x1b[0m", "\u202eevil", "a\nb", "a\r\nb", "\t", "</script><b>x",
    "=1+1", "@SUM(A1)", "-2", "+3", "|a|b|", "`x`", "[x](javascript:1)", "$\\frac$", "%s{0}{x}", "../..", "/", "é",
    "\U0001f680", "\u2028", "nan", "1e5", "9" * 400, "x" * 3000, "__class__", "zs0_fp32_gpus1_bs2_sl32_stdlib",
]  # fmt: skip
NUMBERS = [
    "0", "-1", "1", "3.5", "-0.0", "1e-320", "1e17", "1e30", "1e308", "1e400", "-1e400", "NaN", "Infinity",
    "-Infinity", "1" + "0" * 400, "1" + "0" * 5000, str(2**53 + 1), str(2**63), str(-(2**64)), "0.1", "1000000",
]  # fmt: skip
KEYS = [
    "status", "cause", "summary", "name", "host", "gpus", "nodes", "self", "cls", "asked", "", "0", "x", "-1",
    "tokens_per_s", "step", "rank", "phases_s",
]  # fmt: skip


class Raw:
    """A number or a literal as it is to be spelled."""

    def __init__(self, text):
        self.text = text


def value(draw: random.Random, depth=0):
    kind = draw.random()
    if kind < 0.3:
        return draw.choice(TEXTS)
    if kind < 0.6:
        return Raw(draw.choice(NUMBERS))
    if kind < 0.75 or depth > 3:
        return draw.choice([None, True, False])
    if kind < 0.77:
        return Raw("[" * 500 + "]" * 500)
    if kind < 0.78:
        return Raw('"\\ud83d"')
    if kind < 0.89:
        return [value(draw, depth + 1) for _ in range(draw.randrange(4))]
    return {draw.choice(KEYS): value(draw, depth + 1) for _ in range(draw.randrange(4))}


def mutated(draw, record):
    """Return a record in which one to three things are replaced, removed or added, at any depth."""
    record = json.loads(json.dumps(record))
    for _ in range(draw.randrange(1, 4)):
        places = [record, *_containers(record)]
        place = draw.choice(places)
        if isinstance(place, list):
            place.insert(0, value(draw))
            continue
        key = draw.choice([*place, draw.choice(KEYS)])
        if draw.random() < 0.15:
            place.pop(key, None)
        else:
            place[key] = value(draw)
    return record


def _containers(record):
    found = []
    for one in record.values() if isinstance(record, dict) else record:
        if isinstance(one, dict | list):
            found += [one, *_containers(one)]
    return found


def text(record):
    """Spell a record as JSON."""
    if isinstance(record, Raw):
        return record.text
    if isinstance(record, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {text(item)}" for key, item in record.items()) + "}"
    if isinstance(record, list):
        return "[" + ", ".join(map(text, record)) + "]"
    return json.dumps(record)


def spelled(draw, record):
    """Return the bytes of a file with this record: whole, or seldom cut off or garbled."""
    raw = text(record).encode()
    chance = draw.random()
    if chance < 0.02:
        return raw[: draw.randrange(len(raw) + 1)]
    if chance < 0.04:
        place = draw.randrange(len(raw) + 1)
        return raw[:place] + draw.randbytes(3) + raw[place:]
    return b"\xef\xbb\xbf" + raw if chance < 0.05 else raw


def write_run(draw, folder, real):
    """Write one run: a few of its records are nonsense, the others real ones; return how many are nonsense.

    Parameters
    ----------
    real
        Name of a file -> the lines of it in a real run.
    """
    folder.mkdir(parents=True)
    names = list(real)
    odd = set(draw.sample(names, draw.randrange(3, len(names))))
    for name, lines in real.items():
        if name in odd and draw.random() < 0.04:
            continue
        written = []
        for line in lines[:3] if name in odd else lines:
            if name not in odd:
                written.append(json.dumps(line).encode())
            elif draw.random() < 0.8:
                written.append(spelled(draw, mutated(draw, line)))
            else:
                written.append(spelled(draw, value(draw)))
        (folder / name).write_bytes(b"\n".join(written) + b"\n")
    return len(odd)
