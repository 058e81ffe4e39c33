"""The code blocks of the README and the documentation: found, run, and their output blocks compared or written anew.

A block is run unless `<!-- not run: REASON -->` stands on the line before it; a `text` block after `<!-- output -->` is
what the block before it printed. The shell blocks of a page run first, line by line, then its Python blocks as one
program.

`python -m docs.code_blocks` writes the output blocks of all pages anew.
"""

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r"(?:^<!-- (?P<note>[^\n]+?) -->\n)?^```(?P<language>[^\n]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
NOT_RUN = "not run: "
OUTPUT = "output"


@dataclass(frozen=True)
class Block:
    """One fenced block of a page: its language, its text, and the note on the line before it."""

    language: str
    text: str
    note: str
    where: str
    span: tuple[int, int]

    @property
    def reason(self) -> str:
        """Why it is not run; empty if it is."""
        return self.note.removeprefix(NOT_RUN).strip() if self.note.startswith(NOT_RUN) else ""

    @property
    def is_output(self) -> bool:
        """Whether it is what the block before it printed."""
        return self.note == OUTPUT


def pages() -> list[Path]:
    """Return every page that may hold code blocks."""
    site = [path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts]
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "outputs" / "README.md",
        *sorted(site),
    ]


def blocks(page: Path) -> list[Block]:
    """Return the code blocks of a page; directives such as `{toctree}` are none."""
    text = page.read_text()
    found = []
    for match in BLOCK.finditer(text):
        if not match["language"].startswith("{"):
            where = f"{page.relative_to(ROOT)}, line {text.count(chr(10), 0, match.start()) + 1}"
            found.append(
                Block(
                    match["language"], match["text"], match["note"] or "", where, match.span("text")
                )
            )
    return found


def runnable(page: Path, language: str) -> list[Block]:
    """Return the blocks of a language that are run."""
    return [block for block in blocks(page) if block.language == language and not block.reason]


@dataclass
class Home:
    """The folder in which blocks are run; a command that one page has run is not run again for another."""

    folder: Path
    done: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """Return an environment with the commands of this interpreter, in which dsnb is this checkout."""
        path = os.pathsep.join(
            [str(self.folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
        )
        return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}

    def run_line(self, line: str) -> str:
        """Run one line of a shell block and return what it printed; its comment makes it no other command."""
        line = re.sub(r"\s+# .*", "", line)
        if line not in self.done:
            self.done[line] = self._run(["bash", "-c", line], line)
        return self.done[line]

    def run_python(self, texts: list[str]) -> list[str]:
        """Run blocks as one program, in this process, and return what each printed."""
        names: dict[str, object] = {"__name__": "__main__"}
        printed = []
        with contextlib.chdir(self.folder), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for text in texts:
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    exec(compile(text, "block", "exec"), names)  # noqa: S102  (from our own pages)
                printed.append(out.getvalue())
        return printed

    def _run(self, words: list[str], what: str) -> str:
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        if done.returncode:
            raise AssertionError(
                f"exit code {done.returncode} of:\n{what}\n{done.stdout}\n{done.stderr}"
            )
        return done.stdout


def run_page(page: Path, home: Home) -> dict[Block, str]:
    """Run the blocks of a page and return what each printed."""
    printed = {}
    for block in runnable(page, "sh"):
        lines = [line for line in block.text.splitlines() if line.strip()]
        printed[block] = "".join(home.run_line(line) for line in lines)
    programs = runnable(page, "python")
    if programs:
        printed |= zip(programs, home.run_python([block.text for block in programs]), strict=True)
    return printed


def outputs(page: Path, printed: dict[Block, str]) -> Iterator[tuple[Block, str]]:
    """Yield every output block of a page with what the block before it printed."""
    before: Block | None = None
    for block in blocks(page):
        if block.is_output:
            if before is None:
                raise AssertionError(f"{block.where}: an output without a block before it")
            yield (
                block,
                "".join(f"{line.rstrip()}\n" for line in printed[before].rstrip().splitlines()),
            )
        before = block


def main() -> None:
    """Write the output blocks of all pages anew, from the example in the repository and the log of the tests."""
    from tests.support import foreign_logs

    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder) / "logs"
        logs.mkdir()
        (logs / "chat.log").write_text(foreign_logs.chat())
        shutil.copytree(ROOT / "outputs" / "examples", Path(folder) / "outputs" / "examples")
        for page in pages():
            if not any(block.is_output for block in blocks(page)):
                continue
            programs = runnable(page, "python")
            results = Home(Path(folder)).run_python([block.text for block in programs])
            found = list(outputs(page, dict(zip(programs, results, strict=True))))
            text = page.read_text()
            for block, result in reversed(found):
                text = text[: block.span[0]] + result + text[block.span[1] :]
            page.write_text(text)


if __name__ == "__main__":
    main()
