"""The store of a study: readers, their assignment and their choices, in SQLite.

Every row of `choices` is one page of one reader: assigned when the reader starts, filled when the
reader answers, and removed when a reader leaves for long. A commit is on the disk when a method
returns. One process writes; others may read at the same time.
"""

import hashlib
import hmac
import os
import random
import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from litbench.errors import DataError
from litbench.human_study.plan import Study
from litbench.metrics.human_study import CHOICES
from litbench.text import digest

# Who is waiting came when others held the last pairs.
State = Literal["consented", "reading", "finished", "failed", "waiting", "left"]
_MEMORY = ":memory:"
_OTHER = {"chosen": "rejected", "rejected": "chosen"}
_TABLES = """
create table if not exists meta (name text primary key, value text not null) strict;
create table if not exists readers (
    number integer primary key autoincrement, reader text not null unique, state text not null,
    attempts integer not null default 0, pages integer not null default 0,
    started real not null, seen real not null
) strict;
create table if not exists choices (
    number integer not null references readers, place integer not null, kind text not null,
    pair_id text not null, "order" text, shown real, outcome text, answer text, is_right integer,
    seconds real, hurried integer not null default 0, reason text, version text, answered real,
    primary key (number, place)
) strict;
create index if not exists choices_of_pair on choices (pair_id, kind);
"""
_CHOICES = """
select hashed(reader) as reader, place, kind, pair_id, "order", outcome, is_right, seconds, hurried,
    reason, version, cast(answered as integer) as answered_utc, state = 'finished' as finished
from choices join readers using (number) where answered is not null order by answered
"""


@dataclass(frozen=True)
class Page:
    """A page to show: `order` is the side that stands first; `done` of `total` are answered."""

    place: int
    kind: str
    pair_id: str
    order: str | None
    done: int
    total: int


class Store:
    """The readers and choices of one study.

    Args:
        study: the study; its `database` is created if it does not exist.
        path: another file, or None for the study's; ":memory:" keeps everything in memory.
        now: the clock, in seconds since 1970.
    """

    def __init__(
        self, study: Study, path: str | Path | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self._study, self._plan, self._now = study, study.plan, now
        path = path or study.database
        if path != _MEMORY:
            # Readable by its owner only: it holds the readers' ids.
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        # One thread at a time uses it, not always the same one.
        self._database = sqlite3.connect(
            path, isolation_level=None, timeout=30, check_same_thread=False
        )
        self._database.row_factory = sqlite3.Row
        self._database.create_function("hashed", 1, lambda text: self.sign("reader", text)[:16])
        # WAL lets others read meanwhile; FULL survives a crash of the machine too.
        self._database.executescript("pragma journal_mode = wal; pragma synchronous = full;")
        pairs = digest(*sorted(study.by_id))
        with self._transaction():
            for statement in filter(str.strip, _TABLES.split(";")):
                self._database.execute(statement)
            self._secret = bytes.fromhex(self._meta("secret", secrets.token_hex(32)))
            known = self._meta("pairs", pairs)
        if known != pairs:
            raise DataError(
                f"{path} belongs to other pairs: move it away, or restore the study's pairs"
            )

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("begin immediate")
        try:
            yield
        except BaseException:
            self._database.execute("rollback")
            raise
        self._database.execute("commit")

    def _all(self, sql: str, *values: Any) -> list[sqlite3.Row]:
        return self._database.execute(sql, values).fetchall()

    def _meta(self, name: str, value: str) -> str:
        """Return a value that is set once."""
        self._database.execute("insert or ignore into meta values (?, ?)", (name, value))
        return str(self._all("select value from meta where name = ?", name)[0][0])

    def sign(self, purpose: str, text: str) -> str:
        """A hash that only the owner of the store can compute; 32 hexadecimal digits."""
        message = f"{purpose}:{text}".encode()
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest()[:32]

    # Readers ----------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether the owner has closed the study."""
        return bool(self._all("select 1 from meta where name = 'closed'"))

    def close_study(self) -> None:
        """Accept no more readers and answers."""
        self._meta("closed", str(self._now()))

    def start(self, reader: str) -> None:
        """Add a reader who gave consent; nothing changes for a known reader."""
        now = self._now()
        self._database.execute(
            "insert or ignore into readers (reader, state, started, seen) "
            "values (?, 'consented', ?, ?)",
            (reader, now, now),
        )

    def state(self, reader: str) -> State | None:
        """The state of a reader, who is noted as present; None for an unknown reader."""
        rows = self._all(
            "update readers set seen = ? where reader = ? returning state", self._now(), reader
        )
        return rows[0][0] if rows else None

    def attempts(self, reader: str) -> int:
        """How often a reader has answered the statements."""
        return int(self._all("select attempts from readers where reader = ?", reader)[0][0])

    def try_statements(self, reader: str, attempt: int, *, are_right: bool) -> None:
        """Count an attempt at the statements, unless it was counted before.

        `attempt` is the number of earlier attempts when the page was shown, so that a double click
        counts once.
        """
        self._database.execute(
            "update readers set attempts = attempts + 1, state = case when ? then 'reading' "
            "when attempts + 1 >= ? then 'failed' else state end "
            "where reader = ? and attempts = ? and state = 'consented'",
            (are_right, self._plan.comprehension_attempts, reader, attempt),
        )

    # Pages ------------------------------------------------------------------------------------

    def next_page(self, reader: str) -> Page | None:
        """The first unanswered page of a reader who passed the statements.

        Pages are assigned at the first call, and anew after the reader had left. Returns None if
        the reader has finished, or waits because there is no pair to assign.
        """
        own_pages = "select * from choices where number = ? order by place"
        with self._transaction():
            (row,) = self._all("select number, state from readers where reader = ?", reader)
            number = row["number"]
            if row["state"] not in ("reading", "waiting", "left"):
                return None
            pages = self._all(own_pages, number)
            if row["state"] != "reading" or not pages:
                self._assign(number)
                pages = self._all(own_pages, number)
            waiting = [page for page in pages if page["answered"] is None]
            state: State = "reading" if waiting else "finished" if pages else "waiting"
            self._database.execute("update readers set state = ? where number = ?", (state, number))
            if not waiting:
                return None
            page, done = waiting[0], len(pages) - len(waiting)
            self._database.execute(
                "update choices set shown = ? where number = ? and place = ? and shown is null",
                (self._now(), number, page["place"]),
            )
        return Page(
            page["place"], page["kind"], page["pair_id"], page["order"], done, len(pages)
        )  # fmt: skip

    def _release_silent(self, number: int) -> None:
        """Take their unanswered pairs from all readers but one who have sent nothing for long."""
        self._database.execute(
            "update readers set state = 'left' "
            "where state = 'reading' and seen < ? and number <> ?",
            (self._now() - 60 * self._plan.release_minutes, number),
        )
        self._database.execute(
            "delete from choices where answered is null "
            "and number in (select number from readers where state = 'left')"
        )

    def _assign(self, number: int) -> None:
        """Give a reader the pairs with the fewest readers, each with the side shown less often.

        So two pairs differ by one reader at most, and the two sides of a pair by one, as long as
        nobody leaves; later readers fill the gaps of those who left.
        """
        self._release_silent(number)
        load = Counter(
            (row["pair_id"], row["order"])
            for row in self._all("select pair_id, \"order\" from choices where kind = 'pair'")
        )
        own = self._all("select kind, pair_id from choices where number = ?", number)
        read = {row["pair_id"] for row in own if row["kind"] == "pair"}
        kinds = {row["kind"] for row in own}
        draw = random.Random(digest("assign", self._plan.seed, number, len(own)))

        def readers_of(pair_id: str) -> int:
            return load[pair_id, "chosen"] + load[pair_id, "rejected"]

        free = [
            name for name in sorted(self._study.by_id)
            if name not in read and readers_of(name) < self._plan.readers_per_pair
        ]  # fmt: skip
        draw.shuffle(free)
        free.sort(key=readers_of)
        picked = free[: self._plan.pairs_per_reader - len(read)]
        if not picked:
            return
        draw.shuffle(picked)
        sides = ["chosen", "rejected"]
        rows: list[tuple[str, str, str | None]] = []
        for name in picked:
            draw.shuffle(sides)
            rows.append(("pair", name, min(sides, key=lambda side: load[name, side])))
        _, first, side = rows[0]
        if self._plan.checks_attention and "attention" not in kinds:
            unread = sorted(set(self._study.by_id) - set(picked) - read) or picked
            check = ("attention", draw.choice(unread), draw.choice(sides))
            rows.insert(draw.randint(1, len(rows)), check)
        if self._plan.repeats_a_pair and "repeat" not in kinds and len(picked) > 1:
            rows.append(("repeat", first, _OTHER[str(side)]))
        for at in reversed(range(len(rows))):
            kind, name, _ = rows[at]
            if kind == "pair" and name in self._plan.questions:
                rows.insert(at + 1, ("question", name, None))
        # Numbers are not used again: a form of a page that was taken away finds no other page.
        ((last,),) = self._all(
            "update readers set pages = pages + ? where number = ? returning pages",
            len(rows), number,
        )  # fmt: skip
        self._database.executemany(
            'insert into choices (number, place, kind, pair_id, "order") values (?, ?, ?, ?, ?)',
            [(number, place, *row) for place, row in enumerate(rows, last - len(rows) + 1)],
        )

    def answer(self, reader: str, place: int, answer: str, reason: str | None = None) -> float:
        """Store the answer of a page; the first answer binds, a second one changes nothing.

        Args:
            reader: the reader.
            place: the page.
            answer: "first" or "second"; for a content question, one of its answers.
            reason: what the reader wrote.

        Returns:
            0 if the page is answered now, or was before; else the seconds that the reader must
            still take for the page.

        Raises:
            ValueError: the reader has no such page before them, or it has no such answer.
        """
        now = self._now()
        with self._transaction():
            rows = self._all(
                "select choices.* from choices join readers using (number) "
                "where reader = ? and place = ?", reader, place,
            )  # fmt: skip
            if not rows or rows[0]["shown"] is None:
                raise ValueError("no such page")
            page = rows[0]
            if page["answered"] is not None:
                return 0.0
            outcome, is_right = self._read_answer(page, answer)
            seconds: float = now - page["shown"]
            key = (page["number"], place)
            is_pair = page["kind"] != "question"
            least = self._study.least_seconds(page["pair_id"]) if is_pair else 0.0
            if seconds < least:
                self._database.execute(
                    "update choices set hurried = hurried + 1 where number = ? and place = ?", key
                )
                return least - seconds
            self._database.execute(
                "update choices set answer = ?, outcome = ?, is_right = ?, seconds = ?, reason = ?,"
                " version = ?, answered = ? where number = ? and place = ?",
                (answer, outcome, is_right, seconds, reason, self._study.version, now, *key),
            )
        return 0.0

    def _read_answer(self, page: sqlite3.Row, answer: str) -> tuple[str | None, bool | None]:
        """The side chosen, and whether a check was answered right."""
        if page["kind"] == "question":
            asked = self._plan.questions[page["pair_id"]]
            if answer not in asked.answers:
                raise ValueError("no such answer")
            return None, answer == asked.right
        if answer not in ("first", "second"):
            raise ValueError("no such answer")
        side = page["order"] if answer == "first" else _OTHER[page["order"]]
        # The garbled story of the attention check is the rejected one.
        return side, side == "chosen" if page["kind"] == "attention" else None

    # Reading ----------------------------------------------------------------------------------

    def choices(self) -> pa.Table:
        """All answers; table with the schema CHOICES, whose readers are salted hashes."""
        return pa.Table.from_pylist([dict(row) for row in self._all(_CHOICES)], CHOICES.arrow())

    def states(self) -> dict[str, int]:
        """Number of readers in each state."""
        return dict(map(tuple, self._all("select state, count(*) from readers group by 1")))

    def progress(self) -> dict[str, tuple[int, int]]:
        """By pair, its choices and the pages that readers still have before them."""
        rows = self._all(
            "select pair_id, count(answered), count(*) - count(answered) from choices "
            "where kind = 'pair' group by 1"
        )
        counted = {pair_id: (answered, waiting) for pair_id, answered, waiting in rows}
        return {name: counted.get(name, (0, 0)) for name in sorted(self._study.by_id)}

    def minutes(self) -> list[float]:
        """Minutes from start to the last answer, of all readers who finished; sorted."""
        rows = self._all(
            "select max(answered) - started from choices join readers using (number) "
            "where state = 'finished' group by number order by 1"
        )
        return [row[0] / 60 for row in rows]
