"""Recorded judges: preferences derived from published ratings, without sending requests.

The story with the higher rating is preferred; equal ratings are a tie.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litbench.data.records import RATINGS
from litbench.data.sources.ratings import ROUNDING, overall_ratings, story_digest
from litbench.data.tables import read_table
from litbench.raters.entries import RaterSpec
from litbench.raters.interface import BlindPair, Judgement, Preference, Rater
from litbench.runs.config import nearest
from litbench.runs.errors import ConfigError

KIND = "recorded"


@dataclass
class RecordedOptions:
    """Options of the kind `recorded`.

    Attributes:
        path: `ratings.parquet` of data_prep/import_ratings.py or of `litbench run`.
        judge: name of the judge in that file; the name of the rater when null.
    """

    path: Path
    judge: str | None = None

    def load(self, name: str) -> "RecordedRater":
        """Read the ratings of the judge."""
        judge = self.judge or name
        rows = _recorded(self.path)
        if judge not in (judges := list(dict.fromkeys(row["rater"] for row in rows))):
            raise ConfigError(
                f"rater {name}: {self.path} has no judge '{judge}': {nearest(judge, judges)}"
            )
        rows = [row for row in rows if row["rater"] == judge]
        by_text = {row["story_digest"]: row for row in rows if row["story_digest"]}
        return RecordedRater(name, by_text, {row["story_id"]: row for row in rows})


@dataclass
class RecordedRater(Rater):
    """A recorded judge as a rater.

    Attributes:
        by_text: rows of the ratings table by `story_digest`.
        by_id: rows of the ratings table by story_id, for stories whose text is not published.
    """

    name: str
    by_text: Mapping[str, Mapping[str, Any]]
    by_id: Mapping[str, Mapping[str, Any]]
    kind: str = KIND
    needs_texts = False

    def judge(self, pairs: Sequence[BlindPair]) -> Sequence[Sequence[Judgement]]:
        """Compare the ratings of both stories; the outcome is `error` if one was never rated.

        The explanation joins the explanations of both stories; null if one of them has none.
        """
        judged = []
        for pair in pairs:
            # If the text is not published, `pair.first` and `pair.second` are story ids.
            rows = [
                self.by_text.get(story_digest(pair.prompt, text)) or self.by_id.get(text)
                for text in (pair.first, pair.second)
            ]
            first, second = (None if row is None else row["rating"] for row in rows)
            texts = [row["explanation"] for row in rows if row is not None and row["explanation"]]
            prefers: Preference
            if None in rows:
                prefers = "error"
            elif first is None or second is None:
                prefers = "unparsed"
            elif abs(first - second) <= ROUNDING:
                prefers = "tie"
            else:
                prefers = "first" if first > second else "second"
            explanation = "\n\n".join(texts) if len(texts) == 2 else None
            judged.append([Judgement(prefers, None, first, second, explanation=explanation)])
        return judged

    def notes(self) -> dict[str, Any]:
        """Number of stories, and of those without a rating."""
        missing = sum(row["rating"] is None for row in self.by_id.values())
        return {"stories": len(self.by_id), "without_rating": missing}


def recorded_specs(ratings: Path) -> list[RaterSpec]:
    """Rater specs of all recorded judges in a ratings file, named as in the file."""
    judges = dict.fromkeys(row["rater"] for row in _recorded(ratings))
    return [RaterSpec(name, KIND, {"path": str(ratings), "judge": name}) for name in judges]


def _recorded(ratings: Path) -> list[dict[str, Any]]:
    rows = overall_ratings(read_table(ratings, RATINGS)).to_pylist()
    return [row for row in rows if row["rater_kind"] != "person"]
