"""Headings, formatting and paragraphs of Chinese texts.

GOLDEN and HOWTOBENCH name the folders of the values for public texts, and of the texts.
"""

import math
from collections import Counter

import duckdb
import pytest
from chinese_writers import folder_of, golden, published

from litbench.writers.tow.headings import (
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
    results = [(h.kind, h.title, h.number, h.line) for h in find_headings(text)]
    assert results == [
        ("markdown", "雨", 2, 0),
        ("chinese", "风", 10, 2),
        ("chinese_second", "云", 21, 3),
        ("markdown", "#雪", 6, 4),
        ("chinese", "雷", 0, 5),
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


def test_published_scores_of_published_texts():
    """How many texts of a task have a score, by the released rule."""
    path = str(folder_of("HOWTOBENCH") / "outputs.parquet")
    query = "select task, text from read_parquet(?) where text <> ''"
    rows = duckdb.execute(query, [path]).fetchall()
    assert Counter((task, published_formatting_score(text)) for task, text in rows) == {
        ("completion", 5): 271,
        ("completion", 10): 2_386,
        ("guide", 5): 1_641,
        ("guide", 10): 1_519,
        ("open", 5): 1_507,
        ("open", 10): 1_762,
    }


@pytest.mark.parametrize("start", ["- ", "#", "一、", "1."])
def test_long_lines_are_read_in_linear_time(start):
    """In quadratic time, these lines would take minutes."""
    text = start + " " * 250_000 + "!" * 250_000
    assert formatting_violations(text, "fiction") == []
    heading_tree("#" * 500_000 + "\n# a" * 100_000)
