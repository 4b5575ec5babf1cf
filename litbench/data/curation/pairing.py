"""Pairs within a prompt, caps and length symmetry, as Ibis expressions (paper 3.2).

All functions work on keys (ids, scores, times, lengths); texts are joined at the end. Subsamples
are drawn by md5 of seed and pair_id, so they do not depend on row order or engine.
"""

from typing import Any

import ibis
from ibis import _

from litbench.data.curation.filters import Rule
from litbench.data.records import SIDES

# Absorbs rounding errors of min_gap * score.
_ROUNDING = 1e-9
# Hexadecimal digits of a draw that are compared before the pairs of a prompt are sorted.
_START = 2


def within_prompt(stories: Any) -> Any:
    """Pair all stories of a prompt and split that differ in score; the higher one is chosen.

    Args:
        stories: Ibis table with `story_id`, `prompt_id`, `split`, `score`, `created_utc`,
            `n_words` and `author`.

    Returns:
        Ibis table with `pair_id`, `prompt_id`, `split` and the other columns once per side.
    """
    columns = ("story_id", "score", "created_utc", "n_words", "author")
    chosen, rejected = (
        stories.select("prompt_id", "split", **{f"{side}_{name}": name for name in columns})
        for side in SIDES
    )
    is_higher = chosen.chosen_score > rejected.rejected_score
    pairs = chosen.join(rejected, ["prompt_id", "split", is_higher])
    low = ibis.least(pairs.chosen_story_id, pairs.rejected_story_id)
    high = ibis.greatest(pairs.chosen_story_id, pairs.rejected_story_id)
    return pairs.mutate(pair_id=low.concat("|", high).hexdigest("md5"))


def pair_rules(pairs: Any, *, min_gap: float | None, chosen_later: bool) -> list[Rule]:
    """Return the rules for pairs, in the order in which they apply.

    Args:
        pairs: Ibis table of `within_prompt`.
        min_gap: minimum difference of scores as a share of the score further from zero, the
            chosen one unless scores are negative (paper: 0.25; with at least 10 votes on either
            side the smallest chosen score is then 14).
        chosen_later: the higher-scored story must also be the later one, so that longer exposure
            cannot explain its lead (after Ethayarajh et al., 2022). Unknown times fail.
    """
    rules = []
    if min_gap is not None:
        # As integers, scores near 2^63 would overflow.
        chosen, rejected = (pairs[f"{side}_score"].cast("float64") for side in SIDES)
        larger = ibis.greatest(chosen.abs(), rejected.abs())
        too_small = chosen - rejected < min_gap * larger - _ROUNDING
        rules.append(Rule("min_gap", f"scores differ by {min_gap:.0%} of the higher", too_small))
    if chosen_later:
        later = (pairs.chosen_created_utc > pairs.rejected_created_utc).fill_null(False)
        rules.append(Rule("chosen_later", "higher-scored story is the later", ~later))
    return rules


def _draw(pairs: Any, seed: int | str) -> Any:
    return ibis.literal(f"{seed}|").concat(pairs.pair_id).hexdigest("md5")


def _cap_draw(pairs: Any, seed: int) -> Any:
    # The cap and symmetry use different hashes. With the same hash, symmetry would favour large
    # prompts, whose capped pairs have small hash values.
    return _draw(pairs, f"cap|{seed}")


def over_cap(pairs: Any, most: int, seed: int) -> Any:
    """Return whether a pair is beyond the first `most` of its prompt, in seeded order."""
    order = [_cap_draw(pairs, seed), pairs.pair_id]
    window = ibis.window(group_by=pairs.prompt_id, order_by=order)
    return ibis.row_number().over(window) >= most


def draw_limits(pairs: Any, most: int, seed: int) -> Any:
    """Return `prompt_id` and `last`, per prompt the hash prefix of the last kept pair.

    Only counts are held in memory, at most 256 per prompt.
    """
    starts = pairs.select("prompt_id", start=_cap_draw(pairs, seed).substr(0, _START))
    counts = starts.group_by("prompt_id", "start").agg(pairs=starts.count())
    window = ibis.cumulative_window(group_by=counts.prompt_id, order_by=counts.start)
    counts = counts.mutate(before=counts.pairs.sum().over(window) - counts.pairs)
    return counts.filter(counts.before < most).group_by("prompt_id").agg(last=_.start.max())


def within_limits(pairs: Any, limits: Any, seed: int) -> Any:
    """Return the pairs up to the limits of `draw_limits`: all to keep, and few others."""
    joined = pairs.join(limits, "prompt_id")
    start = _cap_draw(joined, seed).substr(0, _START)
    return joined.filter(start <= joined["last"]).drop("last")


def breaks_symmetry(pairs: Any, buckets: int, seed: int) -> Any:
    """Mark the pairs to prune so that length does not predict the choice (paper 3.2).

    The length difference (words of chosen minus words of rejected) is divided into `buckets` equal
    buckets, mirrored around zero, up to the largest absolute difference of the split. The fuller
    of two mirrored buckets loses pairs, in seeded order, until both have the same number. This
    keeps as many pairs as possible. Pairs of equal length are kept.

    Returns:
        `pairs` with a boolean column `removed`.
    """
    half = buckets // 2
    difference = pairs.chosen_n_words - pairs.rejected_n_words
    # Sorting and grouping only a few narrow columns, then joining the result, takes half the time
    # of windows over all columns.
    marked = pairs.select("pair_id", "split", size=difference.abs(), side=difference.sign())
    marked = marked.join(marked.group_by("split").agg(widest=marked["size"].max()), "split")
    # Integer arithmetic: both engines put a pair into the same bucket.
    bucket = (marked["size"] * half).floordiv(ibis.greatest(marked.widest, 1))
    marked = marked.mutate(bucket=ibis.least(bucket, half - 1), draw=_draw(marked, seed))
    longer, shorter = (marked.side > 0).sum(), (marked.side < 0).sum()
    fewer = marked.group_by("split", "bucket").agg(fewer=ibis.least(longer, shorter))
    marked = marked.join(fewer, ["split", "bucket"])
    order = ibis.window(
        group_by=[marked.split, marked.bucket, marked.side],
        order_by=[marked.draw, marked.pair_id],
    )
    beyond = ibis.row_number().over(order) >= marked.fewer
    removed = marked.select("pair_id", removed=(marked.side != 0) & beyond)
    return pairs.join(removed, "pair_id")
