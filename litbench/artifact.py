"""What made a file: config, inputs, counts per step, versions.

A program owns one folder. It opens a `Artifact` on it, leaves at once when the product is
current, writes its files through it and finishes it, which writes `manifest.json`:

    artifact = Artifact(folder, program=__file__, config=config, inputs={"stories": path})
    if artifact.is_current():
        return
    artifact.write("pairs.parquet", lambda path: write_table(table, path))
    artifact.finish()

Files appear under their names only when whole, so a killed program leaves the old product or
the new one, never half of either.
"""

import hashlib
import importlib.metadata
import json
import math
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from litbench import hub
from litbench.config import as_plain
from litbench.errors import DataError

# fmt: off
_LIBRARIES = (
    "litbench", "accelerate", "bitsandbytes", "datasets", "deepspeed", "duckdb", "flash-attn",
    "huggingface_hub", "ibis-framework", "inspect-ai", "numpy", "openai", "pandas", "peft", "praw",
    "pyarrow", "pyspark", "rensa", "scikit-learn", "scipy", "tokenizers", "torch", "transformers",
    "trl", "zstandard",
)
# fmt: on
# What older manifests have of the keys that are left out today (see `Artifact`, runtime_keys).
_RUNTIME_KEYS = ("engine", "memory_limit", "patience", "spark", "threads", "user_agent")


def file_digest(path: Path) -> str:
    """SHA-256 of a file, or of every file below a folder with its name."""
    if path.is_dir():
        hasher = hashlib.sha256()
        for inner in sorted(item for item in path.rglob("*") if item.is_file()):
            # A name on disk is bytes, which need not be UTF-8.
            line = f"{inner.relative_to(path)}\0{file_digest(inner)}\n"
            hasher.update(line.encode(errors="surrogateescape"))
        return hasher.hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def source_digest(source: str | Path, *, is_model: bool = False) -> str:
    """Digest of an input: its bytes where it is a local file, its name where it is not.

    A data set on the Hub is named with the commit that its name stands for now, so that a product
    made of it is not current any more once the set has changed.

    Args:
        source: a file, a folder, a data set's name on the Hub, or any other name.
        is_model: the source is a model, whose name on the Hub is taken as it is.

    Returns:
        64 hexadecimal digits, "name:owner/name@COMMIT[:split]", or "name:" and the name.

    Raises:
        DataError: an empty name, which would stand for the whole working folder, a file that
            cannot be read, or a data set that the Hub does not have or that cannot be asked for.
    """
    if not str(source):
        raise DataError("the name of an input is empty: give a file, a folder or a data set's name")
    path = Path(source)
    try:
        if path.exists():
            return file_digest(path)
    except OSError as error:
        raise DataError(f"cannot read {path} ({error}): check the disk and your access") from error
    if is_model or not hub.is_name(source):
        return f"name:{source}"
    return f"name:{hub.pin(str(source))}"


@cache
def code_digest(program: str, *parts: str) -> str:
    """Digest of a program's file and the package: a product of older code is not current.

    Args:
        program: path of the program.
        parts: files and folders of the package that the product depends on; all when not given.
    """
    package = Path(__file__).parent
    places = [package / part for part in parts] or [package]
    inner = [
        file
        for place in places
        # Templates change verdicts as code does.
        for file in ([place] if place.is_file() else [*place.rglob("*.py"), *place.rglob("*.yaml")])
    ]
    files = [*sorted(inner), Path(program)]
    hasher = hashlib.sha256()
    for file in files:
        hasher.update(file.name.encode() + b"\0" + file.read_bytes())
    return hasher.hexdigest()


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of every library that can change a result; absent ones left out."""
    found = {"python": platform.python_version()}
    for library in _LIBRARIES:
        try:
            found[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def fingerprint(*parts: Any) -> str:
    """Hash plain values, configs or mappings of them to 64 hexadecimal digits."""
    text = json.dumps([as_plain(part) for part in parts], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary neighbour of `path`, then rename it into place.

    Raises:
        DataError: the disk is full or the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The suffix stays last, since writers choose the format by it.
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".part-", suffix=path.suffix)
        os.close(handle)
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror}; free space or choose another folder"
        ) from error
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error}; free space or choose another folder"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def as_json(value: Any) -> Any:
    """Plain values that every reader of JSON takes: a number that is not finite as its name.

    JSON knows no infinity. `litbench.config.build` reads "inf" as the number again.
    """

    def named(part: Any) -> Any:
        if isinstance(part, float) and not math.isfinite(part):
            return str(part)
        if isinstance(part, dict):
            return {key: named(item) for key, item in part.items()}
        return [named(item) for item in part] if isinstance(part, list) else part

    return named(as_plain(value))


def write_json(content: Any, path: Path) -> None:
    """Write JSON, indented, in place of what was there."""
    text = json.dumps(as_plain(content), indent=2, ensure_ascii=False, sort_keys=False) + "\n"

    def write(part: Path) -> None:
        part.write_text(text, encoding="utf-8")

    write_atomically(path, write)


def write_part(content: Any, path: Path) -> None:
    """Keep a piece of long work as JSON with a digest; see `read_part`."""
    write_json({"sha256": fingerprint(content), "content": content}, path)


def read_part(path: Path) -> Any:
    """What `write_part` kept; None where there is nothing, or where it is damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        is_whole = found["sha256"] == fingerprint(found["content"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found["content"] if is_whole else None


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read a folder's manifest.

    Raises:
        DataError: there is none, or it is not JSON.
    """
    path = folder / "manifest.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"no manifest.json in {folder}: check the path, or make the product again"
        ) from error
    except ValueError as error:
        raise DataError(f"{path} is not JSON: make the product again") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds no JSON object: make the product again")
    return content


def read_manifest_of(path: Path) -> dict[str, Any]:
    """Read the manifest beside a file, which must be the very file that it tells of.

    A program that fails halfway has replaced files and left the older manifest.

    Raises:
        DataError: there is no manifest, it does not name the file, or it names other bytes.
    """
    manifest = read_manifest(path.parent)
    if not is_output(manifest, path):
        raise DataError(
            f"{path} is not the file that manifest.json beside it tells of: it was changed, or "
            "the program that wrote it did not finish; make the product again"
        )
    return manifest


def is_output(manifest: Mapping[str, Any], path: Path) -> bool:
    """Whether a manifest names a file of its folder, with the bytes that it has now."""
    output = manifest.get("outputs", {}).get(path.name)
    return output is not None and output.get("sha256") == file_digest(path)


def without_runtime_keys(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest to show or publish: without what older ones have of how the work was done.

    Such keys, like settings of Spark, may hold passwords.
    """
    config = manifest.get("config", {})
    kept = {key: value for key, value in config.items() if key not in _RUNTIME_KEYS}
    return {**manifest, "config": kept} if "config" in manifest else dict(manifest)


class Artifact:
    """One program's output folder and what made it.

    Attributes:
        folder: where the files lie.
        counts: what the program counted, such as the funnel; goes into the manifest.
        digests: of inputs and models, by their key in the config; see `source_digest`.

    Args:
        folder: where the files lie.
        program: path of the program.
        config: its config; `out` and the inputs' own keys say nothing about the artifact.
        inputs: the files, folders and data sets it reads, by their key in the config.
        models: the models it uses, likewise; see `source_digest`.
        runtime_keys: keys of the config that say how the work is done and not what comes out,
            such as `engine` or `memory_limit`. They may hold passwords, so the manifest does not
            have them, and a product stays current when they change.
    """

    def __init__(
        self,
        folder: Path,
        *,
        program: str,
        config: Any,
        inputs: Mapping[str, str | Path],
        models: Mapping[str, str | Path] | None = None,
        runtime_keys: Collection[str] = (),
    ) -> None:
        self.folder = folder
        self.counts: dict[str, Any] = {}
        self._program = program
        plain = as_plain(config)
        # A misspelt key would let its secret through.
        unknown = set(runtime_keys) - plain.keys()
        assert not unknown, f"runtime_keys are not in the config: {sorted(unknown)}"
        self._config = {key: value for key, value in plain.items() if key not in runtime_keys}
        models = models or {}
        self._inputs = {
            name: {"path": str(source), "sha256": source_digest(source, is_model=name in models)}
            for name, source in {**inputs, **models}.items()
        }
        self._outputs: dict[str, dict[str, Any]] = {}
        self._started = time.time()
        # Where an input lies says nothing about the product; what is in it does.
        keys = {key: value for key, value in self._config.items() if key != "out"}
        for name in self._inputs:
            keys.pop(name, None)
        self.digests = {name: item["sha256"] for name, item in self._inputs.items()}
        self.fingerprint = fingerprint(keys, self.digests, code_digest(program))

    def is_current(self) -> bool:
        """Whether the folder holds this artifact, whole and unchanged; says so if it does."""
        try:
            manifest = read_manifest(self.folder)
        except DataError:
            return False
        if manifest.get("fingerprint") != self.fingerprint:
            return False
        for name, output in manifest.get("outputs", {}).items():
            path = self.folder / name
            if not path.exists() or file_digest(path) != output["sha256"]:
                return False
        print(f"unchanged: {self.folder}")
        return True

    def write(self, name: str, write: Callable[[Path], object]) -> Path:
        """Write one file of the product through `write(path)`."""
        path = self.folder / name
        write_atomically(path, write)
        self._outputs[name] = {"sha256": file_digest(path), "bytes": path.stat().st_size}
        return path

    def write_folder(self, name: str, write: Callable[[Path], object]) -> Path:
        """Write one folder of the product through `write(path)`; an older one is replaced."""
        path = self.folder / name
        temporary = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(dir=self.folder, prefix=".part-"))
            write(temporary)
            temporary.chmod(0o755)
            if path.exists():
                shutil.rmtree(path)
            temporary.replace(path)
        except OSError as error:
            raise DataError(
                f"cannot write {path}: {error}; free space or choose another folder"
            ) from error
        finally:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
        self._outputs[name] = {"sha256": file_digest(path)}
        return path

    def finish(self) -> None:
        """Write the manifest, last: only now is the product current."""
        for leftover in self.folder.glob(".part-*"):
            # A killed run could not remove what it was writing.
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)
        write_json(self.as_manifest(), self.folder / "manifest.json")

    def made_of(self) -> str:
        """What the product is made of, as JSON for a page that the same config gives again."""
        said = {"config": self._config, "inputs": self.digests, "versions": versions()}
        return json.dumps(said, indent=2)

    def as_manifest(self) -> dict[str, Any]:
        """What the manifest says as things stand, as any reader of JSON can hold it."""
        said = {
            "program": Path(self._program).name,
            "fingerprint": self.fingerprint,
            "config": self._config,
            "inputs": self._inputs,
            "outputs": self._outputs,
            "counts": self.counts,
            "versions": versions(),
            "finished_utc": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.time() - self._started, 2),
        }
        strict: dict[str, Any] = as_json(said)
        return strict
