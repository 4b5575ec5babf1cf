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
from litbench.metrics.human_study import CHOICES
from litbench.study.plan import Study
from litbench.text import digest

State = Literal["consented", "reading", "finished", "failed", "left"]
_MEMORY = ":memory:"
_TABLES = """
create table if not exists meta (name text primary key, value text not null) strict;
create table if not exists readers (
    number integer primary key, reader text not null unique, state text not null,
    attempts integer not null default 0, started real not null, seen real not null
) strict;
create table if not exists choices (
    number integer not null references readers, place integer not null, kind text not null,
    pair_id text not null, "order" text, shown real, outcome text, answer text, is_right integer,
    seconds real, hurried integer not null default 0, reason text, version text, answered real,
    primary key (number, place)
) strict;
create index if not exists choices_of_pair on choices (pair_id, kind);
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
        # WAL lets others read meanwhile; FULL survives a crash of the machine too.
        self._database.executescript("pragma journal_mode = wal; pragma synchronous = full;")
        with self._transaction():
            for statement in filter(str.strip, _TABLES.split(";")):
                self._database.execute(statement)
            self._secret = bytes.fromhex(self._meta("secret", secrets.token_hex(32)))
            known = self._meta("pairs", digest(*sorted(study.by_id)))
        if known != digest(*sorted(study.by_id)):
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
        self._database.execute(
            "update readers set seen = ? where reader = ?", (self._now(), reader)
        )
        rows = self._all("select state from readers where reader = ?", reader)
        return rows[0][0] if rows else None

    def try_statements(self, reader: str, *, are_right: bool) -> None:
        """Count an attempt at the statements, unless the reader has passed or failed before."""
        with self._transaction():
            rows = self._all(
                "update readers set attempts = attempts + 1 where reader = ? and "
                "state = 'consented' returning number, attempts", reader,
            )  # fmt: skip
            if not rows:
                return
            number, attempts = rows[0]
            if are_right:
                self._set_state(number, "reading")
            elif attempts >= self._plan.comprehension_attempts:
                self._set_state(number, "failed")

    def attempts_left(self, reader: str) -> int:
        """How often a reader may still answer the statements."""
        rows = self._all("select attempts from readers where reader = ?", reader)
        return self._plan.comprehension_attempts - int(rows[0][0])

    def leave(self, reader: str) -> None:
        """Give the unanswered pairs of a reader to others."""
        with self._transaction():
            for row in self._all(
                "select number from readers where reader = ? and state = 'reading'", reader
            ):
                self._release(row[0])

    def _set_state(self, number: int, state: State) -> None:
        self._database.execute("update readers set state = ? where number = ?", (state, number))

    def _release(self, number: int) -> None:
        self._set_state(number, "left")
        self._database.execute(
            "delete from choices where number = ? and answered is null", (number,)
        )

    # Pages ------------------------------------------------------------------------------------

    def next_page(self, reader: str) -> Page | None:
        """The first unanswered page of a reader who passed the statements.

        Pages are assigned at the first call, and anew after the reader had left. Returns None if
        the reader has finished, or has left because there was no pair to assign.
        """
        with self._transaction():
            (row,) = self._all("select number, state from readers where reader = ?", reader)
            number = row["number"]
            if row["state"] not in ("reading", "left"):
                return None
            pages = self._all("select * from choices where number = ? order by place", number)
            if row["state"] == "left" or not pages:
                self._assign(number)
                pages = self._all("select * from choices where number = ? order by place", number)
            waiting = [page for page in pages if page["answered"] is None]
            state: State = "reading" if waiting else "finished" if pages else "left"
            self._set_state(number, state)
            if not waiting:
                return None
            page = waiting[0]
            self._database.execute(
                "update choices set shown = ? where number = ? and place = ? and shown is null",
                (self._now(), number, page["place"]),
            )
            done = len(pages) - len(waiting)
        return Page(
            page["place"], page["kind"], page["pair_id"], page["order"], done, len(pages)
        )  # fmt: skip

    def _assign(self, number: int) -> None:
        """Give a reader the pairs with the fewest readers, each with the side shown less often.

        So two pairs differ by one reader at most, and the two sides of a pair by one, as long as
        nobody leaves; later readers fill the gaps of those who left.
        """
        limit = self._now() - 60 * self._plan.release_minutes
        for row in self._all(
            "select number from readers where state = 'reading' and seen < ? and number <> ?",
            limit, number,
        ):  # fmt: skip
            self._release(row[0])
        load = Counter(
            {
                (row[0], row[1]): row[2]
                for row in self._all(
                    "select pair_id, \"order\", count(*) from choices where kind = 'pair' "
                    "group by 1, 2"
                )
            }
        )
        own = self._all("select kind, pair_id, place from choices where number = ?", number)
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
            rows.append(("repeat", first, "rejected" if side == "chosen" else "chosen"))
        for at in reversed(range(len(rows))):
            if rows[at][0] == "pair" and rows[at][1] in self._plan.questions:
                rows.insert(at + 1, ("question", rows[at][1], None))
        start = 1 + max((row["place"] for row in own), default=0)
        self._database.executemany(
            'insert into choices (number, place, kind, pair_id, "order") values (?, ?, ?, ?, ?)',
            [(number, place, *row) for place, row in enumerate(rows, start)],
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
            least = 0.0 if page["kind"] == "question" else self._study.least_seconds(
                page["pair_id"])  # fmt: skip
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
        other = "rejected" if page["order"] == "chosen" else "chosen"
        side = page["order"] if answer == "first" else other
        # The garbled story of the attention check is the rejected one.
        return side, side == "chosen" if page["kind"] == "attention" else None

    # Reading ----------------------------------------------------------------------------------

    def choices(self) -> pa.Table:
        """All answers; table with the schema CHOICES, whose readers are salted hashes."""
        rows = []
        for row in self._all(
            "select choices.*, reader, state from choices join readers using (number) "
            "where answered is not null order by answered"
        ):
            content = {name: row[name] for name in row.keys()}  # noqa: SIM118
            content["reader"] = self.sign("reader", row["reader"])[:16]
            content["answered_utc"] = int(row["answered"])
            content["finished"] = int(row["state"] == "finished")
            rows.append({column.name: content[column.name] for column in CHOICES.columns})
        return pa.Table.from_pylist(rows, schema=CHOICES.arrow())

    def states(self) -> dict[str, int]:
        """Number of readers in each state."""
        rows = self._all("select state, count(*) from readers group by 1 order by 1")
        return {row[0]: row[1] for row in rows}

    def progress(self) -> dict[str, tuple[int, int]]:
        """By pair, its choices and the pages that readers still have before them."""
        counted = {
            row[0]: (row[1], row[2])
            for row in self._all(
                "select pair_id, count(answered), count(*) - count(answered) from choices "
                "where kind = 'pair' group by 1"
            )
        }
        return {name: counted.get(name, (0, 0)) for name in sorted(self._study.by_id)}

    def minutes(self) -> list[float]:
        """Minutes from start to the last answer, of all readers who finished."""
        return [
            row[0] / 60
            for row in self._all(
                "select max(answered) - started from choices join readers using (number) "
                "where state = 'finished' group by number order by 1"
            )
        ]
