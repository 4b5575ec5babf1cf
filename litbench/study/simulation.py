"""Simulated readers of known taste, who answer the real server over HTTP, to try a study."""

import http.client
import itertools
import json
import math
import random
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from html import unescape
from http.cookiejar import CookieJar
from typing import Annotated

from pydantic import Field

from litbench.data.records import SIDES
from litbench.data.text import digest
from litbench.runs.errors import DataError
from litbench.study.pairs import PairStudy
from litbench.study.plan import ID_PARAMETER, Study
from litbench.study.ratings import RatingStudy
from litbench.study.sessions import SessionStudy

_TIMEOUT, _PATIENCE = 30, 60
# In sessions, the chance to end the story in a turn, and the turns among which readers leave.
_ENDS, _TURNS = 0.05, 20
# Standard deviations of the agreement or the ratings: of pairs or stories, of readers; of a rating.
_PAIR_SD, _READER_SD, _NOISE_SD = 0.2, 0.05, 0.15
# A form, or the link of a page that asks to come again.
_NEXT = re.compile(r'<(?:form method="post" action|a class="again" href)="([^"]*)"')
_LINE = re.compile(r'<fieldset class="criterion"><legend>(.*?)</legend>(.*?)</fieldset>', re.DOTALL)
_OPTION = re.compile(r'name="(\w+)" value="([^"]*)"')
_HIDDEN = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)">')

Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class SimulatedReaders:
    """The behaviour of simulated readers.

    A careful reader chooses the chosen story of a pair with the probability `agreement`, plus an
    effect of the pair and one of the reader, and repeats the choice when the pair comes again. A
    careless reader chooses at random, at once. A careful rating is the middle of the scale plus an
    effect of the story, one of the reader and noise, as shares of the scale; some readers go back
    and rate a story anew before they submit a group. In a session a careful reader takes a choice
    or says something; a careless one takes the first choice, or says "ok", without reading.

    Attributes:
        agreement: share of choices of careful readers that agree with the labels.
        careless: share of readers who choose at random.
        dropout: share of readers who leave before the end.
        seed: seed of all readers.
    """

    agreement: Share = 0.564
    careless: Share = 0.0
    dropout: Share = 0.0
    seed: int = 0


class Reader:
    """One simulated reader; `name` is the id that the reader brings.

    `failed_check` tells whether a wrong number was sent where a page of ratings asked for another;
    careless readers send the right one by chance.
    """

    def __init__(
        self, simulated: SimulatedReaders, number: int, pages: int, name: str | None = None
    ) -> None:
        self._simulated, self.name = simulated, name or f"simulated-{simulated.seed}-{number}"
        draw = random.Random(digest("reader", simulated.seed, number))
        self.is_careless = draw.random() < simulated.careless
        self.effect = draw.gauss(0, _READER_SD)
        self.failed_check = False
        self.leaves_after = draw.randrange(pages) if draw.random() < simulated.dropout else math.inf

    def answer(
        self, study: PairStudy, kind: str, pair_id: str, order: str | None, position: int
    ) -> str:
        """The answer to a page, see PairStore; tags are drawn at random."""
        is_chosen = self._chooses_chosen(study, kind, pair_id, position)
        draw, tags = random.Random(digest("tags", self.name, pair_id)), len(study.plan.tags)
        drawn = [str(draw.randrange(tags)) for _ in SIDES if tags]
        return " ".join(["first" if is_chosen == (order == "chosen") else "second", *drawn])

    def _chooses_chosen(self, study: PairStudy, kind: str, pair_id: str, position: int) -> bool:
        """Whether the reader chooses the chosen story; in the attention check, the intact one."""
        simulated = self._simulated
        if self.is_careless:
            return random.Random(digest("guess", self.name, position)).random() < 0.5
        if kind == "attention":
            return study.garbled_side(pair_id) == "rejected"
        effect = random.Random(digest("pair", simulated.seed, pair_id)).gauss(0, _PAIR_SD)
        chance = random.Random(digest("choice", self.name, pair_id)).random()
        return chance < simulated.agreement + effect + self.effect

    def rate(self, story_id: str, html: str, again: int = 0) -> dict[str, str]:
        """The fields of a page of ratings; another opinion each time it is rated `again`."""
        simulated, answers = self._simulated, {}
        quality = random.Random(digest("pair", simulated.seed, story_id)).gauss(0, _PAIR_SD)
        for legend, inputs in _LINE.findall(html):
            fields, numbers = zip(*_OPTION.findall(inputs), strict=True)
            field = fields[0]
            draw = random.Random(digest("rating", self.name, story_id, field, again))
            asked = re.search(r"choose (\S+) here", legend)
            share = 0.5 + quality + self.effect + draw.gauss(0, _NOISE_SD)
            index = round(min(max(share, 0), 1) * (len(numbers) - 1))
            if self.is_careless:
                index = draw.randrange(len(numbers))
            answers[field] = asked[1] if asked and not self.is_careless else numbers[index]
            self.failed_check |= asked is not None and answers[field] != asked[1]
        return answers


def shown_by(html: str) -> tuple[str, ...]:
    """The stories of a page."""
    return tuple(map(unescape, re.findall(r'id="\w+-text">(.*?)</div>', html, re.DOTALL)))


@cache
def page_of(study: Study) -> dict[tuple[str, ...], tuple[str, str, str | None]]:
    """The kind, the pair or story, and the side that stands first, by the stories of a page."""
    if not isinstance(study, PairStudy):
        return {(row["text"],): ("rating", name, None) for name, row in study.by_id.items()}
    every = itertools.product(study.by_id, ("attention", "pair"), SIDES)
    return {study.sides(name, kind, order): (kind, name, order) for name, kind, order in every}


class Visitor:
    """Takes one simulated reader through the study; lost connections are tried again.

    `acknowledged` holds the answers that the server accepted, by page, and `turns` those of a
    session, by step.
    """

    def __init__(self, study: Study, url: str, reader: Reader) -> None:
        self._study, self._url, self.reader = study, url.rstrip("/"), reader
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPCookieProcessor(CookieJar()), urllib.request.ProxyHandler({})
        )
        self.acknowledged: dict[int, str] = {}
        self.turns: dict[str, dict[str, str]] = {}
        self._answers = 0

    def send(self, path: str, fields: dict[str, str] | None = None) -> tuple[int, str]:
        """The status and the page after redirects; DataError if the server fails or stays away."""
        data = None if fields is None else urllib.parse.urlencode(fields).encode()
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                with self._opener.open(self._url + path, data, timeout=_TIMEOUT) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    if error.code < 500:
                        return error.code, error.read().decode()
                    if error.code != 503 or time.monotonic() > end:
                        raise DataError(f"{path}: status {error.code}: see its log") from error
                time.sleep(0.2)
            except (OSError, http.client.HTTPException) as error:
                if time.monotonic() > end:
                    raise DataError(f"{self._url} does not answer ({error}): start it") from error
                time.sleep(0.2)

    def visit(self) -> str:
        """Go from consent to the end; returns how it ended."""
        statements = enumerate(self._study.plan.statements or [])
        right = {
            f"statement{at}": "true" if statement.is_true else "false"
            for at, statement in statements
        }
        _, page = self.send(f"/?{ID_PARAMETER}={self.reader.name}")
        while form := _NEXT.search(page):
            path, hidden = form[1], dict(_HIDDEN.findall(page))
            if path == "/read":
                time.sleep(0.5)
                _, page = self.send(path)
            elif path == "/start":
                _, page = self.send(path, hidden | {"agree": "yes"})
            elif path == "/statements":
                _, page = self.send(path, hidden | right)
            elif path == "/retry":
                time.sleep(0.5)
                _, page = self.send(path, hidden)
            elif self._answers < self.reader.leaves_after:
                page = self._act(path, page)
                self._answers += 1
            else:
                return "left"
        return "finished" if 'class="code"' in page else "turned away"

    def _act(self, path: str, page: str) -> str:
        if path == "/turn":
            return self._play(page)
        return (self._answer if self._study.plan.kind == "pairs" else self._rate)(page)

    def _play(self, page: str) -> str:
        """Do something in a session: take a choice, say something, or end it."""
        fields = dict(_HIDDEN.findall(page))
        draw = random.Random(digest("turn", self.reader.name, fields["step"]))
        options = re.findall(r'<input type="(\w+)" name="(\w+)" value="([^"]*)"> ', page)
        if 'name="end"' in page and draw.random() < _ENDS:
            fields["end"] = "yes"
        elif options and (self.reader.is_careless or draw.random() < 0.7):
            _, name, value = options[0] if self.reader.is_careless else draw.choice(options)
            fields[name] = unescape(value)
        elif self.reader.is_careless:
            fields["text"] = "ok"
        else:
            fields["text"] = f"I say {draw.randrange(10**6)} and wait."
        status, after = self.send("/turn", fields)
        if status == 200:
            self.turns[fields["step"]] = fields
        return after

    def _rate(self, page: str) -> str:
        """Rate the story of a page, or change a rating of the group and submit it."""
        if 'class="criterion"' not in page:
            links = re.findall(r'<a href="(/read\?page=\d+)">', page)
            if links and not self.reader.is_careless and len(self.acknowledged) % 2:
                self._rate(self.send(links[0])[1])
            return self.send("/answer", dict(_HIDDEN.findall(page)))[1]
        hidden = dict(_HIDDEN.findall(page))
        name = ""
        if isinstance(self._study, RatingStudy):
            _, name, _ = page_of(self._study)[shown_by(page)]
        sent = self.reader.rate(name, page, self._answers)
        return self._send_answer(name or None, hidden | sent, json.dumps(sent, sort_keys=True))

    def _answer(self, page: str) -> str:
        assert isinstance(self._study, PairStudy)
        hidden = dict(_HIDDEN.findall(page))
        kind, pair_id, order = page_of(self._study)[shown_by(page)]
        position = int(hidden["place"])
        answer = self.reader.answer(self._study, kind, pair_id, order, position)
        fields = dict(zip(("choice", "tag_first", "tag_second"), answer.split(" "), strict=False))
        return self._send_answer(pair_id, hidden | fields, answer)

    def _send_answer(self, name: str | None, fields: dict[str, str], answer: str) -> str:
        """Send an answer after the time that reading a pair or story takes; None: no time."""
        least = 0.0 if name is None else self._study.min_seconds(name)
        if not self.reader.is_careless:
            time.sleep(least)
        status, after = self.send("/answer", fields)
        if status == 422:
            # Told to take longer.
            time.sleep(least + 1)
            status, after = self.send("/answer", fields)
        if status == 200:
            self.acknowledged[int(fields["place"])] = answer
        return after


def pages_of(study: Study) -> int:
    """Pages about pairs or stories that a reader gets."""
    if isinstance(study, RatingStudy):
        return int(study.estimate()["pages"])
    if isinstance(study, SessionStudy):
        return _TURNS
    assert isinstance(study, PairStudy)
    return study.plan.pairs_per_reader


def visit_study(
    study: Study, simulated: SimulatedReaders, url: str, readers: int
) -> tuple[Counter[str], list[Visitor]]:
    """Let simulated readers answer a running server, all at once.

    Returns how many ended how, and the readers.
    """
    pages, ids = pages_of(study), study.plan.reader_ids
    names: Sequence[str | None] = [None] * readers if ids is None else ids[:readers]
    visitors = [
        Visitor(study, url, Reader(simulated, at, pages, name)) for at, name in enumerate(names, 1)
    ]
    with ThreadPoolExecutor(readers) as threads:
        return Counter(threads.map(Visitor.visit, visitors)), visitors
