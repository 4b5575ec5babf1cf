"""Texts that are no stories, compared with rejected stories: counts, flags, language, warning."""

import numpy as np
import pytest

from litbench.raters.interface import ScoreRater, check_stories
from litbench.raters.nonstories import (
    KINDS,
    NEGATIVES,
    add_negatives,
    compare_nonstories,
    nonstories_text,
)


class Braces(ScoreRater):
    """A rater that prefers braces, and remembers what it has scored."""

    name, kind = "braces", "braces"

    def __init__(self):
        self.scored = []

    def score(self, prompts, stories):
        check_stories(stories)
        self.scored += zip(prompts, stories, strict=True)
        return np.array([float("{" in story) for story in stories])


def _counts(rows, kind):
    (counts,) = (row for row in rows if row["kind"] == kind)
    return {name: value for name, value in counts.items() if name != "kind"}


def test_flagged_and_unflagged_texts_are_counted_apart(some_pairs, request):
    pairs = some_pairs(8)
    counts = {"flagged": 0, "flagged_preferred": 0, "unflagged": 8, "unflagged_preferred": 8}
    rows = compare_nonstories(Braces(), pairs)
    assert [row["kind"] for row in rows] == list(KINDS)
    assert _counts(rows, "JSON") == counts, "a rater without a scope flags nothing"
    text = nonstories_text("braces", rows)
    assert "0 of 0 flagged" in text
    assert "warning: no flag for JSON (8 of 8)" in text
    request.getfixturevalue("braces_are_code")
    rows = compare_nonstories(Braces(), pairs)
    swapped = {"flagged": 8, "flagged_preferred": 8, "unflagged": 0, "unflagged_preferred": 0}
    assert _counts(rows, "JSON") == swapped
    assert _counts(rows, "plan") == counts | {"unflagged_preferred": 0}
    text = nonstories_text("braces", rows)
    assert "warning" not in text


def test_a_warning_names_kinds_above_5_percent_worst_first():
    rows = [
        {"kind": kind, "flagged": 40, "flagged_preferred": 40, "unflagged": 20}
        | {"unflagged_preferred": preferred}
        for kind, preferred in (("a", 3), ("b", 4), ("c", 20), ("d", 10), ("e", 5))
    ]
    assert nonstories_text("features", rows) == (
        "not stories: features prefers 200 of 200 flagged, 42 of 100 unflagged texts to stories; "
        "warning: no flag for c (20 of 60), d (10 of 60) and 2 more"
    )


def test_few_stories_are_drawn_and_each_text_has_its_prompt(some_pairs):
    pairs, rater = some_pairs(8), Braces()
    compare_nonstories(rater, pairs, max_stories=3)
    rejected = set(zip(pairs["prompt"].to_pylist(), pairs["rejected"].to_pylist(), strict=True))
    stories, texts = rejected & set(rater.scored), set(rater.scored) - rejected
    assert len(stories) == 3
    assert len(texts) == 3 * len(KINDS)
    for prompt, story in stories:
        assert (prompt, story.upper()) in texts
        assert (prompt, story[::-1]) in texts
    again = Braces()
    compare_nonstories(again, pairs, max_stories=3)
    assert again.scored == rater.scored


@pytest.mark.parametrize(
    ("story", "is_english"),
    [("她 opened the door. It rained.", True), ("她打开了门，外面下着雨。她没有说话。\n\n", False)],
)
def test_texts_are_in_the_language_of_the_stories_and_never_blank(some_pairs, story, is_english):
    # One in 100 repetitions of this Chinese story would be of blanks.
    pairs, rater = some_pairs(300, rejected=[2 * story] * 300), Braces()
    compare_nonstories(rater, pairs, max_stories=300)
    assert any("Chapter" in text for _, text in rater.scored) == is_english


def test_negatives_are_at_most_5_percent_evenly_of_kinds_and_never_compared(some_pairs):
    stories = [f"Told {index}. {'It rained on the red door. ' * 9}" for index in range(430)]
    # The chosen stories of 60 pairs, which are compared, are also the rejected ones of all pairs.
    rejected = [stories[(index + 1) % 60] for index in range(430)]
    pairs = some_pairs(430, chosen=stories, rejected=rejected, prompt=["[WP] Rain"] * 430)
    added = add_negatives(pairs)
    assert added.slice(0, 430).equals(pairs)
    negatives = added.slice(430)
    assert negatives["label_source"].to_pylist() == [NEGATIVES] * 21
    assert set(negatives["chosen"].to_pylist()) < set(stories[60:])
    texts = negatives["rejected"].to_pylist()
    assert sum(text.startswith("TOLD") for text in texts) == 2, "capitals"
    rater = Braces()
    compare_nonstories(rater, pairs)
    assert not set(texts) & {text for _, text in rater.scored}
    assert add_negatives(pairs.slice(0, 19)).num_rows == 19, "5 % are less than a pair"
