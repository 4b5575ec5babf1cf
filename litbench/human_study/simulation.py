"""Simulated readers of known taste, who answer the real server over HTTP, to try a study."""

import http.client
import itertools
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

from litbench.errors import DataError
from litbench.human_study.plan import ID_PARAMETER, Study
from litbench.text import digest

_TIMEOUT, _PATIENCE = 30, 60
# A form, or the link of a page that asks to come again.
_NEXT = re.compile(r'<(?:form method="post" action|a class="again" href)="([^"]*)"')
_HIDDEN = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)">')

Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class SimulatedReaders:
    """What simulated readers are like.

    A careful reader chooses the chosen story of a pair with the probability `agreement`, plus an
    effect of the pair and one of the reader, and repeats the choice when the pair comes again. A
    careless reader chooses at random, at once.

    Attributes:
        agreement: share of choices of careful readers that agree with the labels.
        pair_sd: standard deviation of the agreement between pairs.
        reader_sd: standard deviation of the agreement between readers.
        careless: share of readers who choose at random.
        dropout: share of readers who leave before the end.
        seed: seed of all readers.
    """

    agreement: Share = 0.564
    pair_sd: Share = 0.2
    reader_sd: Share = 0.05
    careless: Share = 0.0
    dropout: Share = 0.0
    seed: int = 0


class Reader:
    """One simulated reader; `name` is the id that the reader brings."""

    def __init__(
        self, crowd: SimulatedReaders, number: int, pages: int, name: str | None = None
    ) -> None:
        self._crowd, self.name = crowd, name or f"simulated-{crowd.seed}-{number}"
        draw = random.Random(digest("reader", crowd.seed, number))
        self.is_careless = draw.random() < crowd.careless
        self.effect = draw.gauss(0, crowd.reader_sd)
        self.leaves_after = draw.randrange(pages) if draw.random() < crowd.dropout else math.inf

    def answer(self, study: Study, kind: str, pair_id: str, order: str | None, place: int) -> str:
        """The answer to a page, as forms send it."""
        if kind == "question":
            return study.plan.questions[pair_id].right
        is_chosen = self._chooses_chosen(study, kind, pair_id, place)
        return "first" if is_chosen == (order == "chosen") else "second"

    def _chooses_chosen(self, study: Study, kind: str, pair_id: str, place: int) -> bool:
        """Whether the reader chooses the chosen story; in the attention check, the intact one."""
        crowd = self._crowd
        if self.is_careless:
            return random.Random(digest("guess", self.name, place)).random() < 0.5
        if kind == "attention":
            return study.garbled_side(pair_id) == "rejected"
        effect = random.Random(digest("pair", crowd.seed, pair_id)).gauss(0, crowd.pair_sd)
        chance = random.Random(digest("choice", self.name, pair_id)).random()
        return chance < crowd.agreement + effect + self.effect


def shown_by(html: str) -> tuple[str, ...]:
    """The two stories of a page, or the question and its answers."""
    texts = re.findall(r'id="(?:first|second)-text">(.*?)</div>', html, re.DOTALL)
    asked = re.findall(r'<legend>(.*?)</legend>|name="choice" value="([^"]*)"', html, re.DOTALL)
    return tuple(map(unescape, texts or map("".join, asked)))


@cache
def page_of(study: Study) -> dict[tuple[str, ...], tuple[str, str, str | None]]:
    """The kind, the pair and the side that stands first, by what a page shows."""
    pages: dict[tuple[str, ...], tuple[str, str, str | None]] = {
        (asked.question, *asked.answers): ("question", pair_id, None)
        for pair_id, asked in study.plan.questions.items()
    }
    kinds, sides = ("attention", "pair"), ("chosen", "rejected")
    for pair_id, kind, order in itertools.product(study.by_id, kinds, sides):
        pages[study.sides(pair_id, kind, order)] = kind, pair_id, order
    return pages


class Visitor:
    """Takes one simulated reader through the study; lost connections are tried again.

    `acknowledged` holds the answers that the server accepted, by page.
    """

    def __init__(self, study: Study, url: str, reader: Reader) -> None:
        self._study, self._url, self.reader = study, url.rstrip("/"), reader
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPCookieProcessor(CookieJar()), urllib.request.ProxyHandler({})
        )
        self.acknowledged: dict[int, str] = {}

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
                    raise DataError(f"{self._url} does not answer ({error}): serve it") from error
                time.sleep(0.2)

    def visit(self) -> str:
        """Go from consent to the end; returns how it ended."""
        statements = enumerate(self._study.plan.statements)
        right = {f"statement{at}": "true" if one.is_true else "false" for at, one in statements}
        answered = 0
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
            elif answered < self.reader.leaves_after:
                page = self._answer(page, hidden)
                answered += 1
            else:
                return "left"
        return "finished" if 'class="code"' in page else "turned away"

    def _answer(self, page: str, hidden: dict[str, str]) -> str:
        kind, pair_id, order = page_of(self._study)[shown_by(page)]
        place = int(hidden["place"])
        answer = self.reader.answer(self._study, kind, pair_id, order, place)
        least = 0.0 if kind == "question" else self._study.least_seconds(pair_id)
        if not self.reader.is_careless:
            time.sleep(least)
        status, after = self.send("/answer", hidden | {"choice": answer})
        if status == 422:
            # Told to take longer.
            time.sleep(least + 1)
            status, after = self.send("/answer", hidden | {"choice": answer})
        if status == 200:
            self.acknowledged[place] = answer
        return after


def visit_study(
    study: Study, crowd: SimulatedReaders, url: str, readers: int
) -> tuple[Counter[str], list[Visitor]]:
    """Let simulated readers answer a running server, all at once.

    Returns how many ended how, and the readers.
    """
    pages, ids = study.plan.pairs_per_reader, study.plan.reader_ids
    names: Sequence[str | None] = [None] * readers if ids is None else ids[:readers]
    visitors = [
        Visitor(study, url, Reader(crowd, at, pages, name)) for at, name in enumerate(names, 1)
    ]
    with ThreadPoolExecutor(readers) as threads:
        return Counter(threads.map(Visitor.visit, visitors)), visitors
