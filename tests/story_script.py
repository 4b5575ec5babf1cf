"""Writers of short stories, and a judge whose grade depends on the story alone."""

import re

from litbench.data.text import digest
from litbench.raters.templates.rubric import load_rubric


def write(name):
    return lambda question: f"A {name} story, {digest(name, question)}."


def rate(question):
    """A grade from 2 to 9; `good` stories have 3 more."""
    # Without the code, which differs between folders.
    story = re.search(r"A \w+ story, \w+", question)[0]
    grade = 2 + int(digest(story), 16) % 5 + 3 * ("good" in story)
    return load_rubric("story").example().replace(": 5", f": {grade}")
