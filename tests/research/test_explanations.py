"""What explanations say: features of the text, differences in agreement, page and program."""

import csv
import math
import random
import re
import time
from collections import Counter
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest

from litbench.data.tables import write_table
from litbench.evaluation.report.document import publish
from litbench.metrics.comparisons import difference_interval, stratified_difference
from litbench.research.explanation_words import FEATURES, features_of
from litbench.research.explanations import (
    draw_effects,
    explanation_results,
    explanations_page,
    read_explanations,
)
from litbench.runs.errors import DataError
from litbench.runs.outputs import Artifact, source_digest, write_sealed
from litbench.testing import rename_sides

PLOT = list(FEATURES).index("plot")
ATTACK = '<script>alert(1)</script><img src=x onerror="x"> The plot {{ 7 * 7 }} & more'


def names_in(text):
    return {name for name, has in zip(FEATURES, features_of(text), strict=True) if has}


# Features of a text --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plot", "A tight STORYLINE."),
        ("plot", "a **plot**-driven piece"),
        ("plot", "ｐｌｏｔ"),
        ("plot", "the p\u00adlot"),
        ("character", "The protagonist’s motivations"),
        ("emotion", "heart-wrenching"),
        ("originality", "a tired cliché"),
        ("setting", "rich world-building"),
        ("ending", "the final line lands"),
        ("technical", "run-on sentences"),
        ("prompt", "it answers the prompt"),
        ("story_length", "it is too long"),
        ("comparison", "darker than the other"),
        ("reservation", "good, but slow"),
        ("example", "e.g. the first scene"),
        ("first_person", "I’d take it"),
    ],
)
def test_a_feature_is_found(name, text):
    assert name in names_in(text)


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
        ("hedging", ""),
    ],
)
def test_a_feature_is_not_found(name, text):
    assert name not in names_in(text)


def test_what_is_passed_over_does_not_hide_what_follows():
    assert FEATURES["plot"].find("a character arc and a story arc") == "arc"
    assert FEATURES["story_length"].find("no longer, and longer") == "longer"


@pytest.mark.parametrize("unit", ["a", "run-", " \n", "character ", "no longer ", "\u200d"])
def test_time_grows_with_the_text_and_no_faster(unit):
    start = time.process_time()
    features_of(unit * (100_000 // len(unit)))
    # Linear: about 0.2 s. Quadratic: minutes.
    assert time.process_time() - start < 5


# Verdicts ------------------------------------------------------------------------------------


@pytest.fixture
def judged(pair_table, verdict_table):
    """Verdicts of raters on 60 pairs of 20 prompts, both orders; talk of plot by a function."""

    def build(talks, outcome, raters=("one",), pairs=60, prompts=20):
        table = pair_table([{"prompt_id": f"p{index % prompts}"} for index in range(pairs)])
        rows = []
        for rater in raters:
            for index, pair_id in enumerate(table["pair_id"].to_pylist()):
                for order in ("chosen", "rejected"):
                    said = "The plot moves." if talks(rater, index, order) else "It moves."
                    rows.append(
                        {
                            "pair_id": pair_id,
                            "rater": rater,
                            "order": order,
                            "outcome": outcome(rater, index, order),
                            "explanation": said,
                        }
                    )
        return verdict_table(rows), table

    return build


def plot_of(verdicts, pairs):
    return explanation_results(read_explanations({"e": (verdicts, pairs)})).overall[PLOT]


def test_a_planted_difference_is_found_and_stands_alone(judged):
    source = random.Random(1)
    talk = {index: source.random() < 0.5 for index in range(400)}
    right = {
        (index, order): source.random() < (0.85 if talk[index] else 0.55)
        for index in range(400)
        for order in ("chosen", "rejected")
    }
    verdicts, pairs = judged(
        lambda _, index, __: talk[index],
        lambda _, index, order: "chosen" if right[index, order] else "rejected",
        pairs=400,
        prompts=100,
    )
    results = explanation_results(read_explanations({"e": (verdicts, pairs)}))
    plot = results.overall[PLOT]
    assert plot.difference.low < 0.3 < plot.difference.high
    assert plot.is_clear
    assert plot.rate.mean == pytest.approx(sum(talk.values()) / 400)
    assert plot.agreement_present.mean - plot.agreement_absent.mean == pytest.approx(
        plot.difference.mean
    )
    # One rater is all raters.
    assert results.by_rater["one"][PLOT].difference == plot.difference
    assert [item.feature for item in results.overall if item.is_clear] == ["plot"]


def test_renaming_sides_inverts_agreement(judged):
    other = {"chosen": "rejected", "rejected": "chosen", "tie": "tie"}
    verdicts, pairs = judged(
        lambda _, index, order: (index + (order == "chosen")) % 3 == 0,
        lambda _, index, order: ("chosen", "tie", "rejected", "chosen")[
            (index + 2 * (order == "chosen")) % 4
        ],
    )
    rows = verdicts.to_pylist()
    turned = pa.Table.from_pylist(
        [{**row, "order": other[row["order"]], "outcome": other[row["outcome"]]} for row in rows],
        schema=verdicts.schema,
    )
    result = read_explanations({"e": (verdicts, pairs)})
    renamed = read_explanations({"e": (turned, rename_sides(pairs))})
    assert (result.present == renamed.present).all()
    assert np.allclose(result.credit, 1 - renamed.credit)
    before, after = explanation_results(result), explanation_results(renamed)
    for first, two in zip(before.overall, after.overall, strict=True):
        assert first.rate == two.rate
        if first.difference is not None:
            assert first.difference.mean == pytest.approx(-two.difference.mean)
            assert first.difference.low == pytest.approx(-two.difference.high)


def test_better_rater_does_not_confound(judged):
    source = random.Random(2)
    talk = Counter()
    right = Counter()
    for rater, talks, agrees in (("good", 0.8, 0.9), ("poor", 0.2, 0.5)):
        for index in range(200):
            for order in ("chosen", "rejected"):
                talk[rater, index, order] = source.random() < talks
                right[rater, index, order] = source.random() < agrees
    verdicts, pairs = judged(
        lambda *key: talk[key],
        lambda *key: "chosen" if right[key] else "rejected",
        raters=("good", "poor"),
        pairs=200,
        prompts=50,
    )
    plot = plot_of(verdicts, pairs)
    assert plot.agreement_present.mean - plot.agreement_absent.mean > 0.15, "the raters differ"
    assert plot.difference.low < 0 < plot.difference.high, "no rater does better when it talks so"


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


@pytest.mark.parametrize(
    "with_it",
    [
        lambda _, index, __: index < 2,
        lambda _, index, __: index >= 2,
        lambda _, index, __: index % 20 == 0,
        lambda rater, *_: rater == "a",
    ],
    ids=["present in four", "absent in four", "one prompt alone", "always or never"],
)
def test_what_cannot_be_told_has_no_difference(judged, with_it, request):
    raters = ("a", "b") if "always" in request.node.name else ("one",)
    plot = plot_of(*judged(with_it, lambda *_: "chosen", raters=raters))
    assert plot.difference is None
    assert math.isnan(plot.p_holm)


def test_only_judgements_with_an_explanation_are_counted(judged):
    verdicts, pairs = judged(lambda *_: True, lambda *_: "chosen")
    rows = verdicts.to_pylist()
    for row, outcome in zip(rows, ("unparsed", "refused", "cut", "error"), strict=False):
        row["outcome"] = outcome
    rows[4]["explanation"], rows[5]["explanation"] = None, " \n"
    rows.append({**rows[6], "pair_id": "of another file"})
    result = read_explanations({"e": (pa.Table.from_pylist(rows, schema=verdicts.schema), pairs)})
    assert len(result.rows) == 120 - 6
    assert (result.not_judged["one"], result.unexplained["one"]) == (4, 2)
    silent = [{**row, "explanation": None} for row in rows]
    with pytest.raises(DataError, match="no judgement"):
        read_explanations({"e": (pa.Table.from_pylist(silent, schema=verdicts.schema), pairs)})


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
    for row in rows[::2]:
        row["explanation"] = ATTACK
    return pa.Table.from_pylist(rows, schema=verdicts.schema), pairs


@pytest.fixture
def page_of(tmp_path):
    def write(result):
        artifact = Artifact(tmp_path / "page", program="explanations.py", config={}, inputs={})
        page = explanations_page(explanation_results(result), "What <they> say", ["people"])
        publish(artifact, "explanations", "", page)
        return (tmp_path / "page" / "explanations.html").read_text(encoding="utf-8")

    return write


def test_the_page_is_whole(talkative, page_of):
    page = page_of(read_explanations({"e": talkative}))
    assert "not causal effects" in page
    assert "+14.8%" in page
    assert not re.search(r"\bnan\b", re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL))
    for name in FEATURES:
        assert name.replace("_", " ") in page


def test_the_plot_shows_raters_by_any_name(judged, page_of):
    names = ("_plain", "$x$", "font: 3px x", "red\x1b[31m \u202ebidi")
    verdicts, pairs = judged(
        lambda _, index, order: (index + (order == "chosen")) % 2 == 0,
        lambda *_: "chosen",
        raters=names,
    )
    result = read_explanations({"e": (verdicts, pairs)})
    panel = draw_effects(explanation_results(result))
    shown = [text.text for text in ElementTree.fromstring(panel.drawing.source).iter()]  # noqa: S314
    wanted = {"plot", "all raters", "published for other judges", *names[:3], "red[31m bidi"}
    assert wanted <= set(shown)
    page = page_of(result)
    assert "red[31m bidi" in page
    assert not {"\x1b", "\u202e"} & set(page)


@pytest.fixture
def evaluation(talkative, tmp_path):
    verdicts, pairs = talkative
    folder = tmp_path / "evaluation"
    folder.mkdir()
    write_table(verdicts, folder / "verdicts.parquet")
    write_table(pairs, tmp_path / "pairs.parquet")
    path = tmp_path / "pairs.parquet"
    judged = {"path": str(path), "sha256": source_digest(path)}
    manifest = {
        "inputs": {"pairs": judged},
        "config": {"reference": "_plain"},
        "counts": {"trained_on": {}},
    }
    write_sealed(manifest, folder / "manifest.json")
    return folder


def test_the_program_writes_its_files_and_says_unchanged(
    load_program, evaluation, tmp_path, capsys
):
    module = load_program("litbench explanations")
    config = module.Config(out=tmp_path / "out", evaluations={"here": evaluation})
    module.main(config)
    assert {path.name for path in config.out.iterdir()} == {
        "explanations.csv",
        "explanations.txt",
        "explanations.html",
        "figure8.svg",
        "figure8.png",
        "manifest.json",
    }
    with (config.out / "explanations.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(FEATURES) * 4
    assert not any(value.startswith("=") for row in rows for value in row.values())
    first = capsys.readouterr().out
    assert "3 raters" in first
    module.main(config)
    assert capsys.readouterr().out == f"unchanged: {config.out}\n{first}"


def test_raters_of_one_name_in_two_evaluations_are_two(load_program, evaluation, tmp_path):
    module = load_program("litbench explanations")
    both = module.Config(out=tmp_path / "both", evaluations={"e": evaluation, "f": evaluation})
    module.main(both)
    page = (both.out / "explanations.html").read_text(encoding="utf-8")
    assert "_plain (e)" in page
    assert "_plain (f)" in page
    (tmp_path / "pairs.parquet").write_bytes(b"other")
    with pytest.raises(DataError, match="has changed since"):
        module.main(both)
