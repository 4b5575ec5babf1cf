"""Parts read from Reddit, stored until finished, too old, or made with another salt."""

import json
import time
from pathlib import Path
from typing import Any

from litbench.runs.outputs import Cache


def fresh_parts(
    out: Path, kind: str, made_for: Any, read_again_after_days: float | None = None
) -> Cache:
    """Open the cache in `out/parts/KIND`, whose parts contain `read_utc` and `made_for`.

    Parts that are older than `read_again_after_days` or made with another `made_for`, such as
    another salt, are deleted first, so that no deleted text is kept. The manifest in `out` is
    deleted with them.
    """
    cache = Cache(out / "parts" / kind)
    oldest = 0.0
    if read_again_after_days is not None:
        oldest = time.time() - read_again_after_days * 86_400
    for path, part in cache.stored(lambda path: json.loads(path.read_bytes())):
        if part["made_for"] == made_for and part["read_utc"] >= oldest:
            cache.used.add(path.name)
    if cache.discard_unused():
        (out / "manifest.json").unlink(missing_ok=True)
    return Cache(cache.folder)
