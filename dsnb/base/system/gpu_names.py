"""Data sheets of GPUs, and their names as people, drivers and publications write them: `4090`, `NVIDIA A100-SXM4-80GB`.

`gpus.csv` has a line for each form of a GPU, with its source. Rates are dense ones at the boost
clock, in TFLOP/s; a card at its power limit (`power_w`) sustains less. Bandwidths are in GB/s in
one direction: NVLink 5 has 18 links of 50 GB/s, NVLink 4 18 of 25, NVLink 3 12, NVLink 2 6; PCIe
5.0 x16 has 64 GB/s, 4.0 32, 3.0 16. Bridges join two cards. `memory_gib` is what drivers report.

Case, separators and makers do not matter, but every other word of a name has to be understood. A
part of a card, a laptop's, or one of another memory has the name of the card with another word
(`NVIDIA H100 80GB HBM3 MIG 1g.10gb`, `NVIDIA A10-4Q`), and neither its rates nor its memory.
"""

import csv
import difflib
import re
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")


class DataSheet(NamedTuple):
    """One form of a GPU by its data sheet; sizes of memory are side by side, the usual one first."""

    kind: str
    form: str
    memory_gb: tuple[int, ...]
    memory_gib: tuple[float, ...]
    memory_gb_per_s: tuple[float, ...]
    tflops: dict[str, float]
    """Dense rates by precision; "with sparsity" they are printed twice as high. That of `fp32` is
    outside the matrix units; a format that the chip lacks has none."""
    nvlink_gb_per_s: float
    """Of all links to other GPUs of the node; 0 for none."""
    pcie_gb_per_s: float
    switched: bool
    """Whether a switch gives two GPUs of a node all links; otherwise each pair has its share."""
    power_w: float
    boost_mhz: float | None
    """The highest clock of its multiprocessors; None if it is not known."""

    def name(self, memory_gb: int, is_usual_form: bool) -> str:
        """Return the name of the form with a size of memory: `A100 PCIe-40GB`."""
        place = self.memory_gb.index(memory_gb)
        name = self.kind
        if not is_usual_form:
            name += f" {self.form}"
        if self.memory_gib[place] != self.memory_gib[0]:
            name += f"-{memory_gb}GB"
        return name


def _read() -> dict[str, dict[str, DataSheet]]:
    kinds: dict[str, dict[str, DataSheet]] = {}
    with open(Path(__file__).with_name("gpus.csv"), encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            sheet = DataSheet(
                kind=row["kind"],
                form=row["form"],
                memory_gb=tuple(map(int, row["memory_gb"].split())),
                memory_gib=tuple(map(float, row["memory_gib"].split())),
                memory_gb_per_s=tuple(map(float, row["memory_gb_per_s"].split())),
                tflops={name: float(row[name]) for name in PRECISIONS if row[name]},
                nvlink_gb_per_s=float(row["nvlink_gb_per_s"]),
                pcie_gb_per_s=float(row["pcie_gb_per_s"]),
                switched=row["switched"] == "1",
                power_w=float(row["power_w"]),
                boost_mhz=float(row["boost_mhz"]) if row["boost_mhz"] else None,
            )
            kinds.setdefault(sheet.kind.lower(), {})[sheet.form.lower()] = sheet
    return kinds


KINDS = _read()
"""Each kind of GPU with its forms, the usual one first."""
FORM_OF_MEMORY = {("h100", "hbm2e"): "pcie"}
"""Kinds of memory that tell the form: `NVIDIA H100 80GB HBM2e` is the PCIe card."""
WITHOUT_MEANING = {
    "nvidia", "tesla", "geforce", "amd", "instinct", "gpu", "generation", "blackwell", "workstation", "edition",
}  # fmt: skip
"""Words of makers and series that do not change which card a name means."""
BRAND = "rtx "
"""A word that names of its cards may lack: `4090`, `A6000`."""
SEPARATORS = r"[\s_/()-]+"
ALIASES = {"mi150x": "mi250x", "gh200 480gb": "gh200"}
"""A publication's name for one of the two dies; a driver's, which has the memory of the CPU."""
WORD = re.compile(
    r" ?(?:(?P<form>sxm|pcie|nvl|oam)(?:[2-5](?!\d))?"
    r"|(?P<memory>hbm\d(?:e|(?!\d))|gddr\dx?)|(?P<gb>\d{1,4}) ?gb?)(?![a-z])"
)
"""A form, a kind of memory or a size after the kind of a GPU."""
NEAREST = 4
"""Names suggested for an unknown one."""


class GpuName(NamedTuple):
    """What a name says."""

    kind: str
    form: str
    """`sxm`, `pcie`, `nvl` or `oam`; the usual one if the name has none."""
    memory_gb: int | None
    """Nominal memory, if the name has it."""


def words(name: str) -> list[str]:
    """Return the words of a name in lower case, without those of makers."""
    found = re.split(SEPARATORS, name.strip().lower())
    return [word for word in found if word and word not in WITHOUT_MEANING]


@cache
def _kinds() -> list[tuple[re.Pattern[str], str]]:
    """Return a pattern for each kind, with or without spaces, the longest name first."""
    patterns = []
    for kind in sorted(KINDS, key=len, reverse=True):
        text = re.escape(kind.removeprefix(BRAND)).replace(r"\ ", " ?")
        if kind.startswith(BRAND):
            text = f"(?:{BRAND}?)?{text}"
        patterns.append((re.compile(text), kind))
    return patterns


@lru_cache
def parse(name: str | None) -> GpuName | None:
    """Return the parts of a name; None if one of its words is unknown."""
    text = " ".join(words(name or ""))
    text = ALIASES.get(text, text)
    for pattern, kind in _kinds():
        match = pattern.match(text)
        if match:
            parsed = _form_and_memory(kind, text[match.end() :])
            if parsed:
                return parsed
    return None


def _form_and_memory(kind: str, text: str) -> GpuName | None:
    """Return the name of a kind whose form and memory are in a text; None if it has anything else."""
    forms = KINDS[kind]
    form = next(iter(forms))
    memory_gb = None
    while text:
        word = WORD.match(text)
        if word is None:
            return None
        form = word["form"] or FORM_OF_MEMORY.get((kind, word["memory"]), form)
        if word["gb"]:
            memory_gb = int(word["gb"])
        text = text[word.end() :]
    if form not in forms:
        return None
    if memory_gb is not None and memory_gb not in forms[form].memory_gb:
        return None
    return GpuName(kind, form, memory_gb)


def variants() -> dict[str, tuple[DataSheet, int]]:
    """Return each GPU by its name: the data sheet of its form, and its nominal memory in GB."""
    found: dict[str, tuple[DataSheet, int]] = {}
    for forms in KINDS.values():
        usual = next(iter(forms))
        for form, sheet in forms.items():
            for memory_gb in sheet.memory_gb:
                found.setdefault(sheet.name(memory_gb, form == usual), (sheet, memory_gb))
    return found


def meant(name: str, known: list[str]) -> list[str]:
    """Return which of the known names have every word of an incomplete one, such as `RTX 6000`."""
    asked = {*words(name)}
    if not any(word[-1].isdigit() for word in asked):
        return []
    return [other for other in known if asked <= {*words(other)}]


def nearest(name: str, known: list[str]) -> list[str]:
    """Return known names like an unknown one, the nearest first."""
    compact = {}
    for other in known:
        text = " ".join(words(other))
        compact["".join(text.split())] = other
        compact["".join(text.removeprefix(BRAND).split())] = other
    asked = words(name)
    found = difflib.get_close_matches("".join(asked), compact, NEAREST, cutoff=0.6)
    for word in asked:
        found += difflib.get_close_matches(word, compact, NEAREST, cutoff=0.7)
    near = [compact[text] for text in found]
    return list(dict.fromkeys(near))[:NEAREST]
