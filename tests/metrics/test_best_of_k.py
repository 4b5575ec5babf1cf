"""Best of k counted by hand, and RewardBench 2's score against its published code."""

import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from litbench.evaluation.report.leaderboard import item_sections
from litbench.metrics.agreement import pair_scores
from litbench.metrics.best_of_k import RANDOM_CHOICE, best_of_k, find_items, item_credits
from litbench.metrics.reward_bench import TiesRow, reward_bench_2, ties_score

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden/reward_bench_2/scores.json").read_text(encoding="utf-8")
)


def ranked(pair_table, items):
    """Pairs of items; an item has the rank of each answer."""
    rows = [
        {
            "pair_id": f"{item}-{better}-{worse}",
            "prompt_id": item,
            "prompt": f"prompt {item}",
            "item_id": item,
            "chosen_story_id": f"{item}{better}",
            "rejected_story_id": f"{item}{worse}",
            "chosen": f"story {item} {better}",
            "rejected": f"story {item} {worse} at length",
        }
        for item, ranks in items.items()
        for better, worse in itertools.permutations(range(len(ranks)), 2)
        if ranks[better] < ranks[worse]
    ]
    return pair_table(rows)


def rewarded(verdict_table, pairs, rewards, rater="reward"):
    """The verdicts of a rater that gives each story a reward."""
    rows = []
    for pair in pairs.to_pylist():
        chosen, rejected = (rewards[pair[f"{side}_story_id"]] for side in ("chosen", "rejected"))
        outcome = "tie" if chosen == rejected else "chosen" if chosen > rejected else "rejected"
        rows.append(
            {
                "pair_id": pair["pair_id"],
                "rater": rater,
                "kind": "reward",
                "outcome": outcome,
                "reward_chosen": chosen,
                "reward_rejected": rejected,
            }
        )
    return verdict_table(rows)


# Ranks by people, rewards, credit of the item.
CASES = {
    "best first": ([1, 2, 2, 2], [4, 1, 2, 3], 1),
    "best second": ([1, 2, 2, 2], [3, 4, 1, 2], 0),
    "tie for the first place": ([1, 2, 2, 2], [4, 4, 4, 1], 1 / 3),
    "tie below the first place": ([1, 2, 2, 2], [3, 4, 3, 1], 0),
    "one of two best is first": ([1, 1, 2, 3], [1, 4, 3, 2], 1),
    "neither of two best is first": ([1, 1, 2, 3], [1, 2, 3, 0], 0),
}


@pytest.mark.parametrize(("ranks", "rewards", "credit"), CASES.values(), ids=CASES)
def test_an_item_counts_if_its_best_answer_is_first(
    pair_table, verdict_table, ranks, rewards, credit
):
    pairs = ranked(pair_table, {"a": ranks})
    verdicts = rewarded(
        verdict_table, pairs, {f"a{index}": float(r) for index, r in enumerate(rewards)}
    )
    (scores,) = pair_scores(verdicts, pairs)
    items, left_out = find_items(pairs)
    assert left_out == 0
    assert item_credits(scores.credit, items).tolist() == pytest.approx([credit])


def test_an_item_without_a_known_best_answer_is_left_out(pair_table):
    pairs = ranked(pair_table, {"a": [1, 2, 3], "b": [1, 2, 3]})
    # Nobody compared the best answer of a with the last one.
    keep = [name != "a-0-2" for name in pairs["pair_id"].to_pylist()]
    items, left_out = find_items(pairs.filter(pa.array(keep)))
    assert (len(items), left_out) == (1, 1)


def test_results_have_chance_tau_and_a_paired_comparison(pair_table, verdict_table):
    pairs = ranked(pair_table, {name: [1, 2, 3] for name in "abcdef"})
    right = {f"{item}{answer}": -float(answer) for item in "abcdef" for answer in range(3)}
    swapped = right | {"a0": -5.0}
    verdicts = [rewarded(verdict_table, pairs, r, n) for r, n in ((right, "r"), (swapped, "s"))]
    scores = [score for table in verdicts for score in pair_scores(table, pairs)]
    results = best_of_k(scores, pairs, "none of them")
    assert (results.items, results.chance, results.reference) == (6, 1 / 3, RANDOM_CHOICE)
    first, second = results.rows
    assert (first.share.mean, first.tau.mean) == (1.0, 1.0)
    assert second.share.mean == pytest.approx(5 / 6)
    # In a, the best answer comes last: one pair of three is in order.
    assert second.tau.mean == pytest.approx((5 - 1 / 3) / 6)
    assert second.comparison.difference.mean == pytest.approx(5 / 6 - 1 / 3)


def test_pairs_without_items_of_three_answers_have_no_section(pair_table, verdict_table):
    pairs = ranked(pair_table, {"a": [1, 2], "b": [1, 2]})
    verdicts = rewarded(verdict_table, pairs, dict.fromkeys(("a0", "a1", "b0", "b1"), 1.0))
    assert item_sections(verdicts, pairs, "reward", {}) == []


@pytest.mark.parametrize("case", GOLDEN["ties"])
def test_ties_score_equals_the_published_code(case):
    rows = []
    for row in case["rows"]:
        kind, prompt = row["id"].split(":")
        correct, incorrect = np.split(np.array(row["scores"]), [row["num_correct"]])
        rows.append(TiesRow(prompt, kind == "tied", tuple(correct), tuple(incorrect)))
    assert ties_score(rows) == pytest.approx(case["score"], abs=1e-12)


def test_best_of_k_equals_the_published_code(pair_table, verdict_table):
    for case in GOLDEN["best_of_k"]:
        ranks = {f"i{k}": [1] + [2] * (len(i["scores"]) - 1) for k, i in enumerate(case["items"])}
        pairs = ranked(pair_table, ranks)
        rewards = {
            f"i{k}{answer}": reward
            for k, item in enumerate(case["items"])
            for answer, reward in enumerate(item["scores"])
        }
        (scores,) = pair_scores(rewarded(verdict_table, pairs, rewards), pairs)
        credits = item_credits(scores.credit, find_items(pairs)[0])
        assert credits.mean() == pytest.approx(case["mean"], abs=1e-12)


def test_reward_bench_2_is_the_mean_over_subsets(pair_table, verdict_table):
    focus = ranked(pair_table, {"1": [1, 2, 2, 2], "2": [1, 2, 2, 2]})
    ties = ranked(pair_table, {"ref:1": [1, 2, 2], "tied:1": [1, 1, 2]})
    rewards = {
        story: float(reward)
        for name, rewards in (
            ("1", (4, 1, 2, 3)),
            ("2", (1, 2, 3, 4)),
            ("ref:1", (5, 1, 1)),
            ("tied:1", (5, 4, 1)),
        )
        for story, reward in zip((f"{name}{k}" for k in range(4)), rewards, strict=False)
    }
    verdicts = [rewarded(verdict_table, pairs, rewards) for pairs in (focus, ties)]
    subsets = ["Focus"] * focus.num_rows + ["Ties"] * ties.num_rows
    pairs = pa.concat_tables([focus, ties]).append_column("subset", pa.array(subsets))
    verdicts = pa.concat_tables(verdicts)
    (score,) = reward_bench_2(pair_scores(verdicts, pairs), verdicts, pairs)
    # Both rows of Ties are right, by more than the spread of the correct answers.
    expected = 0.3 + 0.3 + 0.2 + 0.2 + 0.01 * np.tanh(3 / 1 - 1)
    assert score.subsets == pytest.approx({"Focus": 0.5, "Ties": expected})
    assert score.mean == pytest.approx((0.5 + expected) / 2)
    titles = [section.title for section in item_sections(verdicts, pairs, "reward", {})]
    assert titles == ["Best of k", "RewardBench 2"]
    judge = verdicts.drop_columns(["reward_chosen", "reward_rejected"])
    for name in ("reward_chosen", "reward_rejected"):
        judge = judge.append_column(name, pa.nulls(judge.num_rows, pa.float64()))
    (score,) = reward_bench_2(pair_scores(judge, pairs), judge, pairs)
    assert np.isnan(score.mean)
