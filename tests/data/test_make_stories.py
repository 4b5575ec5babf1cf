"""The program make_stories: rows are streamed, cleaned and counted, and none is lost."""

import hashlib
import json
import resource
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from fake_hub import FakeHub, parquet_bytes

from litbench.data import chunks
from litbench.data.ingest import RejectedRows, StreamingTable, read_foreign, stream_foreign
from litbench.data.records import STORIES
from litbench.data.text import count_words_of
from litbench.runs.config import build
from litbench.runs.errors import ConfigError, DataError

Program = Callable[..., subprocess.CompletedProcess[str]]

MAP = {"prompt_id": "post", "prompt": "title", "text": "body", "source": "'test'"}


@pytest.fixture
def small_chunks(monkeypatch):
    """Set chunks of three rows, so that few rows make many chunks."""
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 3)


@pytest.fixture
def module(load_program):
    return load_program("data_prep/make_stories.py")


@dataclass
class Artifact:
    """What a run wrote."""

    rows: list[dict[str, Any]]
    rejected_rows: list[dict[str, Any]]
    counts: dict[str, Any]


def read_product(out):
    noted = (out / "rejected.jsonl").read_text(encoding="utf-8").splitlines()
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    rows = pq.read_table(out / "stories.parquet").to_pylist()
    assert sum(manifest["counts"]["rejected_rows"].values()) == len(noted)
    assert manifest["counts"]["stories"] == len(rows)
    assert not list(out.glob(".part-*"))
    return Artifact(rows, [json.loads(line) for line in noted], manifest["counts"])


@pytest.fixture
def made(module, tmp_path):
    """Run the program on keys of its config, and read what it wrote."""
    numbers = iter(range(1_000))

    def make(**keys):
        out = tmp_path / f"out{next(numbers)}"
        module.main(build(module.Config, {"out": str(out), **keys}))
        return read_product(out)

    return make


def write_lines(path, rows):
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def story(number, **changes):
    return {
        "story_id": f"s{number}",
        "post": f"p{number // 4}",
        "title": f"A prompt, number {number // 4}",
        "body": f"Story {number} went on, and on.",
        "score": number % 7,
        "created_utc": 1_500_000_000 + number,
        **changes,
    }


# Streams ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("name", ["raw.parquet", "raw.csv", "raw.jsonl", "raw"])
def test_broken_row_number_does_not_depend_on_chunks(tmp_path, name):
    rows = [story(k, score="many" if k % 5 == 4 else str(k)) for k in range(23)]
    path = tmp_path / name
    if name.endswith("jsonl"):
        write_lines(path, rows)
    elif name.endswith("parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif name.endswith("csv"):
        pa.csv.write_csv(pa.Table.from_pylist(rows), path)
    else:
        datasets = pytest.importorskip("datasets")
        datasets.Dataset(pa.Table.from_pylist(rows)).save_to_disk(str(path))
    # Of 5, 10, 15 and 20; in the order of text s19 comes before s4.
    for where, expected in (("true", [5, 10, 15, 20]), ("story_id > 's2'", [5, 10])):
        rejected_rows = RejectedRows()
        list(stream_foreign(path, STORIES, columns=MAP, rejected_rows=rejected_rows, where=where))
        assert [row["row"] for row in rejected_rows.rows] == expected


def test_chunks_are_bounded_in_bytes_too(tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 100_000)
    rows = [story(k, body=f"{k} " * 10_000) for k in range(40)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "raw.parquet", compression="none")
    write_lines(tmp_path / "raw.jsonl", rows)
    for name in ("raw.parquet", "raw.jsonl"):
        sizes = [chunk.nbytes for chunk in stream_foreign(tmp_path / name, STORIES, columns=MAP)]
        assert max(sizes) < 200_000, name
        assert sum(sizes) > 800_000


@pytest.mark.usefixtures("small_chunks")
def test_a_column_that_comes_late_is_null_before(tmp_path):
    rows = [story(k) for k in range(12)]
    for row in rows[:7]:
        del row["score"]
    for row in rows[5:]:
        row["flag"] = "seen"
    path = write_lines(tmp_path / "raw.jsonl", rows)
    columns = {**MAP, "flair": "flag", "score": "score"}
    (tmp_path / "large").mkdir()
    large = StreamingTable([path], STORIES, tmp_path / "large", columns=columns)
    table = pa.concat_tables(large.chunks())
    assert table["score"].to_pylist() == [None] * 7 + [k % 7 for k in range(7, 12)]
    assert table["flair"].to_pylist() == [None] * 5 + ["seen"] * 7
    rejected_rows = RejectedRows()
    where = "flag = 'seen' AND score > 1"
    chunks = list(
        stream_foreign(path, STORIES, columns=MAP, rejected_rows=rejected_rows, where=where)
    )
    expected = [f"s{k}" for k in range(7, 12) if k % 7 > 1]
    assert pa.concat_tables(chunks)["story_id"].to_pylist() == expected
    assert rejected_rows.not_selected == 12 - len(expected)
    with pytest.raises(DataError, match=r"'flagg' .mapped to flair"):
        list(stream_foreign(path, STORIES, columns={**MAP, "flair": "flagg"}))


# Nested sets ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["posts.parquet", "posts.jsonl"])
def test_unnested_lists_become_stories(tmp_path, made, name):
    posts = [
        {"title": "A lamp", "votes": 9, "texts": ["one", "two words"], "scores": [3, -1]},
        {"title": "A tide", "votes": 2, "texts": [], "scores": []},
        {"title": "A gate", "votes": 5, "texts": ["four", None, "six"], "scores": [1, 2, 3]},
    ]
    path, texts, scores = tmp_path / name, "texts", "scores"
    if name.endswith("jsonl"):
        write_lines(path, posts)
        texts, scores = (f"from_json({item}, '[\"VARCHAR\"]')" for item in ("texts", "scores"))
    else:
        pq.write_table(pa.Table.from_pylist(posts), path)
    columns = {
        "story_id": f"md5(concat_ws('|', title, unnest({texts})))",
        "prompt_id": "md5(title)",
        "prompt": "title",
        "text": f"unnest({texts})",
        "score": f"unnest({scores})",
    }
    artifact = made(input=str(path), columns=columns)
    assert [(row["prompt"], row["text"], row["score"], row["votes"]) for row in artifact.rows] == [
        ("A lamp", "one", 3, 9),
        ("A lamp", "two words", -1, 9),
        ("A gate", "four", 1, 5),
        ("A gate", "six", 3, 5),
    ]
    name = hashlib.md5(b"A lamp|one", usedforsecurity=False).hexdigest()
    assert artifact.rows[0]["story_id"] == name
    assert artifact.counts["rejected_rows"] == {"text: null": 1}
    assert [row["row"] for row in artifact.rejected_rows] == [3]


def test_the_published_preferences_are_streamed_by_their_config(tmp_path):
    pytest.importorskip("datasets")
    rows = [
        {
            "post_title": f"[WP] Prompt {k // 2}",
            "post_text": "" if k % 2 else None,
            "post_scores": k,
            "comment_texts": ["[deleted]", "[deleted]", f"A moth of {k} came in."],
            "comment_scores": [1, 1, k],
            "comment_times": ["1500000000", "2017-07-14 02:40:01", "2017-07-14T02:40:02"],
        }
        for k in range(450)
    ]
    with FakeHub() as hub:
        name = "euclaise/WritingPrompts_preferences"
        table = pa.Table.from_pylist(rows)
        commit = hub.publish(name, {"data/train-00000-of-00001.parquet": parquet_bytes(table)})
        config = "configs/data/writing_prompts_preferences_stories.yaml"
        arguments = ["--config", config, "--out", tmp_path / "out", "--tokenizer", "null"]
        done = hub.run(tmp_path, "data_prep/make_stories.py", *arguments)
    assert done.returncode == 0, done.stderr
    artifact = read_product(tmp_path / "out")
    assert [row["text"] for row in artifact.rows] == [
        text for row in rows for text in row["comment_texts"]
    ]
    assert [row["created_utc"] - 1_500_000_000 for row in artifact.rows] == [0, 1, 2] * 450
    assert artifact.rows[5]["score"] == 1
    # Two posts of one title are two, and so are two deleted stories of one post.
    assert len({row["prompt_id"] for row in artifact.rows}) == 450
    assert artifact.counts["rejected_rows"] == {}
    assert commit in (tmp_path / "out" / "manifest.json").read_text(encoding="utf-8")


# The program ---------------------------------------------------------------------------------


def test_words_are_counted_after_cleaning(tmp_path, made):
    body = "The moth came in. " * 10
    rows = [
        story(0, title="[WP] A moth.", body=body + "\n\nEDIT: thanks for the gold!"),
        story(1, title="A lamp.", body=body),
        story(2, title="[EU] A lamp.", body=body),
    ]
    path = str(write_lines(tmp_path / "raw.jsonl", rows))
    artifact = made(input=path, columns=MAP)
    assert [row["prompt"] for row in artifact.rows] == ["A moth.", "A lamp.", "A lamp."]
    assert "gold" not in artifact.rows[0]["text"]
    for row in artifact.rows:
        assert row["n_words"] == count_words_of(row["text"]) == 40
    assert artifact.counts["cleaning"]["strip_prompt_tags"] == 2
    assert artifact.counts["cleaning"]["cut_vote_talk"] == 1
    off = dict.fromkeys(artifact.counts["cleaning"], False)
    artifact = made(input=path, columns=MAP, cleaning=off)
    assert artifact.rows[0]["text"] == rows[0]["body"]
    assert artifact.rows[0]["prompt"] == "[WP] A moth."
    assert artifact.counts["cleaning"] == {}


@pytest.mark.usefixtures("small_chunks")
def test_several_files_become_one_table(tmp_path, made):
    for name, rows in {
        "b/stories.jsonl": [story(4), story(5, body="a second version"), story(6, mark=[1])],
        "a/stories.jsonl": [story(k, mark=k) for k in (9, 0, 1, 2, 3)] + [story(5)],
        "c/stories.jsonl": [story(2, mark=2), story(7, score="many")],
    }.items():
        (tmp_path / name).parent.mkdir()
        write_lines(tmp_path / name, rows)
    pattern = str(tmp_path / "*" / "stories.jsonl")
    artifact = made(input=pattern, columns=MAP)
    names = [row["story_id"] for row in artifact.rows]
    assert [name for name in names if name != "s5"] == ["s9", "s0", "s1", "s2", "s3", "s4", "s6"]
    assert artifact.counts["rejected_rows"] == {
        "score: not a number": 1,
        "story_id: duplicate id": 1,
        "story_id: repeated row": 1,
    }
    files = [Path(row["file"]).parent.name for row in artifact.rejected_rows]
    assert files == sorted(files)
    repeated = next(row for row in artifact.rejected_rows if row["reason"] == "repeated row")
    assert (Path(repeated["file"]).parent.name, repeated["row"]) == ("c", 1)
    # No type holds 9 and [1]: the column is JSON.
    assert [row["mark"] for row in artifact.rows if row["story_id"] in ("s9", "s6")] == ["9", "[1]"]
    # Which of two versions stays does not depend on the order of the files.
    texts = {row["story_id"]: row["text"] for row in artifact.rows}
    (tmp_path / "a").rename(tmp_path / "z")
    again = made(input=pattern, columns=MAP)
    assert {row["story_id"]: row["text"] for row in again.rows} == texts
    (tmp_path / "z" / "caf\udce9.jsonl").write_text("{}")
    with pytest.raises(ConfigError, match=r"caf\\udce9.jsonl'"):
        made(input=str(tmp_path / "*" / "*.jsonl"), columns=MAP)
    with pytest.raises(DataError, match="no file matches"):
        made(input=str(tmp_path / "*" / "none.jsonl"), columns=MAP)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("order", [1, -1])
def test_latest_copy_of_a_story_is_kept(tmp_path, made, order):
    # By content alone either would stay, for about half of the stories.
    for name, version in {
        "a": ("as archived", None),
        "b": ("[deleted]", 20),
        "c": ("old", 10),
    }.items():
        (tmp_path / name).mkdir()
        rows = [story(k, body=version[0], score_utc=version[1]) for k in range(12)]
        write_lines(tmp_path / name / "stories.jsonl", [*rows, *rows[:3]][::order])
    (tmp_path / "a").rename(tmp_path / ("a" if order == 1 else "z"))
    artifact = made(input=str(tmp_path / "*" / "stories.jsonl"), columns=MAP)
    assert len(artifact.rows) == 12
    assert {row["text"] for row in artifact.rows} == {"[deleted]"}
    assert artifact.counts["rejected_rows"] == {
        # Three rows of each source stand there twice; only the latest version is repeated.
        "story_id: duplicate id": 2 * 15,
        "story_id: repeated row": 3,
    }
    # Where none has a time or all have the same one, the smallest by content stays as ever.
    both = [
        story(k, body=text, score_utc=at)
        for k in range(12)
        for at in (None, 5)
        for text in ("one", "two")
    ]
    path = write_lines(tmp_path / "raw.jsonl", both[::order])
    stories = read_foreign(path, STORIES, columns=MAP, rejected_rows=RejectedRows()).to_pylist()
    assert [row["score_utc"] for row in stories] == [5] * 12
    assert {row["text"] for row in stories} == {"one", "two"}
    assert stories == made(input=str(path), columns=MAP).rows


@pytest.mark.long
def test_a_million_rows_need_bounded_memory_and_each_is_counted(tmp_path, program_process):
    count, every = 1_000_000, 20
    broken = [
        ("text: null", {"body": None}),
        ("score: not a number", {"score": "many"}),
        ("created_utc: in the future", {"created_utc": "3015-01-01"}),
        ("story_id: null", {"story_id": None}),
    ]
    expected = {row: broken[row // every % 4][0] for row in range(every, count + 1, every)}
    path = tmp_path / "raw.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for row in range(1, count + 1):
            changes = broken[row // every % 4][1] if row in expected else {}
            file.write(json.dumps(story(row, **changes)) + "\n")
    arguments = ["--input", str(path), "--out", str(tmp_path / "out"), "--columns", json.dumps(MAP)]
    done = program_process("data_prep/make_stories.py", *arguments, timeout=1_800)
    assert done.returncode == 0, done.stderr
    # Kibibytes on Linux.
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10 < 4_096
    artifact = read_product(tmp_path / "out")
    noted = {row["row"]: f"{row['column']}: {row['reason']}" for row in artifact.rejected_rows}
    assert noted == expected
    ids = [row["story_id"] for row in artifact.rows]
    assert ids == [f"s{row}" for row in range(1, count + 1) if row not in expected]


def test_reddits_escapes_are_undone_and_account_names_hashed(made, tmp_path, monkeypatch):
    monkeypatch.setenv("LITBENCH_SALT", "a salt of enough characters")
    plain = "It opened at dawn, & the keeper <left>."
    title = "[WP] A door &amp; a keeper who waited for the last boat of the year"
    rows = [
        story(
            number,
            title=title,
            body=f"&gt; {title}\n\n{body}",
            author=author,
            author_fullname=f"t2_{author}",
        )
        for number, (author, body) in enumerate(
            [
                ("invented_writer", "It opened at dawn, &amp; the keeper &lt;left&gt;."),
                ("Invented_Writer", plain),
                ("ClockBot", f"&amp;#x200B;\n\n{plain}\n\n&#x200B;"),
            ]
        )
    ]
    product = made(input=str(write_lines(tmp_path / "raw.jsonl", rows)), columns=MAP)
    assert product.counts["unescaped"] == 3
    assert product.counts["cleaning"]["cut_quoted_prompt"] == 3
    assert [row["text"].strip("\u200b\n") for row in product.rows] == [plain] * 3
    assert {row["n_words"] for row in product.rows} == {7}
    first, second, bot = product.rows
    assert first["author"] == second["author"] != bot["author"] == "bot"
    assert len(first["author"]) == len(first["author_fullname"]) == 16
    for file in tmp_path.glob("out0/*"):
        assert b"nvented" not in file.read_bytes()
