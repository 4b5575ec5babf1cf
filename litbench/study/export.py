"""The choices of a study as ratings of stories, in the form that import_ratings.py reads."""

from collections import defaultdict

import pyarrow as pa
import pyarrow.compute as pc

_STORY = ("story_id", "prompt_id", "prompt", "text")


def rated_stories(pairs: pa.Table) -> pa.Table:
    """The stories of the pairs; columns `story_id`, `prompt_id`, `prompt`, `text`."""
    stories = {
        row[f"{side}_story_id"]: {
            "story_id": row[f"{side}_story_id"], "prompt_id": row["prompt_id"],
            "prompt": row["prompt"], "text": row[side],
        }
        for row in pairs.to_pylist()
        for side in ("chosen", "rejected")
    }  # fmt: skip
    schema = pa.schema([(name, pa.large_string()) for name in _STORY])
    return pa.Table.from_pylist([stories[name] for name in sorted(stories)], schema)


def ratings_of(choices: pa.Table, pairs: pa.Table) -> pa.Table:
    """How often each reader chose each story that they read, from 0 to 1.

    Args:
        choices: table with the schema CHOICES; checks and repeated pairs are left out.
        pairs: table with the schema PAIRS.

    Returns:
        Columns `story_id`, `rater`, `rating`, `explanation` (the reasons).
    """
    sides = {row["pair_id"]: row for row in pairs.drop_columns(["chosen", "rejected"]).to_pylist()}
    chosen: dict[tuple[str, str], list[float]] = defaultdict(list)
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in choices.filter(pc.equal(choices["kind"], "pair")).to_pylist():
        for side in ("chosen", "rejected"):
            key = sides[row["pair_id"]][f"{side}_story_id"], row["reader"]
            chosen[key].append(float(row["outcome"] == side))
            reasons[key] += [row["reason"]] if row["reason"] else []
    rows = [
        {
            "story_id": story, "rater": reader, "rating": sum(of) / len(of),
            "explanation": "\n\n".join(reasons[story, reader]) or None,
        }
        for (story, reader), of in sorted(chosen.items())
    ]  # fmt: skip
    text = pa.large_string()
    schema = [("story_id", text), ("rater", text), ("rating", pa.float64()), ("explanation", text)]
    return pa.Table.from_pylist(rows, pa.schema(schema))
