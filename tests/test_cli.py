"""litbench score: rows in, the same rows with rewards out."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from litbench.cli import main, ranks_within_prompt
from litbench.manifest import file_digest
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


def test_every_row_comes_back_with_its_reward_and_rank(
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
    assert manifest["counts"] == {"stories": 3, "set_aside": {}}
    assert manifest["output"]["sha256"] == file_digest(out)


def test_one_story_can_be_scored_from_the_command_line(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(
        monkeypatch,
        "score",
        "--model",
        model_folder,
        "--story",
        "Well, well.",
        "--prompt",
        "[WP] X",
    )
    expected = FeatureModel.load(model_folder).score(["[WP] X"], ["Well, well."])[0]
    assert float(capsys.readouterr().out) == pytest.approx(expected, abs=1e-6)


def test_rows_that_cannot_be_scored_are_set_aside_and_counted(
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
    assert "set aside: 2 rows" in printed.err
    reasons = (tmp_path / "out.set_aside.jsonl").read_text()
    assert "null" in reasons
    assert "not JSON" in reasons


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "no/such/folder", "--story", "x"], "there is no folder"),
        (["--model", "MODEL"], "--input FILE"),
        (["--model", "MODEL", "--input", "missing.jsonl", "--out", "x.jsonl"], "there is no file"),
    ],
)
def test_a_mistake_ends_in_one_line_and_exit_2(
    arguments: list[str],
    message: str,
    model_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ready = [str(model_folder) if word == "MODEL" else word for word in arguments]
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, "score", *ready)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_equal_rewards_share_a_rank() -> None:
    assert ranks_within_prompt([1.0, 2.0, 2.0, 0.0], ["a", "a", "a", "b"]) == [3, 1, 1, 1]


def test_the_installed_command_answers() -> None:
    command = Path(sys.executable).parent / "litbench"
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("litbench ")
