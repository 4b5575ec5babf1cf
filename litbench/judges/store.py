"""Stored answers of models, so that no question is paid for twice.

Answers are read from disk when they are needed, so that memory does not grow with their length.
Every answer is one line of a JSON Lines file, appended in one write. Its key is a hash of model,
sampling options and question. A line without a matching digest is damaged. A run can be killed at
any moment, and files written on several machines can be put into one folder.
"""

import fcntl
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self

from litbench.config import as_plain
from litbench.errors import DataError
from litbench.store import file_digest, fingerprint
from litbench.text import digest, valid_unicode

Outcome = Literal["answered", "refused", "cut", "error"]
# A text, or a conversation as pairs of a role (system, user or assistant) and a text.
Question = str | Sequence[tuple[str, str]]

# Key of a line's digest.
_DIGEST = "sha256"
# Errors of `_parse`.
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
# inspect-ai providers whose model may be a local folder.
_LOCAL_PROVIDERS = ("hf", "sglang", "vllm", "vllm-completions")


@dataclass
class Sampling:
    """Generation options of inspect-ai; null uses the default of the model.

    Some reasoning models require `temperature: null`, and hidden reasoning counts towards
    `max_tokens`. `extra_body` holds further request keys, as the provider names them.
    """

    temperature: float | None = 0.0
    max_tokens: int | None = 1024
    top_p: float | None = None
    seed: int | None = None
    reasoning_effort: str | None = None
    extra_body: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's answer to one question; lone surrogates in its texts are replaced.

    Attributes:
        outcome: `cut` if truncated at `max_tokens`, or if the question was too long.
        text: the answer without hidden reasoning; empty after an error.
        detail: the provider's message about a refusal or an error.
        input_tokens: tokens read, including those from the provider's prompt cache.
        output_tokens: tokens written, including hidden reasoning.
        seconds: duration of the successful request.
        model: model name reported by the provider.
        batched: whether the question was sent, and is billed, in a batch.
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

    def __post_init__(self) -> None:
        for name in ("text", "detail", "model"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, valid_unicode(value))


class AnswerStore:
    """Answers by key: reads every `*.jsonl` of a folder and appends to one of them.

    Attributes:
        unreadable: number of lines that are truncated or damaged; their questions are asked again.

    Args:
        folder: created if missing, unless `read_only`.
        name: name of the file to write; programs that run at the same time need different names.
    """

    def __init__(self, folder: Path, name: str = "answers", *, read_only: bool = False) -> None:
        self.folder = folder
        self.unreadable = 0
        self._path = folder / f"{name}.jsonl"
        # Where each answer is stored: file and offset.
        self._answers: dict[str, tuple[Path, int]] = {}
        self._failed: dict[str, list[Answer]] = {}
        self._file: BinaryIO | None = None
        try:
            paths = sorted(folder.glob("*.jsonl"))
            if others := [path for path in paths if not path.is_file()]:
                raise DataError(f"{others[0]} is not a file: move it out of the stored answers")
            if not read_only:
                self._open()
            for path in paths:
                self._read_file(path)
        except BlockingIOError as error:
            self.close()
            raise DataError(
                f"{self._path}: another program is writing it: wait until that program ends"
            ) from error
        except OSError as error:
            self.close()
            raise DataError(
                f"cannot open the answers in {folder}: {error}: choose another folder, or make it "
                "readable and writable"
            ) from error
        if self.unreadable and not read_only:
            damage = f"{self.unreadable:,} lines are damaged: their questions are asked again"
            print(f"{folder}: {damage}", file=sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._answers)

    def __contains__(self, key: str) -> bool:
        return key in self._answers

    def close(self) -> None:
        """Close the file and release its lock."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def get(self, key: str) -> Answer | None:
        """The answer stored under a key; None if there is none."""
        if key not in self._answers:
            return None
        path, offset = self._answers[key]
        try:
            with path.open("rb") as file:
                file.seek(offset)
                return _parse(file.readline())[1]
        except (OSError, *_DAMAGE) as error:
            raise DataError(
                f"{path} was changed while it was read ({error}): run the same command again"
            ) from error

    def billed(self, key: str) -> list[Answer]:
        """All billed attempts of a key: the failed ones, then the answer."""
        answer = self.get(key)
        return [*self._failed.get(key, []), *([] if answer is None else [answer])]

    def put(self, key: str, answer: Answer) -> None:
        """Append an answer, or the cost of an error; on return it survives a killed program."""
        assert self._file is not None, "the store is closed or read-only"
        content = {"key": key, **as_plain(answer)}
        line = json.dumps({**content, _DIGEST: fingerprint(content)}) + "\n"
        try:
            self._file.write(line.encode("ascii"))
        except OSError as error:
            raise DataError(
                f"cannot write {self._path}: {error}; free space and run the same command again"
            ) from error
        self._add(key, answer, self._path, self._file.tell() - len(line))

    def _open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        # Unbuffered, so that each line is one write.
        self._file = file = self._path.open("a+b", buffering=0)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                # A full disk truncated the last line: start a new one.
                file.write(b"\n")

    def _read_file(self, path: Path) -> None:
        offset = 0
        with path.open("rb") as file:
            for line in file:
                try:
                    if line.strip():
                        self._add(*_parse(line), path, offset)
                except _DAMAGE:
                    self.unreadable += 1
                offset += len(line)

    def _add(self, key: str, answer: Answer, path: Path, offset: int) -> None:
        if answer.outcome == "error":
            self._failed.setdefault(key, []).append(answer)
        else:
            self._answers[key] = (path, offset)


def _parse(line: bytes) -> tuple[str, Answer]:
    """Return the key and the answer of a line; raises one of `_DAMAGE`."""
    content = json.loads(line)
    if content.pop(_DIGEST) != fingerprint(content):
        raise ValueError("the digest does not match")
    # Earlier versions wrote keys that are ignored now.
    known = {name: content[name] for name in Answer.__slots__ if name in content}
    return content["key"], Answer(**known)


@cache
def identity(model: str) -> str:
    """Identifier of a model in keys and manifests: its name, or a hash of its local folder."""
    folder = local_folder(model)
    return model if folder is None else f"{model.partition('/')[0]}/{file_digest(folder)}"


def local_folder(model: str) -> Path | None:
    """The folder of a local model such as `hf/FOLDER`; None for any other name.

    Always None for a remote provider, even if a folder has the same name as its model.
    """
    provider, _, name = model.partition("/")
    is_local = provider in _LOCAL_PROVIDERS and name and Path(name).is_dir()
    return Path(name) if is_local else None


def keys_of(
    model: str, questions: Sequence[Question], sampling: Sampling, sample: int | Sequence[int] = 0
) -> list[str]:
    """The keys of the answers to questions: all questions of the first sample, then the next.

    Null options are not part of the key, so that a new option leaves existing keys unchanged. A
    different `sample` gives a different key for the same question.
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
    return [digest(kind, *about, number, text) for number in samples for kind, text in contents]


def text_of(question: Question) -> str:
    """The text of a question; the turns of a conversation are joined by line breaks."""
    return question if isinstance(question, str) else "\n".join(text for _, text in question)


def shown_text(answer: Answer) -> str:
    """What a log shows of an answer: its text, or the provider's message."""
    return answer.text or answer.detail or ""


def file_name(name: str) -> str:
    """The name of a rater or writer as part of a file's name."""
    return re.sub(r"[^-.+=@\w]", "_", name)[:80]
