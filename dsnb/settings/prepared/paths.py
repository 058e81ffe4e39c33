"""The paths in a folder that `dsnb prepare` fills and all nodes see."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SharedPaths:
    """The files of a folder that all nodes see, filled by `dsnb prepare`."""

    dir: Path

    @property
    def index(self) -> Path:
        """Index of the complete items; written after them."""
        return self.dir / "prepared.json"

    @property
    def lock(self) -> Path:
        """Lock of the `dsnb prepare` that writes here."""
        return self.dir / ".lock"

    @property
    def hub(self) -> Path:
        """Cache of the hub in the layout of huggingface_hub."""
        return self.dir / "hub"

    @property
    def files(self) -> Path:
        """Copies of files, each in a folder named by the hash of its content."""
        return self.dir / "files"
