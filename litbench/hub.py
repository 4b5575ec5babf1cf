"""The Hugging Face Hub: names of data sets and models there, reading and replacing their files.

A data set is named `owner/name[@revision][:split]`, or `:configuration/split` where it has several
configurations. Its owner can change what a name stands for at any time, so a name is first pinned
to the commit that it means now; that commit is read and stands in the manifest.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from litbench.errors import ConfigError, DataError, MissingExtraError

Noun = Literal["data set", "model"]

_NAME = re.compile(
    r"(?P<repository>\w[\w.-]{0,95}/\w[\w.-]{0,95})"
    r"(?:@(?P<revision>\w[\w./-]{0,199}))?"
    r"(?::(?:(?P<configuration>[\w.-]{1,100})/)?(?P<split>\w[\w.-]{0,99}))?",
    re.ASCII,
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
# A path to a file that does not exist yet is no name, though names may hold dots as well.
_FILE_ENDINGS = (".parquet", ".jsonl", ".ndjson", ".csv", ".json", ".zst", ".gz", ".txt", ".arrow")
_MODEL_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
_TIMEOUT_S = 30
# About one row group of a published set: tens of megabytes of stories.
_ROWS = 4_096
_HOW_TO_WRITE = {
    "data set": "owner/name, owner/name@revision, owner/name:split or "
    "owner/name:configuration/split",
    "model": "owner/name or owner/name@revision",
}
SIGN_IN = "sign in with `hf auth login` or export HF_TOKEN"


@dataclass(frozen=True)
class HubName:
    """A data set's or model's name on the Hub, taken apart.

    Attributes:
        repository: `owner/name`.
        revision: branch, tag or commit; None for the main branch.
        configuration: one of a data set's configurations; None for its only or default one.
        split: train, test or another; None for the only one.
    """

    repository: str
    revision: str | None = None
    configuration: str | None = None
    split: str | None = None

    def __str__(self) -> str:
        """The name as a config gives it."""
        part = "/".join(part for part in (self.configuration, self.split) if part is not None)
        revision = "" if self.revision is None else f"@{self.revision}"
        return f"{self.repository}{revision}{part and ':'}{part}"


def is_name(source: str | Path) -> bool:
    """Whether a source has the form of a data set's name and no such file or folder exists."""
    found = _NAME.fullmatch(str(source))
    if found is None or found["repository"].lower().endswith(_FILE_ENDINGS):
        return False
    return not Path(source).exists()


def parse_name(source: str | Path, noun: Noun = "data set") -> HubName:
    """Take `owner/name[@revision][:split]` apart.

    Raises:
        DataError: the text is no such name.
    """
    found = _NAME.fullmatch(str(source))
    if found is None:
        raise DataError(
            f"{str(source)!r:.120} is no name of a {noun} on the Hub: write {_HOW_TO_WRITE[noun]}"
        )
    return HubName(**found.groupdict())


def pin(source: str | Path) -> HubName:
    """The same data set at the commit that its name stands for now.

    The Hub is asked once per process, and not at all where the name has a whole commit.

    Raises:
        DataError: no such data set or revision, one that needs an account, or the Hub cannot be
            reached.
        MissingExtraError: `huggingface_hub` is not installed.
    """
    name = parse_name(source)
    if _COMMIT.fullmatch(name.revision or ""):
        return name
    return replace(name, revision=_ask_commit(name.repository, name.revision))


@cache
def _ask_commit(repository: str, revision: str | None) -> str:
    api = _library("data").HfApi()
    try:
        info = api.dataset_info(repository, revision=revision, timeout=_TIMEOUT_S)
    except Exception as error:  # the library and its transport raise dozens of types
        doing = "is no file or folder here, and the Hub cannot be asked for a data set of that name"
        raise explain(error, str(HubName(repository, revision)), doing) from error
    return str(info.sha)


def _library(extra: str) -> Any:
    try:
        import huggingface_hub  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("huggingface_hub", extra) from error
    return huggingface_hub


def open_stream(source: str) -> Iterator[pa.RecordBatch]:
    """Read a data set's rows as they come, in the order of its files; nothing is kept on disk.

    Args:
        source: see `parse_name`; read at the commit that it is pinned to.

    Yields:
        Record batches of one schema, the set's own columns.

    Raises:
        DataError: see `pin`; also when the set has several splits or configurations and none is
            named, or cannot be read.
        MissingExtraError: `datasets` is not installed.
    """
    try:
        import datasets  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("datasets", "data") from error
    name = pin(source)
    rows = 0
    try:
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
                raise DataError(f"{source} has splits {sorted(loaded)}: name one, as {first}")
            loaded = next(iter(loaded.values()))
        for table in loaded.with_format("arrow").iter(batch_size=_ROWS):
            for batch in table.replace_schema_metadata(None).to_batches():
                rows += batch.num_rows
                yield batch
    except DataError:
        raise
    except Exception as error:  # the library raises dozens of types
        after = f" after row {rows:,}" if rows else ""
        raise explain(error, source, f"cannot be read from the Hub{after}") from error


def explain(error: Exception, source: str, doing: str, noun: Noun = "data set") -> DataError:
    """Say in one sentence what an error of the Hub's libraries means and what to do.

    `doing` says what went wrong with the source, as "cannot be read".
    """
    from huggingface_hub import errors  # noqa: PLC0415

    cause: BaseException | None = error
    while cause is not None:
        # Gated before not found, of which it is a kind; datasets has its own gated error.
        if isinstance(cause, errors.GatedRepoError) or "a gated dataset" in str(cause):
            return DataError(
                f"{source} is gated: accept its terms on its page on the Hub, then {SIGN_IN}"
            )
        if isinstance(cause, errors.RevisionNotFoundError):
            return DataError(f"{source}: no such revision: see its commits on the Hub")
        if isinstance(cause, errors.RepositoryNotFoundError):
            return DataError(
                f"{source}: there is no such file here, and no {noun} of that name on the Hub "
                f"that you may read: check the name or the path; if it is private, {SIGN_IN}"
            )
        cause = cause.__cause__ or cause.__context__
    return DataError(
        f"{source} {doing} ({type(error).__name__}: {error}): check the name "
        f"({_HOW_TO_WRITE[noun]}) and the network; where access was refused, {SIGN_IN}"
    )


def fetch_model(name: str, *, with_code: bool = False) -> Path:
    """Bring a model from the Hub into the local cache: config, tokenizer and safetensors only.

    Args:
        name: `owner/name[@revision]`.
        with_code: its Python files too.

    Raises:
        DataError: no such model or revision, one that needs an account, or the Hub cannot be
            reached and the cache does not hold it.
    """
    repository, _, revision = name.partition("@")
    patterns = [*_MODEL_FILES, *(["*.py"] if with_code else [])]
    library = _library("models")
    try:
        return Path(
            library.snapshot_download(
                repository, revision=revision or None, allow_patterns=patterns
            )
        )
    except Exception as error:  # the client raises dozens of types
        raise explain(error, name, "cannot be fetched from the Hub", "model") from error


def check_token() -> None:
    """Refuse to start what has to write on the Hub later, where there is no token."""
    if _library("data").get_token() is None:
        raise ConfigError(f"there is no token for the Hub: {SIGN_IN}, with the right to write")


def replace_files(
    name: str,
    files: Mapping[str, Path],
    noun: Noun,
    *,
    private: bool,
    is_ours: Callable[[str], bool],
) -> str:
    """Make a data set or a model on the Hub, or replace its files, in one commit.

    Args:
        name: owner/name.
        files: what it is to hold, by the path there.
        noun: what it is.
        private: make it private.
        is_ours: whether a path there is one that we write; it is deleted when it is not among
            `files`, since it would be read with the new ones.

    Returns:
        The commit's address.

    Raises:
        ConfigError: there is no token, or it is public and `private` is true.
        DataError: the Hub refuses or cannot be reached.
    """
    check_token()
    library, kind = _library("data"), noun.replace(" ", "")
    api = library.HfApi()
    try:
        api.create_repo(name, repo_type=kind, private=private, exist_ok=True)
        before = api.repo_info(name, repo_type=kind)
        if private and not before.private:
            raise ConfigError(
                f"{name} is public on the Hub, and private is true: make it private there, or "
                "set private (of a model, hub_private_repo) to false"
            )
        there = [sibling.rfilename for sibling in before.siblings or []]
        add = [library.CommitOperationAdd(path, file) for path, file in files.items()]
        stale = [path for path in there if is_ours(path) and path not in files]
        commit = api.create_commit(
            name,
            [*add, *map(library.CommitOperationDelete, stale)],
            commit_message="Files and card written by LitBench",
            repo_type=kind,
            # Nobody else's change since we looked is lost.
            parent_commit=before.sha,
        )
    except ConfigError:
        raise
    except Exception as error:  # the library and its transport raise dozens of types
        raise explain(error, name, "cannot be pushed to the Hub", noun) from error
    return str(commit.commit_url)
