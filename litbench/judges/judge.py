"""Judge: any language model behind an interface as a rater, in both orders.

    raters:
      gpt_4.1:
        kind: judge
        model: openai/gpt-4.1
        template: reddit_verbose
        answer: json_explanation

The model is any name that inspect-ai knows, see `litbench.judges.asking`. Each pair is one sample
of an inspect-ai task and both orders are asked inside it; pairs come in shards, and each shard
leaves one log that `inspect view --log-dir FOLDER` shows. Every answer is stored as soon as it is
there (`litbench.judges.store`), so a run that was killed asks for what is missing and no more.
Verdicts are read from the answers, and figures are computed from the verdicts, by the same
functions as for any other rater; inspect-ai only asks and logs.
"""

import asyncio
import gc
import math
import os
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from litbench.config import build
from litbench.errors import ConfigError, ModelError
from litbench.judges.asking import (
    Budget,
    Conversation,
    Traffic,
    estimate_tokens,
    is_error,
    without_secrets,
)
from litbench.judges.prices import Price, load_prices, price_of
from litbench.judges.store import Answer, AnswerStore, Sampling, keys_of, local_folder
from litbench.raters import BlindPair, Estimate, Judgement, Preference
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
# Guesses for a model whose stored answers do not tell: how fast it starts, and how it writes.
_SECONDS_TO_START = 1.0
_TOKENS_PER_SECOND = 60.0
_ENOUGH_TIMED = 20


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


class Judge:
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
        self._dollars_before = 0.0
        self._calls = 0
        self._models: set[str] = set()
        self._failed: list[str] = []
        self._without_probability = 0

    def work_in(self, folder: Path) -> None:
        """Keep answers in `folder/answers`, unless the options name a folder, and logs beside."""
        self._folder = folder

    def training_prompts(self) -> frozenset[str]:
        """None: what a model of others was trained on is not known."""
        return frozenset()

    def notes(self) -> dict[str, Any]:
        """Model, template and price, for whoever reads the figures."""
        found = {
            "model": self.options.model,
            "answered_by": sorted(self._models),
            "template": self.template.name,
            "answer": self.template.answer,
            "calls_of_this_run": self._calls,
            "price": None if self.price is None else vars(self.price),
        }
        if self._failed:
            found |= {"errors": len(self._failed), "such_as": self._failed[0]}
        if self.options.probabilities:
            found["answers_without_probabilities"] = self._without_probability
        return found

    def estimate(self, pairs: Sequence[BlindPair]) -> list[Estimate]:
        """Tell what judging some pairs would take, asking nothing."""
        waiting: dict[str, str] = {}
        known: list[Answer] = []
        with AnswerStore(self._answers_folder(), read_only=True) as store:
            for orders in self._orders(pairs):
                for order in orders:
                    answer = store.get(order.key)
                    if answer is None:
                        waiting[order.key] = order.question
                    else:
                        known.append(answer)
        read = sum(map(estimate_tokens, waiting.values()))
        counted = [one.output_tokens for one in known if one.output_tokens is not None]
        usual = USUAL_TOKENS[self.template.answer]
        if len(counted) >= _ENOUGH_TIMED:
            usual = round(statistics.mean(counted))
        timed = [one.seconds for one in known if one.seconds is not None]
        seconds = _SECONDS_TO_START + usual / _TOKENS_PER_SECOND
        if len(timed) >= _ENOUGH_TIMED:
            seconds = statistics.mean(timed)
        calls, most = len(waiting), self._sampling.max_tokens
        cost = most_cost = None
        if self.price is not None:
            batched = self.options.batch is not None
            cost = self.price.of(read, calls * usual, batched=batched)
            if most is not None:
                most_cost = self.price.of(read, calls * most, batched=batched)
        return [
            Estimate(
                rater=self.name,
                model=self.options.model,
                calls=calls,
                known=len(known),
                input_tokens=read,
                output_tokens=calls * usual,
                cost_usd=cost,
                most_cost_usd=most_cost,
                seconds=calls * seconds / self.options.traffic.connections,
            )
        ]

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
        with AnswerStore(self._answers_folder(), _file_name(self.name)) as store:
            answers = self._ask(orders, store)
        asked = {order.key for both in orders for order in both}
        seconds = busy_seconds(answers[key] for key in asked) / max(len(asked), 1)
        self._models |= {one.model for one in answers.values() if one.model is not None}
        self._failed += [one.detail or "" for one in answers.values() if is_error(one)]
        if self.options.probabilities:
            self._without_probability += sum(o.first_token is None for o in answers.values())
        return [
            [self._judgement(order, answers[order.key], seconds) for order in both]
            for both in orders
        ]

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

    def _ask(
        self, orders: Sequence[tuple[_Order, _Order]], store: AnswerStore
    ) -> dict[str, Answer]:
        """Get an answer for every question, from the store or from the model."""
        options = self.options
        known = {
            order.key: answer
            for both in orders
            for order in both
            if (answer := store.get(order.key)) is not None
        }
        keys = {order.key for both in orders for order in both}
        budget = Budget(options.traffic, self.price)
        # Of earlier shards, and of these pairs in earlier runs.
        budget.dollars, budget.calls = self._dollars_before, self._calls
        for answer in known.values():
            budget.note(answer)
        self._dollars_before = budget.dollars
        if len(known) == len(keys):
            return known
        conversation = Conversation(
            options.model, store, self._sampling, options.traffic, budget, batch=options.batch
        )
        log = _ShardLog(self, orders)
        log.run(conversation, known)
        if len(known) == len(keys) and any(map(is_error, known.values())):
            # What failed once, such as an empty answer, often succeeds a while later.
            for key in [key for key, answer in known.items() if is_error(answer)]:
                del known[key]
            conversation.gives_up = False
            log.run(conversation, known)
        self._dollars_before, self._calls = budget.dollars, budget.calls
        if len(known) < len(keys):
            raise ConfigError(
                f"rater {self.name}: {budget.spent()}; {len(store):,} answers are kept in "
                f"{store.folder}: run the same command again, or raise the limit"
            )
        return known

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


class _ShardLog:
    """Runs one shard as a task of inspect-ai, which leaves its log."""

    def __init__(self, judge: Judge, orders: Sequence[tuple[_Order, _Order]]) -> None:
        self.judge = judge
        self.orders = orders
        self.folder = judge._work_folder() / "logs" / _file_name(judge.name)
        named = re.sub(r"[^A-Za-z0-9]+", "-", judge.name)[:40].strip("-")
        of_keys = digest(*(one.key for both in orders for one in both))[:12]
        # As inspect-ai writes it into the name of the log's file, so that the file can be found.
        self.task = f"{named}-{of_keys}"

    def run(self, conversation: Conversation, known: dict[str, Answer]) -> None:
        """Ask what is not known; `known` has it afterwards, but for what the budget forbade.

        Raises:
            ModelError: the model gave up, or inspect-ai failed.
            LitBenchError: what the conversation raised.
        """
        import inspect_ai  # noqa: PLC0415

        # Its traces in the home folder hold addresses with their logins and what servers complain
        # of, keys among it.
        os.environ.setdefault("INSPECT_TRACE_LEVEL", "CRITICAL")
        # Of a run that was killed, or stopped at a limit; this one has all that was in them.
        for path in self.folder.glob(f"*_{self.task}_*.eval"):
            path.unlink()
        open_calls = len({one.key for both in self.orders for one in both} - known.keys())
        about = f"judge {self.judge.name}"
        with tqdm(total=open_calls, desc=about, unit="call", leave=False, disable=None) as bar:
            task, failures = self._task(conversation, known, bar)
            # What is there already need not be looked through at every collection: a fifth faster.
            # Of the shard before, tens of megabytes are garbage in circles.
            gc.collect()
            # Who froze something before would find it thawed.
            freezes = gc.get_freeze_count() == 0
            if freezes:
                gc.freeze()
            try:
                (log,) = inspect_ai.eval(
                    task,
                    model=conversation.open(),
                    display="none",
                    log_level="error",
                    log_dir=str(self.folder),
                    log_format="eval",
                    log_realtime=False,
                    log_model_api=False,
                    score=True,
                    fail_on_error=True,
                    max_samples=self._samples_at_once(),
                    ctl_server=False,
                    acp_server=False,
                )
            finally:
                if freezes:
                    gc.unfreeze()
        if failures:
            raise failures[0]
        if log.status == "cancelled":
            raise KeyboardInterrupt
        if log.status != "success":
            said = "" if log.error is None else without_secrets(log.error.message)
            raise ModelError(
                f"rater {self.judge.name}: inspect-ai ended with '{log.status}': {said}: the "
                f"answers are kept; see {log.location} and run the same command again"
            )

    def _samples_at_once(self) -> int:
        if self.judge.options.batch is not None:
            return len(self.orders)
        # Two calls each; what waits for a connection costs little.
        return self.judge.options.traffic.connections

    def _task(
        self, conversation: Conversation, known: dict[str, Answer], bar: Any
    ) -> tuple[Any, list[Exception]]:
        """The task, and a list that will hold what went wrong."""
        from inspect_ai import Task  # noqa: PLC0415
        from inspect_ai.dataset import MemoryDataset, Sample  # noqa: PLC0415
        from inspect_ai.model import ChatMessageAssistant, ChatMessageUser  # noqa: PLC0415
        from inspect_ai.scorer import Score, scorer  # noqa: PLC0415
        from inspect_ai.solver import solver  # noqa: PLC0415

        judge, failures = self.judge, list[Exception]()
        # Questions that begin alike follow each other: a provider's prompt cache can help.
        in_order = sorted(self.orders, key=lambda both: both[0].question)
        by_id = dict(enumerate(in_order, start=1))
        under_way: dict[str, asyncio.Lock] = {}

        def both_orders() -> Any:
            async def solve(state: Any, generate: Any) -> Any:
                del generate
                conversation.close_with_the_loop()
                messages = []
                for order, answer in zip(
                    by_id[state.sample_id], await ask(by_id[state.sample_id]), strict=True
                ):
                    said = "" if answer is None else answer.text or answer.detail or ""
                    messages.append(ChatMessageUser(content=order.question))
                    messages.append(ChatMessageAssistant(content=said))
                state.messages = messages
                return state

            async def ask(both: tuple[_Order, _Order]) -> list[Answer | None]:
                try:
                    return await asyncio.gather(*(one(order) for order in both))
                except Exception as error:
                    failures.append(error)
                    raise

            async def one(order: _Order) -> Answer | None:
                # A pair that comes twice in a shard waits for its first one's answer.
                async with under_way.setdefault(order.key, asyncio.Lock()):
                    answer = known.get(order.key)
                    if answer is None:
                        answer = await conversation.answer(order.question, order.key)
                        if answer is not None:
                            known[order.key] = answer
                            bar.update()
                            bar.set_postfix(conversation.said())
                return answer

            return solve

        def preference() -> Any:
            async def score(state: Any, target: Any) -> Any:
                del target
                value: dict[str, str] = {}
                for order in by_id[state.sample_id]:
                    answer = known.get(order.key)
                    said: Preference | None = None if answer is None else judge.read(answer)[0]
                    if said is not None and order.shown == "second":
                        said = _OTHER.get(said, said)
                    value[f"{order.shown} story shown first"] = said or "not asked"
                return Score(value=value)

            return score

        samples = [Sample(id=place, input=both[0].question) for place, both in by_id.items()]
        task = Task(
            name=self.task,
            dataset=MemoryDataset(samples),
            solver=solver(both_orders)(),
            scorer=scorer(metrics=[])(preference)(),
            metadata={"rater": judge.name, "template": judge.template.name},
        )
        return task, failures


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
