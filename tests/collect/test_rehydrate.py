"""Rehydrating published comment ids with PRAW, with faults."""

import json
import random
import time
from collections import Counter

import pyarrow.parquet as pq
import pytest
from fake_reddit import (
    NOW,
    SALT,
    FakeReddit,
    make_published,
)

from litbench.data.records import PAIRS, pair_id
from litbench.data.sources.posts import hash_author
from litbench.data.tables import read_table
from litbench.data.text import count_words_of

PROGRAM = "data_prep/rehydrate.py"


@pytest.fixture
def rehydrate(load_program, monkeypatch, tmp_path):
    """Run the program in this process against a server; return the pairs' rows."""
    module = load_program(PROGRAM)

    def run(server, pairs, name="out"):
        server.take_over(monkeypatch, tmp_path / "settings")
        lines = "".join(json.dumps(pair) + "\n" for pair in pairs)
        (tmp_path / "ids.jsonl").write_text(lines, encoding="utf-8")
        module.main(module.Config(pairs=str(tmp_path / "ids.jsonl"), out=tmp_path / name))
        return pq.read_table(tmp_path / name / "pairs.parquet").to_pylist()

    return run


def counts_of(folder):
    content = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return content["counts"]


def reasons_of(folder):
    lines = (folder / "rejected.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return Counter(f"{row['column']}: {row['reason']}" for row in rows)


def ids(*names):
    return {"chosen_comment_id": names[0], "rejected_comment_id": names[1]}


# What comes back -------------------------------------------------------------------------------


def test_pairs_get_texts_votes_and_times(rehydrate, tmp_path):
    world, pairs = make_published(2, posts=8)
    started = time.time()
    turned = pairs[0]["chosen_comment_id"]
    world.comments[turned]["score"] = -4
    with FakeReddit(world) as server:
        rows = rehydrate(server, pairs)
    by_name = {row["pair_id"]: row for row in rows}
    assert [row["pair_id"] for row in rows] == sorted(by_name)
    assert len(by_name) == len(pairs) == 16
    for pair in pairs:
        names = {side: f"t1_{pair[f'{side}_comment_id']}" for side in ("chosen", "rejected")}
        row = by_name[pair_id(names["chosen"], names["rejected"])]
        for side, name in names.items():
            comment = world.comments[name.removeprefix("t1_")]
            assert row[f"{side}_story_id"] == name
            assert row[side] == comment["body"]
            assert row[f"{side}_n_words"] == count_words_of(comment["body"])
            assert row[f"{side}_score"] == comment["score"]
            assert row[f"{side}_published_score"] == pair[f"{side}_upvotes"]
            assert int(started) <= row[f"{side}_score_utc"] <= time.time()
            assert row[f"{side}_created_utc"] == int(comment["created_utc"])
            assert row[f"{side}_author"] == hash_author(comment["author"], SALT)
        post = world.posts[comment["link_id"].removeprefix("t3_")]
        assert (row["prompt"], row["prompt_id"]) == (post["title"], post["name"])
        assert (row["label_source"], row["split"]) == ("votes", "test")
        assert (row["margin"], row["weight"], row["fold"]) == (None, None, None)
    assert read_table(tmp_path / "out" / "pairs.parquet", PAIRS).num_rows == 16


def test_rejected_pairs_have_reasons(rehydrate, tmp_path):
    world, pairs = make_published(3, posts=9)
    pairs = pairs[::2]
    ids = [[pair[f"{side}_comment_id"] for side in ("chosen", "rejected")] for pair in pairs]
    world.delete(ids[0][0])
    world.remove(ids[1][1])
    world.remove(ids[2][1], "[ Removed by Reddit ]")
    del world.comments[ids[3][0]]
    world.remove(ids[4][1], "[removed by moderator]")
    world.comments[ids[5][0]]["created_utc"] = None
    post = [world.comments[ids[k][1]]["link_id"].removeprefix("t3_") for k in (6, 7)]
    world.posts[post[0]]["title"] = "[deleted by user]"
    del world.posts[post[1]]
    with FakeReddit(world) as server:
        rows = rehydrate(server, pairs)
    assert len(rows) == 1
    assert rows[0]["chosen_story_id"] == f"t1_{ids[8][0]}"
    assert reasons_of(tmp_path / "out") == {
        "chosen: deleted": 1,
        "rejected: removed": 3,
        "chosen: missing": 1,
        "chosen: created_utc is missing": 1,
        "prompt: deleted": 1,
        "prompt: missing": 1,
    }
    counts = counts_of(tmp_path / "out")
    assert counts["coverage"]["made"] == 1
    assert counts["comments"] == {
        "asked_for": 18,
        "present": 12,
        "deleted": 1,
        "removed": 3,
        "missing": 1,
        "created_utc is missing": 1,
        "edited": 0,
    }


def test_pairs_that_contradict_or_repeat_are_rejected(rehydrate, tmp_path):
    world, pairs = make_published(4, posts=4)
    a, b, c, d, *_ = (pair["chosen_comment_id"] for pair in pairs)
    arguments = [
        {"chosen_comment_id": a, "rejected_comment_id": None},
        pairs[0],
        # The same with other spelling, and swapped.
        ids(f"t1_{a}", pairs[0]["rejected_comment_id"].upper()),
        pairs[1],
        ids(pairs[1]["rejected_comment_id"], b),
        ids(c, c),
        ids(d, "https://reddit.com/x"),
        # Comments of two posts with different titles.
        ids(a, c),
    ]
    with FakeReddit(world) as server:
        rows = rehydrate(server, arguments)
    assert [row["chosen_story_id"] for row in rows] == [f"t1_{a}"]
    assert reasons_of(tmp_path / "out") == {
        "ids: repeated pair": 1,
        "ids: the pair also appears with its sides swapped": 2,
        "ids: the same comment on both sides": 1,
        "ids: not a comment's id": 1,
        "prompt: the comments answer two prompts": 1,
        "rejected_comment_id: null": 1,
    }
    # By their places in the file, whatever was left out before.
    noted = (tmp_path / "out" / "rejected.jsonl").read_text(encoding="utf-8").splitlines()
    assert sorted(json.loads(line)["row"] for line in noted) == [1, 3, 4, 5, 6, 7, 8]


def test_changes_since_publication_are_counted(rehydrate, tmp_path, capsys):
    world, pairs = make_published(5, posts=30)
    source = random.Random(5)
    for comment in world.comments.values():
        comment["score"] += source.randrange(-12, 13)
    names = list(world.comments)
    tied = [pairs[8][f"{side}_comment_id"] for side in ("chosen", "rejected")]
    world.comments[tied[0]]["score"] = world.comments[tied[1]]["score"]
    world.edit(names[0], NOW - 86_400)
    world.comments[names[4]] |= {"score_hidden": True, "score": 1}
    with FakeReddit(world) as server:
        rehydrate(server, pairs)
    counts = counts_of(tmp_path / "out")
    assert counts["comments"]["edited"] == 1
    now = [
        tuple(
            world.comments[pair[f"{side}_comment_id"]]["score"] for side in ("chosen", "rejected")
        )
        for pair in pairs
        if names[4] not in pair.values()
    ]
    order = counts["order"]
    assert order["pairs_with_both_scores"] == len(now)
    assert order["changed"] == sum(a < b for a, b in now) > 0
    assert order["tied"] == sum(a == b for a, b in now) > 0
    assert f"order: {json.dumps(order)}" in capsys.readouterr().out
