"""Judges that are asked for the best of k answers, against a server on loopback."""

import json
import re
from collections import Counter

import pytest
from fake_openai import FakeOpenAI, shown_story

from litbench.data.records import SIDES
from litbench.data.sources.pairs import read_any_pairs
from litbench.evaluation.command import Judge, judge
from litbench.evaluation.loop import print_estimates
from litbench.judges.best_of_k import _preference
from litbench.judges.client import Traffic
from litbench.raters.entries import RaterSpec
from litbench.raters.interface import blind, judge_pairs
from litbench.runs.errors import ConfigError, DataError
from litbench.testing import check_rater, rename_sides

pytest.importorskip("inspect_ai")
pytest.importorskip("openai")

ITEMS = 6
K = 4


def story(item, answer):
    """A story of `answer` times rain."""
    return f"Story {item} tells of " + "rain " * answer


@pytest.fixture
def rows(tmp_path):
    """A file of items, in half of which the chosen answer is the longest one."""
    path = tmp_path / "rows.jsonl"
    with path.open("w") as file:
        for item in range(ITEMS):
            best = K if item % 2 else 1
            texts = {answer: story(item, answer) for answer in range(1, K + 1)}
            row = {"prompt": f"Prompt {item}", "chosen": texts.pop(best)}
            file.write(json.dumps({**row, "rejected": [*texts.values()]}) + "\n")
    return path


@pytest.fixture
def pairs(rows):
    return read_any_pairs(rows)


def letters_of(question):
    return re.findall(r"^===== STORY (\w) BEGINS", question, re.M)


def longest(question):
    """Judge as one who likes the longest story."""
    best = max(letters_of(question), key=lambda letter: len(shown_story(question, letter)))
    return f"It goes on for longest.\n\nPreferred: {best}"


def rater_of(tmp_path, **options):
    traffic = {"first_wait_seconds": 0.01, "timeout_seconds": 60}
    entry = {"model": FakeOpenAI.model, "template": "best_of_k", "traffic": traffic, **options}
    return RaterSpec("judge", "judge", entry).load(tmp_path / "work")


def outcomes_of(rater, pairs):
    return {row["pair_id"]: row["outcome"] for row in judge_pairs(rater, pairs).to_pylist()}


def test_an_item_is_asked_in_k_rotations(rows, tmp_path, capsys):
    (tmp_path / "prices.yaml").write_text(f"{FakeOpenAI.model}: {{input: 1, output: 2}}\n")
    prices = tmp_path / "prices.yaml"
    with FakeOpenAI(longest) as server:
        config = {"pairs": rows, "model": [server.model], "template": "best_of_k", "prices": prices}
        judge(Judge(**config, out=tmp_path / "out"))
    assert server.requests == ITEMS * K
    for item in range(ITEMS):
        questions = [text for text in server.asked if f"Prompt {item}\n" in text]
        shown = [[shown_story(text, letter) for letter in "ABCD"] for text in questions]
        for position in range(K):
            assert len({stories[position] for stories in shown}) == K
    leaderboard = json.loads((tmp_path / "out/leaderboard.json").read_text())
    (row,) = (row for row in leaderboard if row["kind"] == "judge")
    # In half of the items the judge prefers each other answer to the chosen one, or ties.
    assert row["outcomes"] | {"tie": 6, "rejected": 3, "chosen": 9} == row["outcomes"]
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    records = manifest["counts"]["raters"][server.model]
    assert records[0]["notes"]["positions"] == {str(K): [ITEMS] * K}
    words = sum(server.count(text, "")[0] for text in server.asked)
    assert row["input_tokens"] == pytest.approx(words, abs=ITEMS * K * 4)
    said = capsys.readouterr().out
    assert re.search(rf"{server.model} +0\.500", said.partition("best of k")[2])
    assert "0.25, 0.25, 0.25, 0.25" in said


def test_a_judge_of_positions_ties_everything(pairs, tmp_path):
    with FakeOpenAI(lambda _: "The first.\n\nPreferred: A"):
        rater = rater_of(tmp_path)
        assert set(outcomes_of(rater, pairs).values()) == {"tie"}
    assert rater.notes()["positions"] == {str(K): [ITEMS * K, 0, 0, 0]}


def test_the_label_and_the_order_of_pairs_change_nothing(pairs, pair_table, tmp_path):
    other = dict(zip(SIDES, SIDES[::-1], strict=True))
    backwards = pairs.take(list(range(pairs.num_rows))[::-1])
    with FakeOpenAI(longest) as server:
        rater = rater_of(tmp_path)
        expected = outcomes_of(rater, pairs)
        renamed = outcomes_of(rater, rename_sides(pairs))
        assert outcomes_of(rater, backwards) == expected
        assert {pair: other.get(name, name) for pair, name in renamed.items()} == expected
        assert server.requests == ITEMS * K, "equal questions"
        assert outcomes_of(rater_of(tmp_path, samples=2), pairs) == expected
        assert server.requests == 2 * ITEMS * K
        rows = [{side: story(n, 2 + (n + k) % 2) for k, side in enumerate(SIDES)} for n in range(8)]
        check_rater(rater, pair_table(rows))


@pytest.mark.parametrize(
    ("lead", "unread", "preference"),
    [
        (2, [], "first"),
        (-1, [], "second"),
        (0, [], "tie"),
        (2, ["cut"], "first"),
        (-2, ["cut"], "second"),
        # The missing rotation could make it a tie.
        (1, ["refused"], "refused"),
        (0, ["unparsed", "cut"], "unparsed"),
        (4, ["cut", "error"], "error"),
    ],
)
def test_a_verdict_stands_only_if_no_missing_rotation_could_change_it(lead, unread, preference):
    assert _preference(lead, unread) == preference


@pytest.mark.parametrize("manner", ["refusal", "length", "rambling"])
def test_answers_without_a_verdict(pairs, tmp_path, manner):
    """Each item has one rotation without a verdict: where its longest answer comes first."""

    def manners(question):
        return manner if longest(question).endswith("A") else None

    with FakeOpenAI(longest, manners=manners) as server:
        rater = rater_of(tmp_path)
        outcomes = outcomes_of(rater, pairs)
    assert server.requests == ITEMS * (K + (manner == "rambling"))
    outcome = {"refusal": "refused", "length": "cut", "rambling": "unparsed"}[manner]
    # Three rotations name the longest answer; the shorter ones could be named by the fourth.
    of_pairs = [outcomes[name] for name in pairs["pair_id"].to_pylist()]
    assert Counter(of_pairs) == {"chosen": 9, "rejected": 3, outcome: 6}
    assert rater.notes()["positions"] == {str(K): [0, ITEMS, ITEMS, ITEMS]}


def test_a_limit_is_said_once_and_the_run_goes_on(rows, tmp_path):
    with FakeOpenAI(longest) as server:
        config = {"pairs": rows, "model": [server.model], "template": "best_of_k"}
        with pytest.raises(ConfigError) as error:
            judge(Judge(**config, out=tmp_path / "out", traffic=Traffic(max_calls=10)))
        assert str(error.value).count("max_calls") == 1
        judge(Judge(**config, out=tmp_path / "out"))
    assert server.requests == ITEMS * K


def test_an_item_of_too_many_answers_is_refused(pair_table, tmp_path, capsys):
    item = {"item_id": "i", "prompt": "p", "chosen": "best"}
    pairs = pair_table([{**item, "rejected": f"worse {k}"} for k in range(24)])
    with pytest.raises(DataError, match="25 answers"):
        rater_of(tmp_path).estimate(blind(pairs)[0])
    spec = RaterSpec("asked", "judge", {"model": "openai/gpt-4.1"})
    print_estimates([spec], pairs, tmp_path)
    said = capsys.readouterr().out.partition("in each way")[2]
    assert "grades (" in said
    assert "rotations" not in said


@pytest.mark.parametrize(
    ("kind", "options"),
    [("judge", {}), ("judge", {"template": "best_of_k"}), ("rubric", {})],
)
def test_a_dry_run_shows_the_cost_of_three_ways(pairs, tmp_path, capsys, kind, options):
    spec = RaterSpec("asked", kind, {"model": "openai/gpt-4.1", **options})
    print_estimates([spec], pairs, tmp_path)
    said = capsys.readouterr().out.partition("in each way")[2]
    calls = {
        "pairs, both orders": 2 * ITEMS * (K - 1),
        "grades": ITEMS * K,
        "one question, k rotations": ITEMS * K,
    }
    for way, n_calls in calls.items():
        assert re.search(rf"^{way} \(openai/gpt-4.1\) +{n_calls} ", said, re.M)
    print_estimates([spec], pairs.slice(0, 1), tmp_path)
    assert "each way" not in capsys.readouterr().out
