"""Judge: a language model behind an API as a rater; every pair is judged in both orders.

    raters:
      gpt_4.1:
        kind: judge
        model: openai/gpt-4.1
        template: reddit_verbose
        answer: json_explanation

The model is any name that inspect-ai knows; `litbench.judges.client` sends the questions and stores
the answers. Every shard of pairs writes one log for `inspect view --log-dir FOLDER`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeVar

from pydantic import PositiveInt

from litbench.data.text import digest
from litbench.judges.answers import Answer, AnswerStore, local_folder, shown_text
from litbench.judges.client import check_limit
from litbench.judges.log import LogSample, write_log
from litbench.judges.prices import Price, load_prices, price_of
from litbench.judges.session import (
    JUDGE,
    Asked,
    Mock,
    Models,
    Readable,
    Role,
    Session,
    Turn,
    ask_readable,
    estimate,
    question_sessions,
)
from litbench.raters.interface import (
    CREDITS,
    PREFERENCES,
    UNASKED,
    BlindPair,
    Estimate,
    Judgement,
    Preference,
    Rater,
    swap,
)
from litbench.raters.templates.parser import AnswerForm, Verdict, read_answer
from litbench.raters.templates.template import Template, load_template, template_files
from litbench.runs.errors import ConfigError
from litbench.runs.outputs import file_name

_Number = TypeVar("_Number", int, float)
# Pairs judged at a time and written to one log, so that memory does not grow with the table.
SHARD = 1_000


@dataclass
class ModelOptions(Role):
    """Options of raters that ask a model.

    Attributes:
        model: a name that inspect-ai knows, such as openai/gpt-4.1.
        sampling: generation options.
        traffic: connections, retries and limits.
        prices: file of prices that override the packaged ones.
        answers: folder of stored answers, to share them between evaluations.
    """

    prices: Path | None = None
    answers: Path | None = None

    def __post_init__(self) -> None:
        check_limit(self.traffic, self.model, self.price(), self.sampling)

    def files(self) -> dict[str, str]:
        """User files that verdicts and costs depend on: prices, a local model."""
        files = {}
        if self.prices is not None:
            files["prices"] = str(self.prices)
        if (folder := local_folder(self.model)) is not None:
            files["model"] = str(folder)
        return files

    def price(self) -> Price | None:
        """Price of the model's tokens; None if unknown."""
        return price_of(self.model, load_prices(self.prices))


@dataclass
class JudgeOptions(ModelOptions):
    """Options of the kind `judge`.

    Attributes:
        template: a template family, a packaged template, or a file; see litbench.raters.templates.
        answer: answer form for a template family; explanation when null.
        batch: questions per batch of the provider's batch interface; null for no batches.
        samples: answers to each question; the mean of their votes is the verdict of an order.
    """

    template: str = "alternative"
    answer: AnswerForm | None = None
    batch: PositiveInt | None = None
    samples: PositiveInt = 1

    def files(self) -> dict[str, str]:
        """The template, and the files of other raters."""
        return template_files(self.template) | super().files()

    def load(self, name: str) -> "Judge":
        """Make the rater; no request is sent."""
        from litbench.judges.best_of_k import BestOfKJudge  # noqa: PLC0415

        template = load_template(self.template, self.answer, may_take_list=True)
        return (BestOfKJudge if template.takes_list else Judge)(name, self)


class ModelRater(Rater):
    """A rater that asks a model: where it stores answers and logs."""

    options: ModelOptions
    _folder: Path | None = None
    _models: Models

    def __init__(self, name: str, options: ModelOptions, batch: int | None = None) -> None:
        self.name = name
        self._price = options.price()
        prices = {} if self._price is None else {options.model: self._price}
        self._models = Models({}, {JUDGE: options}, prices, batch)

    def work_in(self, folder: Path) -> None:
        """Store answers in `folder/answers`, unless the options name a folder; logs in `logs`."""
        self._folder = folder

    def answer_store(self, *, read_only: bool = False) -> AnswerStore:
        folder = self.options.answers or self._work_folder() / "answers"
        return AnswerStore(folder, file_name(self.name), read_only=read_only)

    def estimate_sessions(self, sessions: Sequence[Session], mock: Mock) -> list[Estimate]:
        """Estimate the cost of sessions without sending requests."""
        with self.answer_store(read_only=True) as store:
            estimates = estimate(sessions, len(sessions), self._models, store, mock)
        return [replace(rows, rater=self.name) for rows in estimates]

    def write_samples(
        self,
        samples: Sequence[LogSample],
        questions: Sequence[str],
        metadata: Mapping[str, Any],
        metric: Literal["accuracy", "mean"],
    ) -> None:
        """Write an inspect-ai log, which is named after the questions."""
        name = file_name(self.name)
        write_log(
            self._work_folder() / "logs" / name / f"{name}_{digest(*questions)[:12]}.eval",
            samples,
            task=self.name,
            model=self.options.model,
            metadata=metadata,
            metric=metric,
        )

    def effort(self, turns: Sequence[Turn]) -> dict[str, Any]:
        """Return the messages, tokens, dollars and seconds of turns, by names of `Judgement`."""
        answers, price = [turn.answer for turn in turns], self._price
        usual = self.options.traffic.connections
        seconds = [
            answer.seconds / (answer.connections or usual)
            for answer in answers
            if not answer.batched and answer.seconds
        ]
        return {
            "messages": [
                message
                for turn in turns
                for message in (("user", turn.question), ("assistant", shown_text(turn.answer)))
            ],
            "input_tokens": _total(answer.input_tokens for answer in answers),
            "output_tokens": _total(answer.output_tokens for answer in answers),
            "cost_usd": _total(price.of_answer(answer) for answer in answers) if price else None,
            "seconds": sum(seconds) if seconds else None,
        }

    def _work_folder(self) -> Path:
        if self._folder is None:
            raise ConfigError(f"rater {self.name}: no folder is set: set answers, or call work_in")
        return self._folder


@dataclass(frozen=True)
class StoriesQuestion:
    """A template with a prompt and stories, see `Session.ask_readable`."""

    template: Template
    prompt: str
    stories: Sequence[str]

    @property
    def is_coded(self) -> bool:
        return self.template.is_coded

    def render(self, code: str | None) -> str:
        return self.template.render_stories(self.prompt, self.stories, code)

    def is_read(self, answer: str, code: str | None) -> bool:
        return self.template.is_read(answer, code, len(self.stories))

    def repair(self, code: str | None) -> str:
        """The request for the verdict alone."""
        return self.template.repair(code, len(self.stories))


class Judge(ModelRater):
    """A model behind an API as a rater; see the module.

    Attributes:
        shard: pairs judged at a time; None for all, if the batch interface is used.
    """

    kind = "judge"
    options: JudgeOptions

    def __init__(self, name: str, options: JudgeOptions) -> None:
        super().__init__(name, options, options.batch)
        self.options = options
        self.shard = SHARD if options.batch is None else None
        self.template = load_template(options.template, options.answer, may_take_list=True)
        self.reads_prompt = "prompt" in self.template.slots
        self._answered_by: set[str] = set()
        self._failed: list[str] = []
        self._repaired = 0

    def notes(self) -> dict[str, Any]:
        """Model, template and price."""
        notes = {
            "model": self.options.model,
            "answered_by": sorted(self._answered_by),
            "template": self.template.name,
            "answer": self.template.answer,
            "question": self.template.render("[prompt]", "[story A]", "[story B]"),
            "asked_again": self._repaired,
            "calls_of_this_run": self._models.budgets["role", JUDGE].calls,
            "price": None if self._price is None else vars(self._price),
        }
        if self._failed:
            notes |= {"errors": len(self._failed), "such_as": self._failed[0]}
        return notes

    def estimate(self, pairs: Sequence[BlindPair]) -> list[Estimate]:
        """Estimate the cost without sending requests."""
        return self.estimate_questions(self._questions(pairs), self.options.samples)

    def estimate_questions(
        self, questions: Sequence[str | Readable], samples: int = 1
    ) -> list[Estimate]:
        mock = Mock(rubrics={"answer": self.template})
        return self.estimate_sessions(question_sessions(questions, samples), mock)

    def ask(self, questions: Sequence[str | Readable], samples: int = 1) -> list[Asked]:
        """Answer questions, from the store if they are known; see `ask_readable`."""
        with self.answer_store() as store:
            asked = ask_readable(
                self._models,
                questions,
                store,
                f"rater {self.name}",
                samples=samples,
                may_stop=self.may_stop,
            )
        answers = [turn.answer for turns, _ in asked for turn in turns]
        self._repaired += len(answers) - len(asked)
        self._answered_by |= {answer.model for answer in answers if answer.model is not None}
        self._failed += [answer.detail or "" for answer in answers if answer.outcome == "error"]
        return asked

    def judge(self, pairs: Sequence[BlindPair]) -> Sequence[Sequence[Judgement]]:
        """Judge every pair in both orders; raises the errors of `ask_readable`."""
        samples = self.options.samples
        asked = self.ask(self._questions(pairs), samples)
        judgements = [
            self._judgement(*answer, swapped=index // samples % 2 == 1)
            for index, answer in enumerate(asked)
        ]
        orders = [
            averaged(judgements[start : start + samples])
            for start in range(0, len(judgements), samples)
        ]
        return [orders[start : start + 2] for start in range(0, len(orders), 2)]

    def write_log(
        self, judged: Sequence[Sequence[Judgement]], chosen_first: Sequence[bool]
    ) -> None:
        """Write an inspect-ai log of the conversations."""
        samples = []
        for number, (judgements, is_first) in enumerate(zip(judged, chosen_first, strict=True), 1):
            target = "first" if is_first else "second"
            # Ties and orders without a verdict count one half, as in the leaderboard.
            first = [CREDITS.get(judgement.prefers, 0.5) for judgement in judgements]
            credit = fmean(first) if is_first else 1 - fmean(first)
            verdicts = ", ".join(f"{each.prefers} ({each.first_shown} as A)" for each in judgements)
            messages = [message for each in judgements for message in each.messages]
            scores = {"preference": (credit, verdicts)}
            samples.append(LogSample(number, messages, scores, target))
        questions = [each.messages[0][1] for judgements in judged for each in judgements]
        metadata = {"template": self.template.name, "answer": self.template.answer}
        self.write_samples(samples, questions, metadata, "accuracy")

    def read(
        self, answer: Answer, code: str | None = None, letters: str = "AB"
    ) -> tuple[Verdict, str]:
        """Return the verdict of an answer to a question with this code, or its outcome, and why.

        A truncated answer has no verdict, because its last verdict may be missing. The exception
        is the answer form `label`, where one letter is the whole answer.
        """
        form = self.template.answer
        if answer.outcome == "error":
            return "error", answer.detail or ""
        if answer.outcome == "refused":
            return "refused", answer.text or answer.detail or ""
        if answer.outcome == "cut" and not (form == "label" and answer.text.strip() in ("A", "B")):
            return "cut", answer.text or answer.detail or ""
        reading = read_answer(answer.text, form, code, letters=letters)
        return reading.verdict, reading.explanation

    def read_turns(
        self, turns: Sequence[Turn], code: str | None, letters: str = "AB"
    ) -> tuple[Verdict, str]:
        """Read the turns of a question: the last has the verdict, the first the explanation."""
        verdict, explanation = self.read(turns[-1].answer, code, letters)
        if len(turns) > 1 and verdict != "error":
            # The second answer is the verdict alone.
            explanation = self.read(turns[0].answer, code, letters)[1]
        return verdict, explanation

    def _judgement(self, turns: Sequence[Turn], code: str | None, *, swapped: bool) -> Judgement:
        verdict, explanation = self.read_turns(turns, code)
        prefers = PREFERENCES[verdict]
        return Judgement(
            swap(prefers) if swapped else prefers,
            first_shown="second" if swapped else "first",
            explanation=explanation or None,
            **self.effort(turns),
        )

    def _questions(self, pairs: Sequence[BlindPair]) -> list[Readable]:
        """Questions of all pairs; the two orders of a pair are adjacent."""
        return [
            StoriesQuestion(self.template, pair.prompt, stories)
            for pair in pairs
            for stories in ((pair.first, pair.second), (pair.second, pair.first))
        ]


def averaged(samples: Sequence[Judgement]) -> Judgement:
    """The judgement of repeated answers to a question: the mean of their votes decides.

    Answers without a vote are left out; if no answer has a vote, the first outcome stands. If a
    request failed, the outcome is `error`, so that the question is repeated.
    """
    if len(samples) == 1:
        return samples[0]
    votes = [CREDITS[sample.prefers] for sample in samples if sample.prefers in CREDITS]
    margin = round(fmean(votes) - 0.5, 9) if votes else 0.0
    prefers: Preference = "first" if margin > 0 else "second" if margin < 0 else "tie"
    if any(sample.prefers == "error" for sample in samples):
        prefers = "error"
    elif not votes:
        prefers = samples[0].prefers
    deciding = max(
        (sample for sample in samples if sample.prefers == prefers),
        key=lambda sample: (sample.explanation or "").startswith(UNASKED),
        default=samples[0],
    )
    return replace(
        deciding,
        prefers=prefers,
        input_tokens=_total(sample.input_tokens for sample in samples),
        output_tokens=_total(sample.output_tokens for sample in samples),
        cost_usd=_total(sample.cost_usd for sample in samples),
        seconds=_total(sample.seconds for sample in samples),
        messages=[message for sample in samples for message in sample.messages],
        samples=[sample.prefers for sample in samples],
    )


def _total(values: Iterable[_Number | None]) -> _Number | None:
    """The sum; None if a value is unknown."""
    numbers = list(values)
    return None if None in numbers else sum(value for value in numbers if value is not None)
