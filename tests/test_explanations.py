"""What explanations say: features of the text, differences in agreement, page and program."""

import csv
import json
import math
import random
import re
import time
from collections import Counter
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from litbench.errors import ConfigError, DataError
from litbench.metrics.comparisons import benjamini_hochberg, difference_interval, holm
from litbench.metrics.csv_table import write_csv
from litbench.metrics.explanation_text import (
    FEATURE_NAMES,
    FEATURES,
    LONGEST,
    SHORTEST,
    WORDS,
    Explained,
    bare,
    excerpt,
)
from litbench.metrics.explanations import (
    ALL,
    explanation_rows,
    explanation_study,
    explanations_json,
    explanations_text,
    read_explanations,
    stratified_difference,
)
from litbench.metrics.leaderboard import plain
from litbench.report.explanations_page import draw_effects, examples_of, render_explanations
from litbench.report.figures import standalone
from litbench.tables import write_table

PLOT = FEATURE_NAMES.index("plot")
ATTACK = '<script>alert(1)</script><img src=x onerror="x"> The plot {{ 7 * 7 }} & more'


def features_of(text, winner=None, sources=()):
    about = Explained(text, winner, lambda: map(bare, sources))
    return {one.name for one in FEATURES if one.holds is not None and one.holds(about)}


# Features of a text --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plot", "A tight STORYLINE."),
        ("plot", "Its __plot__ holds"),
        ("plot", "a **plot**-driven piece"),
        ("plot", "ｐｌｏｔ"),
        ("plot", "the p\u00adlot"),
        ("character", "The protagonist’s motivations"),
        ("imagery", "vividly told"),
        ("style", "a distinct voice"),
        ("structure", "uneven pacing"),
        ("emotion", "heart-wrenching"),
        ("emotion", "heartwrenching"),
        ("suspense", "an eerie mood"),
        ("dialogue", "the dialogue sings"),
        ("originality", "a tired cliché"),
        ("originality", "full of cliches"),
        ("setting", "rich world-building"),
        ("setting", "rich world building and worldbuilding"),
        ("theme", "its themes"),
        ("humour", "a wittier take"),
        ("ending", "the final line lands"),
        ("technical", "run-on sentences"),
        ("prompt", "it answers the prompt"),
        ("reader", "readers would upvote it"),
        ("engagement", "a gripping tale"),
        ("story_length", "it is too long"),
        ("hedging", "it seems so"),
        ("certainty", "clearly so"),
        ("comparison", "darker than the other"),
        ("reservation", "good, but slow"),
        ("example", "e.g. the first scene"),
        ("first_person", "I’d take it"),
        ("marks", "I give it 7/10"),
        ("marks", "4 out of 5"),
        ("list", "Strengths:\n- one\n- two"),
        ("list", "1. one\n2) two"),
        ("names_both", "Story A is dull. Story B is not."),
        ("names_both", "**Story B** and story A"),
        ("names_both", "The first story drags, the latter does not."),
        ("names_both", "Both stories answer it."),
        ("names_both", "Response 1 is dull and Response [2] is not"),
        ("names_both", "A is dull, B has wit"),
        ("second_named_first", "Story B is better than Story A."),
    ],
)
def test_a_feature_is_found(name, text):
    assert name in features_of(text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plot", "an exploitative, complot-free text"),
        ("plot", "a character arc"),
        ("character", "a characteristic of his"),
        ("comparison", "blue rather than red"),
        ("ending", "In conclusion, it wins"),
        ("story_length", "he is no longer there"),
        ("structure", "an organic whole"),
        ("names_both", "It is a story a child would tell, and a story B. would not"),
        ("names_both", "A reader likes Story A."),
        ("second_named_first", "Story A is better than Story B."),
        ("second_named_first", "It is good."),
        ("list", "one - two\n- three"),
        ("marks", "24/7 and 1/2"),
        ("hedging", ""),
    ],
)
def test_a_feature_is_not_found(name, text):
    assert name not in features_of(text)


def test_what_is_passed_over_does_not_hide_what_follows():
    assert WORDS["plot"].find("a character arc and a story arc") == "arc"
    assert WORDS["story_length"].find("no longer, and longer") == "longer"


def test_who_is_criticised_goes_by_the_verdict():
    text = "Story A has weak dialogue. Story B is vivid and strong. Both stories lack an end."
    assert {"criticises_winner"} == features_of(text, "first") & {
        "criticises_winner", "criticises_loser"
    }  # fmt: skip
    assert {"criticises_loser", "winner_named_first"} <= features_of(
        "Story B is strong. Story A is weak.", "second"
    )
    assert "praises_loser" in features_of(text, "first")
    assert "praises_loser" not in features_of(text, "second")
    assert not features_of(text, None) & {
        "criticises_winner", "criticises_loser", "praises_loser", "winner_named_first"
    }  # fmt: skip


def test_quotations_are_looked_up_in_the_stories():
    story = "she carried  the “copper lantern”, slowly, over the river"
    assert features_of('It says "carried the copper lantern".', None, [story]) >= {"quotes"}
    assert "misquotes" not in features_of("“Carried the copper … over the river”", None, [story])
    made_up = features_of(
        'It says "carried a golden lantern" and "she carried the".', None, [story]
    )
    assert {"quotes", "misquotes"} <= made_up
    assert not features_of('a "golden lantern"', None, [story]) & {"quotes", "misquotes"}


def test_stories_are_not_read_where_nothing_is_quoted():
    def sources():
        raise AssertionError("read")

    about = Explained("Nothing is quoted here.", "first", sources)
    assert not [one for one in FEATURES if one.name == "quotes" and one.holds(about)]


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        '"',
        "Story ",
        "run-",
        " \n",
        "1 out of",
        "- ",
        "Story A is weak. ",
        '"a b c" ',
        "\u200d",
    ],
)
def test_time_grows_with_the_text_and_no_faster(unit):
    start = time.process_time()
    features_of(unit * (100_000 // len(unit)), "first", ["the river and the gate"] * 3)
    # Linear: about 0.2 s. Quadratic: minutes.
    assert time.process_time() - start < 5


@given(st.text(max_size=200))
def test_any_text_has_some_set_of_features(text):
    assert features_of(text, "first", [text]) <= set(FEATURE_NAMES)


def test_features_have_names_of_their_own_and_rules():
    assert len(set(FEATURE_NAMES)) == len(FEATURES) >= 30
    assert all(one.about for one in FEATURES)
    assert {one.name for one in FEATURES if one.holds is None} == {SHORTEST, LONGEST}


def test_an_excerpt_begins_at_the_sentence_with_the_feature():
    text = "It is good. Then\nthe plot turns. And more " + "words " * 200
    shown = excerpt("plot", text, letters=60)
    assert shown.startswith("… the plot turns.")
    assert shown.endswith("…")
    assert len(shown) < 66
    assert excerpt("list", "It is good.") == "It is good."


# Verdicts ------------------------------------------------------------------------------------


@pytest.fixture
def judged(pair_table, verdict_table):
    """Verdicts of raters on 60 pairs of 20 prompts, both orders; talk of plot by a function."""

    def build(talks, outcome, raters=("one",), pairs=60, prompts=20):
        table = pair_table([{"prompt_id": f"p{place % prompts}"} for place in range(pairs)])
        rows = []
        for rater in raters:
            for place, pair_id in enumerate(table["pair_id"].to_pylist()):
                for order in ("chosen", "rejected"):
                    said = "The plot moves." if talks(rater, place, order) else "It moves."
                    rows.append(
                        {
                            "pair_id": pair_id, "rater": rater, "order": order,
                            "outcome": outcome(rater, place, order), "explanation": said,
                        }
                    )  # fmt: skip
        return verdict_table(rows), table

    return build


def at(study, level, feature, of=ALL):
    return study.at(level)[of][FEATURE_NAMES.index(feature)]


def test_a_planted_difference_is_found_and_stands_alone(judged):
    source = random.Random(1)
    talk = {place: source.random() < 0.5 for place in range(400)}
    right = {
        (place, order): source.random() < (0.85 if talk[place] else 0.55)
        for place in range(400)
        for order in ("chosen", "rejected")
    }
    verdicts, pairs = judged(
        lambda _, place, __: talk[place],
        lambda _, place, order: "chosen" if right[place, order] else "rejected",
        pairs=400,
        prompts=100,
    )
    study = explanation_study(read_explanations([(verdicts, pairs)]))
    plot = at(study, "all", "plot")
    assert plot.difference.low < 0.3 < plot.difference.high
    assert plot.is_clear
    assert plot.present == 2 * sum(talk.values())
    assert plot.agreement_present.mean - plot.agreement_absent.mean == pytest.approx(
        plot.difference.mean
    )
    # One rater is all raters.
    assert at(study, "rater", "plot", "one").difference == plot.difference
    assert next(one.feature for one in study.at("all")[ALL] if one.is_clear) == "plot"


def test_renaming_sides_keeps_what_is_said_and_turns_agreement_round(judged, rename_sides):
    other = {"chosen": "rejected", "rejected": "chosen", "tie": "tie"}
    verdicts, pairs = judged(
        lambda _, place, order: (place + (order == "chosen")) % 3 == 0,
        lambda _, place, order: ("chosen", "tie", "rejected", "chosen")[
            (place + 2 * (order == "chosen")) % 4
        ],
    )
    rows = verdicts.to_pylist()
    for place, row in enumerate(rows):
        row["explanation"] += (" Story A is weak.", " Story B is strong, Story A less.", "")[
            place % 3
        ]
    table = pa.Table.from_pylist(rows, schema=verdicts.schema)
    turned = pa.Table.from_pylist(
        [{**row, "order": other[row["order"]], "outcome": other[row["outcome"]]} for row in rows],
        schema=verdicts.schema,
    )
    found = read_explanations([(table, pairs)])
    renamed = read_explanations([(turned, rename_sides(pairs))])
    assert (found.present == renamed.present).all()
    assert found.present[:, FEATURE_NAMES.index("criticises_winner")].any()
    assert np.allclose(found.credit, 1 - renamed.credit)
    before, after = explanation_study(found), explanation_study(renamed)
    for one, two in zip(before.differences, after.differences, strict=True):
        assert (one.present, one.reason) == (two.present, two.reason)
        if one.difference is not None:
            assert one.difference.mean == pytest.approx(-two.difference.mean)
            assert one.difference.low == pytest.approx(-two.difference.high)


def test_a_better_rater_that_talks_of_plot_makes_no_difference(judged):
    source = random.Random(2)
    talk = Counter()
    right = Counter()
    for rater, talks, agrees in (("good", 0.8, 0.9), ("poor", 0.2, 0.5)):
        for place in range(200):
            for order in ("chosen", "rejected"):
                talk[rater, place, order] = source.random() < talks
                right[rater, place, order] = source.random() < agrees
    verdicts, pairs = judged(
        lambda *key: talk[key],
        lambda *key: "chosen" if right[key] else "rejected",
        raters=("good", "poor"),
        pairs=200,
        prompts=50,
    )
    found = read_explanations([(verdicts, pairs)])
    study = explanation_study(found)
    plot = at(study, "all", "plot")
    assert plot.agreement_present.mean - plot.agreement_absent.mean > 0.15, "the raters differ"
    assert plot.difference.low < 0 < plot.difference.high, "no rater does better when it talks so"
    family = explanation_study(found, {"good": "f", "poor": "f"})
    assert at(family, "family", "plot", "f").difference == plot.difference
    assert not study.at("family")


def test_like_length_takes_out_what_length_does():
    source = np.random.default_rng(0)
    third = source.integers(0, 3, 3_000)
    present = source.random(3_000) < np.array([0.1, 0.5, 0.9])[third]
    credit = (source.random(3_000) < np.array([0.4, 0.6, 0.8])[third]).astype(float)
    clusters = np.arange(3_000) % 300
    plainly, _ = difference_interval(
        stratified_difference(credit, present, np.zeros(3_000), clusters)
    )
    alike, _ = difference_interval(stratified_difference(credit, present, third, clusters))
    assert plainly.low > 0.1
    assert alike.low < 0 < alike.high


def test_the_difference_by_hand():
    # With the feature: 1, 1 of prompt a, 1 of b, 0 of c. Without: 0 of a, 1 of b, 0, 1, 1 of c.
    credit = np.array([1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0])
    present = np.array([True] * 4 + [False] * 5)
    clusters = np.array(list("aabcabccc"))
    estimate = stratified_difference(credit, present, np.zeros(9), clusters)
    assert estimate.mean == pytest.approx(3 / 4 - 3 / 5)
    without = [1 / 2 - 3 / 4, 2 / 3 - 2 / 4, 1.0 - 1 / 2]
    squares = sum((value - 0.15) ** 2 for value in without)
    assert estimate.error == pytest.approx(math.sqrt(2 / 3 * squares))
    assert (estimate.n, estimate.clusters) == (9, 3)
    # 2, 1, 1 verdicts with it are worth 16 / 6 prompts; 1, 1, 3 without it 25 / 11, which is less.
    assert estimate.effective_clusters == pytest.approx(25 / 11)


def test_strata_are_weighed_by_their_rarer_side():
    credit = np.array([1.0, 0, 0, 0, 1, 1, 1, 0, 0, 0])
    present = np.array([True, False, False, False, True, True, True, False, False, False])
    strata = np.array([0] * 4 + [1] * 6)
    estimate = stratified_difference(credit, present, strata, np.arange(10))
    assert estimate.mean == pytest.approx(1.0)
    credit[0] = 0.0
    # 0 in the first stratum (weight 1 * 3 / 4), 1 in the second (3 * 3 / 6).
    estimate = stratified_difference(credit, present, strata, np.arange(10))
    assert estimate.mean == pytest.approx(1.5 / (0.75 + 1.5))
    # A stratum in which it is always there has no say.
    more = stratified_difference(
        np.append(credit, [1.0] * 5), np.append(present, [True] * 5), np.append(strata, [2] * 5),
        np.append(np.arange(10), np.arange(5)),
    )  # fmt: skip
    assert (more.mean, more.n) == (estimate.mean, 10)


@pytest.mark.parametrize("rate", [0.5, 0.12])
def test_shuffled_labels_leave_zero_inside_the_interval(rate):
    source = np.random.default_rng(3)
    covered = 0
    for _ in range(400):
        sizes = 1 + source.poisson(6, 40)
        clusters = np.repeat(np.arange(40), sizes)
        lean = source.beta(3, 2, 40)[clusters]
        credit = (source.random(len(clusters)) < lean).astype(float)
        present = source.random(len(clusters)) < rate * source.beta(4, 4, 40)[clusters] * 2
        interval, p = difference_interval(
            stratified_difference(credit, present, np.zeros(len(clusters)), clusters)
        )
        covered += interval.low <= 0 <= interval.high
        assert (p < 0.05) == (not interval.low <= 0 <= interval.high)
    # Three standard errors of a share of 0.95 among 400 are 0.033.
    assert 0.917 <= covered / 400 <= 0.983


def test_a_rare_feature_that_happens_to_be_always_right_is_not_sure():
    source = np.random.default_rng(7)
    covered = counted = 0
    for _ in range(300):
        present = source.random(200) < 0.05
        credit = (source.random(200) < np.where(present, 0.9, 0.5)).astype(float)
        if present.sum() >= 5:
            estimate = stratified_difference(credit, present, np.zeros(200), np.arange(200) % 20)
            interval, _ = difference_interval(estimate)
            counted += 1
            covered += interval.low <= 0.4 <= interval.high
    assert counted > 200
    assert covered / counted >= 0.93


def test_copies_of_a_rater_do_not_make_the_interval_narrower(judged):
    """Raters judge the same prompts: ten that say the same are worth one."""
    source = random.Random(4)
    talk = {
        (place, order): source.random() < 0.5
        for place in range(60)
        for order in ("chosen", "rejected")
    }
    right = {key: source.random() < 0.6 for key in talk}
    intervals = []
    for raters in (("a",), tuple("abcdefghij")):
        verdicts, pairs = judged(
            lambda _, place, order: talk[place, order],
            lambda _, place, order: "chosen" if right[place, order] else "rejected",
            raters=raters,
        )
        study = explanation_study(read_explanations([(verdicts, pairs)]))
        intervals.append(at(study, "all", "plot").difference)
    assert intervals[0].low == pytest.approx(intervals[1].low)
    assert intervals[0].high == pytest.approx(intervals[1].high)


@pytest.mark.parametrize(
    ("with_it", "reason"),
    [
        (lambda _, place, __: place < 2, "present in 4 of 120 verdicts, fewer than 5"),
        (lambda _, place, __: place >= 2, "absent in 4 of 120 verdicts, fewer than 5"),
        (lambda _, place, __: place % 20 == 0, "present or absent in the verdicts on one"),
        (lambda rater, *_: rater == "a", "each rater has it always or never"),
    ],
)
def test_what_cannot_be_told_is_null_with_its_reason(judged, with_it, reason):
    raters = ("a", "b") if "each" in reason else ("one",)
    verdicts, pairs = judged(with_it, lambda *_: "chosen", raters=raters)
    plot = at(explanation_study(read_explanations([(verdicts, pairs)])), "all", "plot")
    assert plot.reason.startswith(reason)
    assert plot.difference is None
    assert math.isnan(plot.p_holm)
    assert plain(plot)["p_value"] is None


def test_a_rater_that_is_always_right_shows_no_difference(judged):
    verdicts, pairs = judged(lambda _, place, __: place % 2 == 0, lambda *_: "chosen")
    plot = at(explanation_study(read_explanations([(verdicts, pairs)])), "all", "plot")
    assert plot.difference.mean == 0
    assert plot.difference.low < 0 < plot.difference.high
    assert plot.p_value == 1


def test_only_judgements_with_an_explanation_are_counted(judged):
    verdicts, pairs = judged(lambda *_: True, lambda *_: "chosen")
    rows = verdicts.to_pylist()
    for row, outcome in zip(rows, ("unparsed", "refused", "cut", "error"), strict=False):
        row["outcome"] = outcome
    rows[4]["explanation"], rows[5]["explanation"] = None, " \n"
    rows.append({**rows[6], "pair_id": "of another file"})
    found = read_explanations([(pa.Table.from_pylist(rows, schema=verdicts.schema), pairs)])
    assert len(found.texts) == 120 - 6
    assert (found.not_judged["one"], found.unexplained["one"]) == (4, 2)
    silent = [{**row, "explanation": None} for row in rows]
    with pytest.raises(DataError, match="no verdict with an explanation"):
        read_explanations([(pa.Table.from_pylist(silent, schema=verdicts.schema), pairs)])


def test_quarters_are_those_of_the_rater(judged):
    verdicts, pairs = judged(lambda *_: True, lambda *_: "chosen", raters=("short", "long"))
    rows = verdicts.to_pylist()
    for place, row in enumerate(rows):
        row["explanation"] = "word " * (1 + place % 100 + (200 if row["rater"] == "long" else 0))
    found = read_explanations([(pa.Table.from_pylist(rows, schema=verdicts.schema), pairs)])
    for name in (SHORTEST, LONGEST):
        for rater in ("short", "long"):
            share = found.present[found.raters == rater, FEATURE_NAMES.index(name)].mean()
            assert 0.2 < share < 0.3


def test_benjamini_hochberg_by_hand():
    # 0.01 * 4 / 1, 0.02 * 4 / 2, 0.03 * 4 / 3 = 0.04; 0.5 stays.
    adjusted = benjamini_hochberg([0.03, 0.01, math.nan, 0.5, 0.02])
    assert [round(p, 6) for p in adjusted if not math.isnan(p)] == [0.04, 0.04, 0.5, 0.04]
    assert math.isnan(adjusted[2])


@given(st.lists(st.floats(0, 1), max_size=20))
def test_benjamini_hochberg_lies_between_the_p_value_and_holm(p_values):
    for p, step_up, step_down in zip(
        p_values, benjamini_hochberg(p_values), holm(p_values), strict=True
    ):
        assert p <= step_up + 1e-12
        assert step_up <= step_down + 1e-12


def test_all_features_of_all_raters_are_corrected_together(judged):
    source = random.Random(5)
    verdicts, pairs = judged(
        lambda *_: source.random() < 0.5,
        lambda *_: source.choice(["chosen", "rejected"]),
        raters=("a", "b"),
    )
    study = explanation_study(read_explanations([(verdicts, pairs)]))
    of = [one for one in study.differences if one.level == "rater"]
    assert [one.p_holm for one in of] == pytest.approx(
        holm([one.p_value for one in of]), nan_ok=True
    )


def test_two_sources_are_read_as_one(judged):
    verdicts, pairs = judged(
        lambda _, place, __: place % 2 == 0, lambda *_: "chosen", raters=("a", "b")
    )
    is_a = pa.array([rater == "a" for rater in verdicts["rater"].to_pylist()])
    is_b = pa.array([not flag for flag in is_a.to_pylist()])
    parts = read_explanations((verdicts.filter(flags), pairs) for flags in (is_a, is_b))
    whole = explanations_json(explanation_study(read_explanations([(verdicts, pairs)])))
    assert explanations_json(explanation_study(parts)) == whole


# Page, files and program ---------------------------------------------------------------------


@pytest.fixture
def talkative(judged):
    source = random.Random(6)
    verdicts, pairs = judged(
        lambda *_: source.random() < 0.5,
        lambda *_: source.choices(["chosen", "rejected", "tie"], [5, 3, 1])[0],
        raters=("=judge & <b>co</b>", "_plain", "$x$"),
    )
    rows = verdicts.to_pylist()
    for row in rows[::7]:
        row["explanation"] = ATTACK
    return pa.Table.from_pylist(rows, schema=verdicts.schema), pairs


def test_the_page_escapes_is_whole_and_asks_for_nothing(talkative):
    found = read_explanations([talkative])
    study = explanation_study(found, {"_plain": "f<i>", "$x$": "f<i>"})
    page = render_explanations(
        title="What <they> say", study=study, panel=draw_effects(study), found=found,
        label_sources=["people"], manifests={"m": "{}"},
    )  # fmt: skip
    assert "<script" not in page
    assert "<img" not in page
    assert "<b>co" not in page
    assert "<i>" not in re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)
    assert "&lt;script&gt;" in page
    assert "{{ 7 * 7 }}" in page
    assert "need not be cause" in page
    assert "+14.8%" in page
    assert not re.search(r"url\((?!#)|@import|<link|<iframe", page)
    assert not re.search(r"\bnan\b", re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL))
    for name in FEATURE_NAMES:
        assert name.replace("_", " ") in page


def test_the_plot_stands_alone_and_shows_families(talkative):
    study = explanation_study(read_explanations([talkative]), {"_plain": "family", "$x$": "family"})
    svg = standalone(draw_effects(study).drawing.svg)
    ElementTree.fromstring(svg)  # noqa: S314
    assert "var(" not in svg
    shown = re.findall(r">([^<>]+)</text>", svg)
    assert {"plot", "family", "all raters", "published for other judges"} <= set(shown)
    assert "_plain" not in shown
    alone = draw_effects(explanation_study(read_explanations([talkative])))
    raters = re.findall(r">([^<>]+)</text>", alone.drawing.svg)
    assert {"_plain", "$x$"} <= set(raters)


def test_a_name_like_a_style_or_with_hidden_letters_leaves_the_plot_whole(judged):
    names = ("font: 3px x", "font-family: y", "var(--z)", "red\x1b[31m \u202ebidi")
    verdicts, pairs = judged(
        lambda _, place, order: (place + (order == "chosen")) % 2 == 0,
        lambda *_: "chosen",
        raters=names,
    )
    found = read_explanations([(verdicts, pairs)])
    study = explanation_study(found)
    panel = draw_effects(study)
    for svg in (panel.drawing.svg, standalone(panel.drawing.svg)):
        shown = [text.text for text in ElementTree.fromstring(svg).iter() if text.text]  # noqa: S314
        assert {*names[:3], "red[31m bidi"} <= set(shown)
    page = render_explanations(
        title="t", study=study, panel=panel, found=found, label_sources=["people"], manifests={}
    )
    assert "red[31m bidi" in page
    assert not {"\x1b", "\u202e"} & set(page)


def test_no_plot_where_nothing_can_be_told(judged):
    verdicts, pairs = judged(lambda *_: True, lambda *_: "chosen")
    found = read_explanations([(verdicts, pairs)])
    study = explanation_study(found)
    assert draw_effects(study) is None
    page = render_explanations(
        title="t", study=study, panel=None, found=found, label_sources=["people"], manifests={}
    )
    assert "No plot" in page
    assert "None of the 0 features" in page


def test_examples_have_the_feature_and_differ_in_prompt_and_rater(talkative):
    found = read_explanations([talkative])
    examples = examples_of("plot", found)
    assert len({one.rater for one in examples}) == len(examples) == 3
    assert all("plot" in one.text for one in examples)
    assert examples == examples_of("plot", found)


def test_csv_holds_every_difference_and_no_formula(talkative, tmp_path):
    study = explanation_study(read_explanations([talkative]))
    write_csv(explanation_rows(study), tmp_path / "e.csv")
    with (tmp_path / "e.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(study.differences) == len(FEATURES) * 4
    assert not any(value.startswith("=") for row in rows for value in row.values())
    plot = next(row for row in rows if (row["level"], row["feature"]) == ("all", "plot"))
    assert float(plot["difference"]) == pytest.approx(
        at(study, "all", "plot").difference.mean, abs=1e-6
    )
    assert "plot" in explanations_text(study)


@pytest.fixture
def files(talkative, tmp_path):
    verdicts, pairs = talkative
    write_table(verdicts, tmp_path / "verdicts.parquet")
    write_table(pairs, tmp_path / "pairs.parquet")
    return {"verdicts": tmp_path / "verdicts.parquet", "pairs": tmp_path / "pairs.parquet"}


def test_the_program_writes_its_files_and_says_unchanged(load_program, files, tmp_path, capsys):
    module = load_program("eval/explanations.py")
    config = module.Config(out=tmp_path / "out", tables={"here": module.Source(**files)})
    module.main(config)
    assert {path.name for path in config.out.iterdir()} == {
        "explanations.json", "explanations.csv", "explanations.txt", "explanations.html",
        "figure8.tex", "figure8.svg", "figure8.png", "manifest.json",
    }  # fmt: skip
    first = capsys.readouterr().out
    content = json.loads((config.out / "explanations.json").read_text(encoding="utf-8"))
    assert len(content["raters"]) == 3
    module.main(config)
    assert capsys.readouterr().out == f"unchanged: {config.out}\n{first}"


def test_the_program_reads_an_evaluation_and_tells_namesakes_apart(
    load_program, files, talkative, tmp_path
):
    module = load_program("eval/explanations.py")
    folder = tmp_path / "evaluation"
    folder.mkdir()
    write_table(talkative[0], folder / "verdicts.parquet")
    from litbench.artifact import source_digest  # noqa: PLC0415

    judged = {"path": str(files["pairs"]), "sha256": source_digest(files["pairs"])}
    manifest = {
        "inputs": {"pairs": judged},
        "config": {"reference": "_plain"},
        "counts": {"trained_on": {}},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    both = module.Config(
        out=tmp_path / "both",
        evaluations={"e": folder},
        tables={"t": module.Source(**files)},
        raters=["_plain (e)", "_plain (t)"],
        families={"_plain (e)": "plain", "_plain (t)": "plain"},
    )
    module.main(both)
    content = json.loads((both.out / "explanations.json").read_text(encoding="utf-8"))
    assert [one["rater"] for one in content["raters"]] == ["_plain (e)", "_plain (t)"]
    assert {one["of"] for one in content["differences"] if one["level"] == "family"} == {"plain"}
    files["pairs"].write_bytes(b"other")
    with pytest.raises(DataError, match="has changed since"):
        module.main(both)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tables": {}}, "are empty"),
        ({"raters": ["_plane"]}, "did you mean '_plain'"),
        ({"families": {"nobody": "f"}}, "families: no rater 'nobody'"),
        ({"evaluations": {"here": "x"}}, "both name here"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(load_program, files, tmp_path, changes, message):
    module = load_program("eval/explanations.py")
    given = {"tables": {"here": module.Source(**files)}, **changes}
    with pytest.raises(ConfigError, match=message):
        module.main(module.Config(out=tmp_path / "out", **given))


def test_verdicts_without_explanations_are_refused(load_program, files, talkative, tmp_path):
    module = load_program("eval/explanations.py")
    rows = [{**row, "explanation": None} for row in talkative[0].to_pylist()]
    silent = pa.Table.from_pylist(rows, schema=talkative[0].schema)
    write_table(silent, files["verdicts"])
    with pytest.raises(DataError, match="no verdict has an explanation"):
        module.main(module.Config(out=tmp_path / "out", tables={"h": module.Source(**files)}))
