"""Stored answers of models and what they cost, so that no question is paid for twice.

Every attempt to get an answer is two lines of a JSON Lines file, each appended in one write: before
the request its reservation, and after it its settlement, which is the answer.

    {"attempt": "5f0c...", "key": "d339...", "asked": "openai/gpt-4.1", "reserved": [950, 1024],
     "batched": false}
    {the same keys, "outcome": "answered", "text": "...", "input_tokens": 512, ...}

`key` is a hash of model, sampling options and question, `asked` the `identity` of the model, and
`reserved` the tokens read and written that the attempt may cost. An attempt that was killed or
failed has no settlement: `AnswerStore.usages` charges what it reserved. A run can be killed at any
moment, and files written on several machines can be put into one folder. Answers are read from
disk when they are needed, so that memory does not grow with their length.
"""

import fcntl
import json
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self

from litbench.data.text import digest, valid_unicode
from litbench.raters.templates.parser import LONGEST_REPLY
from litbench.runs.config import as_plain
from litbench.runs.errors import DataError
from litbench.runs.outputs import file_digest

Outcome = Literal["answered", "refused", "cut", "error"]
# A text, or a conversation as pairs of a role (system, user or assistant) and a text.
Question = str | Sequence[tuple[str, str]]

# Errors of `_parse`.
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
# A higher number of tokens is no count.
_MAX_TOKENS = 100_000_000
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
    """A model's answer to one question.

    Lone surrogates in its texts are replaced. A token count that is not a possible count is null: a
    negative or absurd number, another type than an integer, or 0 for a text.

    Attributes:
        outcome: `cut` if truncated at `max_tokens` or, by us, at `LONGEST_REPLY` characters.
        text: the answer without hidden reasoning; empty after an error.
        detail: the provider's message about a refusal or an error.
        input_tokens: tokens read, including those from the provider's prompt cache.
        output_tokens: tokens written, including hidden reasoning.
        seconds: duration of the successful request.
        model: model name reported by the provider.
        batched: whether the question was sent, and is billed, in a batch.
        connections: concurrent requests when it came; None if unknown.
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
    connections: int | None = None

    def __post_init__(self) -> None:
        for name in ("text", "detail", "model"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, valid_unicode(value))
        if len(self.text) > LONGEST_REPLY:
            object.__setattr__(self, "text", self.text[:LONGEST_REPLY])
            object.__setattr__(self, "outcome", "cut")
        least = {
            "input_tokens": self.outcome in ("answered", "cut"),
            "output_tokens": bool(self.text),
        }
        for name in ("input_tokens", "cached_tokens", "output_tokens"):
            value = getattr(self, name)
            if type(value) is not int or not least.get(name, 0) <= value <= _MAX_TOKENS:
                object.__setattr__(self, name, None)


@dataclass(frozen=True)
class Attempt:
    """One request to a model, as its reservation and its settlement name it.

    Attributes:
        key: key of the question.
        asked: `identity` of the model.
        reserved: tokens that the model may read, and write.
        batched: whether the question is sent, and billed, in a batch.
        attempt: a unique name.
    """

    key: str
    asked: str
    reserved: tuple[int, int]
    batched: bool = False
    attempt: str = field(default_factory=lambda: os.urandom(8).hex())


@dataclass
class Usage:
    """Tokens that one model has used or may have used; lists are of tokens read, and written.

    Attributes:
        counted: tokens of settled attempts, as the provider counted them.
        cached: tokens read from the provider's prompt cache, part of the counted ones.
        reserved: tokens reserved by attempts without counts: under way, killed, failed without a
            word about its cost, or answered without counts.
    """

    counted: list[int] = field(default_factory=lambda: [0, 0])
    cached: int = 0
    reserved: list[int] = field(default_factory=lambda: [0, 0])


class AnswerStore:
    """Answers by key: reads every `*.jsonl` of a folder and appends to one of them.

    Attributes:
        unreadable: number of lines that are truncated or no JSON; their questions are asked again.

    Args:
        folder: created if missing, unless `read_only`.
        name: name of the file to write; programs that run at the same time need different names.

    Raises:
        DataError: the folder cannot be read or written, or another program writes the same file.
    """

    def __init__(self, folder: Path, name: str = "answers", *, read_only: bool = False) -> None:
        self.folder = folder
        self.unreadable = 0
        self._path = folder / f"{name}.jsonl"
        # Where each answer is stored: file and offset.
        self._answers: dict[str, tuple[Path, int]] = {}
        # Bytes read of each file.
        self._read: dict[Path, int] = {}
        self._usages: dict[tuple[str, bool], Usage] = defaultdict(Usage)
        # Attempts by name: reserved, and settled.
        self._reserved: set[str] = set()
        self._settled: set[str] = set()
        self._file: BinaryIO | None = None
        try:
            if not read_only:
                self._open()
            incomplete = self.refresh()
            self.unreadable += incomplete
        except BaseException:
            self.close()
            raise
        if self.unreadable and not read_only:
            problem = f"{self.unreadable:,} lines are unreadable: their questions are asked again"
            print(f"{folder}: {problem}", file=sys.stderr)

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
        if key not in self._answers:
            return None
        path, offset = self._answers[key]
        with path.open("rb") as file:
            file.seek(offset)
            return _parse(file.readline())[1]

    def usages(self, model: str) -> list[tuple[Usage, bool]]:
        """A model's usage in all runs that wrote to the folder, outside and in batches.

        The sum of both is what counts towards a limit, in dollars `Price.of_usage`. They are
        updated in place by `reserve`, `put` and `refresh`.
        """
        return [(self._usages[identity(model), batch], batch) for batch in (False, True)]

    def refresh(self) -> int:
        """Read what other programs appended to the folder since the last call.

        Returns:
            The number of files that were read and whose last line is not whole.

        Raises:
            DataError: a file cannot be read.
        """
        try:
            return sum(
                self._read_file(path)
                for path in sorted(self.folder.glob("*.jsonl"))
                if path.stat().st_size > self._read.get(path, 0)
            )
        except OSError as error:
            raise DataError(
                f"cannot read the answers in {self.folder}: {error}: make the folder readable"
            ) from error

    def reserve(self, attempt: Attempt) -> None:
        """Append a reservation; to be called before the request is sent."""
        self._append(vars(attempt))
        self._charge(attempt, None)

    def put(self, answer: Answer, attempt: Attempt) -> None:
        """Append an answer, or the cost of an error; on return it survives a killed program.

        Args:
            answer: its token counts replace the reservation of the attempt; where a count is null,
                the reservation remains charged.
            attempt: as passed to `reserve`.
        """
        offset = self._append(as_plain(answer) | vars(attempt))
        self._charge(attempt, answer)
        if answer.outcome != "error":
            self._answers[attempt.key] = (self._path, offset)

    def _append(self, content: dict[str, Any]) -> int:
        """Append a line; returns its offset."""
        assert self._file is not None, "the store is closed or read-only"
        line = json.dumps(content) + "\n"
        try:
            self._file.write(line.encode("ascii"))
        except OSError as error:
            raise DataError(
                f"cannot write {self._path}: {error}; free space and run the same command again"
            ) from error
        self._read[self._path] = self._file.tell()
        return self._read[self._path] - len(line)

    def _open(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # Unbuffered, so that each line is one write.
            self._file = file = self._path.open("a+b", buffering=0)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    # A full disk truncated the last line: start a new one.
                    file.write(b"\n")
        except BlockingIOError as error:
            raise DataError(
                f"{self._path}: another program is writing it: wait until that program ends"
            ) from error
        except OSError as error:
            raise DataError(
                f"cannot write answers to {self._path}: {error}: choose another folder"
            ) from error

    def _read_file(self, path: Path) -> bool:
        """Read the lines that were appended to a file; returns whether the last is not whole."""
        is_incomplete = False
        with path.open("rb") as file:
            offset = file.seek(self._read.get(path, 0))
            for line in file:
                try:
                    if line.strip():
                        attempt, answer = _parse(line)
                        self._charge(attempt, answer)
                        if answer is not None and answer.outcome != "error":
                            self._answers[attempt.key] = (path, offset)
                except _UNREADABLE:
                    if not line.endswith(b"\n"):
                        # Another program may be writing it.
                        is_incomplete = True
                        break
                    self.unreadable += 1
                offset += len(line)
        self._read[path] = offset
        return is_incomplete

    def _charge(self, attempt: Attempt, answer: Answer | None) -> None:
        """Charge a reservation, or replace it by the counts of its answer, once."""
        name, usage = attempt.attempt, self._usages[attempt.asked, attempt.batched]
        if name in self._settled:
            return
        if name not in self._reserved:
            self._reserved.add(name)
            for index, tokens in enumerate(attempt.reserved):
                usage.reserved[index] += tokens
        if answer is None:
            return
        self._reserved.remove(name)
        self._settled.add(name)
        usage.cached += min(answer.cached_tokens or 0, answer.input_tokens or 0)
        for index, count in enumerate((answer.input_tokens, answer.output_tokens)):
            if count is not None:
                usage.reserved[index] -= attempt.reserved[index]
                usage.counted[index] += count


def _parse(line: bytes) -> tuple[Attempt, Answer | None]:
    """Return the attempt of a line, and its answer if there is one; raises `_UNREADABLE`."""
    content = json.loads(line)
    attempt = Attempt(**{key.name: content[key.name] for key in fields(Attempt)})
    if "outcome" not in content:
        return attempt, None
    # Lines of other versions may have other keys.
    return attempt, Answer(**{name: content[name] for name in Answer.__slots__ if name in content})


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
    options = {name: value for name, value in as_plain(sampling).items() if value is not None}
    about = (identity(model), json.dumps(options, sort_keys=True))
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
    """The text of an answer in a log: the answer, or the provider's message."""
    return answer.text or answer.detail or ""
