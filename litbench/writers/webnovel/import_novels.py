"""Novels become books of the protocol webnovel: `litbench writers import_novels`."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import PositiveInt

from litbench.data.curation.near_duplicates import NearDuplicateIndex
from litbench.data.ingest import RejectedRows, stream_foreign
from litbench.data.records import GRADES, TURNS, Column, Schema
from litbench.data.tables import read_table, write_table
from litbench.judges.answers import AnswerStore, local_folder
from litbench.judges.prices import load_prices
from litbench.judges.session import (
    ATTEMPTS,
    WRITER,
    Mock,
    Models,
    Role,
    Session,
    UnfinishedError,
    estimate,
    gather_all,
    run_sessions,
)
from litbench.raters.interface import estimates_text
from litbench.raters.templates.delimiters import without_delimiters
from litbench.raters.templates.rubric import load_rubric
from litbench.runs.config import Runtime
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import Artifact
from litbench.writers.protocol import written_text
from litbench.writers.webnovel.books import book_texts, read_synopsis
from litbench.writers.webnovel.novels import (
    consecutive_chapters,
    one_per_percentile,
    split_chapters,
)
from litbench.writers.webnovel.placement import ReferenceDistribution

HUMAN = "human"
EXTRACTOR = "extractor"
NOVELS = Schema(
    "novels",
    (
        Column("novel_id", "text", "unique name of the novel", required=True),
        Column("title", "text", "its title", required=True),
        Column("text", "text", "the whole novel", required=True),
        Column("author", "text", "who wrote it; null if unknown"),
    ),
    key=("novel_id",),
)
SUFFIXES = (".txt", ".md")
CHAPTERS = 10
# Near-duplicates are found by the first characters of the chapters, and this minimum similarity.
COMPARED, SIMILARITY = 20_000, 0.8
EXAMPLE = (
    "<主要人物>甲、乙、丙</主要人物>\n<主要情节>"
    + "\n".join(f"({number}) 甲去找乙，两人谈起从前的事，决定一同离开。" for number in range(1, 9))
    + "</主要情节>\n<重要场景>村口、渡船、客店</重要场景>"
)


@dataclass
class NovelImport:
    """Turn Chinese novels into books of the protocol webnovel.

        litbench writers import_novels --config configs/data/novels.yaml

    Reads text files (one novel each) or a table of novels, splits them into chapters, and leaves
    out novels of too few chapters, near-duplicates and authors of too few works. Of every other
    novel it takes consecutive chapters at a place drawn from the seed. Writes into `out`:

    - `turns.parquet`: these chapters as turns of the writer `human`; `litbench run webnovel
    --writer
      recorded/OUT/turns.parquet` rates them;
    - `books.jsonl`: the books, with synopses by the model `extractor`;
    - with `grades` of that run: `reference.json`, the distribution of the human novels, and of the
      books one for each percentile;
    - `rejected.jsonl` and `manifest.json`.

    Answers of the extractor are stored in `out/answers`; a killed run resumes. `--dry_run true`
    estimates calls, tokens and cost.

    Attributes:
        input: folder of .txt and .md files (a folder inside it is named for the author), or a table
            with the columns of `NOVELS`.
        out: output folder.
        columns: maps the columns of `NOVELS` to the table's columns or SQL expressions over them.
        encoding: encoding of the text files or the table; null: UTF-8.
        min_works: minimum works of an author; novels without author are kept.
        first_chapters: take the first ten chapters of every novel, as the paper does of classics
            (5.2), instead of ten consecutive ones from a place drawn by the seed.
        seed: seed of the chapters' places and of the subset.
        grades: `grades.parquet` of a run over `turns.parquet` with one judge; see above.
        extractor: model that writes the synopses: the keys of litbench.judges.session.Role; null
            for books that are only to be rated.
        texts: folder with the published `prompts.json`; null for our own prompt.
        prices: file of prices that override the packaged ones.
        dry_run: only estimate calls, tokens, dollars and minutes.
    """

    input: Path
    out: Path
    columns: dict[str, str] | None = None
    encoding: str | None = None
    min_works: PositiveInt = 2
    first_chapters: bool = False
    seed: int = 0
    grades: Path | None = None
    extractor: Role | None = None
    texts: Path | None = None
    prices: Annotated[Path | None, Runtime] = None
    dry_run: Annotated[bool, Runtime] = False


@dataclass
class Novel:
    """A novel with the chapters that were chosen; `beginning` tells near-duplicates."""

    novel_id: str
    title: str
    author: str | None
    chapters: list[str]
    beginning: str


def novel_rows(config: NovelImport, rejected: RejectedRows) -> Iterator[dict[str, Any]]:
    """Yield rows of `NOVELS` one by one."""
    if config.input.is_dir():
        files = (path for path in config.input.rglob("*") if path.suffix.lower() in SUFFIXES)
        for path in sorted(files):
            name = path.relative_to(config.input)
            author = name.parent.name or None
            try:
                text = path.read_text(encoding=config.encoding or "utf-8")
            except LookupError as error:
                raise ConfigError(f"encoding: {error}: give one such as gb18030") from error
            except (OSError, ValueError):
                rejected.add(
                    str(path), 0, "text", f"cannot be read as {config.encoding or 'utf-8'}"
                )
                continue
            yield {"novel_id": name.as_posix(), "title": name.stem, "author": author, "text": text}
        return
    for chunk in stream_foreign(
        config.input,
        NOVELS,
        columns=config.columns,
        rejected_rows=rejected,
        encoding=config.encoding,
    ):
        yield from chunk.to_pylist()


def read_novels(config: NovelImport, rejected: RejectedRows) -> list[Novel]:
    """Read the novels and choose their chapters; those with too few are rejected."""
    reject = partial(rejected.add, str(config.input), 0)
    novels: dict[str, Novel] = {}
    for row in novel_rows(config, rejected):
        name, chapters = row["novel_id"], split_chapters(row["text"])
        if name in novels:
            reject("novel_id", "duplicate id", name)
        elif len(chapters) < CHAPTERS:
            reject("text", f"fewer than {CHAPTERS} chapters", f"{name}: {len(chapters)}")
        else:
            chosen = (
                chapters[:CHAPTERS]
                if config.first_chapters
                else consecutive_chapters(chapters, CHAPTERS, config.seed, name)
            )
            beginning = "\n".join(chapters)[:COMPARED]
            novels[name] = Novel(name, row["title"], row["author"], chosen, beginning)
    return list(novels.values())


def select(novels: list[Novel], config: NovelImport, rejected: RejectedRows) -> list[Novel]:
    """Reject near-duplicates, of which the first by id stays, then authors of too few works."""
    reject = partial(rejected.add, str(config.input), 0)
    index = NearDuplicateIndex(threshold=SIMILARITY, seed=config.seed)
    index.add(
        pa.array([novel.novel_id for novel in novels], pa.large_string()),
        pa.array([novel.beginning for novel in novels], pa.large_string()),
    )
    first_of = {row["story_id"]: row["group"] for row in index.groups().to_pylist()}
    distinct = []
    for novel in novels:
        name = novel.novel_id
        if (first := first_of.get(name, name)) == name:
            distinct.append(novel)
        else:
            reject("text", "near-duplicate of a novel that is kept", f"{name}: {first}")
    works = Counter(novel.author for novel in distinct)
    rows = []
    for novel in distinct:
        if novel.author is None or works[novel.author] >= config.min_works:
            rows.append(novel)
        else:
            reason = f"author of fewer than {config.min_works} works"
            reject("author", reason, novel.novel_id)
    return rows


def place(
    grades: Path, novels: list[Novel]
) -> tuple[ReferenceDistribution, dict[str, dict[str, Any]]]:
    """Fit the reference on the ratings of the human chapters; return it and facts by novel."""
    names = [criterion.name for criterion in load_rubric("webnovel").criteria]
    ratings: dict[str, dict[str, float]] = defaultdict(dict)
    judges = set()
    for row in read_table(grades, GRADES).to_pylist():
        if row["writer"] == HUMAN and row["quantity"] in names and row["grade"] is not None:
            ratings[row["prompt_id"]][row["quantity"]] = row["grade"]
            judges.add(row["rater"])
    if len(judges) != 1:
        raise ConfigError(
            f"grades: {grades} has ratings of {HUMAN} by {len(judges)} judges: give those "
            "of a run with one"
        )
    rated = [novel.novel_id for novel in novels if len(ratings[novel.novel_id]) == len(names)]
    rows = [[ratings[novel_id][name] for name in names] for novel_id in rated]
    table = np.array(rows).reshape(-1, len(names))
    reference = ReferenceDistribution.fit(table, names)
    columns = (rated, rows, reference.value(table).tolist(), reference.percentile(table).tolist())
    return reference, {
        novel_id: {"original score": row, "normalized score": value, "percentile": percentile}
        for novel_id, row, value, percentile in zip(*columns, strict=True)
    }


def synopses_of(novel: Novel, prompt: str, *, is_own: bool) -> Session:
    """A session that has the extractor write a synopsis of every chapter."""

    async def synopsis(session: Session, number: int, chapter: str) -> str:
        # Texts go into published prompts unchanged.
        text = prompt.replace("{text}", without_delimiters(chapter) if is_own else chapter)
        question, step = [("user", text)], f"chapter_{number}"
        for attempt in range(ATTEMPTS):
            turn = await session.ask(EXTRACTOR, question, step=step, attempt=attempt)
            if (synopsis := read_synopsis(written_text(turn))) is not None:
                return synopsis
        raise UnfinishedError(f"{step}: {ATTEMPTS} replies without a synopsis")

    async def script(session: Session) -> list[str]:
        chapters = enumerate(novel.chapters, 1)
        return await gather_all(*(synopsis(session, *chapter) for chapter in chapters))

    return Session("", novel.novel_id, 0, script)


def turns_of(novels: list[Novel]) -> pa.Table:
    """The chapters as turns of the writer `HUMAN`."""
    rows = [
        {
            "writer": HUMAN,
            "prompt_id": novel.novel_id,
            "sample": 0,
            "role": WRITER,
            "step": f"chapter_{number}",
            "text": chapter,
            "outcome": "answered",
        }
        for novel in novels
        for number, chapter in enumerate(novel.chapters, 1)
    ]
    return pa.Table.from_pylist(rows, TURNS.arrow())


def _write_synopses(
    config: NovelImport, novels: Sequence[Novel], rejected: RejectedRows
) -> dict[str, list[str]]:
    """The synopses of the chapters by novel, empty without an extractor; a dry run asks nothing."""
    synopses = {novel.novel_id: [""] * CHAPTERS for novel in novels}
    sessions, roles = [], {}
    if config.extractor is not None:
        prompt = book_texts(config.texts)["extraction_user"]
        sessions = [synopses_of(novel, prompt, is_own=config.texts is None) for novel in novels]
        roles = {EXTRACTOR: config.extractor}
    models = Models({}, roles, load_prices(config.prices))
    if config.dry_run:
        with AnswerStore(config.out / "answers", read_only=True) as store:
            print("dry run: no request is sent")
            mock = Mock({EXTRACTOR: {"chapter": EXAMPLE}})
            print(estimates_text(estimate(sessions, len(sessions), models, store, mock)))
    elif sessions:
        ended: list[Session] = []
        with AnswerStore(config.out / "answers") as store:
            run_sessions(sessions, len(sessions), models, store, ended.append, "synopses")
        synopses = {
            session.prompt_id: session.result for session in ended if session.reason is None
        }
        for session in ended:
            if session.reason is not None:
                about = f"{session.prompt_id}: {session.reason}"
                rejected.add(str(config.input), 0, "text", "no synopsis", about)
    return synopses


def import_novels(config: NovelImport) -> None:
    """Read the novels, choose books and chapters, have synopses written, and write the tables."""
    model = None if config.extractor is None else local_folder(config.extractor.model)
    artifact = Artifact(
        config.out,
        program=__file__,
        config=config,
        inputs={key: getattr(config, key) for key in ("input", "grades", "texts")},
        models={} if model is None else {"extractor.model": model},
    )
    if not config.dry_run and artifact.is_current():
        return
    rejected = RejectedRows()
    novels = read_novels(config, rejected)
    counts = {"novels with enough chapters": len(novels)}
    novels = select(novels, config, rejected)
    counts["distinct, of authors with enough works"] = len(novels)
    if not novels:
        raise DataError(f"{config.input}: no novel is left: {rejected.counts()}")
    chosen = novels
    facts: dict[str, dict[str, Any]] = {}
    if config.grades is not None:
        reference, facts = place(config.grades, novels)
        percentiles = {name: numbers["percentile"] for name, numbers in facts.items()}
        by_id = {novel.novel_id: novel for novel in novels}
        chosen = [by_id[name] for name in one_per_percentile(percentiles, config.seed)]
    synopses = _write_synopses(config, chosen, rejected)
    if config.dry_run:
        return
    books = [
        {
            "request_id": novel.novel_id,
            "novel": novel.title,
            "novel_info": synopses[novel.novel_id],
            **facts.get(novel.novel_id, {}),
        }
        for novel in chosen
        if novel.novel_id in synopses
    ]
    lines = "".join(json.dumps(book, ensure_ascii=False) + "\n" for book in books)
    artifact.write_text("books.jsonl", lines)
    artifact.write("turns.parquet", partial(write_table, turns_of(novels)))
    if config.grades is not None:
        artifact.write("reference.json", reference.write)
        share = sum(reference.explained[:3])
        print(
            f"the first component explains {reference.explained[0]:.1%} of the variance, the first "
            f"three {share:.1%}"
        )
    artifact.write("rejected.jsonl", rejected.write)
    counts["books"] = len(books)
    artifact.counts = {**counts, "rejected_rows": rejected.counts()}
    artifact.finish()
    print(f"{config.out / 'books.jsonl'}: {counts}")
    print(rejected.summary(), end="")
