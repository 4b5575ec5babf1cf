"""Repeated answers of a judge: figures counted by hand."""

import numpy as np
import pyarrow as pa
import pytest

from litbench.data.records import VERDICTS, empty_columns
from litbench.suite.repeats import distances, repeats_of, votes_of


def verdicts_of(rows):
    columns = {name: [row.get(name) for row in rows] for name in empty_columns(VERDICTS, 0)}
    return pa.table({**empty_columns(VERDICTS, len(rows)), **columns})


def verdict(pair, order, samples, rater="judge"):
    outcome = samples.split()[0]
    return {"pair_id": pair, "rater": rater, "order": order, "outcome": outcome, "samples": samples}


ROWS = [
    verdict("p", "chosen", "chosen chosen rejected"),
    verdict("p", "rejected", "rejected rejected refused"),
    verdict("q", "rejected", "chosen tie chosen"),
    verdict("q", "chosen", "chosen chosen chosen"),
]


def test_votes_are_by_pair_order_and_sample():
    votes = votes_of(verdicts_of(ROWS), ["q", "p"], "judge")
    assert votes.shape == (2, 2, 3)
    np.testing.assert_array_equal(votes, [[[1, 0.5, 1], [1, 1, 1]], [[1, 1, 0], [0, 0, np.nan]]])


@pytest.mark.parametrize(
    "rows",
    [
        ROWS[:3],
        [*ROWS[:3], verdict("q", "chosen", "chosen")],
        [verdict(pair, "chosen", "tie tie") for pair in "pq"]
        + [verdict(pair, "rejected", "tie") for pair in "pq"],
        [ROWS[0] | {"order": None}, *ROWS[1:]],
    ],
)
def test_no_votes_if_orders_or_samples_are_missing(rows):
    assert votes_of(verdicts_of(rows), ["q", "p"], "judge") is None


def test_a_single_answer_is_read_and_has_no_repeats():
    rows = [verdict("p", order, "tie") | {"samples": None} for order in ("chosen", "rejected")]
    votes = votes_of(verdicts_of(rows), ["p"], "judge")
    assert votes.tolist() == [[[0.5], [0.5]]]
    assert repeats_of(votes, ["a"]) is None


def test_repeats_counted_by_hand():
    votes = votes_of(verdicts_of(ROWS), ["p", "q"], "judge")
    between, within = distances(votes[:, 0], votes[:, 1])
    np.testing.assert_allclose(between, [4 / 6, 1.5 / 9])
    # Of pair p: two of three distances are 1 in one order, none in the other.
    np.testing.assert_allclose(within, [1 / 3, 1 / 6])
    result = repeats_of(votes, ["a", "b"], dollars=0.25)
    means = {name: figure.mean for name, figure in result.figures.items()}
    assert means["self_agreement"] == pytest.approx(1 - (1 / 3 + 1 / 6) / 2)
    assert means["by_repeats"] == pytest.approx((1 / 3 + 1 / 6) / 2)
    assert means["by_repeats"] + means["by_order"] == pytest.approx((4 / 6 + 1.5 / 9) / 2)
    # Three answers decide p's orders as chosen and rejected, and q's both as chosen.
    assert [(way.orders, way.samples, way.dollars) for way in result.growth] == [
        (1, 1, 0.25),
        (2, 1, 0.5),
        (2, 3, 1.5),
    ]
    agreements = [way.agreement.mean for way in result.growth]
    assert agreements == pytest.approx(
        [(2 / 3 + 2.5 / 3) / 2, ((2 / 3 + 0.5 / 3) / 2 + (2.5 / 3 + 1) / 2) / 2, (0.5 + 1) / 2],
        abs=1e-6,
    )
    assert means["gain"] == pytest.approx(agreements[2] - agreements[1], abs=1e-6)


def test_order_explains_nothing_of_a_coin_and_all_of_a_position():
    random = np.random.default_rng(0)
    coin = random.integers(0, 2, (2_000, 2, 3)).astype(float)
    result = repeats_of(coin, np.arange(2_000))
    assert result.figures["by_order"].low < 0 < result.figures["by_order"].high
    assert result.figures["by_repeats"].mean == pytest.approx(0.5, abs=0.03)
    position = np.zeros((20, 2, 3))
    position[:, 0] = 1
    result = repeats_of(position, np.arange(20))
    means = [result.figures[name].mean for name in ("by_repeats", "by_order", "self_agreement")]
    assert means == [0, 1, 1]
    assert result.p_order < 0.01
