"""Studies whose readers play a session of the protocol narra.

The protocol's own `write` runs; a person in the browser answers as its role `reader`, and the
writer is a model that is asked as in `litbench run`. Each session keeps the writer's answers in
`answers/READER-PLACE` of the study's folder and the reader's in the store, so a restarted server
runs `write` again and is at once where it was.

A reader plays one card with one or more writers, whose names are hidden, in random order. Pages of
the store have the kind `session`, with writer and card as `pair_id`, and then `rating` or
`checked`, which asks for the rubric's criteria; `submit`, with the card as `pair_id`, ends the
group.
"""

import asyncio
import json
import math
import random
import shutil
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from litbench.data.sources.ratings import story_digest
from litbench.data.text import digest
from litbench.judges.answers import Answer, AnswerStore, keys_of
from litbench.judges.session import RECORDED, WRITER, Models, Request, Session, UnfinishedError
from litbench.runs.errors import DataError, LitBenchError
from litbench.runs.outputs import read_manifest, source_digest
from litbench.study.plan import OTHER_VERSION, SessionPlan, read_plan, reading_text, reading_time
from litbench.study.ratings import RatingStore, RubricStudy, rating_rows
from litbench.study.store import ReaderPage, Shown, page_of
from litbench.writers.narra.episode import READER
from litbench.writers.narra.quantities import grades
from litbench.writers.protocol import Item, ItemResult, Protocol
from litbench.writers.run import SCHEMAS, Run, prepare, rows_of

PROTOCOL = "narra"
# People's sessions are samples of their own beside those of runs of the same writers and cards.
FIRST_SAMPLE = 1000
# What a turn takes besides reading, and the words of one, for the estimate.
_TURN_SECONDS, _TURN_WORDS = 30, 220
# The turns of a session, and the need that its reader said in an earlier one.
_TURNS = """
select turns.* from turns join choices using (number, place)
where number = ? and (place = ? or step = 'need') order by place = ?, place
"""
# The rating of a session without a story, and the end of a group without ratings.
_WITHOUT_STORY = """
delete from choices
where number = ? and pair_id = ? and kind in ('rating', 'checked') and answered is null
"""
_EMPTY_GROUP = """
delete from choices where number = ? and kind = 'submit' and answered is null
and not exists (select 1 from choices where number = ? and kind in ('rating', 'checked'))
"""
_PLAYED = "select place from choices where number = ? and pair_id = ? and kind = 'session'"
_SESSIONS = """
select choices.*, hashed(reader) as reader from choices join readers using (number)
where kind = 'session' and answered is not null order by number, place
"""


@dataclass(frozen=True, eq=False)
class SessionStudy(RubricStudy):
    """An opened study of sessions."""

    plan: SessionPlan
    protocol: Protocol
    models: Models

    @classmethod
    def of(cls, folder: Path, plan: SessionPlan) -> "SessionStudy":
        """The study of a plan; ConfigError if the protocol or a model cannot be used."""
        run = Run(PROTOCOL, folder, plan.writers, options=plan.options, prices=plan.prices)
        run.roles = {READER: f"{RECORDED}people"}
        prepared = prepare(run)
        protocol = prepared.protocol
        writers = {
            name: replace(role, traffic=replace(role.traffic, max_cost_usd=plan.dollars_per_reader))
            for name, role in prepared.models.writers.items()
        }
        # Refuses a limit of dollars that cannot be kept.
        models = Models(writers, {}, prepared.models.prices)
        return cls(folder, plan, protocol.rubrics["story"], protocol, models)

    @classmethod
    def open(cls, folder: Path) -> "SessionStudy":
        """Read the folder of a study; DataError if one of its files was changed."""
        study = cls.of(folder, read_plan(folder, SessionPlan))
        inputs = read_manifest(folder)["inputs"]
        for name, path in study.protocol.files().items():
            if name not in inputs:
                raise DataError(
                    f"{folder}: its manifest has no digest of {name} ({path}): {OTHER_VERSION}"
                )
            if inputs[name]["sha256"] != source_digest(path):
                raise DataError(f"{name}: {path} was changed since the study was made: restore it")
        return study

    @cached_property
    def by_id(self) -> dict[str, dict[str, Any]]:
        """`writer`, `item` and `prompt_id`, the card, by name of writer and card."""
        wanted = None if self.plan.cards is None else set(map(str, self.plan.cards))
        items = [
            item for item in self.protocol.items() if wanted is None or item.prompt_id in wanted
        ]
        return {
            f"{writer}/{item.prompt_id}": {
                "writer": writer,
                "item": item,
                "prompt_id": item.prompt_id,
            }
            for writer in self.models.writers
            for item in items
        }

    def words_of(self, name: str) -> int:
        """About as many words as a session has."""
        content: Mapping[str, Any] = self.by_id[name]["item"].content
        return int(content["end_condition"]["max_user_turns"]) * _TURN_WORDS

    def min_seconds(self, name: str) -> float:
        """The story was read in its session."""
        del name
        return 0.0

    def estimate(self) -> dict[str, Any]:
        """The readers, hours and pay of the study."""
        cells, writers = len(self.by_id), len(self.models.writers)
        if not cells:
            raise DataError("cards: none of these cards is known: name others, or leave cards out")
        turns = sum(map(self.words_of, self.by_id)) / cells / _TURN_WORDS
        sessions, each = cells * self.plan.readers_per_card, self.plan.writers_per_reader
        readers = math.ceil(sessions / each)
        time_of = reading_time(self, readers, each, turns * _TURN_SECONDS)
        limit = self.plan.dollars_per_reader
        return {
            "writers": writers,
            "cards": cells // writers,
            "sessions": sessions,
            "max_dollars": None if limit is None else limit * sessions,
            **time_of,
        }

    def estimate_text(self, facts: Mapping[str, Any]) -> str:
        text = f"""\
{facts["writers"]:,} writers and {facts["cards"]:,} cards, {self.plan.readers_per_card} readers of \
each: {facts["sessions"]:,} sessions of {facts["readers"]:,} readers
{reading_text(self.plan, facts)}"""
        if facts["max_dollars"] is not None:
            text += f"writers cost at most ${facts['max_dollars']:,.2f}\n"
        return text + "what a session usually costs: litbench run narra --dry_run\n"

    def answers_of(self, number: int, position: int) -> Path:
        return self.folder / "answers" / f"{number}-{position}"

    def session(self, page: ReaderPage) -> tuple[Session, Item]:
        cell = self.by_id[page.pair_id]
        sample = FIRST_SAMPLE + page.number
        return Session(cell["writer"], cell["item"].prompt_id, sample), cell["item"]

    def key_of(self, request: Request) -> str:
        """The key under which a writer's answer is stored."""
        role = self.models.writers[request.session.writer]
        return keys_of(role.model, [request.messages], role.sampling, request.number)[0]

    def fresh_models(self) -> Models:
        """The writers with nothing spent: each session has a budget of its own."""
        return Models(self.models.writers, {}, self.models.prices)

    def dollars(self, without: Collection[Path]) -> float:
        """The cost of the sessions in all other folders of answers."""
        total = 0.0
        for folder in set(self.folder.glob("answers/*")) - set(without):
            with AnswerStore(folder, read_only=True) as answers:
                clients = self.fresh_models().clients(answers).values()
                # Writers of the same model share its dollars.
                total += sum({client.name: client.budget.dollars for client in clients}.values())
        return total


class SessionStore(RatingStore):
    """The store of a study of sessions."""

    nouns = ("rated sessions", "card")
    noun = "Story"
    study: SessionStudy  # type: ignore[assignment]

    def _has_room(self) -> bool:
        players = {number for number, _ in self.open_sessions()}
        return len(players) < self.study.plan.sessions_at_once

    def _assign(self, number: int) -> None:
        """Give a reader a card, with the writers that have played it least, if the money is left.

        A reader who comes back keeps the card and first rates what was played and not rated.
        """
        plan = self.study.plan
        rows = self._all("select * from choices order by place")
        choices = [row for row in rows if row["number"] == number]
        played = [row["pair_id"] for row in choices if row["kind"] == "session"]
        draw = random.Random(digest("assign", plan.seed, number, len(choices)))
        load = Counter(row["pair_id"] for row in rows if row["kind"] == "session")
        groups = []
        for card, names in self.study.groups.items():
            free = [n for n in names if load[n] < plan.readers_per_card and n not in played]
            draw.shuffle(free)
            free.sort(key=load.__getitem__)
            picked = free[: plan.writers_per_reader - len(played)]
            is_same_card = not played or played[0] in names
            if is_same_card and (picked or played):
                mean_load = sum(map(load.__getitem__, picked)) / max(len(picked), 1)
                groups.append((-len(picked), mean_load, draw.random(), card, picked))
        if not groups:
            return
        *_, card, picked = min(groups)
        picked = picked if self._has_money(len(picked)) else []
        draw.shuffle(picked)
        rated = {row["pair_id"] for row in choices if row["kind"] in self.counted}
        finished = {row["pair_id"] for row in choices if row["kind"] == "session" and row["answer"]}
        pages: list[tuple[str, str, str | None]] = [
            ("rating", name, str(at))
            for at, name in enumerate(played, 1)
            if name in finished - rated
        ]
        for at, name in enumerate(picked, len(played) + 1):
            pages += [("session", name, str(at)), ("rating", name, str(at))]
        if pages or rated:
            pages.append(("submit", card, None))
        self._add_rating_pages(number, pages, choices, draw)

    def _has_money(self, sessions: int) -> bool:
        """Whether the dollars of more sessions are left, if those assigned take all theirs."""
        if self.study.plan.dollars is None or self.study.plan.dollars_per_reader is None:
            return True
        assigned = [self.study.answers_of(*key) for key in self.open_sessions()]
        reserved = (len(assigned) + sessions) * self.study.plan.dollars_per_reader
        return self.study.dollars(assigned) + reserved <= self.study.plan.dollars

    def turns(self, page: ReaderPage) -> dict[str, str]:
        """The reader's actions in a session, by step; a group states its need once."""
        turns = self._all(_TURNS, page.number, page.place, page.place)
        return {row["step"]: row["text"] for row in turns}

    def add_turn(self, page: ReaderPage, step: str, text: str, seconds: float) -> None:
        """Store what the reader did, unless the step has an answer already."""
        self._database.execute(
            "insert or ignore into turns values (?, ?, ?, ?, ?)",
            (page.number, page.place, step, text, seconds),
        )

    def end_session(self, page: ReaderPage, *, has_story: bool) -> None:
        """End a session; without a story there is nothing to rate."""
        with self._transaction():
            key, now = (page.number, page.place), self._now()
            ((shown,),) = self._all(
                "select shown from choices where number = ? and place = ?", *key
            )
            self._database.execute(
                "update choices set answered = ?, answer = ?, seconds = ?, version = ? "
                "where number = ? and place = ? and answered is null",
                (
                    now,
                    "{}" if has_story else None,
                    self._seconds(shown, now),
                    self.study.version,
                    *key,
                ),
            )
            if not has_story:
                self._database.execute(_WITHOUT_STORY, (page.number, page.pair_id))
                self._database.execute(_EMPTY_GROUP, (page.number, page.number))

    def _read_answer(self, page: Any, answer: str) -> tuple[str | None, bool | None]:
        if page["kind"] == "session":
            raise ValueError("no such answer")
        return super()._read_answer(page, answer)

    def view(self, reader: str, page: ReaderPage) -> Shown:
        """The rubric, with the story if its reader goes back to it; or the end of the group."""
        template, values = super().view(reader, page)
        if template == "submit":
            return template, values
        story = None
        if values["given"]:
            ((session_place,),) = self._all(_PLAYED, page.number, page.pair_id)
            played = replace(page, place=session_place)
            session, _ = asyncio.run(_replay(self.study, played, self.turns(played)))
            assert session.result is not None
            story = {"lines": session.result.written.facts["lines"]}
        return template, values | {"story": story}

    def open_sessions(self) -> set[tuple[int, int]]:
        """Reader's number and place of all sessions that have not ended."""
        asked = "select number, place from choices where kind = 'session' and answered is null"
        return set(map(tuple, self._all(asked)))

    def remove(self, reader: str) -> None:
        """Remove a reader with all answers, and those of the writer to them."""
        rows = self._all("select number from readers where reader = ?", reader)
        super().remove(reader)
        for folder in self.study.folder.glob(f"answers/{rows[0][0]}-*"):
            shutil.rmtree(folder)

    def sessions(self) -> list[tuple[ReaderPage, str, dict[str, str], dict[str, float]]]:
        """The sessions that have ended: page, hashed reader, and by step turns and seconds."""
        sessions = []
        for row in self._all(_SESSIONS):
            page = page_of(row)
            turns = self._all(_TURNS, page.number, page.place, page.place)
            seconds = {
                turn["step"]: turn["seconds"] if turn["place"] == page.place else 0.0
                for turn in turns
            }
            sessions.append((page, row["reader"], self.turns(page), seconds))
        return sessions

    def export(self) -> tuple[dict[str, pa.Table], dict[str, Any]]:
        """All answers, and turns, stories, ratings and grades of a run.

        Sessions are run again from the stored answers. Ratings and grades of people are without
        the readers whom the rules leave out.
        """
        study, answers = self.study, self.answers()
        rated = {
            (row["reader"], row["story_id"]): row
            for row in answers.to_pylist()
            if row["excluded"] is None
        }
        tables: dict[str, list[dict[str, Any]]] = {name: [] for name in SCHEMAS}
        for page, reader, turns, seconds in self.sessions():
            session, item = asyncio.run(_replay(study, page, turns))
            records = rows_of(session, item, study.models)
            for row in records["turns"]:
                if row["role"] == READER:
                    row["seconds"] = seconds[row["step"]]
            answer = rated.get((reader, page.pair_id))
            if answer and records["stories"]:
                story = records["stories"][0]
                records["ratings"] = rating_rows(
                    study.rubric,
                    answer,
                    story_id=story["story_id"],
                    sample=session.sample,
                    story_digest=story_digest(item.prompt, story["text"]),
                )
                key = {name: getattr(session, name) for name in ("writer", "prompt_id", "sample")}
                records["grades"] += [
                    {**key, "rater": reader, "quantity": name, "grade": grade}
                    for name, grade in grades(json.loads(answer["ratings"])).items()
                ]
            for name in tables:
                tables[name] += records[name]
        exported = {
            name: pa.Table.from_pylist(rows, SCHEMAS[name]) for name, rows in tables.items()
        }
        protocol = study.protocol
        facts = {"protocol": PROTOCOL, "headline": protocol.headline, **protocol.record()}
        return {"answers": answers, **exported}, facts


class Play:
    """A session that is being played; the protocol's coroutine runs in the server's event loop.

    Attributes:
        step: the step that waits for the reader; None while the writer works.
        shown: what the reader is shown with it.
        since: when it was first shown, by the monotonic clock.
        has_story: at the end, whether there is a story to rate; None before.
        reason: why the session cannot go on; None if it can.
        is_spent: whether the reason is the limit of dollars.
    """

    def __init__(self, study: SessionStudy, page: ReaderPage, turns: dict[str, str]) -> None:
        self.study, self._page, self._turns = study, page, turns
        self._loop = asyncio.get_running_loop()
        self.step: str | None = None
        self.shown: Mapping[str, Any] = {}
        self.since = 0.0
        self.has_story: bool | None = None
        self.reason: str | None = None
        self.is_spent = False
        self._reply: asyncio.Future[str] | None = None
        self._changed = asyncio.Event()
        self._task = self._loop.create_task(self._run())

    def cancel(self) -> None:
        self._task.cancel()

    def deliver(self, step: str, text: str) -> None:
        """Go on with what the reader did, if the step waits for it."""
        if step == self.step and self._reply is not None:
            self.step, reply, self._reply = None, self._reply, None
            self._changed.clear()
            self._turns[step] = text
            reply.set_result(text)

    async def settle(self, seconds: float) -> None:
        """Wait until the reader is asked, or the session has ended, but not for long."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _run(self) -> None:
        session, item = self.study.session(self._page)
        folder = self.study.answers_of(self._page.number, self._page.place)
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        models = self.study.fresh_models()
        try:
            with AnswerStore(folder) as answers:
                async with models.clients(answers)[WRITER, session.writer] as client:

                    async def write(request: Request) -> Answer:
                        key = self.study.key_of(request)
                        answer = await client.answer(request.messages, key)
                        if answer is None:
                            self.is_spent = True
                            raise UnfinishedError(client.budget.spent())
                        return answer

                    async def read(request: Request) -> Answer:
                        return Answer("answered", await self._ask(request))

                    session.models = {WRITER: write, READER: read}
                    written = await self.study.protocol.write(session, item)
            self.has_story = bool(written.texts)
        except LitBenchError as error:
            self.reason = str(error)
        finally:
            self._changed.set()

    async def _ask(self, request: Request) -> str:
        if request.step not in self._turns:
            self.shown, self.since = request.session.shown, time.monotonic()
            self._reply = self._loop.create_future()
            self.step = request.step
            self._changed.set()
            return await self._reply
        return self._turns[request.step]


def action_of(step: str, form: Mapping[str, str]) -> str | None:
    """The reader's action in the format of models' replies; None for an empty form."""
    text = form.get("text", "").replace("\r\n", "\n").strip()
    task, choice = step.partition("_")[0], form.get("choice", "")
    words = ", ".join(value for name, value in form.items() if name.startswith("word"))
    said: dict[str, str] | None = None
    if task == "turn" and "end" in form:
        said = {"action": "end_story", "text": text}
    elif task == "turn" and choice and not text:
        said = {"action": "select_choice", "choice_id": choice, "text": ""}
    elif text or choice or words:
        said = {"action": "send_message", "text": text or choice or words}
    return None if said is None else json.dumps(said, ensure_ascii=False)


async def _replay(
    study: SessionStudy, page: ReaderPage, turns: dict[str, str]
) -> tuple[Session, Item]:
    """A session from its stored answers; nothing is asked."""
    session, item = study.session(page)
    with AnswerStore(study.answers_of(page.number, page.place), read_only=True) as answers:

        async def write(request: Request) -> Answer:
            answer = answers.get(study.key_of(request))
            if answer is None:
                raise UnfinishedError(f"{request.step}: no answer is stored")
            return answer

        async def read(request: Request) -> Answer:
            if request.step not in turns:
                raise UnfinishedError(f"{request.step}: the reader did not answer")
            return Answer("answered", turns[request.step])

        session.models = {WRITER: write, READER: read}
        try:
            session.result = ItemResult(await study.protocol.write(session, item), {})
        except UnfinishedError as error:
            session.reason = str(error)
    return session, item
