"""What a long run has read so far, in parts, so that a killed run resumes where it was."""

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from litbench.artifact import fingerprint, write_atomically
from litbench.text import digest


class Parts:
    """JSON files in a folder, each whole or absent.

    A part counts as absent when it is damaged, too old, or was made for something else, such as
    another salt.

    Attributes:
        folder: where the files are.

    Args:
        folder: where the files are.
        made_for: plain values that the parts depend on.
        read_again_after_days: age from which a part counts as absent; null for never.
    """

    def __init__(
        self, folder: Path, made_for: Any, read_again_after_days: float | None = None
    ) -> None:
        self.folder = folder
        self._made_for = fingerprint(made_for)
        self._oldest_utc = (
            None if read_again_after_days is None else time.time() - read_again_after_days * 86_400
        )
        # What this run has written is not too old, whatever the server's clock says.
        self._new: set[str] = set()

    def get(self, name: str) -> dict[str, Any] | None:
        """Read a part, such as "posts/1abcde"; null when it is absent."""
        try:
            text = (self.folder / f"{name}.json").read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            return None
        found, _, body = text.partition("\n")
        if found != digest(self._made_for, body):
            return None
        content: dict[str, Any] = json.loads(body)
        if self._oldest_utc is not None and name not in self._new:
            return content if content["read_utc"] >= self._oldest_utc else None
        return content

    def put(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a part; where an age limit is set, `read_utc` in it is its time.

        Raises:
            DataError: the disk is full or the folder cannot be written.
        """
        # ASCII, since unpaired surrogates have no UTF-8 encoding.
        body = json.dumps(content, ensure_ascii=True)
        text = f"{digest(self._made_for, body)}\n{body}"
        write_atomically(
            self.folder / f"{name}.json", lambda path: path.write_text(text, encoding="ascii")
        )
        self._new.add(name)

    def names(self, kind: str = "*") -> list[str]:
        """Names of the parts in a subfolder, or in all of them, sorted; absent ones too."""
        paths = self.folder.glob(f"{kind}/[!.]*.json")
        return sorted(f"{path.parent.name}/{path.stem}" for path in paths)

    def absent(self, names: Iterable[str]) -> list[str]:
        """Those of some names that have no part."""
        return [name for name in names if self.get(name) is None]

    def are_current(self) -> bool:
        """Whether there are parts and none of them counts as absent."""
        names = self.names()
        return bool(names) and not self.absent(names)

    def discard(self, name: str) -> None:
        """Remove a part."""
        (self.folder / f"{name}.json").unlink(missing_ok=True)

    def discard_absent(self) -> None:
        """Remove parts that count as absent, which may hold deleted texts, and partial files."""
        for name in self.absent(self.names()):
            self.discard(name)
        for path in self.folder.rglob(".part-*"):
            path.unlink(missing_ok=True)
