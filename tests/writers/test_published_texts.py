"""Every protocol with published texts, for which invented texts stand in, against a server.

HOWTOBENCH names a folder with the published prompts.yaml of Tree-of-Writing.
"""

import json
import shutil
from pathlib import Path

import narra_script as script
import pyarrow.parquet as pq
import pytest
import yaml
from chinese_writers import (
    block,
    folder_of,
    grades_of,
    served,
    write_books,
    write_instructions,
)
from test_longform import scores, write_texts

from litbench.runs.errors import ConfigError
from litbench.writers import narra
from litbench.writers.narra.episode import PROMPTS
from litbench.writers.protocol import load_protocol
from litbench.writers.run import Run, run
from litbench.writers.tow import _PUBLISHED_TEXTS

WEIGHTS = '{"weights": [0.1, 0.4, 0.2, 0.3]}'


def write_webnovel(folder):
    """The published form with texts of our own."""
    texts = {
        "generation_system_with_criteria": "STAND-IN: write, and mind the criteria.",
        "generation_system_without_criteria": "STAND-IN: write.",
        "extraction_user": "STAND-IN: sum up {text}",
        "judge_user": "STAND-IN: rate {chapter}",
    }
    (folder / "prompts.json").write_text(json.dumps(texts), encoding="utf-8")
    return {"books": write_books(folder / "books.json", ["book"], chapters=2)}


def write_tow(folder):
    """The published form with texts of our own."""
    texts = {
        key: f"STAND-IN {key}: " + " / ".join(f"{{{name}}}" for name in places)
        for key, places in _PUBLISHED_TEXTS.items()
    }
    (folder / "prompts.yaml").write_text(yaml.safe_dump(texts), encoding="utf-8")
    return {"instructions": write_instructions(folder / "instructions.parquet", [{}])}


def write_narra(folder):
    """Our prompts and rubric as a user would change them."""
    prompts = {
        **PROMPTS,
        "turn": {**PROMPTS["turn"], "text": f"STAND-IN\n{PROMPTS['turn']['text']}"},
    }
    (folder / "prompts.yaml").write_text(yaml.safe_dump(prompts), encoding="utf-8")
    packaged = Path(narra.__file__).parents[2] / "raters/templates/rubrics/narra.yaml"
    rubric = yaml.safe_load(packaged.read_text(encoding="utf-8"))
    rubric["text"] = "STAND-IN\n" + rubric["text"]
    (folder / "rubric.yaml").write_text(yaml.safe_dump(rubric), encoding="utf-8")
    return {}


def write_longform(folder):
    shutil.copytree(write_texts(folder / "made"), folder, dirs_exist_ok=True)
    return {"chapters": 1}


def longform_reply(question):
    return scores() if "|" in question else "word " * 120


def webnovel_reply(question):
    return block(3) if "STAND-IN: rate" in question else "<text>短短一章。</text>"


def tow_reply(question):
    if "STAND-IN" not in question:
        return "渡口。" * 300
    return WEIGHTS if "edge_weighting" in question else "Score: [[2]]"


PLAYERS = {"quill": script.writer, "player": script.reader, "alpha": script.judge}
# How the files are made, a reply, and a question that the texts ask.
CASES = {
    "longform": (write_longform, longform_reply, "plan 1 A {n_chapters} tale 1"),
    "webnovel": (write_webnovel, webnovel_reply, "STAND-IN: rate 短短一章。"),
    "tow": (write_tow, tow_reply, "STAND-IN argumentative_logic: "),
    "narra": (write_narra, script.judge, "STAND-IN\n===== STORY BEGINS ====="),
}


@pytest.mark.parametrize("as_published", [False, True])
@pytest.mark.parametrize("protocol", CASES)
def test_a_run_asks_with_published_texts(protocol, as_published, tmp_path):
    write, reply, expected = CASES[protocol]
    texts = tmp_path / "texts"
    texts.mkdir()
    options = {**write(texts), "texts": texts, "as_published": as_published}
    items, roles, names = None, {}, dict.fromkeys(("w", "j"), "judge")
    with served(reply, others=PLAYERS if protocol == "narra" else {}) as server:
        if protocol == "narra":
            names = {"w": "quill", "j": "alpha"}
            items, roles = ["injured_swimmer"], {"reader": server.model_called("player")}
        writers, judges = ({name: server.model_called(model)} for name, model in names.items())
        run(Run(protocol, tmp_path / "out", writers, judges, roles, options, items))
    assert any(question.startswith(expected) for question in server.asked)
    grades = [grade for (*_, rater, _), (grade, _) in grades_of(tmp_path / "out").items() if rater]
    assert None not in grades
    record = json.loads((tmp_path / "out/manifest.json").read_text())["counts"]
    assert record["texts"]
    ours = [reason for reason in record["not_comparable"] if "LitBench's own" in reason]
    # Personas have no published file among the texts, and the plan of format is printed nowhere.
    assert len(ours) == (protocol == "narra" or (protocol == "tow" and not as_published))


@pytest.mark.parametrize("as_published", [False, True])
def test_published_prompts_plan_content_and_ours_format(as_published, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    options = {**write_tow(texts), "texts": texts, "as_published": as_published}
    with served(tow_reply) as server:
        models = {"w": server.model}
        run(Run("tow", tmp_path / "out", models, models, options=options))
    turns = pq.read_table(tmp_path / "out/turns.parquet").to_pylist()
    steps = {turn["step"] for turn in turns if turn["role"] == "planner"}
    assert ("format_plan" in steps) == (not as_published)
    assert "plan" in steps
    assert any(question.startswith("STAND-IN edge_weighting: ") for question in server.asked)
    assert any("标题与层次" in question for question in server.asked) == (not as_published)


def tow_texts(**changes):
    def change(folder):
        path = folder / "prompts.yaml"
        texts = yaml.safe_load(path.read_text()) | changes
        texts = {key: text for key, text in texts.items() if text is not None}
        path.write_text(yaml.safe_dump(texts))

    return change


def webnovel_texts(**changes):
    def change(folder):
        path = folder / "prompts.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def narra_texts(name, old, new):
    def change(folder):
        path = folder / name
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    return change


def without(name):
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("protocol", "change", "message"),
    [
        ("tow", without("prompts.yaml"), "cannot read prompts.yaml"),
        ("tow", tow_texts(emotion=None), "has no text 'emotion'"),
        ("tow", tow_texts(emotion="{instruction}{reference}{content}{mood}"), "placeholder {mood}"),
        ("tow", tow_texts(emotion="{instruction}{content}"), "no placeholder {reference}"),
        ("webnovel", webnovel_texts(judge_user="no slot"), "no placeholder {chapter}"),
        ("webnovel", webnovel_texts(judge_user=3), "has no text 'judge_user'"),
        ("narra", narra_texts("prompts.yaml", "safe_text:", "safe_texts:"), "key 'safe_text"),
        (
            "narra",
            narra_texts("prompts.yaml", "STAND-IN", "{mood}"),
            "turn: text has the placeholder",
        ),
        ("narra", narra_texts("rubric.yaml", "STAND-IN", "{mood}"), "placeholder {mood}"),
        ("narra", narra_texts("rubric.yaml", "story_empathy", "empathy"), "eleven criteria"),
        ("narra", without("rubric.yaml"), "cannot read rubric.yaml"),
    ],
)
def test_bad_texts_are_refused_in_one_line(protocol, change, message, tmp_path):
    options = {**CASES[protocol][0](tmp_path), "texts": tmp_path}
    load_protocol(protocol, options)
    change(tmp_path)
    with pytest.raises(ConfigError) as error:
        load_protocol(protocol, options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_published_prompts_of_tree_of_writing_are_known(tmp_path):
    made = write_tow(tmp_path)
    altered = load_protocol("tow", {**made, "texts": tmp_path}).record()
    assert "not the published texts: prompts.yaml" in altered["not_comparable"]
    folder = folder_of("HOWTOBENCH")
    published = load_protocol("tow", {**made, "texts": folder, "as_published": True}).record()
    assert published["not_comparable"] == [
        "published grades are by GPT-4o; other judges rate differently"
    ]
