"""Answers of models on disk: what one depends on, and where it is kept.

An answer is one line of a JSON Lines file, appended in one write as soon as it is there, and named
by everything that it depends on: the model, the sampling and the whole question. So a run can be
killed at random, a config can change and change back, files from several machines can be put into
one folder, and no stored answer is asked for again. What a kill can lose is what was under way, one
answer for each connection.
"""

import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self

from litbench.artifact import file_digest
from litbench.config import as_plain
from litbench.errors import DataError
from litbench.text import digest

Outcome = Literal["answered", "refused", "cut", "error"]
# A text, or a conversation as pairs of a role (system, user or assistant) and a text.
Question = str | Sequence[tuple[str, str]]

# Providers of inspect-ai whose model may be a folder; to all others a folder is only a name.
_LOCAL_PROVIDERS = ("hf", "sglang", "vllm", "vllm-completions")


@dataclass
class Sampling:
    """What an answer depends on besides the question and the model; null leaves it to the model.

    Attributes:
        temperature: 0 takes the likeliest token; some reasoning models accept null only.
        max_tokens: most tokens of an answer; reasoning models spend their thoughts from them.
        top_p: share of probability to draw from.
        seed: of the draws, where the provider takes one.
        reasoning_effort: such as low or high, for models that have it.
        top_logprobs: how many of the likeliest first tokens to ask for, with their probabilities;
            most providers that give any give at most 20.
        extra_body: further keys of the request, as the provider names them.
    """

    temperature: float | None = 0.0
    max_tokens: int | None = 1024
    top_p: float | None = None
    seed: int | None = None
    reasoning_effort: str | None = None
    top_logprobs: int | None = None
    extra_body: dict[str, Any] | None = None


@dataclass(frozen=True)
class Answer:
    """What came back for one question.

    Attributes:
        outcome: answered, refused, cut (at `max_tokens`, or the question was too long) or error.
        text: what the model wrote, without its hidden reasoning; empty after an error.
        detail: what a refusal or an error said of itself.
        input_tokens: tokens read, those from a cache too.
        cached_tokens: those of them that came from the provider's prompt cache.
        output_tokens: tokens written, hidden reasoning too.
        seconds: of the request that was answered.
        model: the name that the provider gives itself.
        asked_utc: when the answer was there, in seconds since 1970.
        first_token: natural logarithms of the probabilities of the likeliest first tokens; null
            where they were not asked for or not given.
        batched: whether it was asked for in a batch, at the price of one.
    """

    outcome: Outcome
    text: str = ""
    detail: str | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    seconds: float | None = None
    model: str | None = None
    asked_utc: float | None = None
    first_token: dict[str, float] | None = None
    batched: bool = False


class AnswerStore:
    """Answers on disk, by key: every `*.jsonl` of a folder is read, one of them is written.

    Memory holds where each answer lies, not the answers.

    Attributes:
        folder: where the files lie.
        unreadable: lines that hold no answer, such as one that a power cut has left torn.

    Args:
        folder: where the files lie; made when it is not there.
        name: the file to write. Programs that work at the same time, such as shards, need a name
            each; what the others wrote is read when the store is opened.
        read_only: nothing will be written, and nothing is made.
    """

    def __init__(self, folder: Path, name: str = "answers", *, read_only: bool = False) -> None:
        self.folder = folder
        self.unreadable = 0
        self._path = folder / f"{name}.jsonl"
        # Of each key the file that holds its answer, and where its line starts there.
        self._places: dict[str, tuple[Path, int]] = {}
        self._failed: dict[str, list[Answer]] = {}
        self._files: dict[Path, BinaryIO] = {}
        self._file: BinaryIO | None = None
        if not read_only:
            self._file = self._open()
        try:
            for path in sorted(folder.glob("*.jsonl")):
                self._read(path)
        except OSError as error:
            self.close()
            raise DataError(f"cannot read the answers in {folder}: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def close(self) -> None:
        """Let another program write."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    def get(self, key: str) -> Answer | None:
        """The answer stored under a key, if any.

        Raises:
            DataError: its file cannot be read any more.
        """
        if key not in self._places:
            return None
        path, start = self._places[key]
        try:
            if path not in self._files:
                self._files[path] = path.open("rb")
            file = self._files[path]
            file.seek(start)
            _, answer = _parse(file.readline())
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path} has changed while it was read ({error}): run the same command again"
            ) from error
        return answer

    def billed(self, key: str) -> list[Answer]:
        """Everything that was paid for under a key: failed answers, and the answer itself."""
        answer = self.get(key)
        return [*self._failed.get(key, []), *([] if answer is None else [answer])]

    def put(self, key: str, answer: Answer) -> None:
        """Keep an answer; when this returns, killing the program cannot lose it.

        Of an error its cost is kept: the key stays without an answer.

        Raises:
            DataError: the disk is full or the file cannot be written.
        """
        assert self._file is not None, "the store was opened to be written"
        line = json.dumps({"key": key, **as_plain(answer)}, ensure_ascii=True) + "\n"
        try:
            start = self._file.seek(0, os.SEEK_END)
            self._file.write(line.encode("ascii"))
        except OSError as error:
            raise DataError(
                f"cannot write {self._path}: {error}; free space and run the same command again"
            ) from error
        self._index(key, answer, self._path, start)

    def _index(self, key: str, answer: Answer, path: Path, start: int) -> None:
        if answer.outcome == "error":
            self._failed.setdefault(key, []).append(answer)
        else:
            self._places[key] = (path, start)

    def _open(self) -> BinaryIO:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # Unbuffered: a line goes out in one write.
            file = self._path.open("a+b", buffering=0)
        except OSError as error:
            raise DataError(
                f"cannot write {self._path}: {error.strerror}; choose another folder"
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise DataError(
                f"{self._path} is being written by another program: wait until it is done, or "
                "stop it"
            ) from error
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                # A full disk can tear a line. The next one must not be joined to it.
                file.write(b"\n")
        return file

    def _read(self, path: Path) -> None:
        start = 0
        with path.open("rb") as file:
            for line in file:
                if line.strip():
                    try:
                        self._index(*_parse(line), path, start)
                    except (ValueError, KeyError, TypeError, AttributeError):
                        self.unreadable += 1
                start += len(line)


def _parse(line: bytes) -> tuple[str, Answer]:
    content: dict[str, Any] = json.loads(line)
    key: str = content.pop("key")
    return key, Answer(**content)


@cache
def identity(model: str) -> str:
    """What stands for a model in keys and manifests: its name, or the content of its folder."""
    folder = local_folder(model)
    return model if folder is None else f"{model.partition('/')[0]}/{file_digest(folder)}"


def local_folder(model: str) -> Path | None:
    """The folder of a model on this machine, as in `hf/FOLDER`; None for any other name.

    A provider on the network never has one, even where a folder is called like its model, such as
    the very folder that the run writes.
    """
    provider, _, name = model.partition("/")
    if provider not in _LOCAL_PROVIDERS or not name:
        return None
    folder = Path(name)
    return folder if folder.is_dir() else None


def keys_of(
    model: str, questions: Sequence[Question], sampling: Sampling, sample: int | Sequence[int] = 0
) -> list[str]:
    """The names of the answers to some questions; of all questions sample by sample.

    An option that is null has no part in the name, so an option added later renames nothing.

    Args:
        model: see the module.
        questions: texts or conversations.
        sampling: see `Sampling`.
        sample: another number asks the same question again, for several answers to it; or several
            numbers.
    """
    given = {name: value for name, value in as_plain(sampling).items() if value is not None}
    about = (identity(model), json.dumps(given, sort_keys=True))
    samples = [sample] if isinstance(sample, int) else sample
    contents = [
        ("answer", question)
        if isinstance(question, str)
        else ("conversation", json.dumps([list(turn) for turn in question]))
        for question in questions
    ]
    return [digest(kind, *about, one, content) for one in samples for kind, content in contents]


def text_of(question: Question) -> str:
    """All texts of a question."""
    return question if isinstance(question, str) else "\n".join(text for _, text in question)
