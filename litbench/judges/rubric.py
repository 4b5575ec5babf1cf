"""Rubric judge: a model that rates one text at a time by the criteria of a rubric.

    raters:
      story_rubric:
        kind: rubric
        model: openai/gpt-4.1
        rubric: story

As a rater it prefers the story with the higher grade. With several rubrics it asks about each and
takes the mean of the grades as shares of their scales; with several `samples` it takes the mean of
as many answers (self-consistency). Every call of `judge` writes one log for `inspect view --log-dir
FOLDER`.

In a session, `rate` asks the model of a role; a reply without all ratings is asked for once more in
the same conversation. Repeated judgements of a text are the attempts from 3, from 6, and so on, so
that each gets another answer.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from pydantic import PositiveInt

from litbench.data.sources.ratings import ROUNDING
from litbench.judges.answers import Sampling, shown_text
from litbench.judges.judge import ModelOptions, ModelRater
from litbench.judges.log import LogSample
from litbench.judges.session import ATTEMPTS, JUDGE, Mock, Session, Turn, finish_sessions
from litbench.raters.interface import UNASKED, BlindPair, Estimate, Judgement, Preference
from litbench.raters.templates.parser import without_reasoning
from litbench.raters.templates.rubric import Rating, Rubric, load_rubric, rubric_files
from litbench.runs.errors import ConfigError

# Judgements of a text by a judge, so that attempts stay within the numbers of a session's sample.
MAX_JUDGE_SAMPLES = 30


@dataclass(frozen=True)
class Rated:
    """A judge's ratings of one text.

    Attributes:
        ratings: the rating of every criterion.
        grade: the grade made of them, see `Rubric.grade`.
        reply: the turn that was read.
        turns: all turns, with those that lacked ratings.
    """

    ratings: dict[str, Rating]
    grade: float | None
    reply: Turn
    turns: list[Turn]

    @property
    def outcome(self) -> str:
        """The outcome of the whole: rated if there is a grade."""
        if self.grade is not None:
            return "rated"
        return "unparsed" if self.reply.outcome == "answered" else self.reply.outcome

    @property
    def missing(self) -> list[str]:
        """Criteria without a rating."""
        return [name for name, rating in self.ratings.items() if rating.rating is None]


def load_story_rubric(name: str, where: str) -> Rubric:
    """Load a rubric for a story and its prompt; raises a ConfigError if it needs other texts."""
    rubric = load_rubric(name)
    if needed := rubric.placeholders - {"text", "prompt"}:
        raise ConfigError(
            f"{where}: rubric {rubric.name} needs {', '.join(sorted(needed))}, which a story does "
            "not have: use a rubric of {prompt} and {text}"
        )
    return rubric


def mean_rated(repeats: Sequence[Rated]) -> Rated:
    """The mean ratings and grade of repeated judgements of a text, with all their turns."""
    first = repeats[0]
    ratings = {}
    for name, rating in first.ratings.items():
        mean = mean_of_known(rated.ratings[name].rating for rated in repeats)
        ratings[name] = rating if mean is None else Rating(mean)
    return Rated(
        ratings,
        mean_of_known(rated.grade for rated in repeats),
        first.reply,
        [turn for rated in repeats for turn in rated.turns],
    )


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are not None; None without any."""
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers else None


@dataclass(frozen=True)
class RatingQuestion:
    """A rubric with the texts that fill it, see `Session.ask_readable`.

    Attributes:
        as_published: read replies as the benchmark's own program does, which asks only once.
    """

    rubric: Rubric
    texts: Mapping[str, str]
    as_published: bool = False

    @property
    def is_coded(self) -> bool:
        return self.rubric.is_coded and not self.as_published

    def render(self, code: str | None) -> list[tuple[str, str]]:
        return self.rubric.render(self.texts, code)

    def is_read(self, answer: str, code: str | None) -> bool:
        ratings = self.rubric.read(without_reasoning(answer), code).values()
        return all(rating.rating is not None for rating in ratings)

    def repair(self, code: str | None) -> str | None:
        """The request for the ratings alone."""
        return None if self.as_published else self.rubric.repair(code)

    def read(self, reply: Turn, code: str | None) -> dict[str, Rating]:
        """Read the rating of every criterion.

        A truncated reply has no ratings, because its last number may be incomplete. With
        `as_published` it is read nevertheless.
        """
        if reply.outcome == "answered" or (self.as_published and reply.outcome == "cut"):
            text = without_reasoning(reply.text)
            return self.rubric.read(text, code, as_published=self.as_published)
        return self.rubric.unread(reply.outcome)


async def rate(
    session: Session,
    role: str,
    rubric: Rubric,
    texts: Mapping[str, str],
    *,
    step: str,
    as_published: bool = False,
) -> Rated:
    """Ask the model of a role to rate a text; `texts` fill the rubric."""
    question = RatingQuestion(rubric, texts, as_published)
    if session.judge_sample >= MAX_JUDGE_SAMPLES:
        raise ConfigError(
            f"{step}: {session.judge_sample + 1} judgements of a text, of at most "
            f"{MAX_JUDGE_SAMPLES}: lower judge_samples or the protocol's number of judgements"
        )
    first = session.judge_sample * ATTEMPTS
    turns, code = await session.ask_readable(role, question, step=step, attempt=first)
    ratings = question.read(turns[-1], code)
    return Rated(ratings, rubric.grade(ratings), turns[-1], turns)


@dataclass
class RubricOptions(ModelOptions):
    """Options of the kind `rubric`.

    Attributes:
        rubric: a packaged rubric or a file, or several; see litbench.raters.templates.rubric.
        samples: how often each story is rated.
        as_published: read replies as the benchmark's own program does.
    """

    sampling: Sampling = field(default_factory=lambda: Sampling(max_tokens=4096))
    rubric: str | list[str] = "story"
    samples: PositiveInt = 1
    as_published: bool = False

    def rubrics(self) -> list[str]:
        return [self.rubric] if isinstance(self.rubric, str) else self.rubric

    def files(self) -> dict[str, str]:
        """The rubrics, and the files of other raters."""
        files = super().files()
        for number, rubric in enumerate(self.rubrics()):
            files |= {name + str(number or ""): path for name, path in rubric_files(rubric).items()}
        return files

    def load(self, name: str) -> "RubricRater":
        """Make the rater; no request is sent."""
        return RubricRater(name, self)


class RubricRater(ModelRater):
    """A rubric judge as a rater; see the module. Each story is rated in a session of its own."""

    kind = "rubric"
    options: RubricOptions

    def __init__(self, name: str, options: RubricOptions) -> None:
        super().__init__(name, options)
        self.options = options
        self._rubrics = [load_story_rubric(rubric, f"rater {name}") for rubric in options.rubrics()]
        if not self._rubrics:
            raise ConfigError(f"rater {name}: rubric is empty: name at least one")
        self._counts: Counter[str] = Counter()

    def notes(self) -> dict[str, Any]:
        return {
            "model": self.options.model,
            "rubric": ", ".join(rubric.name for rubric in self._rubrics),
            "price": None if self._price is None else vars(self._price),
            "ratings": dict(self._counts),
        }

    def estimate(self, pairs: Sequence[BlindPair]) -> list[Estimate]:
        """Estimate the cost of the first replies without sending requests."""
        mock = Mock(rubrics={rubric.name: rubric for rubric in self._rubrics})
        return self.estimate_sessions(list(self._sessions(pairs).values()), mock)

    def judge(self, pairs: Sequence[BlindPair]) -> Sequence[Sequence[Judgement]]:
        """Rate every story once and compare the grades.

        Raises:
            ConfigError: a limit of `traffic` is reached, unless `may_stop`.
            ModelError: the model failed `give_up_after` times in a row.
        """
        sessions, about = self._sessions(pairs), f"rater {self.name}"
        with self.answer_store() as store:
            planned = list(sessions.values())
            done = "stories are rated"
            ended = finish_sessions(
                planned, self._models, store, about, done, may_stop=self.may_stop
            )
        by_story: dict[tuple[str, str], list[Session]] = {}
        for (*story, _), session in zip(sessions, ended, strict=True):
            by_story.setdefault((story[0], story[1]), []).append(session)
            for rated in session.result or ():
                self._counts.update(rating.outcome for rating in rated.ratings.values())
        self._write_log([session for session in ended if session.reason is None])
        judged = list[list[Judgement]]()
        # Only the first pair of a story has its costs, so that all add up to what was paid.
        costs = dict(by_story)
        for pair in pairs:
            first, second = ((pair.prompt, text) for text in (pair.first, pair.second))
            paid = [*costs.pop(first, ()), *costs.pop(second, ())]
            judged.append([self._judgement(by_story[first], by_story[second], paid)])
        return judged

    def _sessions(self, pairs: Sequence[BlindPair]) -> dict[tuple[str, str, int], Session]:
        """A session per distinct prompt, story and sample."""

        def about(prompt: str, text: str, sample: int) -> Session:
            texts = {"prompt": prompt, "text": text}
            return Session("", "", sample, lambda session: self._rate(session, texts))

        stories = [(pair.prompt, text) for pair in pairs for text in (pair.first, pair.second)]
        return {
            (*story, sample): about(*story, sample)
            for story in dict.fromkeys(stories)
            for sample in range(self.options.samples)
        }

    async def _rate(self, session: Session, texts: Mapping[str, str]) -> list[Rated]:
        published = self.options.as_published
        return [
            await rate(session, JUDGE, rubric, texts, step=rubric.name, as_published=published)
            for rubric in self._rubrics
        ]

    def _grade(self, sessions: Sequence[Session]) -> float | None:
        """The mean grade of a story over samples and rubrics; None without any."""
        grades = [
            # With one rubric, on its scale.
            rated.grade
            if len(self._rubrics) == 1
            else (rated.grade - rubric.lowest) / (rubric.highest - rubric.lowest)
            for session in sessions
            for rubric, rated in zip(self._rubrics, session.result, strict=True)
            if rated.grade is not None
        ]
        return sum(grades) / len(grades) if grades else None

    def _write_log(self, sessions: Sequence[Session]) -> None:
        """Write an inspect-ai log with one sample per story."""
        samples = []
        for number, session in enumerate(sessions, 1):
            names = [name for rated in session.result for name in rated.missing]
            grade = self._grade([session])
            explanation = f"missing: {', '.join(names) or 'nothing'}"
            scores = {} if grade is None else {"grade": (grade, explanation)}
            samples.append(LogSample(number, session.messages(), scores))
        questions = [next(iter(session.transcript.values())).question for session in sessions]
        metadata = {"rubric": [rubric.name for rubric in self._rubrics]}
        self.write_samples(samples, questions, metadata, "mean")

    def _judgement(
        self, first: Sequence[Session], second: Sequence[Session], paid: Sequence[Session]
    ) -> Judgement:
        """The judgement of a pair by the sessions of its stories; `paid` have its costs."""
        for session in (*first, *second):
            if session.reason is not None:
                return Judgement("error", explanation=f"{UNASKED}{session.reason}")
        grades = [self._grade(sessions) for sessions in (first, second)]
        rated: list[Rated] = [rated for session in (*first, *second) for rated in session.result]
        prefers: Preference
        if grades[0] is None or grades[1] is None:
            prefers = (first if grades[0] is None else second)[0].result[0].outcome
        elif abs(grades[0] - grades[1]) <= ROUNDING:
            prefers = "tie"
        else:
            prefers = "first" if grades[0] > grades[1] else "second"
        effort = self.effort([turn for session in paid for turn in session.transcript.values()])
        effort |= {"messages": (), "seconds": effort["seconds"] or 0.0}
        return Judgement(
            prefers,
            reward_first=grades[0],
            reward_second=grades[1],
            explanation="\n\n".join(shown_text(rated_text.reply.answer) for rated_text in rated),
            **effort,
        )
