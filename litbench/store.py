"""Output folders of programs, with a manifest of config, inputs, counts and versions.

Each program writes one folder:

    artifact = Artifact(folder, program=__file__, config=config, inputs={"stories": path})
    if artifact.is_current():
        return
    artifact.write("pairs.parquet", lambda path: write_table(table, path))
    artifact.finish()  # writes manifest.json

Files and folders are written to a temporary path, synced and renamed. Parts of unfinished work have
a digest, beside them (`write_part`) or inside (`write_json_part`); a damaged part is made again.
"""

import contextlib
import ctypes
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from litbench import hub
from litbench.config import as_plain, check_utf8, is_full_disk
from litbench.errors import DataError

T = TypeVar("T")

_LIBRARIES = (
    *(
        "litbench",
        "accelerate",
        "backports.zstd",
        "bitsandbytes",
        "datasets",
        "deepspeed",
        "duckdb",
    ),
    *("flash-attn", "huggingface_hub", "ibis-framework", "inspect-ai", "numpy", "openai", "pandas"),
    *("peft", "praw", "pyarrow", "pyspark", "rensa", "scikit-learn", "scipy", "tokenizers"),
    *("torch", "transformers", "trl", "jieba", "nltk", "wordfreq"),
)


def file_digest(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of all files in a folder."""
    if path.is_dir():
        hasher = hashlib.sha256()
        for inner in sorted(item for item in path.rglob("*") if item.is_file()):
            hasher.update(os.fsencode(f"{inner.relative_to(path)}\0{file_digest(inner)}\n"))
        return hasher.hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
    for library in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[library] = importlib.metadata.version(library)
    return installed


def fingerprint(*parts: Any) -> str:
    """SHA-256 of plain values or configs, as 64 hexadecimal digits."""
    text = json.dumps([as_plain(part) for part in parts], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def clear_full_disk(path: Path) -> Iterator[None]:
    """Turn what any library raises on a full disk into a DataError that names `path`."""
    try:
        yield
    except Exception as error:
        if isinstance(error, DataError) or not is_full_disk(error):
            raise
        raise DataError(
            f"cannot write {path}: {error}; free space or choose another folder"
        ) from error


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
        with clear_full_disk(path):
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


def _exchange(first: Path, second: Path) -> bool:
    """Swap two folders atomically; False if the system cannot."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    at_fdcwd, rename_exchange = -100, 2  # constants of Linux
    paths = (at_fdcwd, os.fsencode(first), at_fdcwd, os.fsencode(second))
    return renameat2 is not None and renameat2(*paths, rename_exchange) == 0


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def write_part(path: Path, write: Callable[[Path], object], *, is_folder: bool = False) -> None:
    """Write a part of unfinished work atomically, with its digest in a file beside it."""

    def with_digest(temporary: Path) -> None:
        write(temporary)
        # The digest first: a part without a digest counts as damaged.
        write_digest(path, temporary)

    write_atomically(path, with_digest, is_folder=is_folder)


def write_digest(path: Path, written: Path) -> None:
    """Write the digest of a part for `read_part`; `written` is where the part is now."""
    digest = file_digest(written)
    write_atomically(Path(f"{path}.sha256"), lambda beside: beside.write_text(digest))


def read_part(path: Path, read: Callable[[Path], T]) -> T | None:
    """Read a part, a file or a folder; None if it is missing, or damaged, which is printed."""
    with contextlib.suppress(OSError):
        if Path(f"{path}.sha256").read_bytes() == file_digest(path).encode():
            return read(path)
    _report_damage(path)
    return None


def _report_damage(path: Path) -> None:
    if path.exists():
        print(f"{path} is damaged or incomplete: its work is done again", file=sys.stderr)


def as_json(content: Any) -> Any:
    """Plain values, with "inf", "-inf" and "nan" for numbers that JSON does not have."""
    text = json.dumps(as_plain(content))
    return json.loads(text, parse_constant=lambda name: str(float(name)))


def write_json(content: Any, path: Path) -> None:
    """Write indented JSON atomically."""
    text = json.dumps(as_plain(content), indent=2, ensure_ascii=False) + "\n"
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_json_part(content: Any, path: Path) -> None:
    """Write a part of unfinished work as JSON, with its digest inside."""
    write_json({"sha256": fingerprint(content), "content": content}, path)


def read_json_part(path: Path) -> Any:
    """Read what `write_json_part` wrote; None if it is missing, or damaged, which is printed."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        part = json.loads(path.read_text(encoding="utf-8"))
        if part["sha256"] == fingerprint(part["content"]):
            return part["content"]
    _report_damage(path)
    return None


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read a folder's manifest; DataError if it is missing or damaged."""
    try:
        content: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        return {**content}
    except (OSError, ValueError, TypeError) as error:
        raise DataError(
            f"cannot read manifest.json in {folder} ({error}): run the program that writes it again"
        ) from error


def read_manifest_of(path: Path) -> dict[str, Any]:
    """Read the manifest beside a file; DataError if the file does not match its digest."""
    manifest = read_manifest(path.parent)
    if not is_output(manifest, path):
        raise DataError(
            f"{path} does not match manifest.json beside it: the file was changed, or the program "
            "that wrote it did not finish; run that program again"
        )
    return manifest


def is_output(manifest: Mapping[str, Any], path: Path) -> bool:
    """Whether a manifest lists a file of its folder with the file's current digest."""
    output = manifest.get("outputs", {}).get(path.name)
    return isinstance(output, dict) and output.get("sha256") == file_digest(path)


class Artifact:
    """The output folder of one program, and its manifest.

    The fingerprint covers the config, the contents of the inputs and the program's version, but no
    paths. `counts` is written to the manifest.

    Args:
        folder: output folder.
        program: path of the program.
        config: config of the program.
        inputs: files, folders and data sets that the program reads, by config key.
        models: models that the program uses, by config key.
        runtime_keys: config keys that do not change the results. They may contain passwords, so
            they are left out of the manifest.
        version: version of the program; raise it when the same config and inputs give other
            results.
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
        self._program = {"program": Path(program).name, "version": version}
        self._config = as_plain(config)
        for key in runtime_keys:
            del self._config[key]
        self._outputs: dict[str, dict[str, Any]] = {}
        self._started = time.time()
        self._paths = {name: Path(source) for name, source in inputs.items()}
        self.digests = {
            **{name: source_digest(source) for name, source in inputs.items()},
            **{name: source_digest(model, is_model=True) for name, model in (models or {}).items()},
        }
        self._inputs = {
            name: {"path": str(source), "sha256": self.digests[name]}
            for name, source in {**inputs, **(models or {})}.items()
        }
        # The output folder is `out`, or `output_dir` in programs with trl's names.
        paths = {"out", "output_dir", *self._inputs}
        keys = {key: value for key, value in self._config.items() if key not in paths}
        self.fingerprint = fingerprint(keys, self.digests, self._program)

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

    def write_folder(self, name: str, write: Callable[[Path], object]) -> Path:
        """Write one folder through `write(path)`; an existing one is replaced as a whole."""
        return self.write(name, write, is_folder=True)

    def finish(self) -> None:
        """Write the manifest; DataError if an input has changed since the start."""
        for name, path in self._paths.items():
            files = [file for file in (path, *path.rglob("*")) if file.exists()]
            is_newer = any(file.stat().st_mtime > self._started - 2 for file in files)
            if is_newer and source_digest(path) != self.digests[name]:
                raise DataError(f"{path} changed while it was read: run the same command again")
        # Temporary files of killed runs.
        for leftover in self.folder.glob(".part-*"):
            _remove(leftover)
        write_json(self.as_manifest(), self.folder / "manifest.json")

    def made_of(self) -> str:
        """Config, input digests and versions as JSON: nothing that differs between equal runs."""
        made_of = {"config": self._config, "inputs": self.digests, "versions": versions()}
        return json.dumps(made_of, indent=2)

    def as_manifest(self) -> dict[str, Any]:
        """The manifest, with the outputs and counts so far."""
        content = {
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
        return dict(as_json(content))
