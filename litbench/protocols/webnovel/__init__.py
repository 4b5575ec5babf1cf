"""WebNovelBench: chapters of Chinese novels, written from synopses and placed among human novels.

Each of a book's chapters is written on its own from its synopsis, and rated on its own by eight
criteria from 1 to 5. The means over the chapters become a percentile of the distribution of
published novels ("WebNovelBench", arXiv 2505.14818). The packaged prompts and rubric are our own;
`texts` takes the published ones. `data_prep/import_novels.py` makes books; the human chapters that
it writes are a writer, too. docs/writers.md says what differs.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from litbench.judges.dialogues import WRITER, Talk, UnfinishedError, at_once
from litbench.judges.rubric import Rated
from litbench.judges.store import Sampling
from litbench.metrics.placement import ReferenceDistribution
from litbench.protocols.protocol import Item, Piece, Protocol, missing_flag, rate_all, written_text
from litbench.protocols.webnovel.books import Book, read_books, read_texts
from litbench.templates.rubric import load_rubric

_EXAMPLE = "他推开门，院子里落了一地的槐花，没有人说话。" * 60
_WRITTEN = re.compile(r"<text>(.*?)(?:</text>|\Z)", re.DOTALL)
# The reference consists of means of this many chapters.
_CHAPTERS = 10


@dataclass
class WebnovelOptions:
    """Options of the protocol `webnovel`.

    Attributes:
        books: file of books, see litbench.protocols.webnovel.books.
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
    writer = Sampling(temperature=0.6, max_tokens=4096)
    # The published program sends no options to the judge.
    judge = Sampling(temperature=None, max_tokens=4096)

    def __init__(self, options: WebnovelOptions) -> None:
        self._options = options
        self._books = read_books(options.books)
        texts = read_texts(options.texts)
        with_or_without = "with" if options.criteria else "without"
        self._system = texts[f"generation_system_{with_or_without}_criteria"]
        self.rubric = load_rubric("webnovel")
        if options.texts is not None:
            self.rubric = replace(self.rubric, text=texts["judge_user"], is_plain=True)
        self._names = [criterion.name for criterion in self.rubric.criteria]
        self._reference = None
        if options.reference is not None:
            self._reference = ReferenceDistribution.read(options.reference, self._names)
        self.headline = "mean" if self._reference is None else "percentile"

    def items(self) -> list[Item]:
        """The books."""
        return [Item(book.request_id, book.novel, book) for book in self._books]

    def record(self) -> dict[str, Any]:
        """What is not as published, and how messages are sent."""
        options = self._options
        reasons = ["published percentiles are by DeepSeek-V3; other judges rate otherwise"]
        if options.texts is None:
            reasons.append("prompts and rubric are LitBench's own")
        if not options.criteria:
            reasons.append("writers are not told the criteria")
        if not options.as_published:
            reasons.append("judges' replies are read by LitBench's rules, not as published")
        return {
            "not_comparable": reasons,
            "messages": "writing: system and user message; rating: one user message",
        }

    async def hold(self, talk: Talk, item: Item, judges: Sequence[str]) -> Piece:
        """Write the chapters, have them rated, and place the book."""
        book: Book = item.content
        steps = [f"chapter_{number}" for number in range(1, len(book.novel_info) + 1)]
        written = await at_once(
            *(self._write(talk, *one) for one in zip(steps, book.novel_info, strict=True))
        )
        texts = {step: text for step, (text, _) in zip(steps, written, strict=True) if text}
        flags = [f"{step} cut" for step, (_, is_cut) in zip(steps, written, strict=True) if is_cut]
        if without := len(steps) - len(texts):
            flags.append(f"{without} of {len(steps)} chapters without text")
        questions = {step: (self.rubric, {"text": text}) for step, text in texts.items()}
        as_published = self._options.as_published
        ratings = await rate_all(talk, judges, questions, as_published=as_published)
        piece = Piece(texts, ratings)
        for judge in judges:
            rated = [ratings[judge, step] for step in texts]
            grades, unusual = self.grades(rated)
            every = [*missing_flag(rated), *flags, *unusual]
            piece.grades += [(judge, name, grade, every) for name, grade in grades.items()]
        return piece

    def grades(self, rated: Sequence[Rated]) -> tuple[dict[str, float | None], list[str]]:
        """Return a book's grades by quantity, and flags: means by criterion, and its place."""
        known = [
            [rating for one in rated if (rating := one.ratings[name].rating) is not None]
            for name in self._names
        ]
        means = np.array([np.mean(of) if of else np.nan for of in known])
        if self._options.as_published:
            means = means.round(2)
        grades = {**dict(zip(self._names, means, strict=True)), "mean": means.mean()}
        if self._reference is not None:
            grades["composite"] = self._reference.composite(means)
            grades["value"] = self._reference.value(means)
            rank = self._options.as_published
            grades["percentile"] = self._reference.percentile(means, rank=rank)
        flags = []
        if (least := min(map(len, known))) < _CHAPTERS:
            flags.append(f"means of {least} chapters; the reference's are of {_CHAPTERS}")
        return {
            name: None if np.isnan(grade) else float(grade) for name, grade in grades.items()
        }, flags

    async def _write(self, talk: Talk, step: str, synopsis: str) -> tuple[str, bool]:
        """Return the text of a chapter, empty if there is none, and whether it was truncated."""
        if not synopsis.strip() and not talk.is_recorded(WRITER):
            raise UnfinishedError(f"{step}: no synopsis: set extractor in import_novels.py")
        conversation = [("system", self._system), ("user", synopsis)]
        turn = await talk.say(WRITER, conversation, step=step, example=_EXAMPLE)
        text = written_text(turn)
        found = _WRITTEN.search(text)
        return (found[1] if found else text).strip(), turn.outcome == "cut"
