"""What made a file, when a product is current, and what a kill or a full disk leaves."""

import errno
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

import litbench.artifact
import litbench.hub
from litbench.artifact import (
    Artifact,
    file_digest,
    fingerprint,
    read_json_part,
    read_manifest,
    read_manifest_of,
    read_part,
    source_digest,
    without_runtime_keys,
    write_atomically,
    write_json,
    write_json_part,
    write_part,
)
from litbench.errors import DataError


@dataclass
class Config:
    """A program's config."""

    out: Path
    stories: Path
    seed: int = 0
    splits: dict[str, float] = field(default_factory=lambda: {"all": 1.0})


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "stories.txt").write_text("once upon a time")
    return Config(out=tmp_path / "out", stories=tmp_path / "stories.txt")


def artifact_of(config: Config) -> Artifact:
    return Artifact(config.out, program=__file__, config=config, inputs={"stories": config.stories})


def make(config: Config, text: str = "pairs\n") -> Artifact:
    artifact = artifact_of(config)
    artifact.write("pairs.txt", lambda path: path.write_text(text))
    artifact.write_folder("model", lambda path: (path / "weights").write_text(text))
    artifact.counts = {"pairs": 1}
    artifact.finish()
    return artifact


def test_a_finished_artifact_is_current_and_says_so(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not artifact_of(config).is_current()
    make(config)
    assert artifact_of(config).is_current()
    assert capsys.readouterr().out == f"unchanged: {config.out}\n"


def test_the_manifest_says_what_made_the_files(config: Config) -> None:
    make(config)
    manifest = read_manifest(config.out)
    assert manifest["program"] == Path(__file__).name
    assert manifest["config"]["seed"] == 0
    assert manifest["inputs"]["stories"] == {
        "path": str(config.stories),
        "sha256": file_digest(config.stories),
    }
    pairs = config.out / "pairs.txt"
    assert manifest["outputs"]["pairs.txt"] == {"sha256": file_digest(pairs), "bytes": 6}
    assert manifest["outputs"]["model"] == {"sha256": file_digest(config.out / "model")}
    assert manifest["counts"] == {"pairs": 1}
    assert {"python", "litbench", "pyarrow"} <= set(manifest["versions"])
    assert manifest["finished_utc"].endswith("+00:00")


def spoil_manifest(change: Callable[[str], str]) -> Callable[[Config], object]:
    def spoil(config: Config) -> None:
        path = config.out / "manifest.json"
        path.write_text(change(path.read_text()))

    return spoil


def with_other_outputs(text: str) -> str:
    return json.dumps({**json.loads(text), "outputs": {"pairs.txt": 3}})


CHANGES: dict[str, Callable[[Config], object]] = {
    "another input": lambda config: config.stories.write_text("once upon a crime"),
    "another config": lambda config: config.splits.update(test=0.5),
    "a changed file": lambda config: (config.out / "pairs.txt").write_text("pears\n"),
    "a lost file": lambda config: (config.out / "pairs.txt").unlink(),
    "a changed folder": lambda config: (config.out / "model/weights").write_text("other"),
    "one more in a folder": lambda config: (config.out / "model/more").write_text(""),
    "a renamed file": lambda config: (config.out / "model/weights").rename(config.out / "model/w"),
    "a lost manifest": lambda config: (config.out / "manifest.json").unlink(),
    "half a manifest": spoil_manifest(lambda text: text[: len(text) // 2]),
    "a list": spoil_manifest(lambda _: "[1, 2]"),
    "other outputs": spoil_manifest(with_other_outputs),
    "no text": lambda config: (config.out / "manifest.json").write_bytes(b"\xff\xfe"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_artifact_is_not_current_after(
    change: Callable[[Config], object], config: Config
) -> None:
    make(config)
    assert artifact_of(config).is_current()
    change(config)
    assert not artifact_of(config).is_current()
    make(config)
    assert artifact_of(config).is_current()


PASSWORD = "key of the bucket"  # noqa: S105


def test_how_the_work_is_done_is_neither_written_nor_part_of_the_artifact(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def artifact(secret: str, seed: int = 0) -> Artifact:
        config = {"out": str(out), "seed": seed, "spark": {"secret.key": secret}}
        return Artifact(out, program=__file__, config=config, inputs={}, runtime_keys=("spark",))

    artifact(PASSWORD).finish()
    assert read_manifest(out)["config"] == {"out": str(out), "seed": 0}
    assert PASSWORD not in (out / "manifest.json").read_text()
    assert artifact("another").is_current()
    assert not artifact(PASSWORD, seed=1).is_current()


def test_what_an_artifact_is_made_of_is_the_same_whenever_and_however_it_is_made(
    tmp_path: Path,
) -> None:
    path = tmp_path / "stories.txt"
    path.write_text("once")
    said = []
    for threads in (1, 2):
        artifact = Artifact(
            tmp_path / "out",
            program=__file__,
            config={"stories": path, "seed": 0, "threads": threads},
            inputs={"stories": path},
            models={"backbone": "owner/model"},
            runtime_keys=("threads",),
        )
        assert artifact.digests == {"stories": file_digest(path), "backbone": "name:owner/model"}
        said.append(artifact.made_of())
        artifact.write("a.txt", lambda file: file.write_text("a"))
    assert said == [said[0]] * 2
    content = json.loads(said[0])
    assert content["config"] == {"stories": str(path), "seed": 0}
    assert content["inputs"] == artifact.digests
    assert "python" in content["versions"]


def test_a_misspelt_runtime_key_is_a_fault_of_the_program(config: Config) -> None:
    with pytest.raises(AssertionError, match=r"not in the config: \['sparc'\]"):
        Artifact(config.out, program=__file__, config=config, inputs={}, runtime_keys=("sparc",))


def test_of_older_manifests_no_runtime_key_is_shown() -> None:
    older = {
        "config": {"seed": 3, "spark": {"key": PASSWORD}, "user_agent": PASSWORD},
        "counts": {},
    }
    assert without_runtime_keys(older) == {"config": {"seed": 3}, "counts": {}}
    assert "spark" in older["config"], "the manifest itself stays as it was"
    assert without_runtime_keys({"counts": {}}) == {"counts": {}}


def test_a_manifest_tells_of_the_very_file_beside_it(config: Config) -> None:
    make(config)
    path = config.out / "pairs.txt"
    assert read_manifest_of(path) == read_manifest(config.out)
    (config.out / "more.txt").write_text("of another run")
    with pytest.raises(DataError, match=r"more.txt is not the file that manifest.json"):
        read_manifest_of(config.out / "more.txt")
    # As when a program fails after its first file.
    config.seed = 1
    artifact_of(config).write("pairs.txt", lambda part: part.write_text("other pairs"))
    with pytest.raises(DataError, match=r"pairs.txt is not the file .*make the product again"):
        read_manifest_of(path)


def test_an_artifact_of_another_program_or_version_is_not_current(config: Config) -> None:
    artifact = partial(Artifact, config.out, config=config, inputs={"stories": config.stories})
    artifact(program=__file__).finish()
    assert artifact(program=__file__, version=1).is_current()
    assert not artifact(program=__file__, version=2).is_current()
    assert not artifact(program="other.py").is_current()
    artifact(program=__file__, version=2).finish()
    assert read_manifest(config.out)["version"] == 2


@pytest.mark.parametrize("within", ["", "stories.jsonl"])
def test_an_input_that_changes_while_it_is_read_is_an_error(config: Config, within: str) -> None:
    if within:
        config.stories.unlink()
        config.stories.mkdir()
    file = config.stories / within
    file.write_text("half of it")
    artifact = artifact_of(config)
    with file.open("a") as growing:
        growing.write(", and the rest")
    with pytest.raises(DataError, match=r"stories.txt changed while it was read: run the same"):
        artifact.finish()
    assert not (config.out / "manifest.json").exists()
    # Written anew with the same bytes it has not changed.
    artifact = artifact_of(config)
    text = file.read_text()
    file.unlink()
    file.write_text(text)
    artifact.finish()
    assert artifact_of(config).is_current()


def test_an_input_or_output_that_moved_is_the_same(config: Config, tmp_path: Path) -> None:
    first = make(config)
    moved = config.stories.rename(tmp_path / "elsewhere.txt")
    out = config.out.rename(tmp_path / "out2")
    config.stories, config.out = moved, out
    assert artifact_of(config).fingerprint == first.fingerprint
    assert artifact_of(config).is_current()


def test_a_folder_as_input_counts_with_its_names_and_bytes(tmp_path: Path) -> None:
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
    assert source_digest("no path and no name") == "name:no path and no name"


FIRST, SECOND = "1" * 40, "2" * 40


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The newest commit of owner/name on a Hub that has no other data set."""
    commits = {"owner/name": FIRST}

    def ask(repository: str, revision: str | None) -> str:
        if repository not in commits or revision not in (None, "main"):
            raise DataError(f"{repository} cannot be asked for")
        return commits[repository]

    monkeypatch.setattr(litbench.hub, "_ask_commit", ask)
    return commits


def test_a_data_set_on_the_hub_counts_with_its_commit(head: dict[str, str]) -> None:
    assert source_digest("owner/name") == f"name:owner/name@{FIRST}"
    assert source_digest(Path("owner/name")) == f"name:owner/name@{FIRST}"
    assert source_digest("owner/name@main:train") == f"name:owner/name@{FIRST}:train"
    assert source_digest("owner/name:test") != source_digest("owner/name:train")
    head["owner/name"] = SECOND
    assert source_digest("owner/name") == f"name:owner/name@{SECOND}"
    assert source_digest(f"owner/name@{FIRST}") == f"name:owner/name@{FIRST}", "pinned by its user"
    with pytest.raises(DataError, match="owner/other cannot be asked for"):
        source_digest("owner/other")


def test_a_model_on_the_hub_counts_with_its_name(head: dict[str, str]) -> None:
    head.clear()
    assert source_digest("owner/model", is_model=True) == "name:owner/model"


def test_an_artifact_of_a_data_set_is_current_until_the_set_changes(
    config: Config, head: dict[str, str]
) -> None:
    def artifact(name: str) -> Artifact:
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


def test_an_input_that_cannot_be_read_is_a_clear_error(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(litbench.artifact, "file_digest", refuse)
    with pytest.raises(DataError, match=r"cannot read .*stories.txt.*Permission denied"):
        artifact_of(config)


def test_a_fingerprint_depends_on_values_and_not_on_their_order() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
    assert fingerprint("a", "b") != fingerprint("ab")
    assert fingerprint({"out": Path("x")}) == fingerprint({"out": "x"})


def test_who_reads_the_old_file_while_it_is_replaced_reads_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text("old " * 10_000)
    with path.open() as reader:
        reader.read(4)
        write_atomically(path, lambda part: part.write_text("new"))
        assert reader.read() == "old " * 9_999
    assert path.read_text() == "new"


def stop(path: Path) -> None:
    (path / "weights" if path.is_dir() else path).write_text("half of the ne")
    raise KeyboardInterrupt


def full_disk(path: Path) -> None:
    (path / "weights" if path.is_dir() else path).write_text("as far as it goes")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


@pytest.mark.parametrize(
    ("write", "name"), [(Artifact.write, "pairs.txt"), (Artifact.write_folder, "model")]
)
def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(
    config: Config, write: Callable[..., Path], name: str
) -> None:
    make(config, "old")
    before = sorted(item.name for item in config.out.iterdir())
    with pytest.raises(KeyboardInterrupt):
        write(artifact_of(config), name, stop)
    with pytest.raises(DataError, match=r"cannot write .*No space left.*free space"):
        write(artifact_of(config), name, full_disk)
    assert sorted(item.name for item in config.out.iterdir()) == before
    assert artifact_of(config).is_current()


KILLED = """
import sys, time
from pathlib import Path
from litbench.artifact import Artifact

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


def test_a_killed_run_leaves_no_half_file_and_the_next_run_clears_its_rest(
    config: Config, tmp_path: Path
) -> None:
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


def test_a_disk_full_before_the_first_byte_is_a_clear_error_too(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "touch", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)
    for write in (Artifact.write, Artifact.write_folder):
        with pytest.raises(DataError, match=r"cannot write .*No space left.*free space"):
            write(artifact_of(config), "x.txt", full_disk)
    with pytest.raises(DataError, match=r"cannot write .*manifest.json"):
        artifact_of(config).finish()


def test_two_runs_on_one_folder_do_not_blame_the_disk(config: Config) -> None:
    def meet_another_run(part: Path) -> None:
        part.write_text("ours")
        make(config)

    with pytest.raises(DataError, match=r"cannot write .*; let only one run"):
        artifact_of(config).write("pairs.txt", meet_another_run)
    assert artifact_of(config).is_current()


def test_a_file_where_the_folder_belongs_is_a_clear_error(config: Config) -> None:
    config.out.write_text("in the way")
    assert not artifact_of(config).is_current()
    for write in (Artifact.write, Artifact.write_folder):
        with pytest.raises(DataError, match=r"cannot write .*choose another folder"):
            write(artifact_of(config), "x.txt", full_disk)


def test_a_manifest_that_is_none_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no manifest.json in .*make the product again"):
        read_manifest(tmp_path)
    for text in ("{", "[]", "3"):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(DataError, match=r"manifest.json .*make the product again"):
            read_manifest(tmp_path)


def test_json_is_written_readably_with_its_characters(tmp_path: Path) -> None:
    write_json({"title": "Nächte 夜", "path": tmp_path}, tmp_path / "x.json")
    text = (tmp_path / "x.json").read_text(encoding="utf-8")
    assert "Nächte 夜" in text
    assert json.loads(text) == {"title": "Nächte 夜", "path": str(tmp_path)}


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_files_and_folders_have_the_permissions_that_the_user_gives(
    config: Config, umask: int
) -> None:
    before = os.umask(umask)
    try:
        make(config)
    finally:
        os.umask(before)
    for path in config.out.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o777 if path.is_dir() else 0o666) & ~umask


@pytest.mark.parametrize("exchange", [True, False], ids=["at once", "in two steps"])
def test_a_folder_is_replaced_as_a_whole(
    config: Config, exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchange:
        monkeypatch.setattr(litbench.artifact, "_exchange", lambda *_: False)
    make(config, "old")
    for number in range(3):
        (config.out / "model" / f"of the old one {number}").write_text("")
    make(config, "new")
    assert [file.name for file in (config.out / "model").iterdir()] == ["weights"]
    assert (config.out / "model" / "weights").read_text() == "new"
    assert not list(config.out.glob(".part-*"))


REPLACING = """
import sys
from pathlib import Path
from litbench.artifact import Artifact

out = Path(sys.argv[1])
artifact = Artifact(out, program=sys.argv[0], config={"out": str(out)}, inputs={})

def fill(text):
    def write(folder):
        for number in range(60):
            (folder / f"{number:02}").write_text(text)
    return write

for number in range(100_000):
    artifact.write_folder("model", fill(str(number)))
    print(number, flush=True)
"""


@pytest.mark.parametrize("seed", range(5))
def test_a_folder_that_is_killed_while_it_is_replaced_is_whole(tmp_path: Path, seed: int) -> None:
    script = tmp_path / "replacing.py"
    script.write_text(REPLACING)
    command = [sys.executable, str(script), str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.readline()
        time.sleep(random.Random(seed).uniform(0, 0.05))
        os.kill(process.pid, signal.SIGKILL)
    texts = [file.read_text() for file in (tmp_path / "out" / "model").iterdir()]
    assert len(texts) == 60
    assert len(set(texts)) == 1


def parts_of(path: Path) -> list[str] | None:
    return read_part(path, lambda part: part.read_text().splitlines())


def test_a_part_is_read_as_it_was_written_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "part.txt"
    assert parts_of(path) is None
    write_part(path, lambda part: part.write_text("a\nb\n"))
    assert parts_of(path) == ["a", "b"]
    write_part(path, lambda part: part.write_text("c\n"))
    assert parts_of(path) == ["c"]


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_part_is_as_good_as_none(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "part.txt"
    write_part(path, lambda part: part.write_text("some verdicts\n" * 9))
    source = random.Random(seed)
    victim = source.choice(list(tmp_path.iterdir()))
    content = bytearray(victim.read_bytes())
    match seed % 4:
        case 0:
            victim.write_bytes(content[: source.randrange(len(content))])
        case 1:
            victim.unlink()
        case _:
            content[source.randrange(len(content))] ^= 1 << source.randrange(8)
            victim.write_bytes(content)
    assert parts_of(path) is None
    write_part(path, lambda part: part.write_text("again\n"))
    assert parts_of(path) == ["again"]


def test_an_empty_name_is_no_input() -> None:
    with pytest.raises(DataError, match="name of an input is empty"):
        source_digest("")


def test_a_damaged_part_is_none(tmp_path: Path) -> None:
    path = tmp_path / "part.json"
    assert read_json_part(path) is None
    content = [0.1 + 0.2, math.nan, {"a": None}]
    write_json_part(content, path)
    assert repr(read_json_part(path)) == repr(content)
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        for damaged in (whole[:place], whole[:place] + b"7" + whole[place + 1 :]):
            path.write_bytes(damaged)
            assert repr(read_json_part(path)) in (repr(None), repr(content))
    path.write_bytes(b"\xff")
    assert read_json_part(path) is None
