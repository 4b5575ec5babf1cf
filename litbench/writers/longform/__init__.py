"""Longform: a story of several chapters, written over 13 steps with the whole history.

The protocol of the EQ-Bench Longform Creative Writing Benchmark (S. J. Paech, 2025,
github.com/EQ-bench/longform-writing-bench): five planning steps, eight chapters, a judgement of
each chapter and one of the whole story. The packaged prompts and rubrics are our own; `texts` takes
the published files. docs/writers.md says what differs.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import NonNegativeFloat, PositiveInt

from litbench.judges.answers import Sampling
from litbench.judges.rubric import Rated, mean_rated
from litbench.judges.session import WRITER, Session, UnfinishedError, gather_all
from litbench.raters.templates.parser import without_reasoning
from litbench.raters.templates.rubric import Criterion, Rubric, load_rubric
from litbench.raters.templates.template import fill
from litbench.runs.config import read_yaml
from litbench.runs.errors import ConfigError
from litbench.writers.protocol import (
    Grade,
    Item,
    ItemRatings,
    Protocol,
    Written,
    missing_flag,
    rate_texts,
)
from litbench.writers.texts import check_placeholders, read_texts, texts_record

_FOLDER = Path(__file__).parent
PLANS = 5
# Answers up to this length, in characters, are asked for again.
_SHORT = 500
_ATTEMPTS = 5
_POWER = 1.7
_POWER_CRITERION = "forced poetry or metaphor"
_JUDGED = ("chapter", "final")
# In place of a chapter without text, as published.
_MISSING = "[ERROR: Text missing]"
_PLACES = ("writing_prompt", "n_chapters", "chapter_number")
_PROMPTS = "longform_creative_writing_prompts_minimalist.json"
# The published files, with the first 16 digits of their SHA-256 as of commit d1c6255 (May 2025).
_PUBLISHED_FILES = {
    _PROMPTS: "0c2cca82997be62a",
    "prompt1.txt": "d7452758e1406b20",
    "prompt2.txt": "93a702af8119be14",
    "prompt3.txt": "cb4c33ff298a10cf",
    "prompt4.txt": "46daffe7d27489f9",
    "prompt5.txt": "736161e33aec50a5",
    "prompt_chapter_first.txt": "b359a7295dcecc05",
    "prompt_chapter_intermediate.txt": "5224b88d317b562a",
    "prompt_chapter_last.txt": "eaaa112ac3483aa2",
    "longform_creative_writing_judging_prompt_chapter.txt": "f3487b10bf260d42",
    "longform_creative_writing_judging_prompt_final.txt": "478107b8ae60532b",
    "longform_creative_writing_criteria_chapter.txt": "95d84aead7fa1f74",
    "longform_creative_writing_criteria_final.txt": "33cd568dbae01eee",
    "longform_negative_criteria_chapter.txt": "2bc9f68a91bdda2e",
    "longform_negative_criteria_final.txt": "a622cceef7188463",
    "criteria_weights.json": "f8f3740cd778feec",
}


@dataclass
class LongformOptions:
    """Options of the protocol `longform`.

    Attributes:
        texts: folder of the published prompts and criteria (`data/` of the benchmark's
            repository); null for our own.
        chapters: number of chapters (`NUM_CHAPTERS` in the benchmark's README).
        final_score_weight: weight of the final judgement in the story's grade; a chapter's is 1.
        num_final_judgments: how often the judge rates the whole story; ratings and grade are means.
        num_chapter_judgments: how often the judge rates each chapter, likewise.
        as_published: read the judges' replies as the benchmark's program does: names verbatim,
            numbers clamped to the scale.
    """

    texts: Path | None = None
    chapters: PositiveInt = 8
    final_score_weight: NonNegativeFloat = 1.0
    num_final_judgments: PositiveInt = 1
    num_chapter_judgments: PositiveInt = 1
    as_published: bool = False


@dataclass(frozen=True)
class LongformTexts:
    """Prompts and rubrics of one source, ours or the published ones.

    Attributes:
        items: the writing prompts.
        plans: the prompts of the planning steps.
        chapters: the prompts of the `first`, `intermediate` and `last` chapter.
        rubrics: of a `chapter` and of the whole story (`final`).
    """

    items: list[Item]
    plans: list[str]
    chapters: dict[str, str]
    rubrics: dict[str, Rubric]

    def prompts(self, chapters: int) -> dict[str, str]:
        """The user prompt of every step; with one chapter, it is the last."""
        steps = {f"plan_{number}": text for number, text in enumerate(self.plans, 1)}
        for number in range(1, chapters + 1):
            key = "first" if number == 1 else "intermediate"
            text = self.chapters["last" if number == chapters else key]
            steps[f"chapter_{number}"] = text.replace("{chapter_number}", str(number))
        return steps


class Longform(Protocol):
    """The protocol; see the module."""

    options = LongformOptions
    source = "EQ-Bench Longform (S. J. Paech, 2025)"
    headline = "overall"
    writer = Sampling(temperature=0.7, max_tokens=4000, extra_body={"min_p": 0.1})
    judge = Sampling(temperature=0.0, max_tokens=16_000)

    def __init__(self, options: LongformOptions) -> None:
        self._options = options
        self.texts = _own_texts() if options.texts is None else published_texts(options.texts)
        self.prompts = self.texts.prompts(options.chapters)
        self.rubrics = self.texts.rubrics

    def items(self) -> list[Item]:
        return self.texts.items

    def record(self) -> dict[str, Any]:
        """The digests of the texts, and what is not as published."""
        about = "prompts and rubrics are LitBench's own"
        reasons, digests = texts_record(self._options.texts, _PUBLISHED_FILES, about)
        if self._options.chapters != 8:
            reasons.append(f"{self._options.chapters} chapters instead of 8")
        if self._options.final_score_weight != 1:
            reasons.append(
                f"the final judgement weighs {self._options.final_score_weight:g}, not 1"
            )
        if not self._options.as_published:
            reasons.append("judges' replies are read by LitBench's rules, not as published")
        reasons.append("published grades are by Claude 3.7 Sonnet; other judges grade differently")
        return {"not_comparable": reasons, "texts": digests}

    def message(self, step: str, item: Item) -> str:
        """The user prompt of a step; placeholders inside the item's prompt stay."""
        filled = {"writing_prompt": item.prompt, "n_chapters": str(self._options.chapters)}
        return fill(self.prompts[step], filled)

    async def write(self, session: Session, item: Item) -> Written:
        """Write plans and chapters, each with the whole history."""
        history: list[tuple[str, str]] = []
        written = Written()
        for step in self.prompts:
            history.append(("user", self.message(step, item)))
            is_chapter = step.startswith("chapter_")
            if is_chapter and self._options.as_published and session.is_missing(WRITER, step):
                # The published program leaves a chapter without text out of the grade.
                history.append(("assistant", ""))
                written.flags.append(f"{step} missing")
                continue
            text, is_cut = await self._write(session, history, step)
            history.append(("assistant", text))
            (written.texts if is_chapter else written.facts)[step] = text
            if is_cut:
                written.flags.append(f"{step} cut")
        return written

    async def rate(self, session: Session, item: Item, written: Written, judge: str) -> ItemRatings:
        """Rate every chapter and the whole story."""
        plan, profiles = (written.facts.get(f"plan_{n}", "") for n in (PLANS - 1, PLANS))
        questions: dict[str, tuple[Rubric, Mapping[str, str]]] = {
            step: (
                self.rubrics["chapter"],
                {
                    "prompt": item.prompt,
                    "plan": plan,
                    "profiles": profiles,
                    "text": text,
                    "number": step.removeprefix("chapter_"),
                },
            )
            for step, text in written.texts.items()
        }
        whole = "\n\n---\n\n".join(
            f"# Chapter {number}\n\n{written.texts.get(f'chapter_{number}', _MISSING)}"
            for number in range(1, self._options.chapters + 1)
        )
        final = {"final": (self.rubrics["final"], {"prompt": item.prompt, "text": whole})}
        options = self._options
        chapters, ending = await gather_all(
            self._rate_repeatedly(session, judge, questions, options.num_chapter_judgments),
            self._rate_repeatedly(session, judge, final, options.num_final_judgments),
        )
        rated = chapters | ending
        return ItemRatings(rated, self._grades(judge, rated, written))

    async def _rate_repeatedly(
        self,
        session: Session,
        judge: str,
        questions: Mapping[str, tuple[Rubric, Mapping[str, str]]],
        count: int,
    ) -> dict[str, Rated]:
        """The means of several ratings of each text, by step."""
        first = session.judge_sample * count
        repeats = await gather_all(
            *(
                rate_texts(
                    replace(session, judge_sample=number),
                    judge,
                    questions,
                    as_published=self._options.as_published,
                )
                for number in range(first, first + count)
            )
        )
        return {step: mean_rated([rated[step] for rated in repeats]) for step in questions}

    def _grades(self, judge: str, rated: Mapping[str, Rated], written: Written) -> list[Grade]:
        """The grades of a judge on a scale of 0 to 100: of each text, and overall."""
        grades: list[Grade] = [
            (
                judge,
                step,
                None if reading.grade is None else 5 * reading.grade,
                missing_flag([reading]),
            )
            for step, reading in rated.items()
        ]
        graded = {
            step: reading.grade for step, reading in rated.items() if reading.grade is not None
        }
        # A story of which no chapter was read has no grade: the final judgement saw none either.
        is_read = bool(graded.keys() & written.texts.keys())
        final_weight = self._options.final_score_weight
        weights = [final_weight if step == "final" else 1.0 for step in graded]
        overall = 5 * fmean(graded.values(), weights) if is_read else None
        flags = missing_flag(list(rated.values()))
        flags += ["no chapter graded"] if graded and not is_read else []
        grades.append((judge, "overall", overall, flags + written.flags))
        return grades

    async def _write(
        self, session: Session, history: Sequence[tuple[str, str]], step: str
    ) -> tuple[str, bool]:
        """Return the writer's text of a step, and whether it was truncated."""
        for attempt in range(_ATTEMPTS):
            turn = await session.ask(WRITER, list(history), step=step, attempt=attempt)
            if turn.outcome == "error":
                raise UnfinishedError(f"{step}: {turn.answer.detail}")
            text = without_reasoning(turn.text)
            if len(text) > _SHORT or (len(text) == _SHORT and attempt == _ATTEMPTS - 1):
                return text, turn.outcome == "cut"
        raise UnfinishedError(
            f"{step}: {_ATTEMPTS} answers are shorter than {_SHORT} characters or refused"
        )


def _own_texts() -> LongformTexts:
    content = read_yaml(_FOLDER / "texts.yaml")
    items = [Item(name, text.strip()) for name, text in content["prompts"].items()]
    chapters = {key: content["chapters"][key].strip() for key in content["chapters"]}
    rubrics = {level: load_rubric(f"longform_{level}") for level in _JUDGED}
    return LongformTexts(items, [text.strip() for text in content["plans"]], chapters, rubrics)


def published_texts(folder: Path) -> LongformTexts:
    """Read the published files.

    Raises:
        ConfigError: a file is missing or does not have the form of the published one.
    """
    origin = "data/ of github.com/EQ-bench/longform-writing-bench"
    files = read_texts(folder, _PUBLISHED_FILES, origin)
    for name in files:
        if name.startswith("prompt"):
            check_placeholders(files[name], _PLACES, folder / name)
    try:
        prompts = json.loads(files[_PROMPTS])
        items = [Item(name, entry["writing_prompt"]) for name, entry in prompts.items()]
        if not items:
            raise ValueError("no writing prompt")
        weights = {name: float(n) for name, n in json.loads(files["criteria_weights.json"]).items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"texts: the prompts or criteria_weights.json in {folder} do not have the published "
            f"form ({error!r}): take the files unchanged"
        ) from error
    rubrics = {level: _published_rubric(level, files, weights, folder) for level in _JUDGED}
    named = {criterion.name.lower() for rubric in rubrics.values() for criterion in rubric.criteria}
    if unknown := set(weights) - named:
        raise ConfigError(
            f"texts: criteria_weights.json in {folder} has weights of unknown criteria: "
            f"{', '.join(sorted(unknown))}: correct the names"
        )
    plans = [files[f"prompt{number}.txt"] for number in range(1, PLANS + 1)]
    chapters = {
        key: files[f"prompt_chapter_{key}.txt"] for key in ("first", "intermediate", "last")
    }
    return LongformTexts(items, plans, chapters, rubrics)


def _published_rubric(
    level: str, files: Mapping[str, str], weights: Mapping[str, float], folder: Path
) -> Rubric:
    def lines(name: str) -> list[str]:
        return [line.strip() for line in files[name].splitlines() if line.strip()]

    names = lines(f"longform_creative_writing_criteria_{level}.txt")
    negative = lines(f"longform_negative_criteria_{level}.txt")
    if unknown := set(negative) - set(names):
        raise ConfigError(
            f"texts: longform_negative_criteria_{level}.txt in {folder} names unknown criteria: "
            f"{', '.join(sorted(unknown))}: correct the names"
        )
    criteria = tuple(
        Criterion(
            name,
            reversed=name in negative,
            weight=weights.get(name.lower(), 1.0),
            power=_POWER if name.lower() == _POWER_CRITERION else 1.0,
        )
        for name in names
    )
    name = f"longform_creative_writing_judging_prompt_{level}.txt"
    text = files[name]
    ours = {
        "writing_prompt": "{prompt}",
        "final_plan": "{plan}",
        "character_profiles": "{profiles}",
        "chapter_text": "{text}",
        "chapter_number": "{number}",
        "full_story": "{text}",
        "creative_writing_criteria": "{criteria}",
        # In the order of the file, which is not that of the criteria.
        "lower_is_better_criteria": ", ".join(negative),
    }
    check_placeholders(text, ours, folder / name)
    text = fill(text, ours)
    return Rubric(f"longform_{level}", "lines", 0.0, 20.0, text, criteria, is_plain=True)
