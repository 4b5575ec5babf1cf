"""Headings, formatting and paragraphs of Chinese texts.

GOLDEN and HOWTOBENCH name the folders of the values for public texts, and of the texts.
"""

import math

import duckdb
import pytest
from chinese_writers import folder_of, golden, published

from litbench.protocols.headings import (
    find_headings,
    formatting_score,
    formatting_violations,
    heading_tree,
    paragraph_statistics,
    published_formatting_score,
)

LONG = "\n" + "河水很冷。" * 120


def outline(heading):
    return [(child.title, outline(child)) for child in heading.children]


def test_headings_have_kind_title_number_and_line():
    text = "##雨\n正文\n 十、风\n（二十一） 云\n#######雪\n一二. 雷\n3. 不是"
    found = [(h.kind, h.title, h.number, h.line) for h in find_headings(text)]
    assert found == [
        ("markdown", "雨", 2, 0),
        ("chinese", "风", 10, 2),
        ("chinese_second", "云", 21, 3),
        ("markdown", "#雪", 6, 4),
        ("chinese", "雷", 0, 5),
    ]


def test_tree_follows_levels_relative_to_the_first_heading():
    text = "## 雨\n#### 风\n### 云\n一、雪\n(一)雷\n## 电"
    assert outline(heading_tree(text)) == [
        ("雨", [("风", []), ("云", [])]),
        ("雪", [("雷", [])]),
        ("电", []),
    ]


def test_a_later_heading_with_fewer_hashes_becomes_a_child_of_the_root():
    tree = heading_tree("### 雨\n# 风\n## 云\n### 雪\n#### 雷")
    assert outline(tree) == [("雨", []), ("风", []), ("云", []), ("雪", [("雷", [])])]
    assert [child.is_raised for child in tree.children] == [False, True, True, False]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# 雨\n## 风\n# 云\n## 雪", []),
        ("# 雨\n一、风\n### 云", ["level_jump"]),
        ("（一）雨\n一、风", ["second_before_first"]),
        ("# 雨\n（一）风\n（二）云", []),
        ("一、雨\n（一）风\n（二）云\n二、雪\n（一）雷", []),
        ("一、雨\n三、风", ["numbering"]),
        ("一、雨\n二、风\n一、云", ["numbering"]),
        ("# 雨\n一、风\n二、云\n# 雪\n一、雷", []),
        ("# 雨\n一、风\n# 云\n二、雪", []),
        ("二、雨\n三、风", ["numbering"]),
        ("一、雨\n（一）风\n（一）云", ["numbering"]),
        ("- 雨\n* 风", ["bullets"]),
        ("- 雨\n* * *\n-风\n**云**", []),
    ],
)
def test_violations(text, expected):
    assert formatting_violations(text, "letter") == expected
    without_lists = [name for name in expected if name != "bullets"]
    assert formatting_violations(text, "report") == without_lists


@pytest.mark.parametrize(
    ("text", "genre", "expected", "as_published"),
    [
        ("# 雨\n## 风" + LONG, "report", 10, 10),
        ("# 雨" + LONG, "report", 5, 10),
        (LONG, "report", 5, 5),
        (LONG, "poetry", None, 5),
        ("短。", "report", None, 10),
        ("# 雨", "poetry", 5, 10),
        ("# 雨\n### 风" + LONG, "report", 0, 0),
        ("- 雨\n- 风" + LONG, "poetry", 0, 5),
        ("1. 雨\n2. 风" + LONG, "report", 5, 10),
        ("第一章 雨" + LONG, "fiction", 5, 10),
        ("第一章" + LONG, "fiction", 5, 5),
        ("一、" + LONG, "fiction", 5, 5),
        ("1." + LONG, "fiction", 5, 5),
        ("#雨" + LONG, "fiction", 5, 5),
        ("", "fiction", None, 10),
    ],
)
def test_formatting_scores_of_the_paper_and_as_published(text, genre, expected, as_published):
    assert formatting_score(text, genre) == expected
    assert published_formatting_score(text) == as_published


def test_paragraphs_are_counted_without_headings():
    text = (
        "# 题\n## 雨\n" + "河水很冷。" * 110 + "\n\n她没有回头。\n## 风\n" + "他走了，" * 15 + "\n"
    )
    assert paragraph_statistics(text) == pytest.approx(
        {
            "paragraphs": 3,
            "long_share": 1 / 3,
            "short_share": 1 / 3,
            "one_sentence_share": 2 / 3,
            "largest_chapter_share": 556 / 616,
        }
    )


def test_a_long_paragraph_has_more_than_500_characters():
    for length, share in ((500, 0), (501, 1)):
        assert paragraph_statistics("雨" * length)["long_share"] == share
    for length, share in ((49, 1), (50, 0)):
        assert paragraph_statistics("雨" * length)["short_share"] == share


def test_statistics_without_paragraphs_or_chapters_are_missing():
    empty = paragraph_statistics("\n # \n")
    assert empty.pop("paragraphs") == 0
    assert all(map(math.isnan, empty.values()))
    assert math.isnan(paragraph_statistics("# 雨\n河水很冷。")["largest_chapter_share"])


@pytest.mark.parametrize(("load", "count"), [(golden, 69), (published, 141)])
def test_published_scores_are_as_published(load, count):
    cases = load("tow/formatting_score_code")["cases"]
    assert len(cases) == count
    for case in cases:
        assert published_formatting_score(case["text"]) == case["expected"], case["id"]


@pytest.mark.parametrize(("load", "count"), [(golden, 19), (published, 43)])
def test_trees_are_those_of_the_paper(load, count):
    def plain(heading):
        title = "Root" if heading.kind == "root" else heading.title
        below = [plain(child) for child in heading.children]
        return {"title": title, "subtopics": below, "type": heading.kind}

    cases = load("tow/heading_tree_three_patterns")["cases"]
    assert len(cases) == count
    for case in cases:
        tree = heading_tree(case["text"])
        if case["error"] is None:
            assert plain(tree) == case["tree"], case["id"]
        else:
            assert any(child.is_raised for child in tree.children)


# Means of the released rule on the public texts, by writer and task.
PUBLISHED_MEANS = {
    ("Llama-3.3-70B-Instruct", "completion"): 9.96,
    ("claude-3-5-sonnet-20241022", "completion"): 10.0,
    ("claude-3-haiku-20240307", "completion"): 9.91,
    ("deepseek-chat", "completion"): 9.7,
    ("deepseek-r1", "completion"): 9.91,
    ("doubao-pro-32k-241215", "completion"): 9.92,
    ("gemini-2.0-flash", "completion"): 9.45,
    ("glm-4-plus-250111", "completion"): 9.38,
    ("gpt-4o-2024-11-20", "completion"): 6.97,
    ("o3-mini-2025-01-31", "completion"): 9.7,
    ("Llama-3.3-70B-Instruct", "guide"): 6.23,
    ("claude-3-5-sonnet-20241022", "guide"): 7.22,
    ("claude-3-haiku-20240307", "guide"): 7.12,
    ("deepseek-chat", "guide"): 7.18,
    ("deepseek-r1", "guide"): 7.4,
    ("doubao-pro-32k-241215", "guide"): 9.09,
    ("gemini-2.0-flash", "guide"): 6.16,
    ("glm-4-plus-250111", "guide"): 7.44,
    ("gpt-4o-2024-11-20", "guide"): 8.3,
    ("o3-mini-2025-01-31", "guide"): 7.89,
    ("Llama-3.3-70B-Instruct", "open"): 6.51,
    ("claude-3-5-sonnet-20241022", "open"): 7.68,
    ("claude-3-haiku-20240307", "open"): 7.63,
    ("deepseek-chat", "open"): 7.17,
    ("deepseek-r1", "open"): 7.66,
    ("doubao-pro-32k-241215", "open"): 9.45,
    ("gemini-2.0-flash", "open"): 6.51,
    ("glm-4-plus-250111", "open"): 7.85,
    ("gpt-4o-2024-11-20", "open"): 8.19,
    ("o3-mini-2025-01-31", "open"): 8.29,
}


def test_published_scores_of_published_texts():
    path = str(folder_of("HOWTOBENCH") / "outputs.parquet")
    query = "select model, task, text from read_parquet(?) where text <> ''"
    scores = {}
    for model, task, text in duckdb.execute(query, [path]).fetchall():
        scores.setdefault((model, task), []).append(published_formatting_score(text))
    assert sum(map(len, scores.values())) == 9086
    assert {score for found in scores.values() for score in found} == {5, 10}
    tens = [
        score == 10
        for (_, task), found in scores.items()
        if task != "completion"
        for score in found
    ]
    assert (sum(tens), len(tens)) == (3281, 6429)
    means = {key: round(sum(found) / len(found), 2) for key, found in scores.items()}
    assert means == PUBLISHED_MEANS


@pytest.mark.parametrize("start", ["- ", "#", "一、", "1."])
def test_long_lines_are_read_in_linear_time(start):
    """In quadratic time, these lines would take minutes."""
    text = start + " " * 250_000 + "!" * 250_000
    assert formatting_violations(text, "fiction") == []
    heading_tree("#" * 500_000 + "\n# a" * 100_000)
