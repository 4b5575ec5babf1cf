"""Dumps become a stories table: every line is counted, and a killed run resumes."""

import gzip
import json
import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from dumps import WHEN, pushshift_comment, pushshift_post, write_dump

from litbench.data.records import STORIES
from litbench.data.tables import read_table
from litbench.runs.errors import ConfigError, DataError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def salt(monkeypatch):
    monkeypatch.setenv("LITBENCH_SALT", "a salt of the tests")


@pytest.fixture
def importing(load_program):
    return load_program("data_prep/import_archive.py")


def arctic_comment(key, link, **more):
    first = WHEN + 3_620
    meta = {"retrieved_2nd_on": first + 36 * 3_600}
    return {
        "_meta": meta,
        **pushshift_comment(key, link),
        "created_utc": WHEN + 3_600,
        "name": f"t1_{key}",
        "retrieved_on": first,
        "score_hidden": False,
    } | more


def run(importing, tmp_path, submissions, comments, **more):
    """Run the program; returns its rows by story_id and its counts."""
    config = importing.Config(
        submissions=[str(path) for path in submissions],
        comments=[str(path) for path in comments],
        out=tmp_path / "out",
        **more,
    )
    importing.main(config)
    counts = json.loads((config.out / "manifest.json").read_text())["counts"]
    rows = read_table(config.out / "stories.parquet", STORIES).to_pylist()
    return {row["story_id"]: row for row in rows}, counts


def steps(counts, unit):
    return {s["step"]: s["removed"] for s in counts["funnel"] if s["unit"] == unit}


@pytest.mark.parametrize("ending", ["", ".zst"])
def test_both_forms_of_dump_become_one_table(ending, importing, tmp_path, capsys):
    old_posts = write_dump(
        tmp_path / f"RS_2020-09{ending}",
        [
            pushshift_post("p1", "[WP] A door &amp; a key", over_18=True),
            pushshift_post("p2", "[OT] Talk", link_flair_text="Off Topic"),
            pushshift_post("p3", "What is a door?", subreddit="AskReddit"),
            b"",
            b'{"subreddit": "WritingPrompts", "id": ',
        ],
    )
    new_posts = write_dump(
        tmp_path / f"RS_2023-12{ending}",
        [pushshift_post("p4", "[EU] A well", _meta={"retrieved_2nd_on": WHEN + 10**7})],
    )
    old = write_dump(
        tmp_path / f"RC_2020-09{ending}",
        [
            pushshift_comment("c1", "p1", edited=WHEN + 4_000),
            pushshift_comment("c2", "p1", parent_id="t1_c1"),
            pushshift_comment("c3", "p2"),
            pushshift_comment("c4", "p3", subreddit="AskReddit"),
            pushshift_comment("c5", "zz"),
            pushshift_comment("c6", "p1", author="[deleted]", retrieved_on=WHEN + 9_000),
            pushshift_comment("c7", "p1", body=None),
            pushshift_comment("c8", "p1", author="AutoModerator", score=-3),
            b"not a line of JSON",
            b"[1, 2]",
        ],
    )
    new = write_dump(
        tmp_path / f"RC_2023-12{ending}",
        [
            arctic_comment("d1", "p4"),
            arctic_comment("d2", "p4", _meta={"note": "no_2nd_retrieval"}),
            arctic_comment("d3", "p1", score_hidden=True),
        ],
    )
    rows, counts = run(importing, tmp_path, [old_posts, new_posts], [old, new])
    assert list(rows) == ["t1_c1", "t1_c6", "t1_c8", "t1_d1", "t1_d2", "t1_d3"]
    first = rows["t1_c1"]
    assert (first["prompt"], first["flair"], first["over_18"]) == (
        "[WP] A door & a key",
        "WP",
        True,
    )
    assert (first["n_words"], first["edited_utc"], first["source"]) == (
        7,
        WHEN + 4_000,
        "reddit_archive",
    )
    assert {name: row["score"] for name, row in rows.items()} == {
        "t1_c1": 12,
        "t1_c6": None,
        "t1_c8": -3,
        "t1_d1": 12,
        "t1_d2": None,
        "t1_d3": None,
    }
    assert rows["t1_d1"]["score_utc"] == WHEN + 3_620 + 36 * 3_600
    assert [row["is_bot"] for row in rows.values()] == [False, False, True, False, False, False]
    assert rows["t1_c6"]["author"] is None
    assert "author of" not in json.dumps([row["author"] for row in rows.values()])
    assert steps(counts, "posts") == {
        "read": 0,
        "subreddits": 1,
        "usable": 1,
        "prompt_tags": 1,
    }
    assert steps(counts, "comments") == {
        "read": 0,
        "subreddits": 1,
        "usable": 3,
        "top_level": 1,
        "known_posts": 1,
        "prompt_tags": 1,
    }
    assert counts["scores_null"] == {"not_settled": 2, "hidden": 1, "missing": 0}
    assert counts["stories"] == 6
    assert [file["lines"] for file in counts["files"]] == [5, 1, 10, 3]
    assert counts["files"][0]["blank"] == 1
    aside = [
        json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()
    ]
    noted = [(Path(row["file"]).name, row["row"], row["column"], row["reason"]) for row in aside]
    assert noted == [
        (f"RS_2020-09{ending}", 5, "line", "no JSON object"),
        (f"RC_2020-09{ending}", 7, "body", "missing"),
        (f"RC_2020-09{ending}", 9, "line", "no JSON object"),
        (f"RC_2020-09{ending}", 10, "line", "no JSON object"),
    ]
    assert not (tmp_path / "out" / "parts").exists()
    shown = capsys.readouterr().out
    assert "6 stories" in shown
    assert "2 not_settled, 1 hidden" in shown


def test_a_thousand_broken_lines_cost_no_good_one(importing, tmp_path):
    source = random.Random(5)
    whole = pushshift_comment("b0", "p1")
    kinds = {
        "line: no JSON object": lambda: source.choice(
            [
                json.dumps(whole).encode()[:-1],
                json.dumps(whole).encode().replace(b"went", b"\xff\xfe"),
                json.dumps([whole]).encode(),
                b"[" * 100_000,
            ]
        ),
        "body: missing": lambda: {n: v for n, v in whole.items() if n != "body"},
        "body: a int, not text": lambda: whole | {"body": 7},
        "id: missing": lambda: whole | {"id": None},
        "id: not a Reddit id": lambda: whole | {"id": "b 0"},
        "link_id: missing": lambda: whole | {"link_id": None},
        "parent_id: neither a comment nor the post of link_id": lambda: (
            whole | {"parent_id": "t3_p9"}
        ),
        "created_utc: missing": lambda: whole | {"created_utc": None},
        "created_utc: not a number": lambda: whole | {"created_utc": "last week"},
        "created_utc: in the future": lambda: whole | {"created_utc": 10**11},
        "score: not a number": lambda: whole | {"score": "many"},
    }
    bad = {kind: source.randint(1, 130) for kind in kinds}
    rows = [pushshift_comment(f"c{n}", "p1") for n in range(2_000)]
    rows += [kinds[kind]() for kind, number in bad.items() for _ in range(number)]
    source.shuffle(rows)
    posts = write_dump(tmp_path / "RS", [pushshift_post("p1", "[WP] A door")])
    result, counts = run(importing, tmp_path, [posts], [write_dump(tmp_path / "RC", rows)])
    assert set(result) == {f"t1_c{n}" for n in range(2_000)}
    assert counts["files"][1]["rejected_rows"] == bad
    lines = (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()
    noted = {(row["row"], f"{row['column']}: {row['reason']}") for row in map(json.loads, lines)}
    assert len(noted) == sum(bad.values())
    broken = {
        number
        for number, row in enumerate(rows, 1)
        if isinstance(row, bytes) or not str(row.get("id")).startswith("c")
    }
    assert {number for number, _ in noted} == broken


# Going on -------------------------------------------------------------------------------------


def test_secrets_and_names_are_written_nowhere(importing, tmp_path, capsys):
    whole = pushshift_comment("b0", "p1", author="RealName")
    post = pushshift_post("p1", "[WP] A door", author="RealName")
    submissions = write_dump(
        tmp_path / "RS", [post, post | {"title": ["RealName"]}, json.dumps(post).encode()[:-1]]
    )
    rows = [
        pushshift_comment("c1", "p1", author="RealName"),
        # Cut off, not UTF-8, no object: the author stands first.
        json.dumps({"author": "RealName", **whole}).encode()[:-1],
        b'{"author": "RealName", "subreddit": "WritingPrompts", "body": "\xff"}',
        [{"author": "RealName"}],
        whole | {"author": ["RealName"]},
        whole | {"author": {"name": "RealName"}},
        whole | {"body": {"author": "RealName"}},
        whole | {"link_id": ["RealName"]},
    ]
    comments = write_dump(tmp_path / "RC", rows)
    damaged = write_dump(tmp_path / "RC_2.zst", [whole])
    packed = damaged.read_bytes()
    damaged.write_bytes(packed[:-3])

    def all_written(more=""):
        result = more + "".join(capsys.readouterr())
        for path in (tmp_path / "out").rglob("*"):
            if path.suffix == ".parquet":
                result += str(pq.read_table(path).to_pylist())
            elif path.is_file():
                result += path.read_bytes().decode(errors="replace")
        return result

    # A run that fails leaves its parts behind.
    with pytest.raises(DataError, match="truncated") as told:
        run(importing, tmp_path, [submissions], [comments, damaged])
    assert list((tmp_path / "out" / "parts").rglob("*.jsonl"))
    left_behind = all_written(str(told.value))
    _, counts = run(importing, tmp_path, [submissions], [comments])
    assert sum(sum(file["rejected_rows"].values()) for file in counts["files"]) == 9
    for written in (left_behind, all_written()):
        assert " bytes'" in written
        assert "RealName" not in written
        assert "a salt of the tests" not in written


# What one may get wrong -----------------------------------------------------------------------


def test_mistakes_are_named_before_anything_is_read(importing, tmp_path):
    posts = write_dump(tmp_path / "RS", [pushshift_post("p1", "[WP] A door")])
    comments = write_dump(tmp_path / "RC", [pushshift_comment("c1", "p1")])
    mistakes = [
        ({"submissions": [tmp_path / "RX_*"]}, "submissions: there is no file .*RX_"),
        ({"comments": []}, "comments has no file"),
        ({"comments": [comments, tmp_path / "R[C]"]}, "the same file twice"),
        ({"comments": [tmp_path]}, r"there is no file .*\*\.zst"),
        ({"subreddits": []}, "subreddits is empty"),
    ]
    for more, message in mistakes:
        inputs = {"submissions": [posts], "comments": [comments]} | more
        with pytest.raises(ConfigError, match=message):
            run(importing, tmp_path, **inputs)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", ["array", "indented", "data", "gzip"])
def test_dumps_may_be_arrays_or_gzip(importing, tmp_path, form):
    files = []
    for name, row in (
        ("RS", pushshift_post("p1", "[WP] A door")),
        ("RC", pushshift_comment("c1", "p1")),
    ):
        content = {
            "array": json.dumps([row]),
            "indented": json.dumps([row], indent=1),
            "data": json.dumps({"data": [row]}),
            "gzip": json.dumps(row),
        }[form].encode()
        files.append(tmp_path / name)
        files[-1].write_bytes(gzip.compress(content) if form == "gzip" else content)
    rows, _ = run(importing, tmp_path, files[:1], files[1:])
    assert list(rows) == ["t1_c1"]


def test_mismatched_dumps_are_an_error(importing, tmp_path):
    posts = write_dump(tmp_path / "RS", [pushshift_post("p1", "[WP] A door")])
    comments = write_dump(tmp_path / "RC", [pushshift_comment("c1", "p7")])
    with pytest.raises(DataError, match="same months"):
        run(importing, tmp_path, [posts], [comments])
    with pytest.raises(DataError, match=r"title: missing.* submissions and comments .* swapped"):
        run(importing, tmp_path, [comments], [posts])
    with pytest.raises(DataError, match=r"rejected: link_id: .*: give comments"):
        run(
            importing,
            tmp_path,
            [posts],
            [write_dump(tmp_path / "RS_3", [pushshift_post("p9", "x")])],
        )
    # In dumps without tags every post is a prompt.
    untagged = write_dump(tmp_path / "RS_2", [pushshift_post("p7", "A door")])
    with pytest.raises(DataError, match=r"1 posts .*prompt_tags"):
        run(importing, tmp_path, [untagged], [comments])
    rows, _ = run(importing, tmp_path, [untagged], [comments], prompt_tags=None)
    assert rows["t1_c1"]["prompt"] == "A door"
    with pytest.raises(DataError, match=r"writingprompts .*1 of other"):
        run(importing, tmp_path, [posts], [comments], subreddits=["writingprompts"])
