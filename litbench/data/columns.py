"""Columns of foreign files: which one is the prompt, the story, the score, the chosen story, ..."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from litbench.data.ingest import RejectedRows, stream_foreign
from litbench.data.records import NOT_STATED, LabelSource, Schema
from litbench.runs.errors import DataError

# Value of a key whose column is to be found by its name.
GUESS = "guess"
_TEXTS = "text story response answer completion output content message messages conversation reply"


def _names_of_side(words: str) -> str:
    """Return names such as "chosen", "chosen_text" and "text_chosen"."""
    nouns = _TEXTS.split()
    names = ((word, *(f"{word}_{n} {n}_{word}" for n in nouns)) for word in words.split())
    return " ".join(itertools.chain(*names))


# Names that are recognised, most specific first; case and punctuation are ignored.
_NAMES = {
    "prompt": "prompt prompt_text writing_prompt wp_prompt post_title link_title submission_title "
    "title headline heading question instruction task topic query conversations conversation "
    "messages context history input",
    "text": "text story story_text body comment_body comment comment_text selftext response "
    "response_text completion content output answer",
    "score": "score ups upvotes net_votes votes vote_count likes like_count num_likes points karma "
    "comment_score hearts stars rating",
    "time": "created_utc created created_at timestamp time posted posted_at posted_utc date "
    "date_posted datetime published published_at",
    "story_id": "story_id comment_id id",
    "prompt_id": "prompt_id link_id thread_id",
    "chosen": _names_of_side("chosen preferred winner winning better accepted") + " response_j",
    "rejected": _names_of_side("rejected dispreferred non_preferred loser losing worse")
    + " response_k",
    # Rows with several answers: see `litbench.data.sources.items`. Not "labels", which in trl are
    # of the steps of one answer.
    "answers": "answers completions responses outputs candidates generations stories texts",
    "ranks": "ranks rank ranking rankings",
    "scores": "scores score ratings rating overall_score rewards grades grade votes",
    "best": "best best_index best_answer best_completion best_response",
}

# Form of HelpSteer3: the sign of a preference from -3 to 3 names the better response.
_SIGNED = ("response1", "response2", "overall_preference")
_SIGN = "sign(TRY_CAST(overall_preference AS DOUBLE))"
_OF_SIGN = {
    "chosen": f"CASE {_SIGN} WHEN -1 THEN response1 WHEN 1 THEN response2 END",
    "rejected": f"CASE {_SIGN} WHEN -1 THEN response2 WHEN 1 THEN response1 END",
}


@dataclass(kw_only=True)
class PairColumns:
    """Keys of every program that reads pairs from elsewhere.

    Attributes:
        prompt: column of the prompt.
        chosen: column of the preferred story.
        rejected: column of the other story.
        encoding: encoding of a text file, such as cp1252; null: UTF-8, or detected.
        label_source: who preferred the chosen stories, where the file does not say.
    """

    prompt: str = GUESS
    chosen: str = GUESS
    rejected: str = GUESS
    encoding: str | None = None
    label_source: LabelSource = NOT_STATED

    def columns(self) -> dict[str, str]:
        """Return the keys that are given, for `litbench.data.sources.pairs.read_any_pairs`."""
        return given_columns(vars(self))


def given_columns(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys of `PairColumns` that are given in a config."""
    default = vars(PairColumns())
    return {key: config[key] for key in default if config.get(key) not in (None, GUESS, NOT_STATED)}


def first_rows(
    source: str | Path, where: str | None = None, encoding: str | None = None
) -> pa.Table:
    """Return the first rows of a source, with all its columns; lists and objects as JSON text."""
    schema, rejected = Schema("input", (), ()), RejectedRows()
    return next(
        stream_foreign(source, schema, rejected_rows=rejected, where=where, encoding=encoding)
    )


def guess_column(name: str, columns: Iterable[str]) -> str | None:
    """Return the column with the first of the known names of `name`; None if there is none.

    Of columns that differ only in case and punctuation, one spelt as the known name comes first.
    """
    columns = list(columns)
    bare = {_bare(column): column for column in reversed(columns)}
    for word in _NAMES[name].split():
        if word in columns:
            return word
        if _bare(word) in bare:
            return bare[_bare(word)]
    return None


def _bare(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.lower())


def find_columns(
    source: str | Path,
    columns: Sequence[str],
    given: Mapping[str, str | None],
    required: Sequence[str],
    remembered: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the origin of each name: what is given, or the column with a known name.

    Args:
        source: the source, for messages.
        columns: its columns.
        given: by name, a column, an SQL expression, None, or GUESS.
        required: names that must have an origin.
        remembered: by name, the column that a model was trained on, which comes before known names.

    Raises:
        DataError: a required name has no origin; the message lists the columns.
    """

    def guess(name: str) -> str | None:
        stored = (remembered or {}).get(name)
        return stored if stored in columns else guess_column(name, columns)

    origins = {name: guess(name) if origin == GUESS else origin for name, origin in given.items()}
    is_open = all(origins.get(side, "") is None for side in _OF_SIGN)
    if is_open and set(_SIGNED) <= set(columns):
        origins |= _OF_SIGN
    if missing := [name for name in required if origins[name] is None]:
        advice = f"give {' '.join(f'--{name} COLUMN' for name in missing)}, or rename them"
        if "chosen" in missing:
            advice += "; two texts with a label are read by litbench data import_pairs"
        raise DataError(
            f"{source}: cannot tell which column is the {' and the '.join(missing)}; the "
            f"columns are {', '.join(columns)}: {advice}"
        )
    return origins


def holds_pairs(origins: Mapping[str, str | None], of_story: Sequence[str]) -> bool:
    """Whether the rows of a source are pairs, not stories.

    They are if both sides have a column, and one of the columns `of_story` is missing.
    """
    return all(origins[side] for side in _OF_SIGN) and not all(origins[name] for name in of_story)
