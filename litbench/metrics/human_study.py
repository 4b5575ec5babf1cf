"""Figures of a study with human readers, from its choices and pairs.

A reader who saw a pair chose one of its stories. The label of a pair is its chosen side: what a
verifier prefers, or what other annotators said. Two figures must not be confused: the share of all
choices that agree with the labels, and the share of pairs on which the majority of readers does.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from litbench.errors import DataError
from litbench.metrics.agreement import length_differences
from litbench.metrics.annotators import AnnotatorAgreement, annotator_agreement
from litbench.metrics.intervals import Interval, jackknife_interval, two_way_interval
from litbench.records import Column, Schema, connected_prompts

CHOICES = Schema(
    "choices",
    (
        Column("reader", "text", "salted hash of the reader's id", required=True),
        Column("place", "integer", "number of the page in the reader's order", required=True),
        Column("kind", "text", "what the page asked", required=True,
               choices=("pair", "repeat", "attention", "question")),
        Column("pair_id", "text", "the pair shown, or asked about", required=True),
        Column("order", "text", "story that stood first; null for a question, and if unknown",
               choices=("chosen", "rejected")),
        Column("outcome", "text", "the choice; null for a question",
               choices=("chosen", "rejected", "tie")),
        Column("is_right", "integer", "1 if a check was answered right, else 0; null for no check"),
        Column("seconds", "number", "time from the first look at the page to the answer"),
        Column("hurried", "integer", "answers sent back because they came too early"),
        Column("reason", "text", "what the reader wrote"),
        Column("version", "text", "version of the page"),
        Column("answered_utc", "time", "when the answer came"),
        Column("finished", "integer", "1 if the reader finished, else 0"),
    ),
    key=("reader", "place"),
)  # fmt: skip

_CREDIT = {"chosen": 1.0, "tie": 0.5, "rejected": 0.0}


@dataclass(frozen=True)
class Exclusions:
    """Which readers the analysis leaves out; fixed before the first reader.

    Attributes:
        failed_attention: who chose the garbled story.
        changed_repeat: who chose differently when a pair came again.
        unfinished: who left before the end.
        hurried_share: who sent more than this share of the answers too early.
        wrong_share: who answered more than this share of the content questions wrong.
    """

    failed_attention: bool = True
    changed_repeat: bool = False
    unfinished: bool = False
    hurried_share: Annotated[float, Field(ge=0, le=1)] = 1.0
    wrong_share: Annotated[float, Field(ge=0, le=1)] = 1.0


@dataclass(frozen=True)
class ReaderResult:
    """One reader; `agreement` is with the labels, `excluded` the rules that leave it out."""

    reader: str
    choices: int
    agreement: float | None
    first_share: float | None
    median_seconds: float | None
    attention: bool | None
    repeat_same: bool | None
    excluded: tuple[str, ...]


@dataclass(frozen=True)
class StudyFigures:
    """The figures of a study; a tie counts one half everywhere.

    Attributes:
        share: share of choices that agree with the labels, by prompt and reader.
        majority: share of pairs on which the majority of readers agrees with the label, by prompt.
        first: share of choices of the story shown first, by prompt and reader; None if unknown.
        longer: share of choices of the longer story, where lengths differ, by prompt and reader.
        repeats: share of repeated pairs with the same choice, by reader.
        attention: share of attention checks passed, by reader.
        questions: share of content questions answered right, by reader.
        hurried: share of answers that were first sent too early.
        seconds: quartiles of the time of a pair; None if unknown.
        annotators: one reader against the others, with raters on the same pairs.
    """

    readers: int
    pairs: int
    prompts: int
    choices: int
    share: Interval
    majority: Interval
    first: Interval | None
    longer: Interval | None
    repeats: Interval | None
    attention: Interval | None
    questions: Interval | None
    hurried: float | None
    seconds: tuple[float, float, float] | None
    annotators: AnnotatorAgreement | None


def reader_results(choices: pa.Table, rules: Exclusions) -> list[ReaderResult]:
    """The results of every reader, by the exclusion rules; `choices` has the schema CHOICES."""
    of_reader: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in choices.drop_columns(["reason"]).to_pylist():
        of_reader[row["reader"]].append(row)
    return [_reader_result(name, of_reader[name], rules) for name in sorted(of_reader)]


def _reader_result(name: str, rows: Sequence[Mapping[str, Any]], rules: Exclusions) -> ReaderResult:
    by_kind: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        by_kind[row["kind"]].append(row)
    pairs = by_kind["pair"]
    first_choice = {row["pair_id"]: row["outcome"] for row in pairs}
    repeats = [row["outcome"] == first_choice.get(row["pair_id"]) for row in by_kind["repeat"]]
    attention = [row["is_right"] == 1 for row in by_kind["attention"]]
    wrong = [row["is_right"] == 0 for row in by_kind["question"]]
    hurried = [row["hurried"] > 0 for row in rows if row["hurried"] is not None]
    ordered = [_CREDIT[row["outcome"]] if row["order"] == "chosen" else 1 - _CREDIT[row["outcome"]]
               for row in pairs if row["order"] is not None]  # fmt: skip
    seconds = [row["seconds"] for row in pairs if row["seconds"] is not None]
    broken = {
        "failed the attention check": rules.failed_attention and not all(attention),
        "changed a repeated choice": rules.changed_repeat and not all(repeats),
        "unfinished": rules.unfinished and any(row["finished"] == 0 for row in rows),
        "hurried": _mean(hurried, 0.0) > rules.hurried_share,
        "wrong content answers": _mean(wrong, 0.0) > rules.wrong_share,
    }
    return ReaderResult(
        reader=name,
        choices=len(pairs),
        agreement=_mean([_CREDIT[row["outcome"]] for row in pairs], None),
        first_share=_mean(ordered, None),
        median_seconds=float(np.median(seconds)) if seconds else None,
        attention=all(attention) if attention else None,
        repeat_same=all(repeats) if repeats else None,
        excluded=tuple(rule for rule, is_broken in broken.items() if is_broken),
    )


def _mean(values: Sequence[float], otherwise: Any) -> Any:
    return float(np.mean(values)) if values else otherwise


def exclusion_counts(readers: Sequence[ReaderResult]) -> dict[str, int]:
    """Number of readers that each rule leaves out; a reader may break several."""
    return dict(Counter(rule for one in readers for rule in one.excluded))


def study_figures(
    choices: pa.Table,
    pairs: pa.Table,
    credits: Mapping[str, np.ndarray],
    *,
    without: Collection[str] = (),
) -> StudyFigures:
    """Compute the figures of a study.

    Args:
        choices: table with the schema CHOICES.
        pairs: table with the schema PAIRS, with all pairs of the choices.
        credits: by rater, the credit of each pair, 0 to 1; shape (pairs,) each.
        without: readers to leave out.
    """
    if without:
        kept = pc.invert(pc.is_in(choices["reader"], pa.array(list(without), pa.large_string())))
        choices = choices.filter(kept)
    of_kind = {
        kind: choices.filter(pc.equal(choices["kind"], kind))
        for kind in ("pair", "repeat", "attention", "question")
    }
    own = of_kind["pair"]
    if not own.num_rows:
        raise DataError("choices: no choice is left: collect some, or loosen the exclusion rules")
    at = pc.index_in(own["pair_id"], pairs["pair_id"].combine_chunks())
    if at.null_count:
        raise DataError(f"choices: {at.null_count} are about unknown pairs: use the study's pairs")
    row_of, readers = at.to_numpy(), np.array(own["reader"].to_pylist())
    credit = np.array([_CREDIT[outcome] for outcome in own["outcome"].to_pylist()])
    prompts = np.array(connected_prompts(pairs))
    clusters = prompts[row_of]

    def two_way(values: np.ndarray, known: np.ndarray) -> Interval | None:
        if not known.any():
            return None
        return two_way_interval(values[known], clusters[known], readers[known])

    order = own["order"].to_pylist()
    is_first = np.array([side == "chosen" for side in order])
    longer = np.sign(length_differences(pairs))[row_of]
    seen = np.unique(row_of)
    shares = np.bincount(row_of, credit, len(prompts))[seen] / np.bincount(row_of)[seen]
    majority = (1 + np.sign(np.round(shares - 0.5, 9))) / 2
    first_choice = {
        (row["reader"], row["pair_id"]): row["outcome"]
        for row in own.select(["reader", "pair_id", "outcome"]).to_pylist()
    }
    repeated = of_kind["repeat"]
    keys = zip(repeated["reader"].to_pylist(), repeated["pair_id"].to_pylist(), strict=True)
    again = zip(keys, repeated["outcome"].to_pylist(), strict=True)
    same = [float(first_choice.get(key) == outcome) for key, outcome in again]
    seconds = own["seconds"].drop_null().to_numpy()
    quartiles = [float(value) for value in np.quantile(seconds, [0.25, 0.5, 0.75])] if len(
        seconds) else []  # fmt: skip
    hurried = choices["hurried"].drop_null().to_numpy()
    share = two_way_interval(credit, clusters, readers)
    return StudyFigures(
        readers=len(set(readers.tolist())),
        pairs=len(seen),
        prompts=share.clusters,
        choices=len(credit),
        share=share,
        majority=jackknife_interval(majority, prompts[seen]),
        first=two_way(np.where(is_first, credit, 1 - credit), np.array([o is not None
                                                                        for o in order])),
        longer=two_way(np.where(longer > 0, credit, 1 - credit), np.abs(longer) == 1),
        repeats=_by_reader(repeated, same),
        attention=_by_reader(of_kind["attention"]),
        questions=_by_reader(of_kind["question"]),
        hurried=float((hurried > 0).mean()) if len(hurried) else None,
        seconds=(quartiles[0], quartiles[1], quartiles[2]) if quartiles else None,
        annotators=one_reader(own, pairs, prompts, credits),
    )  # fmt: skip


def _by_reader(rows: pa.Table, values: Sequence[float] | None = None) -> Interval | None:
    """Interval of a share by reader; of right answers by default."""
    if not rows.num_rows:
        return None
    known = rows["is_right"].to_pylist() if values is None else values
    return jackknife_interval(np.array(known, dtype=float), rows["reader"].to_pylist())


def one_reader(
    choices: pa.Table, pairs: pa.Table, prompts: np.ndarray, credits: Mapping[str, np.ndarray]
) -> AnnotatorAgreement | None:
    """Compare each reader, and every rater, with the majority of the other readers of a pair.

    A choice rates the chosen story of its pair 1 and the other 0. The same story in another pair
    counts as another story, because a choice holds for its pair only.
    """
    ratings: dict[str, dict[str, float]] = defaultdict(dict)
    for row in choices.select(["reader", "pair_id", "outcome"]).to_pylist():
        credit = _CREDIT[row["outcome"]]
        ratings[row["reader"]] |= {
            f"{row['pair_id']} chosen": credit,
            f"{row['pair_id']} rejected": 1 - credit,
        }
    ids = pairs["pair_id"].to_pylist()
    first, second = ([f"{name} {side}" for name in ids] for side in ("chosen", "rejected"))
    return annotator_agreement(ratings, first, second, prompts, credits)


def choices_of_ratings(
    ratings: Mapping[str, Mapping[str, float]], pairs: pa.Table, rounding: float
) -> pa.Table:
    """The preferences of annotators who rated stories, as choices of a finished study.

    Args:
        ratings: by annotator, the rating of each story that they rated.
        pairs: table with the schema PAIRS.
        rounding: difference up to which two ratings are equal.

    Returns:
        Table with the schema CHOICES: one row per annotator and pair of which they rated both
        stories.
    """
    sides = ("pair_id", "chosen_story_id", "rejected_story_id")
    listed = list(zip(*(pairs[name].to_pylist() for name in sides), strict=True))
    rows = []
    for reader, of in sorted(ratings.items()):
        both = [row for row in listed if row[1] in of and row[2] in of]
        for place, (pair_id, chosen, rejected) in enumerate(both, 1):
            gap = of[chosen] - of[rejected]
            outcome = "tie" if abs(gap) <= rounding else "chosen" if gap > 0 else "rejected"
            row = {"reader": reader, "place": place, "kind": "pair"}
            rows.append(row | {"pair_id": pair_id, "outcome": outcome})
    return pa.Table.from_pylist(rows, schema=CHOICES.arrow())
