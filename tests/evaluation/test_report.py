"""The page is self-contained, escapes what it shows, and shows what was measured."""

import re

import numpy as np
import pyarrow as pa
import pytest
from pages import ATTACK, Page

from litbench.data.sources.evaluation_pairs import EvaluationPairs
from litbench.evaluation.report import page as report
from litbench.evaluation.report.page import learnt_text, reader_notes, render_report
from litbench.evaluation.results import Evaluation
from litbench.metrics.coefficients import coefficient_interval
from litbench.metrics.intervals import Interval
from litbench.metrics.leaderboard import leaderboard
from litbench.models.baselines import LengthRater, RandomRater
from litbench.raters.interface import ScoreRater, judge_pairs


class CommaRater(ScoreRater):
    """Gives probabilities, so that calibration and examples are drawn."""

    name = "commas & <b>co</b>"
    kind = "features"
    gives_probability = True

    def score(self, prompts, stories):
        del prompts
        return np.array([story.count(",") - len(story) / 1_000 for story in stories])


MORE = {}
RATERS = (CommaRater(), LengthRater("longer", "longer", 1), RandomRater())


@pytest.fixture
def render(pair_table, tmp_path):
    def build(
        story="One, two, three.",
        judges=None,
        raters=None,
        records=None,
        more=MORE,
        **changes,
    ):
        rows = [
            {
                "prompt_id": f"p{index % 9}",
                "chosen": f"{story} {'well, ' * (index % 5)} number {index}",
                "rejected": f"dull words of number {index} " * (1 + index % 4),
                "chosen_score": 20 + index,
                "rejected_score": 10,
                "chosen_created_utc": 1_600_000_000 + index,
                "rejected_created_utc": 1_500_000_000 + index,
                **changes,
            }
            for index in range(60)
        ]
        pairs = pair_table(rows)
        verdicts = pa.concat_tables([judge_pairs(rater, pairs) for rater in raters or RATERS])
        if judges is not None:
            ids = [row["pair_id"] for row in judges.to_pylist()]
            names = dict(zip(dict.fromkeys(ids), pairs["pair_id"].to_pylist(), strict=True))
            column = pa.array([names[name] for name in ids], pa.large_string())
            verdicts = pa.concat_tables([verdicts, judges.set_column(0, "pair_id", column)])
        manifest = {
            "counts": {"raters": records or {}},
            "config": {"reference": "longer"},
            "note": ATTACK,
        }
        evaluation = Evaluation(tmp_path, manifest, tmp_path / "pairs.parquet", None)
        evaluation.verdicts, evaluation.pairs = verdicts, EvaluationPairs(pairs, pairs)
        evaluation.rows = leaderboard(verdicts, pairs, "longer", before_symmetry=pairs)
        evaluation.annotators = lambda: None
        evaluation.manifest_of_pairs = lambda: None
        return render_report(evaluation, "A title", tmp_path / "page" / "report.html", **more)

    return build


def test_the_page_runs_nothing_and_asks_for_nothing(render):
    Page(render()).check_inert()
    assert not re.search(r"url\((?!#)|@import", render())


def test_page_escapes_texts_and_names(render):
    source = render(story=ATTACK, prompt=f"[WP] {ATTACK}")
    page = Page(source)
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert page.text.count(ATTACK) >= 4, "story, prompt and manifest show the text itself"
    assert "commas & <b>co</b>" in page.text
    assert "{{ 7 * 7 }}" in page.text, "a story is no template"


def test_headline_matches_leaderboard(render):
    page = Page(render())
    # Every chosen story here has more commas, so the comma rater is always right.
    assert "1.000" in page.text
    assert re.search(r"agrees with the labels on 100\.0% of the pairs", page.text)
    assert "60 pairs from 9 prompts" in page.text
    assert "Few prompts: 9 (9 effective)" in page.text
    assert re.search(r"Written \d\d \w+ \d{4}, \d\d:\d\d UTC\.", page.text)
    assert "Every difference from longer is significant." in page.text


def test_planted_labels_are_said_to_be_no_people(render):
    assert "does not describe real readers" in Page(render(label_source="planted")).text
    assert "does not describe real readers" not in Page(render(label_source="votes")).text


def test_pairs_without_votes_make_a_page(render):
    page = Page(render(chosen_score=None, rejected_score=None))
    assert "words" in page.text
    assert "scores" not in page.text


def test_a_baseline_is_no_headline(render):
    text = Page(render(raters=[LengthRater("longer", "longer", 1), RandomRater()])).text
    assert "Only baselines that do not read the stories were judged." in text
    assert "agrees with the labels on" not in text


def test_one_range_of_length_is_no_plot_and_said(render):
    text = Page(render(chosen_n_words=130, rejected_n_words=100)).text
    assert "only one range of differences has at least 10 pairs" in text
    assert "Agreement by length gap" not in text


def test_comparisons_and_misses(render):
    page = render()
    text = Page(page).text
    assert text.count("Holm's correction") == 1, "one family of comparisons"
    assert "the page tests only those from “longer” above" in text
    # The comma rater is right on all pairs, so that it beats both others.
    table = page[page.index('id="against"') : page.index('id="agreement"')]
    assert len(re.findall(r"<td>\+0\.\d{3}<small>\[\+", table)) >= 2
    assert re.search(r"<td>±0\.\d{3}</td>", page), "what these pairs could have shown"
    assert "commas & <b>co</b>: 0 of 60 pairs" in text


def test_misses_of_a_judge(render, verdict_table):
    page = render(judges=judge_verdicts(verdict_table))
    misses = Page(page[page.index('id="misses"') :]).text
    # 29 pairs flip and count 1/2; one has an order that was cut off and another that is wrong.
    assert re.search(r"alert\(1\)>\{\{ 7 \* 7 \}\}: \d+ of 60 pairs, \d+ only this rater", misses)


def test_long_stories_are_cut_with_a_mark(render):
    text = Page(render(story="long " * 4_000)).text
    assert re.search(r"\[…\d,\d{3} more letters\]", text)


def test_pictures_follow_the_theme(render):
    first, second = render(), render()
    assert "#010101" not in first
    assert "var(--series-1)" in first
    assert "Raters that read both stories together" not in first, "there is no judge"
    drawn = re.findall(r"<svg.*?</svg>", first, re.DOTALL)
    assert drawn
    assert drawn == re.findall(r"<svg.*?</svg>", second, re.DOTALL)


def judge_verdicts(verdict_table):
    """A judge that explains, costs, leans to the story shown first and is cut off once."""
    base = {"rater": f"judge {ATTACK}", "kind": "judge", "input_tokens": 1_850, "seconds": 1.5}
    rows = [
        {
            **base,
            "pair_id": str(index),
            "order": order,
            "output_tokens": 25,
            "cost_usd": 0.002,
            "outcome": "chosen" if index < 30 else order,
            "explanation": f"{ATTACK} more life",
        }
        for index in range(60)
        for order in ("chosen", "rejected")
    ]
    rows[-1] |= {"outcome": "cut", "explanation": None}
    return verdict_table(rows)


def test_judges_have_a_table_of_their_own(render, verdict_table):
    page = Page(render(judges=judge_verdicts(verdict_table)))
    assert "script" not in page.tags
    judges = page.text[page.text.index("Raters that read both stories together") :]
    judges = judges[: judges.index("Where raters agree with the labels")]
    assert ATTACK in judges
    assert "commas & <b>co</b>" not in judges, "a rater that was not asked is no judge"
    # 30 of 60 pairs are named alike and right; 29 flip and one was cut off in an order.
    for shown in ("50.0 %", "0.492[", "1.000[", "222,000", "3,000", "0.24", "4.00", "180"):
        assert shown in judges, shown
    assert "cut" in judges
    assert "unparsed" not in judges


def test_recorded_judge_and_hidden_characters(render, verdict_table):
    rows = judge_verdicts(verdict_table).to_pylist()
    for row in rows:
        row |= {"rater": "a\u202eb\x07", "seconds": None}
    page = render(judges=verdict_table(rows))
    assert "ab" in Page(page).text
    assert not {"\u202e", "\x07"} & set(page)
    assert "nan" not in Page(page).text


def coefficients_of(values, seeds):
    return [
        {"notes": {"coefficients": {"log_words": value, "commas": 0.1}}, "seed": seed}
        for value, seed in zip(values, seeds, strict=True)
    ]


def test_coefficients_have_intervals_over_folds(render):
    models = coefficients_of([0.2, 0.4, 0.6, 0.3, 0.5, 0.4], [0, 0, 0, 1, 1, 1])
    result = coefficient_interval(models, "log_words")
    # Grouped jackknife: (K - 1) / K times the sum of squares in each repeat, then the mean.
    variance = (2 / 3 * 0.08 + 2 / 3 * 0.02) / 2
    reach = 2.7764451 * variance**0.5  # 97.5 % of Student's t with 4 degrees of freedom
    assert result.mean == pytest.approx(0.4)
    assert (result.low, result.high) == (pytest.approx(0.4 - reach), pytest.approx(0.4 + reach))
    assert np.isnan(coefficient_interval(models[:1], "log_words").low)
    text = Page(render(records={"features": models})).text
    assert "What features has learnt" in text
    assert "The 2 counts are on the surface of a story" in text
    # The interval of log_words includes 0.
    assert "the chosen story tends to be higher in commas." in text
    assert "none depends on meaning" in text
    assert "grouped jackknife" in text


def test_a_kind_is_not_said_twice(render):
    rater = CommaRater()
    rater.name = "features"
    page = render(raters=[rater, LengthRater("longer", "longer", 1)])
    assert "<td>features</td>" in page
    assert "<td>longer</td>" in page


def test_notes_to_readers_that_carry_the_result_are_warned_of(render, monkeypatch):
    warning = "alone agree with the labels in 0.680 [0.610, 0.740] of the pairs"
    for notes, is_warned in (
        (Interval(0.68, 0.61, 0.74, 60, 9, 9.0), True),
        (Interval(0.5, 0.42, 0.58, 60, 9, 9.0), False),
        (None, False),
    ):
        monkeypatch.setattr(report, "reader_notes", lambda _, notes=notes: notes)
        assert (warning in Page(render()).text) is is_warned


def test_reader_notes_are_found_in_the_pairs(pair_table):
    thanks = " Edit: thank you for the gold, kind stranger!"
    rows = [{"chosen": f"The river rose.\n\n{thanks.strip()}", "rejected": "The river fell."}] * 9
    pairs = pair_table([{**row, "prompt_id": f"p{index}"} for index, row in enumerate(rows)])
    assert reader_notes(pairs).mean == 1
    assert reader_notes(pair_table([{"chosen": "", "rejected": "The river fell."}])) is None


def test_the_learning_curve_and_the_next_command_are_shown(render):
    curve = {share: Interval(0.5 + share / 10, 0.4, 0.7, 60, 9, 9.0) for share in (0.25, 0.5, 1)}
    command = "litbench score --model runs/mine/model --input stories.jsonl --out scored.jsonl"
    page = render(more={"learning": {"features": curve}, "next_command": command})
    assert "Learning curve" in page
    assert "training prompts used, %" in page
    assert command in page
    assert "Learning curve" not in render()


@pytest.mark.parametrize(
    ("coefficients", "text"),
    [
        (
            [("words", 0.4, 0.1, 0.7), ("commas", -0.2, -0.3, -0.1)],
            "higher in words; lower in commas.",
        ),
        ([("words", 0.4, -0.1, 0.9)], "No coefficient differs clearly from 0."),
        # A single model has no intervals.
        ([("words", 0.4, np.nan, np.nan)], "higher in words."),
    ],
)
def test_what_features_has_learnt_is_said_in_words(coefficients, text):
    rows = [(name, Interval(*ends, 60, 9, 9.0)) for name, *ends in coefficients]
    assert learnt_text(rows).endswith(text)


def test_a_miss_of_a_judge_has_its_question_and_reasons(render, verdict_table):
    rows = [row | {"outcome": "rejected"} for row in judge_verdicts(verdict_table).to_pylist()]
    judges, name = verdict_table(rows), rows[0]["rater"]
    records = {name: [{"notes": {"question": f"Which story is better? {ATTACK}"}}]}
    page = render(judges=judges, records=records)
    misses = Page(page[page.index('id="misses"') :])
    assert f"Which story is better? {ATTACK}" in misses.text
    assert f"{ATTACK} more life" in misses.text
    assert "reasons · rejected story first: rejected" in misses.text
    assert "script" not in misses.tags


def test_the_headline_picture_has_every_judged_rater_above_the_table(render):
    page = render()
    start, table = page.index('id="headline"'), page.index('id="leaderboard"')
    picture = page[start:table]
    assert start < table
    assert all(f">{name}</text>" in picture for name in ("longer", "random"))
    # The axis begins near the data.
    assert ">0.0</text>" not in picture
