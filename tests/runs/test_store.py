"""Manifests, when an artifact is current, and recovery from kills and full disks."""

import errno
import json
import math
import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import pytest

import litbench.runs.hub
from litbench.runs import outputs
from litbench.runs.config import Runtime
from litbench.runs.errors import DataError
from litbench.runs.outputs import (
    Artifact,
    Cache,
    file_digest,
    file_name,
    read_manifest,
    read_manifest_of,
    source_digest,
)


@dataclass
class Config:
    """A program's config."""

    out: Path
    stories: Path
    seed: int = 0
    splits: dict[str, float] = field(default_factory=lambda: {"all": 1.0})


@pytest.fixture
def config(tmp_path):
    (tmp_path / "stories.txt").write_text("once upon a time")
    return Config(out=tmp_path / "out", stories=tmp_path / "stories.txt")


def artifact_of(config):
    return Artifact(config.out, program=__file__, config=config, inputs={"stories": config.stories})


def make(config, text="pairs\n"):
    artifact = artifact_of(config)
    artifact.write("pairs.txt", lambda path: path.write_text(text))
    artifact.write_folder("model", lambda path: (path / "weights").write_text(text))
    artifact.counts = {"pairs": 1}
    artifact.finish()
    return artifact


def test_finished_artifact_is_current(config, capsys):
    assert not artifact_of(config).is_current()
    make(config)
    assert artifact_of(config).is_current()
    assert capsys.readouterr().out == f"unchanged: {config.out}\n"


def test_manifest_records_provenance(config):
    make(config)
    manifest = read_manifest(config.out)
    assert manifest["program"] == Path(__file__).name
    assert manifest["config"]["seed"] == 0
    assert manifest["inputs"]["stories"] == {
        "path": "../stories.txt",
        "sha256": file_digest(config.stories),
    }
    pairs = config.out / "pairs.txt"
    assert manifest["outputs"]["pairs.txt"] == {"sha256": file_digest(pairs)}
    assert manifest["outputs"]["model"] == {"sha256": file_digest(config.out / "model")}
    assert manifest["counts"] == {"pairs": 1}
    assert {"python", "litbench", "pyarrow"} <= set(manifest["versions"])
    assert manifest["finished_utc"].endswith("+00:00")


def spoil_manifest(change):
    def spoil(config):
        path = config.out / "manifest.json"
        path.write_text(change(path.read_text()))

    return spoil


def with_other_outputs(text):
    return json.dumps({**json.loads(text), "outputs": {"pairs.txt": 3}})


CHANGES = {
    "another input": lambda config: config.stories.write_text("once upon a crime"),
    "another config": lambda config: config.splits.update(test=0.5),
    "a changed file": lambda config: (config.out / "pairs.txt").write_text("pears\n"),
    "a lost file": lambda config: (config.out / "pairs.txt").unlink(),
    "a changed folder": lambda config: (config.out / "model/weights").write_text("other"),
    "a lost manifest": lambda config: (config.out / "manifest.json").unlink(),
    "half a manifest": spoil_manifest(lambda text: text[: len(text) // 2]),
    "a list": spoil_manifest(lambda _: "[1, 2]"),
    "other outputs": spoil_manifest(with_other_outputs),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_store_is_outdated_after(change, config):
    make(config)
    assert artifact_of(config).is_current()
    change(config)
    assert not artifact_of(config).is_current()
    make(config)
    assert artifact_of(config).is_current()


PASSWORD = "key of the bucket"  # noqa: S105


@dataclass
class Marked:
    """A config that says what its keys are."""

    out: str
    password: Annotated[str, Runtime]
    seed: int = 0


def test_runtime_keys_are_left_out(tmp_path):
    out = tmp_path / "out"

    def artifact(secret, seed=0):
        return Artifact(out, program=__file__, config=Marked(str(out), secret, seed=seed))

    artifact(PASSWORD).finish()
    assert read_manifest(out)["config"] == {"out": str(out), "seed": 0}
    assert PASSWORD not in (out / "manifest.json").read_text()
    assert artifact("another").is_current()
    assert not artifact(PASSWORD, seed=1).is_current()


def test_manifest_digest_must_match(config):
    make(config)
    path = config.out / "pairs.txt"
    assert read_manifest_of(path) == read_manifest(config.out)
    (config.out / "more.txt").write_text("of another run")
    with pytest.raises(DataError, match=r"more.txt does not match manifest.json"):
        read_manifest_of(config.out / "more.txt")
    # A program failed after its first file.
    config.seed = 1
    artifact_of(config).write("pairs.txt", lambda part: part.write_text("other pairs"))
    with pytest.raises(DataError, match=r"pairs.txt does not match"):
        read_manifest_of(path)


def test_other_program_or_version_is_not_current(config, monkeypatch):
    artifact = partial(Artifact, config.out, config=config, inputs={"stories": config.stories})
    artifact(program=__file__).finish()
    assert artifact(program=__file__).is_current()
    assert not artifact(program="other.py").is_current()
    monkeypatch.setattr(outputs, "package_version", lambda: "99")
    assert not artifact(program=__file__).is_current()


@pytest.mark.parametrize("within", ["", "stories.jsonl"])
def test_input_changed_during_run(config, within):
    if within:
        config.stories.unlink()
        config.stories.mkdir()
    file = config.stories / within
    file.write_text("half of it")
    artifact = artifact_of(config)
    with file.open("a") as growing:
        growing.write(", and the rest")
    with pytest.raises(DataError, match=r"stories.txt changed while it was read"):
        artifact.finish()
    assert not (config.out / "manifest.json").exists()
    # Rewriting the same bytes is not a change.
    artifact = artifact_of(config)
    text = file.read_text()
    file.unlink()
    file.write_text(text)
    artifact.finish()
    assert artifact_of(config).is_current()


def test_moved_input_or_output_is_current(config, tmp_path):
    first = make(config)
    moved = config.stories.rename(tmp_path / "elsewhere.txt")
    out = config.out.rename(tmp_path / "out2")
    config.stories, config.out = moved, out
    assert artifact_of(config).fingerprint == first.fingerprint
    assert artifact_of(config).is_current()


def test_folder_digest_covers_names_and_bytes(tmp_path):
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a").write_text("1")
    (folder / "b").write_text("2")
    first = source_digest(folder)
    assert source_digest(str(folder)) == first
    (folder / "deep" / "a").write_text("3")
    assert source_digest(folder) != first
    (folder / "deep" / "a").write_text("1")
    assert source_digest(folder) == first
    with pytest.raises(DataError, match="input is empty"):
        source_digest("")
    assert source_digest("no path and no name") == "name:no path and no name"


FIRST, SECOND = "1" * 40, "2" * 40


@pytest.fixture
def head(monkeypatch):
    """Head commits of a Hub with one data set, owner/name."""
    commits = {"owner/name": FIRST}

    def ask(repository, revision):
        if repository not in commits or revision not in (None, "main"):
            raise DataError(f"{repository} cannot be asked for")
        return commits[repository]

    monkeypatch.setattr(litbench.runs.hub, "_look_up_commit", ask)
    return commits


def test_hub_data_set_change_outdates_artifact(config, head):
    def artifact(name):
        inputs, models = {"stories": name}, {"backbone": "owner/model"}
        return Artifact(config.out, program=__file__, config=config, inputs=inputs, models=models)

    artifact("owner/name").finish()
    assert artifact("owner/name").is_current()
    assert read_manifest(config.out)["inputs"] == {
        "stories": {"path": "owner/name", "sha256": f"name:owner/name@{FIRST}"},
        "backbone": {"path": "owner/model", "sha256": "name:owner/model"},
    }
    head["owner/name"] = SECOND
    assert not artifact("owner/name").is_current()
    assert artifact(f"owner/name@{FIRST}").is_current()


def stop(path):
    (path / "weights" if path.is_dir() else path).write_text("half of the ne")
    raise KeyboardInterrupt


def full_disk(path):
    # Arrow removes the file that it cannot finish.
    (path / "weights").write_text("as far as it goes") if path.is_dir() else path.unlink()
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


@pytest.mark.parametrize(
    ("write", "name"), [(Artifact.write, "pairs.txt"), (Artifact.write_folder, "model")]
)
def test_failed_write_keeps_old_output(config, write, name):
    make(config, "old")
    before = sorted(item.name for item in config.out.iterdir())
    with pytest.raises(KeyboardInterrupt):
        write(artifact_of(config), name, stop)
    with pytest.raises(DataError, match="No space left"):
        write(artifact_of(config), name, full_disk)
    with pytest.raises(DataError, match=r"another run removed"):
        write(artifact_of(config), name, lambda path: path.rename(path.parent / "taken"))
    (config.out / "taken").rename(config.out.parent / "taken")
    assert sorted(item.name for item in config.out.iterdir()) == before
    assert artifact_of(config).is_current()


KILLED = """
import sys, time
from pathlib import Path
from litbench.runs.outputs import Artifact

out = Path(sys.argv[1])
artifact = Artifact(out, program=sys.argv[0], config={"out": str(out)}, inputs={})

def half(path):
    with path.open("w") as file:
        file.write("half")
        file.flush()
        print("writing", flush=True)
        time.sleep(60)

artifact.write("whole.txt", lambda path: path.write_text("whole"))
artifact.write("pairs.txt", half)
artifact.finish()
"""


def test_killed_write_leaves_no_partial_file(config, tmp_path):
    make(config, "old")
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    with subprocess.Popen(
        [sys.executable, str(script), str(config.out)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        os.kill(process.pid, signal.SIGKILL)
    assert (config.out / "pairs.txt").read_text() == "old"
    assert (config.out / "whole.txt").read_text() == "whole"
    assert list(config.out.glob(".part-*")), "the kill came too late to leave anything"
    config.seed = 1
    assert not artifact_of(config).is_current()
    make(config, "new")
    assert artifact_of(config).is_current()
    assert not list(config.out.glob(".part-*"))


def test_a_flipped_bit_in_a_manifest_is_noticed(config):
    make(config)
    path = config.out / "manifest.json"
    whole, source = path.read_bytes(), random.Random(4)
    expected = read_manifest(config.out)
    for _ in range(300):
        flipped = bytearray(whole)
        flipped[source.randrange(len(whole))] ^= 1 << source.randrange(8)
        path.write_bytes(flipped)
        try:
            # White space between values.
            assert read_manifest(config.out) == expected
        except DataError:
            assert not artifact_of(config).is_current()


def test_a_changed_count_outdates_the_artifact(config):
    make(config)
    path = config.out / "manifest.json"
    path.write_text(path.read_text().replace('"pairs": 1', '"pairs": 2'))
    assert not artifact_of(config).is_current()
    with pytest.raises(DataError, match="sha256"):
        read_manifest(config.out)


def test_inputs_are_found_from_a_copy(config, tmp_path):
    make(config)
    (tmp_path / "copy").mkdir()
    for path in (config.stories, config.out):
        path.rename(tmp_path / "copy" / path.name)
    folder = tmp_path / "copy" / "out"
    assert (folder / read_manifest(folder)["inputs"]["stories"]["path"]).samefile(
        tmp_path / "copy" / "stories.txt"
    )


def test_invalid_manifest(tmp_path):
    for text in (None, "{", "[]", "3"):
        if text is not None:
            (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(DataError, match=r"cannot read manifest.json"):
            read_manifest(tmp_path)


def test_folder_is_replaced_as_a_whole(config):
    make(config, "old")
    (config.out / "model" / "of the old one").write_text("")
    make(config, "new")
    assert [file.name for file in (config.out / "model").iterdir()] == ["weights"]
    assert (config.out / "model" / "weights").read_text() == "new"
    assert not list(config.out.glob(".part-*"))


def test_outputs_keep_the_umask(config, tmp_path):
    """safetensors writes files that only the owner can read."""
    (tmp_path / "plain").touch()
    wanted = (tmp_path / "plain").stat().st_mode
    artifact = artifact_of(config)
    file = artifact.write("pairs.txt", lambda path: path.chmod(0o600))
    folder = artifact.write_folder("model", lambda path: (path / "weights").touch(0o600))
    assert file.stat().st_mode == (folder / "weights").stat().st_mode == wanted


def test_part_round_trip(tmp_path):
    content = [0.1 + 0.2, math.nan, {"a": None}]
    for make in (lambda: content, pytest.fail):
        assert repr(Cache(tmp_path).get("key", make)) == repr(content)


KEYS = ["a", "b", ["c", 1]]


def fill(folder):
    """A file and a folder for each of KEYS, and how many of them were made now."""
    cache, made = Cache(folder), []

    def make(key):
        made.append(key)
        return {"of": key}

    def write(key, path):
        made.append(key)
        (path / "of").write_text(str(key))

    results = [cache.get(key, partial(make, key)) for key in KEYS]
    results += [
        (cache.get_folder(key, partial(write, key), "f") / "of").read_text() for key in KEYS
    ]
    return results, len(made)


def test_parts_are_made_once(tmp_path):
    contents, made = fill(tmp_path)
    assert made == 6
    assert fill(tmp_path) == (contents, 0)


def test_unused_parts_are_discarded(tmp_path):
    fill(tmp_path)
    cache = Cache(tmp_path)
    cache.get("a", pytest.fail)
    (tmp_path / "foreign").mkdir()
    cache.discard_unused()
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]
    assert fill(tmp_path)[1] == 5


def test_no_place_for_parts_is_one_line(tmp_path):
    (tmp_path / "parts").touch()
    with pytest.raises(DataError, match="cannot write"):
        Cache(tmp_path / "parts").get("a", lambda: 1)


def test_an_input_that_is_no_file_is_one_line(config):
    config.stories.unlink()
    os.mkfifo(config.stories)
    with pytest.raises(DataError, match=r"stories.txt is neither"):
        artifact_of(config)


@pytest.mark.parametrize("name", ["longer", "gpt-4.1@low=1+x", "评委", "judge_2"])
def test_plain_names_are_file_names(name):
    assert file_name(name) == name


def test_different_names_give_different_file_names_in_one_folder(tmp_path):
    names = [
        "a/b",
        "a_b",
        "a\\b",
        "a b",
        "..",
        "",
        "../../x",
        "/etc/x",
        ".part-1",
        "x\0y",
        "\ud800",
    ]
    names += ["语" * 200, "语" * 201, "n" * 300, file_name("a/b")]
    for name in names:
        path = tmp_path / f"{file_name(name)}.json"
        assert path.resolve().parent == tmp_path.resolve()
        assert not path.exists()
        path.write_text(repr(name))
        assert not path.name.startswith(".")
    assert len(list(tmp_path.iterdir())) == len(names)
