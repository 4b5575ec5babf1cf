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

_UNSPACED = re.compile(
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff70\U00020000-\U0003ffff]"
)
_CLOSERS = r"[\"'”’»」』）)\]*_]*"
# Lookbehinds: a match starts at the first of a run of stops or blanks, else time is quadratic.
_SENTENCE_END = re.compile(
    rf"[。！？｡]+{_CLOSERS}[^\S\n]*\n*\s*"
    rf"|(?<![.!?…])[.!?…]+{_CLOSERS}\s+(?=[^a-z\s])"
    r"|(?<!\s)\s*\n\s*"
)
_ABBREVIATION = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Mt|vs|No)|(?:^|\s)[A-Z])\.$")
# The largest share of sentences that `cut_ending` removes.
_MOST_CUT = 3 / 4
_NOTES = 4
# Stories of other prompts among which the one of the most like length is taken.
_CANDIDATES = 8


# Stories and sentences ------------------------------------------------------------------------


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
        # Eight letters hold the longest abbreviation.
        if not body.strip() or ("\n" not in whole and _ABBREVIATION.search(body[-8:])):
            continue
        found.append(Sentence(body, whole[len(whole.rstrip()) :]))
        start = match.end()
    rest = text[start:]
    if rest.strip():
        found.append(Sentence(rest.rstrip(), rest[len(rest.rstrip()) :]))
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
    # One call for many texts: each call compiles its expressions, which takes milliseconds.
    counts: list[int] = count_words(pa.array(texts, pa.large_string())).to_pylist()
    return counts


@functools.cache
def _filler_words(language: Language) -> dict[str, int]:
    return dict(zip(FILLER[language], _count(FILLER[language]), strict=True))


def _paragraphs(text: str) -> list[tuple[int, int]]:
    """Start and end of every line that is not blank, without the blanks around it."""
    return [match.span() for match in re.finditer(r"\S(?:[^\n]*\S)?", text)]


class Subject:
    """A story as the probes see it.

    Args:
        text: the story.
        seed: seeds all draws, with the story and the probe.
        other: gives a story of another prompt, or None where there is none.
    """

    def __init__(self, text: str, seed: int, other: Callable[[random.Random], str | None]) -> None:
        self.text = text
        self.seed = seed
        self.other = other

    @cached_property
    def sentences(self) -> list[Sentence]:
        """See `split_sentences`."""
        return split_sentences(self.text)

    @cached_property
    def words(self) -> int:
        """Words of all sentences."""
        return sum(_count([sentence.text for sentence in self.sentences]))

    @cached_property
    def language(self) -> Language:
        """See `language_of`."""
        return language_of(self.text, self.words)

    @property
    def space(self) -> str:
        """What stands between two sentences of a paragraph."""
        return "" if self.language == "zh" else " "

    def draws(self, purpose: str) -> random.Random:
        """Random numbers that do not depend on the strength."""
        return random.Random(int(digest("probe", self.seed, purpose, self.text), 16))

    def ranking(self, purpose: str, places: int) -> list[int]:
        """The indices 0 to `places` - 1 in random order."""
        return self.draws(purpose).sample(range(places), places)


# The changes ----------------------------------------------------------------------------------


def _part(count: int, strength: float) -> int:
    """The share of `count` as a number of things; at least one, where there are any."""
    return min(count, max(1, round(strength * count)))


def _replace(text: str, changes: Iterable[tuple[int, int, str]]) -> str:
    """A text with replacements, each given as start, end and new letters."""
    for start, end, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _markdown(subject: Subject, strength: float) -> str:
    changes = [
        (start, end, f"*{subject.text[start:end]}*")
        for start, end in _paragraphs(subject.text)
        # Not where markdown is already used.
        if not set(subject.text[start:end]) & set("*_`") and subject.text[start] not in "#>-+="
    ]
    ranking = subject.ranking("markdown", len(changes))
    return _replace(subject.text, [changes[k] for k in ranking[: _part(len(changes), strength)]])


def _padding(subject: Subject, strength: float) -> str | None:
    if not subject.sentences:
        return None
    counts, draws = _filler_words(subject.language), subject.draws("filler")
    fillers: list[str] = []
    left = round(strength * subject.words)
    while left > 0 or not fillers:
        # Each once before any is repeated.
        for sentence in draws.sample(list(counts), len(counts)):
            if left > 0 or not fillers:
                fillers.append(sentence)
                left -= counts[sentence]
    places, parts = subject.draws("padding"), [[one.text] for one in subject.sentences]
    for filler in fillers:
        parts[places.randrange(len(parts))].append(filler)
    return join_sentences(
        Sentence(subject.space.join(texts), sentence.gap)
        for texts, sentence in zip(parts, subject.sentences, strict=True)
    )


def _repetition(subject: Subject, strength: float) -> str:
    text, spans, between = subject.text, _paragraphs(subject.text), "\n\n"
    if len(spans) < 2:
        ends = itertools.accumulate(len(one.text) + len(one.gap) for one in subject.sentences)
        spans = [
            (end - len(one.text) - len(one.gap), end - len(one.gap))
            for end, one in zip(ends, subject.sentences, strict=True)
        ]
        between = subject.space
    counts = _count([text[start:end] for start, end in spans])
    wanted, changes = strength * subject.words, []
    for place in subject.ranking("repetition", len(spans)):
        start, end = spans[place]
        if wanted > 0 and counts[place]:
            changes.append((end, end, between + text[start:end].lstrip()))
            wanted -= counts[place]
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
    texts = [sentence.text.lstrip() for sentence in sentences]
    # A rotation, so that no sentence stays where it was.
    moved = {to: texts[of] for to, of in zip(taken, [*taken[1:], taken[0]], strict=True)}
    lead = subject.text[: len(subject.text) - len(subject.text.lstrip())]
    return lead + join_sentences(
        Sentence(moved.get(place, texts[place]), sentence.gap)
        for place, sentence in enumerate(sentences)
    )


def _other_story(subject: Subject, strength: float) -> str | None:
    other = subject.other(subject.draws("other story"))
    if other is None or not subject.sentences:
        return None
    parts = split_sentences(other)
    kept = subject.sentences[: len(subject.sentences) - _part(len(subject.sentences), strength)]
    rest = join_sentences(parts[len(parts) - _part(len(parts), strength) :])
    return "\n\n".join(filter(None, [join_sentences(kept).rstrip(), rest.strip()]))


Change = Callable[[Subject, float], str | None]


def _with_notes(purpose: str, notes: Mapping[Language, Sequence[str]]) -> Change:
    def change(subject: Subject, strength: float) -> str | None:
        order = subject.draws(purpose).sample(notes[subject.language], _NOTES)
        return "\n\n".join([subject.text.rstrip(), *order[: _part(_NOTES, strength)]])

    return change


@dataclass(frozen=True)
class Probe:
    """A named change, what it does to how good a story is, and what a strength of 1 is."""

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


def change(probe: Probe, subject: Subject, strength: float) -> str | None:
    """The changed story; None where the probe is not applicable. 0 < strength <= 1."""
    changed = probe.change(subject, strength)
    return None if changed is None or not changed.strip() or changed == subject.text else changed


# Tables ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Original:
    """A story to be changed."""

    story_id: str
    prompt_id: str
    prompt: str
    text: str


def draw_originals(
    pairs: pa.Table,
    side: Literal["chosen", "rejected", "both"],
    per_prompt: int,
    prompts: int | None,
    seed: int,
) -> list[Original]:
    """Draw at most `per_prompt` stories of at most `prompts` prompts (None: all), by a hash.

    Stories are those of one or both sides of pairs, each once, but for those without a text.
    """
    stories: dict[str, Original] = {}
    for one in ("chosen", "rejected") if side == "both" else (side,):
        names = (f"{one}_story_id", "prompt_id", "prompt", one)
        for row in zip(*(pairs[name].to_pylist() for name in names), strict=True):
            stories.setdefault(row[0], Original(*row))
    by_prompt: dict[str, list[Original]] = {}
    for story in stories.values():
        if story.text.strip():
            by_prompt.setdefault(prompt_key(story.prompt), []).append(story)
    if not by_prompt:
        raise DataError("there is no story with a text to change: check the file and the split")
    return [
        story
        for key in sorted(by_prompt, key=lambda key: digest(seed, key))[:prompts]
        for story in sorted(by_prompt[key], key=lambda one: digest(seed, one.story_id))[:per_prompt]
    ]


def select_probes(names: Sequence[str]) -> list[Probe]:
    """Probes by name; all for none."""
    for name in names:
        if name not in PROBES:
            raise ConfigError(f"probes: unknown probe '{name}': {nearest(name, list(PROBES))}")
    return [probe for name, probe in PROBES.items() if not names or name in names]


def check_strengths(strengths: Sequence[float]) -> None:
    """Refuse strengths that are out of range or given twice."""
    is_valid = all(0 < strength <= 1 for strength in strengths)
    if not strengths or not is_valid or len(set(strengths)) < len(strengths):
        raise ConfigError(f"strengths is {strengths}: give some above 0 and at most 1, each once")


def _others(originals: Sequence[Original]) -> dict[str, Callable[[random.Random], str | None]]:
    """By story, a function that draws a story of another prompt of similar length."""
    counts = _count([one.text for one in originals])
    facts = {
        one.story_id: (digest(one.text), prompt_key(one.prompt), one.text, words)
        for one, words in zip(originals, counts, strict=True)
    }
    # Sorted by content: the order in the file has no effect.
    there: dict[Language, list[tuple[str, str, str, int]]] = {"en": [], "zh": []}
    for fact in sorted(set(facts.values())):
        there[language_of(*fact[2:])].append(fact)

    def draw(draws: random.Random, own: tuple[str, str, str, int]) -> str | None:
        rows = [one for one in there[language_of(*own[2:])] if one[1] != own[1]]
        drawn = draws.sample(rows, min(_CANDIDATES, len(rows)))
        return min(drawn, key=lambda one: abs(one[3] - own[3]))[2] if drawn else None

    return {name: functools.partial(draw, own=fact) for name, fact in facts.items()}


def probe_pairs(
    originals: Sequence[Original], probes: Sequence[Probe], strengths: Sequence[float], seed: int
) -> tuple[pa.Table, dict[str, dict[str, int]]]:
    """Pair every story with its changed copies.

    Returns:
        A table by the schema PAIRS with the columns `probe`, `effect` and `strength`, in which
        `chosen` is the story and `rejected` its changed copy, whatever the effect; and, by probe
        and strength, how many stories it has no change for, where there are some.

    Raises:
        DataError: no probe is applicable to any story.
    """
    others = _others(originals)
    rows: list[dict[str, Any]] = []
    missing: dict[str, Counter[str]] = {}
    for original in tqdm(originals, desc="changing", unit=" stories", leave=False, disable=None):
        subject = Subject(original.text, seed, others[original.story_id])
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
