"""Novels become chapters, books with synopses, and a reference."""

import json
import re
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chinese_writers import STORY, SYNOPSIS, TAGS, served
from fake_openai import FakeOpenAI

from litbench.data.ingest import RejectedRows
from litbench.data.records import GRADES
from litbench.data.tables import write_table
from litbench.runs.errors import DataError
from litbench.writers.webnovel import Webnovel, WebnovelOptions
from litbench.writers.webnovel.import_novels import NovelImport, read_novels
from litbench.writers.webnovel.novels import (
    consecutive_chapters,
    one_per_percentile,
    split_chapters,
)

NUMERALS = "一二三四五六七八九十"


def novel(name, chapters=12):
    """A novel; `name` makes its chapters differ from those of others."""
    heads = [*(f"第{numeral}章 {name}" for numeral in NUMERALS), f"第１１章：{name}", "Chapter 12"]
    bodies = [f"{name * 3}走到第{k}里。" * 8 + STORY * (k % 3) for k in range(chapters)]
    return "\n".join(f"{h}\n{b}" for h, b in zip(heads[:chapters], bodies, strict=True))


@pytest.mark.parametrize(
    ("heading", "is_heading"),
    [
        ("第一章", True),
        ("第一章 渡口", True),
        ("　　第十二回　过客夜宿孤村", True),
        ("第１２章：归人", True),
        ("第12节", True),
        ("第一百零三章风雪夜归人", True),
        ("第三章 夜深，人静", True),
        ("楔子", True),
        ("番外二 老人的船", True),
        ("尾声", True),
        ("Chapter 7. The Ferry", True),
        ("他翻到第一章 渡口", False),
        ("第一章我已经写完了，还给了她看。", False),
        ("第二卷说的是渡口的事，他没有再读。", False),
        ("尾声响起来，没有人听见", False),
        ("第几章", False),
    ],
)
def test_headings_stand_at_the_start_of_a_line(heading, is_heading):
    assert len(split_chapters(f"第零章\n开头\n{heading}\n正文")) == 1 + is_heading
    # A file may begin with a byte order mark.
    assert len(split_chapters(f"\ufeff{heading}\n正文\n第二章\n结尾")) == 1 + is_heading


def test_contents_and_repeated_headings_make_no_chapters():
    names = [f"第{numeral}章 渡口" for numeral in NUMERALS]
    contents = "书名\n目录\n" + "\n".join(names) + "\n出版说明\n"
    text = contents + "\r\n".join(f"第一卷\n{name}\n{name}\n正文{name}" for name in names)
    assert split_chapters(text) == [f"正文{name}" for name in names]
    # Volumes may count their chapters anew.
    volumes = "\n".join(f"第{n}卷\n第一章\n甲{n}\n第二章\n乙{n}" for n in "一二")
    assert split_chapters(volumes) == ["甲一", "乙一", "甲二", "乙二"]
    assert split_chapters(f" {STORY}") == [STORY.strip()], "a text without headings is one chapter"
    assert split_chapters(" \n") == []


def test_chapters_are_consecutive_and_their_place_is_seeded():
    chapters = [str(number) for number in range(30)]
    drawn = [consecutive_chapters(chapters, 10, seed, "甲") for seed in range(40)]
    for numbers in drawn:
        start = int(numbers[0])
        assert numbers == chapters[start : start + 10]
        assert len(numbers) == 10
    assert drawn[3] == consecutive_chapters(chapters, 10, 3, "甲")
    assert len({numbers[0] for numbers in drawn}) > 10


def test_the_first_chapters_of_classics(tmp_path):
    """5.2 rates the first ten chapters, wherever the seed would begin."""
    (tmp_path / "甲.txt").write_text(novel("甲"))
    for seed in range(4):
        config = NovelImport(tmp_path, tmp_path / "out", seed=seed, first_chapters=True)
        (read,) = read_novels(config, RejectedRows())
        assert read.chapters == split_chapters(novel("甲"))[:10]


def test_one_book_per_percentile_and_each_once():
    percentiles = {f"b{k}": 100 * (k + 1) / 4332 for k in range(4332)}
    drawn = one_per_percentile(percentiles, 1)
    assert all(p < percentiles[name] <= p + 1 for p, name in enumerate(drawn))
    assert drawn == one_per_percentile(dict(reversed(percentiles.items())), 1)
    assert drawn != one_per_percentile(percentiles, 2)
    few = {f"b{k}": float(k % 60) for k in range(120)}
    sparse = one_per_percentile(few, 1)
    assert len(set(drawn)) == len(set(sparse)) == 100
    with pytest.raises(DataError, match="99 books"):
        one_per_percentile({f"b{k}": 1.0 for k in range(99)}, 0)


@pytest.fixture
def novels(tmp_path):
    folder = tmp_path / "novels"
    for author, title in (
        ("甲", "一_上.v2"),
        ("甲", "二"),
        ("甲", "三"),
        ("乙", "一_上.v2"),
        ("乙", "四"),
        ("丙", "五"),
    ):
        (folder / author).mkdir(parents=True, exist_ok=True)
        (folder / author / f"{title}.txt").write_text(novel(author + title))
    (folder / "乙" / "抄本.txt").write_text(novel("甲二") + "\n又一行。")
    (folder / "乙" / "短.txt").write_text(novel("短", 9))
    (folder / "乙" / "坏.txt").write_bytes(b"\xff\xfe\xff")
    return folder


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def rejected(out):
    return {row["reason"]: row["value"] for row in lines_of(out / "rejected.jsonl")}


def test_novels_become_books_and_human_turns(novels, tmp_path, program):
    pytest.importorskip("rensa")
    arguments = ("litbench writers import_novels", "--input", novels, "--out", tmp_path / "out")
    dry = program(*arguments, "--dry_run", "true")
    assert (dry.returncode, (tmp_path / "out").exists()) == (0, False), dry.stderr
    done = program(*arguments)
    assert done.returncode == 0, done.stderr
    books = lines_of(tmp_path / "out/books.jsonl")
    ids = ["乙/一_上.v2.txt", "乙/四.txt", "乙/抄本.txt", "甲/一_上.v2.txt", "甲/三.txt"]
    assert [book["request_id"] for book in books] == ids
    assert [book["novel"] for book in books if "上" in book["novel"]] == ["一_上.v2"] * 2
    assert rejected(tmp_path / "out").keys() == {
        "fewer than 10 chapters",
        "cannot be read as utf-8",
        "author of fewer than 2 works",
        "near-duplicate of a novel that is kept",
    }
    turns = pq.read_table(tmp_path / "out/turns.parquet").to_pylist()
    assert len(turns) == 10 * len(ids)
    steps = [int(re.search(r"走到第(\d+)里", turn["text"])[1]) for turn in turns[:10]]
    assert steps == list(range(steps[0], steps[0] + 10))
    assert len(Webnovel(WebnovelOptions(tmp_path / "out/books.jsonl")).items()) == len(ids)
    assert "unchanged" in program(*arguments).stdout
    wrong = program(*arguments, "--encoding", "gb")
    assert wrong.stderr == "error: encoding: unknown encoding: gb: give one such as gb18030\n"


def test_synopses_are_asked_for_and_resumed(novels, tmp_path, program):
    pytest.importorskip("rensa")
    never = "甲三甲三甲三走到第5里"

    def extract(question):
        return "没有提要" if never in question else f"<提取结果>{SYNOPSIS}</提取结果>"

    arguments = [
        "litbench writers import_novels",
        "--input",
        novels,
        "--out",
        tmp_path / "out",
        "--extractor.model",
        FakeOpenAI.model,
    ]
    with served(extract) as server:
        dry = program(*arguments, "--dry_run", "true")
        assert re.search(r"judge\)? +50 ", dry.stdout), dry.stdout
        assert server.requests == 0
        done = program(*arguments)
        assert done.returncode == 0, done.stderr
        # The synopsis that cannot be read is asked for three times.
        assert server.requests == 52
        for name in ("manifest.json", "books.jsonl"):
            (tmp_path / "out" / name).unlink()
        assert program(*arguments).returncode == 0
        assert server.requests == 52
    books = lines_of(tmp_path / "out/books.jsonl")
    assert [book["novel_info"] for book in books] == [[SYNOPSIS] * 10] * 4
    assert rejected(tmp_path / "out")["no synopsis"].startswith("'甲/三.txt: chapter_")


def test_human_grades_become_a_reference_and_a_subset(tmp_path, program):
    pytest.importorskip("rensa")
    source = np.random.default_rng(0)
    names = ["".join(map(chr, source.integers(0x4E00, 0x9000, 40))) for _ in range(120)]
    table = [
        {"novel_id": f"n{k}", "title": "无题", "author": f"a{k // 2}", "text": novel(name)}
        for k, name in enumerate(names)
    ]
    write_table(pa.Table.from_pylist(table), tmp_path / "novels.parquet")
    ratings = 3 + 0.3 * (source.normal(size=(120, 1)) + source.normal(size=(120, 8)) / 2)
    rows = [
        {
            "writer": "human",
            "prompt_id": f"n{k}",
            "sample": 0,
            "rater": "j",
            "quantity": tag,
            "grade": grade,
        }
        for k, row in enumerate(ratings.tolist())
        for tag, grade in zip(TAGS, row, strict=True)
    ]
    write_table(pa.Table.from_pylist(rows, GRADES.arrow()), tmp_path / "grades.parquet")
    arguments = [
        "litbench writers import_novels",
        "--input",
        tmp_path / "novels.parquet",
        "--out",
        tmp_path / "out",
        "--grades",
        tmp_path / "grades.parquet",
    ]
    done = program(*arguments)
    assert done.returncode == 0, done.stderr
    books = lines_of(tmp_path / "out/books.jsonl")
    assert len({book["request_id"] for book in books}) == 100
    protocol = Webnovel(
        WebnovelOptions(tmp_path / "out/books.jsonl", tmp_path / "out/reference.json")
    )
    result = protocol._reference.percentile(ratings)
    assert sorted(result) == pytest.approx([100 * (k + 1) / 120 for k in range(120)])
    percentiles = {f"n{k}": percentile for k, percentile in enumerate(result)}
    assert [book["percentile"] for book in books] == [
        percentiles[book["request_id"]] for book in books
    ]
    rows.append({**rows[0], "rater": "k"})
    write_table(pa.Table.from_pylist(rows, GRADES.arrow()), tmp_path / "grades.parquet")
    refused = program(*arguments)
    assert "by 2 judges" in refused.stderr


def test_three_empty_headings_in_a_row_are_a_table_of_contents():
    def novel(count):
        names = [f"第{number}章" for number in range(count + 1)]
        return "\n".join([*names, "前言", *names[-1:], "正文"])

    assert split_chapters(novel(3)) == ["正文"]
    assert split_chapters(novel(2)) == ["前言", "正文"]


def test_chapters_are_split_in_linear_time():
    """Four times the headings may take eight times as long; a quadratic search takes sixteen."""
    seconds = []
    for count in (4_000, 16_000):
        novel = "\n".join(f"第{number}章" for number in range(count))
        started = time.process_time()
        assert split_chapters(novel) == []
        seconds.append(time.process_time() - started)
    assert seconds[1] < 8 * seconds[0]
