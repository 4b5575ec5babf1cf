"""Ratings by annotators and recorded judges become pairs, verdicts and a leaderboard."""

import json
import random

import numpy as np
import pyarrow as pa
import pytest

from litbench.data.curation.funnel import Funnel
from litbench.data.ingest import RejectedRows
from litbench.data.records import PAIRS, RATINGS, VERDICTS
from litbench.data.sources.ratings import (
    RatingTable,
    gaps,
    pair_rated_stories,
    read_ratings,
    story_digest,
    with_label,
)
from litbench.data.tables import read_table, write_table
from litbench.evaluation.results import Evaluation
from litbench.judges.recorded import RecordedOptions
from litbench.raters.interface import judge_pairs
from litbench.runs.config import build
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import read_manifest
from litbench.testing import check_rater, rename_sides


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def read(tmp_path):
    """Read rows of ratings; returns ratings by rater and story, and the rejected rows."""

    def run(rows, kind="person", stories=("s", "t"), **how):
        file = write_rows(tmp_path / "ratings.jsonl", rows)
        rejected_rows = RejectedRows()
        how = {"rater": "who", "values": ["plot"]} | how
        table = read_ratings(
            build(RatingTable, {"table": file, **how}),
            kind,
            {name: f"digest {name}" for name in stories},
            rejected_rows,
        )
        assert table.schema.names == [column.name for column in RATINGS.columns]
        rows = table.to_pylist()
        results = {(row["rater"], row["story_id"]): row for row in rows if not row["criterion"]}
        return results, rejected_rows

    return run


def rating_of(rows):
    return {key: row["rating"] for key, row in rows.items()}


def test_rating_is_the_mean_of_scales_and_items(read):
    rows = [
        {"story_id": "s", "who": 1, "round": 1, "plot": 4, "style": 2, "why": "late"},
        {"story_id": "s", "who": 1, "round": 10, "plot": 1, "style": 1, "why": "last"},
        {"story_id": "s", "who": 1, "round": 2, "plot": 5, "style": 5, "why": "early"},
        {"story_id": "t", "who": 2, "round": 1, "plot": 3, "style": 4},
    ]
    how = {"values": ["plot", "style"], "item": "round", "explanation": "why"}
    result, rejected_rows = read(rows, **how)
    assert rating_of(result) == {("1", "s"): 3.0, ("2", "t"): 3.5}
    assert result["1", "s"]["explanation"] == "late\n\nearly\n\nlast"
    assert result["1", "s"]["story_digest"] == "digest s"
    assert result["2", "t"]["explanation"] is None
    assert not rejected_rows.rows
    again, _ = read(rows[::-1], **how)
    assert again == result
    alone, _ = read(rows, rater="who || ', round ' || round", values=["plot"])
    assert rating_of(alone)["1, round 2", "s"] == 5.0


def test_yes_no_values_and_ranks(read):
    rows = [
        {"story_id": "s", "who": "e", "test": 1, "plot": "yes"},
        {"story_id": "s", "who": "e", "test": 2, "plot": "No"},
        {"story_id": "t", "who": "e", "test": 1, "plot": "true"},
        {"story_id": "t", "who": "e", "test": 2, "plot": "1"},
    ]
    result, _ = read(rows, item="test")
    assert rating_of(result) == {("e", "s"): 0.5, ("e", "t"): 1.0}
    truths = [{**row, "plot": row["plot"] in ("yes", "true", "1")} for row in rows]
    assert rating_of(read(truths, item="test")[0]) == rating_of(result)
    ranks = [{"story_id": s, "who": "e", "plot": r} for s, r in (("s", 1), ("t", 3))]
    assert rating_of(read(ranks, lowest_is_best=True)[0]) == {("e", "s"): -1.0, ("e", "t"): -3.0}


def test_unusable_rows_are_rejected(read):
    rows = [
        {"story_id": "s", "who": "a", "plot": 4},
        {"story_id": "t", "who": "a", "plot": None},
        {"story_id": "s", "who": "b", "plot": "much"},
        {"story_id": "t", "who": "b", "plot": "nan"},
        {"story_id": "gone", "who": "b", "plot": 3},
        {"story_id": "s", "who": "a", "plot": 4},
        {"story_id": None, "who": "a", "plot": 4},
    ]
    result, rejected_rows = read(rows)
    assert rating_of(result) == {("a", "s"): 4.0}
    assert rejected_rows.counts() == {
        "plot: not a rating": 2,
        "plot: null": 1,
        "story_id: no such story": 1,
        "story_id: null": 1,
        "story_id: repeated row": 1,
    }
    with pytest.raises(DataError, match=r"'plott'.*'plot'"):
        read(rows, values=["plott"])
    with pytest.raises(DataError, match="no rating"):
        read(rows, stories=("other",))
    for wrong in ({"values": []}, {"min_share": 0}):
        with pytest.raises(ConfigError, match=f"key '{next(iter(wrong))}' is"):
            read(rows, **wrong)


def test_unreadable_answer_gives_a_null_rating(read):
    rows = [
        {"story_id": s, "who": "m", "test": t, "plot": p}
        for s, values in {"s": [1, None, 0], "t": [None, None, 1]}.items()
        for t, p in enumerate(values)
    ]
    strict, rejected_rows = read(rows, kind="recorded", item="test")
    assert rating_of(strict) == {("m", "s"): None, ("m", "t"): None}
    assert not rejected_rows.rows
    most, _ = read(rows, kind="recorded", item="test", min_share=0.6)
    assert rating_of(most) == {("m", "s"): 0.5, ("m", "t"): None}
    # A test that was not even asked is missing, too.
    fewer, _ = read(rows[:3] + rows[5:], kind="recorded", item="test", min_share=0.6)
    assert rating_of(fewer) == {("m", "s"): 0.5, ("m", "t"): None}


def stories_of(rows):
    names = ("story_id", "prompt_id", "prompt", "text", "system")
    columns = {name: [row.get(name) for row in rows] for name in names}
    return pa.table({name: pa.array(v, pa.large_string()) for name, v in columns.items()})


STORIES = [
    {"story_id": "a", "prompt_id": "p", "prompt": "A door", "text": "One two too.", "system": "x"},
    {"story_id": "b", "prompt_id": "p", "prompt": "A door", "text": "One two.", "system": "y"},
    {"story_id": "c", "prompt_id": "p", "prompt": "A door", "text": None, "system": "z"},
    {"story_id": "d", "prompt_id": "p", "prompt": "A door", "text": "One two.", "system": "y"},
    {"story_id": "e", "prompt_id": "q", "prompt": "A well", "text": "Deep.", "system": "x"},
    {"story_id": "f", "prompt_id": "q", "prompt": "A well", "text": "Dark.", "system": "y"},
]
MEANS = {"a": 2.0, "b": 3.0, "c": 3.5, "d": 1.0, "e": 4.0, "f": 4.0}


def test_story_with_the_higher_mean_is_chosen():
    funnel = Funnel()
    every = pair_rated_stories(stories_of(STORIES), MEANS, funnel, split="test", keep=["system"])
    rows = {(r["chosen_story_id"], r["rejected_story_id"]): r for r in every.to_pylist()}
    # b and d are the same text; e and f are tied, on whichever side.
    tied = next(pair for pair in rows if set(pair) == {"e", "f"})
    assert set(rows) == {("b", "a"), ("c", "a"), ("a", "d"), ("c", "b"), ("c", "d"), tied}
    row = rows["c", "a"]
    assert (row["chosen"], row["chosen_n_words"], row["rejected_n_words"]) == ("", 0, 3)
    assert (row["chosen_system"], row["rejected_system"], row["split"]) == ("z", "x", "test")
    assert (row["chosen_rating"], row["rejected_rating"]) == (3.5, 2.0)
    assert (row["label_source"], row["chosen_score"], row["margin"]) == ("people", None, None)
    assert (gaps(every) >= 0).all()
    labelled = with_label(every, 1.0, funnel)
    assert set(labelled["pair_id"].to_pylist()) < set(every["pair_id"].to_pylist())
    assert labelled.num_rows == 4
    steps = {step.step: (step.kept, step.removed) for step in funnel.steps}
    assert steps == {
        "rated": (6, 0),
        "pairs": (7, 0),
        "same_text": (6, 1),
        "ties": (5, 1),
        "min_gap": (4, 1),
    }
    shuffled = random.Random(0).sample(STORIES, len(STORIES))
    again = pair_rated_stories(stories_of(shuffled), MEANS, Funnel(), split="test", keep=["system"])
    assert again.equals(every)


def test_stories_that_cannot_be_paired_are_refused():
    stories = stories_of(STORIES)
    with pytest.raises(DataError, match=r"'sytem' .*'system'"):
        pair_rated_stories(stories, MEANS, Funnel(), split="a", keep=["sytem"])
    with pytest.raises(DataError, match="two stories"):
        pair_rated_stories(stories, {"a": 1.0, "e": 2.0}, Funnel(), split="a")


def ratings_table(rows):
    full = [
        {"rater_kind": "recorded", "story_digest": None, "explanation": None, **row} for row in rows
    ]
    return pa.Table.from_pylist(full, schema=RATINGS.arrow())


@pytest.fixture
def judged(pair_table):
    """Pairs, and a judge's ratings with a tie, an unread and a missing one."""
    rows = [{"pair_id": f"pair{k}", "prompt": "A door", "prompt_id": "p"} for k in range(5)]
    pairs = pair_table(rows)
    rewards = [(3.0, 1.0), (1.0, 2.0), (2.0, 2.0 + 1e-12), (None, 4.0), ("missing", 4.0)]
    ratings = []
    for pair, values in zip(pairs.to_pylist(), rewards, strict=True):
        for side, rating in zip(("chosen", "rejected"), values, strict=True):
            if rating == "missing":
                continue
            ratings.append(
                {
                    "story_id": pair[f"{side}_story_id"],
                    "rater": "judge",
                    "rating": rating,
                    "explanation": f"of {side}" if pair["pair_id"] != "pair1" else None,
                    "story_digest": story_digest(pair["prompt"], pair[side]),
                }
            )
    return pairs, ratings_table(ratings)


@pytest.fixture
def recorded(judged, tmp_path):
    """The judge as a rater."""
    write_table(judged[1], tmp_path / "ratings.parquet")
    return RecordedOptions(tmp_path / "ratings.parquet", "judge").load("gpt")


@pytest.mark.parametrize("with_texts", [True, False])
def test_a_recorded_judge_prefers_what_it_rated_higher(judged, recorded, with_texts):
    pairs = judged[0]
    if not with_texts:
        for side in ("chosen", "rejected"):
            empty = pa.array([""] * pairs.num_rows, pa.large_string())
            pairs = pairs.set_column(pairs.column_names.index(side), side, empty)
    verdicts = judge_pairs(recorded, pairs)
    outcomes = dict(zip(*(verdicts[n].to_pylist() for n in ("pair_id", "outcome")), strict=True))
    expected = ["chosen", "rejected", "tie", "unparsed", "error"]
    assert outcomes == {f"pair{k}": outcome for k, outcome in enumerate(expected)}
    assert verdicts["reward_chosen"].to_pylist() == [3.0, 1.0, 2.0, None, None]
    told = [said and sorted(said.split("\n\n")) for said in verdicts["explanation"].to_pylist()]
    both = ["of chosen", "of rejected"]
    assert told == [both, None, both, both, None]
    assert verdicts["order"].null_count == verdicts["seconds"].null_count == 5
    assert set(verdicts["rater"].to_pylist()) == {"gpt"}
    check_rater(recorded, pairs)
    if with_texts:
        # What was said does not tell which story was chosen.
        renamed = judge_pairs(recorded, rename_sides(pairs))
        assert renamed["explanation"].equals(verdicts["explanation"])


@pytest.fixture
def study(tmp_path):
    """A published study: 12 prompts, 5 stories, 3 annotators, 2 judges, some texts."""
    draw = np.random.default_rng(0)
    stories, people, judges = [], [], []
    for prompt in range(12):
        for index in range(5):
            name, quality = f"s{prompt}_{index}", draw.normal(3, 1)
            text = None if index == 4 else f"words {'again ' * (prompt + index)}of {name}"
            stories.append(
                {
                    "id": name,
                    "task": f"t{prompt}",
                    "prompt": f"[WP] Task {prompt}",
                    "story": text,
                    "machine": index > 0,
                }
            )
            for person in range(3):
                rating = int(np.clip(round(quality + draw.normal()), 1, 5))
                people.append({"id": name, "worker": person, "plot": rating, "style": rating})
            for judge, noise in (("sharp", 0.3), ("dull", 5.0)):
                value = quality + noise * draw.normal()
                judges.append({"id": name, "judge": judge, "score": float(value)})
    judges = [row for row in judges if (row["id"], row["judge"]) != ("s0_0", "dull")]
    return {
        "stories": write_rows(tmp_path / "stories.jsonl", stories),
        "story_columns": {"story_id": "id", "prompt_id": "task", "text": "story"},
        "people": {
            "table": str(write_rows(tmp_path / "people.jsonl", people)),
            "rater": "worker",
            "story_id": "id",
            "values": ["plot", "style"],
            "slots": True,
        },
        "recorded": {
            "table": str(write_rows(tmp_path / "judges.jsonl", judges)),
            "rater": "judge",
            "story_id": "id",
            "values": ["score"],
        },
        "out": tmp_path / "pairs",
    }


@pytest.fixture
def programs(load_program):
    """Import the ratings, and benchmark on them."""
    return load_program("data_prep/import_ratings.py"), load_program("eval/benchmark.py")


def config_of(study, benchmark, out, **keys):
    """A benchmark on the study's pairs and ratings."""
    files = {name: study["out"] / f"{name}.parquet" for name in ("pairs", "ratings")}
    return benchmark.Config(**{**files, "out": out, "reference": "sharp", **keys})


def test_a_study_becomes_a_leaderboard_beside_one_annotator(study, programs, tmp_path, capsys):
    importing, benchmark = programs
    importing.main(build(importing.Config, study))
    pairs = read_table(study["out"] / "pairs.parquet", PAIRS)
    manifest = read_manifest(study["out"])
    assert manifest["counts"]["pairs"] == pairs.num_rows == manifest["counts"]["funnel"][-1]["kept"]
    assert manifest["counts"]["people"] == 3
    assert manifest["counts"]["recorded"]["dull"] == {"rated": 59, "unread": 0}
    out = tmp_path / "recorded"
    config = config_of(study, benchmark, out)
    benchmark.main(config)
    rows = {row["rater"]: row for row in json.loads((out / "leaderboard.json").read_text())}
    assert rows["sharp"]["agreement"]["mean"] > 0.8
    assert rows["sharp"]["agreement"]["n"] == pairs.num_rows
    assert rows["dull"]["coverage"] < 1
    assert rows["dull"]["comparison"]["difference"]["mean"] < 0
    verdicts = read_table(out / "verdicts.parquet", VERDICTS)
    # All pairs of five stories under 12 prompts, for both judges.
    assert verdicts.num_rows == 2 * 12 * 10
    result = json.loads((out / "annotators.json").read_text())
    assert result["slots"]
    assert result["by_annotator"] == {}
    assert 0.6 < result["one_annotator"]["mean"] < 0.9
    # An annotator lies between the two judges.
    differences = {row["rater"]: row["comparison"]["difference"] for row in result["raters"]}
    assert differences["sharp"]["low"] > 0 > differences["dull"]["mean"]
    assert result["one_annotator"]["n"] + result["left_out"] == 3 * 120
    assert Evaluation.find(out).annotators() == result
    capsys.readouterr()
    benchmark.main(config)
    again = capsys.readouterr().out
    assert again.startswith("unchanged")
    assert "one annotator" in again
    # The default, longer, is no rater here.
    benchmark.main(config_of(study, benchmark, out, reference="longer"))
    assert capsys.readouterr().out.startswith("reference: dull, the first recorded judge")
    assert read_manifest(out)["config"]["reference"] == "dull"
    importing.main(build(importing.Config, study))
    assert "unchanged" in capsys.readouterr().out


def test_equal_mean_ratings_are_no_label(study, programs, tmp_path):
    importing, benchmark = programs
    importing.main(build(importing.Config, {**study, "where": "story IS NOT NULL"}))
    keys = {"raters": {"longer": {"kind": "longer"}}, "reference": "longer", "ratings": None}
    config = config_of(study, benchmark, tmp_path / "out", **keys)
    config.pairs = study["out"] / "all_pairs.parquet"
    with pytest.raises(DataError, match="8 pairs"):
        benchmark.main(config)
