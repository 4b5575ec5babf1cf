"""The Hugging Face Hub: parse names, read data sets, fetch models, replace files.

A data set is named `owner/name[@revision][:split]`, or `:configuration/split` where it has several
configurations. A name is pinned to its current commit before it is read, and the manifest records
that commit.
"""

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import pyarrow as pa

from litbench.runs.errors import ConfigError, DataError, LitBenchError, MissingExtraError

_NAME = re.compile(
    r"(?P<repository>\w[\w.-]{0,95}/\w[\w.-]{0,95})"
    r"(?:@(?P<revision>\w[\w./-]{0,199}))?"
    r"(?::(?:(?P<configuration>[\w.-]{1,100})/)?(?P<split>\w[\w.-]{0,99}))?",
    re.ASCII,
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
# Sources with these endings are paths, even if the file does not exist.
_FILE_ENDINGS = (
    *(".parquet", ".jsonl", ".ndjson", ".csv", ".tsv", ".json", ".txt", ".arrow"),
    *(".zst", ".gz", ".bz2", ".xz"),
)
_MODEL_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
# Rows per batch: about one row group of a published set, tens of megabytes of stories.
_ROWS = 4_096
# Seconds to wait for a connection.
_SECONDS = 5
_SIGN_IN = "sign in with `hf auth login` or export HF_TOKEN"


@dataclass(frozen=True)
class HubName:
    """A parsed name of a data set or model on the Hub; None for parts that are not given."""

    repository: str
    revision: str | None = None
    configuration: str | None = None
    split: str | None = None

    def __str__(self) -> str:
        part = "/".join(part for part in (self.configuration, self.split) if part is not None)
        revision = "" if self.revision is None else f"@{self.revision}"
        return f"{self.repository}{revision}{part and ':'}{part}"


def is_name(source: str | Path) -> bool:
    """Whether a source has the form of a data set's name and is not a local file or folder.

    Raises:
        DataError: it is a path into a local folder that does not exist.
    """
    match = _NAME.fullmatch(str(source))
    if match is None or match["repository"].lower().endswith(_FILE_ENDINGS):
        return False
    check_no_path(str(source))
    return not Path(source).exists()


def check_no_path(name: str) -> None:
    """Raise a DataError if a name such as runs/model can only be a path that does not exist.

    That is so if its first part is a local folder; with a revision it names the Hub all the same.
    """
    first, _, rest = name.partition("/")
    if rest and "@" not in name and Path(first).is_dir() and not Path(name).exists():
        raise DataError(
            f"there is no file or folder {name}: check the path; for that name on the Hub, write "
            f"{name}@main"
        )


def parse_name(source: str | Path) -> HubName:
    """Parse `owner/name[@revision][:split]`; DataError if the text has another form."""
    match = _NAME.fullmatch(str(source))
    if match is None:
        raise DataError(
            f"{str(source)!r:.120} is not a name on the Hub: write owner/name, "
            "owner/name@revision, owner/name:split or owner/name:configuration/split"
        )
    return HubName(**match.groupdict())


def pin(source: str | Path) -> HubName:
    """Resolve a data set's revision to a commit, looked up once per process."""
    name = parse_name(source)
    if _COMMIT.fullmatch(name.revision or ""):
        return name
    return replace(name, revision=_look_up_commit(name.repository, name.revision))


@cache
def _look_up_commit(repository: str, revision: str | None) -> str:
    with _hub_errors(f"{HubName(repository, revision)} is not a local file and"):
        from huggingface_hub import HfApi  # noqa: PLC0415

        info = HfApi().dataset_info(repository, revision=revision, timeout=_SECONDS)
    return str(info.sha)


@contextlib.contextmanager
def _hub_errors(what: str, extra: str = "data") -> Iterator[None]:
    """Turn the many exception types of the Hub's libraries into a DataError.

    `extra` has the libraries.
    """
    try:
        yield
    except LitBenchError:
        raise
    except ModuleNotFoundError as error:
        raise MissingExtraError(str(error.name), extra) from error
    except Exception as error:
        raise DataError(
            f"{what} cannot be reached on the Hub ({type(error).__name__}: {error}): check the "
            f"name and the network; if it is private or gated, accept its terms and {_SIGN_IN}"
        ) from error


def open_stream(source: str) -> Iterator[pa.RecordBatch]:
    """Stream a data set's columns in the order of its files, without storing it on disk."""
    name = pin(source)
    with _hub_errors(source):
        import datasets  # noqa: PLC0415

        loaded = datasets.load_dataset(
            name.repository,
            name.configuration,
            split=name.split,
            revision=name.revision,
            streaming=True,
        )
        if isinstance(loaded, dict):
            if len(loaded) > 1:
                first = replace(parse_name(source), split=min(loaded))
                raise DataError(f"{source} has splits {sorted(loaded)}: name one, such as {first}")
            loaded = next(iter(loaded.values()))
        for table in loaded.with_format("arrow").iter(batch_size=_ROWS):
            yield from table.replace_schema_metadata(None).to_batches()


def fetch_file(url: str, path: Path, sha256: str | None = None) -> None:
    """Download a file through fsspec, such as https://... or hf://datasets/OWNER/NAME/FILE.

    Args:
        url: address of the file.
        path: where to write it; an existing file is replaced once the new one is complete.
        sha256: expected digest; None if it is not known.

    Raises:
        DataError: the file cannot be fetched, or does not match `sha256`.
    """
    part = path.with_name(f".part-{path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        import fsspec  # noqa: PLC0415

        system, remote = fsspec.url_to_fs(url)
        system.get_file(remote, str(part))
    except ModuleNotFoundError as error:
        raise MissingExtraError(str(error.name), "data") from error
    except Exception as error:  # fsspec's file systems raise many types
        part.unlink(missing_ok=True)
        raise DataError(
            f"cannot fetch {url} ({type(error).__name__}: {error}): check the address and the "
            "network; run the same command again"
        ) from error
    with part.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 not in (None, digest):
        part.unlink()
        raise DataError(
            f"{url} is damaged or of another revision: its sha256 is {digest}, not {sha256}; fetch "
            "it again, or correct the entry"
        )
    part.replace(path)


def fetch_model(name: str, *, with_code: bool = False) -> Path:
    """Download a model's config, tokenizer, safetensors (and code) to the local cache."""
    check_no_path(name)
    repository, _, revision = name.partition("@")
    patterns = [*_MODEL_FILES, *(["*.py"] if with_code else [])]
    with _hub_errors(f"{name} is not a local folder and", "models"):
        from huggingface_hub import HfApi, snapshot_download  # noqa: PLC0415

        options = {"revision": revision or None, "allow_patterns": patterns}
        try:
            # Downloads wait for minutes where the Hub does not answer.
            HfApi().model_info(repository, revision=revision or None, timeout=_SECONDS)
        except Exception as unreachable:  # noqa: BLE001 - the Hub's libraries raise many types
            try:
                return Path(snapshot_download(repository, local_files_only=True, **options))
            except Exception:  # noqa: BLE001 - the cache has no such model
                raise unreachable from None
        return Path(snapshot_download(repository, **options))


def check_token() -> None:
    """Raise ConfigError if there is no token; called before work that is pushed later."""
    with _hub_errors("your account"):
        from huggingface_hub import get_token  # noqa: PLC0415

        if get_token() is None:
            raise ConfigError(f"no token for the Hub: {_SIGN_IN}; the token needs write access")


def replace_files(
    name: str,
    files: Mapping[str, Path],
    kind: Literal["dataset", "model"],
    *,
    private: bool,
    is_ours: Callable[[str], bool],
) -> str:
    """Create a data set or model on the Hub, or replace its files, in one commit.

    `files` maps paths on the Hub to local files. Other files on the Hub are deleted if `is_ours`
    is true of their path. With `private`, pushing to a public repository is an error. Returns the
    URL of the commit.
    """
    check_token()
    with _hub_errors(name):
        import huggingface_hub as library  # noqa: PLC0415

        api = library.HfApi()
        api.create_repo(name, repo_type=kind, private=private, exist_ok=True)
        before = api.repo_info(name, repo_type=kind)
        if private and not before.private:
            raise ConfigError(
                f"{name} is public on the Hub: make it private there, or push with "
                "private: false (hub_private_repo for a model)"
            )
        existing = [sibling.rfilename for sibling in before.siblings or []]
        stale = [path for path in existing if is_ours(path) and path not in files]
        changes = [library.CommitOperationAdd(path, file) for path, file in files.items()]
        changes += map(library.CommitOperationDelete, stale)
        message = "Files and card written by LitBench"
        # With parent_commit, a concurrent change by someone else is not overwritten.
        commit = api.create_commit(
            name, changes, commit_message=message, repo_type=kind, parent_commit=before.sha
        )
    return str(commit.commit_url)
