"""A result and what made it: written whole or not at all, and resumed.

Each program writes one folder, with a manifest of config, inputs, counts and versions:

    artifact = Artifact(folder, program=__file__, config=config, inputs={"stories": path})
    if artifact.is_current():
        return
    artifact.write("pairs.parquet", lambda path: write_table(table, path))
    artifact.finish()  # writes manifest.json

Files and folders are written to a temporary path, synced and renamed. Unfinished work is kept in a
`Cache`:

    cache = Cache(folder / "parts")
    rewards = cache.get([model, stories], lambda: score(stories))
    cache.discard_unused()
"""

import contextlib
import ctypes
import fcntl
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from litbench.runs import hub
from litbench.runs.config import Runtime, as_plain, check_utf8, is_full_disk, marks_of
from litbench.runs.errors import DataError, LitBenchError

T = TypeVar("T")

# A name that ends like the hash of another name is not plain.
_PLAIN_NAME = re.compile(r"(?!.*-[0-9a-f]{8}$)[-+=@\w][-.+=@\w]*")
# In bytes; file systems allow 255, of which suffixes need some.
_LONGEST_NAME = 100

# Libraries that can change a result.
_LIBRARIES = (
    "litbench accelerate backports.zstd bitsandbytes datasets deepspeed duckdb flash-attn "
    "huggingface_hub ibis-framework inspect-ai numpy openai pandas peft praw pyarrow pyspark rensa "
    "scikit-learn scipy tokenizers torch transformers trl jieba nltk"
)


def file_digest(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of all files in a folder.

    DataError if it cannot be read.
    """
    if path.is_dir():
        hasher = hashlib.sha256()
        for inner in sorted(item for item in path.rglob("*") if item.is_file()):
            hasher.update(os.fsencode(f"{inner.relative_to(path)}\0{file_digest(inner)}\n"))
        return hasher.hexdigest()
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is neither a file nor a folder: remove it, or give another")
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error}; allow reading it, or give another"
        ) from error


def source_digest(source: str | Path, *, is_model: bool = False) -> str:
    """SHA-256 of a local file or folder, or the name of a data set or model on the Hub.

    Data sets are pinned to a commit: "name:owner/name@COMMIT[:split]". Models and all other names
    are not: "name:" and the name.
    """
    if not str(source):
        raise DataError("the name of an input is empty: give a file, a folder or a data set's name")
    check_utf8(str(source), "input")
    if Path(source).exists():
        return file_digest(Path(source))
    return f"name:{source if is_model or not hub.is_name(source) else hub.pin(source)}"


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of every installed library that can change a result."""
    installed = {"python": platform.python_version()}
    for library in _LIBRARIES.split():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[library] = importlib.metadata.version(library)
    return installed


def package_version() -> str:
    """Version of LitBench, on which every result depends; empty if it is not installed."""
    return versions().get("litbench", "")


def fingerprint(*parts: Any) -> str:
    """SHA-256 of plain values or configs, as 64 hexadecimal digits."""
    text = json.dumps([as_plain(part) for part in parts], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def translate_disk_full(path: Path) -> Iterator[None]:
    """Turn what any library raises on a full disk into a DataError that names `path`."""
    try:
        yield
    except Exception as error:
        if isinstance(error, DataError) or not is_full_disk(error):
            raise
        raise DataError(
            f"cannot write {path}: {error}; free space or choose another folder"
        ) from error


@contextlib.contextmanager
def only_writer(folder: Path, output: Path | None = None) -> Iterator[None]:
    """Create a folder and lock it; DataError if another program has locked it.

    The lock is released at the end of the block, or of a killed program. Messages name `output`,
    by default the folder.
    """
    output = output or folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"no permission to write into {folder}")
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise DataError(f"cannot write {output}: {error}; choose another folder") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise DataError(
            f"cannot write {output}: another program is writing it: wait for it, or choose another "
            "output"
        ) from error
    finally:
        os.close(handle)


def write_atomically(
    path: Path, write: Callable[[Path], object], *, is_folder: bool = False
) -> None:
    """Call `write` with a temporary path beside `path`, then rename it to `path`."""
    # Keep the suffix: writers choose the format by it.
    temporary = path.with_name(f".part-{uuid.uuid4().hex}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir() if is_folder else temporary.touch()
        mode = temporary.stat().st_mode & 0o666
        with translate_disk_full(path):
            write(temporary)
        for written in [*temporary.rglob("*"), temporary]:
            if written.is_file():
                # Some writers, such as safetensors, ignore the umask and allow only the owner.
                written.chmod(mode)
            handle = os.open(written, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)
        if not (is_folder and path.exists()):
            temporary.replace(path)
        elif not _exchange(temporary, path):
            # Not atomic: a kill between the two renames leaves no folder at `path`.
            path.rename(temporary.with_name(f"{temporary.name}-old"))
            temporary.replace(path)
    except OSError as error:
        advice = "free space or choose another folder"
        is_lost = isinstance(error, FileNotFoundError) and not temporary.exists()
        if is_lost and path.parent.exists():
            advice = "another run removed its temporary file: let only one run at a time write here"
        raise DataError(f"cannot write {path}: {error}; {advice}") from error
    finally:
        for leftover in path.parent.glob(f"{temporary.name}*"):
            _remove(leftover)


def file_name(name: str) -> str:
    """Return a file name for any name, such as that of a rater; different names differ.

    A plain name is returned unchanged. Otherwise other characters become "_", and a hash of the
    name follows.
    """
    if _PLAIN_NAME.fullmatch(name) and len(name.encode()) <= _LONGEST_NAME:
        return name
    readable = re.sub(r"[^-.+=@\w]", "_", name).lstrip(".")[:40]
    return f"{readable}-{fingerprint(name)[:8]}"


def _exchange(first: Path, second: Path) -> bool:
    """Swap two folders atomically; False if the system cannot."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    at_fdcwd, rename_exchange = -100, 2  # constants of Linux
    paths = (at_fdcwd, os.fsencode(first), at_fdcwd, os.fsencode(second))
    return renameat2 is not None and renameat2(*paths, rename_exchange) == 0


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def as_json(content: Any) -> Any:
    """Plain values, with "inf", "-inf" and "nan" for numbers that JSON does not have."""
    text = json.dumps(as_plain(content))
    return json.loads(text, parse_constant=lambda name: str(float(name)))


def write_json(content: Any, path: Path) -> None:
    """Write indented JSON atomically."""
    text = json.dumps(as_plain(content), indent=2, ensure_ascii=False) + "\n"
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def write_sealed(content: Mapping[str, Any], path: Path) -> None:
    """Write a JSON object atomically, with the digest of all other keys under `sha256`."""
    plain = json.loads(json.dumps(as_plain(content)))
    write_json({**plain, "sha256": fingerprint(plain)}, path)


def read_object(
    path: Path, error: type[LitBenchError], advice: str, *, is_sealed: bool = False
) -> dict[str, Any]:
    """Read a JSON object; raise `error` if there is none, or a sealed one was changed."""
    if not path.parent.is_dir():
        raise error(f"there is no folder {path.parent}: check the path")
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is not a file")
        content = _read_json(path)
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
        if is_sealed and content.pop("sha256", None) != fingerprint(content):
            raise ValueError("its content does not match its sha256")
    except (OSError, ValueError, RecursionError) as cause:
        raise error(f"cannot read {path.name} in {path.parent} ({cause}): {advice}") from cause
    return content


def read_sealed(path: Path, error: type[LitBenchError], advice: str) -> dict[str, Any]:
    """Read what `write_sealed` wrote; raise `error` if it is missing, damaged or was changed."""
    return read_object(path, error, advice, is_sealed=True)


class Cache:
    """Parts of unfinished work in a folder of their own, so that a killed run resumes.

    A part is a file or a folder, which is renamed to its name once it is complete. Its name has the
    fingerprint of its key, which is everything that its content depends on.

    Attributes:
        folder: folder of the parts; created with the first part.
        used: names of the parts that this run has asked for.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.used: set[str] = set()

    def path(self, key: Any, label: str, suffix: str) -> Path:
        # A label may contain characters that file names cannot, as in owner/model.
        readable = re.sub(r"[^-.+=@ \w]", "_", label)[:40]
        path = self.folder / f"{readable}-{fingerprint(key)[:16]}{suffix}"
        self.used.add(path.name)
        return path

    def get(
        self,
        key: Any,
        make: Callable[[], T],
        read: Callable[[Path], T] = _read_json,
        write: Callable[[T, Path], object] = write_json,
        *,
        label: str = "part",
        suffix: str = ".json",
        is_stale: Callable[[T], object] | None = None,
    ) -> T:
        """Read the part of a key; if there is none, first write what `make` returns.

        Args:
            key: plain values that change whenever the content changes.
            make: returns the content.
            read: reads a file that `write` wrote; JSON by default.
            write: writes the content to a path.
            label: readable start of the file's name.
            suffix: end of the file's name.
            is_stale: whether a stored content must be replaced.
        """
        path = self.path(key, label, suffix)
        if not path.exists() or (is_stale is not None and is_stale(read(path))):
            write_atomically(path, partial(write, make()))
        # Read also when just written, so that a resumed run computes with equal values.
        return read(path)

    def get_folder(self, key: Any, write: Callable[[Path], object], label: str = "part") -> Path:
        """Return the folder of a key; if there is none, `write(path)` fills it first."""
        path = self.path(key, label, "")
        if not path.exists():
            write_atomically(path, write, is_folder=True)
        return path

    def stored(self, read: Callable[[Path], T]) -> Iterator[tuple[Path, T]]:
        """Yield the path and the content of each part."""
        for path in sorted(self.folder.glob("[!.]*")):
            yield path, read(path)

    def discard(self, key: Any, label: str = "part", suffix: str = ".json") -> None:
        _remove(self.path(key, label, suffix))

    def discard_unused(self) -> int:
        """Remove all parts but those in `used`, and what killed runs left; return how many."""
        unused = [path for path in self.folder.glob("*") if path.name not in self.used]
        for path in unused:
            _remove(path)
        return len(unused)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read a folder's manifest; DataError if it is missing, damaged or was changed."""
    return read_sealed(folder / "manifest.json", DataError, "run the program that writes it again")


def read_manifest_of(path: Path) -> dict[str, Any]:
    """Read the manifest beside a file; DataError if the file does not match its digest."""
    manifest = read_manifest(path.parent)
    if not is_output(manifest, path):
        raise DataError(
            f"{path} does not match manifest.json beside it: the file was changed, or the program "
            "that wrote it did not finish; run that program again, or copy the file to another "
            "folder to use it as it is"
        )
    return manifest


def own_manifest(path: Path) -> dict[str, Any] | None:
    """As `read_manifest_of`; None if no manifest is there, or it does not list the file."""
    if not (path.parent / "manifest.json").is_file():
        return None
    is_listed = path.name in read_manifest(path.parent).get("outputs", {})
    return read_manifest_of(path) if is_listed else None


def is_output(manifest: Mapping[str, Any], path: Path) -> bool:
    """Whether a manifest lists a file of its folder with the file's current digest."""
    output = manifest.get("outputs", {}).get(path.name)
    return isinstance(output, dict) and output.get("sha256") == file_digest(path)


def _path_from(folder: Path, source: str | Path) -> str:
    """Path of a local source relative to `folder`; a name on the Hub stays a name."""
    if not Path(source).exists():
        return str(source)
    return os.path.relpath(Path(source).resolve(), folder.resolve())


class Artifact:
    """The output folder of one program, and its manifest.

    The fingerprint covers the config, the contents of the inputs and LitBench's version, but no
    paths. `counts` is written to the manifest; `paths` are the inputs by key. In the manifest they
    are relative to the folder, so that they hold in a copy of both.

    Args:
        folder: output folder.
        program: path of the program.
        config: config of the program; keys marked as `Runtime` are left out.
        inputs: files, folders and data sets that the program reads, by config key; without those
            that are null.
        models: models that the program uses, by config key.
    """

    def __init__(
        self,
        folder: Path,
        *,
        program: str,
        config: Any,
        inputs: Mapping[str, str | Path | None] | None = None,
        models: Mapping[str, str | Path] | None = None,
    ) -> None:
        self.folder = folder
        self.counts: dict[str, Any] = {}
        self._program = Path(program).name
        self._config = as_plain(config)
        marks = marks_of(type(config))
        sources = {key: path for key, path in (inputs or {}).items() if path is not None}
        models = models or {}
        for name, marked in marks.items():
            if Runtime in marked:
                del self._config[name]
        self._outputs: dict[str, dict[str, Any]] = {}
        self._started = time.time()
        self.paths = {name: Path(source) for name, source in sources.items()}
        self.digests = {
            **{name: source_digest(source) for name, source in sources.items()},
            **{name: source_digest(model, is_model=True) for name, model in models.items()},
        }
        self._inputs = {
            name: {"path": _path_from(folder, source), "sha256": self.digests[name]}
            for name, source in {**sources, **models}.items()
        }
        # The output folder is `out`, or `output_dir` in programs with trl's names.
        paths = {"out", "output_dir", *self._inputs}
        keys = {key: value for key, value in self._config.items() if key not in paths}
        self.fingerprint = fingerprint(keys, self.digests, self._program, package_version())

    def is_current(self) -> bool:
        """Whether the folder holds this artifact, complete and unchanged; prints a line if so."""
        try:
            manifest = read_manifest(self.folder)
            outputs = {name: output["sha256"] for name, output in manifest["outputs"].items()}
            current = {name: file_digest(self.folder / name) for name in outputs}
            is_current = bool(manifest["fingerprint"] == self.fingerprint and current == outputs)
        except (DataError, OSError, KeyError, TypeError, AttributeError):
            return False
        if is_current:
            print(f"unchanged: {self.folder}")
        return is_current

    def write(self, name: str, write: Callable[[Path], object], *, is_folder: bool = False) -> Path:
        """Write one file or folder through `write(path)`; an existing one is replaced."""
        path = self.folder / name
        write_atomically(path, write, is_folder=is_folder)
        self._outputs[name] = {"sha256": file_digest(path)}
        return path

    def write_text(self, name: str, text: str) -> Path:
        """Write one text file; an existing one is replaced."""
        return self.write(name, lambda path: path.write_text(text, encoding="utf-8"))

    def write_folder(self, name: str, write: Callable[[Path], object]) -> Path:
        """Write one folder through `write(path)`; an existing one is replaced as a whole."""
        return self.write(name, write, is_folder=True)

    def finish(self) -> None:
        """Write the manifest; DataError if an input has changed since the start."""
        for name, path in self.paths.items():
            files = [file for file in (path, *path.rglob("*")) if file.exists()]
            is_newer = any(file.stat().st_mtime > self._started - 2 for file in files)
            if is_newer and source_digest(path) != self.digests[name]:
                raise DataError(f"{path} changed while it was read: run the same command again")
        # Temporary files of killed runs.
        for leftover in self.folder.glob(".part-*"):
            _remove(leftover)
        write_sealed(self.as_manifest(), self.folder / "manifest.json")

    def made_of(self) -> str:
        """Config, input digests and versions as JSON: nothing that differs between equal runs."""
        made_of = {"config": self._config, "inputs": self.digests, "versions": versions()}
        return json.dumps(made_of, indent=2)

    def as_manifest(self) -> dict[str, Any]:
        """The manifest, with the outputs and counts so far."""
        content = {
            "program": self._program,
            "fingerprint": self.fingerprint,
            "config": self._config,
            "inputs": self._inputs,
            "outputs": self._outputs,
            "counts": self.counts,
            "versions": versions(),
            "finished_utc": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.time() - self._started, 2),
        }
        return dict(as_json(content))
