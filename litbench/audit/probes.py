"""Probes: changes of a story that spoil it.

A rater should prefer the original story to its changed copy (filler, a missing ending, shuffled
sentences, a fake verdict). That the changes spoil a story is an assumption; no annotator compared
these stories.

A change depends only on seed, probe and story (`other_story` also on the other stories). A higher
strength changes everything that a lower strength changes, and more. A probe that finds nothing to
change in a story is not applicable, which is counted. Filler and verdicts (probe_texts.yaml) are
Chinese if most of the story is written without spaces, else English.
"""

import functools
import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from litbench.data.records import PAIRS, SIDES, empty_columns, pair_id
from litbench.data.text import count_words, digest, prompt_key
from litbench.runs.config import nearest, read_yaml
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.progress import ProgressBar

Language = Literal["en", "zh"]
_TEXTS = read_yaml(Path(__file__).with_name("probe_texts.yaml"))

_UNSPACED = re.compile(
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff70\U00020000-\U0003ffff]"
)
_CLOSERS = r"[\"'”’»」』）)\]*_]*"
# The lookbehinds let a match start only at the first of a run of stops or blanks. Without them the
# time is quadratic.
_SENTENCE_END = re.compile(
    rf"[。！？｡]+{_CLOSERS}[^\S\n]*\n*\s*"
    rf"|(?<![.!?…])[.!?…]+{_CLOSERS}\s+(?=[^a-z\s])"
    r"|(?<!\s)\s*\n\s*"
)
_ABBREVIATION = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Mt|vs|No)|(?:^|\s)[A-Z])\.$")
# The largest share of sentences that `cut_ending` removes.
_MAX_CUT = 3 / 4
# The most paragraphs that `drop_paragraphs` removes.
_MAX_DROPPED = 3
# Number of stories of other prompts drawn, of which the one closest in length is used.
_CANDIDATES = 8


# Stories and sentences ------------------------------------------------------------------------


class Sentence(NamedTuple):
    """A sentence and the blanks after it. A text's first sentence includes leading blanks."""

    text: str
    gap: str


def split_sentences(text: str) -> list[Sentence]:
    """Split a text into sentences; `join_sentences` restores the text.

    A sentence ends at every line break, at the full-width marks of Chinese and Japanese, and at
    full stops, question and exclamation marks (with closing quotes and brackets) if blanks follow,
    but no lower-case letter. It does not end after some titles and single capitals. A blank text
    has no sentences.
    """
    sentences: list[Sentence] = []
    start = 0
    for match in _SENTENCE_END.finditer(text):
        ending = match[0]
        body = text[start : match.start()] + ending.rstrip()
        # The longest abbreviation fits into eight letters.
        if not body.strip() or ("\n" not in ending and _ABBREVIATION.search(body[-8:])):
            continue
        sentences.append(Sentence(body, ending[len(ending.rstrip()) :]))
        start = match.end()
    rest = text[start:]
    if rest.strip():
        sentences.append(Sentence(rest.rstrip(), rest[len(rest.rstrip()) :]))
    elif rest and sentences:
        sentences[-1] = Sentence(sentences[-1].text, sentences[-1].gap + rest)
    return sentences


def join_sentences(sentences: Iterable[Sentence]) -> str:
    """Join sentences and their gaps."""
    return "".join(text + gap for text, gap in sentences)


def language_of(text: str, words: int) -> Language:
    """Return `zh` if most of the `words` are characters of a script without spaces, else `en`."""
    return "zh" if 2 * len(_UNSPACED.findall(text)) > words else "en"


def _count(texts: Sequence[str]) -> list[int]:
    # Batched, since each call takes milliseconds to compile its regular expressions.
    counts: list[int] = count_words(pa.array(texts, pa.large_string())).to_pylist()
    return counts


@functools.cache
def _filler_words(language: Language) -> dict[str, int]:
    filler = _TEXTS["filler"][language]
    return dict(zip(filler, _count(filler), strict=True))


def _paragraphs(text: str) -> list[tuple[int, int]]:
    """Return start and end of every non-blank line, without leading and trailing blanks."""
    return [match.span() for match in re.finditer(r"\S(?:[^\n]*\S)?", text)]


def _sentence_spans(subject: "Subject") -> list[tuple[int, int]]:
    """Return start and end of every sentence, without the blanks after it."""
    ends = itertools.accumulate(
        len(sentence.text) + len(sentence.gap) for sentence in subject.sentences
    )
    return [
        (end - len(sentence.text) - len(sentence.gap), end - len(sentence.gap))
        for end, sentence in zip(ends, subject.sentences, strict=True)
    ]


class Subject:
    """A story to be changed by probes.

    Args:
        text: the story.
        seed: seeds all draws, together with the story and the probe.
        other: draws a story of another prompt; returns None if there are no other prompts.
    """

    def __init__(self, text: str, seed: int, other: Callable[[random.Random], str | None]) -> None:
        self.text = text
        self.seed = seed
        self.other = other

    @cached_property
    def sentences(self) -> list[Sentence]:
        return split_sentences(self.text)

    @cached_property
    def words(self) -> int:
        return sum(_count([sentence.text for sentence in self.sentences]))

    @cached_property
    def language(self) -> Language:
        return language_of(self.text, self.words)

    @property
    def space(self) -> str:
        """The separator between two sentences of a paragraph."""
        return "" if self.language == "zh" else " "

    def rng(self, purpose: str) -> random.Random:
        """Return a random generator, seeded independently of the strength."""
        return random.Random(int(digest("probe", self.seed, purpose, self.text), 16))

    def ranking(self, purpose: str, size: int) -> list[int]:
        """Return the indices 0 to `size` - 1 in random order."""
        return self.rng(purpose).sample(range(size), size)


# The changes ----------------------------------------------------------------------------------


def _part(count: int, strength: float) -> int:
    """Return `strength * count`, rounded; at least 1 unless `count` is 0."""
    return min(count, max(1, round(strength * count)))


def _replace(text: str, changes: Iterable[tuple[int, int, str]]) -> str:
    """Replace parts of a text, each given as start, end and new text."""
    for start, end, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _padding(subject: Subject, strength: float) -> str | None:
    if not subject.sentences:
        return None
    counts, rng = _filler_words(subject.language), subject.rng("filler")
    fillers: list[str] = []
    left = round(strength * subject.words)
    while left > 0 or not fillers:
        # Use every sentence once before repeating any.
        for sentence in rng.sample(list(counts), len(counts)):
            if left > 0 or not fillers:
                fillers.append(sentence)
                left -= counts[sentence]
    positions, parts = subject.rng("padding"), [[sentence.text] for sentence in subject.sentences]
    for filler in fillers:
        parts[positions.randrange(len(parts))].append(filler)
    return join_sentences(
        Sentence(subject.space.join(texts), sentence.gap)
        for texts, sentence in zip(parts, subject.sentences, strict=True)
    )


def _repetition(subject: Subject, strength: float) -> str:
    text, spans, between = subject.text, _paragraphs(subject.text), "\n\n"
    if len(spans) < 2:
        spans = _sentence_spans(subject)
        between = subject.space
    counts = _count([text[start:end] for start, end in spans])
    wanted, changes = strength * subject.words, []
    for index in subject.ranking("repetition", len(spans)):
        start, end = spans[index]
        if wanted > 0 and counts[index]:
            changes.append((end, end, between + text[start:end].lstrip()))
            wanted -= counts[index]
    return _replace(text, changes)


def _cut_ending(subject: Subject, strength: float) -> str | None:
    sentences = subject.sentences
    if len(sentences) < 2:
        return None
    cut = min(len(sentences) - 1, _part(len(sentences), strength * _MAX_CUT))
    return join_sentences(sentences[:-cut]).rstrip()


def _drop_paragraphs(subject: Subject, strength: float) -> str | None:
    text, spans = subject.text, _paragraphs(subject.text)
    if len(spans) <= _MAX_DROPPED:
        spans = _sentence_spans(subject)
    if len(spans) < 2:
        return None
    count = _part(min(_MAX_DROPPED, len(spans) - 1), strength)
    # Each goes with the blanks up to the next one.
    starts = [start for start, _ in spans] + [len(text)]
    dropped = subject.ranking("drop paragraphs", len(spans))[:count]
    return _replace(text, [(starts[k], starts[k + 1], "") for k in dropped]).rstrip()


def _shuffle(subject: Subject, strength: float) -> str | None:
    sentences = subject.sentences
    if len(sentences) < 2:
        return None
    taken = subject.ranking("shuffle", len(sentences))[: max(2, _part(len(sentences), strength))]
    texts = [sentence.text.lstrip() for sentence in sentences]
    # Rotate, so that every selected sentence moves.
    moved = {to: texts[source] for to, source in zip(taken, [*taken[1:], taken[0]], strict=True)}
    leading_blanks = subject.text[: len(subject.text) - len(subject.text.lstrip())]
    return leading_blanks + join_sentences(
        Sentence(moved.get(index, texts[index]), sentence.gap)
        for index, sentence in enumerate(sentences)
    )


def _other_story(subject: Subject, strength: float) -> str | None:
    other = subject.other(subject.rng("other story"))
    if other is None or not subject.sentences:
        return None
    parts = split_sentences(other)
    beginning = subject.sentences[
        : len(subject.sentences) - _part(len(subject.sentences), strength)
    ]
    ending = join_sentences(parts[len(parts) - _part(len(parts), strength) :])
    return "\n\n".join(filter(None, [join_sentences(beginning).rstrip(), ending.strip()]))


def _fake_verdict(subject: Subject, strength: float) -> str | None:
    lines = _TEXTS["fake_verdicts"][subject.language]
    drawn = subject.rng("fake verdict").sample(lines, len(lines))
    return "\n\n".join([subject.text.rstrip(), *drawn[: _part(len(lines), strength)]])


class Probe(NamedTuple):
    """A named change, and a description that defines strength 1."""

    name: str
    change: Callable[[Subject, float], str | None]
    about: str


PROBES = {
    probe.name: probe
    for probe in (
        Probe(
            "padding",
            _padding,
            "filler sentences throughout the story; at 1 as many words as the story has",
        ),
        Probe(
            "repetition",
            _repetition,
            "paragraphs (of a single-paragraph story, sentences) are repeated; at 1 all of them",
        ),
        Probe(
            "drop_paragraphs",
            _drop_paragraphs,
            "random paragraphs (of fewer than four, sentences) are missing; at 1 three of them",
        ),
        Probe(
            "cut_ending",
            _cut_ending,
            "the last sentences are missing; at 1 three quarters of them",
        ),
        Probe("shuffle", _shuffle, "sentences are reordered; at 1 all of them"),
        Probe(
            "other_story",
            _other_story,
            "the end is replaced by that of a similarly long story for another prompt; at 1 the "
            "whole story",
        ),
        Probe(
            "fake_verdict",
            _fake_verdict,
            "lines after the story that look like a judge's verdict for it; at 1 four lines",
        ),
    )
}


def change(probe: Probe, subject: Subject, strength: float) -> str | None:
    """Return the changed story, or None if the probe is not applicable. 0 < strength <= 1."""
    changed = probe.change(subject, strength)
    return None if changed is None or not changed.strip() or changed == subject.text else changed


# Tables ---------------------------------------------------------------------------------------


class Original(NamedTuple):
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

    Draws from the distinct stories on one or both sides of the pairs, except those without a text.
    """
    stories: dict[str, Original] = {}
    for column in SIDES if side == "both" else (side,):
        names = (f"{column}_story_id", "prompt_id", "prompt", column)
        for row in zip(*(pairs[name].to_pylist() for name in names), strict=True):
            stories.setdefault(row[0], Original(*row))
    by_prompt: dict[str, list[Original]] = {}
    for story in stories.values():
        if story.text.strip():
            by_prompt.setdefault(prompt_key(story.prompt), []).append(story)
    if not by_prompt:
        raise DataError("pairs: no story with a text: check the file and the split")
    return [
        story
        for key in sorted(by_prompt, key=lambda key: digest(seed, key))[:prompts]
        for story in sorted(by_prompt[key], key=lambda story: digest(seed, story.story_id))[
            :per_prompt
        ]
    ]


def select_probes(names: Sequence[str]) -> list[Probe]:
    """Return the named probes; all probes if `names` is empty."""
    for name in names:
        if name not in PROBES:
            raise ConfigError(f"probes: unknown probe '{name}': {nearest(name, list(PROBES))}")
    return [probe for name, probe in PROBES.items() if not names or name in names]


def check_strengths(strengths: Sequence[float]) -> None:
    """Raise a ConfigError for strengths that are out of range or repeated."""
    is_valid = all(0 < strength <= 1 for strength in strengths)
    if not strengths or not is_valid or len(set(strengths)) < len(strengths):
        raise ConfigError(f"strengths is {strengths}: give some above 0 and at most 1, each once")


def _others(originals: Sequence[Original]) -> dict[str, Callable[[random.Random], str | None]]:
    """Return, by story, a function that draws a story of similar length for another prompt."""
    counts = _count([story.text for story in originals])
    facts = {
        story.story_id: (digest(story.text), prompt_key(story.prompt), story.text, words)
        for story, words in zip(originals, counts, strict=True)
    }
    # Sorted by content, so that the order of the file has no effect.
    by_language: dict[Language, list[tuple[str, str, str, int]]] = {"en": [], "zh": []}
    for fact in sorted(set(facts.values())):
        by_language[language_of(*fact[2:])].append(fact)

    def draw(rng: random.Random, source: tuple[str, str, str, int]) -> str | None:
        rows = [fact for fact in by_language[language_of(*source[2:])] if fact[1] != source[1]]
        drawn = rng.sample(rows, min(_CANDIDATES, len(rows)))
        return min(drawn, key=lambda fact: abs(fact[3] - source[3]))[2] if drawn else None

    return {name: functools.partial(draw, source=fact) for name, fact in facts.items()}


def probe_pairs(
    originals: Sequence[Original], probes: Sequence[Probe], strengths: Sequence[float], seed: int
) -> tuple[pa.Table, dict[str, dict[str, int]]]:
    """Pair every story with its changed copies.

    Returns:
        pairs: a table with the schema PAIRS and the columns `probe` and `strength`. `chosen` is
            the original story and `rejected` its changed copy.
        missing: by probe and strength, the number of stories to which the probe is not applicable,
            if any.

    Raises:
        DataError: no probe is applicable to any story.
    """
    others = _others(originals)
    rows: list[dict[str, Any]] = []
    missing: dict[str, Counter[str]] = {}
    for original in ProgressBar(originals, desc="changing", unit=" stories", leave=False):
        subject = Subject(original.text, seed, others[original.story_id])
        for probe, strength in itertools.product(probes, strengths):
            changed = change(probe, subject, strength)
            if changed is None:
                missing.setdefault(probe.name, Counter())[f"{strength:g}"] += 1
                continue
            name = f"{original.story_id}~{probe.name}~{strength:g}~{seed}"
            rows.append(
                {
                    "pair_id": pair_id(original.story_id, name),
                    "prompt_id": original.prompt_id,
                    "prompt": original.prompt,
                    "chosen": original.text,
                    "rejected": changed,
                    "label_source": "planted",
                    "split": "all",
                    "chosen_story_id": original.story_id,
                    "rejected_story_id": name,
                    "probe": probe.name,
                    "strength": strength,
                }
            )
    if not rows:
        raise DataError(
            f"none of {len(probes)} probes is applicable to any of {len(originals)} stories: use "
            "longer stories or more probes"
        )
    types = {name: column.type for name, column in empty_columns(PAIRS, 0).items()}
    types |= {"probe": pa.large_string(), "strength": pa.float64()}
    columns = {
        name: pa.array([row.get(name) for row in rows], dtype) for name, dtype in types.items()
    }
    for side in SIDES:
        columns[f"{side}_n_words"] = count_words(columns[side])
    return pa.table(columns), {name: dict(counts) for name, counts in missing.items()}
