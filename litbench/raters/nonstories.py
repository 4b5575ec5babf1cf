"""Texts that are no stories, made by code, and how often a rater prefers them to stories.

    rows = compare_nonstories(rater, pairs)
    print(nonstories_text(rater.name, rows))

A model may prefer code or a refusal to a story; which, depends on its training data.
"""

import itertools
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from litbench.data.text import are_empty, count_words_of, digest
from litbench.raters.interface import Rater
from litbench.runs.config import read_yaml

# A text of a kind from a source of random numbers, a story and its language, en or zh.
Make = Callable[[random.Random, str, str], str]
MAX_STORIES = 60
# Added to the training pairs, as a share of them, with this `label_source`.
MAX_NEGATIVES, NEGATIVES = 0.05, "negatives"
# Of the rows of `compare_nonstories`.
COLUMNS = ("kind", "flagged", "flagged_preferred", "unflagged", "unflagged_preferred")
# Unflagged texts that are preferred in more than this share of a kind's texts give a warning.
_MAX_SHARE = 0.05
_NAMED_KINDS = 2
# Share of blanks; Chinese has fewer.
_MIN_BLANKS = 0.1
NAMES = ("index", "total", "item", "buffer", "node", "result", "cache", "user", "path", "offset")


@cache
def read_sentences() -> dict[str, Any]:
    """Read the sentences by language and kind, and what fills their slots."""
    return read_yaml(Path(__file__).with_suffix(".yaml"))


def prose(kind: str, read: Callable[[], Mapping[str, Any]] = read_sentences) -> Make:
    """Make sentences of a kind of prose, such as a plan, with words drawn for their slots."""

    def make(draw: random.Random, story: str, language: str) -> str:
        del story
        pool = read()[language]
        fill = pool["fill"]

        def sentence(template: str) -> str:
            text = re.sub(r"\{(\w+)\}", lambda slot: draw.choice(fill[slot[1]]), template)
            return text[0].upper() + text[1:]

        fewest, most = (3, 7) if kind == "refusal" else (6, len(pool[kind]))
        chosen = [sentence(text) for text in draw.sample(pool[kind], draw.randint(fewest, most))]
        if kind == "plan":
            return "\n".join(chosen)
        parts, space = [], " " if language == "en" else ""
        while chosen:
            size = draw.randint(2, 5)
            parts.append(space.join(chosen[:size]))
            chosen = chosen[size:]
        return "\n\n".join(parts)

    return make


def code_lines(draw: random.Random, story: str, language: str) -> str:
    """Functions in Python."""
    del story, language
    lines = ["import os, sys", ""]
    for _ in range(draw.randint(3, 8)):
        a, b, c = draw.sample(NAMES, 3)
        lines += [
            f"def {a}_{b}({b}, {c}=None):",
            f"    for {a} in range(len({b})):",
            f"        if {b}[{a}] {draw.choice(['>', '<', '==', '!='])} {draw.randint(0, 99)}:",
            f"            {c}.append({b}[{a}] * {draw.randint(2, 9)})",
            f"    return {draw.choice([f'{c} or []', f'sorted({c})', f'{{{a!r}: {c}}}'])}",
            "",
        ]
    return "\n".join(lines)


def json_rows(draw: random.Random, story: str, language: str) -> str:
    """Rows of numbers and names as JSON."""
    del story, language
    rows = [
        {
            name: draw.choice([draw.randint(0, 9_999), draw.choice(NAMES), True, None])
            for name in draw.sample(NAMES, 5)
        }
        for _ in range(draw.randint(5, 25))
    ]
    return json.dumps({"rows": rows, "version": draw.randint(1, 9)}, indent=draw.choice([None, 2]))


def reversed_letters(draw: random.Random, story: str, language: str) -> str:
    """The story from its last letter to its first."""
    del draw, language
    return story[::-1]


def repetition(draw: random.Random, story: str, language: str) -> str:
    """Up to 12 words of the story, 30 to 60 times."""
    size = draw.randint(1, 12)
    words, space = (story, "") if language == "zh" else (story.split(), " ")
    start = draw.randrange(max(len(words) - size, 1))
    return space.join([space.join(words[start : start + size])] * draw.randint(30, 60))


def split_words(story: str, language: str) -> tuple[list[str], str]:
    """Words, of Chinese the characters, and what joins them."""
    return (list(story), "") if language == "zh" else (story.split(), " ")


def shuffled_words(draw: random.Random, story: str, language: str) -> str:
    """The words of the story in random order."""
    tokens, space = split_words(story, language)
    draw.shuffle(tokens)
    return space.join(tokens)


def capitals(draw: random.Random, story: str, language: str) -> str:
    """The story in capitals."""
    del draw
    if language == "zh":  # Chinese has none: every character twice
        return "".join(character * 2 for character in story)
    return story.upper()


# Kinds that are compared with stories after a training.
KINDS: Mapping[str, Make] = {
    "no words": lambda *_: "...",
    "quotation marks": lambda *_: '"' * 200,
    "code": code_lines,
    "JSON": json_rows,
    "reversed letters": reversed_letters,
    "repetition": repetition,
    "capitals": capitals,
    "shuffled words": shuffled_words,
    "refusal": prose("refusal"),
    "plan": prose("plan"),
}
# Kinds of negatives: those of `KINDS`, without its texts that are always the same.
_NEGATIVES: Mapping[str, Make] = {
    **KINDS,
    "no words": lambda draw, *_: draw.choice("-*?!_") * draw.randint(1, 9),
    "quotation marks": lambda draw, *_: '"' * draw.randint(20, 180),
}


def _language(stories: Sequence[str]) -> str:
    letters = "".join(stories)
    has_blanks = sum(map(str.isspace, letters)) > _MIN_BLANKS * len(letters)
    return "en" if has_blanks else "zh"


def _compared(pairs: pa.Table, max_stories: int) -> list[tuple[str, str]]:
    """Prompts and rejected stories, drawn by hash, that are compared with texts."""
    sides = zip(pairs["prompt"].to_pylist(), pairs["rejected"].to_pylist(), strict=True)
    return sorted(set(sides), key=lambda row: digest("nonstories", *row))[:max_stories]


def add_negatives(pairs: pa.Table) -> pa.Table:
    """Append pairs whose rejected side is a text that is no story, for training only.

    There are at most `MAX_NEGATIVES` as many as pairs, evenly of the kinds of `compare_nonstories`.
    Each is made from the chosen story of a pair, drawn by hash; stories that `compare_nonstories`
    draws are left out, so that it never compares a text on which the model was trained.

    Args:
        pairs: training pairs, with texts.

    Returns:
        The pairs, then the negatives; their `label_source` is `NEGATIVES`.
    """
    compared = {story for _, story in _compared(pairs, MAX_STORIES)}
    ids, stories = pairs["pair_id"].to_pylist(), pairs["chosen"].to_pylist()
    rows = [row for row, story in enumerate(stories) if story not in compared]
    rows.sort(key=lambda row: digest(NEGATIVES, ids[row]))
    drawn = pa.array(rows[: int(MAX_NEGATIVES * pairs.num_rows)], pa.int64())
    draw, language = random.Random(1), _language(stories)
    negatives = []
    for make, row in zip(itertools.cycle(_NEGATIVES.values()), pairs.take(drawn).to_pylist()):
        text, name = make(draw, row["chosen"], language), f"{NEGATIVES} {row['pair_id']}"
        values = {
            **{column: None for column in row if column.startswith(("rejected_", "rationale"))},
            "pair_id": name,
            "rejected": text,
            "rejected_story_id": name,
            "rejected_n_words": count_words_of(text),
            "label_source": NEGATIVES,
        }
        negatives += [row | values] if text.strip() else []
    return pa.concat_tables([pairs, pa.Table.from_pylist(negatives, pairs.schema)])


def _texts_of(stories: Sequence[str]) -> tuple[list[str], list[int], list[str]]:
    """Kinds, indices of the stories, and texts; blank texts, which raters reject, are left out."""
    draw, language = random.Random(0), _language(stories)
    rows = [
        (kind, index, make(draw, story, language))
        for kind, make in KINDS.items()
        for index, story in enumerate(stories)
    ]
    is_blank = are_empty(pa.array([text for *_, text in rows])).to_pylist()
    kinds, indices, texts = zip(*itertools.compress(rows, np.logical_not(is_blank)), strict=True)
    return list(kinds), list(indices), list(texts)


def compare_nonstories(
    rater: Rater, pairs: pa.Table, max_stories: int = MAX_STORIES
) -> list[dict[str, Any]]:
    """Compare texts that are no stories with rejected stories of the same prompts.

    Args:
        rater: a trained rater; it judges pairs in the orders that it reads.
        pairs: its training pairs, with texts.
        max_stories: number of rejected stories, drawn by hash.

    Returns:
        A row per kind: `kind`, the number of texts `flagged` (false by one of the rater's flags)
        and `unflagged`, and how many of each are preferred: `flagged_preferred`,
        `unflagged_preferred`.
    """
    drawn = _compared(pairs, max_stories)
    kinds, indices, texts = _texts_of([story for _, story in drawn])
    prompts, stories = zip(*(drawn[index] for index in indices), strict=True)
    # A text that was not judged is not preferred.
    is_preferred = rater.compare(prompts, texts, stories) > 1 / 2
    flags = rater.flags(texts)
    is_flagged = np.array(
        [False in both for both in zip(flags.is_prose, flags.like_training, strict=True)]
    )
    rows = []
    for kind in KINDS:
        is_kind = np.array(kinds) == kind
        row: dict[str, Any] = {"kind": kind}
        for name, part in (("flagged", is_kind & is_flagged), ("unflagged", is_kind & ~is_flagged)):
            row |= {name: int(part.sum()), f"{name}_preferred": int((part & is_preferred).sum())}
        rows.append(row)
    return rows


def preferred_kinds(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Kinds of which unflagged texts are preferred in more than 5 %, with numbers; worst first."""
    shares = [
        (
            row["unflagged_preferred"] / texts,
            f"{row['kind']} ({row['unflagged_preferred']} of {texts})",
        )
        for row in rows
        if (texts := row["flagged"] + row["unflagged"])
    ]
    worst = sorted(shares, key=lambda pair: -pair[0])
    return [text for share, text in worst if share > _MAX_SHARE]


def nonstories_text(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The comparison in one line, with a warning that names the worst kinds."""
    flagged, unflagged = (
        f"{sum(row[f'{part}_preferred'] for row in rows):,} of {sum(row[part] for row in rows):,}"
        for part in ("flagged", "unflagged")
    )
    text = f"not stories: {name} prefers {flagged} flagged, {unflagged} unflagged texts to stories"
    kinds = preferred_kinds(rows)
    if not kinds:
        return text
    further = f" and {len(kinds) - _NAMED_KINDS} more" if len(kinds) > _NAMED_KINDS else ""
    return f"{text}; warning: no flag for {', '.join(kinds[:_NAMED_KINDS])}{further}"
