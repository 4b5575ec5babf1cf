"""Interactive elements: tags, similarities and the decision of novelty."""

from dataclasses import replace

import pytest
from narra_golden import golden

from litbench.writers.narra import artifacts
from litbench.writers.narra.artifacts import (
    Element,
    Record,
    accept,
    element_summary,
    element_tags,
    extract_html,
    interaction_pattern,
    needs_retry,
    summary_similarity,
    tag_similarity,
    visual_style,
)

LETTER = Element("torn_letter", "A letter", "Read the note.", "<button onclick=r()>")
CLOCK = Element("clock", "A clock", "Stop it.", "<i>setInterval(f, 9)</i>")
SAME = Element("letter", "A letter too", "Read the note.", "<button onclick=r()>")


def elements():
    return {
        case["id"]: (
            Element(case["element_type"], case["description"], case["purpose"], case["html"]),
            case,
        )
        for case in golden("artifact_tags")["cases"]
    }


def test_golden_tags():
    for element, case in elements().values():
        assert visual_style(element) == case["visual_style"], case["id"]
        assert interaction_pattern(element) == case["interaction"], case["id"]
        assert sorted(element_tags(element)) == case["tags"], case["id"]
        assert element_summary(element) == case["summary"], case["id"]


def test_golden_similarities():
    records_by_number = {number: element for number, (element, _) in elements().items()}
    for case in golden("artifact_similarity_pairs")["cases"]:
        first, second = records_by_number[case["a"]], records_by_number[case["b"]]
        tags = tag_similarity(element_tags(first), element_tags(second))
        summary = summary_similarity(element_summary(first), element_summary(second))
        assert tags == pytest.approx(case["tag_similarity"], abs=1e-9)
        assert summary == pytest.approx(case["summary_similarity"], abs=1e-9)
    for case in golden("artifact_tag_similarity_random")["cases"]:
        similarity = tag_similarity(case["tags_a"], case["tags_b"])
        assert similarity == pytest.approx(case["tag_similarity"], abs=1e-9)
    for case in golden("artifact_summary_similarity")["cases"]:
        similarity = summary_similarity(case["a"], case["b"])
        assert similarity == pytest.approx(case["summary_similarity"], abs=1e-9)


def test_golden_sequences():
    records_by_number = {number: element for number, (element, _) in elements().items()}
    for case in golden("artifact_novelty_sequences")["cases"]:
        records = ()
        for step in case["steps"]:
            assert len(records) == step["history"]
            again, score, nearest = needs_retry(
                records_by_number[step["element"]], records, as_published=True
            )
            assert (again, nearest.summary if nearest else None) == (
                step["retry"],
                step["closest_summary"],
            )
            assert score == pytest.approx(step["similarity"], abs=1e-9)
            records = accept(records_by_number[step["element"]], None, records, as_published=True)
            assert records[-1].violation == step["retry"]


def test_golden_history_out_of_step_cannot_be_ours():
    # Published: summaries and tags in two lists, so that an element is compared with another's
    # tags. A record of ours has both: unknown tags are no tags, and the score is the summary's.
    records_by_number = {number: element for number, (element, _) in elements().items()}
    for case in golden("artifact_history_misaligned")["cases"]:
        records = [Record(summary, (), 0.0, False, None, False) for summary in case["summaries"]]
        _, score, nearest = needs_retry(
            records_by_number[case["candidate"]], records, as_published=True
        )
        assert nearest.summary == case["closest_summary"]
        summary = element_summary(records_by_number[case["candidate"]])
        assert score == summary_similarity(summary, case["closest_summary"])


def test_golden_html():
    for case in golden("artifact_html_extract")["cases"]:
        assert extract_html(case["content"]) == case["expected"]


def test_retry_is_kept_only_if_strictly_less_similar():
    records = accept(LETTER, None, (), as_published=True)
    assert (records[0].score, records[0].closest, records[0].violation) == (0, None, False)
    again, score, nearest = needs_retry(SAME, records, as_published=True)
    assert again
    assert nearest == records[0]
    with_retry = accept(SAME, CLOCK, records, as_published=True)
    assert with_retry[-1].summary == element_summary(CLOCK)
    assert with_retry[-1].retried
    assert not with_retry[-1].violation
    equal = replace(SAME, purpose="Unfold it.")
    assert needs_retry(equal, records, as_published=True)[1] == score
    accepted = accept(SAME, equal, records, as_published=True)[-1]
    assert (accepted.summary, accepted.violation) == (element_summary(SAME), True)
    assert (
        accept(SAME, None, records, as_published=True)[-1].score == round(score, 3) >= artifacts.TAU
    )


def test_window_and_memory_are_bounded():
    records = accept(LETTER, None, (), as_published=True)
    twice = (*records, replace(records[0], summary=f"{records[0].summary} "))
    assert needs_retry(SAME, twice, as_published=True)[2] is records[0], "the first of equals"
    for _ in range(5):
        records = accept(CLOCK, None, records, as_published=True)
    assert needs_retry(SAME, records, as_published=True)[0]
    for _ in range(7):
        records = accept(CLOCK, None, records, as_published=True)
        assert not needs_retry(SAME, records, as_published=True)[0]
    assert len(records) == 8


def test_the_score_must_exceed_the_threshold_and_as_published_reach_it(monkeypatch):
    records = accept(LETTER, None, (), as_published=False)
    _, score, _ = needs_retry(SAME, records, as_published=False)
    for tau, repeats in ((score - 1e-9, (True, True)), (score, (False, True))):
        monkeypatch.setattr(artifacts, "TAU", tau)
        for as_published, repeats_once in zip((False, True), repeats, strict=True):
            assert needs_retry(SAME, records, as_published=as_published)[0] == repeats_once
            accepted = accept(SAME, None, records, as_published=as_published)[-1]
            assert accepted.violation == repeats_once
