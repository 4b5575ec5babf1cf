"""Simulated readers of known taste, to try a study before people are asked.

They answer the real server over HTTP (`visit_study`) or, without a server, the store
(`simulate_choices`), which is fast enough for a thousand studies.
"""

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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from html import unescape
from http.cookiejar import CookieJar
from typing import ClassVar

import pyarrow as pa

from litbench.errors import ConfigError, DataError
from litbench.study.plan import Study
from litbench.study.store import Store
from litbench.text import digest

_TIMEOUT, _PATIENCE = 30, 60


@dataclass(frozen=True)
class Crowd:
    """What simulated readers are like.

    A careful reader chooses the chosen story of a pair with the probability `agreement`, plus an
    effect of the pair and one of the reader, and repeats the choice when the pair comes again. A
    careless reader chooses at random, at once.
    """

    ABOUT: ClassVar[dict[str, str]] = {
        "agreement": "share of choices of careful readers that agree with the labels",
        "pair_sd": "standard deviation of the agreement between pairs",
        "reader_sd": "standard deviation of the agreement between readers",
        "careless": "share of readers who choose at random",
        "dropout": "share of readers who leave before the end",
        "seed": "seed of all readers",
    }

    agreement: float = 0.564
    pair_sd: float = 0.2
    reader_sd: float = 0.05
    careless: float = 0.0
    dropout: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.ABOUT.keys() - {"seed"}:
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: give a number from 0 to 1")


class Reader:
    """One simulated reader."""

    def __init__(self, crowd: Crowd, number: int, pages: int) -> None:
        self._crowd, self.number = crowd, number
        draw = random.Random(digest("reader", crowd.seed, number))
        self.is_careless = draw.random() < crowd.careless
        self.effect = draw.gauss(0, crowd.reader_sd)
        self.leaves_after = draw.randrange(pages) if draw.random() < crowd.dropout else math.inf

    @property
    def name(self) -> str:
        """The id that the reader brings."""
        return f"simulated-{self._crowd.seed}-{self.number}"

    def answer(self, study: Study, kind: str, pair_id: str, order: str | None, place: int) -> str:
        """The answer to a page, as forms send it."""
        if kind == "question":
            return study.plan.questions[pair_id].right
        is_chosen = self._chooses_chosen(kind, pair_id, place)
        return "first" if is_chosen == (order == "chosen") else "second"

    def _chooses_chosen(self, kind: str, pair_id: str, place: int) -> bool:
        """Whether the reader chooses the chosen story; in the attention check, the intact one."""
        crowd = self._crowd
        if self.is_careless:
            return random.Random(digest("guess", self.name, place)).random() < 0.5
        if kind == "attention":
            return True
        effect = random.Random(digest("pair", crowd.seed, pair_id)).gauss(0, crowd.pair_sd)
        chance = random.Random(digest("choice", self.name, pair_id)).random()
        return chance < crowd.agreement + effect + self.effect


# Without a server -----------------------------------------------------------------------------


def simulate_choices(study: Study, crowd: Crowd) -> pa.Table:
    """The choices of a study that has all its readers; table with the schema CHOICES."""
    # Every look at the clock is a minute later, so that nobody reads too fast.
    store = Store(study, ":memory:", now=itertools.count(0.0, 60.0).__next__)
    for number in itertools.count(1):
        reader = Reader(crowd, number, study.plan.pairs_per_reader)
        store.start(reader.name)
        store.try_statements(reader.name, are_right=True)
        answered = 0
        while page := store.next_page(reader.name):
            if answered == reader.leaves_after:
                store.leave(reader.name)
                break
            answer = reader.answer(study, page.kind, page.pair_id, page.order, page.place)
            store.answer(reader.name, page.place, answer)
            answered += 1
        if page is None and not answered:
            break
    choices = store.choices()
    store.close()
    return choices


# Over HTTP ------------------------------------------------------------------------------------


class Form:
    """What a simulated reader takes from a page.

    Attributes:
        action: where the form goes; empty if the page asks nothing.
        reader: the id that the consent form carries.
        place: number of the page.
        shown: the two stories, or the answers to choose from.
        has_code: whether it is the end.
    """

    def __init__(self, html: str) -> None:
        self.action, self.reader, self.place = (
            next(iter(re.findall(pattern, html)), "")
            for pattern in (
                r'action="(/start|/statements|/answer)"', r'name="reader" value="([^"]*)"',
                r'name="place" value="(\d+)"',
            )
        )  # fmt: skip
        texts = re.findall(r'id="(?:first|second)-text">(.*?)</div>', html, re.DOTALL)
        answers = re.findall(r'name="choice" value="([^"]*)"', html)
        self.shown = tuple(map(unescape, texts or answers))
        self.has_code = 'class="code"' in html


@cache
def page_of(study: Study) -> dict[tuple[str, ...], tuple[str, str, str | None]]:
    """The kind, the pair and the side that stands first, by what a page shows."""
    pages: dict[tuple[str, ...], tuple[str, str, str | None]] = {
        tuple(asked.answers): ("question", pair_id, None)
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

    def send(self, path: str, fields: dict[str, str] | None = None) -> tuple[int, Form]:
        """The status and the page after redirects; DataError if the server fails or stays away."""
        data = None if fields is None else urllib.parse.urlencode(fields).encode()
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                with self._opener.open(self._url + path, data, timeout=_TIMEOUT) as answer:
                    return answer.status, Form(answer.read().decode())
            except urllib.error.HTTPError as error:
                with error:
                    if error.code >= 500:
                        raise DataError(f"{path}: status {error.code}: see its log") from error
                    return error.code, Form(error.read().decode())
            except (OSError, http.client.HTTPException) as error:
                if time.monotonic() > end:
                    raise DataError(f"{self._url} does not answer ({error}): serve it") from error
                time.sleep(0.2)

    def visit(self) -> str:
        """Go from consent to the end; returns how it ended."""
        plan, answered = self._study.plan, 0
        right = {
            f"statement{at}": "true" if one.is_true else "false"
            for at, one in enumerate(plan.statements)
        }
        status, form = self.send(f"/?{plan.id_parameter}={self.reader.name}")
        while form.action:
            if form.action == "/start":
                status, form = self.send("/start", {"reader": form.reader, "agree": "yes"})
            elif form.action == "/statements" and status == 200:
                status, form = self.send("/statements", right)
            elif form.action == "/answer" and answered < self.reader.leaves_after:
                status, form = self._answer(form)
                answered += 1
            else:
                return "left"
        return "finished" if form.has_code else "turned away"

    def _answer(self, form: Form) -> tuple[int, Form]:
        kind, pair_id, order = page_of(self._study)[form.shown]
        answer = self.reader.answer(self._study, kind, pair_id, order, int(form.place))
        least = 0.0 if kind == "question" else self._study.least_seconds(pair_id)
        if not self.reader.is_careless:
            time.sleep(least)
        status, after = self.send("/answer", {"place": form.place, "choice": answer})
        if status == 422:
            # Told to take longer.
            time.sleep(least + 1)
            status, after = self.send("/answer", {"place": form.place, "choice": answer})
        if status == 200:
            self.acknowledged[int(form.place)] = answer
        return status, after


def visit_study(
    study: Study, crowd: Crowd, url: str, readers: int, at_once: int
) -> tuple[Counter[str], list[Visitor]]:
    """Let simulated readers answer a running server; returns how many ended how, and them."""
    pages = study.plan.pairs_per_reader
    visitors = [Visitor(study, url, Reader(crowd, at, pages)) for at in range(1, readers + 1)]
    with ThreadPoolExecutor(at_once) as threads:
        return Counter(threads.map(Visitor.visit, visitors)), visitors
