"""Figures of a study with human readers, from its choices and pairs.

A reader who saw a pair chose one of its stories. The label of a pair is its chosen side: what a
verifier prefers, or what other annotators said. Two figures must not be confused: the share of all
choices that agree with the labels, and the share of pairs on which the majority of readers does.
A majority of equal votes counts one half.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from litbench.data.records import (
    SIDES,
    VERDICTS,
    Column,
    Schema,
    connected_prompts,
    empty_columns,
)
from litbench.metrics.agreement import length_differences
from litbench.metrics.annotators import AnnotatorAgreement, annotator_agreement
from litbench.metrics.intervals import Interval, jackknife_interval, two_way_interval
from litbench.runs.errors import DataError

# Columns of every answered page.
ANSWERED = (
    Column("seconds", "number", "time from the first look at the page to the answer"),
    Column("hurried", "integer", "answers sent back because they came too early"),
    Column("reason", "text", "what the reader wrote"),
    Column("version", "text", "version of the page"),
    Column("answered_utc", "time", "when the answer came"),
    Column("finished", "integer", "1 if the reader finished, else 0"),
)
CHOICES = Schema(
    "choices",
    (
        Column("reader", "text", "salted hash of the reader's id", required=True),
        Column("place", "integer", "number of the page in the reader's order", required=True),
        Column(
            "kind",
            "text",
            "what the page asked",
            required=True,
            choices=("pair", "repeat", "attention"),
        ),
        Column("pair_id", "text", "the pair shown", required=True),
        Column(
            "order",
            "text",
            "story that stood first; null if unknown",
            choices=SIDES,
        ),
        Column("outcome", "text", "the choice", choices=SIDES),
        *(Column(f"tag_{side}", "text", f"tag of the {side} story") for side in SIDES),
        Column("is_right", "integer", "1 if a check was answered right, else 0; null for no check"),
        *ANSWERED,
    ),
    key=("reader", "place"),
)

# Name of a figure -> what it is a share of, and what its `n` counts.
SHARES = {
    "agreement": ("choices that agree with the labels", "choices"),
    "majority": ("pairs whose majority agrees with the label", "pairs"),
    "first": ("choices of the story shown first", "choices"),
    "longer": ("choices of the longer story, where lengths differ", "choices"),
    "repeats": ("repeated pairs with the same choice", "readers"),
    "attention": ("attention checks passed", "readers"),
}

_CREDIT = "create macro credit(outcome) as (outcome = 'chosen')::double"
_READERS = """
with repeated as (
    select reader, pair_id, outcome as again from choices where kind = 'repeat'
)
select reader, count(*) filter (kind = 'pair') as choices,
    avg(credit(outcome)) filter (kind = 'pair') as agreement,
    median(seconds) filter (kind = 'pair') as median_seconds,
    avg(is_right) as attention,
    avg((outcome = again)::int) filter (kind = 'pair') as repeats,
    bool_or(finished = 0) as unfinished
from choices left join repeated using (reader, pair_id) group by reader order by reader
"""
# A comparison with a length that is unknown, as in an unknown order, is NaN.
_MADE = """
select reader, pair_id, cluster, credit(outcome) as credit,
    case "order" when 'chosen' then credit when 'rejected' then 1 - credit
        else 'nan'::double end as first,
    case sign(gap) when 1 then credit when -1 then 1 - credit else 'nan'::double end as longer
from choices left join pairs using (pair_id) where kind = 'pair'
"""
_PAIRS = """
select pair_id, prompt_id, prompt, count(*) as choices, avg(credit(outcome)) as share
from choices join pairs using (pair_id) where kind = 'pair'
group by all order by share desc, pair_id
"""


@dataclass(frozen=True)
class Exclusions:
    """Which readers the analysis leaves out; fixed before the first reader.

    Attributes:
        failed_attention: who chose the garbled story.
        changed_repeat: who chose differently when a pair came again.
        unfinished: who left before the end.
    """

    failed_attention: bool = True
    changed_repeat: bool = False
    unfinished: bool = False


@dataclass(frozen=True)
class TagFigures:
    """The tags of stories: why they win and lose, as read by hand in LitBench's section 3.4.2.

    Attributes:
        counts: by tag, how often readers gave it to the chosen and to the rejected story.
        same: how often two readers gave a story the same tag, by prompt; NaN if no story has tags
            by two.
        kappa: agreement beyond that of tags drawn by their frequency (Fleiss, 1971).
    """

    counts: dict[str, tuple[int, int]]
    same: Interval
    kappa: float


@dataclass(frozen=True)
class StudyFigures:
    """The figures of a study.

    Attributes:
        shares: by the names of `SHARES`, those that the study has. Shares of choices have intervals
            by prompt and reader, the majority by prompt, and checks by reader.
        hurried: share of answers that were first sent too early; None if unknown.
        seconds: quartiles of the time of a pair; None if unknown.
        annotators: one reader against the others, with raters on the same pairs.
        tags: None without tags.
    """

    readers: int
    pairs: int
    prompts: int
    choices: int
    shares: dict[str, Interval]
    hurried: float | None
    seconds: list[float] | None
    annotators: AnnotatorAgreement | None
    tags: TagFigures | None


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """A database in memory: opening one takes longer than a query."""
    database = duckdb.connect()
    database.execute(_CREDIT)
    return database


def _rows(sql: str, **tables: pa.Table) -> pa.Table:
    """The result of a query on some tables."""
    with _database().cursor() as cursor:
        for name, table in tables.items():
            cursor.register(name, table)
        return cursor.sql(sql).to_arrow_table()


def reader_results(choices: pa.Table, rules: Exclusions) -> list[dict[str, Any]]:
    """The results of every reader; `choices` has the schema CHOICES.

    Returns:
        Rows with `reader`; `choices`, the number of pairs; `agreement`, the share of choices that
        agree with the labels; `median_seconds` of a pair; `attention` and `repeats`, the shares of
        checks passed, None without such a page; `unfinished`; and `excluded`, the
        rules that leave the reader out.
    """
    rows: list[dict[str, Any]] = _rows(_READERS, choices=choices).to_pylist()
    for row in rows:
        broken = {
            "failed the attention check": rules.failed_attention and row["attention"] == 0,
            "changed a repeated choice": rules.changed_repeat and row["repeats"] == 0,
            "unfinished": rules.unfinished and row["unfinished"],
        }
        row["excluded"] = [rule for rule, is_broken in broken.items() if is_broken]
    return rows


def exclusion_counts(readers: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Number of readers that each rule leaves out; a reader may break several."""
    return dict(Counter(rule for reader in readers for rule in reader["excluded"]))


def leave_out(choices: pa.Table, readers: Collection[str]) -> pa.Table:
    """The choices of all other readers."""
    names = pa.array(list(readers), pa.large_string())
    return choices.filter(pc.invert(pc.is_in(choices["reader"], names)))


def pair_results(choices: pa.Table, pairs: pa.Table) -> list[dict[str, Any]]:
    """The pairs that were read, those with the highest share first.

    Returns:
        Rows with `pair_id`, `prompt_id`, `prompt`, the number of `choices`, and `share`, how many
        of them agree with the label.
    """
    # Pairs may have more columns, of any name.
    named = pairs.select(["pair_id", "prompt_id", "prompt"])
    rows: list[dict[str, Any]] = _rows(_PAIRS, choices=choices, pairs=named).to_pylist()
    return rows


def study_figures(
    choices: pa.Table,
    pairs: pa.Table,
    annotators: AnnotatorAgreement | None = None,
) -> StudyFigures:
    """Compute the figures of a study.

    Args:
        choices: table with the schema CHOICES.
        pairs: table with the schema PAIRS, with all pairs of the choices.
        annotators: see StudyFigures.
    """
    clusters = pa.array(connected_prompts(pairs))
    shown = pa.table(
        {"pair_id": pairs["pair_id"], "cluster": clusters, "gap": length_differences(pairs)}
    )
    made = _rows(_MADE, choices=choices, pairs=shown)
    if not made.num_rows:
        raise DataError("choices: no choice is left: collect some, or loosen the exclusion rules")
    if missing := made["cluster"].null_count:
        raise DataError(
            f"choices: {missing} are about pairs that are not in the pairs file: give the pairs of "
            "the same study"
        )
    prompts, names = (made[name].to_numpy() for name in ("cluster", "reader"))
    shares = {}
    columns = {"agreement": "credit", "first": "first", "longer": "longer"}
    for figure, column in columns.items():
        values = made[column].to_numpy()
        use = np.isfinite(values)
        if use.any():
            shares[figure] = two_way_interval(values[use], prompts[use], names[use])
    read = pair_results(choices, pairs)
    cluster_of = dict(zip(pairs["pair_id"].to_pylist(), clusters.to_pylist(), strict=True))
    sides = np.sign(np.round([row["share"] - 0.5 for row in read], 9))
    read_clusters = [cluster_of[row["pair_id"]] for row in read]
    shares["majority"] = jackknife_interval((1 + sides) / 2, read_clusters)
    readers = reader_results(choices, Exclusions())
    for check in ("repeats", "attention"):
        passed = np.array([row[check] for row in readers if row[check] is not None])
        if len(passed):
            shares[check] = jackknife_interval(passed, range(len(passed)))
    seconds = choices.filter(pc.equal(choices["kind"], "pair"))["seconds"].drop_null().to_numpy()
    hurried = choices["hurried"].drop_null().to_numpy()
    return StudyFigures(
        readers=len(set(names)),
        pairs=len(read),
        prompts=len(set(read_clusters)),
        choices=made.num_rows,
        shares={name: shares[name] for name in SHARES if name in shares},
        hurried=float((hurried > 0).mean()) if len(hurried) else None,
        seconds=np.quantile(seconds, [0.25, 0.5, 0.75]).tolist() if len(seconds) else None,
        annotators=annotators,
        tags=tag_figures(choices, cluster_of),
    )


def tag_figures(choices: pa.Table, clusters: Mapping[str, Any]) -> TagFigures | None:
    """The tags of the choices of pairs; None if there are none.

    Args:
        choices: table with the schema CHOICES.
        clusters: by `pair_id`, the cluster of its prompt.
    """
    by_story: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in choices.filter(pc.equal(choices["kind"], "pair")).to_pylist():
        for side in SIDES:
            if row[f"tag_{side}"] is not None:
                by_story[row["pair_id"], side].append(row[f"tag_{side}"])
    if not by_story:
        return None
    counts = {side: Counter[str]() for side in SIDES}
    shares, names = [], []
    for (name, side), tags in by_story.items():
        counts[side].update(tags)
        if pairs := list(combinations(tags, 2)):
            shares.append(sum(first == other for first, other in pairs) / len(pairs))
            names.append(clusters[name])
    same, total = jackknife_interval(np.array(shares), names), sum(counts.values(), Counter[str]())
    chance = sum((count / total.total()) ** 2 for count in total.values())
    ordered = {
        tag: (counts["chosen"][tag], counts["rejected"][tag]) for tag, _ in total.most_common()
    }
    return TagFigures(ordered, same, (same.mean - chance) / (1 - chance) if chance < 1 else np.nan)


def one_reader(
    choices: pa.Table, pairs: pa.Table, credits: Mapping[str, np.ndarray]
) -> AnnotatorAgreement | None:
    """Compare each reader, and every rater, with the majority of the other readers of a pair.

    A choice rates the chosen story of its pair 1 and the other 0. The same story in another pair
    counts as another story, because a choice compares it with one story only. `credits` has by
    rater the credit of each pair, 0 to 1; shape (pairs,) each.
    """
    ratings: dict[str, dict[str, float]] = defaultdict(dict)
    made = "select reader, pair_id, credit(outcome) as credit from choices where kind = 'pair'"
    for row in _rows(made, choices=choices).to_pylist():
        name, credit = row["pair_id"], row["credit"]
        ratings[row["reader"]] |= {f"{name} chosen": credit, f"{name} rejected": 1 - credit}
    ids = pairs["pair_id"].to_pylist()
    first, second = ([f"{name} {side}" for name in ids] for side in SIDES)
    return annotator_agreement(ratings, first, second, connected_prompts(pairs), credits)


def verdicts_of(choices: pa.Table) -> pa.Table:
    """The choices of pairs as verdicts, with the schema VERDICTS; every reader is a rater."""
    pair_choices = choices.filter(pc.equal(choices["kind"], "pair"))
    kind = pa.repeat(pa.scalar("reader", pa.large_string()), pair_choices.num_rows)
    columns = {"rater": pair_choices["reader"], "kind": kind, "explanation": pair_choices["reason"]}
    columns |= {name: pair_choices[name] for name in ("pair_id", "order", "outcome", "seconds")}
    return pa.table(empty_columns(VERDICTS, pair_choices.num_rows) | columns)
