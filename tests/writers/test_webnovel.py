"""The protocol webnovel. WEBNOVELBENCH names the folder of the published values."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from chinese_writers import (
    STORY,
    TAGS,
    answer,
    block,
    folder_of,
    golden,
    grades_of,
    served,
    write_books,
    write_turns,
)
from fake_openai import FakeOpenAI

from litbench.raters.templates.rubric import load_rubric
from litbench.runs.errors import DataError
from litbench.writers.run import Run, run
from litbench.writers.webnovel import Webnovel, WebnovelOptions
from litbench.writers.webnovel.books import read_books, read_synopsis
from litbench.writers.webnovel.placement import ReferenceDistribution

MEANS = (3.5, 3.5, 4.0, 3.8, 4.1, 3.9, 4.1, 4.0)


@pytest.fixture
def reference(tmp_path):
    source = np.random.default_rng(0)
    ratings = 3 + 0.3 * (source.normal(size=(200, 1)) + source.normal(size=(200, len(TAGS))) / 2)
    path = tmp_path / "reference.json"
    ReferenceDistribution.fit(ratings, TAGS).write(path)
    return path


def rated(tmp_path, replies, texts=None, **options):
    """Run recorded replies for one book; `texts` are the writer's, one per reply."""
    texts = [STORY] * len(replies) if texts is None else texts
    steps = [f"chapter_{number}" for number in range(1, len(texts) + 1)]
    books = write_books(tmp_path / "books.json", ["book"], len(texts))
    rows = [("alpha", "book", "writer", *item) for item in zip(steps, texts, strict=True)]
    rows += [("alpha", "book", "gamma", *item) for item in zip(steps, replies, strict=False)]
    turns = f"recorded/{write_turns(tmp_path / 'turns.parquet', rows)}"
    out = tmp_path / "out"
    options = {"books": books, **options}
    run(Run("webnovel", out, {"alpha": turns}, {"gamma": turns}, options=options))
    result = grades_of(out)
    return {quantity: result["alpha", "book", "gamma", quantity] for *_, quantity in result}


@pytest.mark.parametrize(
    ("reply", "strict", "lenient"),
    [
        (block(4), 4, 4),
        (block("４"), 4, 4),
        (block(" 4 "), 4, 4),
        (block("\n4\n"), None, 4),
        (block(3.5), None, 3.5),
        (block("4/5"), None, 4),
        (block("4/10"), None, None),
        (block(1) + "\n以上是例子。\n" + block(4), 1, None),
        (block(0), 0, None),
        (block(6), 6, None),
        (block("好"), None, None),
        ("我不评分。", None, None),
    ],
)
def test_replies_are_read(reply, strict, lenient):
    rubric = load_rubric("webnovel")
    for expected, as_published in ((strict, True), (lenient, False)):
        result = rubric.read(reply, as_published=as_published)
        assert {rating.rating for rating in result.values()} == {expected}


def test_an_echoed_block_does_not_fill_in_for_another():
    rubric = load_rubric("webnovel")
    most = block(4).replace(f"<{TAGS[2]}>4</{TAGS[2]}>", "")
    for said in (block(1) + most, most + block(1)):
        assert [rating.rating for rating in rubric.read(said).values()] == [None] * 8


def test_means_are_over_the_chapters_that_were_read(tmp_path, reference):
    replies = [block(4), block(2), block(3, 6), "无"]
    result = rated(tmp_path, replies, reference=reference)
    assert result[TAGS[0]][0] == 3
    # Six is off the scale, so no rating of that chapter counts, and none of the last one.
    assert result[TAGS[1]][0] == 3
    assert result["mean"][0] == 3
    assert result["value"][0] == pytest.approx(
        float(ReferenceDistribution.read(reference, TAGS).value(np.full(8, 3.0)))
    )
    assert "16 of 32 ratings missing" in result["percentile"][1]
    assert "means over 2 chapters" in result["percentile"][1]


def test_fewer_chapters_than_in_the_reference_are_flagged(tmp_path, reference):
    for count in (9, 10):
        (tmp_path / str(count)).mkdir()
        result = rated(tmp_path / str(count), [block(4)] * count, reference=reference)
        flags = result["percentile"][1] or ""
        assert (f"means over {count} chapters" in flags) == (count < 10)


def test_a_chapter_with_a_missing_rating_is_dropped_as_published(tmp_path, reference):
    replies = [block(4), block(3, 3.5)]
    result = rated(tmp_path, replies, reference=reference, as_published=True)
    assert [result[tag][0] for tag in TAGS] == [4] * 8


def test_no_readable_reply_is_a_missing_grade(tmp_path, reference):
    result = rated(tmp_path, ["无", "无"], reference=reference)
    assert {grade for grade, _ in result.values()} == {None}


def test_without_reference_the_headline_is_the_mean(tmp_path):
    result = rated(tmp_path, [block(*MEANS)])
    assert result["mean"][0] == pytest.approx(np.mean(MEANS))
    assert "percentile" not in result
    assert json.loads((tmp_path / "out/manifest.json").read_text())["counts"]["headline"] == "mean"


def test_texts_are_cut_out_of_tags_and_empty_chapters_are_missing(tmp_path):
    texts = [f"好的：<text>\n{STORY}</text>完", f"<think>想</think>{STORY}", "<text></text>"]
    result = rated(tmp_path, [block(3)] * 2, texts)
    assert "1 of 3 chapters without text" in result["mean"][1]
    stories = pq.read_table(tmp_path / "out/stories.parquet")["text"].to_pylist()
    assert stories == [STORY.strip()] * 2


@pytest.mark.parametrize(
    ("reply", "as_published", "requests"),
    # Equal chapters of a book are rated once.
    [(block(3), False, 1), ("无法评分", False, 2), ("无法评分", True, 1)],
)
def test_human_chapters_are_rated_and_need_no_synopsis(
    tmp_path, capsys, reply, as_published, requests
):
    books = tmp_path / "books.jsonl"
    books.write_text(json.dumps({"request_id": "b", "novel": "无题", "novel_info": ["", ""]}))
    rows = [("human", "b", "writer", f"chapter_{number}", STORY) for number in (1, 2)]
    turns = f"recorded/{write_turns(tmp_path / 'turns.parquet', rows)}"
    options = {"books": books, "as_published": as_published}
    with served(lambda _: reply) as server:
        writers = {"human": turns, "new": server.model}
        judges = {"judge": server.model}
        run(Run("webnovel", tmp_path / "out", writers, judges, options=options, dry_run=True))
        assert (
            "1 of 2 would end early, for example b: chapter_1: no synopsis"
            in capsys.readouterr().out
        )
        run(Run("webnovel", tmp_path / "out", writers, judges, options=options))
        assert server.requests == requests
    grade = 3 if requests == 1 and not as_published else None
    assert grades_of(tmp_path / "out")["human", "b", "judge", "mean"][0] == grade
    assert "no synopsis" in (tmp_path / "out/rejected.jsonl").read_text()


def test_books_of_one_title_are_told_apart_by_id(tmp_path, reference, capsys):
    ids = ["渡口_1.上", "渡口_1.下", "渡口", "渡口 1"]
    options = {"books": write_books(tmp_path / "books.json", ids), "reference": reference}
    models = ({"甲": FakeOpenAI.model}, {"丙": FakeOpenAI.model})
    with served(answer) as server:
        run(Run("webnovel", tmp_path / "out", *models, options=options, dry_run=True))
        lines = [line.split() for line in capsys.readouterr().out.splitlines()[-3:-1]]
        # Ten chapters and ten ratings for each book.
        assert [int(line[2]) for line in lines] == [40, 40]
        assert server.requests == 0
        run(Run("webnovel", tmp_path / "out", *models, options=options))
        asked = server.requests
        run(Run("webnovel", tmp_path / "out", *models, options=options))
        assert server.requests == asked
    result = grades_of(tmp_path / "out")
    assert {row[1] for row in result} == set(ids)
    assert len({result["甲", name, "丙", "composite"][0] for name in ids}) == len(ids)


def test_a_place_above_the_99th_percentile_is_flagged(tmp_path, reference, program):
    rated(tmp_path, [block(5)] * 10, reference=reference)
    done = program(
        "litbench writers compare", "--runs", tmp_path / "out", "--out", tmp_path / "page"
    )
    assert done.returncode == 0, done.stderr
    assert "alpha lies above the 99th percentile" in (tmp_path / "page/writers.html").read_text()


def test_criteria_can_be_kept_from_the_writer(tmp_path):
    books = write_books(tmp_path / "books.json")
    told, untold = (
        Webnovel(WebnovelOptions(books, criteria=criteria)) for criteria in (True, False)
    )
    assert ("修辞" in told._system, "修辞" in untold._system) == (True, False)
    assert "writers are not told the criteria" in untold.record()["not_comparable"]


def test_published_texts_take_the_place_of_ours(tmp_path):
    systems = ("generation_system_with_criteria", "generation_system_without_criteria")
    texts = dict.fromkeys(systems, "写") | {
        "extraction_user": "{text}",
        "judge_user": "评 {chapter}",
    }
    (tmp_path / "prompts.json").write_text(json.dumps(texts))
    books = write_books(tmp_path / "books.json")
    protocol = Webnovel(WebnovelOptions(books, texts=tmp_path))
    assert protocol.rubric.render({"text": "===== 甲 ====="}) == [("user", "评 ===== 甲 =====")]
    assert protocol.files() == {"options.books": books, "options.texts": tmp_path}


def test_synopses_are_read_with_or_without_outer_tag():
    inner = "<主要人物> 甲 </主要人物>\n<主要情节>来\n去</主要情节><重要场景>渡口</重要场景>"
    expected = "<主要人物>甲</主要人物>\n<主要情节>来\n去</主要情节>\n<重要场景>渡口</重要场景>"
    assert read_synopsis(inner) == expected
    assert read_synopsis(f"好：<提取结果>{inner}</提取结果>") == expected
    assert read_synopsis(inner.replace("重要场景", "场景")) is None
    assert read_synopsis(inner.replace("渡口", "")) is None


BOOK = {"request_id": "b", "novel": "无题", "novel_info": ["一"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1", "cannot read"),
        ("[]", "no books"),
        ("\n3\n", "book 1:  is 3"),
        ([BOOK, BOOK], "'b' is repeated"),
        ([BOOK, {**BOOK, "request_id": " "}], "book 2: request_id is ' '"),
        ([BOOK, {**BOOK, "novel": None}], "book 2: novel is None"),
        ([BOOK, {**BOOK, "novel_info": []}], "book 2: novel_info is"),
        ([BOOK, {**BOOK, "novel_info": "一"}], "book 2: novel_info is"),
        ([BOOK, {**BOOK, "original score": [3] * 7}], "book 2: original score is .* at least 8"),
    ],
)
def test_bad_books_are_refused(tmp_path, text, message):
    path = tmp_path / "books.json"
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    with pytest.raises(DataError, match=message):
        read_books(path)


def test_readme_sample_is_placed_as_published(tmp_path):
    file = folder_of("WEBNOVELBENCH") / "fixed_parameters.json"
    result = rated(tmp_path, [block(*MEANS)] * 10, reference=file)
    expected = {"composite": 1.96726, "value": 0.8749, "percentile": 99.31}
    for quantity, number in expected.items():
        assert result[quantity][0] == pytest.approx(number, abs=5e-3 if number > 50 else 5e-5)


def test_replies_are_read_as_published(tmp_path):
    cases = golden("webnovel/parsing")["cases"]
    file = folder_of("WEBNOVELBENCH") / "fixed_parameters.json"
    for number, case in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        replies = [case["reply"], block(3)]
        result = rated(folder, replies, reference=file, as_published=True)
        expected = case["novel_mean_with_a_second_chapter_of_all_3"]
        assert [result[tag][0] for tag in TAGS] == expected, case["id"]
        assert round(result["value"][0], 4) == case["pred_norm"]
        assert round(result["percentile"][0], 2) == case["pred_percentile"]


def test_the_writers_page_draws_the_distribution_of_each_criterion(tmp_path, program):
    books = write_books(tmp_path / "books.json", [f"book_{n}" for n in range(12)], 1)
    rows = []
    for n in range(12):
        rows += [
            ("alpha", f"book_{n}", "writer", "chapter_1", STORY),
            ("alpha", f"book_{n}", "gamma", "chapter_1", block(1 + n % 4)),
        ]
    turns = f"recorded/{write_turns(tmp_path / 'turns.parquet', rows)}"
    out = tmp_path / "out"
    run(Run("webnovel", out, {"alpha": turns}, {"gamma": turns}, options={"books": books}))
    done = program("litbench writers compare", "--runs", out, "--out", tmp_path / "page")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page/writers.html").read_text(encoding="utf-8")
    assert page.count("<svg") >= 1 + 8 + 1
    assert "Distributions" in page
    assert "densities" not in page
