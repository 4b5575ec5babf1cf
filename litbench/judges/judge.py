"""Judge: any language model behind an interface as a rater, in both orders.

    raters:
      gpt_4.1:
        kind: judge
        model: openai/gpt-4.1
        template: reddit_verbose
        answer: json_explanation

The model is any name that inspect-ai knows, see `litbench.judges.client`, which asks and stores.
Pairs come in shards, and each shard leaves one log that `inspect view --log-dir FOLDER` shows, with
both orders of a pair in a sample.
"""

import contextlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from litbench.config import build
from litbench.errors import ConfigError
from litbench.judges.client import Budget, Traffic, ask, estimate, is_error
from litbench.judges.prices import Price, load_prices, price_of
from litbench.judges.store import Answer, AnswerStore, Sampling, keys_of, local_folder
from litbench.raters import BlindPair, Estimate, Judgement, Preference, Rater
from litbench.templates import AnswerForm, load_template, read_answer, template_files
from litbench.text import digest

# What answers of each form usually come to, in tokens; explanations as in the paper's Table 3.
USUAL_TOKENS: dict[AnswerForm, int] = {
    "label": 1,
    "verdict": 5,
    "json_verdict": 10,
    "explanation": 300,
    "json_explanation": 320,
}


@dataclass
class JudgeOptions:
    """A model behind an interface as a rater.

    Attributes:
        model: a name that inspect-ai knows, such as openai/gpt-4.1.
        template: a family, such as alternative or reddit_verbose, another packaged template, or
            a file; see litbench.templates. `select` of eval/benchmark.py chooses it.
        answer: form of the answer, for a family: label, verdict, explanation, json_verdict or
            json_explanation; explanation when null.
        sampling: what an answer depends on.
        traffic: connections, retries and limits.
        probabilities: ask for the probabilities of the label too; answer label only, and providers
            that give log probabilities.
        batch: ask through the provider's interface for batches, so many questions in each; slower
            and cheaper. null asks at once.
        prices: file of prices that go before the packaged ones.
        shard: pairs in one log of inspect-ai.
        answers: folder of stored answers, to share them between evaluations; that of the
            evaluation when null.
    """

    model: str
    template: str = "alternative"
    answer: AnswerForm | None = None
    sampling: Sampling = field(default_factory=Sampling)
    traffic: Traffic = field(default_factory=Traffic)
    probabilities: bool = False
    batch: int | None = None
    prices: Path | None = None
    shard: int = 1_000
    answers: Path | None = None

    def __post_init__(self) -> None:
        self.traffic.check()
        if self.batch is not None and self.batch < 1:
            raise ConfigError(f"batch is {self.batch}: give how many questions go into each")
        if self.shard < 1:
            raise ConfigError(f"shard is {self.shard}: give at least 1")
        if self.probabilities and load_template(self.template, self.answer).answer != "label":
            raise ConfigError(
                "probabilities are those of the label: set answer to label, or leave them out"
            )
        # Refuses a limit in dollars without a price.
        Budget(self.traffic, self.price())

    def files(self) -> dict[str, str]:
        """What verdicts and their prices depend on: own template and prices, a local model."""
        files = template_files(self.template)
        if self.prices is not None:
            files["prices"] = str(self.prices)
        if (folder := local_folder(self.model)) is not None:
            files["model"] = str(folder)
        return files

    def price(self) -> Price | None:
        """What the model's tokens cost; None where that is not known."""
        return price_of(self.model, load_prices(self.prices))


@dataclass(frozen=True)
class _Order:
    """One question about a pair.

    Attributes:
        shown: the story that stands as A.
        question: the whole text.
        key: names its answer.
    """

    shown: Literal["first", "second"]
    question: str
    key: str


class Judge(Rater):
    """A model behind an interface; see the module.

    Attributes:
        name: the rater's name.
        options: as given.
        template: the question.
        price: of the model; None where none is known.
        shard: pairs asked at once.
    """

    kind = "judge"

    def __init__(self, name: str, options: JudgeOptions) -> None:
        self.name = name
        self.options = options
        self.template = load_template(options.template, options.answer)
        self.price = options.price()
        self.shard = options.shard
        self._sampling = options.sampling
        if options.probabilities:
            self._sampling = replace(
                options.sampling, top_logprobs=options.sampling.top_logprobs or 20
            )
        self._folder: Path | None = None
        self._budget = Budget(options.traffic, self.price)
        self._shard: tuple[list[tuple[_Order, _Order]], dict[str, Answer]] = [], {}
        self._models: set[str] = set()
        self._failed: list[str] = []
        self._without_probability = 0

    def work_in(self, folder: Path) -> None:
        """Keep answers in `folder/answers`, unless the options name a folder, and logs beside."""
        self._folder = folder

    def notes(self) -> dict[str, Any]:
        """Model, template and price, for whoever reads the figures."""
        found = {
            "model": self.options.model,
            "answered_by": sorted(self._models),
            "template": self.template.name,
            "answer": self.template.answer,
            "calls_of_this_run": self._budget.calls,
            "price": None if self.price is None else vars(self.price),
        }
        if self._failed:
            found |= {"errors": len(self._failed), "such_as": self._failed[0]}
        if self.options.probabilities:
            found["answers_without_probabilities"] = self._without_probability
        return found

    def estimate(self, pairs: Sequence[BlindPair]) -> list[Estimate]:
        """Estimate the cost without sending requests."""
        questions = [order.question for both in self._orders(pairs) for order in both]
        with AnswerStore(self._answers_folder(), read_only=True) as store:
            found = estimate(
                self.name,
                self.options.model,
                questions,
                store,
                self._sampling,
                self.options.traffic,
                price=self.price,
                usual_tokens=USUAL_TOKENS[self.template.answer],
                batched=self.options.batch is not None,
            )
        return [found]

    def judge(self, pairs: Sequence[BlindPair]) -> Sequence[Sequence[Judgement]]:
        """Ask about every pair in both orders, and read the answers.

        Raises:
            ConfigError: the model's name or its key is missing or wrong, or a limit of the traffic
                is reached; the answers are kept.
            ModelError: too many errors in a row; the answers are kept.
            DataError: an answer cannot be stored.
            MissingExtraError: inspect-ai is not installed and something must be asked.
        """
        orders = self._orders(pairs)
        questions = {order.key: order.question for both in orders for order in both}
        with AnswerStore(self._answers_folder(), _file_name(self.name)) as store:
            self._budget.note_stored(store, questions)
            found = ask(
                self.options.model,
                list(questions.values()),
                store,
                self._sampling,
                self.options.traffic,
                about=f"rater {self.name}",
                budget=self._budget,
                batch=self.options.batch,
            )
        answers = dict(zip(questions, found, strict=True))
        self._shard = orders, answers
        seconds = busy_seconds(found) / max(len(found), 1)
        self._models |= {one.model for one in found if one.model is not None}
        self._failed += [one.detail or "" for one in found if is_error(one)]
        if self.options.probabilities:
            self._without_probability += sum(one.first_token is None for one in found)
        return [
            [self._judgement(order, answers[order.key], seconds) for order in both]
            for both in orders
        ]

    def write_log(
        self, judged: Sequence[Sequence[Judgement]], chosen_first: Sequence[bool]
    ) -> None:
        """Write a log of inspect-ai for the pairs that were judged last.

        Args:
            judged: both judgements of every pair.
            chosen_first: whether the chosen story is the first; the judge never sees it.
        """
        orders, answers = self._shard
        # Stored answers can be read without inspect-ai.
        with contextlib.suppress(ImportError):
            from litbench.judges.log import write_log  # noqa: PLC0415

            shown = [[(order.question, answers[order.key]) for order in both] for both in orders]
            named = digest(*(order.key for both in orders for order in both))[:12]
            folder = self._work_folder() / "logs" / _file_name(self.name)
            write_log(
                folder / f"{_file_name(self.name)}_{named}.eval",
                task=self.name,
                model=self.options.model,
                metadata={"template": self.template.name, "answer": self.template.answer},
                shown=shown,
                judged=judged,
                chosen_first=chosen_first,
            )

    def _orders(self, pairs: Sequence[BlindPair]) -> list[tuple[_Order, _Order]]:
        """Both questions about every pair."""
        render = self.template.render
        straight = [render(pair.prompt, pair.first, pair.second) for pair in pairs]
        swapped = [render(pair.prompt, pair.second, pair.first) for pair in pairs]
        keys = keys_of(self.options.model, [*straight, *swapped], self._sampling)
        return [
            (
                _Order("first", straight[row], keys[row]),
                _Order("second", swapped[row], keys[row + len(pairs)]),
            )
            for row in range(len(pairs))
        ]

    def _answers_folder(self) -> Path:
        if self.options.answers is not None:
            return self.options.answers
        return self._work_folder() / "answers"

    def _work_folder(self) -> Path:
        if self._folder is None:
            raise ConfigError(
                f"rater {self.name}: there is no folder for its answers: set the key answers, or "
                "call work_in"
            )
        return self._folder

    def _judgement(self, order: _Order, answer: Answer, seconds: float) -> Judgement:
        prefers, explanation = self.read(answer)
        p_a = mass = None
        if prefers in ("first", "second") and answer.first_token is not None:
            p_a, mass = label_probability(answer.first_token)
        if order.shown == "second":
            prefers = _OTHER.get(prefers, prefers)
            p_a = None if p_a is None else 1 - p_a
        return Judgement(
            prefers,
            p_a,
            first_shown=order.shown,
            explanation=explanation or None,
            input_tokens=answer.input_tokens,
            output_tokens=answer.output_tokens,
            cost_usd=None if self.price is None else self.price.of_answer(answer),
            label_mass=mass,
            seconds=seconds,
        )

    def read(self, answer: Answer) -> tuple[Preference, str]:
        """What an answer says: whether the story shown first or second is preferred, and why.

        An answer that was cut off has no verdict, since the last one binds and it may not have
        come yet; but for the form `label`, where a label alone is the whole answer.
        """
        form = self.template.answer
        if answer.outcome == "error":
            return "error", ""
        if answer.outcome == "refused":
            return "refused", answer.text or answer.detail or ""
        if answer.outcome == "cut" and not (form == "label" and _LABEL.fullmatch(answer.text)):
            return "cut", answer.text
        reading = read_answer(answer.text, form)
        return _PREFERS[reading.verdict], reading.explanation


_OTHER: dict[Preference, Preference] = {"first": "second", "second": "first"}
_PREFERS: dict[str, Preference] = {
    "A": "first",
    "B": "second",
    "tie": "tie",
    "unparsed": "unparsed",
    "refused": "refused",
}
_LABEL = re.compile(r"\s*[AB]\s*")


def label_probability(first_token: Mapping[str, float]) -> tuple[float | None, float]:
    """Read the probability of A off the likeliest first tokens of an answer.

    Tokens that spell a label with blanks around it are counted together; a label that is not among
    the likeliest has none.

    Args:
        first_token: natural logarithm of the probability by token.

    Returns:
        P(A) / (P(A) + P(B)), None where neither is there, and the label mass P(A) + P(B).
    """
    share = {"A": 0.0, "B": 0.0}
    for token, logarithm in first_token.items():
        # Some tokenizers show a blank before a word as one of these.
        label = token.strip(" \n\t\u0120\u2581")
        if label in share:
            share[label] += math.exp(logarithm)
    mass = min(share["A"] + share["B"], 1.0)
    return (share["A"] / (share["A"] + share["B"]) if mass else None), mass


def busy_seconds(answers: Iterable[Answer]) -> float:
    """How long at least one of some answers was being waited for, whenever that was.

    So a run that was killed, or that found its answers stored, is timed like an undisturbed one.
    """
    spans = sorted(
        (one.asked_utc - one.seconds, one.asked_utc)
        for one in answers
        if one.asked_utc is not None and one.seconds is not None
    )
    total, until = 0.0, -math.inf
    for start, end in spans:
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def _file_name(name: str) -> str:
    return re.sub(r"[^-.+=@\w]", "_", name)[:80]


def rater_from_options(name: str, options: Mapping[str, Any], where: str) -> Judge:
    """The kind `judge` of a config."""
    return Judge(name, build(JudgeOptions, options, where))
