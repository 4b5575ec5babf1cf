"""Judges whose ratings were recorded: verdicts without asking anyone.

Where the ratings of two stories are known, the higher one is the preference; equal ones are a tie.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litbench.config import build, nearest
from litbench.errors import ConfigError
from litbench.raters import BlindPair, Judgement, Preference, Rater, RaterSpec
from litbench.sources.ratings import RATINGS, ROUNDING, story_digest
from litbench.tables import read_table

KIND = "recorded"


@dataclass(frozen=True)
class RecordedRating:
    """A story's rating, NaN where the answer could not be read, and what the judge wrote."""

    rating: float
    explanation: str | None


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
class RecordedRater(Rater):
    """A recorded judge as a rater like any other.

    Attributes:
        by_text: ratings by `story_digest`.
        by_id: ratings by story_id, for stories whose text is not published.
    """

    name: str
    by_text: Mapping[str, RecordedRating]
    by_id: Mapping[str, RecordedRating]
    kind: str = KIND
    needs_texts = False

    @classmethod
    def from_options(cls, name: str, options: Mapping[str, Any], where: str) -> "RecordedRater":
        """The kind `recorded`; see RecordedOptions.

        Raises:
            ConfigError: the file has no such judge.
        """
        given = build(RecordedOptions, options, where)
        judge = given.judge or name
        judges = recorded_judges(given.path)
        if judge not in judges:
            raise ConfigError(
                f"{where}: {given.path} has no judge '{judge}': {nearest(judge, judges)}"
            )
        by_text, by_id = {}, {}
        for row in read_table(given.path, RATINGS).to_pylist():
            if row["rater_kind"] == KIND and row["rater"] == judge:
                rating = math.nan if row["rating"] is None else row["rating"]
                by_id[row["story_id"]] = RecordedRating(rating, row["explanation"])
                if row["story_digest"]:
                    by_text[row["story_digest"]] = by_id[row["story_id"]]
        return cls(name, by_text, by_id)

    def judge(self, pairs: Sequence[BlindPair]) -> Sequence[Sequence[Judgement]]:
        """Compare the ratings of both stories; a story it never rated is an error.

        The explanation is what the judge wrote about both stories, null where one of them has none.
        """
        judged = []
        for pair in pairs:
            # Where a text is not known, the id of its story stands in its place.
            found = [
                self.by_text.get(story_digest(pair.prompt, text)) or self.by_id.get(text)
                for text in (pair.first, pair.second)
            ]
            first, second = (None if one is None else one.rating for one in found)
            told = [one.explanation for one in found if one is not None and one.explanation]
            judged.append(
                [
                    Judgement(
                        prefer(first, second),
                        reward_first=_or_none(first),
                        reward_second=_or_none(second),
                        explanation="\n\n".join(told) if len(told) == 2 else None,
                    )
                ]
            )
        return judged

    def notes(self) -> dict[str, Any]:
        """How many stories it rated."""
        unread = sum(math.isnan(one.rating) for one in self.by_id.values())
        return {"stories": len(self.by_id), "without_rating": unread}


def recorded_judges(ratings: Path) -> list[str]:
    """Names of the recorded judges of a file of ratings, in its order."""
    rows = read_table(ratings, RATINGS).select(["rater", "rater_kind"]).to_pylist()
    return list(dict.fromkeys(row["rater"] for row in rows if row["rater_kind"] == KIND))


def recorded_specs(ratings: Path) -> list[RaterSpec]:
    """A config's entry for every recorded judge of a file of ratings, under its own name."""
    return [
        RaterSpec(name, KIND, {"path": str(ratings), "judge": name})
        for name in recorded_judges(ratings)
    ]


def _or_none(rating: float | None) -> float | None:
    return None if rating is None or math.isnan(rating) else rating
