"""The kind `rubric`, run by eval/benchmark.py against a server on loopback."""

import json
import re

import pyarrow as pa
import pytest
from fake_openai import FakeOpenAI

from litbench.data.records import VERDICTS
from litbench.data.tables import read_table, write_table
from litbench.data.text import count_words
from litbench.judges.client import estimate_tokens
from litbench.judges.prices import Price
from litbench.raters.entries import RaterSpec
from litbench.raters.interface import blind, judge_pairs
from litbench.raters.templates.rubric import load_rubric
from litbench.runs.errors import ConfigError

logs = pytest.importorskip("inspect_ai.log")
pytest.importorskip("openai")

QUICK = {"first_wait_seconds": 0.01, "timeout_seconds": 60, "connections": 4}
STORY = re.compile(r"STORY BEGINS =====\n(.*?)\n===== STORY ENDS", re.DOTALL)
NAMES = ("Relevance", "Coherence", "Characters", "Surprise", "Engagement", "Language")


def shown_words(question):
    """Number of words of the story in a question of a packaged rubric."""
    story = STORY.search(question)
    assert story is not None
    return count_words(pa.array([story[1]], pa.large_string()))[0].as_py()


def marks(question):
    """All marks of the packaged rubric rise with the number of words, from 1 to 10."""
    mark = min(1 + shown_words(question) / 10, 10)
    return "It has words.\n\n[Scores]\n" + "\n".join(f"{name}: {mark:g}" for name in NAMES)


@pytest.fixture
def server():
    """A server of a judge that likes words."""
    with FakeOpenAI(marks) as server:
        yield server


@pytest.fixture
def benchmark(load_program, tmp_path):
    """Run eval/benchmark.py on pairs; returns the agreement by rater."""
    program = load_program("eval/benchmark.py")

    def run(pairs, **options):
        write_table(pairs, tmp_path / "pairs.parquet")
        entry = {"kind": "rubric", "model": FakeOpenAI.model, "traffic": QUICK, **options}
        if "members" in options:
            entry = options
        program.main(
            program.Config(
                pairs=tmp_path / "pairs.parquet",
                out=tmp_path / "out",
                raters={"rubric": entry, "longer": {"kind": "longer"}},
                reference="longer",
            )
        )
        rows = json.loads((tmp_path / "out/leaderboard.json").read_text())
        return {row["rater"]: row["agreement"] for row in rows}

    return run


def invented_pairs(pair_table, number=24):
    """Pairs of 3 to 40 words that share stories; some are of equal length."""
    rows = []
    for index in range(number):
        sides = [(index * k) % 38 + 3 for k in (7, 11)]
        ids = [f"s{words}" for words in sides]
        texts = [
            f"Story {name}: " + "rain " * words for name, words in zip(ids, sides, strict=True)
        ]
        rows.append(
            {
                "prompt_id": "p",
                "chosen": texts[0],
                "rejected": texts[1],
                "chosen_story_id": ids[0],
                "rejected_story_id": ids[1],
                "pair_id": f"pair {index}",
            }
        )
    return pair_table([row for row in rows if row["chosen"] != row["rejected"]])


def outcomes(folder):
    table = read_table(folder / "out/verdicts.parquet", VERDICTS)
    results = {"rubric": {}, "longer": {}}
    for row in table.to_pylist():
        results[row["rater"]][row["pair_id"]] = row["outcome"]
    return results


def test_marks_that_rise_with_words_agree_as_longer(server, benchmark, pair_table, tmp_path):
    pairs = invented_pairs(pair_table)
    rows = benchmark(pairs)
    assert 0.2 < rows["longer"]["mean"] < 0.8
    assert rows["rubric"]["mean"] == rows["longer"]["mean"]
    result = outcomes(tmp_path)
    assert result["rubric"] == result["longer"]
    stories = {text for side in ("chosen", "rejected") for text in pairs[side].to_pylist()}
    assert server.requests == len(stories), "each story is rated once"
    verdict = read_table(tmp_path / "out/verdicts.parquet", VERDICTS).to_pylist()[0]
    assert verdict["order"] is None
    chosen = pairs["chosen_n_words"].to_pylist()[0]
    assert verdict["reward_chosen"] == pytest.approx(1 + chosen / 10)
    assert verdict["explanation"].count("It has words.") == 2
    (path,) = (tmp_path / "out/logs/rubric").glob("*.eval")
    log = logs.read_eval_log(str(path))
    assert (log.status, len(log.samples)) == ("success", len(stories))
    sample = log.samples[0]
    assert sample.messages[0].content.startswith("[to judge: story]")
    assert sample.scores["grade"].value == pytest.approx(1 + shown_words(sample.input) / 10)
    benchmark(pairs, traffic={**QUICK, "connections": 2})
    assert server.requests == len(stories), "stored answers are used again"


def test_partial_ratings_are_asked_for_once_more_and_then_unrated(pair_table, tmp_path):
    def partial(question):
        lines = marks(question).splitlines()
        return "\n".join(lines[:-2] if shown_words(question) < 10 else lines)

    def refuse(question):
        return "refusal" if shown_words(question) > 38 else None

    pairs = invented_pairs(pair_table)
    words = {
        text: shown_words(f"STORY BEGINS =====\n{text}\n===== STORY ENDS")
        for side in ("chosen", "rejected")
        for text in pairs[side].to_pylist()
    }
    short, long = (
        sum(test(n) for n in words.values()) for test in (lambda n: n < 10, lambda n: n > 38)
    )
    assert short
    assert long
    with FakeOpenAI(partial, manners=refuse) as server:
        rater = RaterSpec("r", "rubric", {"model": FakeOpenAI.model, "traffic": QUICK}).load()
        rater.work_in(tmp_path)
        verdicts = judge_pairs(rater, pairs).to_pylist()
        assert server.requests == len(words) + short, "once, and no refusal"
    counts = rater.notes()["ratings"]
    assert counts == {
        "rated": 6 * (len(words) - long - short),
        "unparsed": 6 * short,
        "refused": 6 * long,
    }
    refused = {
        row["outcome"] for row in verdicts if None in (row["reward_chosen"], row["reward_rejected"])
    }
    assert refused == {"refused", "unparsed"}


def test_estimate_and_limits(server, pair_table, tmp_path):
    pairs = invented_pairs(pair_table)
    (tmp_path / "prices.yaml").write_text(json.dumps({FakeOpenAI.model: {"input": 1, "output": 1}}))

    def rater(**traffic):
        options = {
            "model": FakeOpenAI.model,
            "traffic": {**QUICK, **traffic},
            "prices": str(tmp_path / "prices.yaml"),
        }
        loaded = RaterSpec("r", "rubric", options).load()
        loaded.work_in(tmp_path)
        return loaded

    blinded, _ = blind(pairs)
    stories = {text for pair in blinded for text in (pair.first, pair.second)}
    (told,) = rater().estimate(blinded)
    assert (told.rater, told.calls, told.known) == ("r", len(stories), 0)
    assert told.cost_usd == pytest.approx((told.input_tokens + told.output_tokens) / 1e6)
    # At most, every reply is of full length and asked for again.
    again = told.calls * (estimate_tokens(load_rubric("story").repair("k7f3q")) + 4096)
    most = 2 * told.input_tokens + again + 2 * told.calls * 4096
    assert told.most_cost_usd == pytest.approx(most / 1e6)
    with pytest.raises(ConfigError, match=r"max_calls of 5 .*; 5 of \d+"):
        judge_pairs(rater(max_calls=5), pairs)
    (told,) = rater().estimate(blinded)
    assert (told.calls, told.known) == (len(stories) - 5, 5)
    twice = rater(max_calls=len(stories) - 5)
    verdicts = judge_pairs(twice, pairs)
    assert server.requests == len(stories)
    # A story of several pairs is paid once.
    assert sum(verdicts["cost_usd"].to_pylist()) == pytest.approx(server.dollars(Price(1.0, 1.0)))
    other = pair_table([{"chosen": "A new story", "rejected": "And another"}])
    with pytest.raises(ConfigError, match="0 of 2 stories"):
        judge_pairs(twice, other)
    assert server.requests == len(stories), "the limit is that of the run, not of each call"


@pytest.mark.parametrize("kind", ["rubric", "panel"])
def test_a_limit_keeps_the_pairs_already_rated(kind, server, benchmark, pair_table, tmp_path):
    traffic = {**QUICK, "max_calls": 9}
    entry = {"traffic": traffic}
    if kind == "panel":
        rubric = {"kind": "rubric", "model": server.model, "traffic": traffic}
        members = {"asked": rubric, "long": {"kind": "longer"}}
        entry = {"kind": kind, "members": members}
    with pytest.raises(ConfigError, match=r"Partial: (\d+) of \d+ pairs.* max_calls of 9"):
        benchmark(invented_pairs(pair_table), **entry)
    judged = outcomes(tmp_path)
    assert len(judged["rubric"]) == len(judged["longer"]) < 20
    assert "chosen" in judged["rubric"].values()
    assert "error" not in judged["rubric"].values()
    assert server.requests == 9


def test_wrong_options(tmp_path):
    rubric = {"form": "brackets", "criteria": ["Length"], "text": "{text} {plan}"}
    (tmp_path / "plan.yaml").write_text(json.dumps({**rubric, "lowest": 0, "highest": 9}))
    cases = {
        "needs plan, which a story": {"rubric": str(tmp_path / "plan.yaml")},
        "did you mean 'story'": {"rubric": "storry"},
        "has no price": {"traffic": {"max_cost_usd": 1}},
        "unknown key 'rubrik'": {"rubrik": "story"},
    }
    for said, options in cases.items():
        with pytest.raises(ConfigError, match=said):
            RaterSpec("r", "rubric", {"model": "openai/nobody", **options}).load()
