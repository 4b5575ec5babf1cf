"""NARRA-Gym: interactive stories for a simulated reader, turn by turn.

The protocol of NARRA-Gym (github.com/narra-gym/NARRA-Gym): a writer builds a story world for a
reader with a burden and leads the reader through it; a model plays the reader, judges rate the
whole. The packaged prompts, rubric and personas are our own; `texts` and `personas` take others.
docs/writers.md lists what differs.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from litbench.data.text import digest
from litbench.judges.answers import Sampling
from litbench.judges.rubric import Rated
from litbench.judges.session import RECORDED, Models, Session
from litbench.raters.templates.delimiters import without_delimiters
from litbench.raters.templates.rubric import Rating, Rubric, load_rubric
from litbench.runs.config import read_yaml
from litbench.runs.errors import ConfigError
from litbench.writers.grades import FAILURE
from litbench.writers.narra.episode import PROMPTS, READER, Episode
from litbench.writers.narra.history import render_transcript
from litbench.writers.narra.pacing import Part
from litbench.writers.narra.personas import CARDS, card_text, load_personas
from litbench.writers.narra.quantities import (
    CRITERIA,
    grades,
    published_rating,
    repetition_index,
)
from litbench.writers.narra.reading import read_json
from litbench.writers.protocol import (
    Grade,
    Item,
    ItemRatings,
    Protocol,
    RoleDefault,
    Written,
    missing_flag,
    rate_texts,
)
from litbench.writers.texts import check_form, check_placeholders, read_texts, texts_record

_STEP = "story"
# The published texts are parts of programs, so no version of these files is known.
_TEXTS = {"prompts.yaml": None, "rubric.yaml": None}
_FAILURES = (
    "sycophancy",
    "repetition",
    "missed-resistance",
    "advice-too-soon",
    "platitude",
    "ignored-context",
    "scene-stagnation",
    "broken-fact",
    "tone-mismatch",
)
# Names of models that do not begin with the name of their family.
_FAMILIES = {"chatgpt": "gpt", "o": "gpt", "gpt": "gpt"}


@dataclass(kw_only=True)
class NarraOptions:
    """Options of the protocol `narra`.

    Attributes:
        as_published: numbers, rules and readings of the published code instead of the paper's.
        part: what the judged sweep ran, or also planner, critic and artifacts.
        texts: folder with `prompts.yaml` and `rubric.yaml`, copies of the packaged files whose
            texts are replaced, such as by those in the published code; null for our own.
        personas: folder of cards, such as `simulation/personas/` of the published repository; null
            for our own.
        show_notes: whether judges see the reader's hidden notes, as published.
        force: allow a reader or a writer of a judge's family; the grades are flagged.
    """

    as_published: bool = False
    part: Part = "benchmark"
    texts: Path | None = None
    personas: Path | None = None
    show_notes: bool = False
    force: bool = False


class Narra(Protocol):
    """The protocol; see the module."""

    options = NarraOptions
    source = "NARRA-Gym, github.com/narra-gym/NARRA-Gym"
    headline = "storyq"
    writer = Sampling(temperature=None, max_tokens=None)
    judge = Sampling(temperature=0.2, max_tokens=6_000)
    roles: ClassVar = {READER: RoleDefault(Sampling(temperature=0.95, max_tokens=900))}

    def __init__(self, options: NarraOptions) -> None:
        self._options = options
        self._personas = load_personas(options.personas or CARDS)
        self._prompts, rubric = (
            (PROMPTS, load_rubric("narra")) if options.texts is None else _read_texts(options.texts)
        )
        self.rubrics = {_STEP: rubric}
        self._families: dict[tuple[str, str], str] = {}

    def items(self) -> list[Item]:
        return [
            Item(name, persona["emotional_need"].strip(), persona, {"persona": name})
            for name, persona in self._personas.items()
        ]

    def record(self) -> dict[str, Any]:
        """Rules, part, and digests of texts and personas, and what is not as published."""
        options = self._options
        reasons, digests = texts_record(
            options.texts, _TEXTS, "prompts and rubric are LitBench's own"
        )
        if options.personas is None:
            reasons.append("personas are LitBench's own")
        if not options.as_published:
            reasons.append("rules are the paper's; published grades come from the published code")
        if options.part != "benchmark":
            reasons.append("part is full: the published sweep ran without planner and artifacts")
        if not options.show_notes:
            reasons.append("judges do not see the reader's notes")
        reasons += [
            "memory calls have the writer's temperature, not their own",
            "the printed user-experience figures are means of all eleven criteria (all11), not ux",
            "published grades are by GPT-5.4-mini, Gemini 3.1 Pro and Claude Sonnet 4.6",
        ]
        return {
            "not_comparable": reasons,
            "as_published": options.as_published,
            "part": options.part,
            "texts": digests,
            "personas": {
                name: digest(card_text(persona)) for name, persona in self._personas.items()
            },
            "same_family": sorted(set(self._families.values())),
        }

    def check(self, models: Models) -> None:
        """Refuse a reader or a writer of a judge's family, unless forced."""
        reader = family(READER, models.roles[READER].model)
        for judge, role in models.roles.items():
            if judge == READER:
                continue
            of_judge = family(judge, role.model)
            if of_judge == reader:
                for writer in models.writers:
                    self._families[writer, judge] = "judged by the reader's family"
            for writer, model in models.writers.items():
                if family(writer, model.model) == of_judge:
                    self._families[writer, judge] = "judged by the writer's family"
        if self._families and not self._options.force:
            (writer, judge), flag = next(iter(self._families.items()))
            raise ConfigError(
                f"judge {judge} and {READER if 'reader' in flag else f'writer {writer}'} are of "
                "one model family, so the judge may favour its relative: name another judge, or "
                "set options.force to flag the grades"
            )

    async def write(self, session: Session, item: Item) -> Written:
        """Run the episode."""
        options = self._options
        episode = Episode(session, item.content, self._prompts, options.part, options.as_published)
        await episode.run()
        written = Written(grades=_quantities(episode), events=episode.events)
        if episode.end != "failed":
            lines = episode.lines()
            written.texts[_STEP] = render_transcript(lines, cut=False)
            written.facts = {"lines": lines, "notes": episode.notes}
            if safe_turns := episode.count("turn", safe=True):
                turns = episode.count("turn")
                written.flags = [f"{safe_turns} of {turns} turns are a fixed sentence"]
        return written

    async def rate(self, session: Session, item: Item, written: Written, judge: str) -> ItemRatings:
        """Rate the whole episode, unless it failed."""
        if not written.texts:
            return ItemRatings()
        # Cleaned before they are joined in lines: a marker in a message stays one at its beginning.
        lines = [
            (role, speaker, without_delimiters(text))
            for role, speaker, text in written.facts["lines"]
        ]
        notes = "\n".join(f"{n}. {note}" for n, note in enumerate(written.facts["notes"], 1))
        texts = {
            "persona": card_text(item.content),
            "notes": notes if self._options.show_notes and notes else "(not shown)",
            "text": render_transcript(lines, cut=self._options.as_published),
        }
        as_published = self._options.as_published
        questions = {_STEP: (self.rubrics[_STEP], texts)}
        rated = (await rate_texts(session, judge, questions, as_published=as_published))[_STEP]
        if as_published:
            rated = _as_published(rated)
        values = {name: rated.ratings[name].rating for name in CRITERIA}
        flags = [*missing_flag([rated]), *written.flags]
        if (session.writer, judge) in self._families:
            flags.append(self._families[session.writer, judge])
        reply = read_json(rated.reply.text, dict) or {}
        labels = reply.get("failure_modes")
        named = [label for label in _FAILURES if isinstance(labels, list) and label in labels]
        return ItemRatings(
            {_STEP: rated},
            [
                *((judge, name, grade, flags) for name, grade in grades(values).items()),
                (judge, "failure_modes", float(len(named)), named),
                *((judge, f"{FAILURE}{label}", float(label in named), []) for label in _FAILURES),
            ],
            [
                {
                    "event": "judged",
                    "judge": judge,
                    "failure_modes": named,
                    "breaking_character": _count(reply),
                }
            ],
        )


def _read_texts(folder: Path) -> tuple[dict[str, Any], Rubric]:
    """A user's prompts and rubric; ConfigError if they do not have the form of ours."""
    read_texts(folder, _TEXTS, "with copies of the packaged files")
    prompts = read_yaml(folder / "prompts.yaml")
    check_form(prompts, PROMPTS, str(folder / "prompts.yaml"))
    path = folder / "rubric.yaml"
    rubric = load_rubric(path)
    check_placeholders(rubric.text, ("persona", "notes", "text", "criteria", "code"), path)
    names = tuple(criterion.name for criterion in rubric.criteria)
    if names != CRITERIA or rubric.form != "json":
        raise ConfigError(
            f"texts: {path} has the form {rubric.form} and the criteria {', '.join(names)}: keep "
            "the form json and the eleven criteria of the packaged rubric"
        )
    return prompts, rubric


def family(name: str, model: str) -> str:
    """The family of a model: the letters that its name begins with.

    A recorded model is known by the name of its role only.
    """
    named = name if model.startswith(RECORDED) else model
    match = re.match(r"[a-z]+", named.rpartition("/")[2].lower())
    word = match[0] if match else named
    return _FAMILIES.get(word, word)


def _as_published(rated: Rated) -> Rated:
    """The ratings as the published code stores them; a reply that failed has none."""
    reply = read_json(rated.reply.text, dict)
    if reply is None:
        return rated
    scores = reply.get("scores")
    numbers: Mapping[str, Any] = scores if isinstance(scores, dict) else {}
    ratings = {name: Rating(float(published_rating(name, numbers.get(name)))) for name in CRITERIA}
    return replace(
        rated, ratings=ratings, grade=grades({n: r.rating for n, r in ratings.items()})["all11"]
    )


def _count(reply: Mapping[str, Any]) -> int:
    """How often the story broke character, by a judge; 0 where it is not said."""
    value = reply.get("breaking_character_count")
    return max(0, round(value)) if isinstance(value, int | float) and abs(value) < 1e6 else 0


def _quantities(episode: Episode) -> list[Grade]:
    """The quantities of an episode, without a judge."""
    texts = [m.text for m in episode.history if m.kind in ("text", "notice")]
    turns = episode.count("turn")
    flags = [f"{episode.detail} cannot be read"] if episode.detail else []
    if episode.cut:
        flags.append(f"{episode.cut} answers cut")
    if repaired := episode.count("repaired"):
        flags.append(f"{repaired} actions of the reader repaired")
    per_turn = {
        "safe_turns": episode.count("turn", safe=True),
        "patches_per_turn": episode.count("guard_patch"),
        "signals_per_turn": episode.count("stagnation"),
    }
    values = {
        "failed": float(episode.end == "failed"),
        "repetition_index": repetition_index(texts) if texts else None,
        **{name: count / turns if turns else None for name, count in per_turn.items()},
    }
    return [(None, name, value, flags) for name, value in values.items()]
