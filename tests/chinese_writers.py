"""What the tests of the Chinese protocols share: own texts, tables, and a server that answers."""

import json
import os
import re
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from fake_openai import FakeOpenAI

from litbench.data.records import TURNS
from litbench.data.tables import write_table
from litbench.data.text import count_words_of, digest

TAGS = (
    "修辞手法评分",
    "感官描述丰富度评分",
    "角色平衡度评分",
    "角色对白独特性评分",
    "角色一致性评分",
    "意境匹配度评分",
    "语境适配度评分",
    "跨场景衔接度评分",
)
STORY = "渡口只有一条船，撑船的老人每天等最后一班客人。那天夜里没有人来，船却吃水很深。\n\n"
SYNOPSIS = (
    "<主要人物>老人、过客</主要人物>\n<主要情节>(1) 老人等客 (2) 船沉了</主要情节>\n"
    "<重要场景>渡口</重要场景>"
)


def folder_of(variable):
    """The folder that a variable names; skips the test where it is not set."""
    if variable not in os.environ:
        pytest.skip(f"{variable} not set")
    return Path(os.environ[variable])


def golden(name):
    """A file of golden values: numbers, and outputs for invented texts."""
    folder = Path(__file__).parent / "golden"
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def published(name):
    """A file of golden values for public texts, which are not part of this repository."""
    return json.loads((folder_of("GOLDEN") / f"{name}.json").read_text(encoding="utf-8"))


def block(*numbers):
    """A reply that rates the eight criteria; the last number holds for the rest."""
    filled = [*numbers, *[numbers[-1]] * (len(TAGS) - len(numbers))]
    return "".join(f"<{tag}>{number}</{tag}>" for tag, number in zip(TAGS, filled, strict=True))


def write_books(path, ids=("book_1.a", "book_1.b"), chapters=10, **more):
    """Books with the same title, and synopses that differ."""
    books = [
        {
            "request_id": name,
            "novel": "渡口",
            **more,
            "novel_info": [f"{SYNOPSIS}\n第{number}回 {name}" for number in range(chapters)],
        }
        for name in ids
    ]
    path.write_text(json.dumps(books, ensure_ascii=False), encoding="utf-8")
    return path


def write_turns(path, rows):
    """A table of turns from (writer, prompt_id, role, step, text)."""
    names = ("writer", "prompt_id", "role", "step", "text")
    rows = [
        {**dict(zip(names, row, strict=True)), "sample": 0, "outcome": "answered"} for row in rows
    ]
    write_table(pa.Table.from_pylist(rows, TURNS.arrow()), path)
    return path


def write_instructions(path, rows):
    """A table of instructions; what a row leaves out is harmless."""
    base = {"task": "open", "genre": "小说", "information": "", "reference": STORY * 3}
    full = [
        {
            "instruction_id": f"i{number}",
            "instruction": f"写一篇关于渡口的小说，第{number}号。",
            **base,
            **row,
        }
        for number, row in enumerate(rows)
    ]
    write_table(pa.Table.from_pylist(full), path)
    return path


@contextmanager
def served(reply, **options):
    """A server that answers, and the environment that leads to it."""
    pytest.importorskip("inspect_ai")
    with FakeOpenAI(reply, **options) as server:
        yield server


def shown(question, name):
    """What a question shows between its markers, such as 文章."""
    return re.search(rf"===== {name}开始 =====\n(.*?)\n===== {name}结束", question, re.S)[1]


def rate_by_length(question):
    """Judge a text of any of the rubrics by its length alone."""
    name = "正文" if "正文开始" in question else "文章"
    words = count_words_of(shown(question, name))
    if name == "正文":
        return block(round(1 + words / 100_000, 9))
    highest = 3 if "1 到 3 的整数" in question else 10
    return f"Score: [[{round(1 + (highest - 1) * words / 100_000, 9)}]]"


def answer(question):
    """Write, plan and rate; what is said depends on the question alone, and some of it is bad."""
    number = int(digest("chinese", question), 16)
    if "评分" not in question:
        text = STORY * (3 + number % 9) + f"船号{number % 10**6}。"
        return f"<text>{text}</text>" if "主要人物" in question else text
    if "标题与层次" in question:
        return json.dumps({"weights": [0.5, 0.2, 0.3]})
    if "权重" in question:
        plans = ([0.1, 0.4, 0.2, 0.3], [0.4, 0.4, 0.4, 0.4], [0.5, 0.5, -0.5, -0.5])
        return json.dumps({"weights": plans[number % 3], "explanation": "一"})
    if "正文开始" in question:
        good = block(*(1 + (number >> shift) % 5 for shift in range(8)))
        bad = (block(1) + good, good[:-60], block(6), "无法评分", good.replace("4", "4/5"))
        return bad[number % 16] if number % 16 < len(bad) else good
    if "自行拟定" in question:
        criteria = {"情节": {"weight": 1, "score": 1 + number % 9}}
        return json.dumps({"criteria": criteria, "overall": 1 + number % 9})
    good = f"理由若干。\nScore: [[{1 + number % 3}]]"
    bad = ("写得不错。", "Score: [[12]]", "[[2]] 改为 Score：[[3]]")
    return bad[number % 12] if number % 12 < len(bad) else good


def grades_of(folder):
    """The grades of a run by writer, item, rater and quantity."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    rows = pq.read_table(Path(folder) / "grades.parquet").to_pylist()
    keys = ("writer", "prompt_id", "rater", "quantity")
    return {tuple(row[key] for key in keys): (row["grade"], row["flags"]) for row in rows}
