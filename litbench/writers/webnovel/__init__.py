"""WebNovelBench: chapters of Chinese novels, written from synopses and placed among human novels.

Each of a book's chapters is written on its own from its synopsis, and rated on its own by eight
criteria from 1 to 5. The means over the chapters become a percentile of the distribution of
published novels ("WebNovelBench", arXiv 2505.14818). The packaged prompts and rubric are our own;
`texts` takes the published ones. `litbench writers import_novels` makes books; the human chapters
that it writes are a writer, too. docs/writers.md says what differs.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from litbench.judges.answers import Sampling
from litbench.judges.rubric import Rated
from litbench.judges.session import WRITER, Session, UnfinishedError, gather_all
from litbench.raters.templates.rubric import load_rubric
from litbench.writers.protocol import (
    Item,
    ItemRatings,
    Protocol,
    Written,
    missing_flag,
    rate_texts,
    written_text,
)
from litbench.writers.texts import texts_record
from litbench.writers.webnovel.books import PUBLISHED_FILES, Book, book_texts, read_books
from litbench.writers.webnovel.placement import ReferenceDistribution

_WRITTEN = re.compile(r"<text>(.*?)(?:</text>|\Z)", re.DOTALL)
# The reference consists of means of this many chapters.
_CHAPTERS = 10


@dataclass
class WebnovelOptions:
    """Options of the protocol `webnovel`.

    Attributes:
        books: file of books, see litbench.writers.webnovel.books.
        reference: reference distribution, `fixed_parameters.json` of the benchmark or
            `reference.json` of import_novels.py; null for mean ratings only.
        texts: folder with the published `prompts.json`; null for our own texts.
        criteria: whether writers are told the criteria.
        as_published: read replies as the benchmark's program does: whole numbers only, in or off
            the scale, from the first block, and no rating of a chapter if one is missing,
            without a second question; means are rounded to two decimals, and ties count half.
    """

    books: Path
    reference: Path | None = None
    texts: Path | None = None
    criteria: bool = True
    as_published: bool = False


class Webnovel(Protocol):
    """The protocol; see the module."""

    options = WebnovelOptions
    source = "WebNovelBench, arXiv 2505.14818"
    writer = Sampling(temperature=0.6, max_tokens=4096)
    # The published program sends no options to the judge.
    judge = Sampling(temperature=None, max_tokens=4096)

    def __init__(self, options: WebnovelOptions) -> None:
        self._options = options
        self._books = read_books(options.books)
        texts = book_texts(options.texts)
        with_or_without = "with" if options.criteria else "without"
        self._system = texts[f"generation_system_{with_or_without}_criteria"]
        self.rubric = load_rubric("webnovel")
        if options.texts is not None:
            self.rubric = replace(self.rubric, text=texts["judge_user"], is_plain=True)
        self.rubrics = {"chapter": self.rubric}
        self._names = [criterion.name for criterion in self.rubric.criteria]
        self._reference = None
        if options.reference is not None:
            self._reference = ReferenceDistribution.read(options.reference, self._names)
        self.headline = "mean" if self._reference is None else "percentile"

    def items(self) -> list[Item]:
        return [Item(book.request_id, book.novel, book) for book in self._books]

    def record(self) -> dict[str, Any]:
        """The digests of the texts, and what is not as published."""
        options = self._options
        about = "prompts and rubric are LitBench's own"
        reasons, digests = texts_record(options.texts, PUBLISHED_FILES, about)
        reasons.append("published percentiles are by DeepSeek-V3; other judges rate differently")
        if not options.criteria:
            reasons.append("writers are not told the criteria")
        if not options.as_published:
            reasons.append("judges' replies are read by LitBench's rules, not as published")
        return {"not_comparable": reasons, "texts": digests}

    async def write(self, session: Session, item: Item) -> Written:
        """Write the chapters, each from its synopsis."""
        book: Book = item.content
        steps = [f"chapter_{number}" for number in range(1, len(book.novel_info) + 1)]
        texts = await gather_all(
            *(
                self._write(session, *chapter)
                for chapter in zip(steps, book.novel_info, strict=True)
            )
        )
        named = list(zip(steps, texts, strict=True))
        flags = [f"{step} cut" for step, (_, is_cut) in named if is_cut]
        written = Written({step: text for step, (text, _) in named if text}, flags)
        if without := len(steps) - len(written.texts):
            flags.append(f"{without} of {len(steps)} chapters without text")
        return written

    async def rate(self, session: Session, item: Item, written: Written, judge: str) -> ItemRatings:
        """Rate the chapters, and place the book."""
        del item
        questions = {step: (self.rubric, {"text": text}) for step, text in written.texts.items()}
        as_published = self._options.as_published
        rated = await rate_texts(session, judge, questions, as_published=as_published)
        grades, unusual = self.grades(list(rated.values()))
        flags = [*missing_flag(list(rated.values())), *written.flags, *unusual]
        return ItemRatings(rated, [(judge, name, grade, flags) for name, grade in grades.items()])

    def grades(self, rated: Sequence[Rated]) -> tuple[dict[str, float | None], list[str]]:
        """Return a book's grades by quantity, and flags: means by criterion, and its place."""
        numbers = [
            [rating for answer in rated if (rating := answer.ratings[name].rating) is not None]
            for name in self._names
        ]
        means = np.array([np.mean(values) if values else np.nan for values in numbers])
        if self._options.as_published:
            means = means.round(2)
        grades = {**dict(zip(self._names, means, strict=True)), "mean": means.mean()}
        if self._reference is not None:
            grades["composite"] = self._reference.composite(means)
            grades["value"] = self._reference.value(means)
            rank = self._options.as_published
            grades["percentile"] = self._reference.percentile(means, rank=rank)
        flags = []
        if (least := min(map(len, numbers))) < _CHAPTERS:
            flags.append(f"means over {least} chapters; the reference has {_CHAPTERS}")
        return {
            name: None if np.isnan(grade) else float(grade) for name, grade in grades.items()
        }, flags

    async def _write(self, session: Session, step: str, synopsis: str) -> tuple[str, bool]:
        """Return the text of a chapter, empty if there is none, and whether it was truncated."""
        if not synopsis.strip() and not session.is_recorded(WRITER):
            raise UnfinishedError(f"{step}: no synopsis: set extractor in import_novels.py")
        messages = [("system", self._system), ("user", synopsis)]
        turn = await session.ask(WRITER, messages, step=step)
        text = written_text(turn)
        match = _WRITTEN.search(text)
        return (match[1] if match else text).strip(), turn.outcome == "cut"
