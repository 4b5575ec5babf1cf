"""litbench score: the same rows, with rewards."""

import io
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from litbench.artifact import file_digest
from litbench.cli import main
from litbench.models.features import FeatureModel, FeatureOptions, fit_features


@pytest.fixture
def model_folder(tmp_path: Path, pair_table: Callable[..., pa.Table]) -> Path:
    pairs = pair_table(
        [
            {"chosen": "Well, well, well, " * (1 + n % 3), "rejected": "Dull! " * 9}
            for n in range(20)
        ]
    )
    fit_features(pairs, FeatureOptions(c=[0.1])).save(tmp_path / "model")
    return tmp_path / "model"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["litbench", *map(str, arguments)])
    main()


def test_rows_get_reward_and_rank(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"prompt": "[WP] A door.", "text": "Well, it opened, slowly.", "mine": 1},
        {"prompt": "[WP] A door.", "text": "It! Was! Open!", "mine": 2},
        {"prompt": "[WP] A well.", "text": "Deep.", "mine": 3},
    ]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(monkeypatch, "score", "--model", model_folder, "--input", source, "--out", out)
    scored = [json.loads(line) for line in out.read_text().splitlines()]
    assert [{k: row[k] for k in ("prompt", "text", "mine")} for row in scored] == rows
    model = FeatureModel.load(model_folder)
    expected = model.score([row["prompt"] for row in rows], [row["text"] for row in rows])
    np.testing.assert_allclose([row["reward"] for row in scored], expected, rtol=0, atol=1e-12)
    assert [row["rank_within_prompt"] for row in scored] == [1, 2, 1]
    manifest = json.loads((tmp_path / "out.jsonl.manifest.json").read_text())
    assert manifest["counts"]["stories"] == 3
    assert manifest["counts"]["rejected_rows"] == {}
    assert manifest["output"]["sha256"] == file_digest(out)


def test_nan_is_null_in_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def strict(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    # Python reads and writes NaN in JSON.
    rows = [
        {"prompt": "p", "text": "a b", "x": math.nan, "in": {"y": math.inf, "z": [-math.inf, 2.5]}},
        {"prompt": "p", "text": "a", "x": 1.5, "in": None},
    ]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["score", "--rater", "{kind: longer}", "--input", source, "--out"]
    run(monkeypatch, *arguments, out)
    first, second = (
        json.loads(line, parse_constant=strict) for line in out.read_text().splitlines()
    )
    assert (first["x"], first["in"]) == (None, '{"y":Infinity,"z":[-Infinity,2.5]}')
    assert (second["x"], second["in"]) == (1.5, None)
    # Parquet supports NaN, so it is kept.
    run(monkeypatch, *arguments, tmp_path / "out.parquet")
    assert math.isnan(pq.read_table(tmp_path / "out.parquet")["x"][0].as_py())


def test_rejected_rows_are_counted(
    tmp_path: Path,
    model_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.parquet"
    source.write_text('{"prompt": "p", "text": "fine"}\n{"prompt": "p", "text": null}\nnot json\n')
    run(monkeypatch, "score", "--model", model_folder, "--input", source, "--out", out)
    printed = capsys.readouterr()
    assert "1 stories scored" in printed.out
    assert "rejected: 2 rows" in printed.err
    assert "compared within a prompt only" in printed.err
    reasons = (tmp_path / "out.parquet.rejected.jsonl").read_text()
    assert "null" in reasons
    assert "not JSON" in reasons


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "no/such/folder", "--prompt", "p", "--story", "x"], "there is no folder"),
        (["--model", "MODEL"], "--input FILE"),
        (["--model", "MODEL", "--story", "x", "--out", "y.csv"], "--input FILE and --out FILE, or"),
        (["--model", "MODEL", "--device", "cpu", "--story", "x"], "is a feature model"),
        (
            ["--rater", "{kind: longer}", "--device", "cpu", "--story", "x"],
            "only work with --model",
        ),
        (["--rater", "{kind: longer", "--story", "x"], "is not valid YAML"),
        (["--rater", "longer", "--story", "x"], "needs a kind"),
        (["--rater", "{kind: random}", "--prompt", "p", "--story", "x"], "no rewards"),
        (["--rater", "{kind: longer}", "--story", "x"], "--story TEXT with --prompt TEXT"),
        (["--rater", "{kind: longer}", "--prompt", " ", "--story", "x"], "is empty: give both"),
        (["--rater", "{kind: longer}", "--prompt", "p", "--story", ""], "is empty: give both"),
        (["--rater", "{kind: longer}", "--prompt", "p", "--story", "-"], "in position 1"),
        (["--model", "MODEL", "--input", "missing.jsonl", "--out", "x.jsonl"], "there is no file"),
    ],
)
def test_user_errors_exit_with_2(
    arguments: list[str],
    message: str,
    model_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xff")))
    ready = [str(model_folder) if word == "MODEL" else word for word in arguments]
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, "score", *ready)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_any_rater_with_rewards_scores_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.csv"
    source.write_text("prompt,text\n[WP] A door!,one two three\nA door,one\n")
    arguments = ["score", "--rater", "{kind: longer}", "--input", source]
    arguments += ["--out", tmp_path / "out.jsonl"]
    run(monkeypatch, *arguments)
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["reward"], row["rank_within_prompt"]) for row in found] == [(3.0, 1), (1.0, 2)]
    capsys.readouterr()
    run(monkeypatch, *arguments)
    assert capsys.readouterr().out.startswith("unchanged: ")


def test_story_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ("score", "--rater", "{kind: shorter}", "--prompt", "p", "--story")
    run(monkeypatch, *named, "one two")
    said = capsys.readouterr()
    assert float(said.out) == -2
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbf\xe4\xbd\xa0 b\n")))
    run(monkeypatch, *named, "-")
    assert float(capsys.readouterr().out) == -2


def test_installed_command() -> None:
    command = Path(sys.executable).parent / "litbench"
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("litbench ")
