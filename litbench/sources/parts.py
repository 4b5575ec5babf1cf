"""Store the intermediate results of a long run in parts, so that a killed run resumes."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from litbench.store import fingerprint, read_json_part, write_json_part


class Parts:
    """JSON files in the folder `parts` of an output folder, written atomically.

    Parts that are damaged, older than `read_again_after_days` (by their `read_utc`) or made with
    another `made_for`, such as another salt, are deleted first, so that no deleted text is kept.
    The manifest in `out` is deleted with them.
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
            # Names with a leading dot are incomplete files of a killed run.
            part = None if path.name.startswith(".") else read_json_part(path)
            if part is None or part["made_for"] != self._made_for or part["read_utc"] < oldest:
                path.unlink()
                (out / "manifest.json").unlink(missing_ok=True)

    def get(self, name: str) -> dict[str, Any] | None:
        """Read a part, such as "posts/1abcde"; returns null if it is absent."""
        content: dict[str, Any] | None = read_json_part(self.folder / f"{name}.json")
        return content

    def put(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a part; `content` must contain `read_utc`.

        Raises:
            DataError: the disk is full or the folder cannot be written.
        """
        part = {**content, "made_for": self._made_for}
        write_json_part(part, self.folder / f"{name}.json")

    def names(self, kind: str = "*") -> list[str]:
        """Return the sorted names of the parts in a subfolder, or in all of them."""
        paths = self.folder.glob(f"{kind}/*.json")
        return sorted(f"{path.parent.name}/{path.stem}" for path in paths)

    def absent(self, names: Iterable[str]) -> list[str]:
        """Return the given names that have no part."""
        present = set(self.names())
        return [name for name in names if name not in present]

    def discard(self, name: str) -> None:
        """Remove a part."""
        (self.folder / f"{name}.json").unlink(missing_ok=True)
