"""The name of every file in a folder that `dsnb prepare` fills and all nodes see."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SharedPaths:
    """The files of a folder that all nodes see, filled by `dsnb prepare`."""

    dir: Path

    @property
    def index(self) -> Path:
        """What is there, whole; written after it."""
        return self.dir / "prepared.json"

    @property
    def lock(self) -> Path:
        """Held while `dsnb prepare` writes here."""
        return self.dir / ".lock"

    @property
    def hub(self) -> Path:
        """A cache of the hub, as huggingface_hub lays it out."""
        return self.dir / "hub"

    @property
    def files(self) -> Path:
        """Copies of files, each in a folder named by the hash of its content."""
        return self.dir / "files"
