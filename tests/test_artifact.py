"""What made a file, when a product is current, and what a kill or a full disk leaves."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import litbench.artifact
import litbench.hub
from litbench.artifact import (
    Artifact,
    code_digest,
    file_digest,
    fingerprint,
    read_manifest,
    read_manifest_of,
    read_part,
    source_digest,
    without_runtime_keys,
    write_atomically,
    write_json,
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


def product_of(config: Config) -> Artifact:
    return Artifact(config.out, program=__file__, config=config, inputs={"stories": config.stories})


def make(config: Config, text: str = "pairs\n") -> Artifact:
    artifact = product_of(config)
    artifact.write("pairs.txt", lambda path: path.write_text(text))
    artifact.write_folder("model", lambda path: (path / "weights").write_text(text))
    artifact.counts = {"pairs": 1}
    artifact.finish()
    return artifact


def test_a_finished_product_is_current_and_says_so(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not product_of(config).is_current()
    make(config)
    assert product_of(config).is_current()
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


def other_input(config: Config) -> None:
    config.stories.write_text("once upon a crime")


def other_config(config: Config) -> None:
    config.splits = {"train": 0.5, "test": 0.5}


def changed_file(config: Config) -> None:
    (config.out / "pairs.txt").write_text("pears\n")


def lost_file(config: Config) -> None:
    (config.out / "pairs.txt").unlink()


def changed_folder(config: Config) -> None:
    (config.out / "model" / "weights").write_text("other")


def one_more_in_folder(config: Config) -> None:
    (config.out / "model" / "more").write_text("")


def renamed_in_folder(config: Config) -> None:
    (config.out / "model" / "weights").rename(config.out / "model" / "heights")


def lost_manifest(config: Config) -> None:
    (config.out / "manifest.json").unlink()


def half_manifest(config: Config) -> None:
    path = config.out / "manifest.json"
    path.write_text(path.read_text()[: path.stat().st_size // 2])


def manifest_of_something_else(config: Config) -> None:
    (config.out / "manifest.json").write_text("[1, 2]")


def manifest_not_text(config: Config) -> None:
    (config.out / "manifest.json").write_bytes(b"\xff\xfe")


@pytest.mark.parametrize(
    "change",
    [
        other_input,
        other_config,
        changed_file,
        lost_file,
        changed_folder,
        one_more_in_folder,
        renamed_in_folder,
        lost_manifest,
        half_manifest,
        manifest_of_something_else,
        manifest_not_text,
    ],
)
def test_a_product_is_not_current_after(change: Callable[[Config], None], config: Config) -> None:
    make(config)
    assert product_of(config).is_current()
    change(config)
    assert not product_of(config).is_current()
    make(config)
    assert product_of(config).is_current()


PASSWORD = "key of the bucket"  # noqa: S105


def secretive_product(out: Path, secret: str, seed: int = 0) -> Artifact:
    config = {"out": str(out), "seed": seed, "spark": {"spark.hadoop.fs.s3a.secret.key": secret}}
    return Artifact(out, program=__file__, config=config, inputs={}, runtime_keys=("spark",))


def test_how_the_work_is_done_is_neither_written_nor_part_of_the_product(tmp_path: Path) -> None:
    artifact = secretive_product(tmp_path / "out", PASSWORD)
    artifact.write("pairs.txt", lambda path: path.write_text("pairs"))
    artifact.finish()
    assert read_manifest(tmp_path / "out")["config"] == {"out": str(tmp_path / "out"), "seed": 0}
    for path in (tmp_path / "out").iterdir():
        assert PASSWORD.encode() not in path.read_bytes()
    assert secretive_product(tmp_path / "out", "another").is_current()
    assert not secretive_product(tmp_path / "out", PASSWORD, seed=1).is_current()


def test_what_a_product_is_made_of_is_the_same_whenever_and_however_it_is_made(
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
    product_of(config).write("pairs.txt", lambda part: part.write_text("other pairs"))
    with pytest.raises(DataError, match=r"pairs.txt is not the file .*make the product again"):
        read_manifest_of(path)


def test_a_product_of_other_code_is_not_current(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(config)
    monkeypatch.setattr(litbench.artifact, "code_digest", lambda _: "older")
    assert not product_of(config).is_current()


def test_an_input_or_output_that_moved_is_the_same(config: Config, tmp_path: Path) -> None:
    first = make(config)
    moved = config.stories.rename(tmp_path / "elsewhere.txt")
    out = config.out.rename(tmp_path / "out2")
    config.stories, config.out = moved, out
    assert product_of(config).fingerprint == first.fingerprint
    assert product_of(config).is_current()


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


def test_a_product_of_a_data_set_is_current_until_the_set_changes(
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
        product_of(config)


def test_a_fingerprint_depends_on_values_and_not_on_their_order() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
    assert fingerprint("a", "b") != fingerprint("ab")
    assert fingerprint({"out": Path("x")}) == fingerprint({"out": "x"})


def test_products_made_twice_have_the_same_bytes(config: Config, tmp_path: Path) -> None:
    first = make(config)
    config.out = tmp_path / "again"
    make(config)
    for name in ("pairs.txt", "model/weights"):
        assert (config.out / name).read_bytes() == (first.folder / name).read_bytes()


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text("old")

    def fail(part: Path) -> None:
        part.write_text("half of the ne")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, fail)
    assert [item.name for item in tmp_path.iterdir()] == ["pairs.txt"]
    assert path.read_text() == "old"


def test_who_reads_the_old_file_while_it_is_replaced_reads_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text("old " * 10_000)
    with path.open() as reader:
        reader.read(4)
        write_atomically(path, lambda part: part.write_text("new"))
        assert reader.read() == "old " * 9_999
    assert path.read_text() == "new"


def test_a_folder_that_fails_leaves_the_old_folder_and_no_other(config: Config) -> None:
    make(config, "old")

    def fail(part: Path) -> None:
        (part / "weights").write_text("half of the ne")
        raise KeyboardInterrupt

    before = sorted(item.name for item in config.out.iterdir())
    with pytest.raises(KeyboardInterrupt):
        product_of(config).write_folder("model", fail)
    assert sorted(item.name for item in config.out.iterdir()) == before
    assert (config.out / "model" / "weights").read_text() == "old"


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
    assert not product_of(config).is_current()
    make(config, "new")
    assert product_of(config).is_current()
    assert not list(config.out.glob(".part-*"))


def full_disk(path: Path) -> None:
    path.write_text("as far as it goes") if path.is_file() else None
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def test_a_full_disk_is_a_clear_error_and_leaves_the_old_product(config: Config) -> None:
    make(config, "old")
    for write in (Artifact.write, Artifact.write_folder):
        with pytest.raises(DataError, match=r"cannot write .*No space left.*free space"):
            write(
                product_of(config), "pairs.txt" if write is Artifact.write else "model", full_disk
            )
    assert (config.out / "pairs.txt").read_text() == "old"
    assert (config.out / "model" / "weights").read_text() == "old"
    assert not list(config.out.glob(".part-*"))
    assert product_of(config).is_current()


def test_a_disk_full_before_the_first_byte_is_a_clear_error_too(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    for write in (Artifact.write, Artifact.write_folder):
        with pytest.raises(DataError, match=r"cannot write .*No space left.*free space"):
            write(product_of(config), "x.txt", full_disk)
    with pytest.raises(DataError, match=r"cannot write .*manifest.json"):
        product_of(config).finish()


def test_a_file_where_the_folder_belongs_is_a_clear_error(config: Config) -> None:
    config.out.write_text("in the way")
    assert not product_of(config).is_current()
    for write in (Artifact.write, Artifact.write_folder):
        with pytest.raises(DataError, match=r"cannot write .*choose another folder"):
            write(product_of(config), "x.txt", full_disk)


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
    assert (tmp_path / "x.json").stat().st_mode & 0o777 == 0o644


def test_the_seconds_of_a_run_are_in_the_manifest(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = product_of(config)
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + 90)
    artifact.finish()
    assert 90 <= read_manifest(config.out)["seconds"] < 150


def test_an_empty_name_is_no_input() -> None:
    with pytest.raises(DataError, match="name of an input is empty"):
        source_digest("")


def test_code_counts_only_where_it_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, program = tmp_path / "package", tmp_path / "program.py"
    (package / "models").mkdir(parents=True)
    for name in ("manifest.py", "raters.py", "models/reward.py", "report.py"):
        (package / name).write_text(name)
    program.write_text("program")
    monkeypatch.setattr(litbench.artifact, "__file__", str(package / "manifest.py"))

    def digests() -> tuple[str, str]:
        code_digest.cache_clear()
        return code_digest(str(program)), code_digest(str(program), "raters.py", "models")

    whole, judging = digests()
    (package / "report.py").write_text("changed")
    assert digests()[0] != whole
    assert digests()[1] == judging
    (package / "models" / "reward.py").write_text("changed")
    assert digests()[1] != judging
    code_digest.cache_clear()


def test_a_damaged_part_is_none(tmp_path: Path) -> None:
    path = tmp_path / "part.json"
    assert read_part(path) is None
    content = [0.1 + 0.2, math.nan, {"a": None}]
    write_part(content, path)
    assert repr(read_part(path)) == repr(content)
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        for damaged in (whole[:place], whole[:place] + b"7" + whole[place + 1 :]):
            path.write_bytes(damaged)
            assert repr(read_part(path)) in (repr(None), repr(content))
    path.write_bytes(b"\xff")
    assert read_part(path) is None
