"""The site of passports made by hand: rows, marks, groups, order, warnings and sentences."""

from dataclasses import replace

import pytest
from pages import Page, tables_of

from litbench.suite.page import SiteEntry, weaknesses, write_site
from litbench.suite.passport import (
    OverSets,
    Passport,
    PassportInterval,
    PeopleFigures,
    SetFigures,
)

SURE = {"n": 400, "clusters": 100, "effective_clusters": 80.0}


def estimate(mean, half=0.05, **sizes):
    """An interval around a mean; None has no bounds."""
    bounds = (None, None) if half is None else (mean - half, mean + half)
    return PassportInterval(mean, *bounds, **(SURE | sizes))


def people(difference=0.1, **more):
    keys = {
        "annotators": 3,
        "agreement": estimate(0.7),
        "one_annotator": estimate(0.64),
        "difference": estimate(difference),
        "relative": estimate(1.25, 0.2),
        "at_chance": False,
        "blind_above": [],
    }
    return PeopleFigures(**{**keys, **more})


def figures(agreement=0.66, **more):
    """A set's figures without any weakness."""
    keys = {
        "title": "Invented stories",
        "group": "one",
        "language": "en",
        "kind": "stories",
        "judged": "ratings",
        "licence": "MIT",
        "origin": "https://example.org/sets",
        "revision": None,
        "pairs_sha256": "a" * 64,
        "agreement": estimate(agreement) if isinstance(agreement, float) else agreement,
        "minus_reference": estimate(0.12),
        "p_value": 0.001,
        "flip_rate": estimate(0.1),
        "position_bias": estimate(0.51),
        "coverage": 1.0,
        "chosen_longer": estimate(0.7),
        "chosen_shorter": estimate(0.62),
        "outcomes": {"chosen": 300, "rejected": 100},
        "trained_on_prompts": 0,
        "beside": {"longer": estimate(0.54)},
        "people": None,
    }
    return SetFigures(**{**keys, **more})


def passport(rater="judge", sets=None, **more):
    keys = {
        "kind": "judge",
        "options": {"model": "maker/model"},
        "files": {},
        "reference": "longer",
        "max_pairs": None,
        "over_sets": None,
        "cost_usd": 1.25,
        "input_tokens": 10,
        "output_tokens": 5,
        "versions": {"litbench": "1"},
        "date": "2026-11-01T00:00:00+00:00",
    }
    return Passport(rater=rater, sets=sets or {"one": figures()}, **{**keys, **more})


def site_of(folder, *passports, recomputed=()):
    """The pages by name, as HTML."""
    entries = [SiteEntry(item, "{}", item.rater in recomputed) for item in passports]
    paths = write_site(entries, folder)
    assert paths[0].name == "index.html"
    return {path.name: path.read_text(encoding="utf-8") for path in paths}


def text_of(page):
    return " ".join(Page(page).text.split())


def rows_with(page, name):
    """The rows of all tables whose first cell starts with a name."""
    return [row for table in tables_of(page) for row in table if row[0].startswith(name)]


# Groups --------------------------------------------------------------------------------------

TWO = {
    "one": figures(0.6, minus_reference=estimate(0.1)),
    "two": figures(0.8, pairs_sha256="b" * 64, group="two", minus_reference=estimate(0.3)),
}
BASE = {
    "one": figures(0.5, minus_reference=None),
    "two": figures(0.5, pairs_sha256="b" * 64, group="two", minus_reference=None),
}


def test_raters_of_the_same_pairs_share_a_table_sorted_by_mean(tmp_path):
    better = {name: replace(one, agreement=estimate(0.9)) for name, one in TWO.items()}
    longer = passport("longer", BASE, kind="longer")
    page = site_of(tmp_path, passport("judge", TWO), longer, passport("best", better))["index.html"]
    table = tables_of(page)[0]
    assert [row[0].split()[0] for row in table[1:]] == ["best", "judge", "longer"]
    judge = table[2]
    assert judge[1] == "judge"
    assert judge[2].startswith("0.700")
    assert judge[4].startswith("+0.200"), "the mean of +0.1 and +0.3"
    assert judge[6] == "100.0 %"
    assert table[3][4] == "–", "the reference is not compared with itself"
    assert "2 sets" in page
    assert "one (400 pairs), two (400 pairs)" in text_of(page)


@pytest.mark.parametrize(
    "change",
    [
        {"pairs_sha256": "c" * 64},
        {"trained_on_prompts": 3},
    ],
    ids=["other pairs", "trained on its prompts"],
)
def test_raters_of_other_pairs_have_another_table(tmp_path, change):
    other = {"one": replace(TWO["one"], **change), "two": TWO["two"]}
    page = site_of(tmp_path, passport("judge", TWO), passport("other", other))["index.html"]
    tables = [[row[0].split()[0] for row in table[1:]] for table in tables_of(page)[:2]]
    assert tables == [["judge"], ["other"]]
    title = "two (400 pairs)" if "trained_on_prompts" in change else "2 sets"
    assert title in text_of(page)


def test_raters_with_another_reference_have_another_table(tmp_path):
    page = site_of(tmp_path, passport(), passport("other", reference="random"))["index.html"]
    assert [len(table) for table in tables_of(page)[:2]] == [2, 2]
    assert "minus random" in " ".join(tables_of(page)[1][0])


def test_tables_of_more_sets_come_first(tmp_path):
    alone = passport("alone", {"one": figures(0.9)})
    page = site_of(tmp_path, alone, passport("judge", TWO))["index.html"]
    assert [table[1][0].split()[0] for table in tables_of(page)[:2]] == ["judge", "alone"]


def test_one_set_has_the_interval_over_its_prompts(tmp_path):
    page = site_of(tmp_path, passport())["index.html"]
    (row,) = rows_with(page, "judge")
    assert row[2] == "0.660 [0.610, 0.710]"
    assert row[4] == "+0.120 [+0.070, +0.170]"


def test_a_row_shows_recomputed_least_coverage_and_people(tmp_path):
    sets = {
        "one": figures(coverage=0.9, people=people()),
        "two": figures(
            group="two", pairs_sha256="b" * 64, people=people(relative=estimate(0.75, 0.2))
        ),
        "three": figures(group="three", pairs_sha256="c" * 64, people=people(at_chance=True)),
        "four": figures(group="four", pairs_sha256="d" * 64, people=people(is_dependent=True)),
    }
    page = site_of(tmp_path, passport(sets=sets), recomputed=["judge"])["index.html"]
    row = rows_with(page, "judge")[0]
    assert row[0] == "judge recomputed"
    assert row[5] == "1.00 (2)", "sets without a measure of people do not count"
    assert row[6] == "90.0 %"
    assert "recomputed" not in site_of(tmp_path / "other", passport())["index.html"]


# Sets ----------------------------------------------------------------------------------------


def test_a_set_shows_its_facts_and_marks(tmp_path):
    first = passport("first", {"one": figures(people=people(), licence=None)})
    trained = passport("trained", {"one": figures(0.9, trained_on_prompts=3)})
    page = site_of(tmp_path, first, trained)["index.html"]
    (row,) = rows_with(page, "one ")
    assert "Invented stories" in row[0]
    assert "en, stories, ratings; no licence stated" in row[0]
    assert "400 pairs, 100 prompts" in row[0]
    assert row[1] == "0.640 [0.590, 0.690]"
    assert row[2] == "0.660 [0.610, 0.710]"
    assert row[3] == "0.900 [0.850, 0.950] trained on 3 of its prompts"
    assert "trained was trained on prompts of one." in text_of(page)
    assert "first was trained" not in text_of(page)


def test_sets_of_other_pairs_are_rows_of_their_own(tmp_path):
    other = passport("other", {"one": figures(0.7, pairs_sha256="b" * 64)})
    page = site_of(tmp_path, passport(), other)["index.html"]
    rows = rows_with(page, "one ")
    assert [[bool(cell) for cell in row[2:]] for row in rows] == [[True, False], [False, True]]
    assert "one was judged on different pairs: 400 pairs (judge); 400 pairs (other)." in text_of(
        page
    )


WARNINGS = {
    "at chance": ({"people": people(at_chance=True)}, "annotators agree at chance"),
    "dependent": ({"people": people(is_dependent=True)}, "residuals correlate negatively"),
    "blind": ({"people": people(blind_above=["longer", "notes"])}, "longer and notes agrees"),
    "few prompts": (
        {"agreement": estimate(0.6, effective_clusters=19.4)},
        "few prompts: 19 effective",
    ),
    "audit": ({"audit": ["later wins 90 %", "second finding"]}, "audit: later wins 90 %"),
}


@pytest.mark.parametrize(("change", "said"), WARNINGS.values(), ids=WARNINGS)
def test_a_set_is_shown_with_what_to_know_before_reading_it(tmp_path, change, said):
    pages = site_of(tmp_path, passport(sets={"one": figures(**change)}))
    for page in pages.values():
        assert said in text_of(page)
        assert "second finding" not in page
    quiet = site_of(tmp_path / "quiet", passport(sets={"one": figures(people=people())}))
    assert said not in text_of(quiet["index.html"])


def test_versions_are_named_where_they_differ(tmp_path):
    new = passport("new", versions={"litbench": "2"})
    page = text_of(site_of(tmp_path, passport(), new)["index.html"])
    assert "made by LitBench 1, 2." in page
    assert "made by LitBench" not in text_of(site_of(tmp_path, passport())["index.html"])


def test_filters_have_only_their_sets(tmp_path):
    chinese = figures(
        0.87,
        language="zh",
        kind="answers",
        title="Chinese texts",
        pairs_sha256="b" * 64,
        group="zh",
    )
    pages = site_of(tmp_path, passport(sets={"one": figures(), "two": chinese}))
    names = {"index", "en", "zh", "stories", "answers", "en_stories", "zh_answers"}
    assert {f"{name}.html" for name in names} < set(pages)
    assert "en_answers.html" not in pages
    english, answers = text_of(pages["en.html"]), text_of(pages["zh_answers.html"])
    assert "Chinese texts" not in english
    assert "Chinese texts" in answers
    assert "0.660" not in answers
    assert "LitBench suite: Chinese answers" in answers
    assert "1 raters agree with people on 1 sets" in answers
    assert "1 raters agree with people on 2 sets" in text_of(pages["index.html"])
    assert ("href", "en_stories.html") in Page(pages["index.html"]).attributes
    assert ("href", "index.html") not in Page(pages["index.html"]).attributes


def test_a_rater_without_information_has_no_interval(tmp_path):
    ties = figures(0.5, outcomes={"tie": 400})
    pages = site_of(tmp_path, passport(sets={"one": ties}))
    row = rows_with(pages["index.html"], "judge")[0]
    assert row[0] == "judge no information"
    assert "0.500 no information" in rows_with(pages["index.html"], "one ")[0][2]
    for page in pages.values():
        assert "judge on one" in text_of(page)
        assert "it prefers neither story in 400 of 400" in text_of(page)


# A rater -------------------------------------------------------------------------------------

WEAK = {
    "worse": ({"minus_reference": estimate(-0.2)}, "Significantly worse than longer: one."),
    "below people": (
        {"people": people(-0.2)},
        "Agrees with annotators significantly less than one of them: one.",
    ),
    "prefers the first": ({"position_bias": estimate(0.8)}, "Prefers a position"),
    "prefers the second": ({"position_bias": estimate(0.2)}, "Prefers a position"),
    "blind": ({"beside": {"shorter": estimate(0.66)}}, "No better than a rater that does not read"),
    "longer": ({"chosen_longer": estimate(0.9)}, "Prefers the longer story more"),
    "shorter": ({"chosen_longer": estimate(0.3)}, "Prefers the shorter story more"),
    "flips": ({"flip_rate": estimate(0.21)}, "Changes its verdict with the order of the stories"),
    "coverage": ({"coverage": 0.94}, "Does not judge over 5%"),
    "trained": ({"trained_on_prompts": 1}, "Trained on prompts of these sets"),
}


@pytest.mark.parametrize(("change", "said"), WEAK.values(), ids=WEAK)
def test_a_weakness_is_named_with_its_sets(change, said):
    sentences = weaknesses(passport(sets={"one": figures(**change), "two": figures()}))
    assert len(sentences) == 2
    assert sentences[0].startswith(said)
    assert sentences[0].endswith(": one.")


NOT_WEAK = {
    "better": {"minus_reference": estimate(0.2)},
    "uncertain": {"minus_reference": estimate(-0.04, 0.05)},
    "above people": {"people": people(0.2)},
    "no bounds": {"minus_reference": estimate(-0.2, None)},
    "the reference": {"minus_reference": None, "position_bias": None, "flip_rate": None},
    "just covered": {"coverage": 0.95},
    "just flips": {"flip_rate": estimate(0.2)},
    "a blind rater that is worse": {"beside": {"notes": estimate(0.65)}},
    "a reading rater that is better": {"beside": {"features": estimate(0.9)}},
    "leans a little": {"chosen_longer": estimate(0.81)},
}


@pytest.mark.parametrize("change", NOT_WEAK.values(), ids=NOT_WEAK)
def test_what_is_no_weakness_is_not_named(change):
    assert len(weaknesses(passport(sets={"one": figures(**change)}))) == 1


def test_weaknesses_are_corrected_over_the_tests_of_the_page():
    # Its own p value is about 0.03.
    unsure = figures(minus_reference=estimate(-0.055))
    alone = weaknesses(passport(sets={"one": replace(unsure, position_bias=None)}))
    assert alone == [
        "Significantly worse than longer: one.",
        "Significant after Holm's correction over 1 tests of this page.",
    ]
    beside = {name: figures(minus_reference=estimate(0.001)) for name in "abc"}
    assert weaknesses(passport(sets={"one": unsure, **beside})) == [
        "Significant after Holm's correction over 8 tests of this page."
    ]


def test_the_page_of_a_rater_has_its_figures(tmp_path):
    sets = {
        "one": figures(people=people(at_chance=True), flip_rate=estimate(0.11)),
        "two": figures(
            0.56, position_bias=None, flip_rate=None, pairs_sha256="b" * 64, coverage=0.97
        ),
    }
    mean = OverSets(["one", "two"], "judge", 0.61, 0.5, 0.7, 0.56, 0.66, None)
    scope = {"stories": 1200, "is_prose": 0.01, "like_training": 0.02}
    judge = passport("my judge", sets, over_sets=mean, scope=scope)
    pages = site_of(tmp_path, judge, recomputed=["my judge"])
    (name,) = set(pages) - {"index.html", "en.html", "stories.html", "en_stories.html"}
    page = pages[name]
    assert ("href", name) in Page(pages["index.html"]).attributes
    assert "Mean agreement 0.610 [0.500, 0.700] over 2 sets." in text_of(page)
    assert "recomputed from the verdicts" in text_of(page)
    one, two = rows_with(page, "one ")[0], rows_with(page, "two ")[0]
    assert one[1:4] == ["400 / 100", "0.660 [0.610, 0.710]", "+0.120 [+0.070, +0.170]"]
    assert one[4:9] == ["0.700", "0.620", "0.110", "0.510", "100.0 %"]
    assert one[9:] == [
        "0.640 [0.590, 0.690]",
        "+0.100 [+0.050, +0.150]",
        "1.25 [1.05, 1.45] people at chance",
    ]
    assert two[4:] == ["0.700", "0.620", "–", "–", "97.0 %", "–", "–", "–"]
    facts = {row[0]: row[1] for table in tables_of(page) for row in table if len(row) == 2}
    assert facts["model"] == "maker/model"
    assert facts["cost in dollars"] == "1.25"
    flags = facts["flags on held-out training stories"]
    assert flags == "1.0 % no prose, 2.0 % unlike the others, of 1,200"
    assert facts["date"] == "2026-11-01T00:00:00+00:00"


def test_many_sets_get_estimates_shrunken_to_their_mean(tmp_path):
    sets = {f"set {k}": figures(0.5 + 0.03 * k, group=f"{k}") for k in range(10)}
    page = next(
        text for name, text in site_of(tmp_path, passport(sets=sets)).items() if "rater" in name
    )
    assert "empirical Bayes" in page
    heading = next(table[0] for table in tables_of(page) if "shrunken" in table[0])
    index = heading.index("shrunken")
    low, high = (float(rows_with(page, f"set {k} ")[0][index].split()[0]) for k in (0, 9))
    assert 0.5 < low < high < 0.77


def test_a_relative_agreement_without_bounds_has_none(tmp_path):
    sets = {"one": figures(people=people(relative=estimate(0.9, None), is_dependent=True))}
    pages = site_of(tmp_path, passport(sets=sets))
    page = next(text for name, text in pages.items() if "rater" in name)
    assert rows_with(page, "one ")[0][-1] == "0.90 people not independent"
    unknown = PassportInterval(None, None, None, **SURE)
    pages = site_of(tmp_path, passport(sets={"one": figures(people=people(relative=unknown))}))
    page = next(text for name, text in pages.items() if "rater" in name)
    assert rows_with(page, "one ")[0][-1] == "–"
