"""Stored answers of models, so that no question is paid for twice.

An answer is one line of a JSON Lines file, appended in one write, under a hash of all that it
depends on: model, sampling and question. A run can be killed at any moment, and files of several
machines can be put into one folder.
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

# Providers of inspect-ai whose model may be a folder on this machine.
_LOCAL_PROVIDERS = ("hf", "sglang", "vllm", "vllm-completions")


@dataclass
class Sampling:
    """What an answer depends on besides the question and the model; null leaves it to the model.

    Some reasoning models accept no temperature but null; their thoughts count as `max_tokens`.
    `extra_body` holds further keys of the request, as the provider names them.
    """

    temperature: float | None = 0.0
    max_tokens: int | None = 1024
    top_p: float | None = None
    seed: int | None = None
    reasoning_effort: str | None = None
    extra_body: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one question.

    Attributes:
        outcome: `cut` at `max_tokens`, or where the question was too long.
        text: without hidden reasoning; empty after an error.
        detail: the provider's message about a refusal or an error.
        input_tokens: those read from the provider's prompt cache included.
        output_tokens: hidden reasoning included.
        seconds: of the request that was answered.
        model: the name that the provider reports.
        batched: whether it was asked for, and is billed, in a batch.
    """

    outcome: Outcome
    text: str = ""
    detail: str | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    seconds: float | None = None
    model: str | None = None
    batched: bool = False


class AnswerStore:
    """Answers by key: every `*.jsonl` of a folder is read, one of them is written.

    Attributes:
        unreadable: lines that hold no answer, such as one that a full disk has torn.

    Args:
        folder: created when missing, unless `read_only`.
        name: the file to write; programs that run at the same time need a name each.
    """

    def __init__(self, folder: Path, name: str = "answers", *, read_only: bool = False) -> None:
        self.folder = folder
        self.unreadable = 0
        self._path = folder / f"{name}.jsonl"
        self._answers: dict[str, Answer] = {}
        self._failed: dict[str, list[Answer]] = {}
        self._file: BinaryIO | None = None
        try:
            if not read_only:
                self._open()
            for path in sorted(folder.glob("*.jsonl")):
                with path.open("rb") as file:
                    for line in filter(bytes.strip, file):
                        self._read(line)
        except OSError as error:
            self.close()
            busy = ", as another program writes it" if isinstance(error, BlockingIOError) else ""
            raise DataError(f"cannot open {self._path}{busy}: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._answers)

    def __contains__(self, key: str) -> bool:
        return key in self._answers

    def close(self) -> None:
        """Let another program write."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def get(self, key: str) -> Answer | None:
        """The answer stored under a key, if any."""
        return self._answers.get(key)

    def billed(self, key: str) -> list[Answer]:
        """Everything that was paid for under a key: failed attempts, and the answer itself."""
        answer = self._answers.get(key)
        return [*self._failed.get(key, []), *([] if answer is None else [answer])]

    def put(self, key: str, answer: Answer) -> None:
        """Store an answer, or the cost of an error; then killing the program cannot lose it."""
        assert self._file is not None, "the store was opened to be written"
        line = json.dumps({"key": key, **as_plain(answer)}) + "\n"
        try:
            self._file.write(line.encode("ascii"))
        except OSError as error:
            raise DataError(
                f"cannot write {self._path}: {error}; free space and run the same command again"
            ) from error
        self._add(key, answer)

    def _open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        # Unbuffered: a line goes out in one write.
        self._file = file = self._path.open("a+b", buffering=0)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                # A full disk can tear a line. The next one must not be joined to it.
                file.write(b"\n")

    def _read(self, line: bytes) -> None:
        try:
            content = json.loads(line)
            known = {name: content[name] for name in Answer.__slots__ if name in content}
            self._add(content["key"], Answer(**known))
        except (ValueError, KeyError, TypeError, AttributeError):
            self.unreadable += 1

    def _add(self, key: str, answer: Answer) -> None:
        if answer.outcome == "error":
            self._failed.setdefault(key, []).append(answer)
        else:
            self._answers[key] = answer


@cache
def identity(model: str) -> str:
    """What stands for a model in keys and manifests: its name, or the content of its folder."""
    folder = local_folder(model)
    return model if folder is None else f"{model.partition('/')[0]}/{file_digest(folder)}"


def local_folder(model: str) -> Path | None:
    """The folder of a model on this machine, as in `hf/FOLDER`; None for any other name.

    A provider on the network has none, even where a folder has the name of its model.
    """
    provider, _, name = model.partition("/")
    is_local = provider in _LOCAL_PROVIDERS and name and Path(name).is_dir()
    return Path(name) if is_local else None


def keys_of(
    model: str, questions: Sequence[Question], sampling: Sampling, sample: int | Sequence[int] = 0
) -> list[str]:
    """The keys of the answers to some questions; of all questions sample by sample.

    Options that are null have no part in a key, so a new option changes none. Another `sample`
    asks the same question again.
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
