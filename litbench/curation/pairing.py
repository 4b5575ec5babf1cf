"""Pairs within a prompt, caps and length symmetry, as Ibis expressions (paper 3.2).

All of it works on keys (ids, scores, times, lengths); texts are joined at the end. Draws are by
md5 of seed and pair_id, so they do not depend on the order of rows or on the engine.
"""

from typing import Any

import ibis

from litbench.curation.filters import Rule

# Scores are whole numbers, so this only absorbs rounding in min_gap * score.
_ROUNDING = 1e-9


def within_prompt(stories: Any) -> Any:
    """All pairs of stories of one prompt and split with different scores, higher one chosen.

    Args:
        stories: Ibis table with `story_id`, `prompt_id`, `split`, `score`, `created_utc`,
            `n_words` and `author`.

    Returns:
        Ibis table with `pair_id`, `prompt_id`, `split` and the rest once per side.
    """
    columns = ("story_id", "score", "created_utc", "n_words", "author")
    chosen = stories.select(
        "prompt_id", "split", **{f"chosen_{name}": stories[name] for name in columns}
    )
    rejected = stories.select(
        rejected_prompt_id="prompt_id",
        rejected_split="split",
        **{f"rejected_{name}": stories[name] for name in columns},
    )
    pairs = chosen.join(
        rejected,
        [
            chosen.prompt_id == rejected.rejected_prompt_id,
            chosen.split == rejected.rejected_split,
            chosen.chosen_score > rejected.rejected_score,
        ],
    ).drop("rejected_prompt_id", "rejected_split")
    low = ibis.least(pairs.chosen_story_id, pairs.rejected_story_id)
    high = ibis.greatest(pairs.chosen_story_id, pairs.rejected_story_id)
    return pairs.mutate(pair_id=low.concat("|", high).hexdigest("md5"))


def pair_rules(pairs: Any, *, min_gap: float | None, chosen_later: bool) -> list[Rule]:
    """The rules for pairs, in the order in which they apply.

    Args:
        pairs: Ibis table of `within_prompt`.
        min_gap: least difference of scores as a share of the chosen score (paper: 0.25; with
            at least 10 votes on either side the smallest chosen score is then 14). A chosen
            score of zero or less passes with any lead.
        chosen_later: the higher-scored story must also be the later one, so that exposure
            cannot be why it leads (after Ethayarajh et al., 2022). An unknown time is not later.
    """
    rules = []
    if min_gap is not None:
        gap = (pairs.chosen_score - pairs.rejected_score).cast("float64")
        too_small = gap < min_gap * pairs.chosen_score.cast("float64") - _ROUNDING
        rules.append(Rule("min_gap", f"scores differ by {min_gap:.0%} of the higher", too_small))
    if chosen_later:
        later = (pairs.chosen_created_utc > pairs.rejected_created_utc).fill_null(False)
        rules.append(Rule("chosen_later", "higher-scored story is the later", ~later))
    return rules


def _draw(pairs: Any, seed: int | str) -> Any:
    return ibis.literal(f"{seed}|").concat(pairs.pair_id).hexdigest("md5")


def cap_draw(pairs: Any, seed: int) -> Any:
    """The draw by which a prompt's pairs are capped: 32 hexadecimal digits."""
    # Symmetry draws again: with the same draw it would keep the pairs of large prompts first,
    # since a cap leaves these their smallest values.
    return _draw(pairs, f"cap|{seed}")


def draw_limit(most: int, pairs: int) -> str:
    """A draw that at least `most` of so many pairs are below, all but certainly.

    The number below is binomial: ten standard deviations more than `most` are asked for.
    """
    share = (most + 10 * most**0.5 + 100) / pairs
    return "g" if share >= 1 else f"{int(share * 16**12):012x}"


def over_cap(pairs: Any, most: int, seed: int) -> Any:
    """True for the pairs of a prompt beyond the first `most`, in seeded order."""
    draw = cap_draw(pairs, seed)
    window = ibis.window(group_by=pairs.prompt_id, order_by=[draw, pairs.pair_id])
    return ibis.row_number().over(window) >= most


def within_uses(candidates: Any, used: Any | None, most: int, seed: int) -> Any:
    """The next pairs to keep so that no story is in more than `most` of them.

    A pair is taken when, of the candidates of either of its stories, it is among the first that
    the story still has room for, in seeded order. Taken pairs are no candidates for the next
    round, nor are pairs of a story without room; when no round takes any, no pair can be added.
    The first candidate of all is always taken, so rounds come to an end.

    Args:
        candidates: Ibis table with `pair_id`, `chosen_story_id`, `rejected_story_id`.
        used: Ibis table with `story_id` and `uses` so far; null in the first round.
        most: most pairs per story.
        seed: seeds the order.

    Returns:
        Ibis table of candidates with room on both sides, `pair_id`, both story_ids and a boolean
        column `taken`.
    """
    ids = ("chosen_story_id", "rejected_story_id")
    pairs = candidates.select("pair_id", *ids)
    for side in ("chosen", "rejected"):
        if used is None:
            pairs = pairs.mutate(**{f"{side}_room": ibis.literal(most, "int64")})
            continue
        uses = used.select(**{f"{side}_story_id": "story_id", f"{side}_uses": "uses"})
        pairs = pairs.left_join(uses, f"{side}_story_id").drop(f"{side}_story_id_right")
        room = most - pairs[f"{side}_uses"].fill_null(0)
        pairs = pairs.mutate(**{f"{side}_room": room}).drop(f"{side}_uses")
    pairs = pairs.filter(pairs.chosen_room > 0, pairs.rejected_room > 0)
    pairs = pairs.mutate(draw=_draw(pairs, f"uses|{seed}"))
    sides = [
        pairs.select("pair_id", "draw", story_id=f"{side}_story_id", room=f"{side}_room")
        for side in ("chosen", "rejected")
    ]
    uses = sides[0].union(sides[1])
    order = ibis.window(group_by=uses.story_id, order_by=[uses.draw, uses.pair_id])
    uses = uses.mutate(fits=ibis.row_number().over(order) < uses.room)
    fits = uses.group_by("pair_id").agg(taken=uses.fits.all())
    return pairs.select("pair_id", *ids).join(fits, "pair_id")


def breaks_symmetry(pairs: Any, buckets: int, seed: int) -> Any:
    """Mark the pairs to prune so that length says nothing about the choice (paper 3.2).

    The length difference (words of chosen minus words of rejected) falls into `buckets` equal
    buckets, mirrored around zero, up to the largest absolute difference of the split. Of two
    mirrored buckets the fuller one loses pairs, in seeded order, until both hold the same
    number: the largest balanced subset. Pairs of equal length favour neither side and stay.

    Args:
        pairs: Ibis table with `split`, `pair_id` (unique) and `n_words` per side.
        buckets: an even number (paper: 100).
        seed: seeds the draw.

    Returns:
        `pairs` with a boolean column `removed`.
    """
    half = buckets // 2
    difference = pairs.chosen_n_words - pairs.rejected_n_words
    # Few and narrow columns go through the sort and the groups, the rest is joined back: half
    # the time of windows over whole pairs.
    marked = pairs.select("pair_id", "split", size=difference.abs(), side=difference.sign())
    marked = marked.join(marked.group_by("split").agg(widest=marked["size"].max()), "split")
    # Whole numbers throughout: no engine rounds a pair into another bucket.
    place = (marked["size"] * half).floordiv(ibis.greatest(marked.widest, 1))
    marked = marked.mutate(bucket=ibis.least(place, half - 1), draw=_draw(marked, seed))
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
