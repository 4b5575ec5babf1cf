"""Golden cases of NARRA-Gym: outputs of the published functions on invented inputs."""

import json
from pathlib import Path

from litbench.writers.narra.history import NarraMessage

# The published type of a message, and ours.
KINDS = {"text": "text", "message": "message", "choice": "choice", "interactive": "text"}


def golden(name):
    """A golden file of NARRA-Gym."""
    path = Path(__file__).parent / "golden" / "narra" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))


def history(messages):
    """Published messages as ours; a bracketed system line is a change of scene, save two notices.

    We give both kinds their own name, so that no text has to be compared.
    """
    results = []
    for message in messages:
        kind = KINDS.get(message["type"], "notice")
        line = message["content"]
        is_notice = "CONCLUSION" in line or "resolution" in line
        if message.get("id", "").startswith("transition-") or (
            kind == "notice" and line.startswith("[") and line.endswith("]") and not is_notice
        ):
            kind = "transition"
        results.append(NarraMessage(message.get("character_id", ""), line, kind))
    return results
