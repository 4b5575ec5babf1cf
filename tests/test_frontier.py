"""The frontier: a cascade read off two raters' verdicts is the cascade that would be run."""

import csv
import json
import math
import random
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

from litbench.errors import ConfigError, DataError
from litbench.judges.mixes import Cascade, Jury, Unsure
from litbench.metrics.agreement import PairFacts, pair_scores
from litbench.metrics.frontier import (
    at_shares,
    choose_threshold,
    frontier,
    frontier_text,
    write_frontier_csv,
)
from litbench.metrics.intervals import jackknife_interval
from litbench.raters import Judgement, ScoreRater, judge_pairs
from litbench.report.frontier_page import draw_frontier, render_frontier
from litbench.tables import write_table
from litbench.text import digest


def toss(*parts):
    """A number from 0 to 1 that depends on the texts alone."""
    return int(digest(*parts)[:8], 16) / 16**8


def taste(story):
    """How good the story is; raters see it through noise."""
    return toss("taste", story)


@dataclass
class Noisy(ScoreRater):
    """Rewards with noise; stories of equal reward once in a while."""

    name: str
    noise: float
    kind: str = "noisy"
    gives_probability = True

    def score(self, prompts, stories):
        del prompts
        noise = np.array([toss(self.name, story) for story in stories])
        return np.round(4 * np.array([taste(s) for s in stories]) + self.noise * noise, 1)


@dataclass
class Judge:
    """Reads both orders, leans to the first, fails now and then; takes money."""

    name: str = "judge"
    kind: str = "judge"
    price: float = 0.002

    def judge(self, pairs):
        return [[self.one(pair, shown) for shown in ("first", "second")] for pair in pairs]

    def one(self, pair, shown):
        noise = toss(self.name, shown, pair.first, pair.second)
        if noise < 0.05:
            return Judgement("error", first_shown=shown)
        lean = 0.1 if shown == "first" else -0.1
        gap = taste(pair.first) - taste(pair.second) + lean + 0.4 * (noise - 0.5)
        said = "tie" if abs(gap) < 0.02 else "first" if gap > 0 else "second"
        return Judgement(said, first_shown=shown, cost_usd=self.price * (1 + noise))

    def training_prompts(self):
        return frozenset()

    def notes(self):
        return {}


CHEAP, DEAR, LEN = Noisy("cheap", 6.0), Judge(), Noisy("plain", 4.0)
LEN.gives_probability = False


@pytest.fixture(scope="module")
def texts():
    source = random.Random(1)
    stories = [(f"story {place}", f"tale {place}") for place in range(150)]
    # Readers follow their taste in most pairs.
    return [
        pair if (taste(pair[0]) > taste(pair[1])) == (source.random() < 0.85) else pair[::-1]
        for pair in stories
    ]


@pytest.fixture
def pairs(pair_table, texts):
    return pairs_of(pair_table, texts)


def pairs_of(pair_table, texts, *, swapped=False):
    rows = []
    for place, (chosen, rejected) in enumerate(texts):
        sides = (rejected, chosen) if swapped else (chosen, rejected)
        rows.append({
            "chosen": sides[0], "rejected": sides[1], "prompt_id": f"p{place % 23}",
            "chosen_story_id": sides[0], "rejected_story_id": sides[1],
            "pair_id": f"pair{place}",
        })  # fmt: skip
    return pair_table(rows)


def judged(pairs, *raters):
    return pa.concat_tables([judge_pairs(rater, pairs) for rater in raters])


def only(found):
    (curve,) = found.curves
    return curve


def test_the_ends_are_the_cheap_and_the_expensive_rater_alone(pairs):
    verdicts = judged(pairs, CHEAP, DEAR)
    found = frontier(verdicts, pairs, ["cheap"], ["judge"])
    first, *_, last = only(found).points
    clusters = PairFacts.of(pairs).clusters
    cheap, dear = (jackknife_interval(s.credit, clusters) for s in pair_scores(verdicts, pairs))
    assert (first.asked, first.agreement, first.cost_usd) == (0, cheap, 0)
    assert (last.asked, last.agreement) == (1, dear)
    paid = np.nansum(verdicts["cost_usd"].to_numpy(zero_copy_only=False)) / pairs.num_rows
    assert last.cost_usd == pytest.approx(1_000 * paid)
    assert [point.agreement for point in found.raters] == [cheap, dear]
    assert math.isnan(found.raters[0].cost_usd)
    assert found.raters[1].cost_usd == pytest.approx(last.cost_usd)


@pytest.mark.parametrize(("cheap", "key"), [(CHEAP, "below"), (LEN, "margin")])
@pytest.mark.parametrize("fallback", [False, True])
def test_every_point_is_the_cascade_that_would_be_run(pairs, cheap, key, fallback):
    verdicts = judged(pairs, cheap, DEAR)
    curve = only(
        frontier(verdicts, pairs, [cheap.name], ["judge"], most_points=999, fallback=fallback)
    )
    assert curve.unit == {"below": "probability", "margin": "reward"}[key]
    for point in curve.points[2:-1:9]:
        # Between two of the certainties, whatever their last digits.
        unsure = Unsure(**{key: point.threshold - 1e-10})
        cascade = Cascade(cheap, DEAR, unsure, fallback=fallback)
        table = judge_pairs(cascade, pairs)
        (scores,) = pair_scores(table, pairs)
        assert cascade.asked / cascade.pairs == pytest.approx(point.asked)
        assert scores.credit.mean() == pytest.approx(point.agreement.mean)
        assert 1_000 * np.nansum(scores.cost_usd) / 150 == pytest.approx(point.cost_usd)
    ties = Cascade(cheap, DEAR, fallback=fallback)
    judge_pairs(ties, pairs)
    # The first question beyond the cheap rater alone: what it leaves undecided.
    assert ties.asked / ties.pairs == pytest.approx(curve.points[1].asked)
    assert ties.asked > 0


def test_who_asks_more_pays_more(pairs):
    points = only(frontier(judged(pairs, CHEAP, DEAR), pairs, ["cheap"], ["judge"])).points
    for name in ("threshold", "asked", "cost_usd"):
        values = [getattr(point, name) for point in points]
        assert values == sorted(values)
    assert len({point.asked for point in points}) == len(points)


def test_renaming_the_sides_gives_one_minus_the_agreement(pair_table, texts):
    one, other = (pairs_of(pair_table, texts, swapped=swapped) for swapped in (False, True))
    curves = [
        only(frontier(judged(of, CHEAP, DEAR), of, ["cheap"], ["judge"])) for of in (one, other)
    ]
    for point, renamed in zip(*(curve.points for curve in curves), strict=True):
        assert renamed.asked == point.asked
        assert renamed.cost_usd == pytest.approx(point.cost_usd)
        assert renamed.agreement.mean == pytest.approx(1 - point.agreement.mean)
        assert renamed.agreement.low == pytest.approx(1 - point.agreement.high)


def test_a_rater_of_verdicts_alone_is_asked_about_where_it_flips(pairs):
    verdicts = judged(pairs, DEAR, CHEAP)
    curve = only(frontier(verdicts, pairs, ["judge"], ["cheap"]))
    (scores, _) = pair_scores(verdicts, pairs)
    undecided = np.mean((scores.credit > 0) & (scores.credit < 1))
    assert curve.unit == "verdict"
    assert [point.asked for point in curve.points] == pytest.approx([0, undecided, 1])
    # What is asked has no price: there is only the share.
    assert all(math.isnan(point.cost_usd) for point in curve.points)


def test_a_cheap_rater_with_a_price_is_paid_on_all_pairs(pairs):
    other = Judge("other", price=0.02)
    found = frontier(judged(pairs, DEAR, other), pairs, ["judge"], ["other"])
    cheap, expensive = (rater.cost_usd for rater in found.raters)
    first, *_, last = only(found).points
    assert first.cost_usd == pytest.approx(cheap)
    assert last.cost_usd == pytest.approx(cheap + expensive)


def test_rewards_of_two_orders_are_averaged(pairs):
    dear, plain = judge_pairs(DEAR, pairs), judge_pairs(LEN, pairs)
    place = plain.column_names.index("order")
    both = [
        plain.set_column(place, "order", pa.array([side] * plain.num_rows, pa.large_string()))
        for side in ("chosen", "rejected")
    ]
    one, other = (
        only(frontier(pa.concat_tables([*of, dear]), pairs, ["plain"], ["judge"]))
        for of in ([plain], both)
    )
    assert one == other


def test_with_fallback_the_expensive_rater_everywhere_decides_more(pairs):
    verdicts = judged(pairs, Noisy("fine", 1.0), DEAR)
    cheap, dear = (score.credit for score in pair_scores(verdicts, pairs))
    falling, binding = (
        only(frontier(verdicts, pairs, ["fine"], ["judge"], fallback=fallback)).points[-1]
        for fallback in (True, False)
    )
    assert binding.agreement.mean == pytest.approx(dear.mean())
    expected = np.where(dear == 0.5, cheap, dear).mean()
    assert falling.agreement.mean == pytest.approx(expected)
    assert abs(expected - dear.mean()) > 0.002
    assert falling.cost_usd == binding.cost_usd


def test_points_are_thinned_evenly_and_keep_their_ends(pairs):
    verdicts = judged(pairs, CHEAP, DEAR)
    points = only(frontier(verdicts, pairs, ["cheap"], ["judge"], most_points=11)).points
    assert len(points) <= 11
    assert (points[0].asked, points[-1].asked) == (0, 1)
    assert np.diff([point.asked for point in points]).max() < 0.16
    full = only(frontier(verdicts, pairs, ["cheap"], ["judge"], most_points=10_000)).points
    assert set(points) <= set(full)
    two = only(frontier(verdicts, pairs, ["cheap"], ["judge"], most_points=2)).points
    assert [point.asked for point in two] == [0, 1]


def test_a_repeat_of_a_cross_validation_is_a_cascade_of_its_own(pairs):
    dear = judge_pairs(DEAR, pairs)
    models = [Noisy("model", noise) for noise in (1.0, 9.0)]
    repeats = []
    for repeat, model in enumerate(models):
        table = judge_pairs(model, pairs)
        folds = [f"{repeat}/{place % 3}" for place in range(table.num_rows)]
        column = table.column_names.index("fold")
        repeats.append(table.set_column(column, "fold", pa.array(folds, pa.large_string())))
    both = only(frontier(pa.concat_tables([*repeats, dear]), pairs, ["model"], ["judge"],
                         most_points=10_000))  # fmt: skip
    single = [
        only(frontier(pa.concat_tables([of, dear]), pairs, ["model"], ["judge"],
                      most_points=10_000)).points
        for of in repeats
    ]  # fmt: skip
    for point in both.points[:: len(both.points) // 12]:
        # Of each repeat the cascade that asks the same at this threshold.
        alike = [
            max((one for one in points if one.threshold <= point.threshold),
                key=lambda one: one.asked)
            for points in single
        ]  # fmt: skip
        if all(one.threshold == point.threshold for one in alike):
            assert point.asked == pytest.approx(np.mean([one.asked for one in alike]))
            means = [one.agreement.mean for one in alike]
            assert point.agreement.mean == pytest.approx(np.mean(means))
    for end in (0, -1):
        means = [points[end].agreement.mean for points in single]
        assert both.points[end].agreement.mean == pytest.approx(np.mean(means))
    # The expensive rater's repeats are one price, not two.
    twice = pa.concat_tables([judge_pairs(DEAR, pairs, fold=f"{place}/0") for place in (0, 1)])
    cheap = judge_pairs(CHEAP, pairs)
    one, two = (
        only(frontier(pa.concat_tables([cheap, of]), pairs, ["cheap"], ["judge"])).points[-1]
        for of in (dear, twice)
    )
    assert two.cost_usd == pytest.approx(one.cost_usd)
    assert two.agreement == one.agreement


def test_a_budget_gives_the_threshold_that_asks_most_within_it(pairs):
    priced = only(frontier(judged(pairs, CHEAP, DEAR), pairs, ["cheap"], ["judge"]))
    for budget in ({"asked": 0.3}, {"cost_usd": 2.0}):
        ((name, most),) = budget.items()
        point = choose_threshold(priced, **budget)
        following = priced.points[priced.points.index(point) + 1]
        assert getattr(point, name) <= most < getattr(following, name)
    assert choose_threshold(priced, asked=1) == priced.points[-1]
    assert choose_threshold(priced, cost_usd=0) == priced.points[0]
    with pytest.raises(ConfigError, match="cheap alone costs 0 dollars"):
        choose_threshold(priced, cost_usd=-1)
    with pytest.raises(ConfigError, match="give one of them"):
        choose_threshold(priced)
    free = only(frontier(judged(pairs, DEAR, CHEAP), pairs, ["judge"], ["cheap"]))
    with pytest.raises(ConfigError, match="price of cheap is not known"):
        choose_threshold(free, cost_usd=1)


def test_names_that_do_not_fit_are_refused(pairs):
    verdicts = judged(pairs, CHEAP, DEAR)
    for cheap, expensive, message in (
        (["chea"], ["judge"], "cheap: 'chea' has no verdicts: did you mean 'cheap'"),
        (["cheap"], [], "expensive is empty"),
        (["cheap", "judge"], ["judge"], "judge is cheap and expensive"),
    ):
        with pytest.raises(ConfigError, match=message):
            frontier(verdicts, pairs, cheap, expensive)
    with pytest.raises(ConfigError, match="most_points is 1"):
        frontier(verdicts, pairs, ["cheap"], ["judge"], most_points=1)
    with pytest.raises(DataError, match="no verdict on 1 of 150 pairs"):
        frontier(verdicts.slice(1), pairs, ["cheap"], ["judge"])


def test_the_csv_has_every_point_and_the_text_every_tenth(pairs, tmp_path):
    found = frontier(judged(pairs, CHEAP, LEN, DEAR), pairs, ["cheap", "plain"], ["judge"])
    write_frontier_csv(found, tmp_path / "f.csv")
    with (tmp_path / "f.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(curve.points) for curve in found.curves)
    assert (rows[0]["threshold"], rows[0]["asked"], rows[-1]["threshold"]) == ("", "0.0", "")
    text = frontier_text(found)
    assert "cheap, then judge" in text
    assert "plain, then judge" in text
    shares = [point.asked for point in at_shares(found.curves[0], [0, 0.01, 0.5, 1])]
    assert shares[0] == 0
    assert shares[-1] == 1
    assert shares == sorted(set(shares))


def test_a_name_runs_in_no_spreadsheet_and_moves_no_cursor(pairs, tmp_path):
    sheet, cursor = "=HYPERLINK(1)", "\x1b[31mred\u202e"
    verdicts = judged(pairs, Noisy(sheet, 6.0), Judge(cursor))
    found = frontier(verdicts, pairs, [sheet], [cursor])
    write_frontier_csv(found, tmp_path / "f.csv")
    with (tmp_path / "f.csv").open(encoding="utf-8", newline="") as file:
        assert {row["cheap"] for row in csv.DictReader(file)} == {f"'{sheet}"}
    page = render_frontier(
        title="t", found=found, panels=draw_frontier(found, []), pairs=pairs,
        trained_on={cursor: 1}, manifests={},
    )  # fmt: skip
    for shown in (frontier_text(found), page):
        assert "[31mred" in shown
        assert not {"\x1b", "\u202e"} & set(shown)


def test_the_page_escapes_names_and_tells_who_was_trained_on_these_prompts(pairs):
    table = judged(pairs, CHEAP, DEAR, Noisy("<b>bold</b>", 2.0), Jury({"a": CHEAP, "b": LEN}))
    found = frontier(table, pairs, ["<b>bold</b>", "cheap"], ["judge"])
    panels = draw_frontier(found, ["jury"])
    assert list(panels) == ["dollars", "asked"]
    page = render_frontier(
        title="<i>page", found=found, panels=panels, pairs=pairs,
        trained_on={"cheap": 3, "judge": 0}, manifests={"evaluation": "{</pre>}"},
    )  # fmt: skip
    assert "<b>bold" not in page
    assert "<i>page" not in page
    assert "{</pre>}" not in page
    assert "mean nothing: cheap." in page
    assert "&lt;b&gt;bold&lt;/b&gt;, then judge" in page
    # The legend names its lines in the order in which they are drawn.
    svg = panels["dollars"].drawing.svg
    assert svg.index(">cheap, then judge<") < svg.index(">cheap<")
    # A jury without a price stands at 0 dollars, and as a line where the axis has no place for it.
    assert panels["dollars"].drawing.svg.count(">jury<") == 1
    assert panels["asked"].drawing.svg.count(">jury<") == 1
    # The ends of the curves are on them.
    assert ">cheap<" not in panels["asked"].drawing.svg
    assert "its ties and failures too" in page
    assert "jury" not in "".join(panel.drawing.svg for panel in draw_frontier(found, []).values())


# The program ----------------------------------------------------------------------------------


@pytest.fixture
def evaluation(load_program, pair_table, texts, tmp_path):
    """The folder of an evaluation by raters that need no training."""
    benchmark = load_program("eval/benchmark.py")
    write_table(pairs_of(pair_table, texts), tmp_path / "pairs.parquet")
    raters = {name: {"kind": name} for name in ("longer", "random", "talk")}
    benchmark.main(
        benchmark.Config(pairs=tmp_path / "pairs.parquet", out=tmp_path / "ran", raters=raters)
    )
    return tmp_path / "ran"


def test_the_program_writes_figures_plots_and_page_once(load_program, evaluation, tmp_path, capsys):
    program = load_program("eval/frontier.py")
    out = tmp_path / "out"
    config = program.Config(
        evaluation=evaluation, out=out, cheap=["longer", "talk"], expensive=["random"]
    )
    program.main(config)
    first = capsys.readouterr().out
    assert "longer, then random" in first
    names = {path.name for path in out.iterdir()}
    assert names == {
        "frontier.json", "frontier.csv", "frontier.txt", "frontier.html", "frontier_asked.svg",
        "frontier_asked.png",
        "manifest.json",
    }  # fmt: skip
    found = json.loads((out / "frontier.json").read_text(encoding="utf-8"))
    assert [(curve["cheap"], curve["expensive"]) for curve in found["curves"]] == [
        ("longer", "random"), ("talk", "random")
    ]  # fmt: skip
    assert found["curves"][0]["points"][0]["threshold"] is None
    assert found["curves"][0]["points"][0]["cost_usd"] is None
    page = (out / "frontier.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "dollars" not in page.split('id="manifest"')[0]
    assert "var(--" not in (out / "frontier_asked.svg").read_text(encoding="utf-8")
    program.main(config)
    again = capsys.readouterr().out
    assert again == f"unchanged: {out}\n{first}"


def test_the_program_refuses_changed_pairs_other_folders_and_unknown_names(
    load_program, evaluation, tmp_path, pair_table
):
    program = load_program("eval/frontier.py")

    def run(**more):
        keys = {"evaluation": evaluation, "cheap": ["longer"], "expensive": ["random"]}
        program.main(program.Config(out=tmp_path / "out", **keys | more))

    with pytest.raises(ConfigError, match="beside: 'jury' has no verdicts: longer, random, talk"):
        run(beside=["jury"])
    other = tmp_path / "other"
    other.mkdir()
    (other / "manifest.json").write_text('{"inputs": {}}', encoding="utf-8")
    with pytest.raises(DataError, match="its manifest is of no evaluation"):
        run(evaluation=other)
    write_table(pair_table([{}]), tmp_path / "pairs.parquet")
    with pytest.raises(DataError, match="has changed since"):
        run()
    assert not (tmp_path / "out").exists()
