"""The benchmarks as tasks of inspect-ai, which sends the requests, logs, limits and retries.

    inspect eval litbench/longform --model openai/gpt-4.1 --model-role judge=openai/o3 --limit 2
    inspect score logs/LOG.eval --model-role judge=openai/gpt-5
    inspect eval litbench/preference -T pairs=pairs.parquet --model openai/gpt-4.1

Arguments of a benchmark are `judge_samples` and the options of its protocol, such as
`-T chapters=2`. `litbench run`, in contrast, stores every answer and limits the cost.
"""

import json
import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import GenerateConfig, ModelOutput, get_model
from inspect_ai.scorer import Score, Scorer, grouped, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import registry_info

from litbench.data.sources.pairs import read_any_pairs
from litbench.evaluation.benchmark import find_sets
from litbench.judges.answers import Answer, Sampling
from litbench.judges.client import Traffic, chat_messages, read_output
from litbench.judges.judge import PairQuestion
from litbench.judges.rubric import mean_of_known
from litbench.judges.session import JUDGE, WRITER, Models, Request, Role, Session, at_once
from litbench.raters.interface import blind
from litbench.raters.templates import load_template, read_answer
from litbench.runs.config import as_plain
from litbench.suite.command import Suite, benchmark_of
from litbench.writers.protocol import (
    Item,
    Protocol,
    Written,
    judge_repeatedly,
    load_protocol,
)

_WRITTEN = "written"
# The flip of a verdict, by that of the other order.
_OTHER = {"A": "B", "B": "A", "tie": "tie"}


@cache
def _loaded(protocol: str, options: str) -> tuple[Protocol, dict[str, Item]]:
    """A protocol and its items by id; `options` as JSON."""
    loaded = load_protocol(protocol, json.loads(options))
    return loaded, {item.prompt_id: item for item in loaded.items()}


def _of(state: TaskState) -> tuple[Protocol, Item]:
    """The protocol and the item of a sample, whose metadata names them."""
    loaded, items = _loaded(state.metadata["protocol"], json.dumps(state.metadata["options"]))
    return loaded, items[str(state.sample_id)]


def _generation(sampling: Sampling) -> GenerateConfig:
    given = {name: value for name, value in as_plain(sampling).items() if value is not None}
    # Models of a role do not inherit the timeout of the command line.
    return GenerateConfig(attempt_timeout=Traffic.timeout_seconds, **given)


def _model(protocol: Protocol, role: str) -> Any:
    """inspect-ai's model of a role; raises its PrerequisiteError if the role has none."""
    if role == WRITER:
        return get_model()
    is_judge = role in protocol.roles and protocol.roles[role].is_judge
    return get_model(
        role=role,
        default=get_model(role=JUDGE, required=True) if is_judge else None,
        required=True,
    )


def _session(protocol: Protocol, state: TaskState) -> Session:
    """A session that asks inspect-ai's models."""

    async def ask(request: Request) -> Answer:
        model, config = _model(protocol, request.role), GenerateConfig()
        if request.role != WRITER:
            of_role = protocol.roles.get(request.role)
            sampling = of_role.sampling if of_role else protocol.judge
            config = _generation(sampling).merge(model.config)
        messages = request.messages
        sent = messages if isinstance(messages, str) else chat_messages(messages)
        return read_output(await model.generate(sent, config=config))

    roles = (WRITER, JUDGE, *protocol.roles)
    models = dict.fromkeys(roles, ask)
    return Session(str(state.model), str(state.sample_id), state.epoch - 1, models=models)


def _scorer(metrics: Mapping[str, Any]) -> Callable[[Callable[..., Scorer]], Any]:
    """Register a scorer as litbench/NAME, and the one that is logged as litbench/litbench/NAME.

    inspect-ai logs a scorer without its package, and `inspect score` then looks for what is logged.
    It adds the package itself only where it sees how that was installed, which it does not where
    Python finds the folder `litbench.egg-info` of a checkout first.
    """

    def register(make: Callable[..., Scorer]) -> Any:
        name = f"litbench/{make.__name__}"
        seen = registry_info(scorer(metrics=metrics)(make)).name == name
        if not seen:
            scorer(metrics=metrics, name=name)(make)
        return scorer(metrics=metrics, name=name if seen else f"litbench/{name}")(make)

    return register


@solver  # type: ignore[untyped-decorator]
def write() -> Solver:
    """Have the model write about an item; `Protocol.write`."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        del generate
        loaded, item = _of(state)
        others = {role: Role(str(_model(loaded, role))) for role in (JUDGE, *loaded.roles)}
        loaded.check(Models({str(state.model): Role(str(state.model))}, others))
        session = _session(loaded, state)
        written = await loaded.write(session, item)
        state.store.set(_WRITTEN, as_plain(written))
        state.messages = chat_messages(session.messages())
        text = "\n\n".join(written.texts.values())
        state.output = ModelOutput.from_content(str(state.model), text)
        return state

    return solve


@_scorer({"*": [mean(), stderr()]})
def grade(judge_samples: int = 1) -> Scorer:
    """The headline and the mean rating of every criterion; metadata has all grades.

    Of `judge_samples` judgements, the means are scored, with the spread of the headline.
    """

    async def score(state: TaskState, target: Any) -> Score:
        del target
        loaded, item = _of(state)
        written = Written(**state.store.get(_WRITTEN))
        session = _session(loaded, state)
        judged = await judge_repeatedly(loaded, session, item, written, JUDGE, judge_samples)
        grades = [*written.grades, *judged.grades]
        by_judge = {name: (one, flags) for rater, name, one, flags in grades if rater == JUDGE}
        shown = [loaded.headline, *([f"{loaded.headline} spread"] if judge_samples > 1 else [])]
        criteria = [one.name for rubric in loaded.rubrics.values() for one in rubric.criteria]
        values = {
            # Of all texts that were rated by the criterion.
            name: mean_of_known(
                rated.ratings[name].rating
                for rated in judged.ratings.values()
                if name in rated.ratings
            )
            for name in criteria
        }
        values = {**{name: by_judge.get(name, (None,))[0] for name in shown}, **values}
        _, flags = by_judge.get(loaded.headline, (None, ["no grade"]))
        return Score(
            # inspect-ai counts NaN as unscored.
            value={name: math.nan if one is None else one for name, one in values.items()},
            answer=state.output.completion,
            explanation="; ".join(flags),
            metadata={
                "grades": {
                    f"{name} by {rater}" if rater else name: one for rater, name, one, _ in grades
                },
                "transcript": session.messages(),
            },
        )

    return score


def _benchmark(protocol: str, judge_samples: int, options: Mapping[str, Any]) -> Task:
    loaded, items = _loaded(protocol, json.dumps(options))
    metadata = {"protocol": protocol, "options": options}
    samples = [
        Sample(id=name, input=item.prompt, metadata=metadata) for name, item in items.items()
    ]
    return Task(
        dataset=MemoryDataset(samples, name=protocol),
        solver=write(),
        scorer=grade(judge_samples),
        config=_generation(loaded.writer),
        # Otherwise a failed sample leaves the status of the log "success".
        fail_on_error=True,
        continue_on_fail=True,
    )


@task  # type: ignore[untyped-decorator]
def longform(judge_samples: int = 1, **options: Any) -> Task:
    """A story of several chapters; options: `LongformOptions`."""
    return _benchmark("longform", judge_samples, options)


@task  # type: ignore[untyped-decorator]
def webnovel(judge_samples: int = 1, **options: Any) -> Task:
    """Chapters of Chinese novels; options: `WebnovelOptions`."""
    return _benchmark("webnovel", judge_samples, options)


@task  # type: ignore[untyped-decorator]
def tow(judge_samples: int = 1, **options: Any) -> Task:
    """Texts of HoWToBench; options: `TowOptions`."""
    return _benchmark("tow", judge_samples, options)


@task  # type: ignore[untyped-decorator]
def narra(judge_samples: int = 1, **options: Any) -> Task:
    """Interactive stories; needs the role `reader`; options: `NarraOptions`."""
    return _benchmark("narra", judge_samples, options)


@task  # type: ignore[untyped-decorator]
def stories(judge_samples: int = 1, **options: Any) -> Task:
    """Short stories for prompts; options: `StoriesOptions`."""
    return _benchmark("stories", judge_samples, options)


# Preferences -----------------------------------------------------------------------------------


@solver  # type: ignore[untyped-decorator]
def both_orders() -> Solver:
    """Ask which of two stories is better, in both orders."""

    async def ask(request: Request) -> Answer:
        messages = request.messages
        sent = messages if isinstance(messages, str) else chat_messages(messages)
        return read_output(await get_model().generate(sent))

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        del generate
        about = state.metadata
        template = load_template(about["template"], about["answer"])
        session = Session("", str(state.sample_id), 0, models={JUDGE: ask})
        orders = [about["stories"], about["stories"][::-1]]
        asked = await at_once(
            *(
                session.ask_readable(
                    JUDGE,
                    PairQuestion(template, state.input_text, *stories),
                    step=f"order_{number}",
                )
                for number, stories in enumerate(orders, 1)
            )
        )
        answers = [(as_plain(turns[-1].answer), code) for turns, code in asked]
        state.store.set("answers", answers)
        state.output = ModelOutput.from_content(str(state.model), answers[-1][0]["text"])
        state.messages = chat_messages(
            [
                message
                for turns, _ in asked
                for turn in turns
                for message in (("user", turn.question), ("assistant", turn.answer.text))
            ]
        )
        return state

    return solve


_QUANTITIES = ("agreement", "flip_rate", "first_share", "coverage")


@_scorer(
    {name: [mean(), stderr(cluster="prompt_id")] for name in _QUANTITIES[:1]}
    | {name: [mean()] for name in _QUANTITIES[1:]}
)
def verdicts() -> Scorer:
    """Compare the verdicts of both orders with the chosen story; what is not judged is unscored."""
    return _verdicts()


@_scorer({name: [grouped(mean(), "set", all="groups")] for name in _QUANTITIES})
def verdicts_by_set() -> Scorer:
    """The same set by set, and as a mean in which each set counts once."""
    return _verdicts()


def _verdicts() -> Scorer:

    async def score(state: TaskState, target: Any) -> Score:
        answers = [(Answer(**answer), code) for answer, code in state.store.get("answers")]
        form = state.metadata["answer"]
        readings = [
            read_answer(answer.text, form, code) if answer.outcome == "answered" else None
            for answer, code in answers
        ]
        found = [one.verdict if one and one.verdict in _OTHER else None for one in readings]
        # In the first order.
        first = [_OTHER.get(str(one)) if k else one for k, one in enumerate(found)]
        judged = [one for one in first if one is not None]
        named = [one for one in found if one in ("A", "B")]
        credit = [0.5 if one == "tie" else float(one == target.text) for one in judged]
        nan = math.nan
        return Score(
            value={
                "agreement": sum(credit) / len(credit) if credit else nan,
                "flip_rate": float(first[0] != first[1]) if len(named) == len(found) else nan,
                "first_share": named.count("A") / len(named) if named else nan,
                "coverage": len(judged) / len(found),
            },
            answer=", ".join(str(one) for one in found),
            explanation="\n\n".join(one.explanation or "" for one in readings if one),
        )

    return score


@task  # type: ignore[untyped-decorator]
def preference(
    pairs: str, template: str = "alternative", answer: str | None = None, split: str | None = None
) -> Task:
    """Which of two stories is better, in both orders.

    Args:
        pairs: path of a pairs table.
        template: a template family or file.
        answer: answer form for a template family; explanation when null.
        split: use only the pairs of this split.
    """
    table = read_any_pairs(pairs)
    if split is not None:
        table = table.filter(pc.field("split") == split)
    return _compare({"": table}, template, answer, verdicts(), "preference")


@task  # type: ignore[untyped-decorator]
def suite(
    sets: str | list[str] = "",
    data: str = "runs",
    registry: str | None = None,
    most_pairs: int | None = None,
    template: str = "alternative",
    answer: str | None = None,
) -> Task:
    """Which of two stories is better, in both orders, on the labelled pairs of `litbench suite`.

    Args:
        sets: only these sets; a list, or names with commas.
        data: folder of the sets.
        registry: YAML file with entries of your own.
        most_pairs: maximum number of pairs of each set.
        template: a template family or file.
        answer: answer form for a template family; explanation when null.
    """
    names = [name for name in sets.split(",") if name] if isinstance(sets, str) else sets
    own = None if registry is None else Path(registry)
    config = Suite(sets=names, data=Path(data), registry=own, most_pairs=most_pairs)
    opened, *_ = find_sets(benchmark_of(config, {}))
    tables = {one.name: one.pairs.headline for one in opened}
    return _compare(tables, template, answer, verdicts_by_set(), "suite")


def _compare(
    tables: Mapping[str, pa.Table], template: str, answer: str | None, of: Scorer, name: str
) -> Task:
    """The task that compares the stories of pairs, by name of the set."""
    loaded = load_template(template, answer)  # type: ignore[arg-type]
    samples = [
        Sample(
            id=f"{set_name}/{row['pair_id']}" if set_name else row["pair_id"],
            input=row["prompt"],
            target="A" if is_first else "B",
            metadata={
                "set": set_name,
                "prompt_id": row["prompt_id"],
                "template": template,
                "answer": loaded.answer,
                "stories": [pair.first, pair.second],
            },
        )
        for set_name, table in tables.items()
        for row, pair, is_first in zip(table.to_pylist(), *blind(table), strict=True)
    ]
    return Task(
        dataset=MemoryDataset(samples, name=name),
        solver=both_orders(),
        scorer=of,
        fail_on_error=True,
        continue_on_fail=True,
    )
