"""Collecting stories with PRAW from a local server, with faults."""

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from fake_reddit import (
    CLIENT_ID,
    CLIENT_SECRET,
    SALT,
    FakeReddit,
    World,
    make_world,
)

from litbench.collect.reddit import RedditError
from litbench.data.records import STORIES
from litbench.data.sources.posts import hash_author
from litbench.data.tables import read_table
from litbench.data.text import count_words_of
from litbench.runs.errors import ConfigError, LitBenchError

PROGRAM = "data_prep/collect_reddit.py"


@pytest.fixture
def collect(load_program, monkeypatch, tmp_path):
    """Run the program in this process against a server; return the stories' rows."""
    module = load_program(PROGRAM)

    def run(server, name="out", **config):
        server.take_over(monkeypatch, tmp_path / "settings")
        settings = {"listings": ["new"], **config}
        module.main(module.Config(out=tmp_path / name, **settings))
        return pq.read_table(tmp_path / name / "stories.parquet").to_pylist()

    return run


def manifest(folder):
    content = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return content["counts"]


def stories_of(world):
    """Return the expected comments by story_id, computed without the program."""
    return {
        comment["name"]: comment
        for post in world.posts.values()
        if post["title"].startswith("[WP]") and not post["removed_by_category"]
        for comment in world.answers(post["name"])
    }


def more_requests(world, page):
    # Fewer than a hundred are hidden, which are one request.
    return sum(len(world.answers(f"t3_{post}")) > page for post in world.posts)


def everything_in(folder):
    """Return all bytes below a folder, with Parquet as text."""
    results = []
    for path in folder.rglob("*"):
        if path.suffix == ".parquet":
            results.append(str(pq.read_table(path).to_pylist()).encode("utf-8", "surrogatepass"))
        elif path.is_file():
            results.append(path.read_bytes())
    return b"\n".join(results)


# What is collected -----------------------------------------------------------------------------


def test_top_level_comments_become_stories(collect, tmp_path):
    world, started = make_world(1), time.time()
    with FakeReddit(world, page=4) as server:
        rows = collect(server)
        assert server.answered == {
            "token": 1,
            "listing": 1,
            "comments": 12,
            "more comments": more_requests(world, 4),
        }
    wanted = stories_of(world)
    assert {row["story_id"] for row in rows} == set(wanted)
    assert len(rows) == len(wanted)
    assert rows == sorted(rows, key=lambda row: (row["prompt_id"], row["story_id"]))
    for row in rows:
        comment = wanted[row["story_id"]]
        post = world.posts[comment["link_id"].removeprefix("t3_")]
        assert row["text"] == comment["body"]
        assert row["prompt"] == post["title"]
        assert row["prompt_id"] == post["name"]
        assert row["score"] == comment["score"]
        assert row["n_words"] == count_words_of(comment["body"])
        assert row["created_utc"] == int(comment["created_utc"])
        assert int(started) <= row["score_utc"] <= time.time()
        assert row["author"] == hash_author(comment["author"], SALT)
        assert row["edited_utc"] == (int(comment["edited"]) or None)
        assert row["source"] == "reddit:WritingPrompts"
        assert row["flair"] == "WP"
    bodies = Counter(comment["body"] for comment in wanted.values())
    counts = manifest(tmp_path / "out")
    assert counts["comments"]["deleted"] == bodies["[deleted]"] > 0
    assert counts["comments"]["removed"] == bodies["[removed]"] > 0
    assert counts["comments"]["edited"] == sum(bool(c["edited"]) for c in wanted.values()) > 0
    assert counts["comments"]["rows"] == len(wanted)
    # What was written is a stories table for the next program.
    assert read_table(tmp_path / "out" / "stories.parquet", STORIES).num_rows == len(wanted)


def test_skipped_posts_are_counted_with_their_reason(collect, tmp_path):
    world = make_world(1)
    first = next(iter(world.posts))
    private = world.add_post("[WP] A private one")
    world.add_comment(private, "A story.")
    world.refused[private] = "private"
    gone = world.add_post("[deleted by user]")
    world.add_comment(gone, "A story.")
    with FakeReddit(world) as server:
        collect(server, posts=["zzzz"], skip_posts=[f"https://redd.it/{first}"])
    counts = manifest(tmp_path / "out")["posts"]
    assert counts["skipped"] == {
        "in skip_posts": 1,
        "no comments": 1,
        "not a prompt ([PI])": 1,
        "not found": 1,
        "private": 1,
        "removed (moderator)": 1,
        "removed (title)": 1,
    }
    assert counts["found"] == len(world.posts) + 1
    assert counts["kept"] + sum(counts["skipped"].values()) == counts["found"]
    lines = (tmp_path / "out" / "rejected.jsonl").read_text(encoding="utf-8").splitlines()
    assert Counter(json.loads(line)["reason"] for line in lines) == counts["skipped"]


def test_searches_posts_and_listings_find_each_post_once(collect, tmp_path):
    world = make_world(4, posts=5)
    names = list(world.posts)[:5]
    file = tmp_path / "prompts.txt"
    file.write_text(f"\n{world.posts[names[2]]['title']}\n\n", encoding="utf-8")
    with FakeReddit(world) as server:
        rows = collect(
            server,
            listings=[],
            prompts=[world.posts[names[0]]["title"]],
            prompts_file=file,
            posts=[names[0], names[1], f"https://www.reddit.com/comments/{names[3]}/a_title/"],
        )
        assert server.answered["search"] == 2
        assert server.answered["comments"] == 4
    assert {row["prompt_id"] for row in rows} == {f"t3_{name}" for name in names[:4]}
    assert manifest(tmp_path / "out")["posts"]["found"] == 4


def test_what_cannot_be_collected_is_said(collect):
    world = make_world(1)
    with FakeReddit(world) as server:
        with pytest.raises(ConfigError, match="nothing to collect"):
            collect(server, listings=[])
        with pytest.raises(ConfigError, match="UTF-8"):
            collect(server, prompts_file=Path("missing.txt"))
        for wrong in ({"prompts": ["[IP] 🏰"]}, {"posts": ["not/a/post"]}):
            with pytest.raises(ConfigError):
                collect(server, **wrong)
        with pytest.raises(ConfigError, match="'best/ever'"):
            collect(server, listings=["best/ever"])
        with pytest.raises(LitBenchError, match="no comment was found"):
            collect(server, listings=[], posts=["zzzz"])
        with pytest.raises(RedditError, match="r/Nowhere"):
            collect(server, subreddit="Nowhere")


# Resuming --------------------------------------------------------------------------------------


def test_reading_again_drops_deleted_texts(collect, tmp_path):
    world = World()
    posts = [world.add_post(f"[WP] Number {number}") for number in range(3)]
    comments = [world.add_comment(post, f"unmistakable{post}") for post in posts]
    with FakeReddit(world) as server:
        collect(server)
        assert f"unmistakable{posts[1]}".encode() in everything_in(tmp_path / "out")
        world.delete(comments[1])
        for days in (1, 0):
            collect(server, read_again_after_days=days)
    assert server.answered == {"token": 2, "listing": 2, "comments": 6}
    left = everything_in(tmp_path / "out")
    assert f"unmistakable{posts[1]}".encode() not in left
    assert f"unmistakable{posts[0]}".encode() in left


def test_only_the_id_of_a_skipped_post_is_kept(collect, tmp_path):
    world = World()
    staying = world.add_post("[WP] The one that stays")
    gone = world.add_post("[WP] An unmistakable title")
    for post in (staying, gone):
        world.add_comment(post, f"story of {post}", author=f"Writer {post}")
    world.add_comment(gone, "unmistakable words")
    config = {"prompts": ["The one that stays"]}
    with FakeReddit(world) as server:
        assert len(collect(server, **config)) == 3
        assert len(collect(server, **config, skip_posts=[gone])) == 1
        left = everything_in(tmp_path / "out")
        assert b"unmistakable" not in left
        assert f"story of {gone}".encode() not in left
        assert hash_author(f"Writer {gone}", SALT).encode() not in left
        assert f"story of {staying}".encode() in left
        # It can be had again, for one request.
        before = server.requests
        assert len(collect(server, **config)) == 3
        assert server.answered["comments"] == 3
        assert server.requests == before + 2


# Secrets ---------------------------------------------------------------------------------------


def run_process(server, tmp_path, *more, **environment):
    settings = server.environment(tmp_path / "settings", **environment)
    return subprocess.Popen(
        [
            sys.executable,
            str(ROOT / PROGRAM),
            "--out",
            str(tmp_path / "killed"),
            "--listings",
            "[new]",
            "--prompts",
            "['of number']",
            *more,
        ],
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def test_secrets_and_names_are_written_nowhere(tmp_path):
    said = ""
    with FakeReddit(make_world(1, posts=3)) as server:
        for more in ((), ("--posts", "[abc]")):
            server.draw = (lambda *_: "401") if more else first_fault("503")
            process = run_process(server, tmp_path, *more)
            out, error = process.communicate(timeout=300)
            said += out + error
            assert process.returncode == (2 if more else 0)
    assert "refuses the credentials" in said
    everything = everything_in(tmp_path / "killed") + said.encode()
    for secret in (CLIENT_ID, CLIENT_SECRET, SALT, "token-", "Writer_", "asker_"):
        assert secret.encode() not in everything, secret
    # The settings hold no secret either, so the above could have found one.
    assert re.search(rb"t1_\w+", everything)


def first_fault(fault):
    return lambda number, _kind: fault if number == 3 else None
