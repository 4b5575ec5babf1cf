"""The litbench command: score, its messages and its exit codes."""

import csv
import dataclasses
import io
import json
import os
import re
import subprocess
import sys
import typing
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from litbench import cli
from litbench.cli import main
from litbench.models.features import FeatureModel, FeatureOptions, fit_features
from litbench.runs.config import load_config, report_errors, summarise
from litbench.runs.errors import ConfigError
from litbench.runs.outputs import file_digest

COMMAND = Path(sys.executable).parent / "litbench"


@pytest.fixture
def model_folder(tmp_path, pair_table):
    rows = [
        {"chosen": "Well, well, well, " * (1 + n % 3), "rejected": "Dull! " * 9} for n in range(20)
    ]
    fit_features(pair_table(rows), FeatureOptions(c=[0.1])).save(tmp_path / "run" / "model")
    return tmp_path / "run" / "model"


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command; returns what it prints."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["litbench", *map(str, arguments)])
        main()
        return capsys.readouterr()

    return run


def test_rows_get_reward_percentile_and_rank(tmp_path, model_folder, run):
    rows = [
        {"prompt": "[WP] A door.", "text": "Well, it opened, slowly.", "mine": 1},
        {"prompt": "[WP] A door.", "text": "It! Was! Open!", "mine": 2},
        {"prompt": "[WP] A well.", "text": "Deep.", "mine": 3},
    ]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [*map(json.dumps, rows), '{"prompt": "p", "text": null}', "not json"]
    source.write_text("\n".join(lines))
    arguments = ["score", "--model", model_folder, "--input", source, "--out", out]
    printed = run(*arguments)
    assert "3 stories scored" in printed.out
    assert "rejected: 2 rows" in printed.err
    assert "compared within a prompt only" in printed.err
    assert "reward_percentile: the share of training stories" in printed.err
    scored = [json.loads(line) for line in out.read_text().splitlines()]
    assert [{k: row[k] for k in ("prompt", "text", "mine")} for row in scored] == rows
    model = FeatureModel.load(model_folder)
    expected = model.score([row["prompt"] for row in rows], [row["text"] for row in rows])
    np.testing.assert_allclose([row["reward"] for row in scored], expected, rtol=0, atol=1e-12)
    assert [row["reward_percentile"] for row in scored] == model.percentiles(expected).tolist()
    assert [row["rank_within_prompt"] for row in scored] == [1, 2, 1]
    manifest = json.loads((tmp_path / "out.jsonl.manifest.json").read_text())
    assert manifest["output"]["sha256"] == file_digest(out)
    assert run(*arguments).out.startswith("unchanged: ")


def test_both_sides_of_pairs_are_scored(tmp_path, model_folder, run):
    rows = [{"prompt": "A door.", "chosen": f"It opened, {n}.", "rejected": "No!"} for n in "ab"]
    source, out = tmp_path / "pairs.jsonl", tmp_path / "scored.jsonl"
    source.write_text("\n".join(map(json.dumps, rows)))
    printed = run("score", "--model", model_folder, "--input", source, "--out", out)
    assert "4 stories scored" in printed.out
    model = FeatureModel.load(model_folder)
    scored = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(row["chosen"] for row in scored) == [row["chosen"] for row in rows]
    for row in scored:
        for side in ("chosen", "rejected"):
            (expected,) = model.score([row["prompt"]], [row[side]])
            assert row[f"reward_{side}"] == pytest.approx(expected, abs=1e-12)
            assert row[f"reward_percentile_{side}"] == model.percentiles([expected])[0]


def test_columns_of_the_training_come_before_common_names(tmp_path, model_folder, run):
    model = FeatureModel.load(model_folder)
    model.columns = {"prompt": "heading", "text": "page"}
    model.save(tmp_path)
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("prompt,text,heading,page\nx,y,A door.,It opened.\n")
    keys = ("--input", source, "--out", out)
    for more, prompt, text in (
        ((), "A door.", "It opened."),
        (("--prompt", "prompt", "--text", "text"), "x", "y"),
    ):
        run("score", "--model", tmp_path, *keys, *more)
        (row,) = csv.DictReader(out.read_text(encoding="utf-8").splitlines())
        assert float(row["reward"]) == pytest.approx(model.score([prompt], [text])[0])


def test_raters_without_training_stories_have_no_percentile(tmp_path, run):
    source = tmp_path / "in.csv"
    source.write_text("prompt,text\n[WP] A door!,one two three\nA door,one\n")
    arguments = ["score", "--rater", "{kind: longer}", "--input", source, "--out"]
    assert "reward_percentile is null" in run(*arguments, tmp_path / "out.jsonl").err
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    added = [(row["reward"], row["reward_percentile"], row["rank_within_prompt"]) for row in rows]
    assert added == [(3.0, None, 1), (1.0, None, 2)]
    run(*arguments, tmp_path / "out.parquet")
    column = pq.read_table(tmp_path / "out.parquet")["reward_percentile"]
    assert column.null_count == 2


def test_story_from_the_command_line(model_folder, run, monkeypatch):
    named = ("score", "--rater", "{kind: shorter}", "--prompt", "p", "--story")
    shown = "reward -2.000000\nreward_percentile null\nis_prose null\nlike_training null\n"
    assert run(*named, "one two").out == shown
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbf\xe4\xbd\xa0 b\n")))
    assert run(*named, "-").out == shown
    said = run("score", "--model", model_folder, "--prompt", "p", "--story", "Dull! " * 99).out
    assert said.splitlines()[1] == "reward_percentile 0.0"


def test_a_story_that_is_no_prose_is_flagged_with_reasons(run, braces_are_code):
    del braces_are_code
    said = run("score", "--rater", "{kind: longer}", "--prompt", "p", "--story", "{x} y")
    assert "is_prose false\nlike_training false\n" in said.out
    assert "braces" in said.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "no/such/folder", "--prompt", "p", "--story", "x"], "there is no folder"),
        (["--model", "PARENT", "--prompt", "p", "--story", "x"], "run/model\n"),
        (["--model", "MODEL"], "--input FILE"),
        (["--model", "MODEL", "--story", "x", "--out", "y.csv"], "--input FILE and --out FILE, or"),
        (["--model", "MODEL", "--device", "cpu", "--story", "x"], "is a feature model"),
        (
            ["--rater", "{kind: longer}", "--device", "cpu", "--story", "x"],
            "--batch_tokens and --dtype only work with --model",
        ),
        (
            ["--rater", "{kind: longer", "--prompt", "p", "--story", "x"],
            "--rater is '{kind: longer'",
        ),
        (["--rater", "longer", "--prompt", "p", "--story", "x"], "write an entry such as"),
        (["--rater", "{}", "--prompt", "p", "--story", "x"], "needs a kind"),
        (["--prompt", "p", "--story", "x"], "give --model FOLDER_OR_NAME, or --rater"),
        (["--mod", "MODEL"], "unknown key 'mod': did you mean 'model'"),
        (["--rater", "{kind: random}", "--prompt", "p", "--story", "x"], "no rewards"),
        (["--rater", "{kind: longer}", "--story", "x"], "--story TEXT with --prompt TEXT"),
        (["--rater", "{kind: longer}", "--prompt", " ", "--story", "x"], "--prompt is empty"),
        (["--rater", "{kind: longer}", "--prompt", "p", "--story", "&nbsp;"], "no text"),
        (["--rater", "{kind: longer}", "--prompt", "p", "--story", "-"], "in position 1"),
        (["--rater", "{kind: longer}", "--out", "caf\udce9"], "'caf\\udce9' is not UTF-8: rename"),
        (["--model", "MODEL", "--input", "missing.jsonl", "--out", "x.jsonl"], "there is no file"),
        (
            ["--model", "MODEL", "--input", "TITLES", "--out", "x.jsonl"],
            "cannot tell which column is the prompt; the columns are name, text: give --prompt "
            "COLUMN, or rename them\n",
        ),
    ],
)
def test_user_errors_exit_with_2(
    arguments, message, model_folder, tmp_path, run, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xff")))
    (tmp_path / "titles.csv").write_text("name,text\nA door,It opened.\n")
    places = {"MODEL": model_folder, "PARENT": model_folder.parent}
    places["TITLES"] = tmp_path / "titles.csv"
    with pytest.raises(SystemExit) as stopped:
        run("score", *(places.get(word, word) for word in arguments))
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_installed_command(tmp_path):
    """Outside the checkout, as with a wheel: the programs and their configs are found."""

    def done(*arguments):
        return subprocess.run(
            [COMMAND, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path
        )

    assert done("--version").stdout.startswith("litbench ")
    shown = done().stdout
    for line in ("  fit  ", "  import_pairs  ", "  bradley_terry  ", "  benchmark  "):
        assert f"\n{line}" in shown
    assert "Turn stories into preference pairs" in done("data", "--help").stdout
    made = done(
        "data", "make_stories", "--config", "configs/data/sample_stories.yaml", "--out=made"
    )
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "made" / "stories.parquet").exists()
    for words, message in (
        (("fot",), "unknown command 'litbench fot': did you mean 'fit'?"),
        (("eval", "benchmrk"), "'litbench eval benchmrk': did you mean 'benchmark'?"),
        (("eval", "benchmark", "--config", "configs/none.yaml"), "cannot read config"),
        (("data", "make_pairs"), "keys 'stories' and 'out' are missing"),
    ):
        wrong = done(*words)
        assert wrong.returncode == 2
        assert wrong.stderr.startswith("error: ")
        assert message in wrong.stderr


def test_missing_library_names_its_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "trl", None)
    words = ["litbench", "fit", "sample", "--out=x", "--model_name_or_path=y"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit):
        main()
    assert "this needs trl, which is not installed: run pip install 'litbench[train]'" in (
        capsys.readouterr().err
    )
    with pytest.raises(SystemExit), report_errors():
        raise ModuleNotFoundError("No module named 'peft'", name="peft.tuners")
    assert "pip install 'litbench[train]'" in capsys.readouterr().err
    with pytest.raises(ModuleNotFoundError), report_errors():
        raise ModuleNotFoundError("No module named 'mine'", name="mine")


def test_closed_pipe_ends_quietly():
    # Python's default: what is printed stays in a buffer until exit.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        [COMMAND, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        process.stdout.close()
        error = process.stderr.read()
    assert (process.returncode, error) == (141, b"")


@pytest.mark.parametrize("command", cli.command_names())
def test_every_command_has_the_same_grammar(command):
    _, cls, about = cli.find_command(command)
    text = (about or "").strip()
    assert re.search(r"^    (litbench|python|accelerate) ", text, re.M), "an example"
    keys = [*summarise(cls, text.count("\n"))]
    assert len(text.splitlines()) + len(keys) <= 50, "a screen"
    hints = typing.get_type_hints(cls)
    required = [
        field.name
        for field in dataclasses.fields(cls)
        if field.default is field.default_factory is dataclasses.MISSING
    ]
    if required:
        with pytest.raises(ConfigError) as missing:
            load_config(cls, [])
        assert set(re.findall(r"'(\w+)'", str(missing.value))) == set(required)
    for key, hint in hints.items():
        if hint in (bool, bool | None) and key not in required:
            # A value that is missing would be named first.
            expected = pytest.raises(ConfigError, match="missing") if required else nullcontext()
            with expected:
                assert getattr(load_config(cls, [f"--{key}"]), key) is True
    key = max(hints, key=len, default=None)
    if key is not None:
        with pytest.raises(ConfigError, match=f"unknown key '{key[:-1]}': did you mean"):
            load_config(cls, [f"--{key[:-1]}", "1"])
