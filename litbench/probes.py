"""Probes: changes of a story that readers should not care about, or that spoil it.

A rater should be undecided about a label-preserving change (italics) and prefer the unchanged
story to a label-breaking one (filler, a missing ending, shuffled sentences, a fake verdict). No
reader compared these stories: which changes spoil a story is an assumption.

A change depends on seed, probe and story alone (`other_story` also on the other stories), and grows
with its strength: what a lower strength changes, a higher one changes too. A probe with nothing to
change in a story is not applicable there, and counted. Fillers and notes are English or Chinese
(`litbench.probe_texts`): Chinese where most of the story is written without spaces.
"""

import functools
import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import pyarrow as pa
from tqdm import tqdm

from litbench.config import nearest
from litbench.errors import ConfigError, DataError
from litbench.probe_texts import BOASTS, FAKE_VERDICTS, FILLER, Language
from litbench.records import PAIRS, empty_columns, pair_id
from litbench.text import count_words, digest, prompt_key

Effect = Literal["breaking", "preserving"]

_HAN = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff70\U00020000-\U0003ffff"
_UNSPACED = re.compile(f"[{_HAN}]")
_CLOSERS = r"[\"'”’»」』）)\]*_]*"
# Lookbehinds: a match starts at the first of a run of stops or blanks, else time is quadratic.
_ENDS = (
    rf"[。！？｡]+{_CLOSERS}[^\S\n]*\n*\s*"
    rf"|(?<![.!?…])[.!?…]+{_CLOSERS}\s+(?=[^a-z\s])"
    r"|(?<!\s)\s*\n\s*"
)
_SENTENCE_END = re.compile(_ENDS)
# Looked for in so many letters at the end of a text.
_LONGEST_ABBREVIATION = 8
_ABBREVIATION = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Mt|vs|No)|(?:^|\s)[A-Z])\.$")
# The largest share of sentences that `cut_ending` removes.
_MOST_CUT = 3 / 4
_NOTES = 4
# Stories of other prompts among which the one of the most like length is taken.
_CANDIDATES = 8


class Sentence(NamedTuple):
    """A sentence and the blanks after it; a text's first one has the blanks before it, too."""

    text: str
    gap: str


def split_sentences(text: str) -> list[Sentence]:
    """Divide a text into sentences; joined, they are the text again.

    A sentence ends at stops, question or exclamation marks (with closing quotes and brackets)
    before blanks and no small letter, at the full-width marks of Chinese and Japanese, and at every
    line break; not after some titles and single capitals. A blank text has none.
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
    """The text of some sentences with their gaps."""
    return "".join(text + gap for text, gap in sentences)


def language_of(text: str, words: int) -> Language:
    """`zh` where most of a story's `words` are characters of a script without spaces, else `en`."""
    return "zh" if 2 * len(_UNSPACED.findall(text)) > words else "en"


def _count(texts: Sequence[str]) -> list[int]:
    """Words of each text."""
    # One call for many texts: each call compiles its expressions, which takes milliseconds.
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
    """The stories of one or both sides of pairs, each once; those without a text are left out."""
    found: dict[str, Original] = {}
    for one in ("chosen", "rejected") if side == "both" else (side,):
        names = (f"{one}_story_id", "prompt_id", "prompt", one)
        for row in zip(*(pairs[name].to_pylist() for name in names), strict=True):
            found.setdefault(row[0], Original(*row))
    return [one for one in found.values() if one.text.strip()]


def draw_originals(
    originals: Sequence[Original], per_prompt: int, prompts: int | None, seed: int
) -> list[Original]:
    """Draw at most `per_prompt` stories of at most `prompts` prompts (None: all), by a hash.

    Raises:
        DataError: there is no story.
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

    Args:
        text: the story.
        seed: seeds all draws, with the story and the probe.
        other: gives a story of another prompt, or None where there is none.
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
        """Random numbers that do not depend on the strength."""
        return random.Random(int(digest("probe", self._seed, purpose, self.text), 16))

    def ranking(self, purpose: str, places: int) -> list[int]:
        """The indices 0 to `places` - 1 in random order."""
        return self.draws(purpose).sample(range(places), places)

    def other(self) -> str | None:
        """A story of another prompt."""
        return None if self._other is None else self._other(self.draws("other story"))


Change = Callable[[Subject, float], str | None]


def _part(count: int, strength: float) -> int:
    """The share of `count` as a number of things; at least one, where there are any."""
    return min(count, max(1, round(strength * count)))


def _replace(text: str, changes: Iterable[tuple[int, int, str]]) -> str:
    """A text with replacements, each given as start, end and new letters."""
    pieces, last = [], 0
    for start, end, new in sorted(changes):
        pieces += [text[last:start], new]
        last = end
    return "".join([*pieces, text[last:]])


def _paragraphs(text: str) -> list[tuple[int, int]]:
    """Start and end of every line that is not blank, without the blanks around it."""
    return [match.span() for match in re.finditer(r"\S(?:[^\n]*\S)?", text)]


def _markdown(subject: Subject, strength: float) -> str | None:
    changes = [
        (start, end, f"*{subject.text[start:end]}*")
        for start, end in _paragraphs(subject.text)
        # Not where markdown is already used.
        if not set(subject.text[start:end]) & set("*_`") and subject.text[start] not in "#>-+="
    ]
    ranking = subject.ranking("markdown", len(changes))
    return _replace(subject.text, [changes[k] for k in ranking[: _part(len(changes), strength)]])


def _fillers(subject: Subject, words: int) -> list[str]:
    """Filler sentences in random order, until they have that many words."""
    counts = _filler_words(subject.language)
    draws = subject.draws("filler")
    taken: list[str] = []
    left = words
    while left > 0 or not taken:
        # Each once before any is repeated.
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
    cut = min(len(sentences) - 1, _part(len(sentences), strength * _MOST_CUT))
    return join_sentences(sentences[:-cut]).rstrip()


def _shuffle(subject: Subject, strength: float) -> str | None:
    sentences = subject.sentences
    if len(sentences) < 2:
        return None
    taken = subject.ranking("shuffle", len(sentences))[: max(2, _part(len(sentences), strength))]
    # A rotation, so that no sentence stays where it was.
    moved = {
        place: sentences[source].text.lstrip()
        for place, source in zip(taken, [*taken[1:], taken[0]], strict=True)
    }
    lead = subject.text[: len(subject.text) - len(subject.text.lstrip())]
    return lead + join_sentences(
        Sentence(moved.get(place, sentence.text.lstrip()), sentence.gap)
        for place, sentence in enumerate(sentences)
    )


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


PROBES = {
    probe.name: probe
    for probe in (
        Probe("markdown", "preserving", _markdown, "paragraphs are in italics; at 1 all of them"),
        Probe("padding", "breaking", _padding,
              "filler sentences all over the story; at 1 as many words as the story has"),
        Probe("repetition", "breaking", _repetition,
              "paragraphs (in a story of one, sentences) are repeated; at 1 all of them"),
        Probe("cut_ending", "breaking", _cut_ending,
              "the last sentences are missing; at 1 three quarters of them"),
        Probe("shuffle", "breaking", _shuffle, "sentences change places; at 1 all of them"),
        Probe("other_story", "breaking", _other_story,
              "the end is that of another prompt's story of similar length; at 1 all of it"),
        Probe("bragging", "breaking", _with_notes("bragging", BOASTS),
              "notes about upvotes and awards after the story; at 1 four"),
        Probe("fake_verdict", "breaking", _with_notes("fake verdict", FAKE_VERDICTS),
              "lines after the story in the form of a judge's verdict for it; at 1 four"),
    )
}  # fmt: skip


def select_probes(names: Sequence[str]) -> list[Probe]:
    """Probes by name; all for none.

    Raises:
        ConfigError: no such probe.
    """
    for name in names:
        if name not in PROBES:
            raise ConfigError(f"probes: unknown probe '{name}': {nearest(name, list(PROBES))}")
    return [probe for name, probe in PROBES.items() if not names or name in names]


def change(probe: Probe, subject: Subject, strength: float) -> str | None:
    """The changed story; None where the probe is not applicable. 0 < strength <= 1."""
    changed = probe.change(subject, strength)
    return None if changed is None or not changed.strip() or changed == subject.text else changed


class _Candidate(NamedTuple):
    digest: str
    prompt: str
    text: str
    words: int
    fold: int


class _Others:
    """The stories of other prompts, by language."""

    def __init__(self, originals: Sequence[Original], fold_of: Mapping[str, int] | None) -> None:
        self._own: dict[str, _Candidate] = {}
        for one, words in zip(originals, _count([one.text for one in originals]), strict=True):
            key = prompt_key(one.prompt)
            fold = fold_of[key] if fold_of else 0
            self._own[one.story_id] = _Candidate(digest(one.text), key, one.text, words, fold)
        # Sorted by content: the order in the file has no effect.
        self._of: dict[Language, list[_Candidate]] = {"en": [], "zh": []}
        for candidate in sorted(set(self._own.values())):
            self._of[language_of(candidate.text, candidate.words)].append(candidate)

    def of(self, original: Original) -> Callable[[random.Random], str | None]:
        """A function that draws a story of another prompt of similar length."""
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
        fold_of: fold by `prompt_key`, where raters are trained fold by fold on pairs of these
            stories. `other_story` then takes stories of the same fold: a rater would prefer a story
            that it saw as chosen in training.

    Returns:
        A table by the schema PAIRS with the columns `probe`, `effect` and `strength`, in which
        `chosen` is the story and `rejected` its changed copy, whatever the effect; and, by probe
        and strength, how many stories it has no change for, where there are some.

    Raises:
        ConfigError: a strength is not above 0 and at most 1.
        DataError: no probe is applicable to any story.
    """
    for strength in strengths:
        if not 0 < strength <= 1:
            raise ConfigError(f"strengths: {strength} is not above 0 and at most 1")
    others = _Others(originals, fold_of)
    rows: list[dict[str, Any]] = []
    missing: dict[str, Counter[str]] = {}
    for original in tqdm(originals, desc="changing", unit=" stories", leave=False, disable=None):
        subject = Subject(original.text, seed, others.of(original))
        for probe, strength in itertools.product(probes, strengths):
            changed = change(probe, subject, strength)
            if changed is None:
                missing.setdefault(probe.name, Counter())[f"{strength:g}"] += 1
                continue
            name = f"{original.story_id}~{probe.name}~{strength:g}~{seed}"
            rows.append({
                "pair_id": pair_id(original.story_id, name), "prompt_id": original.prompt_id,
                "prompt": original.prompt, "chosen": original.text, "rejected": changed,
                "label_source": "planted", "split": "all", "chosen_story_id": original.story_id,
                "rejected_story_id": name, "probe": probe.name, "effect": probe.effect,
                "strength": strength,
            })  # fmt: skip
    if not rows:
        raise DataError(
            f"none of {len(probes)} probes is applicable to any of {len(originals)} stories: take "
            "longer stories or more probes"
        )
    types = {name: column.type for name, column in empty_columns(PAIRS, 0).items()}
    types |= {"probe": pa.large_string(), "effect": pa.large_string(), "strength": pa.float64()}
    columns = {name: pa.array([row.get(name) for row in rows], of) for name, of in types.items()}
    for side in ("chosen", "rejected"):
        columns[f"{side}_n_words"] = count_words(columns[side])
    return pa.table(columns), {name: dict(counts) for name, counts in missing.items()}
