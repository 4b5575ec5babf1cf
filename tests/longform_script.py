"""A writer and a judge of EQ-Bench Longform, whose answers depend on the conversation alone."""

import re

from litbench.data.text import digest
from litbench.raters.templates.rubric import load_rubric


def write_text(question):
    """An answer of about 600 characters that depends on the whole conversation."""
    return f"{digest(question)}. " + "It rained on the lighthouse. " * 20


def rate_text(question):
    """Ratings of the packaged rubrics that depend on the question."""
    level = "chapter" if re.search(r"CHAPTER \d+ BEGINS", question) else "final"
    rows = [
        f"{criterion.name}: {int(digest(question, criterion.name), 16) % 21}"
        for criterion in load_rubric(f"longform_{level}").criteria
    ]
    return "It has merits.\n\n[Scores]\n" + "\n".join(rows)
