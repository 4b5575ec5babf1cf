"""What a long run has read so far, in parts, so that a killed run resumes where it was."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from litbench.artifact import fingerprint, read_json_part, write_json_part


class Parts:
    """JSON files in the folder `parts` of an output folder, each whole or absent.

    Parts that are damaged, older than `read_again_after_days` (by their `read_utc`) or made for
    something else, such as another salt, are removed first, with the manifest of what was made of
    them. No deleted text stays.
    """

    def __init__(
        self, out: Path, made_for: Any, read_again_after_days: float | None = None
    ) -> None:
        self.folder = out / "parts"
        self._made_for = fingerprint(made_for)
        oldest = 0.0
        if read_again_after_days is not None:
            oldest = time.time() - read_again_after_days * 86_400
        for path in self.folder.rglob("*.json"):
            # A killed run could not rename what it was writing.
            part = None if path.name.startswith(".") else read_json_part(path)
            if part is None or part["made_for"] != self._made_for or part["read_utc"] < oldest:
                path.unlink()
                (out / "manifest.json").unlink(missing_ok=True)

    def get(self, name: str) -> dict[str, Any] | None:
        """Read a part, such as "posts/1abcde"; null when it is absent."""
        content: dict[str, Any] | None = read_json_part(self.folder / f"{name}.json")
        return content

    def put(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a part, with `read_utc` in it.

        Raises:
            DataError: the disk is full or the folder cannot be written.
        """
        part = {**content, "made_for": self._made_for}
        write_json_part(part, self.folder / f"{name}.json")

    def names(self, kind: str = "*") -> list[str]:
        """Names of the parts in a subfolder, or in all of them, sorted."""
        paths = self.folder.glob(f"{kind}/*.json")
        return sorted(f"{path.parent.name}/{path.stem}" for path in paths)

    def absent(self, names: Iterable[str]) -> list[str]:
        """Those of some names that have no part."""
        there = set(self.names())
        return [name for name in names if name not in there]

    def discard(self, name: str) -> None:
        """Remove a part."""
        (self.folder / f"{name}.json").unlink(missing_ok=True)
