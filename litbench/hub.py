"""The Hugging Face Hub: names of data sets and models there, reading and replacing their files.

A data set is named `owner/name[@revision][:split]`, or `:configuration/split` where it has several
configurations. A name is first pinned to the commit that it means now; that commit is read and
stands in the manifest.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import pyarrow as pa

from litbench.errors import ConfigError, DataError, LitBenchError, MissingExtraError

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
# About one row group of a published set: tens of megabytes of stories.
_ROWS = 4_096
_SIGN_IN = "sign in with `hf auth login` or export HF_TOKEN"


@dataclass(frozen=True)
class HubName:
    """A data set's or model's name on the Hub, taken apart; None for what is not given."""

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
    is_file = found is None or found["repository"].lower().endswith(_FILE_ENDINGS)
    return not is_file and not Path(source).exists()


def parse_name(source: str | Path) -> HubName:
    """Take `owner/name[@revision][:split]` apart; DataError where the text is no such name."""
    found = _NAME.fullmatch(str(source))
    if found is None:
        raise DataError(
            f"{str(source)!r:.120} is no name on the Hub: write owner/name, owner/name@revision, "
            "owner/name:split or owner/name:configuration/split"
        )
    return HubName(**found.groupdict())


def pin(source: str | Path) -> HubName:
    """The same data set at the commit that its name stands for now, asked once per process."""
    name = parse_name(source)
    if _COMMIT.fullmatch(name.revision or ""):
        return name
    return replace(name, revision=_ask_commit(name.repository, name.revision))


@cache
def _ask_commit(repository: str, revision: str | None) -> str:
    with _asking_for(f"{HubName(repository, revision)} is no file here, and"):
        from huggingface_hub import HfApi  # noqa: PLC0415

        info = HfApi().dataset_info(repository, revision=revision, timeout=30)
    return str(info.sha)


@contextlib.contextmanager
def _asking_for(what: str) -> Iterator[None]:
    """One error for the dozens of types that the Hub's libraries and their transport raise."""
    try:
        yield
    except LitBenchError:
        raise
    except ModuleNotFoundError as error:
        raise MissingExtraError(str(error.name), "data") from error
    except Exception as error:
        raise DataError(
            f"{what} cannot be reached on the Hub ({type(error).__name__}: {error}): check the "
            f"name and the network; if it is private or gated, accept its terms and {_SIGN_IN}"
        ) from error


def open_stream(source: str) -> Iterator[pa.RecordBatch]:
    """Stream a data set's own columns, in the order of its files; nothing is kept on disk."""
    name = pin(source)
    with _asking_for(source):
        import datasets  # noqa: PLC0415

        loaded = datasets.load_dataset(
            name.repository, name.configuration, split=name.split, revision=name.revision,
            streaming=True,
        )  # fmt: skip
        if isinstance(loaded, dict):
            if len(loaded) > 1:
                first = replace(parse_name(source), split=min(loaded))
                raise DataError(f"{source} has splits {sorted(loaded)}: name one, as {first}")
            loaded = next(iter(loaded.values()))
        for table in loaded.with_format("arrow").iter(batch_size=_ROWS):
            yield from table.replace_schema_metadata(None).to_batches()


def fetch_model(name: str, *, with_code: bool = False) -> Path:
    """Bring config, tokenizer and safetensors (and code) of a model into the local cache."""
    repository, _, revision = name.partition("@")
    patterns = [*_MODEL_FILES, *(["*.py"] if with_code else [])]
    with _asking_for(f"model {name}"):
        from huggingface_hub import snapshot_download as fetch  # noqa: PLC0415

        folder = fetch(repository, revision=revision or None, allow_patterns=patterns)
    return Path(folder)


def check_token() -> None:
    """Refuse to start what has to write on the Hub later, where there is no token."""
    with _asking_for("your account"):
        from huggingface_hub import get_token  # noqa: PLC0415

        if get_token() is None:
            raise ConfigError(f"there is no token for the Hub: {_SIGN_IN}, with the right to write")


def replace_files(
    name: str,
    files: Mapping[str, Path],
    kind: Literal["dataset", "model"],
    *,
    private: bool,
    is_ours: Callable[[str], bool],
) -> str:
    """Make a data set or a model on the Hub, or replace its files, in one commit.

    `files` are by their path there; a file there that `is_ours` and is not among them is deleted.
    With `private`, pushing to a public one is an error. Returns the commit's address.
    """
    check_token()
    with _asking_for(name):
        import huggingface_hub as library  # noqa: PLC0415

        api = library.HfApi()
        api.create_repo(name, repo_type=kind, private=private, exist_ok=True)
        before = api.repo_info(name, repo_type=kind)
        if private and not before.private:
            raise ConfigError(f"{name} is public on the Hub: make it private there, or push with "
                              "private (of a model, hub_private_repo) false")  # fmt: skip
        there = [sibling.rfilename for sibling in before.siblings or []]
        stale = [path for path in there if is_ours(path) and path not in files]
        changes = [library.CommitOperationAdd(path, file) for path, file in files.items()]
        changes += map(library.CommitOperationDelete, stale)
        message = "Files and card written by LitBench"
        # With the parent, nobody else's change since we looked is lost.
        commit = api.create_commit(
            name, changes, commit_message=message, repo_type=kind, parent_commit=before.sha
        )
    return str(commit.commit_url)
