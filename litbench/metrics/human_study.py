"""Figures of a study with human readers, from its choices and pairs.

A reader who saw a pair chose one of its stories. The label of a pair is its chosen side: what a
verifier prefers, or what other annotators said. Two figures must not be confused: the share of all
choices that agree with the labels, and the share of pairs on which the majority of readers does.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from litbench.errors import DataError
from litbench.metrics.agreement import length_differences
from litbench.metrics.annotators import AnnotatorAgreement, annotator_agreement
from litbench.metrics.intervals import Interval, jackknife_interval, two_way_interval
from litbench.records import VERDICTS, Column, Schema, connected_prompts, empty_columns
from litbench.text import aligned

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
_READERS = """
select one.reader, count(*) filter (one.kind = 'pair') as choices,
    avg(case one.outcome when 'chosen' then 1.0 when 'tie' then 0.5 else 0.0 end)
        filter (one.kind = 'pair')::double as agreement,
    median(one.seconds) filter (one.kind = 'pair') as median_seconds,
    avg(one.is_right) filter (one.kind = 'attention') as attention,
    avg((one.outcome = before.outcome)::int) filter (one.kind = 'repeat') as repeats,
    avg(one.is_right) filter (one.kind = 'question') as questions,
    bool_or(one.finished = 0) as is_unfinished
from choices as one left join choices as before
    on one.reader = before.reader and one.pair_id = before.pair_id and before.kind = 'pair'
group by one.reader order by one.reader
"""


@dataclass(frozen=True)
class Exclusions:
    """Which readers the analysis leaves out; fixed before the first reader.

    Attributes:
        failed_attention: who chose the garbled story.
        changed_repeat: who chose differently when a pair came again.
        unfinished: who left before the end.
        wrong_share: who answered more than this share of the content questions wrong.
    """

    failed_attention: bool = True
    changed_repeat: bool = False
    unfinished: bool = False
    wrong_share: Annotated[float, Field(ge=0, le=1)] = 1.0


@dataclass(frozen=True)
class ReaderResult:
    """One reader; shares are None where the reader met no such page.

    Attributes:
        reader: salted hash of the id.
        choices: number of pairs.
        agreement: share of choices that agree with the labels.
        median_seconds: median time of a pair.
        attention: share of attention checks passed.
        repeats: share of repeated pairs with the same choice.
        questions: share of content questions answered right.
        excluded: the rules that leave the reader out.
    """

    reader: str
    choices: int
    agreement: float | None
    median_seconds: float | None
    attention: float | None
    repeats: float | None
    questions: float | None
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
    seconds: list[float] | None
    annotators: AnnotatorAgreement | None


def reader_results(choices: pa.Table, rules: Exclusions) -> list[ReaderResult]:
    """The results of every reader, by the exclusion rules; `choices` has the schema CHOICES."""
    with duckdb.connect() as database:
        database.register("choices", choices.drop_columns(["reason"]))
        rows = database.sql(_READERS).to_arrow_table().to_pylist()
    results = []
    for row in rows:
        wrong = 0.0 if row["questions"] is None else 1 - row["questions"]
        broken = {
            "failed the attention check": rules.failed_attention and row["attention"] == 0,
            "changed a repeated choice": rules.changed_repeat and row["repeats"] == 0,
            "unfinished": row.pop("is_unfinished") and rules.unfinished,
            "wrong content answers": wrong > rules.wrong_share,
        }
        excluded = tuple(rule for rule, is_broken in broken.items() if is_broken)
        results.append(ReaderResult(**row, excluded=excluded))
    return results


def exclusion_counts(readers: Sequence[ReaderResult]) -> dict[str, int]:
    """Number of readers that each rule leaves out; a reader may break several."""
    return dict(Counter(rule for one in readers for rule in one.excluded))


def leave_out(choices: pa.Table, readers: Collection[str]) -> pa.Table:
    """The choices of all other readers."""
    names = pa.array(list(readers), pa.large_string())
    return choices.filter(pc.invert(pc.is_in(choices["reader"], names)))


def study_figures(
    choices: pa.Table,
    pairs: pa.Table,
    readers: Sequence[ReaderResult],
    annotators: AnnotatorAgreement | None,
) -> StudyFigures:
    """Compute the figures of a study.

    Args:
        choices: table with the schema CHOICES.
        pairs: table with the schema PAIRS, with all pairs of the choices.
        readers: the results of the readers of these choices.
        annotators: see StudyFigures.
    """
    own = choices.filter(pc.equal(choices["kind"], "pair"))
    if not own.num_rows:
        raise DataError("choices: no choice is left: collect some, or loosen the exclusion rules")
    row_of = _rows_of(own, pairs)
    names = np.array(own["reader"].to_pylist())
    credit = np.array([_CREDIT[outcome] for outcome in own["outcome"].to_pylist()])
    prompts = np.array(connected_prompts(pairs))
    clusters = prompts[row_of]

    def two_way(values: np.ndarray, known: np.ndarray) -> Interval | None:
        if not known.any():
            return None
        return two_way_interval(values[known], clusters[known], names[known])

    def by_reader(check: str) -> Interval | None:
        values = [value for one in readers if (value := getattr(one, check)) is not None]
        return jackknife_interval(np.array(values), range(len(values))) if values else None

    order = np.array(own["order"].to_pylist(), dtype=object)
    longer = np.sign(length_differences(pairs))[row_of]
    shares = pair_shares(choices, pairs)
    judged = np.isfinite(shares)
    majority = (1 + np.sign(np.round(shares[judged] - 0.5, 9))) / 2
    seconds = own["seconds"].drop_null().to_numpy()
    quartiles = np.quantile(seconds, [0.25, 0.5, 0.75]).tolist() if len(seconds) else None
    hurried = choices["hurried"].drop_null().to_numpy()
    share = two_way_interval(credit, clusters, names)
    return StudyFigures(
        readers=len(set(names.tolist())),
        pairs=int(judged.sum()),
        prompts=share.clusters,
        choices=len(credit),
        share=share,
        majority=jackknife_interval(majority, prompts[judged]),
        first=two_way(np.where(order == "chosen", credit, 1 - credit), order != None),  # noqa: E711
        longer=two_way(np.where(longer > 0, credit, 1 - credit), np.abs(longer) == 1),
        repeats=by_reader("repeats"),
        attention=by_reader("attention"),
        questions=by_reader("questions"),
        hurried=float((hurried > 0).mean()) if len(hurried) else None,
        seconds=quartiles,
        annotators=annotators,
    )


def _rows_of(choices: pa.Table, pairs: pa.Table) -> np.ndarray:
    """The row of each choice's pair; DataError for a pair that is not there."""
    rows = pc.index_in(choices["pair_id"], pairs["pair_id"].combine_chunks())
    if rows.null_count:
        raise DataError(
            f"choices: {rows.null_count} are about pairs that are not in the pairs file: give the "
            "pairs of the same study"
        )
    indices: np.ndarray = rows.to_numpy()
    return indices


def pair_shares(choices: pa.Table, pairs: pa.Table) -> np.ndarray:
    """Share of the choices of each pair that agree with its label; shape (pairs,), NaN for none."""
    own = choices.filter(pc.equal(choices["kind"], "pair"))
    row_of = _rows_of(own, pairs)
    credit = [_CREDIT[outcome] for outcome in own["outcome"].to_pylist()]
    count = np.bincount(row_of, minlength=pairs.num_rows)
    total = np.bincount(row_of, credit, pairs.num_rows)
    shares: np.ndarray = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return shares


def figure_rows(figures: StudyFigures) -> list[tuple[str, str, Interval]]:
    """Name, unit that is counted, and interval of every figure that the study has."""
    one = figures.annotators
    named: list[tuple[str, str, Interval | None]] = [
        ("choices that agree with the labels", "choices", figures.share),
        ("pairs whose majority agrees with the label", "pairs", figures.majority),
        ("one reader agrees with the others", "comparisons", one.one_annotator if one else None),
        ("two readers choose the same story", "pairs", one.two_annotators if one else None),
        ("choices of the story shown first", "choices", figures.first),
        ("choices of the longer story", "choices", figures.longer),
        ("repeated pairs with the same choice", "readers", figures.repeats),
        ("attention checks passed", "readers", figures.attention),
        ("content questions answered right", "readers", figures.questions),
    ]
    return [(name, unit, interval) for name, unit, interval in named if interval is not None]


def figures_text(figures: StudyFigures) -> str:
    """The figures for a terminal."""
    lines = [
        f"{figures.choices:,} choices by {figures.readers:,} readers on {figures.pairs:,} pairs of "
        f"{figures.prompts:,} prompts",
        "",
        aligned([[name, str(at), f"{at.n:,} {unit}"] for name, unit, at in figure_rows(figures)]),
    ]
    if figures.annotators is not None:
        lines.append(f"Krippendorff's alpha: {figures.annotators.alpha:.3f}")
    if figures.seconds is not None:
        lines.append("seconds for a pair, quartiles: "
                     + ", ".join(f"{at:.0f}" for at in figures.seconds))  # fmt: skip
    if figures.hurried is not None:
        lines.append(f"answers first sent too early: {figures.hurried:.1%}")
    return "\n".join(lines) + "\n"


def one_reader(
    choices: pa.Table, pairs: pa.Table, credits: Mapping[str, np.ndarray]
) -> AnnotatorAgreement | None:
    """Compare each reader, and every rater, with the majority of the other readers of a pair.

    A choice rates the chosen story of its pair 1 and the other 0. The same story in another pair
    counts as another story, because a choice holds for its pair only. `credits` has by rater the
    credit of each pair, 0 to 1; shape (pairs,) each.
    """
    ratings: dict[str, dict[str, float]] = defaultdict(dict)
    own = choices.filter(pc.equal(choices["kind"], "pair"))
    columns = (own[name].to_pylist() for name in ("reader", "pair_id", "outcome"))
    for reader, pair_id, outcome in zip(*columns, strict=True):
        credit = _CREDIT[outcome]
        ratings[reader] |= {f"{pair_id} chosen": credit, f"{pair_id} rejected": 1 - credit}
    ids = pairs["pair_id"].to_pylist()
    first, second = ([f"{name} {side}" for name in ids] for side in ("chosen", "rejected"))
    return annotator_agreement(ratings, first, second, connected_prompts(pairs), credits)


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


def verdicts_of(choices: pa.Table) -> pa.Table:
    """The choices of pairs as verdicts, with the schema VERDICTS; every reader is a rater."""
    own = choices.filter(pc.equal(choices["kind"], "pair"))
    columns = empty_columns(VERDICTS, own.num_rows) | {
        "pair_id": own["pair_id"],
        "rater": own["reader"],
        "kind": pa.repeat(pa.scalar("reader", pa.large_string()), own.num_rows),
        "order": own["order"],
        "outcome": own["outcome"],
        "explanation": own["reason"],
        "seconds": own["seconds"],
    }
    return pa.table(columns)
