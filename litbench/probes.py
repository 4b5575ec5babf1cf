"""Probes: changes of a story that readers should not care about, or that spoil it.

A probe makes a changed copy of a story. A label-preserving one (typing slips, straight or curly
quotes, a heading) leaves the story as good as it was, so a rater should be torn between the two; a
label-breaking one (filler, a lost ending, shuffled sentences, a note to the judge) does not, so a
rater that prefers the copy is fooled. Neither was put before readers: that the one kind keeps the
label and the other breaks it is what these probes assume.

A change depends on seed, probe and story alone (one also on the stories that there are), and grows
with its strength. What it takes first it takes at any greater strength too. Where there is nothing
to change (quotes in a story without any), the probe is not applicable, and counted.

Fillers, notes and synonyms are English and Chinese (`litbench.probe_texts`); a story that is mostly
written without spaces between words gets the Chinese ones, any other the English.
"""

import functools
import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa
from tqdm import tqdm

from litbench.config import nearest
from litbench.errors import ConfigError, DataError
from litbench.probe_texts import (
    BOASTS,
    CHINESE_SLIPS,
    FAKE_MARKERS,
    FAKE_VERDICTS,
    FILLER,
    INSTRUCTIONS,
    SYNONYMS,
    Language,
)
from litbench.records import PAIRS, empty_columns, pair_id
from litbench.text import count_words, digest, prompt_key

Effect = Literal["breaking", "preserving"]

_HAN = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff70\U00020000-\U0003ffff"
_UNSPACED = re.compile(f"[{_HAN}]")
# A character of a script without spaces, or what stands between blanks and such characters: to
# permute each among its own kind merges no two words and divides none.
_TOKEN = re.compile(rf"[{_HAN}]|[^\s{_HAN}]+")
_CLOSERS = r"[\"'”’»」』）)\]*_]*"
# A run of stops or blanks is tried from its first one alone: from each of them, ten thousand would
# take seconds.
_ENDS = (
    rf"[。！？｡]+{_CLOSERS}[^\S\n]*\n*\s*"
    rf"|(?<![.!?…])[.!?…]+{_CLOSERS}\s+(?=[^a-z\s])"
    r"|(?<!\s)\s*\n\s*"
)
_SENTENCE_END = re.compile(_ENDS)
# Looked for in so many letters at the end of a text.
_LONGEST_ABBREVIATION = 8
_ABBREVIATION = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Mt|vs|No)|(?:^|\s)[A-Z])\.$")
_SPEECH = re.compile(r"[\"'*_]*\w")
# Letters left out at the head of a word, of which the mark stands.
_ELISION = re.compile(r"'(?:tis|twas|em|til|cause|cuz|bout|n|\d\ds?)\b", re.I)
_BREAK = re.compile(r"(?<![^\S\n])[^\S\n]*\n\s*")
# The longest share of words that typing slips touch, and of sentences that an ending takes.
_MOST_SLIPS = 1 / 20
_MOST_CUT = 3 / 4
_MOST_HEADINGS = 4
_NOTES = 4
# Stories of other prompts among which the one of the most like length is taken.
_CANDIDATES = 8


@dataclass(frozen=True)
class Sentence:
    """A piece of a text and the blanks behind it.

    Attributes:
        text: without the blanks around it, but for those before a text's first one.
        gap: what stands before the next.
    """

    text: str
    gap: str


def split_sentences(text: str) -> list[Sentence]:
    """Divide a text into sentences: text and gap of all of them, in turn, are the text again.

    A sentence ends at a full stop, question or exclamation mark or dots, with the quotation marks
    and brackets that close behind it, where blanks and no small letter follow; at the full-width
    marks of Chinese and Japanese, where anything follows; and at every line break. A stop after
    some titles and after a single capital ends none.

    Args:
        text: any text.

    Returns:
        No sentence for a text without anything but blanks.
    """
    found: list[Sentence] = []
    start = 0
    for match in _SENTENCE_END.finditer(text):
        whole = match[0]
        body = text[start : match.start()] + whole.rstrip()
        if not body.strip() or (
            "\n" not in whole and _ABBREVIATION.search(body[-_LONGEST_ABBREVIATION:])
        ):
            continue
        found.append(Sentence(body, whole[len(whole.rstrip()) :]))
        start = match.end()
    rest = text[start:]
    if rest.strip():
        body = rest.rstrip()
        found.append(Sentence(body, rest[len(body) :]))
    elif rest and found:
        found[-1] = Sentence(found[-1].text, found[-1].gap + rest)
    return found


def join_sentences(sentences: Iterable[Sentence]) -> str:
    """Text and gap of each, in turn."""
    return "".join(sentence.text + sentence.gap for sentence in sentences)


def language_of(text: str, words: int) -> Language:
    """`zh` where most words are characters of a script without spaces, else `en`.

    Args:
        text: a story.
        words: how many it has, see `litbench.text.count_words`.
    """
    return "zh" if 2 * len(_UNSPACED.findall(text)) > words else "en"


def _count(texts: Sequence[str]) -> list[int]:
    """Words of each text."""
    # One call for many: each compiles its expressions, which takes milliseconds.
    counts: list[int] = count_words(pa.array(texts, pa.large_string())).to_pylist()
    return counts


@functools.cache
def _filler_words(language: Language) -> dict[str, int]:
    """The filler sentences and their words."""
    return dict(zip(FILLER[language], _count(FILLER[language]), strict=True))


@dataclass(frozen=True)
class Original:
    """A story to be changed."""

    story_id: str
    prompt_id: str
    prompt: str
    text: str


def originals_of_pairs(
    pairs: pa.Table, side: Literal["chosen", "rejected", "both"]
) -> list[Original]:
    """The stories of one side of pairs or of both, each once; those without a text are left out.

    Args:
        pairs: table by the schema PAIRS.
        side: which.
    """
    found: dict[str, Original] = {}
    for one in ("chosen", "rejected") if side == "both" else (side,):
        names = (f"{one}_story_id", "prompt_id", "prompt", one)
        for row in zip(*(pairs[name].to_pylist() for name in names), strict=True):
            found.setdefault(row[0], Original(*row))
    return [one for one in found.values() if one.text.strip()]


def originals_of_stories(stories: pa.Table, sources: Sequence[str]) -> list[Original]:
    """The stories of a table by the schema STORIES; those without a text are left out.

    Args:
        stories: the table.
        sources: take only these, such as the human ones; all where none is named.

    Raises:
        ConfigError: a source has no story.
    """
    there = stories["source"].to_pylist()
    for source in sources:
        if source not in there:
            raise ConfigError(
                f"sources: no story is of '{source}': {nearest(source, sorted(set(there)))}"
            )
    names = ("story_id", "prompt_id", "prompt", "text")
    rows = zip(*(stories[name].to_pylist() for name in names), strict=True)
    return [
        Original(*row)
        for row, source in zip(rows, there, strict=True)
        if row[3].strip() and (not sources or source in sources)
    ]


def draw_originals(
    originals: Sequence[Original], per_prompt: int, prompts: int | None, seed: int
) -> list[Original]:
    """Draw stories of every prompt, or of some prompts.

    Args:
        originals: to draw from; their order says nothing.
        per_prompt: most stories of one prompt.
        prompts: most prompts; None for all.
        seed: another seed, other stories.

    Raises:
        DataError: there is none.
    """
    by_prompt: dict[str, list[Original]] = {}
    for one in originals:
        by_prompt.setdefault(prompt_key(one.prompt), []).append(one)
    if not by_prompt:
        raise DataError("there is no story with a text to change: check the file and the split")
    keys = sorted(by_prompt, key=lambda key: digest(seed, key))
    return [
        one
        for key in keys[:prompts]
        for one in sorted(by_prompt[key], key=lambda one: digest(seed, one.story_id))[:per_prompt]
    ]


class Subject:
    """A story as the probes see it.

    Attributes:
        text: the story.
        other: gives a story of another prompt, or None where there is none.

    Args:
        text: the story.
        seed: seeds all draws, with the story and the probe.
        other: see above; takes the draws to make.
    """

    def __init__(
        self, text: str, seed: int, other: Callable[[random.Random], str | None] | None = None
    ) -> None:
        self.text = text
        self._seed = seed
        self._other = other

    @cached_property
    def language(self) -> Language:
        """See `language_of`."""
        return language_of(self.text, sum(self.words))

    @cached_property
    def sentences(self) -> list[Sentence]:
        """See `split_sentences`."""
        return split_sentences(self.text)

    @cached_property
    def words(self) -> list[int]:
        """Words of every sentence."""
        return _count([sentence.text for sentence in self.sentences])

    @cached_property
    def units(self) -> list[tuple[int, int, int]]:
        """Start, end and words of every paragraph, or of every sentence where there is one only."""
        spans = _paragraphs(self.text)
        if len(spans) < 2:
            ends = itertools.accumulate(len(one.text) + len(one.gap) for one in self.sentences)
            spans = [
                (end - len(one.text) - len(one.gap), end - len(one.gap))
                for end, one in zip(ends, self.sentences, strict=True)
            ]
        counts = _count([self.text[start:end] for start, end in spans])
        return [(*span, words) for span, words in zip(spans, counts, strict=True)]

    @property
    def space(self) -> str:
        """What stands between two sentences of a paragraph."""
        return "" if self.language == "zh" else " "

    def draws(self, purpose: str) -> random.Random:
        """The same numbers at every strength, so that a greater one takes more of the same."""
        return random.Random(int(digest("probe", self._seed, purpose, self.text), 16))

    def ranking(self, purpose: str, places: int) -> list[int]:
        """The places 0 to `places` - 1 in a drawn order."""
        return self.draws(purpose).sample(range(places), places)

    def other(self) -> str | None:
        """A story of another prompt."""
        return None if self._other is None else self._other(self.draws("other story"))


Change = Callable[[Subject, float], str | None]


def _part(count: int, strength: float) -> int:
    """How many of `count` things a share of them is; at least one, where there are any."""
    return min(count, max(1, round(strength * count)))


def _replace(text: str, changes: Iterable[tuple[int, int, str]]) -> str:
    """A text with other letters at some places, each given as start, end and what to put there."""
    pieces, last = [], 0
    for start, end, new in sorted(changes):
        pieces += [text[last:start], new]
        last = end
    return "".join([*pieces, text[last:]])


# Readers should not care ---------------------------------------------------------------------


def _typos(subject: Subject, strength: float) -> str | None:
    text = subject.text
    if subject.language == "zh":
        changes = [
            (place, place + 1, CHINESE_SLIPS[letter])
            for place, letter in enumerate(text)
            if letter in CHINESE_SLIPS
        ]
    else:
        draws = subject.draws("typos: letters")
        changes = []
        for match in re.finditer(r"\b[A-Za-z]{4,}\b", text):
            word = match[0]
            # Inside the word, and not two of the same letter.
            places = [k for k in range(1, len(word) - 2) if word[k] != word[k + 1]]
            if places:
                k = draws.choice(places)
                start = match.start() + k
                changes.append((start, start + 2, word[k + 1] + word[k]))
    ranking = subject.ranking("typos", len(changes))
    return _replace(
        text, [changes[k] for k in ranking[: _part(len(changes), strength * _MOST_SLIPS)]]
    )


def _synonyms(subject: Subject, strength: float) -> str | None:
    text, table = subject.text, SYNONYMS[subject.language]
    changes: list[tuple[int, int, str]] = []
    if subject.language == "zh":
        changes = [(*match.span(), table[match[0]]) for match in re.finditer("|".join(table), text)]
    else:
        for match in re.finditer(r"(?:\b(an?) )?(?<![\w'’-])([A-Za-z]+)(?![\w'’-])", text, re.I):
            article, word = match[1], match[2]
            other = table.get(word.lower())
            if other is None or (article and (other[0] in "aeiou") != (article.lower() == "an")):
                continue
            if word[0].isupper():
                other = other.upper() if len(word) > 1 and word.isupper() else other.capitalize()
            changes.append((match.start(2), match.end(2), other))
    ranking = subject.ranking("synonyms", len(changes))
    return _replace(text, [changes[k] for k in ranking[: _part(len(changes), strength)]])


def _paragraphs(text: str) -> list[tuple[int, int]]:
    """Start and end of every line that is not blank, without the blanks around it."""
    return [match.span() for match in re.finditer(r"\S(?:[^\n]*\S)?", text)]


def _markdown(subject: Subject, strength: float) -> str | None:
    changes = [
        (start, end, f"*{subject.text[start:end]}*")
        for start, end in _paragraphs(subject.text)
        # Marks of their own would end these, and a line may be a heading, a list or a quotation.
        if not set(subject.text[start:end]) & set("*_`") and subject.text[start] not in "#>-+="
    ]
    ranking = subject.ranking("markdown", len(changes))
    return _replace(subject.text, [changes[k] for k in ranking[: _part(len(changes), strength)]])


def _curly(text: str, place: int) -> str:
    """The typographic form of the straight quotation mark that stands there."""
    before = text[place - 1] if place else " "
    if before in "—–-\"'*_":
        # Speech that is broken off ends so too, and so does a quotation within one.
        opens = _SPEECH.match(text, place + 1) is not None
    else:
        opens = before.isspace() or before in "([{“‘"
    if text[place] == '"':
        return "“" if opens else "”"
    return "‘" if opens and not _ELISION.match(text, place) else "’"


def _quotes(subject: Subject, strength: float) -> str | None:
    text = subject.text
    straight = {"“": '"', "”": '"', "‘": "'", "’": "'"}
    corners = {"“": "「", "”": "」", "‘": "『", "’": "』"}
    back = {corner: mark for mark, corner in corners.items()}
    if re.search("[\"']", text):
        changes = [(m.start(), _curly(text, m.start())) for m in re.finditer("[\"']", text)]
    else:
        table = straight if subject.language == "en" else {**corners, **back}
        changes = [(place, table[mark]) for place, mark in enumerate(text) if mark in table]
    # A whole paragraph at a time, so that no quotation opens in one way and ends in another.
    groups = [
        [(place, place + 1, new) for place, new in changes if start <= place < end]
        for start, end in _paragraphs(text)
    ]
    groups = [group for group in groups if group]
    ranking = subject.ranking("quotes", len(groups))
    taken = ranking[: _part(len(groups), strength)]
    return _replace(text, itertools.chain.from_iterable(groups[k] for k in taken))


def _breaks(text: str) -> list[re.Match[str]]:
    """The breaks between paragraphs."""
    first, last = len(text) - len(text.lstrip()), len(text.rstrip())
    return [match for match in _BREAK.finditer(text) if first <= match.start() < last]


def _blank_lines(subject: Subject, strength: float) -> str | None:
    breaks = _breaks(subject.text)
    ranking = subject.ranking("blank lines", len(breaks))
    return _replace(
        subject.text,
        [
            (breaks[k].start(), breaks[k].start(), "\n\n")
            for k in ranking[: _part(len(breaks), strength)]
        ],
    )


def _headings(subject: Subject, strength: float) -> str | None:
    breaks = _breaks(subject.text)
    most = min(_MOST_HEADINGS, 1 + len(breaks))
    taken = subject.ranking("headings", len(breaks))[: _part(most, strength) - 1]
    name = "## 第{}节" if subject.language == "zh" else "## Part {}"
    # One stands at the top; more blank lines are a probe of their own.
    changes = [(0, 0, name.format(1) + "\n\n")]
    for number, k in enumerate(sorted(taken), 2):
        lead = "" if breaks[k][0].count("\n") > 1 else "\n"
        changes.append((breaks[k].end(), breaks[k].end(), f"{lead}{name.format(number)}\n\n"))
    return _replace(subject.text, changes)


# Readers should ------------------------------------------------------------------------------


def _fillers(subject: Subject, words: int) -> list[str]:
    """Filler sentences in a drawn order, until they have that many words."""
    counts = _filler_words(subject.language)
    draws = subject.draws("filler")
    taken: list[str] = []
    left = words
    while left > 0 or not taken:
        # Each once before any comes again.
        for sentence in draws.sample(list(counts), len(counts)):
            if left <= 0 and taken:
                break
            taken.append(sentence)
            left -= counts[sentence]
    return taken


def _padding(subject: Subject, strength: float) -> str | None:
    if not subject.sentences:
        return None
    draws = subject.draws("padding")
    behind: dict[int, list[str]] = {}
    for sentence in _fillers(subject, round(strength * sum(subject.words))):
        behind.setdefault(draws.randrange(len(subject.sentences)), []).append(sentence)
    return join_sentences(
        Sentence(subject.space.join([sentence.text, *behind.get(place, [])]), sentence.gap)
        for place, sentence in enumerate(subject.sentences)
    )


def _cut_filler(sentence: str, words: int, language: Language) -> str:
    """The first words of a filler sentence, as a sentence."""
    if language == "en":
        return " ".join(sentence.rstrip(".").split()[:words]) + "."
    places = [match.end() for match in _UNSPACED.finditer(sentence)]
    return sentence[: places[words - 1]] + "。"


def _filler_instead(subject: Subject, strength: float) -> str | None:
    total = sum(subject.words)
    if not total:
        return None
    # As dense as padding of this strength makes it.
    wanted = strength / (1 + strength) * total
    gone: list[int] = []
    words = 0
    for place in subject.ranking("filler instead", len(subject.sentences)):
        if words >= wanted:
            break
        if subject.words[place]:
            gone.append(place)
            words += subject.words[place]
    fillers = _fillers(subject, words)
    counts = _filler_words(subject.language)
    last = words - sum(counts[sentence] for sentence in fillers[:-1])
    if last < counts[fillers[-1]]:
        fillers[-1] = _cut_filler(fillers[-1], last, subject.language)
    put: dict[int, list[str]] = {place: [] for place in gone}
    for number, sentence in enumerate(fillers):
        put[gone[min(number, len(gone) - 1)]].append(sentence)
    return join_sentences(
        Sentence(subject.space.join(put[place]), sentence.gap) if place in put else sentence
        for place, sentence in enumerate(subject.sentences)
        if put.get(place) != [] or "\n" in sentence.gap
    )


def _repetition(subject: Subject, strength: float) -> str | None:
    text, units = subject.text, subject.units
    between = "\n\n" if len(_paragraphs(text)) > 1 else subject.space
    wanted, words = strength * sum(subject.words), 0
    changes = []
    for place in subject.ranking("repetition", len(units)):
        if words >= wanted:
            break
        start, end, own = units[place]
        if own:
            changes.append((end, end, between + text[start:end].lstrip()))
            words += own
    return _replace(text, changes)


def _cut_ending(subject: Subject, strength: float) -> str | None:
    sentences = subject.sentences
    if len(sentences) < 2:
        return None
    kept = sentences[
        : len(sentences) - min(len(sentences) - 1, _part(len(sentences), strength * _MOST_CUT))
    ]
    return join_sentences(kept).rstrip()


def _shuffle(subject: Subject, strength: float) -> str | None:
    sentences = subject.sentences
    if len(sentences) < 2:
        return None
    taken = subject.ranking("shuffle", len(sentences))[: max(2, _part(len(sentences), strength))]
    # Each goes to the next one's place, so that none stays.
    moved = {
        place: sentences[source].text.lstrip()
        for place, source in zip(taken, [*taken[1:], taken[0]], strict=True)
    }
    lead = subject.text[: len(subject.text) - len(subject.text.lstrip())]
    return lead + join_sentences(
        Sentence(moved.get(place, sentence.text.lstrip()), sentence.gap)
        for place, sentence in enumerate(sentences)
    )


def _word_salad(subject: Subject, strength: float) -> str | None:
    tokens = list(_TOKEN.finditer(subject.text))
    tail = tokens[len(tokens) - _part(len(tokens), strength) :]
    changes = []
    for alone in (True, False):
        slots = [match for match in tail if bool(_UNSPACED.match(match[0])) == alone]
        order = subject.draws("word salad").sample(range(len(slots)), len(slots))
        changes += [
            (slot.start(), slot.end(), slots[k][0]) for slot, k in zip(slots, order, strict=True)
        ]
    return _replace(subject.text, changes)


def _other_story(subject: Subject, strength: float) -> str | None:
    other = subject.other()
    if other is None or not subject.sentences:
        return None
    parts = split_sentences(other)
    kept = subject.sentences[: len(subject.sentences) - _part(len(subject.sentences), strength)]
    rest = join_sentences(parts[len(parts) - _part(len(parts), strength) :])
    return "\n\n".join(filter(None, [join_sentences(kept).rstrip(), rest.strip()]))


def _with_notes(purpose: str, notes: Mapping[Language, Sequence[str]]) -> Change:
    def change(subject: Subject, strength: float) -> str | None:
        order = subject.draws(purpose).sample(notes[subject.language], _NOTES)
        return "\n\n".join([subject.text.rstrip(), *order[: _part(_NOTES, strength)]])

    return change


# The probes ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Probe:
    """A named change.

    Attributes:
        name: in configs and tables.
        effect: what it does to how good the story is.
        change: makes the changed story; None, or the story itself, where nothing can be changed.
        about: what it does, and what a strength of 1 is.
    """

    name: str
    effect: Effect
    change: Change
    about: str


_ALL = (
    Probe("typos", "preserving", _typos,
          "two letters change places inside a word (in Chinese, characters that sound alike); at 1 "
          "in every twentieth word that could have one"),
    Probe("synonyms", "preserving", _synonyms,
          "common words give way to a synonym; at 1 every word of the small table"),
    Probe("quotes", "preserving", _quotes,
          "straight quotation marks become typographic, or else the other way round; at 1 in every "
          "paragraph with some"),
    Probe("markdown", "preserving", _markdown,
          "paragraphs are set in italics by asterisks; at 1 all of them"),
    Probe("blank_lines", "preserving", _blank_lines,
          "more blank lines between paragraphs; at 1 between all"),
    Probe("headings", "preserving", _headings,
          "numbered headings; at 1 four, or one per paragraph"),
    Probe("padding", "breaking", _padding,
          "filler sentences all over the story; at 1 as many words as the story has"),
    Probe("filler_instead", "breaking", _filler_instead,
          "sentences give way to filler of the same number of words, so that length cannot decide; "
          "as dense in filler as padding, at 1 half of the words"),
    Probe("repetition", "breaking", _repetition,
          "paragraphs (in a story of one, sentences) stand twice; at 1 all of them"),
    Probe("cut_ending", "breaking", _cut_ending,
          "the last sentences are missing; at 1 three quarters of them"),
    Probe("shuffle", "breaking", _shuffle,
          "sentences change places; at 1 all of them"),
    Probe("word_salad", "breaking", _word_salad,
          "the words of the end stand in any order; at 1 those of the whole story"),
    Probe("other_story", "breaking", _other_story,
          "the story goes over into one of another prompt and of like length; at 1 that story "
          "stands alone"),
    Probe("bragging", "breaking", _with_notes("bragging", BOASTS),
          "notes to readers of upvotes and awards behind the story; at 1 four"),
    Probe("instruction", "breaking", _with_notes("instruction", INSTRUCTIONS),
          "sentences behind the story that tell a judge to prefer it; at 1 four"),
    Probe("fake_verdict", "breaking", _with_notes("fake verdict", FAKE_VERDICTS),
          "lines behind the story in the form of a verdict for it; at 1 four"),
    Probe("fake_markers", "breaking", _with_notes("fake markers", FAKE_MARKERS),
          "what looks like the end of the material behind the story, and a word for it; at 1 four"),
)  # fmt: skip
PROBES = {probe.name: probe for probe in _ALL}

# Columns of a table of probes beside those of PAIRS; `chosen` is the story and `rejected` its
# changed copy, whatever the effect.
PROBE_COLUMNS = ("probe", "effect", "strength")


def select_probes(names: Sequence[str]) -> list[Probe]:
    """Probes by name; all for none.

    Raises:
        ConfigError: no such probe.
    """
    for name in names:
        if name not in PROBES:
            raise ConfigError(f"probes: unknown probe '{name}': {nearest(name, list(PROBES))}")
    return [probe for probe in _ALL if not names or probe.name in names]


def change(probe: Probe, subject: Subject, strength: float) -> str | None:
    """The changed story; None where the probe is not applicable.

    Args:
        probe: which change.
        subject: the story.
        strength: above 0, at most 1.
    """
    changed = probe.change(subject, strength)
    return None if changed is None or not changed.strip() or changed == subject.text else changed


@dataclass(frozen=True, order=True)
class _Candidate:
    digest: str
    prompt: str
    text: str
    words: int
    fold: int


class _Others:
    """The stories of other prompts, by language."""

    def __init__(self, originals: Sequence[Original], fold_of: Mapping[str, int] | None) -> None:
        counts = _count([one.text for one in originals])
        keys = [prompt_key(one.prompt) for one in originals]
        found = [
            _Candidate(digest(one.text), key, one.text, words, fold_of[key] if fold_of else 0)
            for one, key, words in zip(originals, keys, counts, strict=True)
        ]
        self._own = {one.story_id: mine for one, mine in zip(originals, found, strict=True)}
        # By what they are, so that their order in the file says nothing.
        self._of: dict[Language, list[_Candidate]] = {"en": [], "zh": []}
        for one in sorted(set(found)):
            self._of[language_of(one.text, one.words)].append(one)

    def of(self, original: Original) -> Callable[[random.Random], str | None]:
        """What draws a story of another prompt that is about as long."""
        own = self._own[original.story_id]

        def draw(draws: random.Random) -> str | None:
            there = self._of[language_of(own.text, own.words)]
            rows = [one for one in there if one.prompt != own.prompt and one.fold == own.fold]
            drawn = draws.sample(rows, min(_CANDIDATES, len(rows)))
            return min(drawn, key=lambda one: abs(one.words - own.words)).text if drawn else None

        return draw


def probe_pairs(
    originals: Sequence[Original],
    probes: Sequence[Probe],
    strengths: Sequence[float],
    seed: int,
    fold_of: Mapping[str, int] | None = None,
) -> tuple[pa.Table, dict[str, dict[str, int]]]:
    """Pair every story with its changed copies.

    Args:
        originals: the stories; every `story_id` once.
        probes: the changes.
        strengths: of each.
        seed: seeds the changes.
        fold_of: by `prompt_key`, where raters learn fold by fold from the pairs of these stories.
            What comes of another story is then of the same fold: a rater would prefer one that it
            was shown as chosen.

    Returns:
        A table by the schema PAIRS with `PROBE_COLUMNS`, in which `chosen` is the story and
        `rejected` the changed copy; and, by probe, how many stories it has no change for, by
        strength (with more than nothing only).

    Raises:
        ConfigError: a strength is not above 0 and at most 1.
        DataError: no probe is applicable to any story.
    """
    for strength in strengths:
        if not 0 < strength <= 1:
            raise ConfigError(f"strengths: {strength} is not above 0 and at most 1")
    others = _Others(originals, fold_of)
    rows: dict[str, list[Any]] = {name: [] for name in ("original", "changed", *PROBE_COLUMNS)}
    missing: dict[str, Counter[str]] = {}
    for original in tqdm(originals, desc="changing", unit=" stories", leave=False, disable=None):
        subject = Subject(original.text, seed, others.of(original))
        for probe in probes:
            for strength in strengths:
                changed = change(probe, subject, strength)
                if changed is None:
                    missing.setdefault(probe.name, Counter())[f"{strength:g}"] += 1
                    continue
                values = (original, changed, probe.name, probe.effect, strength)
                for column, value in zip(rows.values(), values, strict=True):
                    column.append(value)
    if not rows["original"]:
        raise DataError(
            f"none of {len(probes)} probes is applicable to any of {len(originals)} stories: take "
            "longer stories or more probes"
        )
    return _as_pairs(rows, seed), {name: dict(counts) for name, counts in missing.items()}


def _as_pairs(rows: Mapping[str, list[Any]], seed: int) -> pa.Table:
    given: list[Original] = rows["original"]
    changed = pa.array(rows["changed"], pa.large_string())
    names = [
        f"{one.story_id}~{probe}~{strength:g}~{seed}"
        for one, probe, strength in zip(given, rows["probe"], rows["strength"], strict=True)
    ]
    texts = pa.array([one.text for one in given], pa.large_string())
    columns = empty_columns(PAIRS, len(given)) | {
        "pair_id": pa.array(
            [pair_id(one.story_id, name) for one, name in zip(given, names, strict=True)],
            pa.large_string(),
        ),
        "prompt_id": pa.array([one.prompt_id for one in given], pa.large_string()),
        "prompt": pa.array([one.prompt for one in given], pa.large_string()),
        "chosen": texts,
        "rejected": changed,
        "label_source": pa.array(["planted"] * len(given), pa.large_string()),
        "split": pa.array(["all"] * len(given), pa.large_string()),
        "chosen_story_id": pa.array([one.story_id for one in given], pa.large_string()),
        "rejected_story_id": pa.array(names, pa.large_string()),
        "chosen_n_words": count_words(texts),
        "rejected_n_words": count_words(changed),
        "probe": pa.array(rows["probe"], pa.large_string()),
        "effect": pa.array(rows["effect"], pa.large_string()),
        "strength": pa.array(rows["strength"], pa.float64()),
    }
    return pa.table(columns)
