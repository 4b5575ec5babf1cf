"""Judges of pairs as tasks of inspect-ai, which sends the requests, logs, limits and retries.

inspect eval litbench/preference -T pairs=pairs.parquet --model openai/gpt-4.1
inspect eval litbench/suite -T data=runs --model openai/gpt-4.1
"""

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ModelOutput, get_model
from inspect_ai.scorer import Score, Scorer, grouped, mean, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver

from litbench.data.sources.pairs import read_any_pairs
from litbench.evaluation.benchmark import list_raters, list_sets, open_sets
from litbench.judges.answers import Answer
from litbench.judges.client import chat_messages, read_output
from litbench.judges.judge import StoriesQuestion
from litbench.judges.scorers import register_scorer
from litbench.judges.session import JUDGE, Request, Session, gather_all
from litbench.raters.interface import CREDITS, PREFERENCES, blind, swap
from litbench.raters.templates.parser import read_answer
from litbench.raters.templates.template import load_template
from litbench.runs.config import as_plain
from litbench.suite.command import Suite, benchmark_of


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
        asked = await gather_all(
            *(
                session.ask_readable(
                    JUDGE,
                    StoriesQuestion(template, state.input_text, stories),
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


_QUANTITIES = ("agreement", "flip_rate", "position_bias", "coverage")


@register_scorer(
    {name: [mean(), stderr(cluster="prompt_id")] for name in _QUANTITIES[:1]}
    | {name: [mean()] for name in _QUANTITIES[1:]}
)
def verdicts() -> Scorer:
    """Compare the verdicts of both orders with the chosen story; what is not judged is unscored."""
    return _verdicts()


@register_scorer({name: [grouped(mean(), "set", all="groups")] for name in _QUANTITIES})
def verdicts_by_set() -> Scorer:
    """Verdicts set by set, and as a mean in which each set counts once."""
    return _verdicts()


def _verdicts() -> Scorer:

    async def score(state: TaskState, target: Any) -> Score:
        answers = [(Answer(**answer), code) for answer, code in state.store.get("answers")]
        form = state.metadata["answer"]
        readings = [
            read_answer(answer.text, form, code) if answer.outcome == "answered" else None
            for answer, code in answers
        ]
        stated = [PREFERENCES[reading.verdict] if reading else "unparsed" for reading in readings]
        first, second = stated[0], swap(stated[1])
        judged = [CREDITS[preference] for preference in (first, second) if preference in CREDITS]
        named = [preference for preference in stated if preference in ("first", "second")]
        agreement = fmean(judged) if judged else math.nan
        nan = math.nan
        return Score(
            value={
                "agreement": agreement if target.text == "first" else 1 - agreement,
                "flip_rate": float(first != second) if len(named) == len(stated) else nan,
                "position_bias": named.count("first") / len(named) if named else nan,
                "coverage": len(judged) / len(stated),
            },
            answer=", ".join(stated),
            explanation="\n\n".join(reading.explanation or "" for reading in readings if reading),
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
    max_pairs: int | None = None,
    template: str = "alternative",
    answer: str | None = None,
) -> Task:
    """Which of two stories is better, in both orders, on the labelled pairs of `litbench suite`.

    Args:
        sets: only these sets; a list, or names with commas.
        data: folder of the sets.
        registry: YAML file with further entries.
        max_pairs: maximum number of pairs of each set.
        template: a template family or file.
        answer: answer form for a template family; explanation when null.
    """
    names = [name for name in sets.split(",") if name] if isinstance(sets, str) else sets
    registry_path = None if registry is None else Path(registry)
    suite_config = Suite(sets=names, data=Path(data), registry=registry_path, max_pairs=max_pairs)
    config = benchmark_of(suite_config, {})
    opened, *_ = open_sets(
        list_sets(config), list_raters(config), config.reference, config.max_pairs
    )
    tables = {opened_set.name: opened_set.pairs.headline for opened_set in opened}
    return _compare(tables, template, answer, verdicts_by_set(), "suite")


def _compare(
    tables: Mapping[str, pa.Table], template: str, answer: str | None, scorer: Scorer, name: str
) -> Task:
    """The task that compares the stories of pairs, by name of the set."""
    loaded = load_template(template, answer)  # type: ignore[arg-type]
    samples = [
        Sample(
            id=f"{set_name}/{row['pair_id']}" if set_name else row["pair_id"],
            input=row["prompt"],
            target="first" if is_first else "second",
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
        scorer=scorer,
        fail_on_error=True,
        continue_on_fail=True,
    )
