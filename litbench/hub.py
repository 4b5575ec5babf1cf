"""Data sets on the Hugging Face Hub: their names, the commit a name stands for, their rows.

A data set is named `owner/name[@revision][:split]`, or `:configuration/split` where it has several
configurations. Whoever owns it can change what a name stands for at any time, so a name is first
pinned to the commit it means now; that commit is what is read and what the manifest names.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import pyarrow as pa

from litbench.errors import ConfigError, DataError, MissingExtraError

_NAME = re.compile(
    r"(?P<repository>\w[\w.-]{0,95}/\w[\w.-]{0,95})"
    r"(?:@(?P<revision>\w[\w./-]{0,199}))?"
    r"(?::(?:(?P<configuration>[\w.-]{1,100})/)?(?P<split>\w[\w.-]{0,99}))?",
    re.ASCII,
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
# A path to a file that is not there yet is no name, though names may hold dots as well.
_FILE_ENDINGS = (".parquet", ".jsonl", ".ndjson", ".csv", ".json", ".zst", ".gz", ".txt", ".arrow")
_SECONDS = 30
_MODEL_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
# About what one row group of a published set holds; rows of stories, so tens of megabytes.
_ROWS = 4_096

# How names of what lies there are written.
_FORMS = {
    "data set": "owner/name, owner/name@revision, owner/name:split or "
    "owner/name:configuration/split",
    "model": "owner/name or owner/name@revision",
}

SIGN_IN = "sign in with `hf auth login` or export HF_TOKEN"


@dataclass(frozen=True)
class HubName:
    """A data set's name on the Hub, taken apart.

    Attributes:
        repository: `owner/name`.
        revision: branch, tag or commit; null for the main branch.
        configuration: one of the set's configurations; null for its only or default one.
        split: train, test or another; null for the only one.
    """

    repository: str
    revision: str | None = None
    configuration: str | None = None
    split: str | None = None

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a whole commit, which always means the same bytes."""
        return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None

    def at(self, revision: str) -> "HubName":
        """The same data set at another revision."""
        return HubName(self.repository, revision, self.configuration, self.split)

    def __str__(self) -> str:
        """The name as a config gives it."""
        part = "/".join(part for part in (self.configuration, self.split) if part is not None)
        revision = "" if self.revision is None else f"@{self.revision}"
        return f"{self.repository}{revision}{part and ':'}{part}"


def is_name(source: str | Path) -> bool:
    """Whether a source is named as a data set on the Hub is; never true of something local."""
    path = Path(source)
    found = _NAME.fullmatch(str(source))
    if found is None or found["repository"].lower().endswith(_FILE_ENDINGS):
        return False
    return not path.exists()


def parse_name(source: str | Path, noun: str = "data set") -> HubName:
    """Take `owner/name[@revision][:split]` apart.

    Args:
        source: the name.
        noun: what it should be a name of, for the message.

    Raises:
        DataError: the text is no such name.
    """
    found = _NAME.fullmatch(str(source))
    if found is None:
        raise DataError(
            f"{str(source)!r:.120} is no name of a {noun} on the Hub: write {_FORMS[noun]}"
        )
    return HubName(**found.groupdict())


def pinned_revision(name: str) -> str:
    """The commit that a name stands for now; asked of the Hub once per process.

    Args:
        name: see `parse_name`. A name with a whole commit (40 hexadecimal digits) is pinned
            already, and the Hub is not asked.

    Raises:
        DataError: no such data set or revision, one that needs an account, or the Hub cannot be
            reached.
        MissingExtraError: `huggingface_hub` is not installed.
    """
    parsed = parse_name(name)
    if parsed.is_pinned:
        assert parsed.revision is not None
        return parsed.revision
    return _ask_commit(parsed.repository, parsed.revision)


@cache
def _ask_commit(repository: str, revision: str | None) -> str:
    name = str(HubName(repository, revision))
    try:
        import huggingface_hub  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("huggingface_hub", "data") from error
    try:
        info = huggingface_hub.HfApi().dataset_info(repository, revision=revision, timeout=_SECONDS)
    except Exception as error:  # the library and its transport raise dozens of types
        doing = "is no file or folder here, and the Hub cannot be asked for a data set of that name"
        raise explain(error, name, doing) from error
    if not isinstance(info.sha, str) or _COMMIT.fullmatch(info.sha) is None:
        raise DataError(
            f"the Hub names no commit for {name} ({info.sha!r:.60}): give one yourself, as "
            f"{repository}@COMMIT"
        )
    return info.sha


def pin(name: str) -> HubName:
    """The same data set at the commit that its name stands for now; see `pinned_revision`."""
    return parse_name(name).at(pinned_revision(name))


def open_stream(source: str) -> Iterator[pa.RecordBatch]:
    """Read a data set's rows from the Hub as they come, in the order of its files.

    Nothing is kept on disk, and only some thousand rows at a time in memory.

    Args:
        source: see `parse_name`; read at the commit that it is pinned to.

    Yields:
        Record batches of one schema, the set's own columns.

    Raises:
        DataError: see `pinned_revision`; also when the set has several splits or configurations
            and none is named, or cannot be read.
        MissingExtraError: `datasets` is not installed.
    """
    try:
        import datasets  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("datasets", "data") from error
    name = pin(source)
    try:
        loaded = datasets.load_dataset(
            name.repository,
            name.configuration,
            split=name.split,
            revision=name.revision,
            streaming=True,
        )
    except Exception as error:  # the library raises dozens of types
        raise explain(error, source, "cannot be read from the Hub") from error
    if isinstance(loaded, dict):
        if len(loaded) > 1:
            given = parse_name(source)
            first = HubName(given.repository, given.revision, given.configuration, min(loaded))
            raise DataError(f"{source} has splits {sorted(loaded)}: name one, as {first}")
        loaded = next(iter(loaded.values()))
    rows = 0
    try:
        for table in loaded.with_format("arrow").iter(batch_size=_ROWS):
            for batch in table.replace_schema_metadata(None).to_batches():
                rows += batch.num_rows
                yield batch
    except Exception as error:
        raise explain(error, source, f"cannot be read from the Hub after row {rows:,}") from error


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def explain(error: Exception, source: str, doing: str, noun: str = "data set") -> DataError:
    """Say in one sentence what an error of the Hub's libraries means and what to do.

    Args:
        error: what `huggingface_hub` or `datasets` raised; what caused it is looked at too.
        source: its name on the Hub.
        doing: what went wrong with it, as "cannot be read".
        noun: what it is: data set or model.
    """
    from huggingface_hub import errors  # noqa: PLC0415

    repository = parse_name(source, noun).repository
    for cause in _chain(error):
        if isinstance(cause, errors.OfflineModeIsEnabled) or "ffline mode" in str(cause):
            return DataError(
                f"{source} {doing}: HF_HUB_OFFLINE or HF_DATASETS_OFFLINE is set: unset it, or "
                "name a file that you have here instead"
            )
        # Gated before not found, of which it is a kind.
        if isinstance(cause, errors.GatedRepoError) or "a gated dataset" in str(cause):
            return DataError(
                f"{source} is gated: accept its terms on its page on the Hub, then {SIGN_IN}"
            )
        if isinstance(cause, errors.RevisionNotFoundError):
            return DataError(
                f"{source}: {repository} has no such revision: see its commits on the Hub"
            )
        if isinstance(cause, errors.RepositoryNotFoundError):
            return DataError(
                f"{source}: there is no such file here, and no {noun} {repository} on the Hub "
                f"that you may read: check the name or the path; if it is private, {SIGN_IN}"
            )
        status = getattr(getattr(cause, "response", None), "status_code", None)
        if status in (401, 403):
            return DataError(f"{source}: the Hub refused access (status {status}): {SIGN_IN}")
        if status == 429:
            return DataError(
                f"{source} {doing}: the Hub says too many requests (status 429): wait some "
                f"minutes and run the same command again, or {SIGN_IN}"
            )
    return DataError(
        f"{source} {doing} ({type(error).__name__}: {error}): check the name ({_FORMS[noun]}), the "
        "network and your access"
    )


def fetch_model(name: str, *, with_code: bool = False) -> Path:
    """Bring a model from the Hub into the local cache: config, tokenizer and safetensors only.

    Args:
        name: `owner/name[@revision]`.
        with_code: its Python files too.

    Raises:
        DataError: no such model or revision, one that needs an account, or the Hub cannot be
            reached and the cache does not hold it.
        MissingExtraError: `huggingface_hub` is not installed.
    """
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("huggingface_hub", "models") from error
    repository, _, revision = name.partition("@")
    try:
        return Path(
            snapshot_download(
                repository,
                revision=revision or None,
                allow_patterns=[*_MODEL_FILES, *(["*.py"] if with_code else [])],
            )
        )
    except Exception as error:  # the client raises dozens of types
        raise DataError(
            f"cannot fetch the model {name} ({type(error).__name__}: {error}): check the name and "
            f"the network; {SIGN_IN} where it is gated"
        ) from error


def replace_files(
    name: str,
    files: Mapping[str, Path],
    noun: Literal["data set", "model"],
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
        is_ours: whether a path there is one that we write. Such a file that is not among `files`
            goes: it would be read with the new ones.

    Returns:
        The commit's address.

    Raises:
        ConfigError: there is no token, or it is public and `private` is true.
        DataError: the Hub refuses or cannot be reached.
        MissingExtraError: `huggingface_hub` is not installed.
    """
    extra, written = {"data set": ("data", "Pairs"), "model": ("models", "Model")}[noun]
    try:
        import huggingface_hub  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("huggingface_hub", extra) from error
    if huggingface_hub.get_token() is None:
        raise ConfigError(f"there is no token for the Hub: {SIGN_IN}, with the right to write")
    api, kind = huggingface_hub.HfApi(), noun.replace(" ", "")
    try:
        api.create_repo(name, repo_type=kind, private=private, exist_ok=True)
        there = api.repo_info(name, repo_type=kind)
        if private and not there.private:
            raise ConfigError(
                f"{name} is public on the Hub, and private is true: make it private there, or "
                "say private: false"
            )
        stale = [
            sibling.rfilename
            for sibling in there.siblings or []
            if is_ours(sibling.rfilename) and sibling.rfilename not in files
        ]
        commit = api.create_commit(
            name,
            [
                *(huggingface_hub.CommitOperationAdd(path, file) for path, file in files.items()),
                *(huggingface_hub.CommitOperationDelete(path) for path in stale),
            ],
            commit_message=f"{written} and card written by LitBench",
            repo_type=kind,
            # Nobody else's change since we looked is lost.
            parent_commit=there.sha,
        )
    except ConfigError:
        raise
    except Exception as error:  # the library and its transport raise dozens of types
        raise explain(error, name, "cannot be pushed to the Hub", noun) from error
    return str(commit.commit_url)
