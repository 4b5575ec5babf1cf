"""The store of a study: readers, their assignment and their answers, in SQLite.

Every row of `choices` is one page of one reader, about what its `pair_id` names: assigned when the
reader starts, filled when the reader answers, and removed when a reader leaves for long. A commit
is on the disk when a method returns. One server writes; other programs may read, close the study or
remove a reader meanwhile.
"""

import hashlib
import hmac
import json
import math
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa

from litbench.data.text import digest
from litbench.runs.errors import DataError
from litbench.study.metrics import CHOICES, exclusion_counts, reader_results
from litbench.study.plan import Study

# A template and its values.
Shown = tuple[str, dict[str, Any]]

# waiting: came when all pairs were assigned; queued: came when too many readers were starting.
State = Literal["consented", "reading", "finished", "failed", "waiting", "queued", "left"]
# How long a program waits for another one that writes.
BUSY_S = 2.0
# After twice the usual time and at least 60 s, a reader's first pair may go to another reader.
_SLOW_START, _START_S = 2, 60.0
_MEMORY = ":memory:"
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
create table if not exists turns (
    number integer not null references readers, place integer not null, step text not null,
    text text not null, seconds real not null, primary key (number, place, step)
) strict;
create index if not exists choices_of_pair on choices (pair_id, kind);
"""
_ANSWERED = """
select hashed(reader) as reader, place, kind, pair_id, "order", outcome, answer, is_right, seconds,
    hurried, reason, version, cast(answered as integer) as answered_utc,
    state = 'finished' as finished
from choices join readers using (number) where answered is not null order by answered
"""


def _sign(secret: bytes, purpose: str, text: str) -> str:
    message = f"{purpose}:{text}".encode()
    return hmac.new(secret, message, hashlib.sha256).hexdigest()[:32]


@dataclass(frozen=True)
class ReaderPage:
    """A page of the reader with a `number`; `done` of the reader's `total` pages are answered.

    `order` is the side that stands first, or the position of a story in its group.
    """

    place: int
    kind: str
    pair_id: str
    order: str | None
    done: int
    total: int
    number: int


def page_of(row: sqlite3.Row, done: int = 0, total: int = 0) -> ReaderPage:
    """The page of a row of `choices`."""
    return ReaderPage(
        row["place"], row["kind"], row["pair_id"], row["order"], done, total, row["number"]
    )


class Store:
    """The readers of one study and their pages.

    A subclass assigns the pages, shows them, reads their answers and exports them. Its `counted`
    are the kinds of pages that the study is about, and its `nouns` what is counted, by what.

    Args:
        study: the study; its `database` is created if it does not exist.
        path: another file, or None for the study's; ":memory:" keeps everything in memory.
        now: the clock, in seconds since 1970.
    """

    counted: ClassVar[tuple[str, ...]]
    nouns: ClassVar[tuple[str, str]]

    def __init__(
        self,
        study: Study,
        path: str | Path | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.study, self._plan = study, study.plan
        path = path or study.database
        if path != _MEMORY:
            # Readable by its owner only: it holds the readers' ids.
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        # One thread at a time uses it, not always the same one.
        self._database = sqlite3.connect(
            path, isolation_level=None, timeout=BUSY_S, check_same_thread=False
        )
        self._database.row_factory = sqlite3.Row
        # WAL lets others read meanwhile; FULL survives a crash of the machine too; a removed
        # reader's answers are overwritten.
        self._database.executescript(
            "pragma journal_mode = wal; pragma synchronous = full; pragma secure_delete = on;"
        )
        pairs = digest(*sorted(study.by_id))
        with self._transaction():
            for statement in filter(str.strip, _TABLES.split(";")):
                self._database.execute(statement)
            self._secret = bytes.fromhex(self._meta("secret", secrets.token_hex(32)))
            stored = self._meta("pairs", pairs)
        if stored != pairs:
            raise DataError(
                f"{path} belongs to another study: move it away, or restore the study's own"
            )
        # Not a method: the database would keep this object, and this object the database.
        hashed = partial(_sign, self._secret, "reader")
        self._database.create_function("hashed", 1, lambda text: hashed(text)[:16])
        self._now = now
        self._restarted = -math.inf

    def close(self) -> None:
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
        return _sign(self._secret, purpose, text)

    # Readers ----------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return bool(self._all("select 1 from meta where name = 'closed'"))

    def close_study(self) -> None:
        """Accept no more readers and answers."""
        self._meta("closed", str(self._now()))

    def note_restart(self) -> None:
        """Measure silence and reading times from now on.

        While the server was down, nobody could send anything: a page that was shown before gets no
        reading time.
        """
        self._restarted = self._now()
        self._database.execute(
            "update readers set seen = ? where state = 'reading'", (self._restarted,)
        )

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

    def remove(self, reader: str) -> None:
        """Remove a reader and all their answers; then call `empty_log`.

        Raises:
            DataError: there is no such reader.
        """
        with self._transaction():
            rows = self._all("select number from readers where reader = ?", reader)
            if not rows:
                raise DataError(f"no reader '{reader}': give the id that the reader used")
            self._database.execute("delete from turns where number = ?", tuple(rows[0]))
            self._database.execute("delete from choices where number = ?", tuple(rows[0]))
            self._database.execute("delete from readers where number = ?", tuple(rows[0]))

    def empty_log(self) -> None:
        """Remove from the disk what was removed from the study.

        Raises:
            DataError: another program is reading the database.
        """
        ((is_busy, _, _),) = self._all("pragma wal_checkpoint(truncate)")
        if is_busy:
            raise DataError(
                "the reader is removed, but another program reads the database, so its log "
                "(study.sqlite-wal) still has the answers: end that program and run the same "
                "command again, until it reports that there is no such reader"
            )

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

    def next_page(self, reader: str) -> ReaderPage | None:
        """The first unanswered page of a reader who passed the statements.

        Pages are assigned at the first call, and anew after the reader had left. Returns None if
        the reader has finished, waits because there is no pair to assign (after an absence, the
        state stays `left`), or is queued because too many readers are starting.
        """
        own_pages = "select * from choices where number = ? order by place"
        with self._transaction():
            (row,) = self._all("select number, state from readers where reader = ?", reader)
            number = row["number"]
            if row["state"] in ("consented", "failed", "finished"):
                return None
            pages = self._all(own_pages, number)
            before = len(pages)
            no_pages: State = "waiting"
            if row["state"] != "reading" or not pages:
                self._release_silent(number)
                if pages or self._has_room():
                    self._assign(number)
                    pages = self._all(own_pages, number)
                else:
                    no_pages = "queued"
                if row["state"] == "left" and pages and len(pages) == before:
                    # Their pages went to other readers, and there are no others.
                    return None
            waiting = [page for page in pages if page["answered"] is None]
            state: State = "reading" if waiting else "finished" if pages else no_pages
            self._database.execute("update readers set state = ? where number = ?", (state, number))
            if not waiting:
                return None
            page, done = waiting[0], len(pages) - len(waiting)
            self._database.execute(
                "update choices set shown = ? where number = ? and place = ? and shown is null",
                (self._now(), number, page["place"]),
            )
        return page_of(page, done, len(pages))

    def page_at(self, reader: str, position: int) -> ReaderPage | None:
        rows = self._all(
            "select choices.* from choices join readers using (number) where reader = ? "
            "order by place",
            reader,
        )
        done = sum(row["answered"] is not None for row in rows)
        return next(
            (page_of(row, done, len(rows)) for row in rows if row["place"] == position), None
        )

    def _release_silent(self, number: int) -> None:
        """Release all readers but one who have sent nothing for long."""
        since = self._now() - 60 * self._plan.release_minutes
        self._release("seen < ? and number <> ?", since, number)

    def _has_room(self) -> bool:
        """Whether one more reader who has answered nothing may have pairs.

        Of too many of them, the one who has had the first pair for longest makes room, unless it
        could be that they are still reading it.
        """
        starting = self._all(
            "select number, pair_id, min(shown) as shown from choices group by number "
            "having count(answered) = 0 order by shown"
        )
        if len(starting) < self._plan.max_starting:
            return True
        for row in starting:
            slow = max(_SLOW_START * self.study.usual_seconds(row["pair_id"]), _START_S)
            if self._now() - row["shown"] > slow:
                self._release("number = ?", row["number"])
                return True
        return False

    def _release(self, condition: str, *values: Any) -> None:
        """Take their unanswered pages from the readers of a condition, who have left then.

        Others may need only the `counted` pages: readers without any of these left keep the rest.
        An attention check that was shown stays: its reader must not read the pair otherwise.
        """
        self._database.execute(
            f"update readers set state = 'left' where state = 'reading' and {condition} "  # noqa: S608
            "and (number not in (select number from choices) or number in (select number "
            "from choices where answered is null and kind in (select value from json_each(?))))",
            (*values, json.dumps(self.counted)),
        )
        self._database.execute(
            "delete from choices where answered is null "
            "and not (kind = 'attention' and shown is not null) "
            "and number in (select number from readers where state = 'left')"
        )

    def _assign(self, number: int) -> None:
        """Give a reader pages, if there are any left to give."""
        raise NotImplementedError

    def _add_pages(self, number: int, rows: Sequence[tuple[str, str, str | None]]) -> None:
        """Append pages: kind, what they are about, and the order shown."""
        # Numbers are not used again: a form of a page that was taken away finds no other page.
        ((last,),) = self._all(
            "update readers set pages = pages + ? where number = ? returning pages",
            len(rows),
            number,
        )
        self._database.executemany(
            'insert into choices (number, place, kind, pair_id, "order") values (?, ?, ?, ?, ?)',
            [(number, position, *row) for position, row in enumerate(rows, last - len(rows) + 1)],
        )

    def answer(self, reader: str, position: int, answer: str, reason: str | None = None) -> float:
        """Store the answer of a page; later answers are ignored unless `_may_change`.

        Args:
            reader: the reader.
            position: the page.
            answer: see the store of the kind.
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
                "where reader = ? and place = ?",
                reader,
                position,
            )
            if not rows or rows[0]["shown"] is None:
                raise ValueError("no such page")
            page = rows[0]
            if page["answered"] is not None and not self._may_change(page):
                return 0.0
            outcome, is_right = self._read_answer(page, answer)
            key = (page["number"], position)
            if page["answered"] is not None:
                self._database.execute(
                    "update choices set answer = ?, is_right = ?, reason = ? "
                    "where number = ? and place = ?",
                    (answer, is_right, reason, *key),
                )
                return 0.0
            seconds = self._seconds(page["shown"], now)
            least = 0.0 if page["kind"] == "submit" else self.study.min_seconds(page["pair_id"])
            if seconds is not None and seconds < least:
                self._database.execute(
                    "update choices set hurried = hurried + 1 where number = ? and place = ?", key
                )
                return least - seconds
            self._database.execute(
                "update choices set answer = ?, outcome = ?, is_right = ?, seconds = ?, reason = ?,"
                " version = ?, answered = ? where number = ? and place = ?",
                (answer, outcome, is_right, seconds, reason, self.study.version, now, *key),
            )
        return 0.0

    def _seconds(self, shown: float, now: float) -> float | None:
        """The time since a page was shown; None if the server was restarted meanwhile."""
        return None if shown <= self._restarted else max(0.0, now - shown)

    def view(self, reader: str, page: ReaderPage) -> Shown:
        """The content of a page; values that `read_form` reads may be overridden."""
        raise NotImplementedError

    def group(self, reader: str, page: ReaderPage) -> list[tuple[ReaderPage, dict[str, Any]]]:
        """The pages that are answered together with this one, with the values that show answers."""
        del reader
        return [(page, {})]

    def read_form(self, form: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
        """The answer of a form, and the values that show it again; ValueError if it is none."""
        raise NotImplementedError

    def _read_answer(self, page: sqlite3.Row, answer: str) -> tuple[str | None, bool | None]:
        """The outcome of an answer, and whether a check was answered right; ValueError if none."""
        raise NotImplementedError

    def _may_change(self, _page: sqlite3.Row) -> bool:
        return False

    # Reading ----------------------------------------------------------------------------------

    def answers_since(self, at: float) -> int:
        return int(self._all("select count(*) from choices where answered > ?", at)[0][0])

    def choices(self) -> pa.Table:
        """All answered pages; table with the schema CHOICES, whose readers are salted hashes."""
        return pa.Table.from_pylist(self._answered(), CHOICES.arrow())

    def _answered(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self._all(_ANSWERED)]

    def readers(self) -> list[dict[str, Any]]:
        return reader_results(self.choices(), self._plan.exclude)

    def left_out(self) -> dict[str, int]:
        """Number of readers whom each rule of the plan leaves out so far."""
        return exclusion_counts(self.readers())

    def export(self) -> tuple[dict[str, pa.Table], dict[str, Any]]:
        """All answers as tables by name, the main one first, and facts for the manifest."""
        raise NotImplementedError

    def states(self) -> dict[str, int]:
        return dict(map(tuple, self._all("select state, count(*) from readers group by 1")))

    def progress(self) -> dict[str, tuple[int, int]]:
        """By pair or story, its answers and the pages that readers still have before them."""
        rows = self._all(
            "select pair_id, count(answered), count(*) - count(answered) from choices "
            "where kind in (select value from json_each(?)) group by 1",
            json.dumps(self.counted),
        )
        counted = {pair_id: (answered, waiting) for pair_id, answered, waiting in rows}
        return {name: counted.get(name, (0, 0)) for name in sorted(self.study.by_id)}

    def minutes(self) -> list[float]:
        """Minutes from start to the last answer, of all readers who finished; sorted."""
        rows = self._all(
            "select max(answered) - started from choices join readers using (number) "
            "where state = 'finished' group by number order by 1"
        )
        return [row[0] / 60 for row in rows]
