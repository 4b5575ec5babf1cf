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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import PositiveInt

from litbench.errors import ConfigError
from litbench.judges.client import check_limit
from litbench.judges.log import LogSample, write_log
from litbench.judges.prices import Price, load_prices, price_of
from litbench.judges.session import (
    JUDGE,
    Mock,
    Models,
    Role,
    Session,
    ask,
    estimate,
    question_sessions,
)
from litbench.judges.store import Answer, AnswerStore, local_folder, shown_text
from litbench.raters import BlindPair, Estimate, Judgement, Preference, Rater
from litbench.store import file_name
from litbench.templates import AnswerForm, load_template, read_answer, template_files
from litbench.text import digest

# Typical answer lengths in tokens; explanations as in the paper's Table 3.
USUAL_TOKENS: dict[AnswerForm, int] = {
    "label": 1,
    "verdict": 5,
    "json_verdict": 10,
    "explanation": 300,
    "json_explanation": 320,
}
_PREFERS: dict[str, Preference] = {"A": "first", "B": "second", "tie": "tie"}
_PREFERS |= {"unparsed": "unparsed", "refused": "refused"}
_SWAPPED: dict[Preference, Preference] = {"first": "second", "second": "first"}
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
        check_limit(self.traffic, self.price(), self.sampling)

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
        template: a template family, a packaged template, or a file; see litbench.templates.
        answer: answer form for a template family; explanation when null.
        batch: questions per batch of the provider's batch interface; null for no batches.
    """

    template: str = "alternative"
    answer: AnswerForm | None = None
    batch: PositiveInt | None = None

    def files(self) -> dict[str, str]:
        """The template, and the files of other raters."""
        return template_files(self.template) | super().files()

    def load(self, name: str) -> "Judge":
        """Make the rater; no request is sent."""
        return Judge(name, self)


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
        """The stored answers."""
        folder = self.options.answers or self._work_folder() / "answers"
        return AnswerStore(folder, file_name(self.name), read_only=read_only)

    def estimate_sessions(self, sessions: Sequence[Session], mock: Mock) -> list[Estimate]:
        """Estimate the cost of sessions without sending requests."""
        with self.answer_store(read_only=True) as store:
            found = estimate(sessions, len(sessions), self._models, store, mock)
        return [replace(one, rater=self.name) for one in found]

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

    def _work_folder(self) -> Path:
        if self._folder is None:
            raise ConfigError(f"rater {self.name}: no folder is set: set answers, or call work_in")
        return self._folder


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
        self.template = load_template(options.template, options.answer)
        self.reads_prompt = "prompt" in self.template.slots
        self._answered_by: set[str] = set()
        self._failed: list[str] = []
        # Both questions and answers of each pair of the last call of `judge`.
        self._asked: list[list[tuple[str, Answer]]] = []

    def notes(self) -> dict[str, Any]:
        """Model, template and price."""
        notes = {
            "model": self.options.model,
            "answered_by": sorted(self._answered_by),
            "template": self.template.name,
            "answer": self.template.answer,
            "calls_of_this_run": self._models.budgets["role", JUDGE].calls,
            "price": None if self._price is None else vars(self._price),
        }
        if self._failed:
            notes |= {"errors": len(self._failed), "such_as": self._failed[0]}
        return notes

    def estimate(self, pairs: Sequence[BlindPair]) -> list[Estimate]:
        """Estimate the cost without sending requests."""
        return self.estimate_questions(self._questions(pairs))

    def estimate_questions(self, questions: Sequence[str]) -> list[Estimate]:
        """Estimate the cost of questions."""
        example = ["word", USUAL_TOKENS[self.template.answer]]
        mock = Mock({JUDGE: {"answer": example}})
        return self.estimate_sessions(question_sessions(questions), mock)

    def ask(self, questions: Sequence[str]) -> list[Answer]:
        """Answer questions, from the store if they are known; raises the errors of `ask`."""
        with self.answer_store() as store:
            return ask(self._models, questions, store, f"rater {self.name}")

    def judge(self, pairs: Sequence[BlindPair]) -> Sequence[Sequence[Judgement]]:
        """Judge every pair in both orders; raises the errors of `ask`."""
        questions = self._questions(pairs)
        answers = self.ask(questions)
        asked = list(zip(questions, answers, strict=True))
        self._asked = [asked[start : start + 2] for start in range(0, len(asked), 2)]
        self._answered_by |= {answer.model for answer in answers if answer.model is not None}
        self._failed += [answer.detail or "" for answer in answers if answer.outcome == "error"]
        return [
            [self._judgement(answer, swapped=order == 1) for order, (_, answer) in enumerate(both)]
            for both in self._asked
        ]

    def write_log(
        self, judged: Sequence[Sequence[Judgement]], chosen_first: Sequence[bool]
    ) -> None:
        """Write an inspect-ai log of the last call of `judge`."""
        samples = []
        rows = zip(self._asked, judged, chosen_first, strict=True)
        for number, (both, judgements, is_first) in enumerate(rows, 1):
            target = "first" if is_first else "second"
            # Ties and orders without a verdict count one half, as in the leaderboard.
            credit = [
                float(one.prefers == target) if one.prefers in ("first", "second") else 0.5
                for one in judgements
            ]
            verdicts = ", ".join(f"{one.prefers} ({one.first_shown} as A)" for one in judgements)
            messages = [
                message
                for question, answer in both
                for message in (("user", question), ("assistant", shown_text(answer)))
            ]
            scores = {"preference": (sum(credit) / len(credit), verdicts)}
            samples.append(LogSample(number, messages, scores, target))
        questions = [question for both in self._asked for question, _ in both]
        metadata = {"template": self.template.name, "answer": self.template.answer}
        self.write_samples(samples, questions, metadata, "accuracy")

    def read(self, answer: Answer) -> tuple[Preference, str]:
        """Return the preference that an answer states, and its explanation.

        A truncated answer has no verdict, because its last verdict may be missing. The exception
        is the answer form `label`, where one letter is the whole answer.
        """
        form = self.template.answer
        if answer.outcome == "error":
            return "error", ""
        if answer.outcome == "refused":
            return "refused", answer.text or answer.detail or ""
        if answer.outcome == "cut" and not (form == "label" and answer.text.strip() in ("A", "B")):
            return "cut", answer.text
        reading = read_answer(answer.text, form)
        return _PREFERS[reading.verdict], reading.explanation

    def _judgement(self, answer: Answer, *, swapped: bool) -> Judgement:
        prefers, explanation = self.read(answer)
        if swapped:
            prefers = _SWAPPED.get(prefers, prefers)
        seconds = None if answer.batched else answer.seconds
        return Judgement(
            prefers,
            first_shown="second" if swapped else "first",
            explanation=explanation or None,
            input_tokens=answer.input_tokens,
            output_tokens=answer.output_tokens,
            cost_usd=None if self._price is None else self._price.of_answer(answer),
            seconds=seconds and seconds / self.options.traffic.connections,
        )

    def _questions(self, pairs: Sequence[BlindPair]) -> list[str]:
        """Questions of all pairs; the two orders of a pair are adjacent."""
        return [
            self.template.render(pair.prompt, *stories)
            for pair in pairs
            for stories in ((pair.first, pair.second), (pair.second, pair.first))
        ]
