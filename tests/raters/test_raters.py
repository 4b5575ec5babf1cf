"""Raters are blind: what they see, what they say, and how it is written down."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pkgutil import resolve_name

import numpy as np
import pytest

from litbench.data.records import VERDICTS
from litbench.data.tables import read_table, write_table
from litbench.metrics.agreement import pair_scores
from litbench.models.baselines import LengthRater, RandomRater
from litbench.models.features import FeatureOptions, fit_features
from litbench.raters.entries import KINDS, RaterSpec, parse_raters
from litbench.raters.interface import (
    Judgement,
    Rater,
    ScoreRater,
    blind,
    check_training_prompts,
    judge_pairs,
    training_prompts_of,
)
from litbench.runs.errors import ConfigError, DataError
from litbench.testing import check_rater, rename_sides


@pytest.fixture
def invented_pairs(some_pairs):
    """Pairs of invented stories, some of equal length, with scores and times."""

    def build(n, seed):
        sides = {"chosen": (90, 2_000), "rejected": (10, 1_000)}
        columns = {f"{side}_score": [score] * n for side, (score, _) in sides.items()}
        columns |= {f"{side}_created_utc": [time] * n for side, (_, time) in sides.items()}
        prompts = [f"p{seed}-{index % 11}" for index in range(n)]
        return some_pairs(n, seed, (2, 40), prompt_id=prompts, **columns)

    return build


@dataclass
class StubJudge(Rater):
    """A judge that reads both orders: likes exclamations, leans to the first, sometimes refuses."""

    name: str = "judge"
    kind: str = "stub"

    def judge(self, pairs):
        """Two judgements per pair, from nothing but what it reads."""
        judged = []
        for pair in pairs:
            both = []
            for shown in ("first", "second"):
                texts = (pair.first, pair.second)
                top, below = texts if shown == "first" else texts[::-1]
                p_top = float(1 / (1 + np.exp(below.count("!") - top.count("!") - 0.5)))
                p_first = p_top if shown == "first" else 1 - p_top
                prefers = "first" if p_first > 0.5 else "second"
                if len(top) % 13 == 0:
                    prefers, p_first = "refused", None
                elif len(below) % 7 == 0:
                    prefers, p_first = "tie", 0.5
                both.append(Judgement(prefers, p_first=p_first, first_shown=shown))
            judged.append(both)
        return judged


@dataclass
class Fixed(ScoreRater):
    """Rewards from a function of the story."""

    reward: Callable[[str], float]
    name: str = "fixed"
    kind: str = "test"
    gives_probability = True

    def score(self, prompts, stories):
        """Apply the function."""
        assert len(prompts) == len(stories)
        return np.array([self.reward(story) for story in stories], dtype=float)


def _rater(kind, training_pairs):
    if kind == "features":
        return fit_features(training_pairs, FeatureOptions(c=[1.0]))
    if kind == "judge":
        return StubJudge()
    return RaterSpec(kind, kind).load()


def _scores(rater, pairs):
    (scores,) = pair_scores(judge_pairs(rater, pairs), pairs)
    return scores


@pytest.mark.parametrize("kind", ["longer", "shorter", "random", "features", "judge"])
def test_raters_are_blind(kind, invented_pairs):
    check_rater(_rater(kind, invented_pairs(120, 1)), invented_pairs(200, 2))


def test_nothing_but_the_texts_reaches_a_rater(invented_pairs):
    pairs = invented_pairs(50, 3)
    blinded, chosen_first = blind(pairs)
    assert blind(rename_sides(pairs))[0] == blinded
    for pair, is_first, row in zip(blinded, chosen_first, pairs.to_pylist(), strict=True):
        texts = (row["chosen"], row["rejected"])
        assert vars(pair) == {
            "prompt": row["prompt"],
            "item": None,
            **dict(zip(("first", "second"), texts if is_first else texts[::-1], strict=True)),
        }


def test_random_raters_and_orders_are_balanced(invented_pairs):
    pairs = invented_pairs(1_000, 8)
    blinded, chosen_first = blind(pairs)
    named_first = np.mean(
        [judgement.prefers == "first" for (judgement,) in RandomRater().judge(blinded)]
    )
    # Binomial: five standard errors of 0.0158 on either side.
    for share in (chosen_first.mean(), named_first, _scores(RandomRater(), pairs).credit.mean()):
        assert abs(share - 0.5) < 5 * 0.0158


@pytest.mark.parametrize(
    ("chosen", "rejected", "longer", "shorter"),
    [
        ("one two three", "one two", "chosen", "rejected"),
        ("one", "one two", "rejected", "chosen"),
        ("one two", "characters-galore, nonetheless-two", "tie", "tie"),
        ("月光照在", "one two three", "chosen", "rejected"),
    ],
)
def test_length_raters_count_words(chosen, rejected, longer, shorter, pair_table):
    pairs = pair_table([{"chosen": chosen, "rejected": rejected}])
    for kind, outcome in (("longer", longer), ("shorter", shorter)):
        verdicts = judge_pairs(RaterSpec("length", kind).load(), pairs)
        assert verdicts["outcome"].to_pylist() == [outcome]


def test_non_finite_rewards_raise(pair_table):
    pairs = pair_table([{"chosen": "fine", "rejected": "broken"}])
    rater = Fixed(lambda story: np.nan if story == "broken" else 0.0, name="shaky")
    with pytest.raises(DataError, match="rater shaky: 1 of 2"):
        judge_pairs(rater, pairs)


def test_probability_is_sigmoid_of_reward_difference(pair_table):
    pairs = pair_table([{"chosen": "aaa", "rejected": "a"}, {"chosen": "a", "rejected": "aa"}])
    verdicts = judge_pairs(Fixed(lambda story: float(len(story))), pairs)
    assert verdicts["p_chosen"].to_pylist() == pytest.approx(
        [1 / (1 + np.exp(-(3 - 1))), 1 / (1 + np.exp(-(1 - 2)))]
    )
    assert verdicts["outcome"].to_pylist() == ["chosen", "rejected"]
    assert verdicts["reward_chosen"].to_pylist() == [3, 1]
    assert verdicts["reward_rejected"].to_pylist() == [1, 2]
    # Rewards far apart do not overflow.
    far = judge_pairs(Fixed(lambda story: 1e9 if story == "aaa" else -1e9), pairs.slice(0, 1))
    assert far["p_chosen"].to_pylist() == [1.0]


def test_each_story_of_a_prompt_is_scored_once(pair_table):
    seen = []

    class Counting(Fixed):
        def score(self, prompts, stories):
            seen.extend(zip(prompts, stories, strict=True))
            return super().score(prompts, stories)

    rows = [("a", "b", "p"), ("a", "c", "p"), ("b", "c", "p"), ("a", "b", "q")]
    pairs = pair_table(
        [
            {"chosen": first, "rejected": two, "prompt_id": p, "pair_id": f"{first}{two}{p}"}
            for first, two, p in rows
        ]
    )
    verdicts = judge_pairs(Counting(lambda story: float(ord(story))), pairs)
    assert verdicts["reward_chosen"].to_pylist() == [ord(story) for story, _, _ in rows]
    assert verdicts["reward_rejected"].to_pylist() == [ord(two) for _, two, _ in rows]
    assert len(seen) == len(set(seen)) == 3 + 2


def test_judgements_become_verdicts(pair_table):
    @dataclass
    class Wordy(StubJudge):
        def judge(self, pairs):
            judgement = Judgement(
                "first",
                0.75,
                2.0,
                1.0,
                "second",
                "because",
                input_tokens=5,
                output_tokens=6,
                cost_usd=0.5,
            )
            return [
                [judgement, replace(judgement, prefers="unparsed", p_first=None)] for _ in pairs
            ]

    pairs = pair_table([{"pair_id": f"p{index}"} for index in range(12)])
    _, chosen_first = blind(pairs)
    assert 0 < chosen_first.sum() < 12
    rows = judge_pairs(Wordy(), pairs, fold="0/3").to_pylist()
    assert len(rows) == 24
    for is_first, row, broken in zip(chosen_first, rows[::2], rows[1::2], strict=True):
        assert row["outcome"] == ("chosen" if is_first else "rejected")
        assert row["order"] == ("rejected" if is_first else "chosen")
        assert row["p_chosen"] == (0.75 if is_first else 0.25)
        assert row["reward_chosen"] == (2.0 if is_first else 1.0)
        assert row["reward_rejected"] == (1.0 if is_first else 2.0)
        assert (row["explanation"], row["input_tokens"], row["output_tokens"]) == ("because", 5, 6)
        assert (row["cost_usd"], row["fold"], row["kind"]) == (0.5, "0/3", "stub")
        assert (broken["outcome"], broken["p_chosen"]) == ("unparsed", None)


def test_sharded_verdicts_keep_the_schema(invented_pairs, tmp_path):
    pairs, rater = invented_pairs(30, 12), StubJudge()
    verdicts = judge_pairs(rater, pairs)
    write_table(verdicts, tmp_path / "verdicts.parquet")
    assert read_table(tmp_path / "verdicts.parquet", VERDICTS).equals(verdicts)
    rater.shard = 7
    sharded = judge_pairs(rater, pairs)
    assert sharded.drop_columns(["seconds"]).equals(verdicts.drop_columns(["seconds"]))
    assert judge_pairs(rater, pairs.slice(0, 0)).schema == verdicts.schema


@pytest.mark.parametrize("answer", ["none", "empty"])
def test_missing_judgements_raise(answer, invented_pairs):
    @dataclass
    class Silent(StubJudge):
        def judge(self, pairs):
            judged = super().judge(pairs)
            return judged[:-1] if answer == "none" else [*judged[:-1], []]

    with pytest.raises(DataError, match="rater judge: judged 9 of 10"):
        judge_pairs(Silent(), invented_pairs(10, 13))


def test_raters_are_read_from_a_config():
    specs = parse_raters({"l": {"kind": "longer"}, "coin": {"kind": "random", "seed": 3}})
    assert specs == [RaterSpec("l", "longer"), RaterSpec("coin", "random", {"seed": 3})]
    assert specs[0].load() == LengthRater("l", "longer", 1)
    assert specs[1].load() == RandomRater("coin", "random", 3)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"path": "x"}, r"raters\.r: needs a kind"),
        ({"kind": "lunger"}, r"raters\.r: unknown kind 'lunger': did you mean 'longer'\?"),
        ({"kind": "random", "sead": 1}, r"raters\.r: unknown key 'sead': did you mean 'seed'\?"),
        ({"kind": "random", "seed": "many"}, r"raters\.r: key 'seed' is 'many'"),
        ({"kind": "features", "folds": 3}, r"raters\.r: unknown key 'folds'"),
        ({"kind": "features", "path": "runs/f", "c": [1]}, r"raters\.r: unknown key 'c'"),
    ],
)
def test_broken_entries_raise(entry, message):
    with pytest.raises(ConfigError, match=message):
        parse_raters({"r": entry}, may_train=True)
    with pytest.raises(ConfigError, match="name at least one"):
        parse_raters({})


def test_every_kind_can_be_imported():
    for kind in KINDS.values():
        assert callable(resolve_name(kind.options).load)
        assert kind.training is None or callable(resolve_name(kind.training).train)


def test_reposts_of_training_prompts_are_found(pair_table):
    trained = pair_table([{"prompt": "[WP] The lamp speaks."}])
    judged = pair_table(
        [{"prompt": "The Lamp, speaks"}, {"prompt": "A quiet lamp"}, {"prompt": "The Lamp, speaks"}]
    )

    class Trained(Fixed):
        def training_prompts(self):
            return training_prompts_of(trained)

    assert check_training_prompts(Trained(lambda _: 0.0), judged, "flag") == 1
    assert check_training_prompts(RandomRater(), judged, "refuse") == 0


def test_notes_rater_prefers_notes_to_readers(pair_table):
    story = "The mill stood still.\n\nNobody came."
    thanks = f"{story}\n\nEdit: thank you for the gold, kind stranger!"
    pairs = pair_table(
        [
            {"chosen": thanks, "rejected": story},
            {"chosen": story, "rejected": f"{thanks} "},
            {"chosen": story, "rejected": "Gold lay in the river, and nobody said thank you."},
        ]
    )
    rater = RaterSpec("notes", "notes").load()
    np.testing.assert_array_equal(_scores(rater, pairs).credit, [1, 0, 0.5])
    check_rater(rater, pairs)


@pytest.mark.parametrize("kind", ["longer", "notes"])
@pytest.mark.parametrize("story", ["", " \n", "\u200b", "&#x200B;", "\u3164"])
def test_an_empty_story_gets_no_reward(kind, story):
    rater = RaterSpec(kind, kind).load()
    with pytest.raises(DataError, match=r"story 2 of 3: no text"):
        rater.score(["p"] * 3, ["a", story, "\ud800"])


class Forgetful(Fixed):
    """Loses its function when saved."""

    def save(self, folder):
        del folder

    @classmethod
    def load(cls, folder):
        del folder
        return cls(lambda story: float(len(story)))


class Centred(Fixed):
    """Rewards depend on the other stories of the batch."""

    def score(self, prompts, stories):
        rewards = super().score(prompts, stories)
        return rewards - rewards.mean()


class Positional(Fixed):
    def score(self, prompts, stories):
        del prompts
        return np.arange(len(stories), dtype=float)


@pytest.mark.parametrize(
    ("rater", "named"),
    [
        (Forgetful(lambda story: -float(len(story))), "saved and loaded"),
        (Centred(lambda story: float(len(story))), "a pair alone"),
        (Positional(lambda _: 0.0), "another order"),
        (Fixed(lambda _: 0.0), "all outcomes are tie"),
    ],
)
def test_a_rater_that_breaks_a_rule_is_named(rater, named, invented_pairs):
    with pytest.raises(AssertionError, match=named):
        check_rater(rater, invented_pairs(40, 2))
