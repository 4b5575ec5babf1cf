"""litbench run: tables, resume, limits, flags and logs, against a server on loopback.

LONGFORM_BENCH has the published texts, and LONGFORM the published results.
"""

import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_openai import FakeOpenAI, messages_of
from longform_script import rate_text, write_text
from test_longform import write_texts

from litbench.cli import main
from litbench.data.records import GRADES, RATINGS, REPEATS, STORIES, TURNS
from litbench.data.sources.ratings import story_digest
from litbench.data.tables import read_table, write_table
from litbench.data.text import count_words
from litbench.judges.recorded import RecordedOptions
from litbench.raters.templates.rubric import load_rubric
from litbench.runs.outputs import Artifact
from litbench.writers.compare import WritersConfig, compare_writers

logs = pytest.importorskip("inspect_ai.log")
pytest.importorskip("openai")

WRITER = FakeOpenAI.model_called("writer")
JUDGE = FakeOpenAI.model
SCHEMAS = {schema.name: schema for schema in (TURNS, STORIES, RATINGS, GRADES)}
TRAFFIC = {"first_wait_seconds": 0.01, "timeout_seconds": 60}


def fake(**behaviour):
    """A server with a writer and two judges."""
    return FakeOpenAI(
        rate_text,
        others={"writer": write_text, "second": rate_text},
        question_of=messages_of,
        **behaviour,
    )


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run the command in a folder of its own; returns what it prints."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments, writer=WRITER, judge=JUDGE, out="out", code=None):
        inputs = ["litbench", "run", "longform", "--out", out, *map(str, arguments)]
        inputs += ["--writer", writer] if writer else []
        inputs += ["--judge", judge] if judge else []
        monkeypatch.setattr(sys, "argv", inputs)
        with contextlib.nullcontext() if code is None else pytest.raises(SystemExit) as stopped:
            main()
        assert code is None or stopped.value.code == code
        return "".join(capsys.readouterr())

    return call


def tables(folder):
    """The four tables, without measured times."""
    results = {}
    for name, schema in SCHEMAS.items():
        table = read_table(folder / f"{name}.parquet", schema)
        results[name] = table.select([name for name in table.column_names if name != "seconds"])
    return results


def rows_of(folder, name):
    return tables(folder)[name].to_pylist()


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


SMALL = ("--options.chapters", 2, "--items", "[choir, repair]")


def test_tables_log_and_manifest(run, tmp_path):
    with fake() as server:
        said = run(*SMALL, "--samples", 2)
        assert server.requests == 2 * 2 * (7 + 3)
    out = tmp_path / "out"
    assert "4 of 4 dialogues finished, 176 of 176 ratings read" in said
    assert re.search(r" \[-?\d+\.\d\d, \d+\.\d\d\] +2$", said, re.M), "the interval by item"
    results = {name: table.to_pylist() for name, table in tables(out).items()}
    assert {name: len(rows) for name, rows in results.items()} == {
        "turns": 40,
        "stories": 8,
        "ratings": 4 * (3 + 14 + 14 + 16),
        "grades": 16,
    }
    story = results["stories"][0]
    assert story["story_id"] == f"{WRITER}/repair/0/chapter_1"
    assert (story["step"], story["sample"], story["source"]) == ("chapter_1", 0, WRITER)
    words = count_words(pq.read_table(out / "stories.parquet")["text"].combine_chunks())
    assert [row["n_words"] for row in results["stories"]] == words.to_pylist()
    steps = [row["step"] for row in results["turns"] if row["sample"] == 0][:10]
    judged = ["chapter_1", "chapter_2", "final"]
    assert steps == [*judged, *judged[:2], *(f"plan_{k}" for k in range(1, 6))], "judge, writer"
    assert {row["model"] for row in results["turns"]} == {"judge-1"}
    ratings = [row for row in results["ratings"] if row["story_id"] == story["story_id"]]
    (whole,) = [row for row in ratings if row["criterion"] is None]
    assert whole["story_digest"] == story_digest(story["prompt"], story["text"])
    assert (whole["rater_kind"], whole["cost_usd"]) == ("model", None), "no price is known"
    assert whole["input_tokens"] > 100
    rubric = load_rubric("longform_chapter")
    ((reply),) = [
        row["text"]
        for row in results["turns"]
        if (row["prompt_id"], row["sample"], row["role"], row["step"])
        == ("repair", 0, JUDGE, "chapter_1")
    ]
    expected = rubric.read(reply)
    assert whole["rating"] == pytest.approx(rubric.grade(expected))
    assert whole["explanation"] == reply
    assert {row["criterion"]: row["rating"] for row in ratings if row["criterion"]} == {
        name: rating.rating for name, rating in expected.items()
    }
    grades = {(row["prompt_id"], row["sample"], row["quantity"]): row for row in results["grades"]}
    parts = [grades["repair", 1, step]["grade"] for step in judged]
    assert grades["repair", 1, "overall"]["grade"] == pytest.approx(fmean(parts))
    assert {row["flags"] for row in results["grades"]} == {None}
    counts = manifest(out)["counts"]
    assert counts["turns"] == {"answered": 40}
    assert counts["dialogues"] == {"finished": 4}
    assert (out / "rejected.jsonl").read_text() == ""
    (path,) = (out / "logs").glob("*.eval")
    log = logs.read_eval_log(str(path))
    samples = {sample.id: sample for sample in log.samples}
    assert set(samples) == {
        f"{WRITER}, {item}, sample {k}" for item in ("choir", "repair") for k in range(2)
    }
    sample = samples[f"{WRITER}, repair, sample 0"]
    roles = [message.content.partition("]")[0] for message in sample.messages[::2]]
    assert roles[0] == "[to writer: plan_1"
    assert Counter(role.partition(":")[0] for role in roles) == {
        "[to writer": 7,
        f"[to {JUDGE}": 3,
    }
    value = sample.scores[f"overall by {JUDGE}"].value
    assert value == pytest.approx(grades["repair", 0, "overall"]["grade"])
    assert not (out / "events.jsonl").exists()
    assert not (out / "scratch").exists()


def test_further_runs_and_another_judge(run, tmp_path):
    with fake() as server:
        run(*SMALL)
        assert "unchanged" in run(*SMALL)
        first = tables(tmp_path / "out")
        (tmp_path / "out/manifest.json").unlink()
        asked = server.requests
        run(*SMALL)
        assert tables(tmp_path / "out") == first
        assert server.requests == asked, "stored answers are used again"
        run(*SMALL, "--judge", FakeOpenAI.model_called("second"))
        assert server.requests == asked + 2 * 3, "another judge asks the writer nothing"
    grades = rows_of(tmp_path / "out", "grades")
    assert {row["rater"] for row in grades} == {JUDGE, FakeOpenAI.model_called("second")}
    run(
        *SMALL,
        out="other",
        writer=f"recorded/{tmp_path}/out/turns.parquet",
        judge=f"recorded/{tmp_path}/out/turns.parquet",
    )
    again = tables(tmp_path / "other")
    for name, table in tables(tmp_path / "out").items():
        # The judges may come in another order.
        columns = [name for name in table.column_names if name not in ("rater_kind", "cost_usd")]
        order = [(column, "ascending") for column in SCHEMAS[name].key if column in columns]
        expected = table.select(columns).sort_by(order)
        assert again[name].select(columns).sort_by(order).equals(expected), f"recorded {name}"
    assert {row["rater_kind"] for row in rows_of(tmp_path / "other", "ratings")} == {"recorded"}
    rater = RecordedOptions(tmp_path / "out/ratings.parquet").load(JUDGE)
    assert rater.notes() == {"stories": 6, "without_rating": 0}
    assert len(rater.by_text) == 4, "chapters"


def test_a_recorded_story_without_a_chapter_is_graded_as_published(run, tmp_path):
    with fake():
        run(*SMALL)
    turns = pq.read_table(tmp_path / "out/turns.parquet").to_pylist()
    rest = [row for row in turns if (row["role"], row["step"]) != ("writer", "chapter_1")]
    write_table(pa.Table.from_pylist(rest, TURNS.arrow()), tmp_path / "turns.parquet")
    model = f"recorded/{tmp_path}/turns.parquet"
    said = run(*SMALL, writer=model, judge=model, out="ours", code=1)
    assert "0 of 2 dialogues finished" in said
    as_published = ("--options.as_published", "true")
    said = run(*SMALL, *as_published, writer=model, judge=model, out="published")
    assert "2 of 2 dialogues finished" in said
    grades = [row for row in rows_of(tmp_path / "published", "grades") if row["grade"] is not None]
    assert {row["quantity"] for row in grades} == {"chapter_2", "final", "overall"}
    overall = [row for row in grades if row["quantity"] == "overall"]
    assert all("chapter_1 missing" in row["flags"] for row in overall)


def test_dry_run_sends_nothing_and_tells_what_is_left(run, tmp_path):
    def calls(said):
        """New and stored calls by model."""
        lines = (line.split() for line in said.splitlines())
        return {line[0]: tuple(line[1:3]) for line in lines if line and line[0] in (WRITER, JUDGE)}

    with fake() as server:
        said = run("--dry_run")
        assert "12 dialogues of longform" in said
        assert said.count(" – ") == 4, "no price is known"
        assert calls(said) == {WRITER: ("156", "0"), JUDGE: ("108", "0")}
        assert server.requests == 0
        assert not (tmp_path / "out").exists()
        run(*SMALL, judge=None)
        assert calls(run(*SMALL, "--dry_run")) == {WRITER: ("0", "14"), JUDGE: ("6", "0")}


def test_caps_stop_one_model_and_raising_them_continues(run, tmp_path):
    def limited(**traffic):
        judges = {"j": {"model": JUDGE, "traffic": {**TRAFFIC, **traffic}}}
        return run(*SMALL, "--judges", json.dumps(judges), judge=None)

    with fake() as server:
        said = limited(max_calls=4)
        assert "max_calls of 4 is reached" in said
        assert "run the same command again" in said
        assert server.requests == 14 + 4
        out = tmp_path / "out"
        rejected = [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]
        assert all("max_calls of 4 is reached" in row["reason"] for row in rejected)
        assert len(rows_of(out, "turns")) == 18, "turns of unfinished dialogues are kept"
        limited()
        assert server.requests == 14 + 6
        assert manifest(out)["counts"]["dialogues"] == {"finished": 2}


def test_failures_are_asked_again_by_the_next_run(run, tmp_path):
    judges = json.dumps({"j": {"model": JUDGE, "traffic": {**TRAFFIC, "max_retries": 0}}})
    # The judge is asked after the seven steps of the only item.
    first = (*SMALL[:2], "--items", "[choir]", "--judges", judges)
    with fake(faults=lambda number, _: "400" if number > 7 and number % 2 else None) as server:
        run(*first, judge=None)
        ratings = rows_of(tmp_path / "out", "ratings")
        failed = {row["story_id"] for row in ratings if row["outcome"] == "error"}
        assert failed
        assert {row["rating"] for row in ratings if row["story_id"] in failed} == {None}
        assert {row["flags"] for row in rows_of(tmp_path / "out", "grades")} > {None}
        server.draw = lambda *_: None
        before = server.requests
        run(*first, judge=None)
        assert server.requests == before + len(failed)
        assert {row["outcome"] for row in rows_of(tmp_path / "out", "ratings")} == {"rated"}


def test_flags(run, tmp_path):
    """The writer as its own judge, by model or in a recording by name."""
    with fake(manners=lambda question: "length" if "[Scores]" in question else None):
        prices = {JUDGE: {"input": 1.0, "output": 2.0}}
        (tmp_path / "prices.yaml").write_text(json.dumps(prices))
        said = run(
            *SMALL[:2],
            "--items",
            "[choir]",
            "--prices",
            "prices.yaml",
            "--judges",
            json.dumps({"self": WRITER, "j": JUDGE}),
            judge=None,
            code=1,
        )
    assert "0 of 88 ratings read" in said
    grades = rows_of(tmp_path / "out", "grades")
    flags = {(row["rater"], row["quantity"]): row["flags"] for row in grades}
    assert flags["self", "final"] == "16 of 16 ratings missing; judged by its writer"
    assert flags["j", "final"] == "16 of 16 ratings missing"
    wholes = [row for row in rows_of(tmp_path / "out", "ratings") if row["criterion"] is None]
    assert {row["outcome"] for row in wholes} == {"cut"}
    assert {row["rater"] for row in wholes if row["cost_usd"] is None} == {"self"}
    turns = pq.read_table(tmp_path / "out/turns.parquet").to_pylist()
    names = {"writer": "writer", "self": "model-1", "j": "other"}
    renamed = [{**row, "writer": "a/Model-1", "role": names[row["role"]]} for row in turns]
    write_table(pa.Table.from_pylist(renamed, TURNS.arrow()), tmp_path / "turns.parquet")
    model = "recorded/turns.parquet"
    run(*SMALL[:2], "--items", "[choir]", writer=model, judge=model, out="recorded", code=1)
    expected = {
        (row["rater"], "judged by its writer" in row["flags"])
        for row in rows_of(tmp_path / "recorded", "grades")
    }
    assert expected == {("model-1", True), ("other", False)}


def test_judges_that_are_asked_repeatedly(run, tmp_path):
    """Each reply is another; ratings and grades are means, and recorded replies give the same."""
    count = itertools.count()

    def rate(question):
        return rate_text(f"{question} {next(count)}")

    with fake() as server:
        server.answers["judge"] = rate
        run(*SMALL, "--judge_samples", 3)
        assert server.requests == 14 + 3 * 6
        said = run(*SMALL, "--judge_samples", 5, "--dry_run")
        assert re.search(rf"{JUDGE} +12 +18 ", said)
    out = tmp_path / "out"
    steps = Counter(row["step"] for row in rows_of(out, "turns") if row["role"] == JUDGE)
    judged = ("chapter_1", "chapter_2", "final")
    assert steps == {f"{step}{number}": 2 for step in judged for number in ("", "/4", "/7")}
    grades = {(row["prompt_id"], row["quantity"]): row["grade"] for row in rows_of(out, "grades")}
    repeated = read_table(out / "repeats.parquet", REPEATS).to_pylist()
    rubric = load_rubric("longform_final")
    for item in ("choir", "repair"):
        replies = [
            rubric.grade(rubric.read(row["text"]))
            for row in rows_of(out, "turns")
            if row["prompt_id"] == item and row["step"].partition("/")[0] == "final"
        ]
        assert len(set(replies)) == 3
        assert grades[item, "final"] == pytest.approx(5 * fmean(replies))
        assert grades[item, "final spread"] == pytest.approx(5 * stdev(replies))
        assert grades[item, "overall spread"] > 0
        repeats = [
            row["grade"]
            for row in repeated
            if (row["prompt_id"], row["quantity"]) == (item, "final")
        ]
        assert repeats == pytest.approx([5 * reply for reply in replies])
    wholes = [row for row in rows_of(out, "ratings") if row["criterion"] is None]
    assert len(wholes) == 6, "the tables have one rating of a text"
    model = f"recorded/{out}/turns.parquet"
    run(*SMALL, "--judge_samples", 3, writer=model, judge=model, out="recorded")
    for name in ("grades", "stories"):
        assert rows_of(tmp_path / "recorded", name) == rows_of(out, name)
    assert read_table(tmp_path / "recorded/repeats.parquet", REPEATS).to_pylist() == repeated
    compare_writers(WritersConfig(out, tmp_path / "page", quantity="final"))
    (result, _) = json.loads((tmp_path / "page/writers.json").read_text())["repeats"]
    expected = [
        row["grade"]
        for row in repeated
        if (row["prompt_id"], row["quantity"]) == (result["prompt"], "final")
    ]
    assert result["grades"] == pytest.approx(expected, abs=1e-6)
    page = (tmp_path / "page/writers.html").read_text()
    assert "Box plot of repeated judgements" in page


def test_a_second_run_in_a_folder_is_refused_before_it_touches_anything(run, tmp_path):
    second = []

    def start(number, moment):
        if number == 5 and moment == "before":
            command = [
                sys.executable,
                "-m",
                "litbench.cli",
                "run",
                "longform",
                *map(str, SMALL),
                "--out",
                "out",
                "--writer",
                WRITER,
                "--answers",
            ]
            second.extend(
                subprocess.run(
                    [*command, answers],
                    cwd=tmp_path,
                    capture_output=True,
                    text=True,
                    timeout=300,
                    check=False,
                )
                for answers in ("out/answers", "elsewhere")
            )

    with fake(on_request=start):
        run(*SMALL)
    assert [done.returncode for done in second] == [2, 2]
    for done in second:
        assert "another program is writing it" in done.stderr
        assert done.stderr.count("\n") == 1
    rows = {name: len(table) for name, table in tables(tmp_path / "out").items()}
    assert rows == {"turns": 20, "stories": 4, "ratings": 94, "grades": 8}


REPLACED = {
    "options.chapters": ("--options.chapters", 3),
    "options.as_published": ("--options.as_published", "true"),
    "items.choir": ("--items", "[repair]"),
    "samples.1": ("--samples", 1),
    "prices": ("--prices", "prices.yaml"),
    f"writers.{WRITER}": ("--writers", json.dumps({WRITER: {"model": "fake/other"}})),
    f"judges.{JUDGE}": ("--judges", json.dumps({"other": JUDGE})),
}


def test_another_config_does_not_replace_results(run, tmp_path):
    (tmp_path / "prices.yaml").write_text(json.dumps({JUDGE: {"input": 1.0, "output": 2.0}}))
    base = {"--options.chapters": 2, "--items": "[choir, repair]", "--samples": 2}
    with fake() as server:
        run(*chain(*base.items()))
        files = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.*")}
        sent = server.requests
        for name, (key, value) in REPLACED.items():
            writer = None if key == "--writers" else WRITER
            judge = None if key == "--judges" else JUDGE
            arguments = chain(*{**base, key: value}.items())
            said = run(*arguments, writer=writer, judge=judge, code=2)
            assert f"would be replaced: {name}" in said
            assert "remove manifest.json" in said
        assert server.requests == sent
        assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.*")} == files
        judges = {JUDGE: {"model": JUDGE, "traffic": TRAFFIC}, "more": JUDGE}
        said = run(
            *SMALL[:2],
            "--samples",
            3,
            "--items",
            "[choir, repair, orchard]",
            "--judges",
            json.dumps(judges),
            "--writer",
            JUDGE,
            judge=None,
        )
        assert "9 of 18 dialogues finished" in said, "the judge writes no stories"
        (tmp_path / "out/manifest.json").unlink()
        assert "2 of 2 dialogues finished" in run(*SMALL)


def test_an_output_folder_that_is_a_file(run, tmp_path):
    (tmp_path / "out").write_text("")
    said = run(*SMALL, code=2)
    assert said.startswith("error: cannot write out: ")
    assert said.count("\n") == 1


def test_filtered_text_is_neither_history_nor_story(run, tmp_path):
    def manner(question):
        return None if "It rained" in question or "[Scores]" in question else "filter later"

    with fake(manners=manner):
        said = run(*SMALL[:2], "--items", "[choir]", code=1)
    assert "0 of 1 dialogues finished" in said
    assert "no dialogue finished" in said
    assert "writers compare" not in said
    assert "5 answers are shorter than 500 characters or refused" in said
    assert manifest(tmp_path / "out")["counts"]["turns"] == {"refused": 5}
    results = {
        name: pq.read_metadata(tmp_path / f"out/{name}.parquet").num_rows for name in SCHEMAS
    }
    assert results == {"turns": 5, "stories": 0, "ratings": 0, "grades": 0}


def test_folder_of_another_program(run, tmp_path):
    artifact = Artifact(tmp_path / "out", program="eval/benchmark.py", config={}, inputs={})
    artifact.counts = {"pairs": 3}
    artifact.finish()
    with fake():
        said = run("--items", "[choir]")
    assert "1 of 1 dialogues finished" in said
    assert re.search(r"overall +95 % +items\n.* \d\d\.\d\d +– +1$", said, re.M), "no interval"


def test_texts_and_items_with_numbers(run, tmp_path):
    write_texts(tmp_path / "texts")
    names = ("Pacing", "Weak Dialogue", "Forced Poetry or Metaphor")
    with fake() as server:
        server.answers["judge"] = lambda _: "\n".join(f"{name}: 12" for name in names)
        said = run("--texts", "texts", "--items", "[7]", "--options.chapters", 1)
        assert "1 of 1 dialogues finished, 6 of 6 ratings read" in said
        assert server.requests == 6 + 2
    reasons = manifest(tmp_path / "out")["counts"]["not_comparable"]
    assert any("not the published texts" in reason for reason in reasons)
    flags = [row["flags"] for row in rows_of(tmp_path / "out", "grades")]
    assert not any(flags)


ERRORS = {
    "unknown protocol 'longfrom': did you mean 'longform'?": ("--protocol", "longfrom"),
    "items: no item 'choire': did you mean 'choir'?": ("--items", "[choire]"),
    "unknown key 'chapter': did you mean 'chapters'?": ("--options.chapter", 3),
    "key 'chapters' is 0": ("--options.chapters", 0),
    "judges.writer: this is the name of another role": ("--judges", "{writer: a/b}"),
    "roles.editor: no such role": ("--roles", "{editor: a/b}"),
    "texts: cannot read": ("--texts", "nowhere"),
    "unknown key 'sampling.temperatur'": (
        "--writers",
        "{w: {model: a/b, sampling: {temperatur: 1}}}",
    ),
    "max_cost_usd is 1.0, but the model has no price": (
        "--writers",
        "{w: {model: a/b, traffic: {max_cost_usd: 1}}}",
    ),
    "unexpected argument 'more'": ("--samples", 2, "more"),
    "--writer has no value": ("--writer",),
}


@pytest.mark.parametrize(("said", "arguments"), ERRORS.items(), ids=range(len(ERRORS)))
def test_errors(said, arguments, run, tmp_path):
    writer = None if "--writer" in arguments[0] else WRITER
    judge = None if "--judge" in arguments[0] else JUDGE
    printed = run(*arguments, writer=writer, judge=judge, code=2)
    assert printed.startswith("error: ")
    assert said in printed
    assert not list(tmp_path.iterdir())


def test_needs_a_writer(run):
    assert "writers is empty: name at least one" in run(writer=None, code=2)


@pytest.mark.skipif(
    not {"LONGFORM", "LONGFORM_BENCH"} <= set(os.environ),
    reason="set LONGFORM to the published results and LONGFORM_BENCH to the published texts",
)
def test_published_scores_from_published_replies(run, program, tmp_path, monkeypatch):
    done = program(
        "litbench writers import_turns",
        "--config",
        "configs/data/longform_turns.yaml",
        "--out",
        tmp_path / "data",
    )
    assert "3,640 turns" in done.stdout
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    model = f"recorded/{tmp_path}/data/turns.parquet"
    options = ["--texts", os.environ["LONGFORM_BENCH"], "--options.as_published", "true"]
    said = run(*options, writer=model, judge=model)
    assert "165 of 168 dialogues finished" in said
    assert "run the same command again" not in said
    path = Path(os.environ["LONGFORM"]) / "longform_results_sample.parquet"
    columns = ["model", "published_overall_0_100"]
    printed = {
        row["model"]: row[columns[1]]
        for row in pq.read_table(path, columns=columns).to_pylist()
        if row[columns[1]] is not None
    }
    grades = defaultdict(list)
    few = []
    for row in rows_of(tmp_path / "out", "grades"):
        if row["quantity"] == "overall":
            grades[row["writer"]].append(row["grade"])
        elif row["flags"] and not row["flags"].startswith("1 of"):
            few.append((row["writer"], row["prompt_id"], row["quantity"], row["flags"]))
    assert len(printed) == 13
    results = {name: f"{round(fmean(grades[name]), 2):.1f}" for name in printed}
    assert results == {name: f"{score:.1f}" for name, score in printed.items()}
    assert results["o3"] == "77.5"
    assert len(grades["microsoft/phi-4-multimodal-instruct"]) == 9
    euryale = "sao10k/l3.3-euryale-70b"
    assert few == [
        ("qwen/qwen3-8b", "5", "chapter_1", "5 of 14 ratings missing"),
        *(
            (euryale, item, "chapter_6", "14 of 14 ratings missing")
            for item in ("4", "6", "7", "11")
        ),
    ]
    assert "unchanged" in run(*options, writer=model, judge=model)
