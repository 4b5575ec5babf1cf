"""The benchmarks as tasks of inspect-ai, which sends the requests, logs, limits and retries.

    inspect eval litbench/longform --model openai/gpt-4.1 --model-role judge=openai/o3 --limit 2
    inspect score logs/LOG.eval --model-role judge=openai/gpt-5

Arguments of a benchmark are `judge_samples` and the options of its protocol, such as
`-T chapters=2`. `litbench run`, in contrast, stores every answer and limits the cost.
"""

import json
import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import GenerateConfig, ModelOutput, get_model
from inspect_ai.scorer import Score, Scorer, mean, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver

from litbench.judges.answers import Answer, Sampling
from litbench.judges.client import Traffic, chat_messages, read_output
from litbench.judges.rubric import mean_of_known
from litbench.judges.scorers import register_scorer
from litbench.judges.session import JUDGE, WRITER, Models, Request, Role, Session
from litbench.runs.config import as_plain
from litbench.writers.protocol import (
    Item,
    Protocol,
    Written,
    judge_repeatedly,
    load_protocol,
)

_WRITTEN = "written"


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
    options = {name: value for name, value in as_plain(sampling).items() if value is not None}
    # Models of a role do not inherit the timeout of the command line.
    return GenerateConfig(attempt_timeout=Traffic.timeout_seconds, **options)


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


@register_scorer({"*": [mean(), stderr()]})
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
        by_judge = {name: (value, flags) for rater, name, value, flags in grades if rater == JUDGE}
        shown = [loaded.headline, *([f"{loaded.headline} spread"] if judge_samples > 1 else [])]
        criteria = [
            criterion.name for rubric in loaded.rubrics.values() for criterion in rubric.criteria
        ]
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
            value={name: math.nan if value is None else value for name, value in values.items()},
            answer=state.output.completion,
            explanation="; ".join(flags),
            metadata={
                "grades": {
                    f"{name} by {rater}" if rater else name: value
                    for rater, name, value, _ in grades
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
