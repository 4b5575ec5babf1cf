"""Judges whose ratings were recorded: verdicts without asking anyone.

Where the ratings of two stories are known, the higher one is the preference; equal ones are a tie.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from litbench.config import build, nearest
from litbench.errors import ConfigError
from litbench.raters import BlindPair, Judgement, Preference
from litbench.records import VERDICTS, empty_columns
from litbench.sources.ratings import RATINGS, ROUNDING, story_digest
from litbench.tables import read_table

KIND = "recorded"


def prefer(first: float | None, second: float | None) -> Preference:
    """Which of two ratings is higher.

    Args:
        first: rating of the first story, NaN where an answer could not be read, None where there
            is none.
        second: of the second story.
    """
    if first is None or second is None:
        return "error"
    if math.isnan(first) or math.isnan(second):
        return "unparsed"
    if abs(first - second) <= ROUNDING:
        return "tie"
    return "first" if first > second else "second"


def _recorded(ratings: pa.Table) -> dict[str, dict[str, dict[str, Any]]]:
    """The recorded judges' rows by rater and story_id; a null rating becomes NaN."""
    found: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in ratings.to_pylist():
        if row["rater_kind"] == KIND:
            rating = math.nan if row["rating"] is None else row["rating"]
            found[row["rater"]][row["story_id"]] = {**row, "rating": rating}
    return dict(found)


def recorded_verdicts(ratings: pa.Table, pairs: pa.Table) -> dict[str, pa.Table]:
    """Verdicts of every recorded judge; no text is needed for them.

    The explanation of a verdict is what the judge wrote about both stories, in the order of their
    ids, so that it does not tell which was chosen; null where one of the two is not recorded.

    Args:
        ratings: table by the schema RATINGS.
        pairs: table by the schema PAIRS.

    Returns:
        Per judge a table by the schema VERDICTS, a row for every pair.
    """
    names = ("pair_id", "chosen_story_id", "rejected_story_id")
    columns = [pairs[name].to_pylist() for name in names]
    outcomes = {"first": "chosen", "second": "rejected"}
    tables = {}
    for rater, rated in _recorded(ratings).items():
        rows = []
        for name, *stories in zip(*columns, strict=True):
            known = [rated.get(story) for story in stories]
            rewards = [None if row is None else row["rating"] for row in known]
            preference = prefer(*rewards)
            told = [rated[story]["explanation"] for story in sorted(stories) if story in rated]
            rows.append(
                {
                    "pair_id": name,
                    "rater": rater,
                    "kind": KIND,
                    "outcome": outcomes.get(preference, preference),
                    "reward_chosen": _or_none(rewards[0]),
                    "reward_rejected": _or_none(rewards[1]),
                    "explanation": "\n\n".join(told) if len(told) == 2 and all(told) else None,
                }
            )
        tables[rater] = pa.table(
            {
                name: pa.array([row.get(name) for row in rows], column.type)
                for name, column in empty_columns(VERDICTS, 0).items()
            }
        )
    return tables


def _or_none(rating: float | None) -> float | None:
    return None if rating is None or math.isnan(rating) else rating


@dataclass
class RecordedOptions:
    """Options of the kind `recorded`.

    Attributes:
        path: `ratings.parquet` of data_prep/import_ratings.py.
        judge: name of the judge in it; the rater's own name when null.
    """

    path: Path
    judge: str | None = None


@dataclass
class RecordedRater:
    """A recorded judge as a rater like any other: alone or in a panel.

    It knows a story again by prompt and text, so stories without text are none of its.

    Attributes:
        ratings: by `story_digest`; NaN where an answer could not be read.
    """

    name: str
    ratings: Mapping[str, float]
    kind: str = KIND

    @classmethod
    def from_options(cls, name: str, options: Mapping[str, Any], where: str) -> "RecordedRater":
        """The kind `recorded`; see RecordedOptions.

        Raises:
            ConfigError: the file has no such judge.
        """
        given = build(RecordedOptions, options, where)
        judges = _recorded(read_table(given.path, RATINGS))
        judge = given.judge or name
        if judge not in judges:
            raise ConfigError(
                f"{where}: {given.path} has no judge '{judge}': {nearest(judge, list(judges))}"
            )
        rows = judges[judge].values()
        return cls(
            name, {row["story_digest"]: row["rating"] for row in rows if row["story_digest"]}
        )

    def judge(self, pairs: Sequence[BlindPair]) -> Sequence[Sequence[Judgement]]:
        """Compare the ratings of both stories; a story it never rated is an error."""
        judged = []
        for pair in pairs:
            first, second = (
                self.ratings.get(story_digest(pair.prompt, text))
                for text in (pair.first, pair.second)
            )
            preference = prefer(first, second)
            judged.append(
                [
                    Judgement(
                        preference,
                        reward_first=_or_none(first),
                        reward_second=_or_none(second),
                    )
                ]
            )
        return judged

    def training_prompts(self) -> frozenset[str]:
        """No prompts: what the judge was trained on is not known."""
        return frozenset()

    def notes(self) -> dict[str, Any]:
        """How many stories it rated."""
        unread = sum(math.isnan(rating) for rating in self.ratings.values())
        return {"stories": len(self.ratings), "without_rating": unread}
