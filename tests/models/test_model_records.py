"""`features.json` and `litbench.json`: whatever is wrong with them is one line."""

import json
import os

import numpy as np
import pytest

from litbench import models
from litbench.cli import main
from litbench.models.features import FEATURES, FeatureModel
from litbench.models.record import FolderRecord, read_record
from litbench.runs.errors import ModelError
from litbench.runs.outputs import write_sealed

DEEP = "[" * 100_000 + "]" * 100_000
QUESTION = {
    "parts": ["a", "b", "c", "d"],
    "slots": ["prompt", "story_a", "story_b"],
    "fixed": [[1], [2], [3], [4]],
    "end": [5],
    "label_ids": [[6], [7]],
    "answer": "label",
    "max_length": 512,
    "max_prompt_tokens": 64,
    "max_answer_tokens": 1,
}


def spoil(content, key, value):
    """Replace a value, or remove a key whose value is `...`; `key` may be a path."""
    *path, last = key if isinstance(key, tuple) else (key,)
    for step in path:
        content = content[step]
    if value is ...:
        del content[last]
    else:
        content[last] = value


QUANTILES = [
    (None, None),
    ([], "has 0 numbers"),
    ([0.0] * 100, "has 100 numbers"),
    ([1.0] + [0.0] * 100, "in ascending order"),
    (["x"] * 101, "reward_quantiles"),
    ([float("nan")] * 101, "finite"),
    (5, "reward_quantiles"),
]
OF_BOTH = [
    ("kind", "unheard_of", "kind"),
    ("kind", ..., "kind"),
    ("training_prompts", ..., "training_prompts"),
    ("training_prompts", "abc", "training_prompts"),
    ("training_prompts", [1], "training_prompts"),
    ("training_prompts", None, "training_prompts"),
    ("more", 1, "unknown key 'more'"),
    *(("reward_quantiles", value, said) for value, said in QUANTILES),
]
OF_FEATURES = [
    ("c", "many", "'c'"),
    ("c", -1, "'c'"),
    ("c", 10**400, "'c'"),
    ("features", [], "features"),
    ("features", {}, "features"),
    (("features", 0, "name"), "unheard_of", "unknown or repeated features"),
    (("features", 0, "name"), FEATURES[1], "unknown or repeated features"),
    (("features", 0, "scale"), 0, "scale"),
    (("features", 0, "mean"), float("inf"), "mean"),
    (("features", 0, "coefficient"), ..., "coefficient"),
    ("reward_quantiles", ..., "reward_quantiles"),
]
OF_FOLDERS = [
    ("form", "unheard_of", "form"),
    ("format", 2, "format"),
    ("adapter", {"base": 3, "quantized": False}, "adapter"),
    ("adapter", {"quantized": True}, "base"),
    ("training", [], "training"),
    ("question", QUESTION, "has a question"),
    ("question", {**QUESTION, "fixed": []}, "fixed"),
    ("question", {**QUESTION, "max_length": 0}, "max_length"),
    ("question", {**QUESTION, "answer": "song"}, "answer"),
]


def check_one_line(error, path, said):
    assert str(path) in str(error)
    assert said in str(error)
    assert "\n" not in str(error)
    assert len(str(error)) < 1_000


@pytest.fixture
def features(tmp_path):
    """The content of a saved feature model."""
    ones = np.ones(len(FEATURES))
    model = FeatureModel("f", FEATURES, ones, ones, ones, 1.0, frozenset({"a"}))
    model.reward_quantiles = np.linspace(-1, 1, 101).tolist()
    model.save(tmp_path)
    content = json.loads((tmp_path / "features.json").read_text())
    del content["sha256"]
    return content


@pytest.fixture
def folder():
    """The content of a reward model's litbench.json."""
    return {
        "format": 3,
        "kind": "reward",
        "adapter": None,
        "reward_quantiles": None,
        "training_prompts": [],
        "training": {},
        "versions": {},
    }


@pytest.mark.parametrize(("key", "value", "said"), OF_BOTH + OF_FEATURES)
def test_features_json_is_checked(tmp_path, features, key, value, said):
    path = tmp_path / "features.json"
    spoil(features, key, value)
    write_sealed(features, path)
    if said is None:
        assert FeatureModel.load(tmp_path).reward_quantiles == value
        return
    with pytest.raises(ModelError) as caught:
        FeatureModel.load(tmp_path)
    check_one_line(caught.value, path, said)


@pytest.mark.parametrize(("key", "value", "said"), OF_BOTH + OF_FOLDERS)
def test_litbench_json_is_checked(tmp_path, folder, key, value, said):
    path = tmp_path / "litbench.json"
    spoil(folder, key, value)
    write_sealed(folder, path)
    if said is None:
        assert read_record(path, FolderRecord, "").reward_quantiles == value
        return
    with pytest.raises(ModelError) as caught:
        models.load(tmp_path)
    check_one_line(caught.value, path, said)


@pytest.mark.parametrize("name", ["features.json", "litbench.json", "adapter_config.json"])
@pytest.mark.parametrize(
    "text", [DEEP, '{"a":' * 50_000, "9" * 5_000, '{"c": ' + "9" * 5_000 + "}", "", "\x00", "null"]
)
def test_a_file_that_is_no_object_is_one_line(tmp_path, monkeypatch, capsys, name, text):
    (tmp_path / name).write_text(text)
    arguments = ["score", "--model", tmp_path, "--prompt", "p", "--story", "s"]
    monkeypatch.setattr("sys.argv", ["litbench", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert name in said


@pytest.mark.parametrize("name", ["features.json", "litbench.json", "adapter_config.json"])
@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_file_is_not_read(tmp_path, name, kind):
    path = tmp_path / name
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.raises(ModelError, match=f"{name}.*not a file"):
        models.load(tmp_path)


@pytest.mark.parametrize(
    "entry", ["[" * 5_000, "{kind: longer", "kind", "9" * 5_000, "&a [*a, *a]", "{a: 1, a: 2}", ""]
)
def test_a_rater_that_is_no_entry_is_one_line(monkeypatch, capsys, entry):
    arguments = ["score", f"--rater={entry}", "--prompt", "p", "--story", "s"]
    monkeypatch.setattr("sys.argv", ["litbench", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert len(said) < 1_000
