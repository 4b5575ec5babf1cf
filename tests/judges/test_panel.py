"""Panels: votes, excluded members, and sums of cost."""

from dataclasses import dataclass, field, replace

import pytest
from fake_openai import FakeOpenAI

from litbench.data.text import prompt_key
from litbench.judges.judge import Judge, JudgeOptions
from litbench.judges.panel import Panel
from litbench.models.baselines import LengthRater
from litbench.raters.entries import parse_raters
from litbench.raters.interface import BlindPair, Estimate, Judgement, Rater, judge_pairs
from litbench.runs.errors import ConfigError, DataError

FIRST, SECOND, TIE = Judgement("first"), Judgement("second"), Judgement("tie")
FAILED, REFUSED, UNREAD = Judgement("error"), Judgement("refused"), Judgement("unparsed")
PAIR = BlindPair("a prompt", "one", "two")


@dataclass
class Scripted(Rater):
    """Returns the same judgements for every pair."""

    says: list
    name: str = "scripted"
    kind: str = "scripted"
    prompts: frozenset = field(default_factory=frozenset)

    def judge(self, pairs):
        return [self.says for _ in pairs]

    def training_prompts(self):
        return self.prompts

    def notes(self):
        return {"says": len(self.says)}


@dataclass
class Paid(Scripted):
    """A rater that sends requests."""

    shard: int | None = None
    folder: object = None

    def work_in(self, folder):
        self.folder = folder

    def estimate(self, pairs):
        return [Estimate(self.name, "m", 2 * len(pairs), 0, 10, 5, 0.5, 1.0, 3.0)]


def panel_of(*said):
    return Panel({str(index): Scripted(list(answers)) for index, answers in enumerate(said)})


def verdict_of(*said):
    ((first,),) = panel_of(*said).judge([PAIR])
    return first


@pytest.mark.parametrize(
    ("said", "prefers"),
    [
        # Majority; a member that flips has the vote 1/2.
        ([[FIRST], [FIRST, FIRST], [SECOND]], "first"),
        ([[FIRST], [FIRST, SECOND], [SECOND, TIE]], "first"),
        ([[FIRST], [SECOND], [TIE]], "tie"),
        # An order that was not judged counts 1/2; a member that judged neither order is excluded.
        ([[SECOND, UNREAD], [TIE]], "second"),
        ([[FAILED], [UNREAD, REFUSED], [SECOND]], "second"),
        # Three orders: thirds are not exact in binary.
        ([[FIRST, FIRST, SECOND], [SECOND, SECOND, FIRST]], "tie"),
        # No member could judge.
        ([[REFUSED], [REFUSED, REFUSED]], "refused"),
        ([[REFUSED], [FAILED]], "unparsed"),
    ],
)
def test_mean_vote_decides(said, prefers):
    first = verdict_of(*said)
    assert (first.prefers, first.first_shown) == (prefers, None)
    assert verdict_of(*said[::-1]).prefers == prefers


def test_pairs_not_judged_are_counted():
    panel = panel_of([FIRST], [FAILED], [UNREAD, REFUSED])
    panel.judge([PAIR, PAIR])
    assert panel.notes()["not_judged"] == {"0": 0, "1": 2, "2": 2}


def test_tokens_cost_and_time_are_sums():
    priced = [
        replace(FIRST, cost_usd=0.5, input_tokens=10, output_tokens=1, seconds=2.0),
        replace(SECOND, cost_usd=0.25, input_tokens=11, seconds=3.0),
    ]
    first = verdict_of(priced, [FIRST])
    assert (first.cost_usd, first.input_tokens, first.output_tokens) == (0.75, 21, 1)
    assert first.seconds == pytest.approx(5, abs=0.5)
    assert verdict_of([FIRST], [FIRST]).cost_usd is None


def test_members_share_a_folder_and_estimate(tmp_path):
    first, other = (Paid([FIRST], name=name, shard=shard) for name, shard in (("a", 5), ("b", 3)))
    panel = Panel({"free": Scripted([FIRST]), "a": first, "b": other})
    panel.work_in(tmp_path)
    assert first.folder == other.folder == tmp_path
    assert panel.shard == 3
    assert [(estimate.rater, estimate.calls) for estimate in panel.estimate([PAIR])] == [
        ("a", 2),
        ("b", 2),
    ]
    other.kind, other.shard = "judge", None
    assert Panel({"a": first, "b": other}).shard is None, "items are judged whole"
    free = panel_of([FIRST], [FIRST])
    assert (free.estimate([PAIR]), free.shard) == ([], None)


def test_members_training_prompts_and_missing_judgements():
    keys = [frozenset({prompt_key(name)}) for name in "ab"]
    members = {str(n): Scripted([FIRST], prompts=prompts) for n, prompts in enumerate(keys)}
    panel = Panel(members)
    assert panel.training_prompts() == keys[0] | keys[1]
    assert panel.notes()["members"] == {"0": {"says": 1}, "1": {"says": 1}}
    with pytest.raises(DataError, match="0 of 1 pairs"):
        verdict_of([FIRST], [])


LONGER, COIN = {"kind": "longer"}, {"kind": "random", "seed": 4}


def test_nested_panel_in_config():
    inner = {"kind": "panel", "members": {"x": LONGER, "y": COIN}}
    (spec,) = parse_raters({"all": {"kind": "panel", "members": {"a": inner, "b": COIN}}})
    panel = spec.load()
    assert panel.members["a"].name == "all.a"
    assert panel.members["a"].members["y"].name == "all.a.y"
    assert panel.members["b"].seed == 4


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (None, "key 'members' is missing"),
        ({"a": LONGER}, "has length 1: a panel needs at least 2"),
        ({"a": LONGER, "b": {}}, "needs a kind"),
        ({"a": LONGER, "b": {"kind": "longr"}}, "members.b: unknown kind 'longr'.*'longer'"),
        ({"a": LONGER, "b": {"kind": "random", "sed": 1}}, "members.b.*'sed'.*'seed'"),
    ],
)
def test_wrong_members(members, message):
    options = {} if members is None else {"members": members}
    with pytest.raises(ConfigError, match=message):
        parse_raters({"panel": {"kind": "panel", **options}})


def test_shared_question_is_sent_once(pair_table, tmp_path):
    pairs = pair_table([{} for _ in range(3)])
    with FakeOpenAI() as server:
        judges = {name: Judge(name, JudgeOptions(model=server.model)) for name in ("one", "two")}
        panel = Panel({**judges, "longer": LengthRater("longer", "longer", 1)})
        panel.work_in(tmp_path)
        assert judge_pairs(panel, pairs).num_rows == 3
        assert server.answered.total() == 6
