"""Agreement with the labels: one number per pair from its verdicts, and strata of pairs.

In each order a correct verdict counts 1, a tie 1/2, and a pair that was not judged 1/2. These
credits are averaged over orders, then (in repeated cross-validation) over repeats, then over pairs.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from litbench.data.records import OUTCOMES, has_texts
from litbench.data.text import count_words
from litbench.metrics.intervals import Interval, Training, jackknife_interval
from litbench.runs.errors import DataError

# The credit of each outcome of a pair that was judged.
OUTCOME_CREDITS = {"chosen": 1.0, "rejected": 0.0, "tie": 0.5}
_VERDICTS = f"""
create temp view verdicts as
select *, outcome in ('chosen', 'rejected') as is_named,
    outcome in {(*OUTCOME_CREDITS,)} as is_judged,
    coalesce(map {OUTCOME_CREDITS}[outcome], 0.5)::double as credit
from all_verdicts semi join pairs using (pair_id)
"""  # noqa: S608
# One row per rater and pair. Verdicts without a fold form one repeat.
_GATHER = """
with repeat as (
    select rater, pair_id, any_value(kind) as kind, avg(credit) as credit,
        -- Null if one order has no probability: the other order's would carry position bias.
        if(count(p_chosen) = count(*), avg(p_chosen), null) as p_chosen,
        count("order") > 0 as has_order,
        count(distinct "order") filter (is_named) = 2
            and count(*) filter (is_named) = count("order") filter (is_named) as both_named,
        both_named and count(distinct outcome) filter (is_named) = 1 as same,
        bool_or(outcome = 'chosen') as won,
        count(*) as verdicts, count(*) filter (is_judged) as judged,
        count("order") filter (is_judged) as ordered,
        sum(if(outcome = 'tie', 0.5, (outcome = "order")::double)) filter (is_judged) as first_wins,
        sum(seconds) as seconds, sum(cost_usd) as cost_usd
    from verdicts group by rater, pair_id, fold
)
select rater, pair_id, any_value(kind) as kind, avg(credit) as credit,
    avg(if(p_chosen is null, 0.5, (sign(p_chosen - 0.5) + 1) / 2)) as pooled_credit,
    sum(judged) / sum(verdicts) as judged,
    if(sum(judged) = sum(verdicts), avg(credit), null) as both_orders,
    avg((not same)::double) filter (both_named) as flipped,
    avg(won::double) filter (same) as consistent,
    if(bool_or(has_order), avg(same::double), null) as same,
    sum(first_wins) / nullif(sum(ordered), 0) as position_bias,
    if(count(p_chosen) = count(*), avg(p_chosen), null) as p_chosen,
    sum(seconds) as seconds, sum(cost_usd) as cost_usd,
    count(p_chosen) as probabilities
from repeat group by rater, pair_id
"""
# Several folds in a repeat: the prompts of one fold train the model that judges another.
_FITTED = """
select rater, count(distinct fold) > count(distinct split_part(fold, '/', 1)) as in_folds,
    bool_and(flipped_by is not null) as is_retrained
from verdicts group by rater
"""
_CHANGES = """
with counted as (select *, count(*) over (partition by rater, pair_id) as repeats from verdicts),
flips as (
    select pair_id, (1 - 2 * credit) / repeats as change,
        unnest(string_split(flipped_by, ' ')) as prompt
    from counted where rater = ? and flipped_by <> ''
)
select pair_id, prompt, sum(change) as change from flips group by pair_id, prompt
"""
_PER_REPEAT = """
select repeat, avg(credit) from (
    select split_part(fold, '/', 1)::int as repeat, avg(credit) as credit
    from verdicts where rater = ? and fold is not null group by repeat, pair_id
) group by repeat order by repeat
"""


@dataclass(frozen=True)
class PairScores:
    """One rater's verdicts, gathered per pair; all arrays have shape (n,), in the pairs' order.

    Attributes:
        rater: name.
        kind: kind of rater.
        credit: headline agreement of each pair, 0 to 1.
        pooled_credit: credit from the probability averaged over orders; 1/2 where an order has no
            probability, NaN everywhere if the rater gives no probabilities.
        judged: share of the pair's verdicts that were a judgement (coverage).
        both_orders: credit where every verdict was a judgement, NaN elsewhere.
        flipped: 1 where the two orders named different stories, 0 where they named the same story;
            NaN unless both orders named a story.
        consistent: 1 where both orders named the chosen story, 0 where both named the rejected
            story; the mean over repeats in which both orders named the same story, NaN without
            such repeats.
        same: share of the pair's repeats in which both orders named the same story; NaN for
            verdicts without an order.
        position_bias: share of judged orders in which the story shown first won; NaN for verdicts
            without an order.
        p_chosen: probability of the chosen story, averaged over orders and repeats; NaN where a
            verdict has no probability.
        seconds: total time of the pair's verdicts, or NaN if unknown.
        cost_usd: total cost of the pair's verdicts, or NaN if unknown.
        training: of the credits of a cross-validated rater; None if each prompt was judged by
            models that no other prompt's verdict depends on.
    """

    rater: str
    kind: str
    credit: np.ndarray
    pooled_credit: np.ndarray
    judged: np.ndarray
    both_orders: np.ndarray
    flipped: np.ndarray
    consistent: np.ndarray
    same: np.ndarray
    position_bias: np.ndarray
    p_chosen: np.ndarray
    seconds: np.ndarray
    cost_usd: np.ndarray
    training: Training | None = None

    def interval(
        self, values: np.ndarray, clusters: np.ndarray, rows: np.ndarray | slice = slice(None)
    ) -> Interval:
        """The interval of a share of some rows, which changes with training as the credits do."""
        training = None if self.training is None else self.training.take(rows)
        return jackknife_interval(values[rows], clusters[rows], training)


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """One for all calls, as opening it takes 16 ms; a cursor sees its own views only."""
    return duckdb.connect()


def _open(verdicts: pa.Table, pairs: pa.Table) -> duckdb.DuckDBPyConnection:
    """A cursor with the view `verdicts`, of the verdicts on these pairs."""
    database = _database().cursor()
    if "flipped_by" not in verdicts.column_names:
        verdicts = verdicts.append_column("flipped_by", pa.nulls(verdicts.num_rows, pa.string()))
    database.register("all_verdicts", verdicts.drop_columns(["explanation"]))
    database.register("pairs", pairs.select(["pair_id"]))
    database.execute(_VERDICTS)
    return database


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    """float64, NaN for null."""
    numbers: np.ndarray = pc.fill_null(column.cast(pa.float64()), float("nan")).to_numpy()
    return numbers


def pair_scores(verdicts: pa.Table, pairs: pa.Table) -> list[PairScores]:
    """Gather verdicts per pair for each rater, in the order in which raters first appear.

    Verdicts on other pairs are ignored.

    Raises:
        DataError: a rater has no verdict on some pair. A pair that it could not judge has a row
            with that outcome, so a missing row is an error.
    """
    ids = pairs["pair_id"]
    with _open(verdicts, pairs) as database:
        gathered = database.sql(_GATHER).to_arrow_table()
        training_of = {
            rater: _training(database, rater, ids) if is_retrained else Training()
            for rater, in_folds, is_retrained in database.sql(_FITTED).fetchall()
            if in_folds
        }
    scores = []
    for rater in pc.unique(verdicts["rater"]).to_pylist():
        rows_of_rater = gathered.filter(pc.equal(gathered["rater"], rater))
        rows = pc.index_in(ids, rows_of_rater["pair_id"])
        if rows.null_count:
            missing = pc.unique(ids.filter(pc.is_null(rows)))
            raise DataError(
                f"rater {rater}: no verdict on {len(missing)} of {len(pc.unique(ids))} pairs, "
                f"such as {missing[0]}: run it again on this pairs file"
            )
        rows_of_rater = rows_of_rater.take(rows)
        arrays = {name: _numbers(rows_of_rater[name]) for name in rows_of_rater.column_names[3:]}
        if not arrays.pop("probabilities").any():
            arrays["pooled_credit"] = np.full(len(ids), np.nan)
        kind, training = rows_of_rater["kind"][0].as_py(), training_of.get(rater)
        scores.append(PairScores(rater, kind, **arrays, training=training))
    return scores


def _training(
    database: duckdb.DuckDBPyConnection, rater: str, pair_ids: pa.ChunkedArray
) -> Training:
    """The training of a rater whose verdicts name the prompts that flip them."""
    from scipy import sparse  # noqa: PLC0415

    table = database.sql(_CHANGES, params=[rater]).to_arrow_table()
    distinct: pa.Array = pc.unique(pair_ids)
    rows = pc.index_in(table["pair_id"], distinct).to_numpy()
    prompts, columns = np.unique(np.array(table["prompt"].to_pylist()), return_inverse=True)
    shape = (len(distinct), len(prompts))
    changes = sparse.csr_array((table["change"].to_numpy(), (rows, columns)), shape)
    return Training(tuple(prompts.tolist()), changes[pc.index_in(pair_ids, distinct).to_numpy()])


def efforts(verdicts: pa.Table, pairs: pa.Table) -> dict[str, dict[str, Any]]:
    """Outcomes, words and tokens of every rater on these pairs, by names of `LeaderboardRow`."""
    table = verdicts.filter(pc.is_in(verdicts["pair_id"], pairs["pair_id"].unique()))
    effort_of = {}
    for rater in pc.unique(table["rater"]).to_pylist():
        rows = table.filter(pc.equal(table["rater"], rater))
        judged = rows.filter(
            pc.is_in(rows["outcome"], pa.array(OUTCOME_CREDITS, rows["outcome"].type))
        )
        # A thousand texts at a time, since counting may copy the texts.
        parts = judged["explanation"].drop_null().chunks
        texts = [part[k : k + 1_000] for part in parts for k in range(0, len(part), 1_000)]
        words = [n for some in texts for n in count_words(some).to_pylist() if n]
        effort_of[rater] = {
            "outcomes": dict.fromkeys(OUTCOMES, 0) | Counter(rows["outcome"].to_pylist()),
            "explanation_words": float(np.mean(words)) if words else None,
            "input_tokens": pc.sum(rows["input_tokens"]).as_py(),
            "output_tokens": pc.sum(rows["output_tokens"]).as_py(),
        }
    return effort_of


def length_differences(pairs: pa.Table) -> np.ndarray:
    """Words of the chosen story minus words of the rejected story; NaN where a text is unknown."""
    words = _numbers(pairs["chosen_n_words"]) - _numbers(pairs["rejected_n_words"])
    return np.where(has_texts(pairs), words, np.nan)


def per_repeat_agreement(verdicts: pa.Table, pairs: pa.Table, rater: str) -> list[float]:
    """Headline agreement of each repeat of a cross-validation; `fold` is "repeat/fold"."""
    with _open(verdicts, pairs) as database:
        rows = database.execute(_PER_REPEAT, [rater]).fetchall()
    return [agreement for _, agreement in rows]
