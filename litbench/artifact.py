"""What a program writes and what made it: config, inputs, counts per step, versions.

A program owns one folder. It opens an `Artifact` on it, leaves at once when the artifact is
current, writes its files through it and finishes it, which writes `manifest.json`:

    artifact = Artifact(folder, program=__file__, config=config, inputs={"stories": path})
    if artifact.is_current():
        return
    artifact.write("pairs.parquet", lambda path: write_table(table, path))
    artifact.finish()

Files and folders appear under their names only when they are whole and on the disk: a killed
program leaves the old one or the new one. Parts of unfinished work go through `write_part` and
`read_part`, which makes a damaged one as good as none.
"""

import contextlib
import ctypes
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from litbench import hub
from litbench.config import as_plain
from litbench.errors import DataError

T = TypeVar("T")

# fmt: off
_LIBRARIES = (
    "litbench", "accelerate", "backports.zstd", "bitsandbytes", "datasets", "deepspeed", "duckdb",
    "flash-attn", "huggingface_hub", "ibis-framework", "inspect-ai", "numpy", "openai", "pandas",
    "peft", "praw", "pyarrow", "pyspark", "rensa", "scikit-learn", "scipy", "tokenizers", "torch",
    "transformers", "trl",
)
# fmt: on
# What older manifests have of the keys that are left out today (see `Artifact`, runtime_keys).
_RUNTIME_KEYS = ("engine", "memory_limit", "patience", "spark", "threads", "user_agent")


# Digests and versions -------------------------------------------------------------------------


def file_digest(path: Path) -> str:
    """SHA-256 of a file, or of every file below a folder with its name."""
    if path.is_dir():
        hasher = hashlib.sha256()
        for inner in sorted(item for item in path.rglob("*") if item.is_file()):
            hasher.update(os.fsencode(f"{inner.relative_to(path)}\0{file_digest(inner)}\n"))
        return hasher.hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def source_digest(source: str | Path, *, is_model: bool = False) -> str:
    """Digest of an input: its bytes where it is a local file, its name where it is not.

    Args:
        source: a file, a folder, a data set's name on the Hub, or any other name.
        is_model: the source is a model, whose name on the Hub is taken as it is.

    Returns:
        64 hexadecimal digits, "name:owner/name@COMMIT[:split]" for a data set on the Hub, whose
        commit tells when it has changed, or "name:" and the name.

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
    return f"name:{hub.pin(source)}"


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of every library that can change a result; absent ones left out."""
    found = {"python": platform.python_version()}
    for library in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[library] = importlib.metadata.version(library)
    return found


def fingerprint(*parts: Any) -> str:
    """Hash plain values, configs or mappings of them to 64 hexadecimal digits."""
    text = json.dumps([as_plain(part) for part in parts], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


# Writing --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Give a temporary name beside `path`, and put what was written there in its place."""
    # The suffix stays last, since writers choose the format by it.
    temporary = path.with_name(f".part-{uuid.uuid4().hex}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        for written in [*temporary.rglob("*"), temporary]:
            handle = os.open(written, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)
        _rename(temporary, path)
    except OSError as error:
        advice = "free space or choose another folder"
        if isinstance(error, FileNotFoundError) and not temporary.exists():
            # `finish` of another run has removed it.
            advice = "let only one run at a time write into a folder"
        raise DataError(f"cannot write {path}: {error}; {advice}") from error
    finally:
        _remove(temporary)


def _rename(temporary: Path, path: Path) -> None:
    """Put a file or a folder in the place of the older one, in one step where the system can."""
    if not (temporary.is_dir() and path.is_dir()):
        temporary.replace(path)
    elif not _exchange(temporary, path):
        # A kill between both renames leaves no folder, which is not half of one either.
        old = temporary.with_name(f"{temporary.name}-old")
        path.rename(old)
        temporary.replace(path)
        _remove(old)


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders exchange their names at once; False where the system cannot."""
    exchange = getattr(ctypes.CDLL(None), "renameat2", None)
    here, swap = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
    names = os.fsencode(one), os.fsencode(other)
    return exchange is not None and exchange(here, names[0], here, names[1], swap) == 0


def _remove(path: Path) -> None:
    """Remove a file or a folder, if it is there and can be removed."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary neighbour of `path`, then rename it into place.

    Raises:
        DataError: the disk is full or the folder cannot be written.
    """
    with _replacing(path) as temporary:
        temporary.touch(exist_ok=False)
        write(temporary)


def write_part(path: Path, write: Callable[[Path], object]) -> None:
    """Write a part of unfinished work, like `write_atomically`, with its digest beside it."""

    def with_digest(temporary: Path) -> None:
        write(temporary)
        digest = file_digest(temporary)
        # Before the part, so that a part without its digest is a damaged one.
        write_atomically(_digest_beside(path), lambda beside: beside.write_text(digest))

    write_atomically(path, with_digest)


def read_part(path: Path, read: Callable[[Path], T]) -> T | None:
    """Read what `write_part` wrote; None where the part is absent or not as it was written."""
    try:
        is_whole = _digest_beside(path).read_bytes() == file_digest(path).encode()
    except OSError:
        return None
    return read(path) if is_whole else None


def _digest_beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def as_json(value: Any) -> Any:
    """Plain values that every reader of JSON takes: a number that is not finite as its name.

    JSON knows no infinity. `litbench.config.build` reads "inf" as the number again.
    """
    text = json.dumps(as_plain(value))
    return json.loads(text, parse_constant=lambda name: str(float(name)))


def write_json(content: Any, path: Path) -> None:
    """Write JSON, indented, in place of what was there."""
    text = json.dumps(as_plain(content), indent=2, ensure_ascii=False) + "\n"
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_json_part(content: Any, path: Path) -> None:
    """Write a part of unfinished work as JSON, with its digest inside."""
    write_json({"sha256": fingerprint(content), "content": content}, path)


def read_json_part(path: Path) -> Any:
    """Read what `write_json_part` wrote; None where it is absent or damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        is_whole = found["sha256"] == fingerprint(found["content"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found["content"] if is_whole else None


# Manifests ------------------------------------------------------------------------------------


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
        raise DataError(f"{path} is no manifest: make the product again")
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
    return isinstance(output, dict) and output.get("sha256") == file_digest(path)


def without_runtime_keys(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest to show or publish: without what older ones have of how the work was done.

    Such keys, like settings of Spark, may hold passwords.
    """
    config = manifest.get("config", {})
    kept = {key: value for key, value in config.items() if key not in _RUNTIME_KEYS}
    return {**manifest, "config": kept} if "config" in manifest else dict(manifest)


class Artifact:
    """One program's output folder and what made it.

    It depends on the config, on the bytes of its inputs and on the version number of its program;
    not on where inputs and folder lie.

    Attributes:
        folder: where the files lie.
        counts: what the program counted, such as the funnel; goes into the manifest.
        digests: of inputs and models, by their key in the config; see `source_digest`.
        fingerprint: of all that it depends on.

    Args:
        folder: where the files lie.
        program: path of the program.
        config: its config.
        inputs: the files, folders and data sets it reads, by their key in the config.
        models: the models it uses, likewise; see `source_digest`.
        runtime_keys: keys of the config that say how the work is done and not what comes out,
            such as `engine` or `memory_limit`. They may hold passwords, so the manifest does not
            have them, and an artifact stays current when they change.
        version: of the program, raised by hand when the same config and inputs come out otherwise.
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
        version: int = 1,
    ) -> None:
        self.folder = folder
        self.counts: dict[str, Any] = {}
        plain = as_plain(config)
        # A misspelt key would let its secret through.
        unknown = set(runtime_keys) - plain.keys()
        assert not unknown, f"runtime_keys are not in the config: {sorted(unknown)}"
        self._program = {"program": Path(program).name, "version": version}
        self._config = {key: value for key, value in plain.items() if key not in runtime_keys}
        self._outputs: dict[str, dict[str, Any]] = {}
        self._started = time.time()
        self._stamps = {name: _stamp(Path(source)) for name, source in inputs.items()}
        models = models or {}
        self._inputs = {
            name: {"path": str(source), "sha256": source_digest(source, is_model=name in models)}
            for name, source in {**inputs, **models}.items()
        }
        self.digests = {name: item["sha256"] for name, item in self._inputs.items()}
        named = {"out", *self._inputs}
        keys = {key: value for key, value in self._config.items() if key not in named}
        self.fingerprint = fingerprint(keys, self.digests, self._program)

    def is_current(self) -> bool:
        """Whether the folder holds this artifact, whole and unchanged; says so if it does."""
        try:
            manifest = read_manifest(self.folder)
            if manifest["fingerprint"] != self.fingerprint:
                return False
            for name, output in manifest["outputs"].items():
                if file_digest(self.folder / name) != output["sha256"]:
                    return False
        except (DataError, OSError, KeyError, TypeError, AttributeError):
            return False
        print(f"unchanged: {self.folder}")
        return True

    def write(self, name: str, write: Callable[[Path], object]) -> Path:
        """Write one file through `write(path)`.

        Raises:
            DataError: the disk is full or the folder cannot be written.
        """
        path = self.folder / name
        write_atomically(path, write)
        self._outputs[name] = {"sha256": file_digest(path), "bytes": path.stat().st_size}
        return path

    def write_folder(self, name: str, write: Callable[[Path], object]) -> Path:
        """Write one folder through `write(path)`; an older one is replaced as a whole.

        Raises:
            DataError: the disk is full or the folder cannot be written.
        """
        path = self.folder / name
        with _replacing(path) as temporary:
            temporary.mkdir()
            write(temporary)
        self._outputs[name] = {"sha256": file_digest(path)}
        return path

    def finish(self) -> None:
        """Write the manifest, last: only now is the artifact current.

        Raises:
            DataError: an input has changed since the program started, or the disk is full.
        """
        for name, stamp in self._stamps.items():
            source = self._inputs[name]["path"]
            if _stamp(Path(source)) != stamp and source_digest(source) != self.digests[name]:
                raise DataError(
                    f"{source} changed while it was read: run the same command again once it is "
                    "complete"
                )
        # A killed run could not remove what it was writing.
        for leftover in self.folder.glob(".part-*"):
            _remove(leftover)
        write_json(self.as_manifest(), self.folder / "manifest.json")

    def made_of(self) -> str:
        """What the artifact is made of, as JSON for a page that the same config gives again."""
        made_of = {"config": self._config, "inputs": self.digests, "versions": versions()}
        return json.dumps(made_of, indent=2)

    def as_manifest(self) -> dict[str, Any]:
        """The manifest as things stand, as any reader of JSON can hold it."""
        manifest: dict[str, Any] = as_json(
            {
                **self._program,
                "fingerprint": self.fingerprint,
                "config": self._config,
                "inputs": self._inputs,
                "outputs": self._outputs,
                "counts": self.counts,
                "versions": versions(),
                "finished_utc": datetime.now(UTC).isoformat(timespec="seconds"),
                "seconds": round(time.time() - self._started, 2),
            }
        )
        return manifest


def _stamp(source: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of the file, or of all files of the folder; empty for other names."""
    try:
        files = sorted(source.rglob("*")) if source.is_dir() else [source]
        found = [(str(file), file.stat()) for file in files if file.is_file()]
    except OSError:
        # `source_digest` says what is wrong.
        return []
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in found]
