"""The list of mutations, and what can be wrong with an entry."""

import ast
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]


@dataclass(frozen=True)
class Mutation:
    """A change of what one file means, and the tests that should notice."""

    room: str
    holds: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def mutated(self, text: str) -> str:
        """Return the text of the file with the mutation."""
        return text.replace(self.old, self.new)


def read(folder: Path = FOLDER) -> list[Mutation]:
    """Return the mutations of all files of a folder; a file's name is the room."""
    mutations = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text())["mutation"]:
            tests = tuple(entry.pop("tests"))
            mutations.append(Mutation(room=path.stem, tests=tests, **entry))
    return mutations


def selected(mutations: Iterable[Mutation], modules: Iterable[str]) -> list[Mutation]:
    """Return the mutations of these rooms, folders or files; all of them if none is named."""
    places = [module.removesuffix("/").removeprefix("dsnb/") for module in modules]
    if not places:
        return list(mutations)
    return [mutation for mutation in mutations if _is_in(mutation, places)]


def _is_in(mutation: Mutation, places: list[str]) -> bool:
    file = mutation.file.removeprefix("dsnb/")
    return mutation.room in places or any(
        file == place or file.startswith(f"{place}/") for place in places
    )


def faults(mutation: Mutation, root: Path = ROOT) -> list[str]:
    """Return why a mutation cannot be tried, in sentences."""
    path = root / mutation.file
    if not path.is_file():
        return [f"there is no file {mutation.file}"]
    found = []
    text = path.read_text()
    count = text.count(mutation.old)
    if count != 1:
        found.append(f"{mutation.file} has {count} times, instead of once: {mutation.old}")
    if mutation.new == mutation.old:
        found.append(f"`new` equals `old`: {mutation.old}")
    if path.suffix == ".py" and not _parses(mutation.mutated(text)):
        found.append(f"{mutation.file} would be no Python with: {mutation.new}")
    if not mutation.tests:
        found.append("no test is named")
    for test in mutation.tests:
        if not _exists(test, root):
            found.append(f"there is no test {test}")
    return found


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _exists(test: str, root: Path) -> bool:
    file, _, name = test.partition("::")
    path = root / file
    if not name:
        return path.exists()
    return path.is_file() and f"def {name}(" in path.read_text()
