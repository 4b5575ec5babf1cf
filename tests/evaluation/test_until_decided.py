"""Raters that ask a model stop once their comparison is decided or futile, and not before."""

import json
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from litbench.data.tables import write_table
from litbench.data.text import digest
from litbench.evaluation.benchmark import Benchmark, run_benchmark
from litbench.evaluation.loop import check_judged
from litbench.evaluation.report.csv_table import flat_rows
from litbench.evaluation.report.page import render_report
from litbench.evaluation.results import Evaluation
from litbench.metrics.comparisons import difference_interval
from litbench.metrics.intervals import clustered_mean
from litbench.metrics.leaderboard import leaderboard_csv
from litbench.metrics.sequential import boundaries, repeated_p, stagewise_interval
from litbench.raters.entries import KINDS, Kind
from litbench.raters.interface import UNASKED, Judgement, Rater
from litbench.runs.config import build
from litbench.runs.errors import ConfigError


class Stopped(Exception):
    """Stands for a kill."""


class Scripted(Rater):
    """Judges both orders; right with some probability, which is a hash of the pair.

    `asked` counts the questions of all runs; a kill comes at `kill_at` of them.
    """

    kind = "judge"
    asked: ClassVar[Counter] = Counter()
    kill_at: ClassVar[int | None] = None

    def __init__(self, name, options):
        self.name, self.options, self.calls = name, options, 0

    def judge(self, pairs):
        return [self.judge_pair(pair) for pair in pairs]

    def judge_pair(self, pair):
        orders = []
        for shown in ("first", "second"):
            if self.calls == self.options.max_calls:
                orders.append(Judgement("error", first_shown=shown, explanation=f"{UNASKED}limit"))
                continue
            if Scripted.asked.total() == Scripted.kill_at:
                raise Stopped
            self.calls += 1
            Scripted.asked[self.name, pair, shown] += 1
            good = "first" if pair.first.startswith("good") else "second"
            poor = "second" if good == "first" else "first"
            chance = int(digest(self.name, *sorted([pair.first, pair.second]))[:8], 16) / 16**8
            prefers = good if chance < self.options.right else poor
            orders.append(Judgement(prefers, first_shown=shown))
        return orders


@dataclass
class Options:
    right: float = 0.5
    max_calls: int | None = None

    def load(self, name):
        return Scripted(name, self)


@pytest.fixture(autouse=True)
def scripted(monkeypatch):
    monkeypatch.setitem(KINDS, "judge", Kind(Options))
    Scripted.asked, Scripted.kill_at = Counter(), None


@pytest.fixture
def judge_until(pair_table, tmp_path):
    """Run a benchmark; raters by name and how often they are right."""

    def run(raters, prompts=40, out="out", limits=(), **options):
        rows = [
            {
                "prompt": f"prompt {prompt}",
                "prompt_id": f"p{prompt}",
                "chosen_story_id": f"c{prompt} {number}",
                "rejected_story_id": f"r{prompt} {number}",
                "chosen": f"good {prompt} {number} " + "word " * (number % 3),
                "rejected": f"poor {prompt} {number} word",
            }
            for prompt in range(prompts)
            for number in range(3 + prompt % 3)
        ]
        write_table(pair_table(rows), tmp_path / "pairs.parquet")
        entries = {name: {"kind": "judge", "right": right} for name, right in raters.items()}
        for name, limit in dict(limits).items():
            entries[name]["max_calls"] = limit
        values = {"until": "decided", "against": "1/2", "out": tmp_path / out, **options}
        values.setdefault("pairs", tmp_path / "pairs.parquet")
        config = build(
            Benchmark, {"raters": {"longer": {"kind": "longer"}, **entries}, **values}, "test"
        )
        return run_benchmark(config, "test").get("")

    return run


def asked_of(name):
    return sum(count for (rater, *_), count in Scripted.asked.items() if rater == name)


def test_a_clear_rater_stops_early(judge_until, tmp_path, capsys):
    evaluation = judge_until({"clear": 0.95})
    record = evaluation.until_decided
    result, plan = record["comparisons"]["clear"], record["plan"]
    assert result["reason"] == "decided"
    last = result["looks"][-1]
    assert last["pairs"] < plan["pairs"][-1] == 159
    # Both orders of every pair of whole prompts, once.
    assert asked_of("clear") == 2 * last["pairs"] == len(Scripted.asked)
    prompts = {pair.prompt for _, pair, _ in Scripted.asked}
    assert len(prompts) == last["prompts"]
    sizes = Counter(pair.prompt for _, pair, order in Scripted.asked if order == "first")
    assert all(size == 3 + int(prompt.split()[1]) % 3 for prompt, size in sizes.items())
    text = f"decided after {last['pairs']} of 159 pairs ({last['prompts']} of 40 prompts)"
    output = capsys.readouterr().out
    assert f"{text}, planned error 5 %: agrees more than 1/2" in output
    row, longer = (
        next(row for row in evaluation.rows if row.rater == name) for name in ("clear", "longer")
    )
    assert row.stopped == f"{last['pairs']} of 159 pairs"
    assert (longer.stopped, longer.agreement.n) == ("", 159)
    assert row.comparison.is_clear
    difference = row.comparison.difference
    assert row.agreement.low == pytest.approx(0.5 + difference.low)
    assert difference.low > 0
    assert row.agreement.mean == pytest.approx(0.5 + difference.mean)
    assert f"(judge, stopped: {row.stopped})" in output
    exported = {line["rater"]: line["stopped"] for line in flat_rows(leaderboard_csv([row]))}
    assert exported == {"clear": row.stopped}
    found = Evaluation.find(tmp_path / "out")
    assert found.rows == evaluation.rows
    assert found.pairs.headline.num_rows == last["pairs"]
    page = render_report(found, "title", tmp_path / "report.html")
    assert text in page
    assert "clear (stopped)" in page, "pictures mark it too"
    assert "biased away from 0" in page


def test_looks_are_those_of_the_report(judge_until):
    evaluation = judge_until({"even": 0.5}, futility=False)
    result = evaluation.until_decided["comparisons"]["even"]
    assert [look["prompts"] for look in result["looks"]] == [8, 12, 16, 20, 24, 28, 32, 36, 40]
    shares = [look["pairs"] / 159 for look in result["looks"]]
    verdicts = [row for row in evaluation.verdicts.to_pylist() if row["rater"] == "even"]
    prompt_of = dict(
        zip(
            *(evaluation.pairs.headline[name].to_pylist() for name in ("pair_id", "prompt")),
            strict=True,
        )
    )
    order = list(dict.fromkeys(prompt_of[row["pair_id"]] for row in verdicts))
    for number, look in enumerate(result["looks"]):
        seen = [row for row in verdicts if prompt_of[row["pair_id"]] in order[: look["prompts"]]]
        values = np.array([(row["outcome"] == "chosen") - 0.5 for row in seen])
        estimate = clustered_mean(values, [prompt_of[row["pair_id"]] for row in seen])
        _, p = difference_interval(estimate)
        assert look["mean"] == pytest.approx(estimate.mean, abs=1e-5)
        # The difference of `longer` is significant and leaves its share to the other one.
        assert look["bound"] == pytest.approx(boundaries((*shares,))[number], abs=1e-5)
        assert look["p"] == pytest.approx(repeated_p(shares[: number + 1], look["z"]), abs=1e-4)
        assert (abs(look["z"]) > 1.96) == (p < 0.05)
    bounds = [look["bound"] for look in result["looks"][:-1]]
    interval = stagewise_interval(estimate, shares, bounds)
    for end in ("mean", "low", "high"):
        assert result["interval"][end] == pytest.approx(getattr(interval, end), abs=2e-6)


def test_a_killed_run_resumes_with_the_same_looks(judge_until):
    whole = judge_until({"clear": 0.8, "even": 0.5}, out="whole")
    asked = Scripted.asked.total()
    for kill_at in (asked // 3, asked - 40):
        Scripted.asked, Scripted.kill_at = Counter(), kill_at
        out = f"killed-{kill_at}"
        with pytest.raises(Stopped):
            judge_until({"clear": 0.8, "even": 0.5}, out=out)
        Scripted.kill_at = None
        resumed = judge_until({"clear": 0.8, "even": 0.5}, out=out)
        assert resumed.until_decided == whole.until_decided
        assert resumed.verdicts.drop_columns("seconds").equals(
            whole.verdicts.drop_columns("seconds")
        )
        # The block in progress is asked again: a judge would read its stored answers.
        assert asked <= Scripted.asked.total() < asked + 2 * 80
    before = Scripted.asked.total()
    judge_until({"clear": 0.8, "even": 0.5}, out=out)
    assert Scripted.asked.total() == before, "a finished run asks nothing"


def test_futility_is_not_binding(judge_until):
    stopped = judge_until({"even": 0.5}).until_decided["comparisons"]["even"]
    assert stopped["reason"] == "futile"
    assert asked_of("even") == 2 * stopped["looks"][-1]["pairs"] < 2 * 159
    further = judge_until({"even": 0.5}, futility=False).until_decided["comparisons"]["even"]
    assert further["looks"][: len(stopped["looks"])] == stopped["looks"]
    assert further["looks"][-1]["prompts"] == 40
    assert asked_of("even") == 2 * 159, "stored verdicts of the first run count"


def test_few_prompts_do_not_stop(judge_until, capsys):
    evaluation = judge_until({"clear": 0.95}, prompts=19)
    record = evaluation.until_decided
    assert len(record["comparisons"]["clear"]["looks"]) == 1
    assert evaluation.rows[0].stopped == ""
    assert asked_of("clear") == 2 * evaluation.pairs.headline.num_rows
    assert "19 prompts are fewer than 20" in record["note"]
    capsys.readouterr()
    judge_until({"clear": 0.95}, prompts=19, dry_run=True)
    assert "fewer than 20" in capsys.readouterr().out


def test_raters_stop_one_by_one_and_the_reference_last(judge_until):
    raters = {"base": 0.5, "clear": 0.95, "even": 0.5}
    evaluation = judge_until(raters, against="base", prompts=60)
    results = evaluation.until_decided["comparisons"]
    assert {*results} == {"clear", "even", "longer"}
    assert results["clear"]["reason"] == "decided"
    ends = {name: result["looks"][-1]["pairs"] for name, result in results.items()}
    assert ends["clear"] < max(ends.values())
    assert asked_of("clear") == 2 * ends["clear"]
    assert asked_of("base") == 2 * max(ends.values())
    rows = {row.rater: row for row in evaluation.rows}
    assert rows["base"].comparison is None
    assert rows["clear"].comparison.reference == "base"
    # Both orders always agree, so that this is the plain interval of the same pairs.
    clear = rows["clear"]
    assert clear.agreement.mean == clear.consistent.mean
    assert clear.agreement.low < clear.consistent.low, "the interval allows for the looks"
    assert rows["longer"].stopped == ""
    # The pairs of the page are those that every rater judged.
    assert evaluation.pairs.headline.num_rows == min(asked_of(name) for name in raters) / 2


def test_a_limit_ends_the_run_at_a_look(judge_until, capsys):
    evaluation = judge_until({"weak": 0.6}, limits={"weak": 120})
    result = evaluation.until_decided["comparisons"]["weak"]
    assert result["reason"] == "limit"
    # The run may go on, so that the interval is a repeated one, about the plain mean.
    assert result["interval"]["mean"] == result["looks"][-1]["mean"]
    assert result["looks"][-1]["pairs"] <= 60
    with pytest.raises(ConfigError, match="Partial: weak: limit"):
        check_judged([evaluation])
    with pytest.raises(ConfigError, match="first look"):
        judge_until({"weak": 0.6}, limits={"weak": 10}, out="none")
    capsys.readouterr()
    judge_until({"weak": 0.6}, dry_run=True)
    measured = f"find a difference of {result['looks'][-1]['detectable']:.3f} in 80 %"
    assert measured in capsys.readouterr().out, "the variance is that of the pilot"


def test_several_sets_are_marked(judge_until, tmp_path):
    judge_until({"clear": 0.95}, out="alone")
    sets = {"one": str(tmp_path / "pairs.parquet"), "two": str(tmp_path / "pairs.parquet")}
    judge_until({"clear": 0.95}, out="sets", pairs=sets)
    content = json.loads((tmp_path / "sets/sets.json").read_text())
    assert ["one", "judged until decided: 1 decided"] in content["notes"]
    assert {row["stopped"] for row in content["rows"] if row["rater"] == "longer"} == {""}


def test_a_dry_run_shows_expected_and_worst_cost(judge_until, capsys):
    judge_until({"even": 0.5}, dry_run=True)
    assert not Scripted.asked
    output = capsys.readouterr().out
    assert "until decided against 1/2: 9 looks, the first at 8 of 40 prompts" in output
    lines = [line.split() for line in output.splitlines() if line.startswith("even")]
    assert lines[0][-3] == "100%"
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("raters", "options", "message"),
    [
        ({}, {}, "no rater asks a model"),
        ({"even": 0.5}, {"against": "eve"}, "even"),
        ({"even": 0.5}, {"against": "1.5"}, "between 0 and 1"),
        ({"even": 0.5}, {"looks": 0}, "looks"),
    ],
)
def test_plans_that_cannot_be(judge_until, raters, options, message):
    with pytest.raises(ConfigError, match=message):
        judge_until(raters, **options)
