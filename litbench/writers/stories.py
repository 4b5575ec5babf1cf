"""Stories: a short story for every prompt, for best of n, studies and comparisons of writers.

    litbench run stories --options.prompts pairs.parquet --options.where "split = 'test'" \
        --samples 16 --writer openai/gpt-4.1 --out FOLDER

As in LitBench's study (section 5.5), `--samples` stories per prompt. Judges are optional; they rate
every story by a rubric. A refused, truncated or empty answer is no story, and is flagged.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from litbench.data.ingest import RejectedRows, stream_foreign
from litbench.data.records import Column, Schema
from litbench.data.text import count_words_of, digest, prompt_key
from litbench.judges.answers import Sampling
from litbench.judges.rubric import load_story_rubric
from litbench.judges.session import WRITER, Session
from litbench.raters.templates.template import fill
from litbench.runs.errors import ConfigError, DataError
from litbench.writers.protocol import (
    Item,
    ItemRatings,
    Protocol,
    Written,
    missing_flag,
    rate_texts,
    written_text,
)

PROMPTS = Schema(
    "prompts",
    (
        Column("prompt", "text", "the prompt's text", required=True),
        Column("prompt_id", "text", "its name in the source"),
    ),
    key=("prompt", "prompt_id"),
)
TASK = """\
Write a short story for the prompt below, for readers who come to be moved, surprised or amused, \
and who stop reading when they are not.

The story stands alone: it begins, something changes, and it ends. Let people want something, show \
what they do about it, and choose details that only this story could have. Leave out what a reader \
would guess.

Length: {words} words.

Give the story's text and nothing else: no title, no heading, no remark before or after it.

Prompt:
{prompt}
"""
_STEP = "story"


@dataclass
class StoriesOptions:
    """Options of the protocol `stories`.

    Attributes:
        prompts: table with a column `prompt` (and `prompt_id`), such as stories or pairs, a data
            set on the Hub, or a list of prompts.
        where: SQL condition on the table's rows, such as "split = 'test'".
        max_prompts: maximum number of prompts, drawn by a hash; null for all.
        task: the instruction to the writer; {prompt} and {words} are replaced.
        words: minimum and maximum length to ask for.
        rubric: rubric of the judges; a packaged one, or a file.
    """

    prompts: str | list[str]
    where: str | None = None
    max_prompts: PositiveInt | None = None
    task: str = TASK
    words: tuple[PositiveInt, PositiveInt] = (300, 800)
    rubric: str = "story"


class Stories(Protocol):
    """The protocol; see the module."""

    options = StoriesOptions
    source = "LitBench, section 5.5"
    headline = "grade"
    writer = Sampling(temperature=1.0, max_tokens=2048)
    judge = Sampling(temperature=0.0, max_tokens=4096)

    def __init__(self, options: StoriesOptions) -> None:
        self._options = options
        low, high = options.words
        if "{prompt}" not in options.task:
            raise ConfigError("task does not contain {prompt}: add it where the prompt belongs")
        if low > high:
            raise ConfigError(f"words is [{low}, {high}]: give minimum and maximum length")
        self.rubrics = {_STEP: load_story_rubric(options.rubric, "stories")}
        # English has about four tokens of four bytes per three words.
        self.examples = {WRITER: {_STEP: ["word", (low + high) * 2 // 3]}}
        self._rejected_rows = RejectedRows()
        self._items = self._read_items()

    def items(self) -> list[Item]:
        """The distinct prompts, by id."""
        return self._items

    def files(self) -> dict[str, Path | str]:
        prompts = self._options.prompts
        return {"options.prompts": prompts} if isinstance(prompts, str) else {}

    def record(self) -> dict[str, Any]:
        """Rejected and left out rows of the table of prompts."""
        rows = self._rejected_rows
        is_ours = self._options.task == TASK
        return {
            "not_comparable": ["no published text, so LitBench's own: the task"] * is_ours,
            "rejected_prompts": rows.counts(),
            "not_selected": rows.not_selected,
        }

    async def write(self, session: Session, item: Item) -> Written:
        turn = await session.ask(WRITER, item.content, step=_STEP)
        text = written_text(turn) if turn.outcome != "cut" else ""
        reason = "empty" if turn.outcome == "answered" else turn.outcome
        flags = [] if text else [f"no story: {reason}"]
        words = float(count_words_of(text)) if text else None
        return Written({_STEP: text} if text else {}, flags, [(None, "words", words, flags)])

    async def rate(self, session: Session, item: Item, written: Written, judge: str) -> ItemRatings:
        """Rate the story, if there is one."""
        if not written.texts:
            return ItemRatings(grades=[(judge, self.headline, None, written.flags)])
        filled = {"prompt": item.prompt, "text": written.texts[_STEP]}
        rated = await rate_texts(session, judge, {_STEP: (self.rubrics[_STEP], filled)})
        grade = (judge, self.headline, rated[_STEP].grade, missing_flag([rated[_STEP]]))
        return ItemRatings(rated, [grade])

    def _read_items(self) -> list[Item]:
        """The items; of prompts that are equal but for form, the first."""
        options = self._options
        rows: list[tuple[str, str | None]] = []
        if isinstance(options.prompts, list):
            rows = [(text, None) for text in options.prompts]
        else:
            for table in stream_foreign(
                options.prompts, PROMPTS, rejected_rows=self._rejected_rows, where=options.where
            ):
                columns = (table[name].to_pylist() for name in ("prompt", "prompt_id"))
                rows += zip(*columns, strict=True)
        # Pairs repeat prompts, and keys are slow.
        named = {text: name for text, name in reversed(rows) if text.strip()}
        prompts: dict[str, str] = {}
        for text in dict.fromkeys(text for text, _ in rows if text in named):
            prompts.setdefault(prompt_key(text), text)
        if not prompts:
            raise DataError(f"{options.prompts}: no prompt has a text: check the table and `where`")
        drawn = sorted(prompts.items(), key=lambda prompt: digest(0, prompt[1]))
        items: dict[str, Item] = {}
        for key, text in drawn[: options.max_prompts]:
            name = named[text] or key
            # Other prompts of the same id are named by their text.
            item = Item(key if name in items else name, text, self._question(text))
            items[item.prompt_id] = item
        return [items[name] for name in sorted(items)]

    def _question(self, prompt: str) -> str:
        low, high = self._options.words
        values = {"prompt": prompt, "words": f"{low:,}" if low == high else f"{low:,} to {high:,}"}
        return fill(self._options.task, values)
