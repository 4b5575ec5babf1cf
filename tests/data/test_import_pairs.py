"""Published pairs become a pairs table; unusable rows are rejected and counted."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from litbench.data.records import PAIRS, pair_id
from litbench.data.sources.pairs import read_any_pairs
from litbench.data.tables import read_table
from litbench.data.text import count_words_of
from litbench.runs.config import load_config
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import read_manifest

ROOT = Path(__file__).resolve().parents[2]


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_pairs_of_ids_find_their_stories(tmp_path, program):
    stories = write_jsonl(
        tmp_path / "stories.jsonl",
        [
            {"story_id": "a", "prompt_id": "p", "prompt": "[WP] A door", "story": "Two words."},
            {"story_id": "b", "prompt_id": "p", "prompt": "[WP] A door", "story": "It has three."},
            {"story_id": "c", "prompt_id": "q", "prompt": "[WP] A well", "story": "Deep."},
        ],
    )
    links = write_jsonl(
        tmp_path / "links.jsonl",
        [
            {"high": "b", "low": "a"},
            {"high": "b", "low": "gone"},
            {"high": "b", "low": "c"},
            {"high": "a", "low": "a"},
        ],
    )
    out = tmp_path / "out"
    done = program(
        "data_prep/import_pairs.py",
        "--pairs",
        links,
        "--stories",
        stories,
        "--out",
        out,
        "--pair_columns",
        "{chosen_story_id: high, rejected_story_id: low}",
        "--story_columns",
        "{text: story}",
    )
    assert done.returncode == 0, done.stderr
    pairs = read_table(out / "pairs.parquet", PAIRS).to_pylist()
    assert len(pairs) == 1
    pair = pairs[0]
    assert (pair["chosen"], pair["rejected"]) == ("It has three.", "Two words.")
    assert (pair["chosen_n_words"], pair["rejected_n_words"]) == (3, 2)
    assert pair["pair_id"] == pair_id("a", "b")
    assert pair["chosen_score"] is None, "what the source does not have stays null"
    assert pair["chosen_created_utc"] is None
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["counts"]["rejected_rows"] == {
        "rejected: the same text on both sides": 1,
        "prompt_id: stories of two prompts": 1,
        "rejected_story_id: no such story": 1,
    }


@pytest.fixture
def importing(load_program, tmp_path):
    """Import rows with some config keys; returns the pairs and the manifest's counts."""
    module = load_program("data_prep/import_pairs.py")

    def run(rows, **keys):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        source = write_jsonl(tmp_path / "in.jsonl", rows)
        values = {"pairs": source, "out": tmp_path / "out", **keys}
        arguments = [f"--{key}={json.dumps(value, default=str)}" for key, value in values.items()]
        module.main(load_config(module.Config, arguments))
        pairs = pq.read_table(tmp_path / "out" / "pairs.parquet").to_pylist()
        return pairs, read_manifest(tmp_path / "out")["counts"]

    return run


AT = 1_600_000_000
LABELLED = {
    "pair_columns": {
        "first": "a",
        "second": "b",
        "label": "better",
        "first_score": "votes_a",
        "second_score": "votes_b",
        "first_created_utc": "at_a",
        "second_created_utc": "at_b",
    },
    "label_first": ["A", 1],
    "label_second": ["B", 0],
}


def labelled(n, better, **more):
    votes = {"votes_a": 10 + n, "votes_b": 20 + n, "at_a": AT + n, "at_b": AT + 1_000 + n}
    return {"prompt": f"p{n}", "a": f"text a {n}", "b": f"text b {n}", "better": better} | (
        votes | more
    )


def test_label_decides_which_text_is_chosen(importing):
    rows = [labelled(1, "A"), labelled(2, "B"), labelled(3, 1), labelled(4, 0)]
    pairs, _ = importing(rows, **LABELLED)
    results = {pair["prompt"]: pair for pair in pairs}
    assert len(results) == 4
    for n in range(1, 5):
        pair, a_is_better = results[f"p{n}"], n in (1, 3)
        better, worse = ("a", "b") if a_is_better else ("b", "a")
        assert (pair["chosen"], pair["rejected"]) == (f"text {better} {n}", f"text {worse} {n}")
        score = {"a": 10 + n, "b": 20 + n}
        assert (pair["chosen_score"], pair["rejected_score"]) == (score[better], score[worse])
        at = {"a": AT + n, "b": AT + 1_000 + n}
        assert pair["chosen_created_utc"] == at[better]
        assert pair["rejected_created_utc"] == at[worse]


def test_unknown_label_is_rejected(importing, tmp_path):
    rows = [labelled(n, label) for n, label in enumerate(["A", "tie", None, "a", "B", "A "])]
    pairs, counts = importing(rows, **LABELLED)
    assert {pair["prompt"] for pair in pairs} == {"p0", "p4"}
    assert counts["rejected_rows"] == {"label: prefers neither text": 3, "label: null": 1}
    lines = (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()
    shown = {json.loads(line)["value"] for line in lines}
    assert {repr("tie"), repr("a"), repr("A ")} <= shown


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"label_first": ["A"]}, "label_second together"),
        (
            {"label_first": ["A", 1], "label_second": ["1"]},
            "with different values",
        ),
        ({"label_first": [1], "label_second": [0], "stories": "x.jsonl"}, "two forms of pairs"),
        ({"keep": ["chosen_score"]}, "'chosen_score' is a column of pairs"),
    ],
)
def test_a_config_that_says_two_things_is_refused(keys, message, importing):
    with pytest.raises(ConfigError, match=message):
        importing([labelled(1, "A")], **keys)


def test_rationale_has_the_side_of_story_a(importing):
    said = {
        1: ("A", "Story A is it."),
        2: ("B", "Story B is it.\n\nPreferred: B"),
        3: ("A", "Story A is it.\n**preferred: story b**"),
        4: ("B", None),
        5: ("A", "Preferred: A"),
        6: (0, "Story A is not it.\nPreferred: neither"),
        7: ("A", "Good reasons for B.\nPreferred: B, since it is better."),
        8: ("B", "Preferred: A\nNo, wait.\nPreferred: B"),
        9: ("B", "\u6545\u4e8b B.\nPreferred\uff1aB"),
    }
    rows = [labelled(n, better, why=why) for n, (better, why) in said.items()]
    pairs, counts = importing(rows, rationale="why", **LABELLED)
    results = {
        int(pair["prompt"][1:]): (pair["rationale"], pair["rationale_first"]) for pair in pairs
    }
    assert results == {
        1: ("Story A is it.", "chosen"),
        2: ("Story B is it.", "rejected"),
        3: (None, None),
        4: (None, None),
        5: (None, None),
        6: (None, None),
        7: (None, None),
        8: (None, None),
        9: ("\u6545\u4e8b B.", "rejected"),
    }
    assert counts["rationales"] == {
        "kept": 3,
        "absent": 2,
        "other_verdict": 1,
        "unreadable_verdict": 3,
    }
    for pair in pairs:
        if pair["rationale"] is not None and pair["rationale_first"] is not None:
            assert pair[pair["rationale_first"]].startswith("text a"), "the first text is Story A"


@pytest.mark.parametrize("order", [1, -1])
def test_repeated_pair_prefers_a_rationale(order, importing):
    rows = []
    for n in range(12):
        rows += [
            labelled(n, "A", why=None),
            labelled(n, "A", why=f"Because of {n}.\nPreferred: A"),
            labelled(n, "A", why="Preferred: B"),
        ]
    rows.append(labelled(99, "B", why="Preferred: never mind"))
    pairs, counts = importing(rows[::order], rationale="why", **LABELLED)
    rationales = {pair["prompt"]: pair["rationale"] for pair in pairs}
    assert rationales == {f"p{n}": f"Because of {n}." for n in range(12)} | {"p99": None}
    assert counts["pairs"] == 13


def test_columns_of_common_names_are_found(importing):
    (pair,), _ = importing(
        [{"title": "A door", "winner": "It opened.", "loser": "It stayed shut."}]
    )
    sides = [pair[name] for name in ("prompt", "chosen", "rejected")]
    assert sides == ["A door", "It opened.", "It stayed shut."]


def test_cleaning_is_off_by_default(importing, tmp_path):
    talk = "The door opened slowly.\n\nEDIT: Wow, thanks for the gold, kind stranger!"
    rows = [
        {"prompt": "[WP] A door", "chosen": talk, "rejected": "It stayed shut."},
        {"prompt": "[WP] A well", "chosen": talk, "rejected": "The door opened slowly."},
    ]
    pairs, counts = importing(rows)
    assert {pair["chosen"] for pair in pairs} == {talk}
    assert {pair["prompt"] for pair in pairs} == {"[WP] A door", "[WP] A well"}
    assert counts["cleaning"] == {}
    assert not (tmp_path / "out" / "examples.jsonl").exists()
    ids = {pair["prompt"].removeprefix("[WP] "): pair["pair_id"] for pair in pairs}

    pairs, counts = importing(rows, cleaning={"cut_vote_talk": True, "strip_prompt_tags": False})
    (pair,) = pairs
    assert pair["chosen"] == "The door opened slowly."
    assert pair["chosen_n_words"] == count_words_of(pair["chosen"]) == 4
    assert pair["prompt"] == "[WP] A door"
    assert counts["cleaning"]["cut_vote_talk"] == 2
    assert counts["rejected_rows"] == {"rejected: the same text on both sides": 1}
    assert "gold" in (tmp_path / "out" / "examples.jsonl").read_text()

    cleaned, _ = importing(rows, cleaning={"strip_prompt_tags": True})
    # A pair keeps its name however it is cleaned.
    assert {pair["prompt"]: pair["pair_id"] for pair in cleaned} == ids


@pytest.mark.parametrize("order", [1, -1])
def test_repeated_and_contradictory_pairs(order, importing):
    names = {"prompt_id": "p", "prompt": "p"}
    rows = [
        {**names, "chosen": "one", "rejected": "two", "margin": 1.0},
        {**names, "chosen": "one", "rejected": "two", "margin": 1.0, "split": "b"},
        {**names, "chosen": "three", "rejected": "four"},
        {**names, "chosen": "four", "rejected": "three"},
        {**names, "chosen": "five", "rejected": "six"},
    ]
    # Ids of stories, so that the two rows of a pair differ in their key.
    for row in rows:
        row |= {f"{side}_story_id": row[side] for side in ("chosen", "rejected")}
    rows[1]["chosen"] = "one, mended"
    pairs, counts = importing(rows[::order])
    assert counts["rejected_rows"] == {
        "pair_id: preferred both ways": 2,
        "pair_id: the two stories are a pair already": 1,
    }
    assert {pair["chosen_story_id"] for pair in pairs} == {"one", "five"}


@pytest.mark.parametrize("form", ["texts", "labelled", "links"])
def test_rejected_rows_have_row_numbers(importing, tmp_path, form):
    side = {"texts": "rejected", "labelled": "b", "links": "rejected_story_id"}[form]
    names = {"texts": ("chosen", "rejected"), "labelled": ("a", "b")}.get(
        form, ("chosen_story_id", "rejected_story_id")
    )
    rows = [
        {"prompt": "p", names[0]: f"x{k}", names[1]: f"y{k}", "label": "A", "n": k}
        for k in range(9)
    ]
    # The first three are lost before the program sees them, one way each.
    rows[0][side] = None
    rows[2] = rows[1]
    keys = {"where": "n <> 3"}
    expected = {
        1: f"{side}: null",
        3: f"{names[0]}: repeated row",
        6: "rejected: the same text on both sides",
    }
    rows[5][names[1]] = rows[5][names[0]]
    if form == "labelled":
        expected = {1: "second: null", 3: "prompt: repeated row", 6: expected[6]}
        rows[7]["label"] = "neither"
        expected[8] = "label: prefers neither text"
        keys |= {"label_first": ["A"], "label_second": ["B"]}
        keys |= {"pair_columns": {"first": "a", "second": "b"}}
    elif form == "links":
        stories = [
            {
                "story_id": f"{item}{k}",
                "prompt_id": "q" if f"{item}{k}" == "y8" else "p",
                "prompt": "p",
                "text": f"{item}{k}",
            }
            for item in "xy"
            for k in range(9)
            if f"{item}{k}" != "y7"
        ]
        keys["stories"] = str(write_jsonl(tmp_path / "stories.jsonl", stories))
        expected[8] = "rejected_story_id: no such story"
        expected[9] = "prompt_id: stories of two prompts"
    else:
        expected[3] = "prompt: repeated row"
        rows[8] = rows[7] | {"n": 8, "margin": 2.0, "chosen": "y7", "rejected": "x7"}
        expected |= dict.fromkeys((8, 9), "pair_id: preferred both ways")
    with pytest.raises(DataError, match=r"'\(row\)'"):
        importing(rows, **keys, keep=["(row)"])
    importing(rows, **keys)
    lines = (tmp_path / "out" / "rejected.jsonl").read_text(encoding="utf-8").splitlines()
    noted = {item["row"]: f"{item['column']}: {item['reason']}" for item in map(json.loads, lines)}
    assert noted == expected


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_conversations_become_texts(importing, tmp_path, suffix):
    def said(*texts):
        roles = ["user", "assistant"] * 2
        return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]

    rows = [
        {
            "a": f"A door {k}",
            "asked": said(f"A door {k}"),
            "chosen": said(f"A door {k}", "Which?", "Red", f"It opened {k}."),
            "rejected": said(f"A door {k}", "Which?", "Red", f"Shut {k}."),
        }
        for k in range(3)
    ]
    rows[2]["rejected"] = said("Another door", "Shut.")
    path = write_jsonl(tmp_path / "conversations.jsonl", rows)
    if suffix == "parquet":
        path = tmp_path / "conversations.parquet"
        pq.write_table(pa.Table.from_pylist(rows), path)
    differ = {"prompt: the conversations differ before their last messages": 1}
    for prompt, expected in ((None, "{}\n\nWhich?\n\nRed"), ("a", "{}"), ("asked", "{}")):
        columns = {} if prompt is None else {"prompt": prompt}
        pairs, counts = importing([], pairs=path, pair_columns=columns)
        results = {pair["chosen"]: (pair["rejected"], pair["prompt"]) for pair in pairs}
        for k in (0, 1):
            assert results[f"It opened {k}."] == (f"Shut {k}.", expected.format(f"A door {k}"))
        # Without a prompt of its own, both sides must answer the same messages.
        assert counts["rejected_rows"] == (differ if prompt is None else {})


def test_two_prompts_under_one_id_are_refused(importing, tmp_path):
    rows = [
        {"prompt_id": "p", "prompt": prompt, "chosen": f"a {prompt}", "rejected": f"b {prompt}"}
        for prompt in ("A lamp.", "[WP] a lamp", "A tide.")
    ]
    with pytest.raises(DataError, match=r"1 of 1 prompt_ids .*'p'"):
        importing(rows)
    pairs, _ = importing(rows, pair_columns={"prompt_id": "md5(prompt)"})
    assert len({pair["prompt_id"] for pair in pairs}) == 3
    assert len(importing(rows[:2])[0]) == 2
    # The prompts of the two stories of one pair.
    stories = [{"story_id": row["chosen"], "text": row["chosen"], **row} for row in rows[1:]]
    link = {"chosen_story_id": rows[1]["chosen"], "rejected_story_id": rows[2]["chosen"]}
    with pytest.raises(DataError, match=r"1 of 1 prompt_ids .*'p'"):
        importing([link], stories=str(write_jsonl(tmp_path / "stories.jsonl", stories)))


@pytest.mark.parametrize(
    ("stated", "key", "source"),
    [
        (None, None, "not stated"),
        (None, "people", "people"),
        ("votes", None, "votes"),
        # The key only fills in what the file does not state.
        ("votes", "people", "votes"),
        ("crowd", None, "not stated"),
        ("not stated", "model", "model"),
    ],
)
def test_label_sources_are_never_invented(tmp_path, load_program, stated, key, source):
    rows = [
        {"prompt": f"[WP] A lamp {k}", "chosen": f"a lamp {k}", "rejected": f"an oar {k}"}
        | ({} if stated is None else {"label_source": stated})
        for k in range(3)
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    inputs = {} if key is None else {"label_source": key}
    read = read_any_pairs(path, inputs)
    assert set(read["label_source"].to_pylist()) == {source}
    program = load_program("data_prep/import_pairs.py")
    program.main(program.Config(str(path), tmp_path / "out", **inputs))
    imported = tmp_path / "out/pairs.parquet"
    assert set(pq.read_table(imported)["label_source"].to_pylist()) == {source}
    # LitBench's own table keeps scores and ids when the key is given.
    again = read_any_pairs(imported, {"label_source": "planted"})
    expected = "planted" if source == "not stated" else source
    assert set(again["label_source"].to_pylist()) == {expected}
    assert again["pair_id"].equals(pq.read_table(imported)["pair_id"])
